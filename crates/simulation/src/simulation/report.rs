//! The report of a simulation: plain data, which `rlaas simulate --json` prints.
//!
//! Names of fields are stable.

use rlaas_core::clock::{Micros, Timestamp};
use serde::Serialize;

use super::tried_limit::TriedLimit;

/// The report of a simulation.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SimulationReport {
    /// Whether the candidate was compared with other rules. If not, the counts of changes are 0.
    pub is_compared: bool,
    /// Times of the first and the last request that is counted; `None` if there is none.
    pub span: Option<SimulatedSpan>,
    /// Requests that were decided and left out of all other counts.
    pub warm_up_requests: u64,
    /// Counts of all requests.
    pub all: CountsReport,
    /// Requests that some rule of the candidate matched.
    pub matched: u64,
    /// Requests that no rule of the candidate matched.
    pub unmatched: UnmatchedReport,
    /// Requests that the service would not accept, such as those without a user id.
    pub invalid: u64,
    /// The reason of the first of them.
    pub invalid_reason: Option<String>,
    /// Requests whose recorded answer was a refusal already.
    pub recorded_refusals: u64,
    /// Counts of each rule, those of the candidate by name.
    pub rules: Vec<RuleReport>,
    /// The keys that were refused most often, of all rules.
    pub hardest_hit: Vec<HitKey>,
    /// Counts of all requests over time.
    pub over_time: TimeReport,
}

/// Times of the first and the last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SimulatedSpan {
    /// Time of the first request.
    #[serde(rename = "fromUs")]
    pub from: Timestamp,
    /// Time between it and the last request.
    #[serde(rename = "lengthUs")]
    pub length: Micros,
}

/// Requests that no rule matches, by the policy for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UnmatchedReport {
    /// Requests that passed.
    pub allowed: u64,
    /// Requests that were refused.
    pub refused: u64,
}

/// Counts of requests: of all, or of those that a rule matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CountsReport {
    /// Requests: all, or those that the rule matched.
    pub requests: u64,
    /// Requests that were refused: by this rule, if the counts are of a rule.
    pub refused: u64,
    /// Requests that the rules in force refused.
    pub refused_before: u64,
    /// Requests that pass the rules in force and are refused now.
    pub allowed_to_refused: u64,
    /// Requests that the rules in force refuse and that pass now.
    pub refused_to_allowed: u64,
    /// Requests that a shadow rule denied. They are not refused by it.
    pub shadow_denied: u64,
}

/// Counts of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleReport {
    /// Name of the rule.
    pub rule: String,
    /// Its limit in the candidate; `None` if the candidate lacks the rule.
    pub candidate: Option<TriedLimit>,
    /// Its limit in the rules that the candidate is compared with.
    pub in_force: Option<TriedLimit>,
    /// Whether somebody has written the rule. The default rule is implied where it does not apply,
    /// and so are rules that stand for limits of requests.
    #[serde(skip)]
    pub(super) is_written: bool,
    /// Counts of its requests.
    #[serde(flatten)]
    pub counts: CountsReport,
    /// Keys that had requests.
    pub keys: u64,
    /// Keys that were refused at least once.
    pub keys_refused: u64,
}

/// A key that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HitKey {
    /// Name of the rule.
    pub rule: String,
    /// The id, as keys have it: values between colons, with `:`, `%`, braces and control characters
    /// percent-encoded.
    pub id: String,
    /// Requests of the key.
    pub requests: u64,
    /// Requests that the rule refused.
    pub refused: u64,
    /// Refused requests that pass the rules in force.
    pub allowed_to_refused: u64,
}

/// Counts over time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TimeReport {
    /// Begin of the first bucket.
    #[serde(rename = "fromUs")]
    pub from: Timestamp,
    /// Length of each bucket.
    #[serde(rename = "bucketUs")]
    pub bucket: Micros,
    /// Counts of each bucket.
    pub buckets: Vec<CountsReport>,
}

impl SimulationReport {
    /// Returns the counts of a rule of the candidate.
    pub fn rule(&self, name: &str) -> Option<&RuleReport> {
        self.rules.iter().find(|rule| rule.rule == name && rule.candidate.is_some())
    }

    /// Returns `true` if no request was decided and counted.
    pub fn is_empty(&self) -> bool {
        self.all.requests == self.invalid
    }
}

impl RuleReport {
    /// Rules that nobody has written are shown if they matched.
    pub(super) fn is_shown(&self) -> bool {
        self.is_written || self.counts.requests > 0 || self.counts.refused_before > 0
    }

    /// Returns the name of the rule as it is shown, with its mode unless it is enforced, and whether
    /// the rules to try lack it.
    pub fn labelled(&self, name: &str) -> String {
        match self.candidate.as_ref().map(|limit| limit.mode) {
            None => format!("{name} (removed)"),
            Some("enforced") => name.to_owned(),
            Some(mode) => format!("{name} ({mode})"),
        }
    }
}

impl CountsReport {
    /// Adds other counts.
    #[inline]
    pub(super) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.refused += other.refused;
        self.refused_before += other.refused_before;
        self.allowed_to_refused += other.allowed_to_refused;
        self.refused_to_allowed += other.refused_to_allowed;
        self.shadow_denied += other.shadow_denied;
    }
}
