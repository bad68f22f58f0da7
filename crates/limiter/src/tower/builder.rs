//! The builder of a layer.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use http::response::Parts;
use rlaas_core::decide::{Decide, OnNoAnswer, Reserve};
use rlaas_core::refusal_cache::RefusalCache;
use rlaas_core::rules::spec::Problem;
use thiserror::Error;

use super::key::KeyExtractor;
use super::layer::{LayerSettings, RateLimitLayer};
use super::protocol::{Grpc, Http};
use super::settlement::Settlements;
use crate::clock::Clock;
use crate::headers::LimitHeaders;

/// Builds a [`RateLimitLayer`]; created by [`RateLimitLayer::builder`].
#[derive(Debug)]
#[must_use]
pub struct LayerBuilder<D: Decide, P = Http> {
    decider: D,
    key: KeyExtractor,
    headers: LimitHeaders,
    on_no_answer: OnNoAnswer,
    timeout: Option<Duration>,
    max_age: Duration,
    clock: Clock,
    settlements: Option<Settlements<D::Verdict>>,
    protocol: PhantomData<P>,
}

/// Error of [`LayerBuilder::build`]: every invalid setting, with the name of its field.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub struct InvalidLayer(pub Vec<Problem>);

impl fmt::Display for InvalidLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let problems: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&problems.join("; "))
    }
}

impl<D: Decide> RateLimitLayer<D> {
    /// Returns a builder of a layer. `decider` decides the requests, identified by the key that
    /// `key` extracts.
    pub fn builder(decider: D, key: KeyExtractor) -> LayerBuilder<D> {
        LayerBuilder {
            decider,
            key,
            headers: LimitHeaders::Draft,
            on_no_answer: OnNoAnswer::Deny,
            timeout: None,
            max_age: Duration::from_secs(1),
            clock: Clock::default(),
            settlements: None,
            protocol: PhantomData,
        }
    }
}

impl<D: Decide, P> LayerBuilder<D, P> {
    /// Selects gRPC: rejections have a gRPC status, and `grpc-timeout` limits the wait.
    pub fn grpc(self) -> LayerBuilder<D, Grpc> {
        let Self {
            decider, key, headers, on_no_answer, timeout, max_age, clock, settlements, ..
        } = self;
        LayerBuilder {
            decider,
            key,
            headers,
            on_no_answer,
            timeout,
            max_age,
            clock,
            settlements,
            protocol: PhantomData,
        }
    }

    /// Reserves the cost of each request, and settles the reservation by the head of the response: `units`
    /// returns what the request has cost, such as from a header or an extension. Requests without a
    /// response, and those that are dropped, cost nothing. Rules that do not hold take the cost for good.
    ///
    /// The rules' `hold` must be longer than the slowest request takes to its response: what has ended by then
    /// is not charged. A slot is free again at the head of the response.
    ///
    /// ```
    /// # use rlaas_limiter::tower::{KeyExtractor, RateLimitLayer, local};
    /// # use rlaas_limiter::{Limiter, Rule};
    /// # use std::time::Duration;
    /// let tokens = Rule::token_bucket("tokens").limit(30_000).per(Duration::from_secs(60));
    /// let tokens = tokens.reservable(Duration::from_secs(60));
    /// let limiter = Limiter::builder().rule(tokens).build()?;
    /// let layer = RateLimitLayer::builder(local(limiter), KeyExtractor::header("x-api-key"))
    ///     .settle_by(|response| {
    ///         let tokens = response.headers.get("x-tokens").and_then(|value| value.to_str().ok());
    ///         tokens.and_then(|tokens| tokens.parse().ok()).unwrap_or(0)
    ///     })
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn settle_by(self, units: impl Fn(&Parts) -> u32 + Send + Sync + 'static) -> Self
    where
        D: Reserve + Clone + Send + Sync + 'static,
    {
        let settlements = Some(Settlements::new(self.decider.clone(), units));
        Self { settlements, ..self }
    }

    /// Sets the headers that describe the limits; by default those of the IETF draft.
    pub fn headers(self, headers: LimitHeaders) -> Self {
        Self { headers, ..self }
    }

    /// Sets the policy for requests that get no verdict. By default they are rejected with status
    /// 503 or `UNAVAILABLE`.
    pub fn on_no_answer(self, policy: OnNoAnswer) -> Self {
        Self { on_no_answer: policy, ..self }
    }

    /// Sets the longest wait for a verdict; by default none.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// Sets the longest time that a denial is cached; by default a second, and zero disables the
    /// cache. A reset or a lifted ban takes effect after at most this time. Cached denials do not
    /// reach the limiter, so its observer does not count them.
    pub fn deny_cache_max_age(self, max_age: Duration) -> Self {
        Self { max_age, ..self }
    }

    /// Sets the clock of the deny cache, for tests that move time.
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// [`InvalidLayer`] with every invalid setting.
    pub fn build(self) -> Result<RateLimitLayer<D, P>, InvalidLayer> {
        let Self {
            decider, key, headers, on_no_answer, timeout, max_age, clock, settlements, ..
        } = self;
        let mut problems = Vec::new();
        let key = key.build(&mut problems);
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            let text = "must be longer than zero".to_owned();
            problems.push(Problem { field: "timeout".to_owned(), text });
        }
        let Some(key) = key.filter(|_| problems.is_empty()) else {
            return Err(InvalidLayer(problems));
        };
        let refusals = RefusalCache::new(max_age, clock);
        let settings =
            LayerSettings { decider, key, headers, on_no_answer, timeout, refusals, settlements };
        Ok(RateLimitLayer::new(Arc::new(settings.into())))
    }
}
