//! The lifecycle of a connection.
//!
//! | from | until | the client |
//! | --- | --- | --- |
//! | the start | its age is up, or the server drains | makes calls |
//! | then (GOAWAY) | the grace is over; a second where the server drains | finishes its calls here and makes new ones elsewhere |
//! | [`Phases::read_closed`] | no call can still wait for the store | gets answers to all that was read of its streams, then UNAVAILABLE |
//! | [`Phases::closed`] | the client has been told | gets UNAVAILABLE where it still waits, such as for news of health |
//!
//! A connection that has nothing more to answer ends at once in each of them. The reasons are in
//! `docs/decisions/0003-goaway-and-drain.md`.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::server::graceful::GracefulConnection;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::goaway::GoAwayHandle;
use super::read_budget::ReceiveCounters;

/// No call that was read takes longer: a store may take a minute (`store.redis.timeout`).
const MAX_CALL_DURATION: Duration = Duration::from_secs(65);
/// From the first GOAWAY to the last: calls that were on their way arrive.
const GOAWAY_DELAY: Duration = Duration::from_secs(1);
/// How long a client may take to read the last answers.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How far a connection has come in its end, as its calls see it.
#[derive(Debug, Default)]
pub(super) struct Phases {
    /// No more is read of requests.
    pub(super) read_closed: CancellationToken,
    /// No response is waited for.
    pub(super) closed: CancellationToken,
    /// Has a token for each call that was not answered to its end.
    pub(super) in_flight: TaskTracker,
}

/// How long a connection has in each part of its lifecycle.
pub(super) struct ConnectionLifecycle {
    /// Unlimited without.
    pub(super) max_age: Option<Duration>,
    pub(super) grace: Duration,
    /// The longest wait for the preface.
    pub(super) preface_timeout: Duration,
    pub(super) drain: CancellationToken,
    pub(super) counters: Arc<ReceiveCounters>,
    pub(super) goaway: GoAwayHandle,
    pub(super) phases: Arc<Phases>,
}

impl ConnectionLifecycle {
    /// Serves a connection from its start to its end.
    pub(super) async fn run<C: GracefulConnection>(
        self,
        mut connection: Pin<Box<C>>,
    ) -> Result<(), C::Error> {
        let preface_timeout =
            self.max_age.map_or(self.preface_timeout, |age| age.min(self.preface_timeout));
        if let Some(ended) = self.serve_for(Some(preface_timeout), connection.as_mut()).await {
            return ended;
        }
        if !self.counters.preface_received() && !self.drain.is_cancelled() {
            return Ok(());
        }
        let remaining = self.max_age.map(|age| age.saturating_sub(preface_timeout));
        if let Some(ended) = self.serve_for(remaining, connection.as_mut()).await {
            return ended;
        }
        if self.goaway.send()
            && let Ok(ended) = timeout(GOAWAY_DELAY, connection.as_mut()).await
        {
            return ended;
        }
        connection.as_mut().graceful_shutdown();
        if let Some(ended) = self.serve_for(Some(self.grace), connection.as_mut()).await {
            return ended;
        }
        self.phases.read_closed.cancel();
        tokio::select! {
            biased;
            ended = connection.as_mut() => return ended,
            () = self.calls_finished() => {}
        }
        if self.phases.in_flight.is_empty() {
            return Ok(());
        }
        self.phases.closed.cancel();
        timeout(CLOSE_TIMEOUT, connection.as_mut()).await.unwrap_or(Ok(()))
    }

    /// Completes when every call was answered and the client had the time to read the answers.
    async fn calls_finished(&self) {
        self.phases.in_flight.close();
        let _elapsed = timeout(MAX_CALL_DURATION, self.phases.in_flight.wait()).await;
        let _elapsed = timeout(CLOSE_TIMEOUT, pending::<()>()).await;
    }

    /// Serves until the connection ends, and returns how; or until the time is over or the server
    /// drains.
    async fn serve_for<C: GracefulConnection>(
        &self,
        time: Option<Duration>,
        connection: Pin<&mut C>,
    ) -> Option<C::Output> {
        let served = async {
            tokio::select! {
                biased;
                ended = connection => Some(ended),
                () = self.drain.cancelled() => None,
            }
        };
        match time {
            Some(time) => timeout(time, served).await.unwrap_or(None),
            None => served.await,
        }
    }
}
