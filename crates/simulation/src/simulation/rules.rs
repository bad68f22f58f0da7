//! The rules of both sets, by name, with what each set says of them, and counts by key.

use std::collections::HashMap;
use std::sync::Arc;

use rlaas_core::plan::RuleIndex;
use rlaas_core::rules::{Key, RuleSet, Unmatched};

use super::report::{HitKey, RuleReport};
use super::tried_limit::TriedLimit;

/// Which set of rules a rule is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Candidate,
    Against,
}

/// The rules of both sets, and their counts.
#[derive(Debug, Default)]
pub(super) struct RuleTable {
    pub(super) rules: Vec<RuleReport>,
    by_name: HashMap<Arc<str>, usize>,
}

/// The rules of one set: for each, its position in the table.
#[derive(Debug)]
pub(super) struct RulePositions {
    /// In the order of [`RuleSet::iter`], then of
    /// [`every`](rlaas_core::rules::descriptors::Descriptors::every).
    positions: Vec<usize>,
    flat: usize,
}

impl RuleTable {
    /// Adds the rules of a set. Rules of the same name are one rule of the report.
    pub(super) fn add(&mut self, rules: &RuleSet, side: Side) -> RulePositions {
        let has_default = rules.unmatched() == Unmatched::DefaultRule;
        let written = rules.descriptors().iter().count();
        let mut positions = Vec::new();
        for (at, rule) in rules.iter().enumerate() {
            let position = self.add_rule(&rule.name, rule.into(), side);
            self.rules[position].is_written |= at > 0 || has_default;
            positions.push(position);
        }
        let flat = positions.len();
        for (at, rule) in rules.descriptors().every().enumerate() {
            let position = self.add_rule(&rule.name, rule.into(), side);
            self.rules[position].is_written |= at < written;
            positions.push(position);
        }
        RulePositions { positions, flat }
    }

    fn add_rule(&mut self, name: &Arc<str>, limit: TriedLimit, side: Side) -> usize {
        let next = self.rules.len();
        let at = *self.by_name.entry(Arc::clone(name)).or_insert(next);
        if at == next {
            self.rules.push(RuleReport { rule: name.to_string(), ..RuleReport::default() });
        }
        match side {
            Side::Candidate => self.rules[at].candidate = Some(limit),
            Side::Against => self.rules[at].in_force = Some(limit),
        }
        at
    }
}

impl RulePositions {
    /// Returns the position of the rule of a hit in the table.
    pub(super) fn position(&self, index: RuleIndex) -> usize {
        match index {
            RuleIndex::Flat(position) => self.positions[position],
            RuleIndex::Descriptor { position, .. } => self.positions[self.flat + position],
        }
    }
}

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
