//! Counts by key: who is hit, and how hard.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};
use rlaas_core::clock::Micros;
use rlaas_core::rules::Key;

use super::prepared::{HitCounts, PreparedRequest};

/// Counts of every key of every rule.
#[derive(Debug)]
pub(super) struct KeyCounts {
    keys: Vec<CountedKey>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    max_keys: usize,
    /// Counts of keys for which there was no space.
    pub(super) uncounted: u64,
}

/// Counts of one key.
#[derive(Debug)]
pub(super) struct CountedKey {
    /// The whole key. Its id begins at `id_at`, after the project and the name of the rule.
    text: Box<[u8]>,
    id_at: u16,
    /// Position of the rule in the report.
    pub(super) rule: u32,
    pub(super) requests: u64,
    pub(super) refused: u64,
    pub(super) allowed_to_refused: u64,
    pub(super) longest_wait: Micros,
}

impl KeyCounts {
    pub(super) fn new(max_keys: Option<u32>) -> Self {
        Self {
            keys: Vec::new(),
            index: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            max_keys: max_keys.unwrap_or(u32::MAX) as usize,
            uncounted: 0,
        }
    }

    /// Adds the counts of a request's hits.
    pub(super) fn add(&mut self, request: &PreparedRequest) {
        let Some(plan) = request.check.plan() else { return };
        for (hit, counts) in plan.hits.iter().zip(&request.hits) {
            if counts.requests > 0 {
                self.add_key(&hit.key, counts);
            }
        }
    }

    fn add_key(&mut self, key: &Key, counts: &HitCounts) {
        let text = key.as_bytes();
        let hash = self.hasher.hash_one(text);
        let keys = &self.keys;
        let found = self.index.find(hash, |at| *keys[*at as usize].text == *text);
        let at = match found {
            Some(at) => *at as usize,
            None if self.keys.len() >= self.max_keys => {
                self.uncounted += 1;
                return;
            }
            None => self.insert(hash, key, counts.rule),
        };
        let counted = &mut self.keys[at];
        counted.requests += counts.requests;
        counted.refused += counts.refused;
        counted.allowed_to_refused += counts.allowed_to_refused;
        counted.longest_wait = counted.longest_wait.max(counts.longest_wait);
    }

    fn insert(&mut self, hash: u64, key: &Key, rule: u32) -> usize {
        let at = self.keys.len();
        let number = u32::try_from(at).expect("fewer keys than their maximum");
        self.keys.push(CountedKey {
            text: key.as_bytes().into(),
            id_at: u16::try_from(key.as_bytes().len() - key.id_bytes().len()).unwrap_or(u16::MAX),
            rule,
            requests: 0,
            refused: 0,
            allowed_to_refused: 0,
            longest_wait: Micros::ZERO,
        });
        let (keys, hasher) = (&self.keys, &self.hasher);
        self.index.insert_unique(hash, number, |at| hasher.hash_one(&*keys[*at as usize].text));
        at
    }

    /// Returns all keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = &CountedKey> {
        self.keys.iter()
    }

    /// Returns the keys that were refused, the hardest hit first.
    pub(super) fn hardest_hit(&self) -> Vec<&CountedKey> {
        let mut refused: Vec<_> = self.keys.iter().filter(|key| key.refused > 0).collect();
        refused.sort_unstable_by(|one, other| {
            (other.refused, &one.text).cmp(&(one.refused, &other.text))
        });
        refused
    }
}

impl CountedKey {
    /// Returns the encoded id of the key.
    pub(super) fn id(&self) -> String {
        let id = self.text.get(usize::from(self.id_at)..).unwrap_or_default();
        String::from_utf8_lossy(id).into_owned()
    }
}
