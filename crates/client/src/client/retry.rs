//! Retries of calls without an answer. A request id makes them safe: however often the server
//! receives the request, it takes the units once.

use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rlaas_core::clock::Deadline;
use rlaas_core::rules::Request;
use tonic::{Code, Status};

use super::is_rejection;

/// Most retries of a request: fewer than the server repeats a reply.
pub(super) const MAX_RETRIES: u32 = 5;
/// Mean wait before the first retry. It doubles with each further one.
const INITIAL_BACKOFF: Duration = Duration::from_millis(2);

/// Tokens of a full throttle, in thousandths.
const FULL: u32 = 10_000;
/// Tokens that a call without an answer costs.
const FAILURE: u32 = 1_000;
/// Tokens that an answer returns.
const SUCCESS: u32 = 100;

/// The retries of a client, shared by its clones.
#[derive(Debug)]
pub(super) struct Retries {
    max: u32,
    /// Tokens left. Calls are retried while more than half are there, so that a server without
    /// answers receives at most about a tenth more calls.
    ///
    /// **Source:** gRPC proposal A6, "Throttling Retry Attempts and Hedged RPCs".
    tokens: AtomicU32,
    calls: AtomicU64,
    /// Two hashers, whose hashes of the number of a call make its request id.
    hashers: [RandomState; 2],
}

impl Retries {
    pub(super) fn new(max: u32) -> Self {
        Self {
            max: max.min(MAX_RETRIES),
            tokens: FULL.into(),
            calls: AtomicU64::new(0),
            hashers: [RandomState::new(), RandomState::new()],
        }
    }

    /// Returns the number of retries that a request may have now. One that is not to be repeated has the
    /// whole timeout for its only attempt.
    pub(super) fn max(&self) -> u32 {
        if self.tokens.load(Ordering::Relaxed) > FULL / 2 { self.max } else { 0 }
    }

    /// Returns the request id to send: that of the request, or a new one if it may be retried.
    pub(super) fn request_id(&self, request: &Request<'_>) -> String {
        match request.request_id() {
            Some(id) => id.to_owned(),
            None if self.max == 0 || request.takes_nothing() => String::new(),
            None => self.new_id(),
        }
    }

    fn new_id(&self) -> String {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let mut id = String::with_capacity(32);
        for hasher in &self.hashers {
            write!(id, "{:016x}", hasher.hash_one(call)).expect("writing to a string");
        }
        id
    }

    /// Records the result of a call. Returns `true` if a call that has failed may be retried.
    pub(super) fn record(&self, failure: Option<&Status>) -> bool {
        let is_answer = failure.is_none_or(|status| is_rejection(status.code()));
        let changed = |tokens: u32| {
            if is_answer { (tokens + SUCCESS).min(FULL) } else { tokens.saturating_sub(FAILURE) }
        };
        let change = |tokens| Some(changed(tokens));
        let before = self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
        let left = changed(before.unwrap_or(FULL));
        failure.is_some_and(|status| is_retryable(status.code())) && left > FULL / 2
    }

    /// Waits before a retry. Returns `false` if the deadline comes first.
    #[expect(clippy::disallowed_methods, reason = "backoff between attempts")]
    pub(super) async fn wait(&self, attempt: u32, until: Deadline) -> bool {
        let jitter = self.hashers[0].hash_one((attempt, self.calls.load(Ordering::Relaxed)));
        // Between half and one and a half of the mean.
        let percent = u32::try_from(50 + jitter % 100).unwrap_or(100);
        let backoff = INITIAL_BACKOFF * 2_u32.pow(attempt) * percent / 100;
        let has_time = backoff < until.remaining();
        if has_time {
            tokio::time::sleep(backoff).await;
        }
        has_time
    }
}

/// Returns `true` if the call may have a better result when it is repeated. A server that sheds
/// load does not ask for more.
pub(super) fn is_retryable(code: Code) -> bool {
    matches!(code, Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_stop_when_most_calls_fail() {
        let retries = Retries::new(1);
        let failure = Status::unavailable("");
        let allowed = (0..20).filter(|_| retries.record(Some(&failure))).count();
        assert_eq!(allowed, 4, "more than half of 10 tokens are left");
        assert_eq!(retries.max(), 0);
        for _ in 0..200 {
            assert!(!retries.record(None));
        }
        assert!(retries.record(Some(&failure)), "the throttle is full again");
        assert_eq!(retries.max(), 1);
        // A rejected request is answered.
        let rejection = Status::invalid_argument("");
        assert!((0..20).all(|_| !retries.record(Some(&rejection))));
        assert!(retries.record(Some(&failure)), "the throttle is full still");
    }

    #[test]
    fn only_calls_without_an_answer_are_retried() {
        for (code, expected) in [
            (Code::Unavailable, true),
            (Code::DeadlineExceeded, true),
            (Code::ResourceExhausted, false),
            (Code::InvalidArgument, false),
            (Code::FailedPrecondition, false),
            (Code::PermissionDenied, false),
        ] {
            assert_eq!(Retries::new(1).record(Some(&Status::new(code, ""))), expected, "{code:?}");
        }
    }

    #[test]
    fn every_request_that_takes_units_gets_an_id_of_its_own() {
        let retries = Retries::new(2);
        let take = Request::user("alice").build().expect("a valid request");
        let ids: std::collections::HashSet<String> =
            (0..1_000).map(|_| retries.request_id(&take)).collect();
        assert_eq!(ids.len(), 1_000);
        assert!(ids.iter().all(|id| id.len() <= Request::MAX_REQUEST_ID));
        let own = take.with_request_id("own").expect("a valid id");
        assert_eq!(retries.request_id(&own), "own");
        let look = Request::user("alice").cost(0).build().expect("a valid request");
        assert_eq!(retries.request_id(&look), "");
        assert_eq!(Retries::new(0).request_id(&take), "");
    }
}
