//! The accept loop: takes connections and hands them to the workers in turn.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::Flag;
use super::connection::Connection;
use super::listener::Listener;
use super::workers::Intake;

/// The longest that a new connection may stay silent.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(10);
/// Most connections that wait for their first byte; beyond that the oldest go.
const MOST_SILENT: usize = 1024;
/// Pause after a failure to accept: file descriptors are short, and spinning does not help.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts until `stop`, then hands over what has already sent something and drops the rest.
pub(super) async fn run(listener: Listener, intake: Intake, stop: Flag) {
    let mut silent = Silent::default();
    let mut stopped = pin!(stop.clone().raised());
    let mut is_short = false;
    loop {
        tokio::select! {
            () = &mut stopped => break,
            accepted = listener.accept() => match accepted {
                Ok(connection) => {
                    is_short = false;
                    silent.push(admit(connection, intake.clone(), stop.clone()));
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
    fn push(&mut self, admission: impl Future<Output = ()> + Send + 'static) {
        while self.order.front().is_some_and(AbortHandle::is_finished) {
            self.order.pop_front();
        }
        if self.tasks.len() >= MOST_SILENT
            && let Some(oldest) = self.order.pop_front()
        {
            oldest.abort();
        }
        self.order.push_back(self.tasks.spawn(admission));
    }
}

/// Hands a connection over with its first byte: a worker that drains waits for every connection
/// it has, and one that says nothing would hold it up.
async fn admit(connection: Connection, intake: Intake, stop: Flag) {
    let arrival = timeout(FIRST_BYTE_TIMEOUT, connection.peek());
    tokio::select! {
        biased;
        arrived = arrival => match arrived {
            Ok(Ok(1..)) => {
                if let Err(error) = hand_over(connection, intake).await {
                    debug!(%error, "connection lost before its first request");
                }
            }
            Ok(Ok(0)) => debug!("connection closed before its first byte"),
            Ok(Err(error)) => debug!(%error, "connection lost before its first byte"),
            Err(_elapsed) => debug!("connection stayed silent"),
        },
        () = stop.raised() => {}
    }
}

async fn hand_over(connection: Connection, mut intake: Intake) -> io::Result<()> {
    intake.take(connection.park()?).await;
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "there is no event that says descriptors are back")]
async fn pause() {
    tokio::time::sleep(PAUSE).await;
}
