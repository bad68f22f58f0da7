//! Counts by key: who is refused, and how often.

use std::collections::HashMap;

use rlaas_core::rules::Key;

use super::report::{HitKey, RuleReport};

/// Counts of every key of every rule.
#[derive(Debug, Default)]
pub(super) struct KeyTable {
    positions: HashMap<Key, usize>,
    pub(super) counts: Vec<KeyCounts>,
}

/// Counts of one key.
#[derive(Debug)]
pub(super) struct KeyCounts {
    /// Position of the rule in the report.
    rule: usize,
    pub(super) requests: u64,
    pub(super) refused: u64,
    pub(super) allowed_to_refused: u64,
}

impl KeyTable {
    /// Returns the position of a key of a rule, which is added if it is new.
    pub(super) fn position(&mut self, key: &Key, rule: usize) -> usize {
        let next = self.counts.len();
        let at = *self.positions.entry(key.clone()).or_insert(next);
        if at == next {
            self.counts.push(KeyCounts { rule, requests: 0, refused: 0, allowed_to_refused: 0 });
        }
        at
    }

    /// Counts the keys of each rule.
    pub(super) fn count_in(&self, rules: &mut [RuleReport]) {
        for key in self.counts.iter().filter(|key| key.requests > 0) {
            rules[key.rule].keys += 1;
            rules[key.rule].keys_refused += u64::from(key.refused > 0);
        }
    }

    /// Returns the keys that were refused most often.
    pub(super) fn hardest_hit(&self, rules: &[RuleReport], top: usize) -> Vec<HitKey> {
        let all = self.positions.iter().map(|(key, at)| (key, &self.counts[*at]));
        let mut refused: Vec<_> = all.filter(|(_, counts)| counts.refused > 0).collect();
        refused.sort_unstable_by(|(left, a), (right, b)| {
            (b.refused, left.as_bytes()).cmp(&(a.refused, right.as_bytes()))
        });
        let hit_key = |(key, counts): (&Key, &KeyCounts)| HitKey {
            rule: rules[counts.rule].rule.clone(),
            id: String::from_utf8_lossy(key.id_bytes()).into_owned(),
            requests: counts.requests,
            refused: counts.refused,
            allowed_to_refused: counts.allowed_to_refused,
        };
        refused.into_iter().take(top).map(hit_key).collect()
    }
}
