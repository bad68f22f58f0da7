//! Counts of each rule, and of all requests.

use std::collections::HashMap;
use std::sync::Arc;

use rlaas_core::algorithm::Algorithm;
use rlaas_core::clock::Micros;
use rlaas_core::plan::{Hit, RuleIndex};
use rlaas_core::rules::descriptors::DescriptorRule;
use rlaas_core::rules::{Mode, Rule, RuleInfo, RuleSet, Unmatched};

use super::prepared::shortest_time;
use super::waits::Waits;

/// The rules of the candidate and of the rules that it is compared with, by name.
#[derive(Debug, Default)]
pub(super) struct RuleTable {
    pub(super) rules: Vec<RuleCounts>,
    by_name: HashMap<Arc<str>, u32>,
}

/// Counts of one rule.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct RuleCounts {
    pub(super) name: Arc<str>,
    pub(super) algorithm: Algorithm,
    pub(super) mode: Mode,
    pub(super) overridable: bool,
    /// Whether the candidate, and the rules that it is compared with, have the rule.
    pub(super) is_candidate: bool,
    pub(super) is_against: bool,
    /// `true` for a rule that nobody has written: the default rule, and those that stand for limits
    /// of requests.
    pub(super) is_implied: bool,
    /// Longest window, and shortest time that matters, of the limits that decided.
    pub(super) longest_window: Option<Micros>,
    pub(super) shortest_time: Option<Micros>,
    pub(super) counts: Counts,
    /// Requests that the rule of the other set matched.
    pub(super) matched_before: u64,
    pub(super) units_asked: u64,
    pub(super) units_granted: u64,
}

/// Counts of requests: of all, or of those that a rule matched.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) requests: u64,
    pub(super) refused: u64,
    pub(super) refused_before: u64,
    pub(super) allowed_to_refused: u64,
    pub(super) refused_to_allowed: u64,
    pub(super) shadow_denied: u64,
    pub(super) never_pass: u64,
    pub(super) waits: Waits,
}

/// The rules of one set: for each, its position in the table.
#[derive(Debug)]
pub(super) struct RulePositions {
    /// In the order of [`RuleSet::iter`], then of
    /// [`every`](rlaas_core::rules::descriptors::Descriptors::every).
    positions: Vec<u32>,
    flat: usize,
}

/// Which set of rules a rule is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Candidate,
    Against,
}

/// Who made a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Written,
    Implied,
}

impl Origin {
    fn implied_if(condition: bool) -> Self {
        if condition { Self::Implied } else { Self::Written }
    }
}

impl RuleTable {
    /// Adds the rules of a set. Rules of the same name are one rule of the report.
    pub(super) fn add(&mut self, rules: &RuleSet, side: Side) -> RulePositions {
        let flat = rules.iter().count();
        let applies = rules.unmatched() == Unmatched::DefaultRule;
        let in_trees = rules.descriptors().iter().count();
        let flat_rules = rules.iter().map(Rule::info).enumerate();
        let flat_rules =
            flat_rules.map(|(at, rule)| (rule, Origin::implied_if(at == 0 && !applies)));
        let every = rules.descriptors().every().map(DescriptorRule::info).enumerate();
        let every = every.map(|(at, rule)| (rule, Origin::implied_if(at >= in_trees)));
        let all = flat_rules.chain(every);
        let positions = all.map(|(rule, origin)| self.add_rule(rule, side, origin));
        RulePositions { positions: positions.collect(), flat }
    }

    fn add_rule(&mut self, rule: RuleInfo<'_>, side: Side, origin: Origin) -> u32 {
        let next = u32::try_from(self.rules.len()).expect("few rules");
        let at = *self.by_name.entry(Arc::clone(rule.name)).or_insert(next);
        if at == next {
            self.rules.push(RuleCounts::new(rule));
        }
        let counts = &mut self.rules[at as usize];
        counts.is_implied &= origin == Origin::Implied;
        match side {
            Side::Candidate => counts.is_candidate = true,
            Side::Against => counts.is_against = true,
        }
        at
    }

    pub(super) fn rule(&mut self, at: u32) -> &mut RuleCounts {
        &mut self.rules[at as usize]
    }
}

impl RulePositions {
    /// Returns the position of the rule of a hit in the table.
    pub(super) fn position(&self, index: RuleIndex) -> u32 {
        match index {
            RuleIndex::Flat(position) => self.positions[position],
            RuleIndex::Descriptor { position, .. } => self.positions[self.flat + position],
        }
    }
}

impl RuleCounts {
    fn new(rule: RuleInfo<'_>) -> Self {
        Self {
            name: Arc::clone(rule.name),
            algorithm: rule.algorithm,
            mode: rule.mode,
            overridable: rule.overridable,
            is_candidate: false,
            is_against: false,
            is_implied: true,
            longest_window: None,
            shortest_time: None,
            counts: Counts::default(),
            matched_before: 0,
            units_asked: 0,
            units_granted: 0,
        }
    }

    /// Records the limit of a hit of the rule.
    pub(super) fn record_limit(&mut self, hit: &Hit) {
        let Some(limit) = hit.grant.limit() else { return };
        self.longest_window = self.longest_window.max(Some(limit.window()));
        let known = self.shortest_time.into_iter();
        self.shortest_time = known.chain(shortest_time(hit)).min();
    }
}
