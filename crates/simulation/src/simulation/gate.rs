//! The gate: whether the candidate refuses too many requests that pass now.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use thiserror::Error;

use super::report::{CountsReport, RuleReport, SimulationReport};

/// A share of requests, in millionths: 0 to 100 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MaxShare(u32);

/// A text that is no share.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("must be 0% to 100% with at most 4 decimals, such as 0.1%")]
pub struct InvalidShare;

/// What a gate found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GateResult {
    /// Whether all shares are within their bounds.
    pub is_within: bool,
    /// The check of all requests, and those of the rules.
    pub checks: Vec<GateCheck>,
}

/// One share and its bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GateCheck {
    /// Name of the rule; `None` for all requests.
    pub rule: Option<String>,
    /// Requests that a rule matched. Without a rule, this includes those that are refused because
    /// no rule matches.
    pub matched: u64,
    /// New denials: requests that the rules in force allow. Without such rules, all denials.
    pub new_denials: u64,
    /// Largest share of new denials, as a percentage.
    pub max_percent: MaxShare,
    /// Whether the share is within the bound.
    pub is_within: bool,
}

impl GateResult {
    /// Compares the new denials of a report, in all and by each rule, with the largest share.
    pub fn new(report: &SimulationReport, max: MaxShare) -> Self {
        let matched = report.matched + report.unmatched.refused;
        let all = GateCheck::new(None, matched, new_denials(report, &report.all), max);
        let tried = report.rules.iter().filter(|rule| rule.candidate.is_some());
        let of_rule = |rule: &RuleReport| {
            let (name, new_denials) = (rule.rule.clone(), new_denials(report, &rule.counts));
            GateCheck::new(Some(name), rule.counts.requests, new_denials, max)
        };
        let checks: Vec<GateCheck> = [all].into_iter().chain(tried.map(of_rule)).collect();
        Self { is_within: checks.iter().all(|check| check.is_within), checks }
    }
}

fn new_denials(report: &SimulationReport, counts: &CountsReport) -> u64 {
    if report.is_compared { counts.allowed_to_refused } else { counts.refused }
}

impl GateCheck {
    fn new(rule: Option<String>, matched: u64, new_denials: u64, max_percent: MaxShare) -> Self {
        let is_within = max_percent.holds(new_denials, matched);
        Self { rule, matched, new_denials, max_percent, is_within }
    }
}

impl MaxShare {
    const WHOLE: u32 = 1_000_000;

    /// Returns `true` if `part` is at most this share of `whole`.
    pub fn holds(self, part: u64, whole: u64) -> bool {
        u128::from(part) * u128::from(Self::WHOLE) <= u128::from(whole) * u128::from(self.0)
    }
}

impl FromStr for MaxShare {
    type Err = InvalidShare;

    /// Reads a percentage, such as `0.1%`, or `0`.
    fn from_str(text: &str) -> Result<Self, InvalidShare> {
        let number = match text.strip_suffix('%') {
            Some(number) => number,
            None if text == "0" => text,
            None => return Err(InvalidShare),
        };
        let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
        if !is_number(whole) || !is_number(decimals) || decimals.len() > 4 {
            return Err(InvalidShare);
        }
        let millionths: Option<u32> = format!("{whole}{decimals:0<4}").parse().ok();
        millionths.filter(|share| *share <= Self::WHOLE).map(Self).ok_or(InvalidShare)
    }
}

impl fmt::Display for MaxShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, decimals) = (self.0 / 10_000, format!("{:04}", self.0 % 10_000));
        match decimals.trim_end_matches('0') {
            "" => write!(f, "{whole}%"),
            decimals => write!(f, "{whole}.{decimals}%"),
        }
    }
}

impl Serialize for MaxShare {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(f64::from(self.0) / 1e4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percentages() {
        for (text, millionths) in [
            ("0", 0),
            ("0%", 0),
            ("0.1%", 1_000),
            ("1%", 10_000),
            ("0.0001%", 1),
            ("12.5%", 125_000),
            ("100%", 1_000_000),
        ] {
            assert_eq!(text.parse(), Ok(MaxShare(millionths)), "{text}");
        }
        for text in ["", "%", "1", "0.1", "-1%", "100.1%", "1e2%", "0.00001%", ".5%", "1.%", "x%"] {
            assert_eq!(text.parse::<MaxShare>(), Err(InvalidShare), "{text}");
        }
        assert_eq!(MaxShare(1_250).to_string(), "0.125%");
        assert_eq!(MaxShare(1_000_000).to_string(), "100%");
    }

    #[test]
    fn a_share_holds_exactly() {
        let share: MaxShare = "0.1%".parse().expect("a share");
        assert!(share.holds(1, 1_000) && !share.holds(1, 999));
        assert!(share.holds(0, 0) && !share.holds(1, 0));
        assert!(!MaxShare(0).holds(1, u64::MAX));
    }
}
