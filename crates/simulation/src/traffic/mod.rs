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

mod counts;
mod error;
mod format;
mod input;
mod log;
mod order;
mod settings;
mod source;
#[cfg(test)]
mod tests;
mod time;

pub use counts::{DamagedInput, TrafficCounts, UnreadLine};
pub use error::TrafficError;
pub use format::{FormatError, LogFormat};
pub use log::MappingError;
pub use settings::{TrafficInput, TrafficSettings};
pub use source::RequestReader;

use rlaas_core::clock::Timestamp;

use crate::request::TimedRequest;
use log::LogReader;
use order::OrderedSource;
use source::{LineReader, Sink, Source};

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
