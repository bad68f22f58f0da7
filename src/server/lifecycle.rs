//! The life of a connection.
//!
//! | from | until | the client |
//! | --- | --- | --- |
//! | the start | its age is up, or the server drains | calls |
//! | then (GOAWAY) | the grace is over; a second where the server drains | finishes its calls here and makes new ones elsewhere |
//! | [`Stage::Closing`] | no call can still wait for the store | gets answers to all that was read of its streams, then UNAVAILABLE |
//! | [`Stage::Over`] | the client has been told | gets UNAVAILABLE where it still waits, such as for news of health |
//!
//! A connection that has nothing more to answer ends at once in each of them.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::server::graceful::GracefulConnection;
use tokio::sync::watch;
use tokio::time::timeout;

use super::Flag;
use super::calls::Way;
use super::goaway::Farewell;
use super::inline_executor::Arrived;

/// No call that was read takes longer: a store may take a minute (`store.redis.timeout`).
const LONGEST_CALL: Duration = Duration::from_secs(65);
/// From the first GOAWAY to the last: calls that were on their way arrive.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long a client may take to hear that its connection ends.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How far a connection has come, as its calls see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// All is as usual.
    Open,
    /// No more is read.
    Closing,
    /// No more is waited for.
    Over,
}

/// How long a connection has in each part of its life.
pub(super) struct Life {
    /// For ever without.
    pub(super) age: Option<Duration>,
    pub(super) grace: Duration,
    pub(super) drain: Flag,
    /// The longest until the client has said hello.
    pub(super) hello: Duration,
    /// HTTP/1 has none: it is told by the headers of its answers.
    pub(super) farewell: Option<Farewell>,
    /// Has one more owner for each call in flight.
    pub(super) way: Arc<Way>,
    /// What has come by the connection and has not begun.
    pub(super) arrived: Arrived,
    pub(super) stage: watch::Sender<Stage>,
}

impl Life {
    /// Serves a connection from its start to its end.
    pub(super) async fn lead<C: GracefulConnection>(
        self,
        mut connection: Pin<Box<C>>,
    ) -> Result<(), C::Error> {
        let hello = self.age.map_or(self.hello, |age| age.min(self.hello));
        if let Some(ended) = self.serve_for(Some(hello), connection.as_mut()).await {
            return ended;
        }
        let has_met = self.farewell.as_ref().is_none_or(Farewell::has_met);
        if !has_met && !self.drain.is_raised() {
            return Ok(());
        }
        let rest = self.age.map(|age| age.saturating_sub(hello));
        if let Some(ended) = self.serve_for(rest, connection.as_mut()).await {
            return ended;
        }
        if let Some(farewell) = &self.farewell {
            farewell.say();
            if let Ok(ended) = timeout(FAREWELL, self.serve(connection.as_mut())).await {
                return ended;
            }
        }
        connection.as_mut().graceful_shutdown();
        if let Some(ended) = self.serve_for(Some(self.grace), connection.as_mut()).await {
            return ended;
        }
        self.stage.send_replace(Stage::Closing);
        let mut patience = LONGEST_CALL;
        while !patience.is_zero() {
            if let Ok(ended) = timeout(LAST_WORDS, self.serve(connection.as_mut())).await {
                return ended;
            }
            if self.is_idle() {
                return Ok(());
            }
            patience = patience.saturating_sub(LAST_WORDS);
        }
        self.stage.send_replace(Stage::Over);
        timeout(LAST_WORDS, self.serve(connection.as_mut())).await.unwrap_or(Ok(()))
    }

    /// Serves until the connection ends, and tells how; or until the time is over or the server
    /// drains.
    async fn serve_for<C: GracefulConnection>(
        &self,
        time: Option<Duration>,
        connection: Pin<&mut C>,
    ) -> Option<C::Output> {
        let served = async {
            tokio::select! {
                biased;
                ended = self.serve(connection) => Some(ended),
                () = self.drain.clone().raised() => None,
            }
        };
        match time {
            Some(time) => timeout(time, served).await.unwrap_or(None),
            None => served.await,
        }
    }

    /// Reads and writes, and begins calls in between, until the connection ends.
    async fn serve<C: GracefulConnection>(&self, mut connection: Pin<&mut C>) -> C::Output {
        poll_fn(|cx| {
            loop {
                let polled = connection.as_mut().poll(cx);
                if polled.is_ready() || !self.arrived.begin() {
                    return polled;
                }
            }
        })
        .await
    }

    /// Is no call in flight? Beside this life only the connection itself knows the way then.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.way) <= 2
    }
}

/// Waits for a stage.
pub(super) struct Until {
    wanted: Stage,
    stage: watch::Receiver<Stage>,
    /// Made when there is somebody to wake: most calls never wait.
    waiting: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Until {
    pub(super) fn new(wanted: Stage, stage: watch::Receiver<Stage>) -> Self {
        Self { wanted, stage, waiting: None }
    }

    pub(super) fn is_reached(&self) -> bool {
        *self.stage.borrow() >= self.wanted
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let waiting = self.waiting.get_or_insert_with(|| {
            let (wanted, mut stage) = (self.wanted, self.stage.clone());
            Box::pin(async move {
                // Without a sender the connection is gone, and so is whoever waits.
                let _gone = stage.wait_for(|stage| *stage >= wanted).await;
            })
        });
        waiting.as_mut().poll(cx)
    }
}
