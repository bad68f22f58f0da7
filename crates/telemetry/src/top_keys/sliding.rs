//! Counts of keys in the last hour, by slices of time.
//!
//! Pure: the time is given. The minute of now is counted by a [`Sketch`]. Of a finished one a
//! [`Summary`] remains; of those before the last 15 minutes, one for five.
//!
//! So nothing in the counts of a window is older than the window. Its oldest slice is left out once a part
//! of it would be: up to a minute of a quarter, and up to 5 min of an hour.

use std::collections::VecDeque;
use std::time::Duration;

use super::sketch::Sketch;
use super::summary::Summary;

const MINUTE: Duration = Duration::from_mins(1);
/// Minutes of a quarter, of an hour, and of the slices before the last quarter.
const QUARTER: u64 = 15;
const HOUR: u64 = 60;
const OLD: u64 = 5;
/// Time after which nothing is in a window any more.
pub(super) const MAX_WINDOW: Duration = Duration::from_hours(1);

/// A window of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// The last 14 to 15 min.
    Quarter,
    /// The last 55 to 60 min.
    Hour,
}

/// Counts of keys over the last hour.
#[derive(Debug, Default)]
pub(super) struct SlidingCounts {
    /// Number of the live minute.
    minute: u64,
    live: Option<Sketch>,
    /// Finished slices with the numbers of their first minutes, oldest first; empty ones are left out.
    finished: VecDeque<(u64, Summary)>,
    /// Bytes of the finished slices.
    summary_bytes: usize,
}

impl SlidingCounts {
    /// Adds `count` to a key with this hash, as [`Sketch::add`]. Must be called after
    /// [`SlidingCounts::advance`].
    pub(super) fn add(&mut self, hash: u64, key: &[u8], count: u64) {
        self.live.get_or_insert_default().add(hash, key, count);
    }

    /// Finishes the live minute if it is over, and drops what is too old. `now` is the time since
    /// the start.
    pub(super) fn advance(&mut self, now: Duration) {
        let minute = now.as_secs() / MINUTE.as_secs();
        if minute <= self.minute {
            return;
        }
        let finished = std::mem::replace(&mut self.minute, minute);
        if let Some(live) = self.live.take() {
            self.finished.push_back((finished, live.summary()));
        }
        self.finished.retain(|(start, _)| start + HOUR > minute);
        self.join_old();
        self.count_bytes();
    }

    /// Makes one slice of the minutes of five that are all before the last quarter.
    fn join_old(&mut self) {
        let old = self
            .finished
            .partition_point(|(start, _)| start / OLD * OLD + OLD + QUARTER <= self.minute + 1);
        let recent = self.finished.split_off(old);
        for (start, summary) in std::mem::replace(&mut self.finished, recent).into_iter().rev() {
            let start = start / OLD * OLD;
            match self.finished.front_mut() {
                Some((next, sum)) if *next == start => sum.add(&summary),
                _ => self.finished.push_front((start, summary)),
            }
        }
    }

    /// Returns the counts of a window. Must be called after [`SlidingCounts::advance`].
    pub(super) fn window(&self, window: Window) -> Summary {
        let minutes = match window {
            Window::Quarter => QUARTER,
            Window::Hour => HOUR,
        };
        let live = self.live.as_ref().map(Sketch::summary);
        let within = self.finished.iter().filter(|(start, _)| start + minutes > self.minute);
        Summary::sum(live.iter().chain(within.map(|(_, summary)| summary)))
    }

    /// Takes over the counts of `other` under other keys, each slice by itself. Both must have
    /// advanced to the same time.
    pub(super) fn absorb(&mut self, other: &Self, rename: impl Fn(&str) -> Box<str>) {
        // The live minute too: counts are added to its summary in each window.
        let live = other.live.as_ref().map(|live| (other.minute, live.summary()));
        for (number, summary) in other.finished.iter().chain(&live) {
            let at = self.finished.partition_point(|(other, _)| other < number);
            if self.finished.get(at).is_none_or(|(other, _)| other != number) {
                self.finished.insert(at, (*number, Summary::default()));
            }
            self.finished[at].1.add_mapped(summary, |key| Some(rename(key)));
        }
        self.count_bytes();
    }

