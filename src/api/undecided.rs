//! Requests that have no verdict: each counts for its project, by the status of its answer. The limiter counts the
//! others.

use rlaas_limiter::Limiter;
use rlaas_limiter::observer::DecidedRequest;
use rlaas_proto::ratelimit::v1::CheckRequest;
use tonic::Code;

/// Returns what became of a request with this status; `None` if it is none of a project, or was counted as denied.
pub(super) fn outcome(code: Code) -> Option<DecidedRequest> {
    match code {
        Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded | Code::Internal => {
            Some(DecidedRequest::Failed)
        }
        Code::InvalidArgument | Code::FailedPrecondition | Code::NotFound => {
            Some(DecidedRequest::Rejected)
        }
        _ => None,
    }
}

/// Counts a request.
#[cold]
pub(super) fn count(limiter: &Limiter, project: &str, code: Code) {
    if let Some(outcome) = outcome(code) {
        limiter.count_undecided(project, outcome);
    }
}

/// Counts a request, unless it only looks.
#[cold]
pub(super) fn count_check(limiter: &Limiter, project: &str, request: &CheckRequest, code: Code) {
    let looks = request.dry_run || request.cost == Some(0) && request.costs.is_empty();
    if !looks {
        count(limiter, project, code);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_those_of_the_status() {
        let (failed, rejected) = (Some(DecidedRequest::Failed), Some(DecidedRequest::Rejected));
        for (code, expected) in [
            (Code::Unavailable, failed),
            (Code::ResourceExhausted, failed),
            (Code::DeadlineExceeded, failed),
            (Code::Internal, failed),
            (Code::InvalidArgument, rejected),
            (Code::FailedPrecondition, rejected),
            (Code::NotFound, rejected),
            (Code::Unauthenticated, None),
            (Code::PermissionDenied, None),
        ] {
            assert_eq!(outcome(code), expected, "{code:?}");
        }
    }
}
