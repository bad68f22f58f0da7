//! The health of one server: whether it responds, and whether calls may pass.
//!
//! [`ServerHealth`] is the only place that logs and reports changes of health. [`breaker`] is a
//! state machine without side effects; [`monitor`] watches the server between calls.

pub(crate) mod breaker;
mod failures;
pub(crate) mod monitor;
mod outages;
mod round_trips;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tracing::{error, info, warn};

use self::breaker::{Breaker, BreakerGauge, Permit};
use self::failures::{FailureLog, LOG_INTERVAL, Severity};
use self::outages::Outages;
use self::round_trips::RoundTrips;
use super::connection::connector::ConnectError;
use super::connection::server_info::{REPLICA, ServerInfo};
use crate::clock::{SystemClock, Timestamp};
use crate::observer::BreakerState;
use crate::store::{Health, NodeStatus, StoreError};

/// The health of one Redis server.
#[derive(Debug)]
pub(crate) struct ServerHealth {
    server: String,
    clock: SystemClock,
    breaker: Mutex<Breaker>,
    gauge: Arc<BreakerGauge>,
    log: Mutex<Log>,
    outages: Mutex<Outages>,
    pub(crate) round_trips: RoundTrips,
    errors: AtomicU64,
    health: watch::Sender<Health>,
    /// Notified when the health of any server changes.
    changed: watch::Sender<()>,
}

/// Events that were logged: repeated ones are logged again only after a while.
#[derive(Debug, Default)]
struct Log {
    failures: FailureLog,
    outage: Option<Outage>,
    /// Last description of the server.
    info: Option<ServerInfo>,
    /// Set if there is no connection because the server is a replica.
    is_replica: bool,
}

/// A period in which the monitor has no connection.
#[derive(Debug)]
struct Outage {
    /// Time and content of the last log line.
    logged: Timestamp,
    reason: String,
    is_denied: bool,
}

impl ServerHealth {
    pub(crate) fn new(
        server: String,
        clock: SystemClock,
        gauge: Arc<BreakerGauge>,
        changed: watch::Sender<()>,
    ) -> Self {
        let (breaker, log) = (Mutex::default(), Mutex::default());
        Self {
            server,
            clock,
            breaker,
            gauge,
            log,
            outages: Mutex::default(),
            round_trips: RoundTrips::default(),
            errors: AtomicU64::new(0),
            health: watch::Sender::new(Health::Unknown),
            changed,
        }
    }

    /// Returns a receiver of the health of the server.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Returns the current health of the server.
    pub(crate) fn current(&self) -> Health {
        *self.health.borrow()
    }

    /// Returns the state of the server, as this process sees it. Without a known address it goes by its
    /// name.
    pub(crate) fn status(&self, address: Option<String>) -> NodeStatus {
        let log = lock(&self.log);
        let is_available = self.current() == Health::Up;
        let info = log.info.as_ref().filter(|_| is_available);
        NodeStatus {
            address: address.unwrap_or_else(|| self.server.clone()),
            is_available,
            breaker: self.breaker_state(),
            role: info.map_or(log.is_replica.then_some(REPLICA), |info| info.role),
            p50: self.round_trips.percentile(50),
            p99: self.round_trips.percentile(99),
            errors: self.errors.load(Ordering::Relaxed),
            memory: info.and_then(|info| info.memory.clone()),
            outage: lock(&self.outages).worst(self.clock.now(), self.gauge.undecided()),
        }
    }

    /// Returns the state of the breaker.
    pub(crate) fn breaker_state(&self) -> BreakerState {
        lock(&self.breaker).state()
    }

    /// Returns `true` if the breaker is open or half-open.
    pub(crate) fn breaker_is_open(&self) -> bool {
        self.breaker_state() != BreakerState::Closed
    }

    /// Admits a call.
    ///
    /// # Errors
    ///
    /// [`StoreError::BreakerOpen`] if the breaker rejects it.
    pub(crate) fn admit(&self) -> Result<Permit, StoreError> {
        let permit = self.change_breaker(|breaker| breaker.admit(|| self.clock.now()));
        permit.ok_or(StoreError::BreakerOpen)
    }

    /// Records that an admitted call was decided.
    pub(crate) fn record_success(&self, permit: Permit) {
        let closed = self.change_breaker(|breaker| breaker.record_success(permit));
        if let Some(opened_at) = closed {
            let open_seconds = self.seconds_since(opened_at);
            info!(redis = self.server, open_seconds, "circuit breaker closed");
        }
    }

    /// Logs a failure that concerns one call, not the server.
    pub(crate) fn log_failure(&self, error: &StoreError) {
        if let Some(severity) = Severity::from_error(error) {
            let now = self.clock.now();
            lock(&self.log).failures.record(&self.server, now, error, severity);
        }
    }

