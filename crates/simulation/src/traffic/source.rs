//! An input as requests as they come.

use thiserror::Error;

use super::input::Lines;
use super::log::{LogLineError, LogReader};
use super::{DamagedInput, TrafficCounts, UnreadLine};
use crate::recording::{LineProblem, RecordedLine};
use crate::request::TimedRequest;

/// Longest line of a log in bytes.
const MAX_LOG_LINE: usize = 64 << 10;
/// Most characters of a line that are shown.
const SHOWN_CHARACTERS: usize = 200;

/// An input.
#[derive(Debug)]
pub(super) struct Source {
    name: String,
    lines: Lines,
    kind: SourceKind,
}

/// What the lines of an input are.
#[derive(Debug)]
pub(super) enum SourceKind {
    Log,
    /// A recording, of which the requests of a project are read; empty: none.
    Recording {
        project: Box<str>,
    },
}

/// What sources share.
#[derive(Debug)]
pub(super) struct Sink {
    log: Option<LogReader>,
    pub(super) counts: TrafficCounts,
    /// Bytes of the requests that are held to be put in order, and how many there may be.
    pub(super) held_bytes: usize,
    pub(super) max_held_bytes: usize,
}

/// What a line is.
enum LineOutcome {
    Request(TimedRequest),
    Anonymous,
    OtherProject,
    Lost(u64),
}

/// Why a line can't be a request.
#[derive(Debug, Error)]
enum LineError {
    #[error("the line is too long, must be at most {} KiB", MAX_LOG_LINE >> 10)]
    TooLong,
    #[error(transparent)]
    Log(#[from] LogLineError),
    #[error(transparent)]
    Recording(#[from] LineProblem),
}

impl Source {
    pub(super) fn new(name: String, lines: Lines, kind: SourceKind) -> Self {
        Self { name, lines, kind }
    }

    /// Returns the next request, and counts all other lines; `None` at the end.
    pub(super) fn next(&mut self, sink: &mut Sink) -> Option<TimedRequest> {
        while self.lines.advance() {
            sink.counts.lines += 1;
            match self.outcome(sink.log.as_mut()) {
                Ok(LineOutcome::Request(arrival)) => return Some(arrival),
                Ok(LineOutcome::Anonymous) => sink.counts.anonymous += 1,
                Ok(LineOutcome::OtherProject) => sink.counts.skipped_by_project += 1,
                Ok(LineOutcome::Lost(count)) => {
                    sink.counts.lines -= 1;
                    sink.counts.lost = sink.counts.lost.saturating_add(count);
                }
                Err(error) => sink.counts.add_unread(|| {
                    let (line, excerpt) = self.lines.excerpt(SHOWN_CHARACTERS);
                    UnreadLine {
                        input: self.name.clone(),
                        line,
                        reason: error.to_string(),
                        excerpt,
                    }
                }),
            }
        }
        self.end(sink);
        None
    }

    fn outcome(&self, log: Option<&mut LogReader>) -> Result<LineOutcome, LineError> {
        let max = match self.kind {
            SourceKind::Log => MAX_LOG_LINE,
            SourceKind::Recording { .. } => usize::MAX,
        };
        let line = self.lines.line(max).ok_or(LineError::TooLong)?;
        match (&self.kind, log) {
            (SourceKind::Recording { project }, _) => Ok(match RecordedLine::read(line)? {
                RecordedLine::Lost(count) => LineOutcome::Lost(count),
                RecordedLine::Request { request, .. } if request.project() != &**project => {
                    LineOutcome::OtherProject
                }
                RecordedLine::Request { at, request, was_refused } => {
                    LineOutcome::Request(TimedRequest { at, request, was_refused })
                }
            }),
            (SourceKind::Log, log) => {
                let arrival = log.map(|log| log.read(line)).transpose()?.flatten();
                Ok(arrival.map_or(LineOutcome::Anonymous, LineOutcome::Request))
            }
        }
    }

    /// Counts what is known only at the end.
    fn end(&self, sink: &mut Sink) {
        let counts = &mut sink.counts;
        if let Some(log) = &sink.log {
            counts.absent_fields = log.absent_fields();
        }
        if let Some(damage) = self.lines.damage() {
            let reason = format!("can be read only in part: {damage}");
            counts.damaged.push(DamagedInput { input: self.name.clone(), reason });
        }
    }
}

impl Sink {
    pub(super) fn new(log: Option<LogReader>, max_held_bytes: usize) -> Self {
        let default_mappings = log.as_ref().map(LogReader::default_mappings).unwrap_or_default();
        let default_mappings = default_mappings.to_vec();
        let counts = TrafficCounts { default_mappings, ..TrafficCounts::default() };
        Self { log, counts, held_bytes: 0, max_held_bytes }
    }
}
