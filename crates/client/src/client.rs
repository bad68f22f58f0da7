//! The client: one verdict for each request, from the cache, the server or the policy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rlaas_core::clock::{Deadline, Micros};
use rlaas_core::decide::OnNoAnswer;
use rlaas_core::refusal_cache::{RefusalCache, RequestKey};
use rlaas_core::rules::Request;
use rlaas_core::summary::Summary;
use rlaas_proto::ratelimit::v1::check_response::Reason;
use rlaas_proto::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
use rlaas_proto::ratelimit::v1::{CheckRequest, CheckResponse};
use rlaas_proto::{ERROR_DOMAIN, NOT_READY, OVERLOADED, STORE_UNAVAILABLE};
use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::{Code, Response, Status};
use tonic_types::StatusExt;

use self::queue::{Admission, MAX_IN_FLIGHT, Outcome, Queue};
use self::retry::{Retries, is_retryable};
use crate::channel::ApiChannel;
use crate::verdict::{AnsweredBy, NO_ANSWER, Verdict};

pub use self::builder::{ClientBuilder, ConnectError};
pub use self::reservations::Reservation;

mod builder;
mod queue;
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
    on_overload: OnNoAnswer,
    queue: Arc<Queue>,
    reserves: Semaphore,
    refusals: RefusalCache<Verdict>,
    retries: Retries,
    unanswered: AtomicU64,
    #[cfg(feature = "testing")]
    service: Option<crate::testing::TestService>,
}

/// The reason why there is no verdict.
#[derive(Debug, Error)]
pub enum CheckError {
    /// The server did not answer, and there is no [`OnNoAnswer`] policy.
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
            on_overload: settings.on_overload,
            queue: Arc::new(Queue::new(settings.timeout)),
            reserves: Semaphore::new(MAX_IN_FLIGHT),
            refusals: RefusalCache::new(settings.max_age, settings.clock.clone()),
            retries: Retries::new(settings.max_retries),
            unanswered: AtomicU64::new(0),
            #[cfg(feature = "testing")]
            service: settings.service.clone(),
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

    /// Decides one request before `deadline`, and within the client's timeout, which begins when the call is sent. A
    /// request without a decision is refused: the server says that it is overloaded, not ready or without its store,
    /// or this program is [overloaded](ClientBuilder::on_overload).
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
        let Shared { queue, refusals, .. } = &*self.shared;
        let key = RequestKey::new(request);
        // A retry whose units were taken must not be refused by a refusal since.
        let is_new = request.request_id().is_none();
        let is_cached = is_new && refusals.caches(request, &key);
        if let Some(refusal) = is_cached.then(|| refusals.get(&key)).flatten() {
            return Ok(refusal);
        }
        let mut permit = match queue.enter(key.clone(), deadline).await {
            Admission::Send(permit) => permit,
            Admission::Refused(refusal) => return Ok(Verdict::clone(&refusal)),
            Admission::NoAnswer => return self.without_response(Status::unavailable("no answers")),
            Admission::Overloaded => return Ok(self.overloaded(AnsweredBy::Policy)),
        };
        let asked_at = refusals.now();
        match self.call(request, deadline).await {
            None => Ok(self.overloaded(AnsweredBy::Policy)),
            Some(Ok(response)) => {
                let verdict = Verdict::of_server(response);
                if is_cached {
                    refusals.insert(key, asked_at, &verdict);
                }
                // Units that are held may be free at any time.
                let is_lasting = verdict.response().reason() != Reason::Held;
                let is_shared = is_new && !request.takes_nothing() && is_lasting;
                let is_refusal = is_shared && !verdict.is_allowed();
                let refusal = is_refusal.then(|| Arc::new(verdict.after(Micros::ZERO)));
                permit.outcome = refusal.map_or(Outcome::Answered, Outcome::Refused);
                Ok(verdict)
            }
            Some(Err(status)) => {
                if is_answer(&status) {
                    permit.outcome = Outcome::Answered;
                } else if !deadline.has_passed() {
                    permit.outcome = Outcome::Unanswered;
                } else if permit.has_waited {
                    // The time that the caller had was spent in the queue.
                    return Ok(self.overloaded(AnsweredBy::Policy));
                }
                self.without_response(status)
            }
        }
    }

    /// Calls the server, and again as the retries allow. Each attempt has an equal part of the time
    /// that is left. `None` if this program was late.
    async fn call(
        &self,
        request: &Request<'_>,
        deadline: Deadline,
    ) -> Option<Result<Response<CheckResponse>, Status>> {
        let Shared { retries, timeout, .. } = &*self.shared;
        let until = deadline.or_within(*timeout);
        let (max, request_id) = (retries.max(), retries.request_id(request));
        for attempt in 0.. {
            let left = until.remaining() / (1 + max - attempt);
            let late = Deadline::within(left.saturating_add(*timeout / 2));
            let result = self.send(message(request, request_id.clone()), left).await;
            // Its timer ran behind. An answer that has arrived by then is taken.
            if late.has_passed() && result.as_ref().is_err_and(|status| !is_answer(status)) {
                return None;
            }
            let may_retry = retries.record(result.as_ref().err()) && attempt < max;
            if !may_retry || !retries.wait(attempt, until).await {
                return Some(result);
            }
        }
        unreachable!("the last attempt returns")
    }

    async fn send(
        &self,
        message: CheckRequest,
        left: Duration,
    ) -> Result<Response<CheckResponse>, Status> {
        #[cfg(feature = "testing")]
        if let Some(service) = &self.shared.service {
            return service.check(message).map(Response::new);
        }
        let mut service = RateLimitServiceClient::new(self.channel.clone());
        within(left, service.check(with_timeout(message, left))).await
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
        let of_server =
            |reason| Ok(Verdict::undecided(reason, OnNoAnswer::Deny, AnsweredBy::Server));
        match reason(&status).as_deref() {
            Some(OVERLOADED) => return Ok(self.overloaded(AnsweredBy::Server)),
            Some(STORE_UNAVAILABLE) => return of_server(STORE_UNAVAILABLE),
            Some(NOT_READY) => return of_server(NOT_READY),
            Some(reason) if reason == Reason::NoRule.as_str_name() => {
                return Ok(Verdict::no_rule());
            }
            _ => {}
        }
        match (CheckError::from_status(status), self.shared.on_no_answer) {
            (CheckError::NoAnswer(_), Some(policy)) => {
                self.shared.unanswered.fetch_add(1, Ordering::Relaxed);
                Ok(Verdict::undecided(NO_ANSWER, policy, AnsweredBy::Policy))
            }
            (error, _) => Err(error),
        }
    }

    /// Returns the verdict on a request that an overloaded server or program does not decide.
    fn overloaded(&self, refused_by: AnsweredBy) -> Verdict {
        Verdict::undecided(OVERLOADED, self.shared.on_overload, refused_by)
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

/// Returns `true` if the server has answered with this status.
fn is_answer(status: &Status) -> bool {
    !is_retryable(status.code()) || reason(status).is_some()
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

/// Returns the reason that the server gives in a status.
fn reason(status: &Status) -> Option<String> {
    let info = status.get_details_error_info().filter(|info| info.domain == ERROR_DOMAIN);
    info.map(|info| info.reason)
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
        at_least: request.at_least().map_or(0, |units| units.get().into()),
    }
}
