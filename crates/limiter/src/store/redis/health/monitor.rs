//! Watches one server from a connection of its own, so that a call that waits holds up no probe.
//!
//! While the server is unreachable only the monitor tries to connect: one attempt after the other,
//! with pauses between them that grow. Everybody else fails at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::ServerHealth;
use crate::clock::{Micros, SystemClock, jittered};
use crate::store::redis::connection::connector::{ConnectError, Connector, ManagedConnection};

/// Time between two probes, and the timeout of one.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// Pause after the first failed attempt to connect; doubles up to the maximum.
const INITIAL_BACKOFF: Duration = Duration::from_millis(10);
const MAX_BACKOFF: Duration = Duration::from_millis(150);
/// A connection that did not last this long counts as a failed attempt.
const MIN_UPTIME: Micros = Micros::from_secs(1);

/// Watches one server for ever.
#[derive(Debug)]
pub(crate) struct Monitor {
    pub(crate) connector: Arc<Connector>,
    pub(crate) health: Arc<ServerHealth>,
    pub(crate) local: SystemClock,
}

impl Monitor {
    /// Connects, probes, and connects again, for ever.
    pub(crate) async fn run(&self) {
        let mut backoff = INITIAL_BACKOFF;
        let mut connection = None;
        loop {
            let since = self.local.now();
            match self.connector.connect().await {
                Ok((opened, info)) => {
                    connection = Some(opened);
                    self.health.record_connected(&info);
                }
                // At the limit of clients the server may answer on the connection that there is.
                Err(error) if connection.is_none() => self.health.record_disconnected(&error),
                Err(_) => {}
            }
            if let Some(probed) = &mut connection
                && self.probe_until_failure(probed).await.is_err()
            {
                self.connector.discard(probed.generation);
                connection = None;
            }
            if self.local.now().since(since) < MIN_UPTIME {
                self.wait(&mut backoff).await;
            } else {
                backoff = INITIAL_BACKOFF;
            }
        }
    }

    /// Probes every [`PROBE_INTERVAL`], and at once when a call has failed. Returns when somebody
    /// could not connect.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if the connection no longer answers, or leads to the wrong server.
    async fn probe_until_failure(
        &self,
        connection: &mut ManagedConnection,
    ) -> Result<(), ConnectError> {
        let mut probes = interval(PROBE_INTERVAL);
        probes.set_missed_tick_behavior(MissedTickBehavior::Delay);
        probes.reset();
        loop {
            if !self.connector.is_unreachable() {
                tokio::select! {
                    _ = probes.tick() => {}
                    () = self.connector.call_failed() => {}
                }
            }
            let probe = timeout(PROBE_INTERVAL, self.connector.probe(connection));
            probe.await.unwrap_or(Err(ConnectError::TimedOut))?;
            self.connector.check_sentinels(connection).await?;
            if self.connector.is_unreachable() {
                return Ok(());
            }
        }
    }

    /// Waits for about `backoff`, and makes the next pause longer.
    #[expect(clippy::disallowed_methods, reason = "the pause between two attempts to connect")]
    async fn wait(&self, backoff: &mut Duration) {
        sleep(jittered(*backoff)).await;
        *backoff = (*backoff * 2).min(MAX_BACKOFF);
    }
}
