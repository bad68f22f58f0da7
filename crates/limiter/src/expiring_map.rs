//! A bounded map from keys to values that end, such as resets and overrides.
//!
//! Beside the map is the order of ends, so that no call walks all entries.

use std::collections::{BTreeSet, HashMap};

use compact_str::CompactString;

use crate::clock::Timestamp;

/// A map from keys to values, each with the time from which it makes no difference.
#[derive(Debug)]
pub(crate) struct ExpiringMap<V> {
    entries: HashMap<CompactString, (V, Timestamp)>,
    by_end: BTreeSet<(Timestamp, CompactString)>,
    max_entries: usize,
}

impl<V> ExpiringMap<V> {
    pub(crate) fn new(max_entries: usize) -> Self {
        Self { entries: HashMap::new(), by_end: BTreeSet::new(), max_entries }
    }

    /// Returns the value of a key, ended or not.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&V> {
        if self.entries.is_empty() {
            return None;
        }
        self.entries.get(str::from_utf8(key).ok()?).map(|(value, _)| value)
    }

    /// Sets the value of a key, which ends at `end`. Drops values that have ended by `time`.
    /// Returns `false`, and sets nothing, if the key is new and the map is full.
    pub(crate) fn insert(&mut self, key: &[u8], value: V, end: Timestamp, time: Timestamp) -> bool {
        self.drop_ended(time);
        let key = CompactString::from_utf8_lossy(key);
        if self.entries.len() >= self.max_entries && !self.entries.contains_key(&key) {
            return false;
        }
        if let Some((_, earlier)) = self.entries.insert(key.clone(), (value, end)) {
            self.by_end.remove(&(earlier, key.clone()));
        }
        self.by_end.insert((end, key));
        true
    }

    /// As [`ExpiringMap::insert`]. If the map is full, the value that ends first gives way, which may
    /// be the new one.
    pub(crate) fn insert_or_evict(
        &mut self,
        key: &[u8],
        value: V,
        end: Timestamp,
        time: Timestamp,
    ) {
        let is_later = self.by_end.first().is_some_and(|(first, _)| *first < end);
        if self.is_full(time)
            && is_later
            && self.get(key).is_none()
            && let Some((_, first)) = self.by_end.pop_first()
        {
            self.entries.remove(&first);
        }
        self.insert(key, value, end, time);
    }

    pub(crate) fn remove(&mut self, key: &[u8]) {
        drop(self.take(key));
    }

    /// Removes and returns the value of a key.
    pub(crate) fn take(&mut self, key: &[u8]) -> Option<V> {
        let key = CompactString::from_utf8_lossy(key);
        let (value, end) = self.entries.remove(&key)?;
        self.by_end.remove(&(end, key));
        Some(value)
    }

    /// Removes the values that have ended by `time`.
    pub(crate) fn drop_ended(&mut self, time: Timestamp) {
        while let Some((end, _)) = self.by_end.first()
            && *end <= time
            && let Some((_, key)) = self.by_end.pop_first()
        {
            self.entries.remove(&key);
        }
    }

    /// Returns `true` if a new key would not fit. Drops values that have ended by `time`.
    pub(crate) fn is_full(&mut self, time: Timestamp) -> bool {
        self.drop_ended(time);
        self.entries.len() >= self.max_entries
    }

    /// Iterates over keys and values, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        self.entries.iter().map(|(key, (value, _))| (key.as_str(), value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(second: u64) -> Timestamp {
        Timestamp::from_millis(1_000 * second)
    }

    #[test]
    fn a_full_map_renews_known_keys_and_drops_ended_ones() {
        let mut map = ExpiringMap::new(2);
        assert!(map.insert(b"a", 1, at(10), at(0)));
        assert!(map.insert(b"b", 2, at(20), at(0)));
        assert!(!map.insert(b"c", 3, at(30), at(5)));
        // A key that is known is renewed even if the map is full.
        assert!(map.insert(b"a", 4, at(40), at(5)));
        assert_eq!((map.get(b"a"), map.get(b"c")), (Some(&4), None));
        // `b` has ended: `c` takes its place. The earlier end of `a` no longer counts.
        assert!(map.insert(b"c", 5, at(30), at(20)));
        assert_eq!((map.get(b"a"), map.get(b"b"), map.get(b"c")), (Some(&4), None, Some(&5)));
        assert!(map.is_full(at(20)) && !map.is_full(at(30)));
        map.insert_or_evict(b"d", 6, at(50), at(20));
        assert_eq!((map.get(b"a"), map.get(b"c"), map.get(b"d")), (Some(&4), None, Some(&6)));
        // One that ends before all others does not push out any.
        map.insert_or_evict(b"e", 7, at(39), at(20));
        assert_eq!((map.get(b"a"), map.get(b"d"), map.get(b"e")), (Some(&4), Some(&6), None));
        map.remove(b"a");
        map.remove(b"d");
        assert!(map.entries.is_empty() && map.by_end.is_empty());
    }
}
