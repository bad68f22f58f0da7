//! Reservations of requests, settled by their responses.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use http::response::Parts;
use rlaas_core::decide::{Decide, NoVerdict, Reserve};

use crate::algorithm::Cost;
use crate::clock::Deadline;
use crate::rules::Request;

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
/// A verdict, and the reservation of an admitted request.
pub(super) type MaybeHeld<V> = Result<(V, Option<Box<dyn Settle>>), NoVerdict>;

/// Reserves the cost of requests, and reads from responses what they have cost.
pub(super) struct Settlements<V> {
    decider: Box<dyn ReserveAs<V>>,
    units: Box<dyn Fn(&Parts) -> u32 + Send + Sync>,
}

/// A decider of any type with these verdicts.
trait ReserveAs<V>: Send + Sync {
    fn reserve<'a>(
        &'a self,
        request: &'a Request<'a>,
        deadline: Deadline,
    ) -> Boxed<'a, MaybeHeld<V>>;
}

impl<D: Reserve + Send + Sync + 'static> ReserveAs<D::Verdict> for Arc<D> {
    fn reserve<'a>(
        &'a self,
        request: &'a Request<'a>,
        deadline: Deadline,
    ) -> Boxed<'a, MaybeHeld<D::Verdict>> {
        Box::pin(async move {
            let (verdict, held) = D::reserve(self, request, deadline).await?;
            let settle =
                held.map(|held| -> Box<dyn Settle> { Box::new((Self::clone(self), held)) });
            Ok((verdict, settle))
        })
    }
}

impl<V> Settlements<V> {
    pub(super) fn new<D>(decider: D, units: impl Fn(&Parts) -> u32 + Send + Sync + 'static) -> Self
    where
        D: Reserve + Decide<Verdict = V> + Send + Sync + 'static,
    {
        Self { decider: Box::new(Arc::new(decider)), units: Box::new(units) }
    }

    pub(super) fn reserve<'a>(
        &'a self,
        request: &'a Request<'a>,
        deadline: Deadline,
    ) -> Boxed<'a, MaybeHeld<V>> {
        self.decider.reserve(request, deadline)
    }

    /// Returns what a request has cost.
    pub(super) fn cost(&self, response: &Parts) -> Cost {
        Cost::new((self.units)(response))
    }
}

impl<V> fmt::Debug for Settlements<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settlements").finish_non_exhaustive()
    }
}

/// A reservation with what settles it.
pub(super) trait Settle: Send {
    fn settle(self: Box<Self>, actual: Cost) -> Boxed<'static, Result<(), NoVerdict>>;
}

impl<D: Reserve + Send + Sync + 'static> Settle for (Arc<D>, D::Held) {
    fn settle(self: Box<Self>, actual: Cost) -> Boxed<'static, Result<(), NoVerdict>> {
        let (decider, held) = *self;
        Box::pin(async move { decider.settle(held, actual).await })
    }
}

/// A reservation of a request. Settled when it is dropped: at no cost unless there is a response.
pub(super) struct Held {
    pub(super) reservation: Option<Box<dyn Settle>>,
    pub(super) actual: Cost,
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(reservation) = self.reservation.take() else { return };
        // Nobody waits for it. Without a runtime it ends by itself.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let settling = reservation.settle(self.actual);
        runtime.spawn(async move {
            if let Err(error) = settling.await {
                tracing::warn!(%error, "a reservation was not settled");
            }
        });
    }
}