    /// Records that a call failed. Errors that say nothing about the server are ignored.
    pub(crate) fn record_failure(&self, error: &StoreError) {
        let Some(severity) = Severity::from_error(error) else { return };
        let now = self.clock.now();
        lock(&self.log).failures.record(&self.server, now, error, severity);
        if severity.weight > 0
            && self.change_breaker(|breaker| breaker.record_failure(severity.weight, now))
        {
            warn!(redis = self.server, kind = error.kind(), "circuit breaker opened");
        }
    }

    /// Counts a call that failed, if its error says something about the server.
    pub(crate) fn count_error(&self, error: &StoreError) {
        if Severity::from_error(error).is_some() {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that the monitor sends a probe.
    pub(crate) fn record_probe(&self, sent: Timestamp) {
        lock(&self.outages).record_probe(sent);
    }

    /// Records that the server has answered the probe that was sent at this time, with a description if
    /// it was asked for one.
    pub(crate) fn record_answer(&self, sent: Timestamp, description: Option<ServerInfo>) {
        lock(&self.outages).record_answer(self.gauge.undecided());
        self.round_trips.record(self.clock.now().since(sent).into());
        let Some(info) = description else { return };
        let mut log = lock(&self.log);
        // It is asked only for a new connection.
        let is_not_persistent = log.info.as_ref().is_some_and(|info| info.is_not_persistent);
        let info = ServerInfo { is_not_persistent, ..info };
        self.gauge.record_info(log.info.as_ref(), Some(&info));
        log.info = Some(info);
    }

    /// Records that the monitor is connected.
    pub(crate) fn record_connected(&self, info: &ServerInfo) {
        let mut log = lock(&self.log);
        self.log_restart(log.info.as_ref(), info);
        self.gauge.record_info(log.info.as_ref(), Some(info));
        log.info = Some(info.clone());
        log.outage = None;
        let outage = lock(&self.outages).end(self.clock.now(), self.gauge.undecided());
        if self.set_health(Health::Up) {
            let outage_seconds = outage.map(|length| Duration::from(length).as_secs_f64());
            info!(redis = self.server, outage_seconds, "redis connected");
            self.change_breaker(|breaker| breaker.probe_now(self.clock.now()));
        }
    }

    /// Records that the monitor has no connection. Logs when an outage begins, and when its reason
    /// changes: at most once per [`LOG_INTERVAL`], but a denied access at once.
    pub(crate) fn record_disconnected(&self, error: &ConnectError) {
        let mut log = lock(&self.log);
        self.set_health(Health::Down);
        let (now, reason, is_denied) = (self.clock.now(), error.to_string(), error.is_denied());
        lock(&self.outages).begin(now);
        log.is_replica = matches!(error, ConnectError::Replica);
        let is_logged = |outage: &Outage| {
            let is_worse = is_denied && !outage.is_denied;
            outage.reason == reason || (now.since(outage.logged) < LOG_INTERVAL && !is_worse)
        };
        if log.outage.as_ref().is_some_and(is_logged) {
            return;
        }
        if is_denied {
            error!(redis = self.server, reason, "redis denied access");
        } else {
            warn!(redis = self.server, reason, "redis connection failed");
        }
        log.outage = Some(Outage { logged: now, reason, is_denied });
    }

    /// Sets the health. Returns `true` if it has changed.
    fn set_health(&self, health: Health) -> bool {
        let has_changed = self.health.send_replace(health) != health;
        if has_changed {
            self.changed.send_replace(());
        }
        has_changed
    }

    /// Logs conditions that an operator should know of when a server has restarted.
    fn log_restart(&self, before: Option<&ServerInfo>, now: &ServerInfo) {
        if before.is_some_and(|before| before.run_id == now.run_id) {
            return;
        }
        let redis = &self.server;
        if before.is_some() && now.has_keys == Some(false) {
            warn!(
                redis,
                "redis came back empty: all counts start at zero, and the overrides and bans that \
                 were set at run time are gone"
            );
        }
        if let Some(policy) = now.eviction_policy() {
            warn!(
                redis,
                policy,
                "redis may evict counts, overrides and bans when its memory is full \
                 (maxmemory-policy)"
            );
        }
        if now.is_not_persistent {
            warn!(
                redis,
                "redis loses counts, overrides and bans when it restarts: set appendonly yes"
            );
        }
    }

    fn change_breaker<T>(&self, change: impl FnOnce(&mut Breaker) -> T) -> T {
        let mut breaker = lock(&self.breaker);
        let before = breaker.state();
        let result = change(&mut breaker);
        let after = breaker.state();
        if before != after {
            self.gauge.record_change(before, after);
        }
        result
    }

    fn seconds_since(&self, time: Timestamp) -> f64 {
        Duration::from(self.clock.now().since(time)).as_secs_f64()
    }
}

impl Drop for ServerHealth {
    /// Removes a server that has left the cluster from the gauges.
    fn drop(&mut self) {
        self.change_breaker(|breaker| *breaker = Breaker::default());
        self.gauge.record_info(lock(&self.log).info.as_ref(), None);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
