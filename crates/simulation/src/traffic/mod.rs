//! Traffic: the requests of access logs, or of lines that are requests, in the order of their times.
//!
//! | file | has |
//! | --- | --- |
//! | `input.rs` | files and standard input, decompressed, as lines |
//! | `format.rs` | formats of logs, and the fields of a line |
//! | `time.rs` | times as logs write them |
//! | `log.rs` | from the fields of a line to a request |
//! | `source.rs` | an input as requests as they come |
//! | `order.rs` | an input as requests in order |
//!
//! Nothing is dropped in silence: [`TrafficCounts`] has every line. Lines are not filtered here, nor
//! are fields computed: `grep` and `jq` do that.

mod format;
mod input;
mod log;
mod order;
mod source;
#[cfg(test)]
mod tests;
mod time;

pub use format::{FormatError, LogFormat};
pub use log::MappingError;
pub use source::{DamagedInput, RequestReader, TrafficCounts, UnreadLine};

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rlaas_core::clock::Timestamp;

use crate::request::TimedRequest;
use log::LogReader;
use order::OrderedSource;
use source::{LineReader, Sink, Source};
use thiserror::Error;

/// Most inputs: all of them are open at once.
pub const MAX_INPUTS: usize = 100;
/// How recordings of earlier versions begin.
const RECORDINGS: [&[u8]; 2] = [b"RLAASREC", b"{\"rlaas_recording\":"];

/// Reads requests in the order of their times. Of equal times the input that is named first comes
/// first, and lines keep their order.
#[derive(Debug)]
pub struct Traffic {
    sources: Vec<OrderedSource>,
    /// Times of the next requests of the sources; `None` for those at their end.
    next: Vec<Option<Timestamp>>,
    sink: Sink,
}

impl Traffic {
    /// Opens the inputs, and reads the first lines of each.
    ///
    /// # Errors
    ///
    /// [`TrafficError`] if an input can't be opened, or if the settings contradict each other.
    pub fn open(settings: &TrafficSettings) -> Result<Self, TrafficError> {
        check_inputs(&settings.inputs)?;
        let format = settings.format.as_ref();
        let reader = match format {
            Some(format) => LineReader::Log(LogReader::new(format, &settings.mappings)?),
            None if !settings.mappings.is_empty() => return Err(TrafficError::MappedRequests),
            None => LineReader::Requests(settings.requests),
        };
        let mut sources = Vec::new();
        for input in &settings.inputs {
            let mut lines = input.open()?;
            let (first, input) = (lines.peek(), input.to_string());
            if RECORDINGS.iter().any(|start| first.starts_with(start)) {
                return Err(TrafficError::Recording { input });
            }
            if format.is_none() && first.first().is_some_and(|byte| *byte != b'{') {
                return Err(TrafficError::NoFormat { input });
            }
            sources.push(OrderedSource::new(Source::new(input, lines)));
        }
        let mut traffic = Self {
            next: vec![None; sources.len()],
            sources,
            sink: Sink::new(reader, settings.max_held_bytes),
        };
        traffic.sink.counts.inputs = settings.inputs.len() as u64;
        for (source, next) in traffic.sources.iter_mut().zip(&mut traffic.next) {
            *next = source.fill(&mut traffic.sink);
        }
        Ok(traffic)
    }

    /// Returns what was read so far. What is known only at the end of an input is added then.
    pub fn counts(&self) -> &TrafficCounts {
        &self.sink.counts
    }
}

impl Iterator for Traffic {
    type Item = TimedRequest;

    /// Returns the next request: its time is never before that of the one before it.
    fn next(&mut self) -> Option<TimedRequest> {
        let times = self.next.iter().enumerate();
        let (_, oldest) = times.filter_map(|(number, at)| at.map(|at| (at, number))).min()?;
        let source = &mut self.sources[oldest];
        let arrival = source.pop(&mut self.sink)?;
        self.next[oldest] = source.fill(&mut self.sink);
        let counts = &mut self.sink.counts;
        counts.arrivals += 1;
        counts.refused_before += u64::from(arrival.was_refused);
        counts.first.get_or_insert(arrival.at);
        counts.last = Some(arrival.at);
        Some(arrival)
    }
}

fn check_inputs(inputs: &[TrafficInput]) -> Result<(), TrafficError> {
    if let Some(input) = inputs.get(MAX_INPUTS) {
        return Err(TrafficError::TooManyInputs { input: input.to_string() });
    }
    match inputs.iter().filter(|input| **input == TrafficInput::StandardInput).count() {
        _ if inputs.is_empty() => Err(TrafficError::NoInputs),
        0 | 1 => Ok(()),
        _ => Err(TrafficError::StandardInputTwice),
    }
}

/// Which traffic is read, and how.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TrafficSettings {
    /// Files, in the order in which equal times are kept: at most [`MAX_INPUTS`].
    pub inputs: Vec<TrafficInput>,
    /// Format of the logs; `None`: lines are requests.
    pub format: Option<LogFormat>,
    /// Reads the requests of lines.
    pub requests: RequestReader,
    /// Mappings from fields of lines to requests, each as `NAME=FIELD`.
    pub mappings: Vec<String>,
    /// Most bytes of requests that are held to be put in order.
    pub max_held_bytes: usize,
}

impl TrafficSettings {
    /// Creates the default settings for these inputs.
    pub fn new(inputs: Vec<TrafficInput>, requests: RequestReader) -> Self {
        Self { inputs, format: None, requests, mappings: Vec::new(), max_held_bytes: 256 << 20 }
    }
}

/// A source of traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrafficInput {
    /// A file.
    File(PathBuf),
    /// Standard input.
    StandardInput,
}

impl TrafficInput {
    /// Returns the source that an argument names: `-` is standard input.
    pub fn from_argument(argument: &Path) -> Self {
        if argument.as_os_str() == "-" {
            Self::StandardInput
        } else {
            Self::File(argument.to_owned())
        }
    }
}

impl fmt::Display for TrafficInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::StandardInput => f.write_str("standard input"),
        }
    }
}

/// Why traffic can't be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrafficError {
    /// No inputs.
    #[error("traffic must be at least one file")]
    NoInputs,
    /// Too many inputs.
    #[error("{input}: is one too many, must be at most {MAX_INPUTS} files")]
    TooManyInputs {
        /// Name of the first input above the bound.
        input: String,
    },
    /// Standard input twice.
    #[error("- must be given once: standard input can be read once")]
    StandardInputTwice,
    /// A file can't be opened.
    #[error("{input}: cannot be opened")]
    Open {
        /// Name of the input.
        input: String,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A recording of an earlier version.
    #[error(
        "{input}: is a recording, which was removed: write requests, see docs/simulation.md, Requests"
    )]
    Recording {
        /// Name of the input.
        input: String,
    },
    /// A file that is compressed by zstd.
    #[error("{input}: zstd was removed: use zstdcat, into --traffic -")]
    Zstd {
        /// Name of the input.
        input: String,
    },
    /// A log, but no format.
    #[error("{input}: is a log: --format must be given, such as combined or jsonl")]
    NoFormat {
        /// Name of the input.
        input: String,
    },
    /// Mappings without a format.
    #[error("--map must be given with --format: without it lines are requests")]
    MappedRequests,
    /// A mapping can't be used.
    #[error(transparent)]
    Mapping(#[from] MappingError),
}
