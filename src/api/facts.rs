//! What an answer tells of one rule's decision, in the words of the proto, whatever form it takes.

use std::sync::LazyLock;

use super::proto;
use super::proto::check_response::{self, Reason};
use crate::algorithm::{Algorithm, Outcome};
use crate::clock::Span;
use crate::limiter::{RuleDecision, Source};
use crate::rules::Grant;

/// The facts of one decision. Numbers fit into 63 bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) rule: &'a str,
    pub(super) algorithm: proto::Algorithm,
    pub(super) allowed: bool,
    pub(super) current_count: u64,
    pub(super) ttl_seconds: u64,
    pub(super) limit: u64,
    /// Below 0 is debt.
    pub(super) remaining: i64,
    pub(super) retry_after: Option<Span>,
    pub(super) reset_after: Option<Span>,
    pub(super) delay: Option<Span>,
    pub(super) reason: Reason,
    pub(super) source: check_response::Source,
    pub(super) shadow: bool,
}

/// What is told where no rule applies and the request may pass.
const NO_RULE: Facts<'static> = Facts {
    rule: "",
    algorithm: proto::Algorithm::Unspecified,
    allowed: true,
    current_count: 0,
    ttl_seconds: 0,
    limit: 0,
    remaining: 0,
    retry_after: None,
    reset_after: None,
    delay: None,
    reason: Reason::NoRule,
    source: check_response::Source::Unspecified,
    shadow: false,
};

impl<'a> Facts<'a> {
    pub(super) fn of(decided: &'a RuleDecision) -> Self {
        if decided.source == Source::NoRule {
            return NO_RULE;
        }
        let decision = &decided.decision;
        let retry_after = match decision.outcome {
            Outcome::Denied { retry_after } => Some(retry_after),
            Outcome::Allowed | Outcome::Impossible => None,
        };
        let has_delay = decided.algorithm == Algorithm::LeakyBucket && decision.is_allowed();
        Self {
            rule: &decided.rule,
            algorithm: algorithm(decided.algorithm),
            allowed: decision.is_allowed(),
            current_count: positive(decision.current_count),
            ttl_seconds: decision.ttl.as_secs_ceil(),
            limit: positive(units(decided.grant)),
            remaining: decided.remaining().unwrap_or(i64::MAX),
            retry_after,
            reset_after: Some(decision.reset_after),
            delay: has_delay.then_some(decision.delay),
            reason: reason(decided),
            source: source(decided.source),
            shadow: decided.mode.is_shadow(),
        }
    }
}

/// Units per window; without bound is the largest number there is.
pub(super) const fn units(grant: Grant) -> u64 {
    match grant {
        Grant::Limited(limit) => limit.units(),
        Grant::Banned => 0,
        Grant::Unlimited => u64::MAX,
    }
}

/// An algorithm has its canonical name on the wire, in the proto's spelling.
pub(super) fn algorithm(algorithm: Algorithm) -> proto::Algorithm {
    static ON_THE_WIRE: LazyLock<Vec<proto::Algorithm>> = LazyLock::new(|| {
        let name = |algorithm: &Algorithm| algorithm.lua_name().to_uppercase();
        let on_the_wire = |name: String| proto::Algorithm::from_str_name(&name).unwrap_or_default();
        Algorithm::ALL.iter().map(name).map(on_the_wire).collect()
    });
    ON_THE_WIRE[algorithm as usize]
}

fn source(source: Source) -> check_response::Source {
    match source {
        Source::Store => check_response::Source::Store,
        Source::DenyCache => check_response::Source::DenyCache,
        Source::FailOpen => check_response::Source::FailOpen,
        Source::FailClosed => check_response::Source::FailClosed,
        Source::LocalFallback => check_response::Source::LocalFallback,
        Source::NoRule => check_response::Source::Unspecified,
    }
}

fn reason(decided: &RuleDecision) -> Reason {
    match (decided.source, decided.decision.outcome) {
        (Source::FailOpen | Source::FailClosed, _) => Reason::StoreUnavailable,
        _ if decided.grant == Grant::Banned => Reason::Banned,
        _ if decided.grant == Grant::Unlimited => Reason::Unlimited,
        (_, Outcome::Allowed) => Reason::WithinLimit,
        (_, Outcome::Denied { .. }) => Reason::OverLimit,
        (_, Outcome::Impossible) => Reason::CostAboveLimit,
    }
}

/// The number, or the largest that a signed one can be.
fn positive(number: u64) -> u64 {
    number.min(i64::MAX.cast_unsigned())
}
