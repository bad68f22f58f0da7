//! An input as requests as they come.

use std::error::Error as StdError;

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use super::input::Lines;
use super::log::{LogLineError, LogReader};
use super::{DamagedInput, TrafficCounts, UnreadLine, time};
use crate::request::{RecordedRequest, TimedRequest};

/// Longest line of a log in bytes.
const MAX_LOG_LINE: usize = 64 << 10;
/// Most characters of a line that are shown.
const SHOWN_CHARACTERS: usize = 200;

/// An input.
#[derive(Debug)]
pub(super) struct Source {
    name: String,
    lines: Lines,
}

/// Reads the JSON of a request.
pub type RequestReader = fn(Value) -> Result<RecordedRequest, Box<dyn StdError + Send + Sync>>;

/// Reads lines.
#[derive(Debug)]
pub(super) enum LineReader {
    Log(LogReader),
    Requests(RequestReader),
}

/// A line that is a request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestLine {
    time: Value,
    request: Value,
}

/// What sources share.
#[derive(Debug)]
pub(super) struct Sink {
    reader: LineReader,
    pub(super) counts: TrafficCounts,
    /// Bytes of the requests that are held to be put in order, and how many there may be.
    pub(super) held_bytes: usize,
    pub(super) max_held_bytes: usize,
}

/// Why a line can't be a request.
#[derive(Debug, Error)]
enum LineError {
    #[error("the line is too long, must be at most {} KiB", MAX_LOG_LINE >> 10)]
    TooLong,
    #[error(transparent)]
    Log(#[from] LogLineError),
    #[error("the line must be an object with time and request: {0}")]
    Json(#[from] serde_json::Error),
    #[error("request: {0}")]
    Request(#[from] Box<dyn StdError + Send + Sync>),
}

impl Source {
    pub(super) fn new(name: String, lines: Lines) -> Self {
        Self { name, lines }
    }

    /// Returns the next request, and counts all other lines; `None` at the end.
    pub(super) fn next(&mut self, sink: &mut Sink) -> Option<TimedRequest> {
        while self.lines.advance() {
            sink.counts.lines += 1;
            match self.request(&mut sink.reader) {
                Ok(Some(arrival)) => return Some(arrival),
                Ok(None) => sink.counts.anonymous += 1,
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

    /// Returns the request of the line that was read last; `None` if it has no user id.
    fn request(&self, reader: &mut LineReader) -> Result<Option<TimedRequest>, LineError> {
        let line = |max| self.lines.line(max).ok_or(LineError::TooLong);
        match reader {
            LineReader::Log(log) => Ok(log.read(line(MAX_LOG_LINE)?)?),
            LineReader::Requests(read) => {
                let RequestLine { time, request } = serde_json::from_slice(line(usize::MAX)?)?;
                let time = time.as_str().map_or_else(|| time.to_string(), str::to_owned);
                let at = time::read(&time).ok_or(LogLineError::Time)?;
                Ok(Some(TimedRequest { at, request: read(request)?, was_refused: false }))
            }
        }
    }

    /// Counts what is known only at the end.
    fn end(&self, sink: &mut Sink) {
        let counts = &mut sink.counts;
        if let LineReader::Log(log) = &sink.reader {
            counts.absent_fields = log.absent_fields();
        }
        if let Some(damage) = self.lines.damage() {
            let reason = format!("can be read only in part: {damage}");
            counts.damaged.push(DamagedInput { input: self.name.clone(), reason });
        }
    }
}

impl Sink {
    pub(super) fn new(reader: LineReader, max_held_bytes: usize) -> Self {
        let default_mappings = match &reader {
            LineReader::Log(log) => log.default_mappings().to_vec(),
            LineReader::Requests(_) => Vec::new(),
        };
        let counts = TrafficCounts { default_mappings, ..TrafficCounts::default() };
        Self { reader, counts, held_bytes: 0, max_held_bytes }
    }
}
