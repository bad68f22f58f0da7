//! Monitors one server on its own connection, so that slow calls do not delay probes.
//!
//! While the server is unreachable, only the monitor tries to connect, with increasing backoff.
//! Calls fail at once.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::ServerHealth;
use crate::clock::{Micros, SystemClock, jittered};
use crate::store::redis::connection::connector::{
    ALL_SECTIONS, ConnectError, Connector, ManagedConnection, ROLE_SECTION,
};

/// Interval of probes, and timeout of a probe.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// Time between two descriptions of a server.
const INFO_INTERVAL: Micros = Micros::from_secs(10);
/// Backoff after the first failed attempt to connect. It doubles up to the maximum.
const INITIAL_BACKOFF: Duration = Duration::from_millis(10);
const MAX_BACKOFF: Duration = Duration::from_millis(150);
/// A connection that is lost sooner counts as a failed attempt.
const MIN_UPTIME: Micros = Micros::from_secs(1);

/// Connects, probes until a failure, and connects again, for ever. Sends its connection to `connected`.
pub(crate) async fn run(
    connector: &Connector,
    health: &ServerHealth,
    clock: &SystemClock,
    connected: &watch::Sender<Option<ManagedConnection>>,
) {
    let mut backoff = INITIAL_BACKOFF;
    let mut connection = None;
    loop {
        let since = clock.now();
        match connector.connect().await {
            Ok((opened, info)) => {
                connected.send_replace(Some(opened.clone()));
                connection = Some(opened);
                health.record_connected(&info);
            }
            // With `maxclients` reached, the server may still respond on the open connection.
            Err(error) if connection.is_none() => health.record_disconnected(&error),
            Err(_) => {}
        }
        if let Some(probed) = &mut connection
            && probe_until_failure(connector, health, clock, probed).await.is_err()
        {
            connector.discard(probed.generation);
            connection = None;
            connected.send_replace(None);
        }
        if clock.now().since(since) < MIN_UPTIME {
            wait(&mut backoff).await;
        } else {
            backoff = INITIAL_BACKOFF;
        }
    }
}

/// Probes every [`PROBE_INTERVAL`], and at once when a call has failed. Returns when an attempt to
/// connect for a call has failed.
///
/// # Errors
///
/// [`ConnectError`] if the server does not respond, or is no longer the master.
async fn probe_until_failure(
    connector: &Connector,
    health: &ServerHealth,
    clock: &SystemClock,
    connection: &mut ManagedConnection,
) -> Result<(), ConnectError> {
    let mut described_at = clock.now();
    let mut probes = interval(PROBE_INTERVAL);
    probes.set_missed_tick_behavior(MissedTickBehavior::Delay);
    probes.reset();
    loop {
        if !connector.is_unreachable() {
            tokio::select! {
                _ = probes.tick() => {}
                () = connector.call_failed() => {}
            }
        }
        let sent = clock.now();
        let is_due = sent.since(described_at) >= INFO_INTERVAL;
        let section = if is_due { ALL_SECTIONS } else { ROLE_SECTION };
        health.record_probe(sent);
        let probe = timeout(PROBE_INTERVAL, connector.probe(connection, section));
        let info = probe.await.unwrap_or(Err(ConnectError::TimedOut))?;
        health.record_answer(sent, is_due.then_some(info));
        described_at = if is_due { sent } else { described_at };
        connector.check_sentinels(connection).await?;
        if connector.is_unreachable() {
            return Ok(());
        }
    }
}

/// Waits for about `backoff`, and doubles it.
#[expect(clippy::disallowed_methods, reason = "backoff between attempts to connect")]
async fn wait(backoff: &mut Duration) {
    sleep(jittered(*backoff)).await;
    *backoff = (*backoff * 2).min(MAX_BACKOFF);
}
