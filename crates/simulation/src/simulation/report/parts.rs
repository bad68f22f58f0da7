//! The parts of a report.

use std::fmt::Write;

use rlaas_core::algorithm::Algorithm;
use rlaas_core::clock::{Micros, Timestamp};
use rlaas_core::rules::Mode;
use serde::{Serialize, Serializer};

use crate::simulation::counts::{Counts, RuleCounts};
use crate::simulation::ids::CountedKey;
use crate::simulation::timeline::BucketCounts;
use crate::simulation::waits::WaitClass;

/// Times of the first and the last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SimulatedSpan {
    /// Time of the first request.
    #[serde(serialize_with = "time")]
    pub from: Timestamp,
    /// Time of the last request.
    #[serde(serialize_with = "time")]
    pub until: Timestamp,
    /// Time between them.
    #[serde(rename = "seconds", serialize_with = "seconds")]
    pub length: Micros,
}

/// Requests of the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WarmUpReport {
    /// Length of the warm-up.
    #[serde(serialize_with = "seconds")]
    pub seconds: Micros,
    /// Requests within it.
    pub requests: u64,
}

/// Requests that no rule matches, by the policy for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct UnmatchedReport {
    /// Requests that passed.
    pub allowed: u64,
    /// Requests that were refused.
    pub refused: u64,
}

/// Counts of requests: of all, or of those that a rule matched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
    /// Refused requests that can never pass: their cost is above the limit, or the limit is 0.
    pub never_pass: u64,
    /// Longest time that a refused request has to wait; `None` if none has to.
    #[serde(rename = "longestWaitSeconds", serialize_with = "optional_seconds")]
    pub longest_wait: Option<Micros>,
    /// Refused requests by the time that they have to wait, without those that can never pass.
    pub waits: Vec<WaitClass>,
}

/// Units of the requests that a rule matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct UnitsReport {
    /// Units of all requests.
    pub asked: u64,
    /// Units of the requests that passed.
    pub granted: u64,
}

/// Counts of one rule.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleReport {
    /// Name of the rule.
    pub rule: String,
    /// Algorithm of the rule.
    #[serde(serialize_with = "algorithm")]
    pub algorithm: Algorithm,
    /// Whether the rule is enforced.
    #[serde(serialize_with = "mode")]
    pub mode: Mode,
    /// Whether the candidate has the rule.
    pub is_candidate: bool,
    /// Whether the rules that the candidate is compared with have the rule.
    pub is_in_force: bool,
    /// Whether bans and overrides of single keys at run time apply to the rule. A simulation has
    /// none.
    pub overridable: bool,
    /// Counts of its requests.
    #[serde(flatten)]
    pub counts: CountsReport,
    /// Requests that the rule of the same name matched, of the rules in force.
    pub matched_before: u64,
    /// Units of its requests.
    pub units: UnitsReport,
    /// Keys that had requests.
    pub keys: u64,
    /// Keys that were refused at least once.
    pub keys_refused: u64,
    /// Longest window of the limits that decided.
    #[serde(rename = "longestWindowSeconds", serialize_with = "optional_seconds")]
    pub longest_window: Option<Micros>,
    /// Shortest time that matters to a limit that decided: its window, or for gcra, token and leaky
    /// bucket the time between two units.
    #[serde(rename = "shortestTimeSeconds", serialize_with = "optional_seconds")]
    pub shortest_time: Option<Micros>,
    /// The keys that were refused most often.
    pub hardest_hit: Vec<HitKey>,
    /// Counts over time, in the buckets of the report. Empty if the rule matched nothing.
    pub over_time: TimeSeries,
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
    /// Longest time that one of them has to wait.
    #[serde(rename = "longestWaitSeconds", serialize_with = "seconds")]
    pub longest_wait: Micros,
}

/// Counts over time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TimeReport {
    /// Begin of the first bucket.
    #[serde(serialize_with = "time")]
    pub from: Timestamp,
    /// Length of each bucket.
    #[serde(rename = "bucketSeconds", serialize_with = "seconds")]
    pub bucket: Micros,
    /// Counts of all requests.
    #[serde(flatten)]
    pub all: TimeSeries,
}

/// Counts in each bucket of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TimeSeries {
    /// Requests.
    pub requests: Vec<u64>,
    /// Requests that were refused.
    pub refused: Vec<u64>,
    /// Requests that the rules in force refused.
    pub refused_before: Vec<u64>,
    /// Requests that a shadow rule denied.
    pub shadow_denied: Vec<u64>,
}

