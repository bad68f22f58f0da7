//! Mapping of verdicts to messages of `ratelimit.v1`. HTTP and the command line show the same messages
//! as JSON and as text.

use prost::Message;
use rlaas_core::algorithm::{Algorithm, Outcome};
use rlaas_core::rules::Grant;
use rlaas_core::verdict::{RuleDecision, Source, Verdict};
use tonic::Status;

use crate::ratelimit::v1::check_response::{self, Reason};
use crate::ratelimit::v1::{self as proto, CheckResponse, CheckResult, check_result};
use crate::values::{algorithm, duration, int64, timestamp, units};

/// Returns the response to a request. Its top-level fields are those of the deciding rule.
pub fn response(verdict: &Verdict) -> CheckResponse {
    let decisions: Vec<_> = verdict.decisions.iter().map(rule_decision).collect();
    let deciding = verdict.deciding_position().map(|deciding| decisions[deciding].clone());
    CheckResponse { decisions, ..response_of(verdict, deciding) }
}

/// As [`response`], without `decisions`.
fn short_response(verdict: &Verdict) -> CheckResponse {
    let deciding = verdict.deciding_position();
    response_of(verdict, deciding.map(|deciding| rule_decision(&verdict.decisions[deciding])))
}

/// Returns the response with the decision of the deciding rule.
fn response_of(verdict: &Verdict, deciding: Option<proto::RuleDecision>) -> CheckResponse {
    let (allowed, replayed, taken) = (verdict.is_allowed(), verdict.replayed, verdict.taken);
    let Some(decided) = deciding else {
        let reason = Reason::NoRule.into();
        return CheckResponse { allowed, reason, replayed, taken, ..CheckResponse::default() };
    };
    CheckResponse {
        allowed,
        current_count: decided.current_count,
        ttl: decided.ttl,
        limit: decided.limit,
        remaining: decided.remaining,
        retry_after: decided.retry_after,
        reset_after: decided.reset_after,
        rule: decided.rule,
        algorithm: decided.algorithm,
        source: source(verdict.deciding().source).into(),
        delay: decided.delay,
        reason: decided.reason,
        near_limit: verdict.is_near_limit(),
        decisions: Vec::new(),
        replayed,
        reset_at: decided.reset_at,
        taken,
    }
}

/// Returns the result of one request of a batch or stream.
pub fn result(result: Result<&Verdict, &Status>) -> CheckResult {
    result_by(response, result)
}

/// As [`result`], without `decisions`.
pub fn short_result(result: Result<&Verdict, &Status>) -> CheckResult {
    result_by(short_response, result)
}

fn result_by(
    response: fn(&Verdict) -> CheckResponse,
    result: Result<&Verdict, &Status>,
) -> CheckResult {
    let result = match result {
        Ok(verdict) => check_result::Result::Response(response(verdict)),
        Err(status) => check_result::Result::Error(error(status)),
    };
    CheckResult { result: Some(result) }
}

/// Converts a status to a message. In a `tonic::Status` the details are an encoded `google.rpc.Status`;
/// the message has its list of details.
pub fn error(status: &Status) -> tonic_types::Status {
    let detailed = tonic_types::Status::decode(status.details()).unwrap_or_default();
    tonic_types::Status {
        code: status.code().into(),
        message: status.message().to_owned(),
        details: detailed.details,
    }
}

/// Returns the decision of one rule.
pub fn rule_decision(decided: &RuleDecision) -> proto::RuleDecision {
    let decision = &decided.decision;
    let retry_after = match decision.outcome {
        Outcome::Denied { retry_after } => Some(retry_after),
        Outcome::Allowed | Outcome::Impossible => None,
    };
    let has_delay = decided.algorithm == Algorithm::LeakyBucket && decision.is_allowed();
    proto::RuleDecision {
        rule: decided.rule.to_string(),
        algorithm: algorithm(decided.algorithm).into(),
        allowed: decision.is_allowed(),
        current_count: int64(decision.current_count),
        ttl: int64(decision.ttl.as_secs_ceil()),
        limit: int64(units(decided.grant)),
        remaining: decided.remaining().unwrap_or(i64::MAX),
        retry_after: retry_after.map(duration),
        reset_after: Some(duration(decision.reset_after)),
        delay: has_delay.then(|| duration(decision.delay)),
        reason: reason(decided).into(),
        shadow: decided.mode.is_shadow(),
        near_limit: decided.is_near_limit,
        reset_at: decided.reset_at().map(timestamp),
        window: decided.window().map(duration),
        held: decided.held,
    }
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

/// Returns the reason of a decision.
pub fn reason(decided: &RuleDecision) -> Reason {
    match (decided.source, decided.decision.outcome) {
        (Source::FailOpen | Source::FailClosed, _) => Reason::StoreUnavailable,
        _ if decided.grant == Grant::Banned => Reason::Banned,
        _ if decided.grant == Grant::Unlimited => Reason::Unlimited,
        (_, Outcome::Allowed) => Reason::WithinLimit,
        (_, Outcome::Denied { .. }) if decided.is_held => Reason::Held,
        (_, Outcome::Denied { .. }) => Reason::OverLimit,
        (_, Outcome::Impossible) => Reason::CostAboveLimit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::no_rule;

    #[test]
    fn error_has_the_details_of_the_status() {
        let status = no_rule();
        let CheckResult { result: Some(check_result::Result::Error(error)) } = result(Err(&status))
        else {
            panic!("no error of {status:?}");
        };
        assert_eq!((error.code, &*error.message), (7, "no rule matches"));
        assert_eq!(error.encode_to_vec(), status.details());
    }
}
