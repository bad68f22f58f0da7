//! Counts of keys in the last minute and the last hour, by slices of time.
//!
//! Pure: the time is given. A slice of 20 s is counted by a [`Sketch`]. Of a finished slice a
//! [`Summary`] remains; the last three of them, and the live one, are the minute. Finished slices
//! are added up to blocks of 20 min, and the last three blocks, with those since, are the hour.
//!
//! So the counts of a window have all that was counted in the last 60 s (or 60 min), and what was
//! counted in up to 20 s (or 20 min) before. Nothing in the window is left out.

use std::collections::VecDeque;
use std::time::Duration;

use super::sketch::Sketch;
use super::summary::Summary;

/// Length of a slice.
pub const SLICE: Duration = Duration::from_secs(20);
/// Slices of a block.
const BLOCK: u64 = 60;
/// Finished slices in a minute, and blocks in an hour.
const KEPT: u64 = 3;
/// Time after which nothing is in a window any more: one more block, of which the live one is part.
pub(super) const MAX_WINDOW: Duration = Duration::from_secs(SLICE.as_secs() * BLOCK * (KEPT + 1));

/// A window of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// The last 60 to 80 s.
    Minute,
    /// The last 60 to 80 min.
    Hour,
}

/// Counts of keys over the last minute and the last hour.
#[derive(Debug, Default)]
pub(super) struct SlidingCounts {
    /// Number of the live slice.
    slice: u64,
    live: Option<Sketch>,
    /// The last finished slices with their numbers; empty ones are left out.
    slices: VecDeque<(u64, Summary)>,
    /// The slices of the block that is not finished.
    block: Summary,
    /// The last finished blocks with their numbers; empty ones are left out.
    blocks: VecDeque<(u64, Summary)>,
    /// Bytes of all summaries.
    summary_bytes: usize,
}

impl SlidingCounts {
    /// Adds `count` to a key with this hash, as [`Sketch::add`]. Must be called after
    /// [`SlidingCounts::advance`].
    pub(super) fn add(&mut self, hash: u64, key: &[u8], count: u64) {
        self.live.get_or_insert_default().add(hash, key, count);
    }

    /// Finishes the live slice if it is over, and drops what is too old. `now` is the time since the
    /// start.
    pub(super) fn advance(&mut self, now: Duration) {
        let slice = now.as_secs() / SLICE.as_secs();
        if slice <= self.slice {
            return;
        }
        let finished = std::mem::replace(&mut self.slice, slice);
        if let Some(live) = self.live.take() {
            let summary = live.summary();
            self.block.add(&summary);
            self.slices.push_back((finished, summary));
        }
        let (block, finished) = (slice / BLOCK, finished / BLOCK);
        if block > finished && !self.block.is_empty() {
            self.blocks.push_back((finished, std::mem::take(&mut self.block)));
        }
        self.slices.retain(|(number, _)| number + KEPT >= slice);
        self.blocks.retain(|(number, _)| number + KEPT >= block);
        self.count_bytes();
    }

    /// Returns the counts of a window. Must be called after [`SlidingCounts::advance`].
    pub(super) fn window(&self, window: Window) -> Summary {
        let mut sum = self.live.as_ref().map(Sketch::summary).unwrap_or_default();
        let finished = match window {
            Window::Minute => &self.slices,
            Window::Hour => {
                sum.add(&self.block);
                &self.blocks
            }
        };
        for (_, summary) in finished {
            sum.add(summary);
        }
        sum
    }

    /// Takes over the counts of `other` under other keys, each slice by itself. Both must have
    /// advanced to the same time.
    pub(super) fn absorb(
        &mut self,
        other: &Self,
        rename: impl Fn(&str) -> Option<Box<str>> + Copy,
    ) {
        let live = other.live.as_ref().map(|live| (other.slice, live.summary()));
        if let Some((_, summary)) = &live {
            self.block.add_mapped(summary, rename);
        }
        self.block.add_mapped(&other.block, rename);
        let slices = other.slices.iter().chain(&live);
        slices.for_each(|(number, summary)| absorb(&mut self.slices, *number, summary, rename));
        let blocks = other.blocks.iter();
        blocks.for_each(|(number, summary)| absorb(&mut self.blocks, *number, summary, rename));
        self.count_bytes();
    }

    /// Returns `true` if nothing is counted in any window.
    pub(super) fn is_empty(&self) -> bool {
        self.live.is_none()
            && self.slices.is_empty()
            && self.block.is_empty()
            && self.blocks.is_empty()
    }

    /// Returns the bytes that the counts take.
    pub(super) fn bytes(&self) -> usize {
        self.live.as_ref().map_or(0, Sketch::bytes) + self.summary_bytes
    }

    fn count_bytes(&mut self) {
        let summaries = self.slices.iter().chain(&self.blocks).map(|(_, summary)| summary.bytes());
        self.summary_bytes = summaries.sum::<usize>() + self.block.bytes();
    }
}

/// Adds a summary to that of the same number.
fn absorb(
    into: &mut VecDeque<(u64, Summary)>,
    number: u64,
    summary: &Summary,
    rename: impl Fn(&str) -> Option<Box<str>>,
) {
    let at = into.partition_point(|(other, _)| *other < number);
    if into.get(at).is_none_or(|(other, _)| *other != number) {
        into.insert(at, (number, Summary::default()));
    }
    into[at].1.add_mapped(summary, rename);
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
            check(&counts, Window::Minute, &past, now, (60, 80))?;
            check(&counts, Window::Hour, &past, now, (3_600, 4_800))?;
            // What takes over the counts has the same windows, a slice longer.
            let mut other = SlidingCounts::default();
            other.advance(Duration::from_secs(now));
            other.absorb(&counts, |key| Some(key.into()));
            check(&other, Window::Minute, &past, now, (60, 80))?;
            check(&other, Window::Hour, &past, now, (3_600, 4_800))?;
            counts.advance(Duration::from_secs(now + 4_900));
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
        // A sketch of 384 keys and seven summaries of 128, of 256 bytes each.
        assert!((300_000..420_000).contains(&most), "{most}");
    }
}