impl SimulatedSpan {
    pub(super) fn new(from: Timestamp, until: Timestamp) -> Self {
        Self { from, until, length: until.since(from) }
    }
}

impl CountsReport {
    pub(super) fn new(counts: &Counts) -> Self {
        Self {
            requests: counts.requests,
            refused: counts.refused,
            refused_before: counts.refused_before,
            allowed_to_refused: counts.allowed_to_refused,
            refused_to_allowed: counts.refused_to_allowed,
            shadow_denied: counts.shadow_denied,
            never_pass: counts.never_pass,
            longest_wait: counts.waits.longest(),
            waits: counts.waits.classes(),
        }
    }
}

impl RuleReport {
    /// Returns the name of the rule as it is shown, with its mode unless it is enforced, and whether
    /// the rules to try lack it.
    pub fn labelled(&self, name: &str) -> String {
        let mode = match self.mode {
            Mode::Enforced => "",
            Mode::Shadow => " (shadow)",
            Mode::Quota => " (quota)",
            Mode::ShadowQuota => " (shadow quota)",
            Mode::Off => " (off)",
        };
        let removed = if self.is_candidate { "" } else { " (removed)" };
        format!("{name}{mode}{removed}")
    }

    pub(super) fn new(
        rule: &RuleCounts,
        (keys, keys_refused): (u64, u64),
        hardest_hit: Vec<HitKey>,
        over_time: TimeSeries,
    ) -> Self {
        Self {
            rule: rule.name.to_string(),
            algorithm: rule.algorithm,
            mode: rule.mode,
            is_candidate: rule.is_candidate,
            is_in_force: rule.is_against,
            overridable: rule.overridable,
            counts: CountsReport::new(&rule.counts),
            matched_before: rule.matched_before,
            units: UnitsReport { asked: rule.units_asked, granted: rule.units_granted },
            keys,
            keys_refused,
            longest_window: rule.longest_window,
            shortest_time: rule.shortest_time,
            hardest_hit,
            over_time,
        }
    }
}

impl HitKey {
    pub(super) fn new(key: &CountedKey, rule: &str) -> Self {
        Self {
            rule: rule.to_owned(),
            id: key.id(),
            requests: key.requests,
            refused: key.refused,
            allowed_to_refused: key.allowed_to_refused,
            longest_wait: key.longest_wait,
        }
    }
}

impl TimeReport {
    pub(super) fn new(from: Timestamp, bucket: Micros, all: &[BucketCounts]) -> Self {
        Self { from, bucket, all: TimeSeries::new(all) }
    }
}

impl TimeSeries {
    pub(super) fn new(buckets: &[BucketCounts]) -> Self {
        let each = |of: fn(&BucketCounts) -> u64| buckets.iter().map(of).collect();
        Self {
            requests: each(|counts| counts.requests),
            refused: each(|counts| counts.refused),
            refused_before: each(|counts| counts.refused_before),
            shadow_denied: each(|counts| counts.shadow_denied),
        }
    }
}

impl Serialize for WaitClass {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Shape {
            #[serde(serialize_with = "optional_seconds")]
            up_to_seconds: Option<Micros>,
            refused: u64,
        }
        Shape { up_to_seconds: self.up_to, refused: self.refused }.serialize(serializer)
    }
}

/// Returns a time as a text of RFC 3339 in UTC. Times beyond the year 9999 are microseconds.
pub fn time_text(at: Timestamp) -> String {
    let micros = i64::try_from(at.as_micros()).ok();
    let time = micros.and_then(|micros| jiff::Timestamp::from_microsecond(micros).ok());
    let mut text = String::new();
    let _infallible = match time {
        Some(time) => write!(text, "{time}"),
        None => write!(text, "{} µs", at.as_micros()),
    };
    text
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
fn time<S: Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&time_text(*at))
}

#[expect(clippy::cast_precision_loss, reason = "exact to the microsecond for 285 years")]
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
fn seconds<S: Serializer>(length: &Micros, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(length.as_micros() as f64 / 1e6)
}

#[expect(clippy::ref_option, reason = "the signature that serde requires")]
fn optional_seconds<S: Serializer>(
    length: &Option<Micros>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match length {
        Some(length) => seconds(length, serializer),
        None => serializer.serialize_none(),
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
fn algorithm<S: Serializer>(of: &Algorithm, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(of.name())
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
fn mode<S: Serializer>(of: &Mode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match of {
        Mode::Enforced => "enforced",
        Mode::Shadow => "shadow",
        Mode::Quota => "quota",
        Mode::ShadowQuota => "shadow-quota",
        Mode::Off => "off",
    })
}
