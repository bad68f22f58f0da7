//! The accept loop: takes connections and hands them to the workers in turn.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use std::{future, pin::Pin};

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::Flag;
use super::connection_limit::{Refusal, Seats};
use super::listener::Listener;
use super::socket::Connection;
use super::workers::{Arrival, Intake};
use crate::telemetry::metrics::{Metrics, ReasonLabels};

/// How long a connection that has just been made may stay silent when the server drains.
const LAST_CHANCE: Duration = Duration::from_secs(1);
/// Pause after a failure to accept: file descriptors are short, and spinning does not help.
const PAUSE: Duration = Duration::from_millis(100);

/// The way in for connections of one listener.
#[derive(Clone, Debug)]
pub(super) struct Door {
    pub(super) intake: Intake,
    pub(super) seats: Seats,
    /// The longest that a new connection may stay silent.
    pub(super) patience: Duration,
    /// Most connections that wait for their first byte; beyond that the oldest go.
    pub(super) most_silent: usize,
    pub(super) metrics: Arc<Metrics>,
    pub(super) stop: Flag,
}

/// Accepts until the door stops, then hands over what has sent something, or does so soon.
pub(super) async fn run(listener: Listener, door: Door) {
    let mut silent = Silent::default();
    let mut stopped = pin!(door.stop.clone().raised());
    let mut is_short = false;
    loop {
        tokio::select! {
            () = &mut stopped => break,
            accepted = listener.accept() => match accepted {
                Ok((connection, address)) => {
                    if is_short {
                        info!("accepting connections again");
                        is_short = false;
                    }
                    silent.push(connection, address, &door);
                }
                Err(error) => {
                    if !is_short {
                        warn!(%error, "can't accept connections");
                        is_short = true;
                    }
                    pause().await;
                }
            },
            Some(_) = silent.tasks.join_next() => {}
        }
    }
    // Whoever has connected by now was told by nobody that this server goes.
    while let Some(Ok((connection, address))) = at_once(listener.accept()).await {
        silent.push(connection, address, &door);
    }
    drop(listener);
    while silent.tasks.join_next().await.is_some() {}
}

/// Connections that have not sent anything yet.
#[derive(Default)]
struct Silent {
    tasks: JoinSet<()>,
    /// In the order of their arrival; some have ended.
    order: VecDeque<AbortHandle>,
}

impl Silent {
    /// Adds a connection; the oldest makes room for it.
    fn push(&mut self, connection: Connection, address: Option<IpAddr>, door: &Door) {
        while self.order.front().is_some_and(AbortHandle::is_finished) {
            self.order.pop_front();
        }
        if self.tasks.len() >= door.most_silent
            && let Some(oldest) = self.order.pop_front()
        {
            oldest.abort();
            door.refuse(Refusal::Silent);
        }
        self.order.push_back(self.tasks.spawn(door.clone().admit(connection, address)));
    }
}

impl Door {
    /// Hands a connection over with its first byte: one that says nothing takes no seat, and no
    /// worker that drains waits for it.
    async fn admit(self, connection: Connection, address: Option<IpAddr>) {
        let arrival = timeout(self.patience, connection.peek());
        let last_chance = async {
            self.stop.clone().raised().await;
            let _over = timeout(LAST_CHANCE, future::pending::<()>()).await;
        };
        let arrived = tokio::select! {
            biased;
            arrived = arrival => arrived,
            () = last_chance => return,
        };
        match arrived {
            Ok(Ok(1..)) => match self.seats.take(address) {
                Ok(seat) => match connection.park() {
                    Ok(connection) => self.intake.take(Arrival { connection, seat }).await,
                    Err(error) => debug!(%error, "connection lost before its first request"),
                },
                Err(refusal) => self.refuse(refusal),
            },
            Ok(Ok(0)) => debug!("connection closed before its first byte"),
            Ok(Err(error)) => debug!(%error, "connection lost before its first byte"),
            Err(_elapsed) => self.refuse(Refusal::Silent),
        }
    }

    fn refuse(&self, refusal: Refusal) {
        debug!(reason = refusal.reason(), "connection refused");
        let labels = ReasonLabels { reason: refusal.reason() };
        self.metrics.refused_connections.get_or_create(&labels).inc();
    }
}

/// What is ready now.
async fn at_once<T>(accepting: impl Future<Output = io::Result<T>>) -> Option<io::Result<T>> {
    let mut accepting: Pin<&mut _> = pin!(accepting);
    future::poll_fn(|cx| match accepting.as_mut().poll(cx) {
        Poll::Ready(accepted) => Poll::Ready(Some(accepted)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[expect(clippy::disallowed_methods, reason = "there is no event that says descriptors are back")]
async fn pause() {
    tokio::time::sleep(PAUSE).await;
}
