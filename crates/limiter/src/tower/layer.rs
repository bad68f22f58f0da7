//! The layer, and the service that it wraps around another.

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response};
use rlaas_core::decide::{Decide, NoVerdict, OnNoAnswer};
use rlaas_core::refusal_cache::{RefusalCache, RequestKey};
use tower_layer::Layer;
use tower_service::Service;

use super::key::{KeyParts, KeyReader};
use super::protocol::{Http, Protocol, Rejection, add};
use super::settlement::{Held, MaybeHeld, Settlements};
use crate::algorithm::Cost;
use crate::clock::Deadline;
use crate::headers::{Header, LimitHeaders};
use crate::rules;
use crate::summary::Summary;

/// Limits the requests of a service. Clones of a layer, and the services that they wrap, share one
/// deny cache.
pub struct RateLimitLayer<D: Decide, P = Http> {
    admission: Arc<Admission<D>>,
    protocol: PhantomData<P>,
}

/// A service whose requests are limited.
pub struct RateLimit<S, D: Decide, P = Http> {
    inner: S,
    admission: Arc<Admission<D>>,
    protocol: PhantomData<P>,
}

/// Validated settings of a layer.
pub(super) struct LayerSettings<D: Decide> {
    pub(super) decider: D,
    pub(super) key: KeyReader,
    pub(super) headers: LimitHeaders,
    pub(super) on_no_answer: OnNoAnswer,
    pub(super) timeout: Option<Duration>,
    pub(super) refusals: RefusalCache<D::Verdict>,
    /// Set if costs are reserved.
    pub(super) settlements: Option<Settlements<D::Verdict>>,
}

/// Admits or rejects requests.
pub(super) struct Admission<D: Decide> {
    settings: LayerSettings<D>,
    /// Set if the last check had no verdict; only changes are logged.
    is_failing: AtomicBool,
}

impl<D: Decide> From<LayerSettings<D>> for Admission<D> {
    fn from(settings: LayerSettings<D>) -> Self {
        Self { settings, is_failing: AtomicBool::new(false) }
    }
}

impl<D: Decide, P> RateLimitLayer<D, P> {
    pub(super) fn new(admission: Arc<Admission<D>>) -> Self {
        Self { admission, protocol: PhantomData }
    }
}

impl<D: Decide> Admission<D> {
    /// Admits a request, and returns the headers to add to its response, and what is held for it.
    async fn admit(
        &self,
        parts: &Parts,
        caller: Deadline,
    ) -> Result<(Vec<Header>, Held), Rejection> {
        let LayerSettings { key, headers, on_no_answer, .. } = &self.settings;
        let nothing = Held { reservation: None, actual: Cost::NONE };
        let Some(key) = key.read(parts)? else { return Ok((Vec::new(), nothing)) };
        match self.decide(&key, caller).await? {
            Ok((verdict, reservation)) if verdict.is_allowed() => {
                let headers = headers.for_verdict(&verdict);
                Ok((headers, Held { reservation, ..nothing }))
            }
            Ok((verdict, _)) => Err(Rejection::from_verdict(&verdict, *headers)),
            Err(NoVerdict::NoRule) => Err(Rejection::no_rule()),
            Err(NoVerdict::Invalid(error)) => Err(Rejection::invalid(&*error)),
            // The policy does not apply to a caller whose own deadline has passed.
            Err(NoVerdict::NoAnswer(_)) if caller.has_passed() => Err(Rejection::expired()),
            Err(NoVerdict::NoAnswer(error)) if *on_no_answer == OnNoAnswer::Allow => {
                self.log_failure(&*error, OnNoAnswer::Allow);
                Ok((Vec::new(), nothing))
            }
            Err(NoVerdict::NoAnswer(error) | NoVerdict::Undecided(error)) => {
                self.log_failure(&*error, OnNoAnswer::Deny);
                Err(Rejection::no_answer())
            }
        }
    }

