//! The lifecycle of a connection.
//!
//! | phase | ends | the client |
//! | --- | --- | --- |
//! | open | at its maximum age, or when the server drains | makes calls |
//! | GOAWAY sent | one second and the grace period later; one second later if the server drains | finishes its calls, and makes new ones on another connection |
//! | [`Phases::read_closed`] | five seconds after every call has its response, at most after 70 s | receives responses to all messages that were read, then UNAVAILABLE |
//! | [`Phases::closed`] | after at most 5 s | receives UNAVAILABLE for calls that still wait, such as Watch of health |
//!
//! In each phase after the first, a connection without calls in flight ends at once. The reasons
//! are in `docs/decisions/0003-goaway-and-drain.md`.

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

/// Maximum duration of a call whose request was read. `store.redis.timeout` is at most one minute.
const MAX_CALL_DURATION: Duration = Duration::from_secs(65);
/// Time from the early GOAWAY to hyper's graceful shutdown, in which calls that the client has
/// already sent arrive.
const GOAWAY_DELAY: Duration = Duration::from_secs(1);
/// Maximum time for a client to read the last responses.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The phases at the end of a connection, as its calls see them.
#[derive(Debug, Default)]
pub(super) struct Phases {
    /// Cancelled when requests are no longer read.
    pub(super) read_closed: CancellationToken,
    /// Cancelled when responses that still wait must end.
    pub(super) closed: CancellationToken,
    /// Holds a token for each call whose response has not ended.
    pub(super) in_flight: TaskTracker,
}

/// Leads a connection through its phases.
pub(super) struct ConnectionLifecycle {
    /// `None` is no maximum.
    pub(super) max_age: Option<Duration>,
    pub(super) grace: Duration,
    /// Maximum wait for the preface of HTTP/2.
    pub(super) preface_timeout: Duration,
    pub(super) drain: CancellationToken,
    pub(super) counters: Arc<ReceiveCounters>,
    pub(super) goaway: GoAwayHandle,
    pub(super) phases: Arc<Phases>,
}

impl ConnectionLifecycle {
    /// Serves a connection until it ends.
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

    /// Completes when every call has its response and the client had time to read it.
    async fn calls_finished(&self) {
        self.phases.in_flight.close();
        let _elapsed = timeout(MAX_CALL_DURATION, self.phases.in_flight.wait()).await;
        let _elapsed = timeout(CLOSE_TIMEOUT, pending::<()>()).await;
    }

    /// Serves for at most `time`, or until the server drains. Returns the result of the connection
    /// if it ended before.
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
