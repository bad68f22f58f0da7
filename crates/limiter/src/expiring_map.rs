//! A bounded map from keys to values that end, such as resets and overrides.
//!
//! Beside the map is the order of ends, so that no call walks all entries.

use std::collections::BTreeSet;

use compact_str::CompactString;
use hashbrown::HashMap;

use crate::clock::Timestamp;

/// A map from keys to values, each with the time from which it makes no difference.
#[derive(Debug)]
pub(crate) struct ExpiringMap<V> {
    entries: HashMap<CompactString, ExpiringEntry<V>>,
    by_end: BTreeSet<(Timestamp, CompactString)>,
    max_entries: usize,
}

#[derive(Debug)]
struct ExpiringEntry<V> {
    value: V,
    end: Timestamp,
    /// Time of the entry in `by_end`: `end`, or an earlier one if the end was moved since.
    listed: Timestamp,
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
        self.entries.get(str::from_utf8(key).ok()?).map(|entry| &entry.value)
    }

    /// Changes a value by `change`, which returns its end. Returns `false` if there is none, or `change`
    /// returns `None`. A later end costs no change of the order.
    pub(crate) fn update(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut V) -> Option<Timestamp>,
    ) -> bool {
        let entry = str::from_utf8(key).ok().and_then(|key| self.entries.get_mut(key));
        let Some(entry) = entry else { return false };
        let Some(end) = change(&mut entry.value) else { return false };
        entry.end = end;
        if end < entry.listed {
            let key = CompactString::from_utf8_lossy(key);
            self.by_end.remove(&(entry.listed, key.clone()));
            self.by_end.insert((end, key));
            entry.listed = end;
        }
        true
    }

    /// Sets the value of a key, which ends at `end`. Drops values that have ended by `time`.
    /// Returns `false`, and sets nothing, if the key is new and the map is full.
    pub(crate) fn insert(&mut self, key: &[u8], value: V, end: Timestamp, time: Timestamp) -> bool {
        self.drop_ended(time);
        let key = CompactString::from_utf8_lossy(key);
        if self.entries.len() >= self.max_entries && !self.entries.contains_key(&key) {
            return false;
        }
        let entry = ExpiringEntry { value, end, listed: end };
        if let Some(earlier) = self.entries.insert(key.clone(), entry) {
            self.by_end.remove(&(earlier.listed, key.clone()));
        }
        self.by_end.insert((end, key));
        true
    }

    /// As [`ExpiringMap::insert`]. If the map is full, the value that ends first gives way, which may
    /// be the new one. For maps whose values are not updated.
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
        let entry = self.entries.remove(&key)?;
        self.by_end.remove(&(entry.listed, key));
        Some(entry.value)
    }

    /// Removes the values that have ended by `time`.
    pub(crate) fn drop_ended(&mut self, time: Timestamp) {
        while let Some((listed, _)) = self.by_end.first()
            && *listed <= time
            && let Some((_, key)) = self.by_end.pop_first()
        {
            match self.entries.get_mut(&key) {
                Some(entry) if entry.end > time => {
                    entry.listed = entry.end;
                    self.by_end.insert((entry.end, key));
                }
                _ => _ = self.entries.remove(&key),
            }
        }
    }

    /// Returns `true` if a new key would not fit. Drops values that have ended by `time`.
    pub(crate) fn is_full(&mut self, time: Timestamp) -> bool {
        self.drop_ended(time);
        self.entries.len() >= self.max_entries
    }

    /// Iterates over keys and values, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        self.entries.iter().map(|(key, entry)| (key.as_str(), &entry.value))
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

    #[test]
    fn a_value_lives_until_its_updated_end() {
        let mut map = ExpiringMap::new(2);
        map.insert(b"a", 1, at(10), at(0));
        map.insert(b"b", 2, at(40), at(0));
        let renew = |map: &mut ExpiringMap<u8>, key: &[u8], value, end| {
            map.update(key, |known| {
                *known = value;
                end
            })
        };
        assert!(renew(&mut map, b"a", 3, Some(at(30))));
        assert!(renew(&mut map, b"b", 4, Some(at(20))));
        assert!(!renew(&mut map, b"c", 5, Some(at(20))) && !renew(&mut map, b"b", 6, None));
        // The listed end of `a` has passed, its end has not.
        assert!(map.is_full(at(19)));
        assert_eq!((map.get(b"a"), map.get(b"b")), (Some(&3), Some(&6)));
        assert!(!map.is_full(at(20)));
        assert_eq!((map.get(b"a"), map.get(b"b")), (Some(&3), None));
        assert_eq!(map.take(b"a"), Some(3));
        assert!(map.entries.is_empty() && map.by_end.is_empty());
        map.insert(b"a", 1, at(10), at(0));
        assert!(renew(&mut map, b"a", 3, Some(at(30))));
        map.drop_ended(at(30));
        assert!(map.entries.is_empty() && map.by_end.is_empty());
    }
}
