//! Whether one server answers, from the lanes to it; said in the log when it changes, once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool_redis::redis::{ErrorKind, RedisError};
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::clock::{Span, SystemClock, Timestamp};
use crate::store::Health;
use crate::store::redis::connection::manager::Greeting;
use crate::store::redis::health::breaker::Breaker;

/// The reason of an outage may change from attempt to attempt: it is told again after so long.
const LOG_INTERVAL: Span = Span::from_secs(10);

/// Why a lane had no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Silence {
    reason: String,
    /// Are we refused until somebody does something?
    is_refusal: bool,
}

/// The pulse of one Redis server.
#[derive(Debug)]
pub(crate) struct Pulse {
    server: String,
    health: watch::Sender<Health>,
    clock: SystemClock,
    breaker: Arc<Breaker>,
    /// Told whenever the health changes.
    stirs: watch::Sender<()>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    lanes_up: usize,
    outage: Option<Outage>,
    /// What the server said at its last start that we know of.
    greeting: Option<Greeting>,
}

#[derive(Debug)]
struct Outage {
    since: Timestamp,
    /// When something was logged last, and what.
    told: (Timestamp, Silence),
}

impl Silence {
    pub(crate) fn because(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_refusal: false }
    }
}

impl From<&RedisError> for Silence {
    fn from(error: &RedisError) -> Self {
        let is_refusal = error.kind() == ErrorKind::AuthenticationFailed
            || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"));
        Self { reason: error.to_string(), is_refusal }
    }
}

impl Pulse {
    pub(crate) fn new(
        server: String,
        clock: SystemClock,
        breaker: Arc<Breaker>,
        stirs: watch::Sender<()>,
    ) -> Self {
        let health = watch::Sender::new(Health::Unknown);
        Self { server, health, clock, breaker, stirs, state: Mutex::default() }
    }

    pub(crate) fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// A lane has connected.
    pub(crate) fn lane_up(&self, greeting: &Greeting) {
        let mut state = self.state();
        state.lanes_up += 1;
        self.compare(state.greeting.as_ref(), greeting);
        state.greeting = Some(greeting.clone());
        let outage = state.outage.take();
        if self.turn(Health::Up) {
            let outage_seconds = outage
                .map(|outage| Duration::from(self.clock.now().since(outage.since)).as_secs_f64());
            info!(redis = self.server, outage_seconds, "redis answers");
            self.breaker.retry_now();
        }
    }

    /// A lane has lost its connection. That may be for a moment: only what does not answer is
    /// an outage.
    pub(crate) fn lane_down(&self) {
        self.state().lanes_up -= 1;
    }

    /// A lane had no answer. Says so when an outage begins, and when its reason is another.
    pub(crate) fn no_answer(&self, silence: Silence) {
        let mut state = self.state();
        if state.lanes_up > 0 {
            return;
        }
        let now = self.clock.now();
        self.turn(Health::Down);
        let is_told = |outage: &Outage| {
            let (at, told) = &outage.told;
            let is_worse = silence.is_refusal && !told.is_refusal;
            *told == silence || (now.since(*at) < LOG_INTERVAL && !is_worse)
        };
        if state.outage.as_ref().is_some_and(is_told) {
            return;
        }
        let reason = &silence.reason;
        if silence.is_refusal {
            error!(redis = self.server, reason, "redis refuses us");
        } else {
            warn!(redis = self.server, reason, "redis does not answer");
        }
        let since = state.outage.as_ref().map_or(now, |outage| outage.since);
        state.outage = Some(Outage { since, told: (now, silence) });
    }

    /// Is that a change?
    fn turn(&self, health: Health) -> bool {
        let changes = self.health.send_replace(health) != health;
        if changes {
            self.stirs.send_replace(());
        }
        changes
    }

    /// Tells what an operator should know about a server that has been started anew.
    fn compare(&self, before: Option<&Greeting>, now: &Greeting) {
        if before.is_some_and(|before| before.run_id == now.run_id) {
            return;
        }
        if before.is_some() && now.has_keys == Some(false) {
            warn!(redis = self.server, "redis came back empty: every count starts afresh");
        }
        if let Some(policy) = &now.evicts_by {
            warn!(
                redis = self.server,
                policy, "redis may drop counts when its memory is full (maxmemory-policy)"
            );
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