    /// Returns `true` if nothing is counted in any window.
    pub(super) fn is_empty(&self) -> bool {
        self.live.is_none() && self.finished.is_empty()
    }

    /// Returns the bytes that the counts take.
    pub(super) fn bytes(&self) -> usize {
        self.live.as_ref().map_or(0, Sketch::bytes) + self.summary_bytes
    }

    fn count_bytes(&mut self) {
        self.summary_bytes = self.finished.iter().map(|(_, summary)| summary.bytes()).sum();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::super::summary::MAX_COUNTERS;
    use super::*;

    /// An event: seconds after the one before, key, count.
    fn event() -> impl Strategy<Value = (u64, u32, u64)> {
        let pause = prop_oneof![30 => Just(0_u64), 5 => 0..30_u64, 1 => 0..3_000_u64];
        let key = prop_oneof![2 => 0..40_u32, 3 => 0..100_000_u32];
        (pause, key, prop_oneof![9 => 1..5_u64, 1 => 1..2_000_u64])
    }

    /// Whether the counts of a window are within their error: of all keys in the last `least`
    /// seconds, and none before the last `most`.
    fn check(
        counts: &SlidingCounts,
        window: Window,
        events: &[(u64, u32, u64)],
        now: u64,
        (least, most): (u64, u64),
    ) -> Result<(), TestCaseError> {
        let found = counts.window(window);
        let since = |age: u64| {
            let mut sums = HashMap::<u32, u64>::new();
            let recent = events.iter().filter(|(at, ..)| now - at <= age);
            recent.for_each(|(_, key, count)| *sums.entry(*key).or_default() += count);
            sums
        };
        let (inside, around) = (since(least), since(most));
        let total = |counts: &HashMap<u32, u64>| counts.values().sum::<u64>();
        prop_assert!((total(&inside)..=total(&around)).contains(&found.total()), "{:?}", window);
        prop_assert!(found.error() <= found.total() / MAX_COUNTERS as u64, "{:?}", window);
        for (key, at_most) in &around {
            let name = key.to_string();
            let counter = found.counters().iter().find(|counter| *counter.key == *name);
            let lowest = counter.map_or(0, |counter| counter.least);
            let at_least = inside.get(key).copied().unwrap_or_default();
            prop_assert!(lowest <= *at_most, "{} {:?}", key, window);
            prop_assert!(at_least <= lowest + found.error(), "{} {:?}", key, window);
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(super::super::cases()))]

        #[test]
        fn windows_have_all_keys_within_the_error(
            events in prop::collection::vec(event(), 1..4_000),
            pause in 0..100_u64,
        ) {
            let (mut counts, mut now, mut past) = (SlidingCounts::default(), 0, Vec::new());
            for (pause, key, count) in events {
                now += pause;
                counts.advance(Duration::from_secs(now));
                counts.add(key.into(), key.to_string().as_bytes(), count);
                past.push((now, key, count));
            }
            now += pause;
            counts.advance(Duration::from_secs(now));
            check(&counts, Window::Quarter, &past, now, (840, 899))?;
            check(&counts, Window::Hour, &past, now, (3_300, 3_599))?;
            // What takes over the counts has the same windows.
            let mut other = SlidingCounts::default();
            other.advance(Duration::from_secs(now));
            other.absorb(&counts, |key| key.into());
            check(&other, Window::Quarter, &past, now, (840, 899))?;
            check(&other, Window::Hour, &past, now, (3_300, 3_599))?;
            counts.advance(Duration::from_secs(now + 3_600));
            prop_assert!(counts.is_empty() && counts.bytes() == 0);
        }
    }

    #[test]
    fn memory_is_bounded_whatever_the_keys() {
        let mut counts = SlidingCounts::default();
        let mut most = 0;
        for number in 0..400_000_u64 {
            let now = Duration::from_millis(number * 12);
            counts.advance(now);
            // A part of the keys have high counts, and stay.
            let count = if number % 8 == 0 { 1_000 } else { 1 };
            counts.add(number, format!("{number:0>256}").as_bytes(), count);
            most = most.max(counts.bytes());
        }
        // A sketch of 384 keys and 24 summaries of 128, of 256 bytes each.
        assert!((700_000..900_000).contains(&most), "{most}");
    }
}
