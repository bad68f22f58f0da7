//! The settings of a layer.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use rlaas_core::decide::{Decide, OnNoAnswer};
use rlaas_core::refusal_cache::RefusalCache;
use rlaas_core::rules::spec::Problem;
use thiserror::Error;

use super::key::KeyExtractor;
use super::layer::{LayerSettings, RateLimitLayer};
use super::protocol::{Grpc, Http};
use crate::clock::Clock;
use crate::headers::LimitHeaders;

/// Makes a [`RateLimitLayer`]; begun by [`RateLimitLayer::builder`].
#[derive(Debug)]
#[must_use]
pub struct LayerBuilder<D, P = Http> {
    decider: D,
    key: KeyExtractor,
    headers: LimitHeaders,
    on_no_answer: OnNoAnswer,
    timeout: Option<Duration>,
    max_age: Duration,
    clock: Clock,
    protocol: PhantomData<P>,
}

/// LayerSettings that no layer can have: each problem with the name of its field.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub struct InvalidLayer(pub Vec<Problem>);

impl fmt::Display for InvalidLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let problems: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&problems.join("; "))
    }
}

impl<D: Decide> RateLimitLayer<D> {
    /// Begins a layer that has `decider` decide requests by their `key`.
    pub fn builder(decider: D, key: KeyExtractor) -> LayerBuilder<D> {
        LayerBuilder {
            decider,
            key,
            headers: LimitHeaders::Draft,
            on_no_answer: OnNoAnswer::Deny,
            timeout: None,
            max_age: Duration::from_secs(1),
            clock: Clock::default(),
            protocol: PhantomData,
        }
    }
}

impl<D: Decide, P> LayerBuilder<D, P> {
    /// Answers as gRPC services do, and waits no longer than `grpc-timeout` says.
    pub fn grpc(self) -> LayerBuilder<D, Grpc> {
        let Self { decider, key, headers, on_no_answer, timeout, max_age, clock, .. } = self;
        let protocol = PhantomData;
        LayerBuilder { decider, key, headers, on_no_answer, timeout, max_age, clock, protocol }
    }

    /// Sets which headers tell of the limits. By default those of the IETF's draft.
    pub fn headers(self, headers: LimitHeaders) -> Self {
        Self { headers, ..self }
    }

    /// Sets what becomes of a request on which there is no answer. By default it is refused, with
    /// status 503 or `UNAVAILABLE`.
    pub fn on_no_answer(self, policy: OnNoAnswer) -> Self {
        Self { on_no_answer: policy, ..self }
    }

    /// Sets the longest wait for a verdict.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// Sets the longest that a refusal is remembered: so long may it take until a reset or a lifted
    /// ban reaches callers. By default a second; zero remembers none. The limiter is not asked for
    /// what is remembered, so its observer does not count it.
    pub fn deny_cache_max_age(self, max_age: Duration) -> Self {
        Self { max_age, ..self }
    }

    /// Sets the clock by which refusals are remembered, for tests that move it.
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Makes the layer.
    ///
    /// # Errors
    ///
    /// [`InvalidLayer`] with every setting that is not valid.
    pub fn build(self) -> Result<RateLimitLayer<D, P>, InvalidLayer> {
        let Self { decider, key, headers, on_no_answer, timeout, max_age, clock, .. } = self;
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
        let settings = LayerSettings { decider, key, headers, on_no_answer, timeout, refusals };
        Ok(RateLimitLayer::new(Arc::new(settings.into())))
    }
}
