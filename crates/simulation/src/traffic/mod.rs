//! Traffic: the requests of access logs and recordings, in the order of their times.
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

use rlaas_core::clock::Timestamp;

use crate::recording::Header;
use crate::request::TimedRequest;
use log::LogReader;
use order::OrderedSource;
use source::{Sink, Source, SourceKind};

/// Most inputs: all of them are open at once.
pub const MAX_INPUTS: usize = 100;

/// Reads requests in the order of their times. Of equal times the input that is named first comes
/// first, and lines keep their order.
#[derive(Debug)]
pub struct Traffic {
    sources: Vec<OrderedSource>,
    /// Times of the next requests of the sources; `None` for those at their end.
    next: Vec<Option<Timestamp>>,
    sink: Sink,
    headers: Vec<Header>,
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
        let log = format.map(|format| LogReader::new(format, &settings.mappings)).transpose()?;
        let (mut sources, mut headers) = (Vec::new(), Vec::new());
        for input in &settings.inputs {
            let mut lines = input.open()?;
            let recording = |source| TrafficError::Recording { input: input.to_string(), source };
            let kind = match Header::read(lines.peek()).map_err(recording)? {
                Some(header) => {
                    lines.skip_peeked();
                    headers.push(header);
                    SourceKind::Recording { project: settings.project.as_str().into() }
                }
                None if log.is_some() || lines.peek().is_empty() => SourceKind::Log,
                None => return Err(TrafficError::NoFormat { input: input.to_string() }),
            };
            sources.push(OrderedSource::new(Source::new(input.to_string(), lines, kind)));
        }
        if headers.len() == sources.len() && !settings.mappings.is_empty() {
            return Err(TrafficError::MappedRecording);
        }
        let mut traffic = Self {
            next: vec![None; sources.len()],
            sources,
            sink: Sink::new(log, settings.max_held_bytes),
            headers,
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

    /// Returns the headers of the inputs that are recordings.
    pub fn recordings(&self) -> &[Header] {
        &self.headers
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
