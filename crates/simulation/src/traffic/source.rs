//! An input as requests as they come, and counts of what became of its lines.

use std::error::Error as StdError;

use rlaas_core::clock::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use super::input::Lines;
use super::log::{LogLineError, LogReader};
use super::time;
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

/// What became of the lines that were read. Each line is in exactly one of `arrivals`, `unread` and
/// `anonymous`, or it waits to be put in order. Empty lines are no lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TrafficCounts {
    /// Inputs that were opened.
    pub inputs: u64,
    /// Lines that were read.
    pub lines: u64,
    /// Requests that were returned.
    pub arrivals: u64,
    /// Lines that could not be understood.
    pub unread: u64,
    /// The first of the lines that could not be understood.
    pub first_unread: Vec<UnreadLine>,
    /// Lines without a user id: no requests.
    pub anonymous: u64,
    /// Requests whose recorded answer was a refusal.
    pub refused_before: u64,
    /// Requests that were further behind the newest of their input than lines are put in order.
    /// They were moved to the oldest time that was still open.
    pub late: u64,
    /// Requests that were returned before all older ones could have been read, because the buffer
    /// that puts lines in order was full.
    pub left_early: u64,
    /// Inputs that end too early or are corrupt. What was before the damage was read.
    pub damaged: Vec<DamagedInput>,
    /// Time of the first request.
    #[serde(rename = "firstUs")]
    pub first: Option<Timestamp>,
    /// Time of the last request.
    #[serde(rename = "lastUs")]
    pub last: Option<Timestamp>,
    /// Fields that are mapped, and that no line has a value for.
    pub absent_fields: Vec<String>,
    /// Mappings that were not given but follow from the format, as `NAME=FIELD`.
    pub default_mappings: Vec<String>,
}

impl TrafficCounts {
    /// Most lines in [`Self::first_unread`].
    pub const MAX_FIRST_UNREAD: usize = 10;

    /// Returns the lines that should have been requests: those that became requests, and those that
    /// could not be understood. The share of unread lines is a share of these.
    pub const fn readable(&self) -> u64 {
        self.arrivals + self.unread
    }

    /// Counts a line that could not be understood, and keeps it if it is one of the first.
    pub(super) fn add_unread(&mut self, line: impl FnOnce() -> UnreadLine) {
        self.unread += 1;
        if self.first_unread.len() < Self::MAX_FIRST_UNREAD {
            self.first_unread.push(line());
        }
    }
}

/// A line that could not be understood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnreadLine {
    /// Name of the input.
    pub input: String,
    /// Number of the line in its input, from 1.
    pub line: u64,
    /// Why it could not be understood.
    pub reason: String,
    /// The beginning of the line, as text; what is not UTF-8 is replaced.
    pub excerpt: String,
}

/// An input that ends too early or is corrupt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DamagedInput {
    /// Name of the input.
    pub input: String,
    /// What is wrong with it.
    pub reason: String,
}
