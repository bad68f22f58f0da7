//! A log as a source of requests.

use std::sync::Arc;

use thiserror::Error;

use super::log_mapping::{LineOutcome, LogMapping, MapLineError, MappedLine};
use super::{FAR_AHEAD, count_unread, excerpt, note_end};
use crate::request::TimedRequest;
use crate::traffic::format::{FieldValues, LineParser, Parsed, Unreadable};
use crate::traffic::input::{LineReader, MAX_LINE_BYTES, RawLine};
use crate::traffic::order::{LineSink, ShownLine, Source, SourceLine};
use crate::traffic::stamp::{LocalTime, StampReader};
use crate::traffic::{TrafficCounts, TrafficError, UnreadLine};

/// Bytes of a line that are kept to be shown.
const KEPT_BYTES: usize = 512;

/// A log.
#[derive(Debug)]
pub(super) struct LogSource {
    lines: LineReader,
    parser: LineParser,
    values: FieldValues,
    mapping: Arc<LogMapping>,
    stamps: StampReader,
    scratch: Vec<u8>,
    /// The beginning of the last line.
    last_line: Vec<u8>,
}

/// Why a line of a log can't be a request.
#[derive(Debug, Error)]
enum LogLineError {
    #[error("the line must be at most {MAX_LINE_BYTES} bytes, not {0}")]
    TooLong(u64),
    #[error(transparent)]
    Format(#[from] Unreadable),
    #[error(transparent)]
    Mapping(#[from] MapLineError),
}

impl LogSource {
    /// Creates a source of the lines, with a parser and a reader of stamps that have read nothing.
    pub(super) fn new(
        lines: LineReader,
        parser: LineParser,
        stamps: StampReader,
        mapping: Arc<LogMapping>,
    ) -> Self {
        let (values, scratch, last_line) = (FieldValues::default(), Vec::new(), Vec::new());
        Self { lines, parser, values, mapping, stamps, scratch, last_line }
    }

    /// Reads a line; `None` at the end. A line without a request by its format has no outcome.
    fn read(&mut self) -> Result<Option<Result<Option<LineOutcome>, LogLineError>>, TrafficError> {
        let parsed = match self.lines.next_line()? {
            None => return Ok(None),
            Some(RawLine::TooLong { start, length }) => {
                keep(&mut self.last_line, start);
                Err(LogLineError::TooLong(length))
            }
            Some(RawLine::Whole(line)) => {
                keep(&mut self.last_line, line);
                self.parser.parse(line, &mut self.values).map_err(Into::into)
            }
        };
        Ok(Some(match parsed {
            Err(error) => Err(error),
            Ok(Parsed::Directive) => Ok(None),
            Ok(Parsed::Fields) => {
                let mapped = self.mapping.map(&self.values, &mut self.stamps, &mut self.scratch);
                mapped.map(Some).map_err(Into::into)
            }
        }))
    }

    fn unread_line(&self, line: ShownLine, reason: String) -> UnreadLine {
        let ShownLine { number, excerpt } = line;
        UnreadLine { input: self.lines.name().to_owned(), line: number, reason, excerpt }
    }
}

impl Source for LogSource {
    fn next(&mut self, sink: &mut LineSink<'_>) -> Result<Option<SourceLine>, TrafficError> {
        while let Some(read) = self.read()? {
            sink.counts.lines += 1;
            match read {
                Ok(Some(LineOutcome::Request(line))) => return Ok(Some(timed(line, sink))),
                Ok(Some(LineOutcome::Skipped)) => sink.counts.skipped += 1,
                Ok(Some(LineOutcome::SkippedByStatus)) => sink.counts.skipped_by_status += 1,
                Ok(Some(LineOutcome::Anonymous)) => sink.counts.anonymous += 1,
                Ok(None) => sink.counts.without_request += 1,
                Err(error) => count_unread(sink.counts, || {
                    self.unread_line(self.shown_line(), error.to_string())
                }),
            }
        }
        Ok(None)
    }

    fn shown_line(&self) -> ShownLine {
        ShownLine { number: self.lines.number(), excerpt: excerpt(&self.last_line) }
    }

    fn refuse(&self, line: &ShownLine, counts: &mut TrafficCounts) {
        count_unread(counts, || self.unread_line(line.clone(), FAR_AHEAD.to_owned()));
    }

    fn position(&self) -> u64 {
        self.lines.status().position()
    }

    fn finish(&mut self, counts: &mut TrafficCounts) {
        let resolution = self.stamps.resolution();
        counts.resolution = counts.resolution.max(resolution);
        let incomplete = self.parser.incomplete() as u64;
        for _ in 0..incomplete {
            // The parts that there are were taken for lines without a request.
            counts.without_request = counts.without_request.saturating_sub(1);
            let reason = "the last part of the line is missing";
            count_unread(counts, || self.unread_line(self.shown_line(), reason.to_owned()));
        }
        counts.absent_fields = self.mapping.fields.absent();
        note_end(self.lines.name(), self.lines.status(), counts);
    }
}

/// Adds a request to the dictionary.
fn timed(line: MappedLine, sink: &mut LineSink<'_>) -> SourceLine {
    let MappedLine { request, stamp, duration, was_refused } = line;
    match stamp.local {
        LocalTime::Unique => {}
        LocalTime::Repeated => sink.counts.ambiguous_times += 1,
        LocalTime::Skipped => sink.counts.skipped_times += 1,
    }
    sink.counts.without_duration += u64::from(duration.is_none());
    let at = stamp.at - duration.unwrap_or_default();
    let bytes = u32::try_from(request.bytes()).unwrap_or(u32::MAX);
    let request = sink.dictionary.number(request);
    SourceLine { request: TimedRequest { at, request, was_refused }, bytes }
}

fn keep(last_line: &mut Vec<u8>, line: &[u8]) {
    last_line.clear();
    last_line.extend_from_slice(&line[..line.len().min(KEPT_BYTES)]);
}
