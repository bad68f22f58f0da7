//! Logs each decision at `debug`, and each request without a decision with its reason.
//!
//! Entries name rules and fields, never an id, a key or a value of a request. If the level is
//! disabled, a request costs one comparison.

use std::error::Error;
use std::fmt::Display;

use tracing::{Level, debug, enabled};

use crate::algorithm::Outcome;
use rlaas_limiter::{CheckError, RuleDecision};
use rlaas_proto::verdict_messages::{reason, rule_decision};

/// Logs the decisions of all rules that matched a request.
#[inline]
pub(super) fn decided<'a>(
    api: &'static str,
    is_allowed: bool,
    decisions: impl IntoIterator<Item = &'a RuleDecision>,
) {
    if enabled!(Level::DEBUG) {
        decisions.into_iter().for_each(|decided| log_decision(api, is_allowed, decided));
    }
}

/// Logs an invalid request.
pub(super) fn rejected(api: &'static str, field: &'static str, problem: impl Display) {
    debug!(api, field, %problem, "request rejected");
}

/// Logs a request without a decision.
pub(super) fn undecided(api: &'static str, error: &CheckError) {
    if enabled!(Level::DEBUG) {
        let cause = error.source().map(ToString::to_string);
        debug!(api, %error, cause, "no decision");
    }
}

#[cold]
fn log_decision(api: &'static str, is_allowed: bool, decided: &RuleDecision) {
    let message = rule_decision(decided);
    let retry_after = match decided.decision.outcome {
        Outcome::Denied { retry_after } => Some(retry_after.as_secs_ceil()),
        Outcome::Allowed | Outcome::Impossible => None,
    };
    debug!(
        api,
        request = if is_allowed { "allowed" } else { "denied" },
        rule = &*message.rule,
        algorithm = decided.algorithm.name(),
        allowed = message.allowed,
        shadow = message.shadow,
        reason = reason(decided).as_str_name(),
        source = decided.source.name(),
        limit = message.limit,
        remaining = message.remaining,
        retry_after_seconds = retry_after,
        "decision"
    );
}
