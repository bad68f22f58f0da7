//! The rules of both sets, by name, with what each set says of them.

use std::collections::HashMap;
use std::sync::Arc;

use rlaas_core::plan::RuleIndex;
use rlaas_core::rules::{RuleSet, Unmatched};

use super::report::RuleReport;
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
