//! Traffic: the requests of access logs and recordings, in the order of their times.
//!
//! A line of a log is split into fields, the fields become a request and its time, and requests are
//! put in order. Nothing is dropped in silence: [`TrafficCounts`] has every line.

mod counts;
mod error;
pub mod format;
pub mod input;
mod mapping;
mod order;
mod settings;
mod source;
mod stamp;
#[cfg(test)]
mod tests;

pub use counts::{DamagedInput, TrafficCounts, UnreadLine};
pub use error::TrafficError;
pub use mapping::{MappingError, SyntaxError};
pub use settings::{StampedAt, TrafficInput, TrafficSettings};
pub use stamp::StampError;

use crate::recording::Header;
use crate::request::{Dictionary, TimedRequest};
use order::{LineSink, Merge, OrderSettings};
use source::Inputs;

/// Reads requests in the order of their times.
#[derive(Debug)]
pub struct Traffic {
    inputs: Inputs,
    merge: Merge,
    dictionary: Dictionary,
    counts: TrafficCounts,
}

impl Traffic {
    /// Opens the inputs. Of many files only the first lines are read.
    ///
    /// # Errors
    ///
    /// [`TrafficError`] if an input can't be opened, or if the settings contradict each other.
    pub fn open(settings: &TrafficSettings) -> Result<Self, TrafficError> {
        let order = OrderSettings {
            span: settings.reorder,
            max_gap: settings.max_gap,
            max_lines: settings.max_held_lines,
            max_bytes: settings.max_held_bytes,
            dictionary_bytes: settings.dictionary_bytes,
        };
        let (inputs, earliest) = Inputs::open(settings, &order)?;
        let default_mappings = inputs.default_mappings().to_vec();
        let counts = TrafficCounts { default_mappings, ..TrafficCounts::default() };
        let merge = Merge::new(order, &earliest);
        Ok(Self { inputs, merge, dictionary: Dictionary::default(), counts })
    }

    /// Returns the next request: its time is never before that of the one before it. May begin a
    /// new generation of the dictionary, of which the request is.
    ///
    /// # Errors
    ///
    /// [`TrafficError`] if an input can't be read any further. Inputs that end too early or are
    /// corrupt are no errors: they are in [`TrafficCounts::damaged`].
    #[expect(clippy::should_implement_trait, reason = "the dictionary is needed between two calls")]
    pub fn next(&mut self) -> Result<Option<TimedRequest>, TrafficError> {
        let Self { inputs, merge, dictionary, counts } = self;
        let mut open = |number| inputs.source(number);
        let Some(request) = merge.next(&mut open, &mut LineSink { dictionary, counts })? else {
            return Ok(None);
        };
        counts.arrivals += 1;
        counts.refused_before += u64::from(request.was_refused);
        counts.first.get_or_insert(request.at);
        counts.last = Some(request.at);
        Ok(Some(request))
    }

    /// Returns the requests that [`TimedRequest::request`] refers to.
    pub fn dictionary(&self) -> &Dictionary {
        &self.dictionary
    }

    /// Returns what was read so far. What is known only at the end of an input is added then.
    pub fn counts(&self) -> &TrafficCounts {
        &self.counts
    }

    /// Returns the headers of the inputs that are recordings.
    pub fn recordings(&self) -> &[Header] {
        self.inputs.headers()
    }

    /// Returns how many bytes were read of the inputs as they are stored, and how many they have in
    /// all if that is known.
    pub fn progress(&self) -> (u64, Option<u64>) {
        (self.merge.position(), self.inputs.bytes())
    }
}
