//! The report of a simulation: plain data, which `rlaas simulate --json` prints.
//!
//! Names of fields are stable. Times are texts of RFC 3339 in UTC, lengths of time are seconds.

mod parts;

pub use self::parts::{
    CountsReport, HitKey, RuleReport, SimulatedSpan, TimeReport, TimeSeries, UnitsReport,
    UnmatchedReport, WarmUpReport, time_text,
};

use std::collections::BTreeMap;

use serde::Serialize;

use super::counted::Counted;
use super::counts::RuleCounts;
use super::ids::CountedKey;
use super::timeline::BucketCounts;

/// The report of a simulation.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SimulationReport {
    /// Whether the candidate was compared with other rules. If not, the counts of changes are 0.
    pub is_compared: bool,
    /// Times of the first and the last request that is counted; `None` if there is none.
    pub span: Option<SimulatedSpan>,
    /// Requests that were decided and left out of all other counts.
    pub warm_up: WarmUpReport,
    /// Counts of all requests.
    pub all: CountsReport,
    /// Requests that some rule of the candidate matched.
    pub matched: u64,
    /// Requests that no rule of the candidate matched.
    pub unmatched: UnmatchedReport,
    /// Requests that the service would not accept, such as those without a user id.
    pub invalid: u64,
    /// The first reasons why requests are not valid, with the number of requests of each.
    pub invalid_reasons: BTreeMap<String, u64>,
    /// Requests whose recorded answer was a refusal already.
    pub recorded_refusals: u64,
    /// Counts of each rule, those of the candidate by name.
    pub rules: Vec<RuleReport>,
    /// The keys that were refused most often, of all rules.
    pub hardest_hit: Vec<HitKey>,
    /// Whether the counts of keys are exact. If not, `--max-keys` left no space for some.
    pub keys_are_exact: bool,
    /// Keys that lost their state because `--max-keys` left no space for them.
    pub keys_dropped: u64,
    /// Counts over time, of all requests. Those of each rule have the same buckets.
    pub over_time: TimeReport,
}

impl SimulationReport {
    pub(super) fn new(counted: Counted, is_compared: bool, keys_dropped: u64) -> Self {
        let Counted { keys, timeline, table, .. } = counted;
        let mut order: Vec<usize> = (0..table.rules.len()).collect();
        order.retain(|at| is_shown(&table.rules[*at]));
        order.sort_by(|one, other| {
            let place = |at: &usize| {
                let rule = &table.rules[*at];
                (!rule.is_candidate, rule.name.clone())
            };
            place(one).cmp(&place(other))
        });
        let (first, width, mut series) = timeline.finish();
        let mut ids = vec![(0_u64, 0_u64); table.rules.len()];
        for key in keys.iter() {
            let (all, refused) = &mut ids[key.rule as usize];
            *all += 1;
            *refused += u64::from(key.refused > 0);
        }
        let hardest = keys.hardest_hit();
        let hit_key = |key: &&CountedKey| HitKey::new(key, &table.rules[key.rule as usize].name);
        let mut of_rules: Vec<Vec<HitKey>> = vec![Vec::new(); table.rules.len()];
        for key in &hardest {
            let of_rule = &mut of_rules[key.rule as usize];
            if of_rule.len() < counted.top {
                of_rule.push(hit_key(key));
            }
        }
        let rules = order.into_iter().map(|at| {
            let top = std::mem::take(&mut of_rules[at]);
            let over_time = TimeSeries::new(&std::mem::take(&mut series[at + 1]));
            RuleReport::new(&table.rules[at], ids[at], top, over_time)
        });
        let rules = rules.collect();
        let all_over_time: Vec<BucketCounts> = std::mem::take(&mut series[0]);
        Self {
            is_compared,
            span: counted.span.map(|(from, until)| SimulatedSpan::new(from, until)),
            warm_up: WarmUpReport { seconds: counted.warm_up, requests: counted.in_warm_up },
            all: CountsReport::new(&counted.all),
            matched: counted.matched,
            unmatched: UnmatchedReport {
                allowed: counted.unmatched_allowed,
                refused: counted.unmatched_refused,
            },
            invalid: counted.invalid,
            invalid_reasons: counted.reasons,
            recorded_refusals: counted.was_refused,
            rules,
            hardest_hit: hardest.iter().take(counted.top).map(hit_key).collect(),
            keys_are_exact: keys.uncounted == 0,
            keys_dropped,
            over_time: TimeReport::new(first, width, &all_over_time),
        }
    }

    /// Returns the counts of a rule of the candidate.
    pub fn rule(&self, name: &str) -> Option<&RuleReport> {
        self.rules.iter().find(|rule| rule.rule == name && rule.is_candidate)
    }

    /// Returns `true` if no request was decided and counted.
    pub fn is_empty(&self) -> bool {
        self.all.requests == self.invalid
    }
}

/// Rules that nobody has written are shown if they matched.
fn is_shown(rule: &RuleCounts) -> bool {
    !rule.is_implied || rule.counts.requests > 0 || rule.matched_before > 0
}
