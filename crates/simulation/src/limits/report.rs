//! What was found: limits and curves, as plain data.

use std::fmt;

use rlaas_core::algorithm::Algorithm;
use rlaas_core::clock::{Micros, Timestamp};
use serde::{Serialize, Serializer};

use crate::chart::count_text;
use crate::simulation::{MaxShare, time_text};

/// Limits that would have refused few enough of recorded traffic.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitReport {
    /// Time of the first request.
    #[serde(serialize_with = "time")]
    pub from: Timestamp,
    /// Time of the last request.
    #[serde(serialize_with = "time")]
    pub to: Timestamp,
    /// Requests that were read.
    pub requests: u64,
    /// Requests that none of the rules matched.
    pub unmatched: u64,
    /// Requests out of the bounds of requests, which the service would not decide.
    pub invalid: u64,
    /// Matches that a limit of the rule does not decide: an override or a limit of the request
    /// does, or units are returned.
    pub left_out: u64,
    /// One entry for each rule that matched, in the order of their names.
    pub rules: Vec<RuleLimits>,
}

/// The limits of one rule.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleLimits {
    /// Name of the rule.
    pub rule: String,
    /// Requests that matched.
    pub requests: u64,
    /// Different ids among them.
    pub ids: u64,
    /// One entry for each algorithm and window.
    pub curves: Vec<LimitCurve>,
}

/// What limits of one algorithm and window refuse.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitCurve {
    /// Algorithm that decided.
    #[serde(serialize_with = "algorithm")]
    pub algorithm: Algorithm,
    /// Window of the limits.
    #[serde(rename = "windowSeconds", serialize_with = "seconds")]
    pub window: Micros,
    /// Burst of every limit; `None`: as many units as the limit.
    pub burst: Option<u64>,
    /// Whether the window is longer than the traffic, so that more would be refused in more time.
    pub is_window_longer_than_traffic: bool,
    /// The limits that were sought.
    pub limits: Vec<SmallestLimit>,
    /// The limits that were evaluated, in ascending order.
    pub points: Vec<CurvePoint>,
}

/// The smallest limit that refuses few enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SmallestLimit {
    /// What the share is a share of.
    pub of: RefusalMeasure,
    /// The share.
    #[serde(rename = "maxPercent")]
    pub share: MaxShare,
    /// The limit.
    #[serde(flatten)]
    pub found: FoundLimit,
}

/// The smallest limit such that it and every larger one refuse at most a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "found")]
pub enum FoundLimit {
    /// The limit.
    Exactly {
        /// Units per window.
        limit: u64,
    },
    /// The limit is one of these; the largest of them is known to be enough. The passes over the
    /// traffic were used up before it was known exactly.
    Between {
        /// Smallest possible limit.
        at_least: u64,
        /// Limit that is enough.
        at_most: u64,
    },
    /// The largest limit of the algorithm refuses more than the share.
    Unreachable,
}

/// What the share of refusals is a share of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum RefusalMeasure {
    /// Requests that are refused.
    Requests,
    /// Ids of which at least one request is refused.
    Ids,
}

impl RefusalMeasure {
    /// Every measure.
    pub const ALL: [Self; 2] = [Self::Requests, Self::Ids];

    /// Returns the name of the measure.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Ids => "ids",
        }
    }
}

/// What one limit refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CurvePoint {
    /// Units per window.
    pub limit: u64,
    /// Requests refused.
    pub requests: u64,
    /// Ids of which at least one request was refused.
    pub ids: u64,
}

/// Writes the limit; of a range its larger end, which is enough.
impl fmt::Display for FoundLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly { limit } => write!(f, "{}", count_text(*limit)),
            Self::Between { at_least, at_most } => {
                write!(f, "{} (or from {})", count_text(*at_most), count_text(*at_least))
            }
            Self::Unreachable => f.write_str("none"),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn time<S: Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&time_text(*at))
}

#[expect(clippy::cast_precision_loss, reason = "exact to the microsecond for 285 years")]
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn seconds<S: Serializer>(length: &Micros, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(length.as_micros() as f64 / 1e6)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn algorithm<S: Serializer>(algorithm: &Algorithm, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(algorithm.name())
}
