//! Verdicts of the service, with the types of rlaas-core.

use std::time::Duration;

use rlaas_core::algorithm::{Decision, Outcome};
use rlaas_core::clock::{Micros, Timestamp};
use rlaas_core::decide::OnNoAnswer;
use rlaas_proto::ratelimit::v1::CheckResponse;
use rlaas_proto::ratelimit::v1::check_response::{Reason, Source};
use tonic::Response;

/// Reason of a verdict without an answer.
pub(crate) const NO_ANSWER: &str = "NO_ANSWER";

/// Time after which a request that was refused without a decision may be tried again. The same as the
/// server returns with the source `FAIL_CLOSED`.
const RETRY_AFTER_NO_ANSWER: Micros = Micros::from_secs(1);

/// The outcome of a request.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/server.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = rlaas_client::Client::builder(serve().await).connect_lazy()?;
/// # let attributes = std::collections::HashMap::new();
/// # let request = rlaas_core::rules::Request::new(rlaas_core::rules::RequestFields {
/// #     user_id: "alice", resource: "", attributes: &attributes, cost: None, dry_run: false })?;
/// use rlaas_client::AnsweredBy;
/// use rlaas_core::algorithm::Outcome;
///
/// // The limit is 2 a minute.
/// for _ in 0..2 {
///     assert!(client.check(&request).await?.is_allowed());
/// }
/// let verdict = client.check(&request).await?;
/// assert!(matches!(verdict.decision().outcome, Outcome::Denied { .. }));
/// assert_eq!((verdict.rule(), verdict.answered_by()), ("default", AnsweredBy::Server));
/// assert_eq!(client.check(&request).await?.answered_by(), AnsweredBy::Cache);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Verdict {
    response: CheckResponse,
    /// The reason if there is no decision.
    pub(crate) undecided: Option<&'static str>,
    answered_by: AnsweredBy,
    warning: Option<String>,
}

/// The origin of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnsweredBy {
    /// The server answered.
    Server,
    /// An earlier refusal of the same request still holds.
    Cache,
    /// The server did not answer, or this program is overloaded, and a policy of the client decided.
    Policy,
}

impl Verdict {
    pub(crate) fn new(response: CheckResponse, answered_by: AnsweredBy) -> Self {
        Self { response, undecided: None, answered_by, warning: None }
    }

    pub(crate) fn of_server(response: Response<CheckResponse>) -> Self {
        let warning = response.metadata().get(rlaas_proto::WARNING);
        let warning = warning.and_then(|text| text.to_str().ok()).map(str::to_owned);
        Self { warning, ..Self::new(response.into_inner(), AnsweredBy::Server) }
    }

    /// Returns the server's warning, such as that it does not read API keys.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// Returns the verdict for a request that the server refuses because no rule matches.
    pub(crate) fn no_rule() -> Self {
        let response = CheckResponse { reason: Reason::NoRule.into(), ..CheckResponse::default() };
        Self::new(response, AnsweredBy::Server)
    }

    /// Returns the verdict of a policy on a request without a decision.
    pub(crate) fn undecided(
        reason: &'static str,
        policy: OnNoAnswer,
        refused_by: AnsweredBy,
    ) -> Self {
        let allowed = policy == OnNoAnswer::Allow;
        let answered_by = if allowed { AnsweredBy::Policy } else { refused_by };
        let source = if allowed { Source::FailOpen } else { Source::FailClosed };
        let response = CheckResponse {
            allowed,
            source: source.into(),
            reason: Reason::StoreUnavailable.into(),
            retry_after: (!allowed).then(|| to_message(RETRY_AFTER_NO_ANSWER)),
            ..CheckResponse::default()
        };
        Self { undecided: Some(reason), ..Self::new(response, answered_by) }
    }

    /// Returns why the request may pass or not: the name of the response's reason, or `NO_ANSWER`, `OVERLOADED`,
    /// `STORE_UNAVAILABLE` or `NOT_READY` if there is no decision.
    pub fn reason(&self) -> &'static str {
        self.undecided.unwrap_or_else(|| self.response.reason().as_str_name())
    }

    /// Returns `true` if the request may pass.
    pub fn is_allowed(&self) -> bool {
        self.response.allowed
    }

    /// Returns the decision of the deciding rule. Its time `at` is the epoch, because the server
    /// does not send it.
    pub fn decision(&self) -> Decision {
        let response = &self.response;
        let outcome = match &response.retry_after {
            _ if response.allowed => Outcome::Allowed,
            Some(retry_after) => Outcome::Denied { retry_after: micros(retry_after) },
            None => Outcome::Impossible,
        };
        Decision {
            at: Timestamp::EPOCH,
            outcome,
            current_count: u64::try_from(response.current_count).unwrap_or_default(),
            remaining: response.remaining,
            reset_after: response.reset_after.as_ref().map_or(Micros::ZERO, micros),
            ttl: Micros::from_secs(u64::try_from(response.ttl).unwrap_or_default()),
            delay: response.delay.as_ref().map_or(Micros::ZERO, micros),
        }
    }

    /// Returns the units that the caller of a request that
    /// [takes what is there](rlaas_core::rules::Request::with_at_least) may use: 0 on a refusal. `None` for others, and
    /// without an answer of the server.
    pub fn taken(&self) -> Option<u64> {
        self.response.taken
    }

    /// Returns the name of the deciding rule; empty if there is none.
    pub fn rule(&self) -> &str {
        &self.response.rule
    }

    /// Returns the origin of the verdict.
    pub fn answered_by(&self) -> AnsweredBy {
        self.answered_by
    }

    /// Returns the response of the server, or an equivalent one if the server did not answer.
    pub fn response(&self) -> &CheckResponse {
        &self.response
    }

    /// Returns the response of the server, or an equivalent one if the server did not answer.
    pub fn into_response(self) -> CheckResponse {
        self.response
    }
}

/// Converts a duration of a response, which has whole microseconds. A negative one becomes zero.
pub(crate) fn micros(duration: &prost_types::Duration) -> Micros {
    // The conversion of `prost_types` panics for `i64::MIN` seconds where overflows are checked.
    match (u64::try_from(duration.seconds), u32::try_from(duration.nanos)) {
        (Ok(seconds), Ok(nanos)) => Duration::new(seconds, nanos).into(),
        _ => Micros::ZERO,
    }
}

pub(crate) fn to_message(span: Micros) -> prost_types::Duration {
    Duration::from(span).try_into().expect("a span in microseconds fits into a protobuf duration")
}
