//! Answers as messages of prost: what `wire.rs` is held against.

use super::facts::Facts;
use super::proto::{CheckResponse, RuleDecision};
use super::v1::{duration, int64};
use crate::limiter::{self, Verdict};

/// The answer as a message.
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
        remaining: facts.remaining,
        retry_after: facts.retry_after.map(duration),
        reset_after: facts.reset_after.map(duration),
        delay: facts.delay.map(duration),
        reason: facts.reason.into(),
        shadow: facts.shadow,
    }
}
