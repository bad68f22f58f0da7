//! The client: one verdict for each request, from the cache, the server or the policy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rlaas_core::clock::Deadline;
use rlaas_core::decide::OnNoAnswer;
use rlaas_core::refusal_cache::RefusalCache;
use rlaas_core::rules::Request;
use rlaas_proto::ERROR_DOMAIN;
use rlaas_proto::ratelimit::v1::check_response::Reason;
use rlaas_proto::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
use rlaas_proto::ratelimit::v1::{CheckRequest, CheckResponse};
use thiserror::Error;
use tokio::time::timeout;
use tonic::{Code, Response, Status};
use tonic_types::StatusExt;

use self::retry::Retries;
use crate::channel::ApiChannel;
use crate::verdict::Verdict;

pub use self::builder::{ClientBuilder, ConnectError};
pub use self::reservations::Reservation;

mod builder;
mod reservations;
mod retry;

/// A client of the service. Clones share the connection and the cache of refusals.
#[derive(Clone, Debug)]
pub struct Client {
    channel: ApiChannel,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    timeout: Duration,
    on_no_answer: Option<OnNoAnswer>,
    refusals: RefusalCache<Verdict>,
    retries: Retries,
    unanswered: AtomicU64,
}

/// The reason why there is no verdict.
#[derive(Debug, Error)]
pub enum CheckError {
    /// The server did not answer or could not decide, and there is no [`OnNoAnswer`] policy.
    #[error("no answer: {0}")]
    NoAnswer(#[source] Box<Status>),
    /// The server rejected the request: it is not valid, or the caller lacks permission.
    #[error("rejected: {0}")]
    Rejected(#[source] Box<Status>),
}

impl CheckError {
    fn from_status(status: Status) -> Self {
        if is_rejection(status.code()) {
            Self::Rejected(Box::new(status))
        } else {
            Self::NoAnswer(Box::new(status))
        }
    }

    /// Returns the status of the call.
    pub fn status(&self) -> &Status {
        match self {
            Self::NoAnswer(status) | Self::Rejected(status) => status,
        }
    }
}

impl Client {
    /// Starts building a client of the server at this address: `host:port`, `http://host:port`,
    /// `https://host:port` or `unix:/path`.
    pub fn builder(address: impl Into<String>) -> ClientBuilder {
        ClientBuilder::new(address.into())
    }

    pub(crate) fn new(channel: ApiChannel, settings: &ClientBuilder) -> Self {
        let shared = Shared {
            timeout: settings.timeout,
            on_no_answer: settings.on_no_answer,
            refusals: RefusalCache::new(settings.max_age, settings.clock.clone()),
            retries: Retries::new(settings.max_retries),
            unanswered: AtomicU64::new(0),
        };
        Self { channel, shared: Arc::new(shared) }
    }

    /// Decides one request, within the client's timeout.
    ///
    /// # Errors
    ///
    /// [`CheckError`] if the server does not answer and there is no policy for that, or if it
    /// rejects the request.
    pub async fn check(&self, request: &Request<'_>) -> Result<Verdict, CheckError> {
        self.check_with_deadline(request, Deadline::NEVER).await
    }

    /// Decides one request before `deadline`, and within the client's timeout.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/server.rs"));
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = rlaas_client::Client::builder(serve().await).connect_lazy()?;
    /// # let attributes = std::collections::HashMap::new();
    /// # let request = rlaas_core::rules::Request::new(rlaas_core::rules::RequestFields {
    /// #     user_id: "alice", resource: "", attributes: &attributes, cost: None, dry_run: false })?;
    /// use std::time::Duration;
    ///
    /// use rlaas_core::clock::Deadline;
    ///
    /// let deadline = Deadline::within(Duration::from_millis(500));
    /// assert!(client.check_with_deadline(&request, deadline).await?.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Self::check`].
    pub async fn check_with_deadline(
        &self,
        request: &Request<'_>,
        deadline: Deadline,
    ) -> Result<Verdict, CheckError> {
        let Shared { timeout: own, refusals, .. } = &*self.shared;
        // A retry whose units were taken must not be refused by a refusal since.
        let key = refusals.key(request).filter(|_| request.request_id().is_none());
        if let Some(refusal) = key.as_ref().and_then(|key| refusals.get(key)) {
            return Ok(refusal);
        }
        let asked_at = refusals.now();
        let result = self.call(request, deadline.or_within(*own)).await;
        match result {
            Ok(response) => {
                let verdict = Verdict::of_server(response);
                if let Some(key) = key {
                    refusals.insert(key, asked_at, &verdict);
                }
                Ok(verdict)
            }
            Err(status) => self.without_response(status),
        }
    }

    /// Calls the server, and again as the retries allow. Each attempt has an equal part of the time
    /// that is left.
    async fn call(
        &self,
        request: &Request<'_>,
        until: Deadline,
    ) -> Result<Response<CheckResponse>, Status> {
        let retries = &self.shared.retries;
        let (max, request_id) = (retries.max(), retries.request_id(request));
        for attempt in 0.. {
            let left = until.remaining() / (1 + max - attempt);
            let call = with_timeout(message(request, request_id.clone()), left);
            let mut service = RateLimitServiceClient::new(self.channel.clone());
            let result = within(left, service.check(call)).await;
            let may_retry = retries.record(result.as_ref().err()) && attempt < max;
            if !may_retry || !retries.wait(attempt, until).await {
                return result;
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Returns the connection, for generated clients of this and other services. Their calls have
    /// the client's timeout and token, but neither the cache of refusals nor the policy.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/server.rs"));
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = rlaas_client::Client::builder(serve().await).connect_lazy()?;
    /// use rlaas_proto::ratelimit::v1::{CheckRequest, CheckResponse};
    /// use rlaas_proto::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
    ///
    /// let mut service = RateLimitServiceClient::new(client.channel());
    /// let request = CheckRequest { user_id: "alice".to_owned(), ..CheckRequest::default() };
    /// assert!(service.check(request).await?.get_ref().allowed);
    /// # Ok(())
    /// # }
    /// ```
    pub fn channel(&self) -> ApiChannel {
        self.channel.clone()
    }

    /// Returns the number of requests that the policy has decided, for a metric: an [`OnNoAnswer::Allow`]
    /// that is not watched hides that nothing is limited.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use rlaas_client::{Client, OnNoAnswer, rlaas_core::rules::Request};
    ///
    /// let client = Client::builder("unix:/nowhere").on_no_answer(OnNoAnswer::Allow).connect_lazy()?;
    /// assert!(client.check(&Request::user("alice").build()?).await?.is_allowed());
    /// assert_eq!(client.unanswered(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn unanswered(&self) -> u64 {
        self.shared.unanswered.load(Ordering::Relaxed)
    }

    fn without_response(&self, status: Status) -> Result<Verdict, CheckError> {
        if is_no_rule(&status) {
            return Ok(Verdict::no_rule());
        }
        match (CheckError::from_status(status), self.shared.on_no_answer) {
            (CheckError::NoAnswer(_), Some(policy)) => {
                self.shared.unanswered.fetch_add(1, Ordering::Relaxed);
                Ok(Verdict::by_policy(policy))
            }
            (error, _) => Err(error),
        }
    }
}

fn with_timeout<T>(message: T, left: Duration) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(left);
    request
}

/// Waits for a call. The timeout of the channel does not include the time to connect.
async fn within<T>(
    left: Duration,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let result = timeout(left, call).await;
    result.unwrap_or_else(|_| Err(Status::cancelled("Timeout expired")))
}

/// Returns `true` if the server answered and would answer the same again.
fn is_rejection(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument
            | Code::Unauthenticated
            | Code::PermissionDenied
            | Code::Unimplemented
            | Code::NotFound
            | Code::FailedPrecondition
            | Code::OutOfRange
    )
}

/// Returns `true` if the call failed because no rule matches, which is a verdict.
fn is_no_rule(status: &Status) -> bool {
    status.get_details_error_info().is_some_and(|info| {
        info.domain == ERROR_DOMAIN && info.reason == Reason::NoRule.as_str_name()
    })
}

fn message(request: &Request<'_>, request_id: String) -> CheckRequest {
    CheckRequest {
        user_id: request.user_id().to_owned(),
        resource: request.resource().to_owned(),
        attributes: request.attributes().to_map(),
        cost: Some(request.cost().units()),
        dry_run: request.dry_run(),
        request_id,
        costs: request.costs().iter().map(|(rule, units)| (rule.to_owned(), units)).collect(),
    }
}