    /// Logs the first check without a verdict.
    fn log_failure(&self, error: &(dyn Error + Send + Sync), policy: OnNoAnswer) {
        if !self.is_failing.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, ?policy, "rate limit check failed");
        }
    }

    async fn decide(
        &self,
        key: &KeyParts,
        caller: Deadline,
    ) -> Result<MaybeHeld<D::Verdict>, Rejection> {
        let LayerSettings { decider, timeout, refusals, settlements, .. } = &self.settings;
        let attributes: Vec<(&str, &str)> =
            key.attributes.iter().map(|(name, value)| (&**name, &**value)).collect();
        let request = rules::Request::user(&key.user).resource(&key.resource).cost(key.cost);
        let request = request
            .attributes(&attributes[..])
            .build()
            .map_err(|error| Rejection::invalid(&error))?;
        let cache_key = RequestKey::new(&request);
        let is_cached = refusals.caches(&request, &cache_key);
        if let Some(denial) = is_cached.then(|| refusals.get(&cache_key)).flatten() {
            return Ok(Ok((denial, None)));
        }
        let requested_at = refusals.now();
        let deadline = timeout.map_or(caller, |timeout| caller.or_within(timeout));
        let decided = if let Some(settlements) = settlements {
            in_time(settlements.reserve(&request, deadline), deadline).await
        } else {
            let decided = in_time(decider.decide(&request, deadline), deadline).await;
            decided.map(|verdict| (verdict, None))
        };
        if let Ok((verdict, _)) = &decided {
            if self.is_failing.swap(false, Ordering::Relaxed) {
                tracing::info!("rate limit checks succeed again");
            }
            if is_cached {
                refusals.insert(cache_key, requested_at, verdict);
            }
        }
        Ok(decided)
    }
}

/// Time after its deadline in which a decider may say itself why it has no verdict.
const GRACE: Duration = Duration::from_millis(10);

/// Waits for a verdict until the deadline. A verdict that is ready needs no timer and no runtime.
async fn in_time<V>(
    deciding: impl Future<Output = Result<V, NoVerdict>> + Send,
    deadline: Deadline,
) -> Result<V, NoVerdict> {
    let mut deciding = pin!(deciding);
    let first = poll_fn(|context| Poll::Ready(deciding.as_mut().poll(context))).await;
    match first {
        Poll::Ready(verdict) => verdict,
        Poll::Pending if deadline.remaining() == Duration::MAX => deciding.await,
        Poll::Pending => {
            let verdict = tokio::time::timeout(deadline.remaining() + GRACE, deciding).await;
            verdict.unwrap_or_else(|elapsed| Err(NoVerdict::NoAnswer(Box::new(elapsed))))
        }
    }
}

impl<S, D: Decide, P> Layer<S> for RateLimitLayer<D, P> {
    type Service = RateLimit<S, D, P>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit { inner, admission: Arc::clone(&self.admission), protocol: PhantomData }
    }
}

impl<S, D, P, A, B> Service<Request<A>> for RateLimit<S, D, P>
where
    S: Service<Request<A>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    D: Decide + Send + Sync + 'static,
    P: Protocol<B>,
    A: Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        // The polled service is ready; its clone need not be.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let admission = Arc::clone(&self.admission);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let admitted = admission.admit(&parts, P::deadline(&parts.headers)).await;
            let (headers, mut held) = match admitted {
                Ok(admitted) => admitted,
                Err(rejection) => return Ok(P::response(&rejection)),
            };
            let mut response = inner.call(Request::from_parts(parts, body)).await?;
            if let Some(settlements) = &admission.settings.settlements {
                let (parts, body) = response.into_parts();
                held.actual = settlements.cost(&parts);
                response = Response::from_parts(parts, body);
            }
            add(response.headers_mut(), &headers);
            Ok(response)
        })
    }
}

impl<D: Decide, P> Clone for RateLimitLayer<D, P> {
    fn clone(&self) -> Self {
        Self { admission: Arc::clone(&self.admission), protocol: PhantomData }
    }
}

impl<S: Clone, D: Decide, P> Clone for RateLimit<S, D, P> {
    fn clone(&self) -> Self {
        let (inner, admission) = (self.inner.clone(), Arc::clone(&self.admission));
        Self { inner, admission, protocol: PhantomData }
    }
}

impl<D: Decide, P> fmt::Debug for RateLimitLayer<D, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").finish_non_exhaustive()
    }
}

impl<S: fmt::Debug, D: Decide, P> fmt::Debug for RateLimit<S, D, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).finish_non_exhaustive()
    }
}
