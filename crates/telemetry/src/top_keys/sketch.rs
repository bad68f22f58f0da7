//! Live counts of a stream of keys, in at most [`MAX_LIVE`] counters.
//!
//! A key without a counter gets one while there is room. Else the [`KEPT`] highest counters are
//! kept, and lose as much as the next lower one has; the others are dropped. That is the error by
//! which counts may be too low. Each time more than [`MAX_COUNTERS`] counters lose as much, so the
//! guarantee of a [`Summary`] holds.
//!
//! **Source:** Anderson et al., "A High-Performance Algorithm for Identifying Frequent Items in
//! Data Streams", IMC 2017: Misra-Gries, with many counters dropped at a time.

use hashbrown::HashTable;

use super::summary::{Counter, MAX_COUNTERS, Summary};

/// Most counters.
const MAX_LIVE: usize = 384;
/// Counters that are kept if there are more.
const KEPT: usize = MAX_LIVE / 2;
const _: () = assert!(KEPT > MAX_COUNTERS);
/// Bytes of the allocation of a key, beside the key.
const ALLOCATION: usize = 16;

/// Counts of keys.
#[derive(Debug, Default)]
pub(super) struct Sketch {
    entries: Vec<LiveCounter>,
    /// Positions of the entries by hash.
    index: HashTable<u16>,
    /// Bytes of all keys.
    key_bytes: usize,
    total: u64,
    error: u64,
}

#[derive(Debug)]
struct LiveCounter {
    hash: u64,
    least: u64,
    /// UTF-8.
    key: Box<[u8]>,
}

impl Sketch {
    /// Adds `count` to a key. The hash must be keyed by a random key, or a caller who chooses keys
    /// could choose those that collide.
    pub(super) fn add(&mut self, hash: u64, key: &[u8], count: u64) {
        self.total = self.total.saturating_add(count);
        let Self { entries, index, .. } = self;
        let is_of = |entry: &LiveCounter| entry.hash == hash && *entry.key == *key;
        if let Some(at) = index.find(hash, |at| is_of(&entries[usize::from(*at)])) {
            let least = &mut entries[usize::from(*at)].least;
            *least = least.saturating_add(count);
            return;
        }
        if self.entries.len() == MAX_LIVE {
            self.purge();
        }
        self.key_bytes += key.len();
        self.entries.push(LiveCounter { hash, least: count, key: key.into() });
        self.index(self.entries.len() - 1);
    }

    /// Returns the counts.
    pub(super) fn summary(&self) -> Summary {
        let counter = |entry: &LiveCounter| Counter {
            key: String::from_utf8_lossy(&entry.key).into(),
            least: entry.least,
        };
        Summary::new(self.total, self.error, self.entries.iter().map(counter).collect())
    }

    /// Returns the bytes that the counts take.
    pub(super) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<LiveCounter>()
            + self.index.allocation_size()
            + self.entries.len() * ALLOCATION
            + self.key_bytes
    }

    #[cold]
    fn purge(&mut self) {
        let by_least = |entry: &LiveCounter| std::cmp::Reverse(entry.least);
        let cut = self.entries.select_nth_unstable_by_key(KEPT, by_least).1.least;
        self.error = self.error.saturating_add(cut);
        self.entries.truncate(KEPT);
        self.entries.retain_mut(|entry| {
            entry.least -= cut;
            entry.least > 0
        });
        self.key_bytes = self.entries.iter().map(|entry| entry.key.len()).sum();
        self.index.clear();
        (0..self.entries.len()).for_each(|at| self.index(at));
    }

    fn index(&mut self, at: usize) {
        let Self { entries, index, .. } = self;
        let position = u16::try_from(at).expect("at most MAX_LIVE");
        index.insert_unique(entries[at].hash, position, |at| entries[usize::from(*at)].hash);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::hash::BuildHasher;

    use hashbrown::DefaultHashBuilder;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(super::super::cases()))]

        #[test]
        fn counts_are_within_the_error(
            // Whether hashes are good, or all collide.
            is_good in any::<bool>(),
            events in prop::collection::vec(
                (prop_oneof![0..30_u32, 0..100_000_u32], prop_oneof![9 => 1..5_u64, 1 => 1..2_000_u64]),
                1..1_500,
            ),
        ) {
            let (mut sketch, mut exact) = (Sketch::default(), HashMap::<u32, u64>::new());
            let hasher = DefaultHashBuilder::default();
            for (key, count) in events {
                let hash = if is_good { hasher.hash_one(key) } else { 7 };
                sketch.add(hash, key.to_string().as_bytes(), count);
                *exact.entry(key).or_default() += count;
            }
            let found = sketch.summary();
            prop_assert_eq!(found.total(), exact.values().sum::<u64>());
            prop_assert!(found.error() <= found.total() / MAX_COUNTERS as u64);
            let least: HashMap<&str, u64> =
                found.counters().iter().map(|counter| (&*counter.key, counter.least)).collect();
            for (key, count) in exact {
                let least = least.get(&*key.to_string()).copied().unwrap_or_default();
                prop_assert!(least <= count && count <= least + found.error(), "{}", key);
            }
        }
    }

    #[test]
    fn memory_is_bounded_and_purged_keys_leave_it() {
        let mut sketch = Sketch::default();
        let hasher = DefaultHashBuilder::default();
        for number in 0..20_000_u32 {
            let key = format!("{number:0>256}");
            sketch.add(hasher.hash_one(&key), key.as_bytes(), 1);
            assert!(sketch.bytes() < 130_000, "{} bytes after {number}", sketch.bytes());
            assert!(sketch.index.len() == sketch.entries.len());
        }
        let keys: usize = sketch.entries.iter().map(|entry| entry.key.len()).sum();
        assert_eq!(sketch.key_bytes, keys);
    }
}
