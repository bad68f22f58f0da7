//! The latest times of decisions, by which a store freezes a clock that steps back.

use super::{Micros, Timestamp};

/// The latest times of decisions, by length of window.
///
/// [`Timestamp::freeze`] treats a step of the clock by the length of the window: the same step back
/// freezes the clock of a long window and is followed by that of a short one. So each length needs a
/// time of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HighWaterMarks {
    /// The first length of window, zero if there is none yet. Kept outside of the vector because
    /// most configurations use a single length.
    first: (Micros, Timestamp),
    others: Vec<(Micros, Timestamp)>,
}

impl HighWaterMarks {
    /// Most lengths that are kept. A further one replaces the last.
    const MAX_LENGTHS: usize = 64;

    /// Returns the latest time of a decision on a limit with this window.
    pub fn latest(&self, window: Micros) -> Timestamp {
        let mut all = std::iter::once(&self.first).chain(&self.others);
        all.find(|(length, _)| *length == window).map_or(Timestamp::EPOCH, |(_, seen)| *seen)
    }

    /// Returns the lengths of window with the time of the latest decision.
    pub fn iter(&self) -> impl Iterator<Item = (Micros, Timestamp)> {
        let first = Some(self.first).filter(|(window, _)| *window != Micros::ZERO);
        first.into_iter().chain(self.others.iter().copied())
    }

    /// Sets the time of the latest decision on a limit with this window.
    pub fn set(&mut self, window: Micros, time: Timestamp) {
        let seen = if self.first.0 == window { &mut self.first.1 } else { self.entry(window) };
        *seen = time;
    }

    /// Records a decision on a limit with this window while the clock shows `time`, and returns the
    /// time of that decision: later than `time` if the clock is frozen.
    #[inline]
    pub fn record(&mut self, window: Micros, time: Timestamp) -> Timestamp {
        let seen = if self.first.0 == window { &mut self.first.1 } else { self.entry(window) };
        *seen = time.freeze(*seen, window);
        *seen
    }

    /// Returns the time for a length other than the first one, and adds it if it is new.
    fn entry(&mut self, window: Micros) -> &mut Timestamp {
        if self.first.0 == Micros::ZERO {
            self.first.0 = window;
            return &mut self.first.1;
        }
        let known = self.others.iter().position(|(length, _)| *length == window);
        let position = known.unwrap_or_else(|| {
            self.others.truncate(Self::MAX_LENGTHS - 2);
            self.others.push((window, Timestamp::EPOCH));
            self.others.len() - 1
        });
        &mut self.others[position].1
    }
}
