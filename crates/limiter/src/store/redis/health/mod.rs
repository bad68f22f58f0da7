//! The health of one server: whether it answers, and whether calls may pass.
//!
//! [`breaker`] is a state machine alone. [`ServerHealth`] is the one place that logs and reports its
//! changes; [`monitor`] watches the server between calls.

pub(crate) mod breaker;
mod failure_log;
pub(crate) mod gauge;
pub(crate) mod monitor;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tracing::{error, info, warn};

use self::breaker::{Breaker, Permit};
use self::failure_log::{FailureLog, LOG_INTERVAL, Severity};
use self::gauge::BreakerGauge;
use super::connection::connector::ConnectError;
use super::connection::server_info::ServerInfo;
use crate::clock::{SystemClock, Timestamp};
use crate::observer::BreakerState;
use crate::store::{Health, StoreError};

/// The health of one Redis server.
#[derive(Debug)]
pub(crate) struct ServerHealth {
    server: String,
    clock: SystemClock,
    breaker: Mutex<Breaker>,
    gauge: Arc<BreakerGauge>,
    failures: Mutex<FailureLog>,
    health: watch::Sender<Health>,
    /// Notified whenever the health of any server changes.
    changed: watch::Sender<()>,
    history: Mutex<History>,
}

/// What the monitor has seen.
#[derive(Debug, Default)]
struct History {
    outage: Option<Outage>,
    /// Of the last start of the server.
    info: Option<ServerInfo>,
}

#[derive(Debug)]
struct Outage {
    since: Timestamp,
    /// When something was logged last, and what.
    logged: Timestamp,
    reason: String,
    is_refusal: bool,
}

impl ServerHealth {
    pub(crate) fn new(
        server: String,
        clock: SystemClock,
        gauge: Arc<BreakerGauge>,
        changed: watch::Sender<()>,
    ) -> Self {
        Self {
            server,
            breaker: Mutex::default(),
            clock,
            gauge,
            failures: Mutex::default(),
            health: watch::Sender::new(Health::Unknown),
            changed,
            history: Mutex::default(),
        }
    }

    /// Whether the server answers, now and later.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Whether the server answers.
    pub(crate) fn current(&self) -> Health {
        *self.health.borrow()
    }

    /// Returns `true` if the breaker has opened, and not closed yet.
    pub(crate) fn breaker_is_open(&self) -> bool {
        lock(&self.breaker).state() != BreakerState::Closed
    }

    /// Lets a call pass.
    ///
    /// # Errors
    ///
    /// [`StoreError::BreakerOpen`] if the breaker does not.
    pub(crate) fn admit(&self) -> Result<Permit, StoreError> {
        let now = self.clock.now();
        self.change_breaker(|breaker| breaker.admit(now)).ok_or(StoreError::BreakerOpen)
    }

    /// Notes that a call was decided.
    pub(crate) fn record_success(&self, permit: Permit) {
        let now = self.clock.now();
        if let Some(open) = self.change_breaker(|breaker| breaker.record_success(permit, now)) {
            let open_seconds = open.as_secs_f64();
            info!(redis = self.server, open_seconds, "breaker closed: redis decides");
        }
    }

    /// Notes that a call failed. An error that says nothing about the server changes nothing.
    pub(crate) fn record_failure(&self, error: &StoreError) {
        let severity = Severity::from_error(error);
        if severity == Severity::None {
            return;
        }
        let now = self.clock.now();
        lock(&self.failures).record(&self.server, now, error);
        if severity.weight() == 0 {
            return;
        }
        if self.change_breaker(|breaker| breaker.record_failure(severity.weight(), now)) {
            let kind = error.kind();
            warn!(redis = self.server, kind, "breaker opened: redis does not decide");
        }
    }

    /// Notes that the monitor is connected.
    pub(crate) fn record_connected(&self, info: &ServerInfo) {
        let mut history = lock(&self.history);
        self.log_restart(history.info.as_ref(), info);
        history.info = Some(info.clone());
        let outage = history.outage.take();
        if self.set_health(Health::Up) {
            let now = self.clock.now();
            let outage_seconds =
                outage.map(|outage| Duration::from(now.since(outage.since)).as_secs_f64());
            info!(redis = self.server, outage_seconds, "redis answers");
            self.change_breaker(|breaker| breaker.probe_now(now));
        }
    }

    /// Notes that the monitor has no connection. Logs when an outage begins, and when its reason
    /// becomes another: at most once in [`LOG_INTERVAL`], but a refusal at once.
    pub(crate) fn record_disconnected(&self, error: &ConnectError) {
        let mut history = lock(&self.history);
        self.set_health(Health::Down);
        let (now, reason, is_refusal) = (self.clock.now(), error.to_string(), error.is_refusal());
        let is_logged = |outage: &Outage| {
            let is_worse = is_refusal && !outage.is_refusal;
            outage.reason == reason || (now.since(outage.logged) < LOG_INTERVAL && !is_worse)
        };
        if history.outage.as_ref().is_some_and(is_logged) {
            return;
        }
        if is_refusal {
            error!(redis = self.server, reason, "redis refuses us");
        } else {
            warn!(redis = self.server, reason, "redis does not answer");
        }
        let since = history.outage.as_ref().map_or(now, |outage| outage.since);
        history.outage = Some(Outage { since, logged: now, reason, is_refusal });
    }

    /// Returns `true` if that is a change.
    fn set_health(&self, health: Health) -> bool {
        let changes = self.health.send_replace(health) != health;
        if changes {
            self.changed.send_replace(());
        }
        changes
    }

    /// Logs what an operator should know about a server that has been started anew.
    fn log_restart(&self, before: Option<&ServerInfo>, now: &ServerInfo) {
        if before.is_some_and(|before| before.run_id == now.run_id) {
            return;
        }
        if before.is_some() && now.has_keys == Some(false) {
            warn!(redis = self.server, "redis came back empty: every count starts afresh");
        }
        if let Some(policy) = &now.eviction_policy {
            warn!(
                redis = self.server,
                policy, "redis may drop counts when its memory is full (maxmemory-policy)"
            );
        }
    }

    fn change_breaker<T>(&self, change: impl FnOnce(&mut Breaker) -> T) -> T {
        let mut breaker = lock(&self.breaker);
        let before = breaker.state();
        let result = change(&mut breaker);
        let after = breaker.state();
        if before != after {
            self.gauge.changed(before, after);
        }
        result
    }
}

impl Drop for ServerHealth {
    /// A server that has left the cluster is no longer in the gauge.
    fn drop(&mut self) {
        self.change_breaker(|breaker| *breaker = Breaker::default());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
