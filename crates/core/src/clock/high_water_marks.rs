//! The latest times of decisions, by which a store holds a clock that steps back.

use super::{Micros, Timestamp};

/// The latest times at which decisions were made, for each length of window: what is a jump to a
/// short window is a step back to a long one.
#[derive(Clone, Debug, Default)]
pub struct HighWaterMarks {
    /// Most limits share one length: it stands here and not behind a pointer. Of no length at first.
    first: (Micros, Timestamp),
    others: Vec<(Micros, Timestamp)>,
}

impl HighWaterMarks {
    /// Windows of more lengths than this share the last place.
    const MAX_LENGTHS: usize = 64;

    /// The latest time of a decision on a limit with this window.
    pub fn latest(&self, window: Micros) -> Timestamp {
        let mut all = std::iter::once(&self.first).chain(&self.others);
        all.find(|(of, _)| *of == window).map_or(Timestamp::EPOCH, |(_, seen)| *seen)
    }

    /// Notes that a decision on a limit with this window is made while the clock shows `time`, and
    /// tells when that is: later where the clock is held.
    #[inline]
    pub fn record(&mut self, window: Micros, time: Timestamp) -> Timestamp {
        let seen = if self.first.0 == window { &mut self.first.1 } else { self.entry(window) };
        *seen = time.hold(*seen, window);
        *seen
    }

    /// Where a length is noted that is not the first, or not yet.
    fn entry(&mut self, window: Micros) -> &mut Timestamp {
        if self.first.0 == Micros::ZERO {
            self.first.0 = window;
            return &mut self.first.1;
        }
        let known = self.others.iter().position(|(of, _)| *of == window);
        let position = known.unwrap_or_else(|| {
            self.others.truncate(Self::MAX_LENGTHS - 2);
            self.others.push((window, Timestamp::EPOCH));
            self.others.len() - 1
        });
        &mut self.others[position].1
    }
}
