//! Answers as messages, for those who do not write them to a wire of gRPC.

use prost_types::Duration;

use super::facts::Facts;
use super::proto::{CheckResponse, RuleDecision};
use crate::clock::Span;
use crate::limiter::{self, Verdict};

/// The answer as a message.
#[cfg_attr(not(test), expect(dead_code, reason = "the truth that wire.rs is held against"))]
pub(super) fn respond(verdict: &Verdict) -> CheckResponse {
    let decided = describe(verdict.deciding());
    let source = Facts::of(verdict.deciding()).source;
    CheckResponse {
        allowed: verdict.is_allowed(),
        current_count: decided.current_count,
        ttl: decided.ttl,
        limit: decided.limit,
        remaining: decided.remaining,
        retry_after: decided.retry_after,
        reset_after: decided.reset_after,
        rule: decided.rule,
        algorithm: decided.algorithm,
        source: source.into(),
        delay: decided.delay,
        reason: decided.reason,
        decisions: verdict.decisions.iter().map(describe).collect(),
    }
}

fn describe(decided: &limiter::RuleDecision) -> RuleDecision {
    let facts = Facts::of(decided);
    RuleDecision {
        rule: facts.rule.to_owned(),
        algorithm: facts.algorithm.into(),
        allowed: facts.allowed,
        current_count: int64(facts.current_count),
        ttl: int64(facts.ttl_seconds),
        limit: int64(facts.limit),
        remaining: int64(facts.remaining),
        retry_after: facts.retry_after.map(duration),
        reset_after: Some(duration(facts.reset_after)),
        delay: facts.delay.map(duration),
        reason: facts.reason.into(),
        shadow: facts.shadow,
    }
}

/// Whole seconds and the rest.
pub(super) fn duration(span: Span) -> Duration {
    let micros = span.as_micros();
    Duration {
        seconds: int64(micros / 1_000_000),
        nanos: i32::try_from(micros % 1_000_000 * 1_000).expect("less than a second"),
    }
}

/// The number, or the largest that there is.
pub(super) fn int64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
