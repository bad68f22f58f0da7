//! Envelopes in which container runtimes keep the lines of an application.
//!
//! **Source:** Docker's `json-file` driver (`daemon/logger/jsonfilelog`); the log format of the
//! Container Runtime Interface (`kubernetes/design-proposals-archive`, `kubelet-cri-logging.md`).

use memchr::memchr;

use super::json::{JsonParser, JsonProblem};
use super::{FieldValues, Unreadable};
use crate::traffic::input::MAX_LINE_BYTES;

/// The envelope of each line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Envelope {
    /// As the first line of each input looks.
    #[default]
    Auto,
    /// None.
    None,
    /// Docker's `json-file`: `{"log":"…\n","stream":"stdout","time":"…"}`.
    Docker,
    /// That of the Container Runtime Interface, used by containerd and CRI-O:
    /// `2016-10-06T00:17:09.669794202Z stdout F …`.
    Cri,
}

/// Takes lines out of their envelopes, and joins the parts of lines that the runtime split.
#[derive(Clone, Debug)]
pub(super) struct Unwrapper {
    envelope: Envelope,
    docker: JsonParser,
    parts: FieldValues,
    /// Standard output and standard error.
    streams: [PartialRecord; 2],
}

/// The parts of a record whose last part is missing yet.
#[derive(Clone, Debug, Default)]
struct PartialRecord {
    text: Vec<u8>,
    /// Envelope's time of the first part.
    time: Vec<u8>,
    state: RecordState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RecordState {
    /// There are no parts.
    #[default]
    Empty,
    /// The last part is missing.
    Partial,
    /// The parts take more than a line may have, and were dropped.
    TooLong,
    /// The record was returned.
    Returned,
}

/// A line without its envelope.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unwrapped<'a> {
    pub(super) line: &'a [u8],
    pub(super) time: &'a [u8],
    pub(super) stream: &'static str,
}

/// A line of an envelope.
struct Part<'a> {
    text: &'a [u8],
    time: &'a [u8],
    stream: usize,
    is_last: bool,
}

const STREAMS: [&str; 2] = ["stdout", "stderr"];

impl Unwrapper {
    pub(super) fn new(envelope: Envelope) -> Self {
        let names = ["log", "stream", "time"].map(Some);
        let docker = JsonParser::new(&names).expect("three paths of one key");
        let parts = FieldValues::default();
        Self { envelope, docker, parts, streams: <[PartialRecord; 2]>::default() }
    }

    /// Returns the envelope of a line. The first line decides it for all if none was chosen.
    pub(super) fn envelope(&mut self, line: &[u8]) -> Envelope {
        if self.envelope == Envelope::Auto {
            self.envelope = if self.docker_part(line).is_ok() {
                Envelope::Docker
            } else if cri_part(line).is_some() {
                Envelope::Cri
            } else {
                Envelope::None
            };
        }
        self.envelope
    }

    /// Returns how many records lack their last part.
    pub(super) fn incomplete(&self) -> usize {
        let is_incomplete = |stream: &&PartialRecord| {
            matches!(stream.state, RecordState::Partial | RecordState::TooLong)
        };
        self.streams.iter().filter(is_incomplete).count()
    }

    /// Takes a line out of its envelope. Returns `None` if it is not the last part of its record.
    pub(super) fn unwrap(&mut self, line: &[u8]) -> Result<Option<Unwrapped<'_>>, Unreadable> {
        let is_docker = self.envelope == Envelope::Docker;
        let part = if is_docker {
            docker_part(&self.docker, line, &mut self.parts).map_err(Unreadable::Docker)?
        } else {
            cri_part(line).ok_or(Unreadable::Cri)?
        };
        let record = &mut self.streams[part.stream];
        record.add(&part);
        if !part.is_last {
            return Ok(None);
        }
        let stream = STREAMS[part.stream];
        match std::mem::replace(&mut record.state, RecordState::Returned) {
            RecordState::TooLong => Err(Unreadable::RecordTooLong { maximum: MAX_LINE_BYTES }),
            _ => Ok(Some(Unwrapped { line: &record.text, time: &record.time, stream })),
        }
    }

    fn docker_part(&mut self, line: &[u8]) -> Result<(), Unreadable> {
        docker_part(&self.docker, line, &mut self.parts).map(drop).map_err(Unreadable::Docker)
    }
}

impl PartialRecord {
    fn add(&mut self, part: &Part<'_>) {
        if matches!(self.state, RecordState::Empty | RecordState::Returned) {
            self.text.clear();
            self.time.clear();
            self.time.extend_from_slice(part.time);
            self.state = RecordState::Partial;
        }
        if self.state == RecordState::TooLong {
            return;
        }
        if self.text.len() + part.text.len() > MAX_LINE_BYTES {
            self.text.clear();
            self.state = RecordState::TooLong;
        } else {
            self.text.extend_from_slice(part.text);
        }
    }
}

fn stream(name: &[u8]) -> Option<usize> {
    STREAMS.iter().position(|stream| stream.as_bytes() == name)
}

/// Why a line is not in Docker's envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DockerProblem {
    /// The line is no JSON.
    #[error(transparent)]
    Json(#[from] JsonProblem),
    /// A member is missing.
    #[error("must have log, stream and time")]
    Members,
}

fn docker_part<'a>(
    parser: &JsonParser,
    line: &[u8],
    values: &'a mut FieldValues,
) -> Result<Part<'a>, DockerProblem> {
    values.clear(3);
    parser.parse(line, values)?;
    let values = &*values;
    let stream = values.get(1).and_then(stream).ok_or(DockerProblem::Members)?;
    let time = values.get(2).ok_or(DockerProblem::Members)?;
    // The log is absent if the application wrote `-` without a line end, or nothing.
    let text = values.get(0).unwrap_or_default();
    let (text, is_last) = match text.strip_suffix(b"\n") {
        Some(text) => (text.strip_suffix(b"\r").unwrap_or(text), true),
        None => (text, false),
    };
    Ok(Part { text, time, stream, is_last })
}

/// Returns the part of a line `TIME STREAM TAG[:TAG…] TEXT`.
fn cri_part(line: &[u8]) -> Option<Part<'_>> {
    let mut rest = line;
    let mut word = || {
        let (word, after) = rest.split_at(memchr(b' ', rest)?);
        rest = &after[1..];
        Some(word)
    };
    let (time, stream_name, tags) = (word()?, word()?, word()?);
    let is_time = matches!(time, [b'0'..=b'9', _, _, _, b'-', _, _, b'-', _, _, b'T', ..]);
    let is_last = match tags.split(|byte| *byte == b':').next()? {
        b"F" => true,
        b"P" => false,
        _ => return None,
    };
    let text = if is_last { rest.strip_suffix(b"\r").unwrap_or(rest) } else { rest };
    let stream = stream(stream_name).filter(|_| is_time)?;
    Some(Part { text, time, stream, is_last })
}
