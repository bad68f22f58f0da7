//! The fields of a rule's decision that a test can expect, by the names of `CheckResponse`.

use std::fmt;

use rlaas_proto::ratelimit::v1::RuleDecision as DecisionMessage;
use rlaas_proto::ratelimit::v1::check_response::Reason;

use super::scalar;
use crate::cli::admin::shown_value;
use crate::clock::Micros;
use crate::proto_values::micros;

/// Stands for a wait, a rule or a decision that there is not.
pub(super) const NONE: &str = "none";
const UNLIMITED: &str = "unlimited";

/// A field of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecisionField {
    /// Name of the rule.
    Rule,
    /// Whether the rule allows the request.
    Allowed,
    /// Units left.
    Remaining,
    /// Time until the same request passes.
    RetryAfter,
    /// Time until the whole limit is available.
    ResetAfter,
    /// Units per window.
    Limit,
    /// Units counted.
    CurrentCount,
    /// Time to hold the request back.
    Delay,
    /// Why.
    Reason,
    /// Whether the units in use are near the limit.
    NearLimit,
    /// Whether the rule is in shadow mode.
    Shadow,
}

/// The value of a field: expected or observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FieldValue {
    /// `true` or `false`.
    Flag(bool),
    /// Units; negative in debt.
    Units(i64),
    /// A length of time.
    Time(Micros),
    /// A name or another word.
    Word(String),
    /// Names in order.
    Names(Vec<String>),
}

/// How far an observed value may be from the expected one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tolerance {
    /// For durations.
    pub(super) duration: Micros,
    /// For units and counts.
    pub(super) count: u64,
}

impl Tolerance {
    /// Returns `true` if a number is near enough to the expected one.
    pub(super) fn accepts_count(self, expected: i64, observed: i64) -> bool {
        expected.abs_diff(observed) <= self.count
    }
}

impl FieldValue {
    pub(super) fn none() -> Self {
        Self::Word(NONE.to_owned())
    }

    /// Returns `true` if the observed value is as expected.
    pub(super) fn accepts(&self, observed: &Self, tolerance: Tolerance) -> bool {
        match (self, observed) {
            (Self::Units(expected), Self::Units(observed)) => {
                tolerance.accepts_count(*expected, *observed)
            }
            (Self::Time(expected), Self::Time(observed)) => {
                expected.as_micros().abs_diff(observed.as_micros())
                    <= tolerance.duration.as_micros()
            }
            (expected, observed) => expected == observed,
        }
    }
}

impl fmt::Display for FieldValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => flag.fmt(f),
            Self::Units(units) => units.fmt(f),
            Self::Time(time) => f.write_str(&scalar::shown(*time)),
            Self::Word(word) => f.write_str(&shown_value(word)),
            Self::Names(names) => {
                let names: Vec<_> = names.iter().map(|name| shown_value(name)).collect();
                write!(f, "[{}]", names.join(", "))
            }
        }
    }
}

impl DecisionField {
    /// Every field.
    pub(super) const ALL: [Self; 11] = [
        Self::Rule,
        Self::Allowed,
        Self::Remaining,
        Self::RetryAfter,
        Self::ResetAfter,
        Self::Limit,
        Self::CurrentCount,
        Self::Delay,
        Self::Reason,
        Self::NearLimit,
        Self::Shadow,
    ];

    /// Returns the name in test files.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Rule => "rule",
            Self::Allowed => "allowed",
            Self::Remaining => "remaining",
            Self::RetryAfter => "retry_after",
            Self::ResetAfter => "reset_after",
            Self::Limit => "limit",
            Self::CurrentCount => "current_count",
            Self::Delay => "delay",
            Self::Reason => "reason",
            Self::NearLimit => "near_limit",
            Self::Shadow => "shadow",
        }
    }

    /// Parses an expected value.
    pub(super) fn parse(self, text: &str) -> Result<FieldValue, String> {
        match self {
            Self::Rule => Ok(FieldValue::Word(text.to_owned())),
            Self::Allowed | Self::NearLimit | Self::Shadow => {
                Ok(FieldValue::Flag(scalar::flag(text)?))
            }
            Self::Remaining | Self::Limit | Self::CurrentCount => match text.parse() {
                Ok(units) => Ok(FieldValue::Units(units)),
                Err(_) if text == UNLIMITED => Ok(FieldValue::Word(text.to_owned())),
                Err(_) => Err("must be a whole number or unlimited".to_owned()),
            },
            Self::RetryAfter | Self::ResetAfter | Self::Delay if text == NONE => {
                Ok(FieldValue::none())
            }
            Self::RetryAfter | Self::ResetAfter | Self::Delay => {
                let time = scalar::duration(text).map_err(|error| format!("{error}; or none"))?;
                Ok(FieldValue::Time(time))
            }
            Self::Reason => match Reason::from_str_name(text) {
                Some(reason) if reason != Reason::Unspecified => {
                    Ok(FieldValue::Word(text.to_owned()))
                }
                _ => Err(format!("must be one of {}", reasons().join(", "))),
            },
        }
    }

    /// Returns the value in a decision.
    pub(super) fn observe(self, decided: &DecisionMessage) -> FieldValue {
        let units = |units: i64| match units {
            i64::MAX => FieldValue::Word(UNLIMITED.to_owned()),
            units => FieldValue::Units(units),
        };
        match self {
            Self::Rule => FieldValue::Word(decided.rule.clone()),
            Self::Allowed => FieldValue::Flag(decided.allowed),
            Self::Remaining => units(decided.remaining),
            Self::RetryAfter => time(decided.retry_after),
            Self::ResetAfter => time(decided.reset_after),
            Self::Limit => units(decided.limit),
            Self::CurrentCount => FieldValue::Units(decided.current_count),
            Self::Delay => time(decided.delay),
            Self::Reason => FieldValue::Word(decided.reason().as_str_name().to_owned()),
            Self::NearLimit => FieldValue::Flag(decided.near_limit),
            Self::Shadow => FieldValue::Flag(decided.shadow),
        }
    }
}

fn time(duration: Option<prost_types::Duration>) -> FieldValue {
    let duration = duration.as_ref().and_then(micros);
    duration.map_or_else(FieldValue::none, FieldValue::Time)
}

/// Returns the names of the reasons that a decision without a server can have.
fn reasons() -> Vec<&'static str> {
    let reasons = [
        Reason::WithinLimit,
        Reason::OverLimit,
        Reason::CostAboveLimit,
        Reason::Banned,
        Reason::Unlimited,
        Reason::NoRule,
    ];
    reasons.iter().map(Reason::as_str_name).collect()
}
