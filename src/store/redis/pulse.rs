//! Whether Redis answers, from the lanes to it; said in the log when it changes, once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tracing::{info, warn};

use crate::clock::{SystemClock, Timestamp};
use crate::store::Health;

/// The pulse of one Redis server.
#[derive(Debug)]
pub(super) struct Pulse {
    health: watch::Sender<Health>,
    lanes_up: AtomicUsize,
    clock: SystemClock,
    outage: Mutex<Option<Outage>>,
}

#[derive(Debug)]
struct Outage {
    since: Timestamp,
    /// The reason that was logged last.
    reason: String,
}

impl Pulse {
    pub(super) fn new(clock: SystemClock) -> Self {
        Self {
            health: watch::Sender::new(Health::Unknown),
            lanes_up: AtomicUsize::new(0),
            clock,
            outage: Mutex::new(None),
        }
    }

    pub(super) fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// A lane has connected.
    pub(super) fn lane_up(&self) {
        self.lanes_up.fetch_add(1, Ordering::SeqCst);
        if self.health.send_replace(Health::Up) == Health::Up {
            return;
        }
        let outage = self.outage().take().map(|outage| self.clock.now().since(outage.since));
        let outage_seconds = outage.map(|outage| Duration::from(outage).as_secs_f64());
        info!(outage_seconds, "redis answers");
    }

    /// A lane has lost its connection. That may be for a moment: only what does not answer is
    /// an outage.
    pub(super) fn lane_down(&self) {
        self.lanes_up.fetch_sub(1, Ordering::SeqCst);
    }

    /// A lane had no answer. Says so once for each reason of an outage that follows another.
    pub(super) fn no_answer(&self, reason: String) {
        if self.lanes_up.load(Ordering::SeqCst) > 0 {
            return;
        }
        self.health.send_replace(Health::Down);
        let mut outage = self.outage();
        if outage.as_ref().is_some_and(|outage| outage.reason == reason) {
            return;
        }
        warn!(reason, "redis does not answer");
        let since = outage.as_ref().map_or_else(|| self.clock.now(), |outage| outage.since);
        *outage = Some(Outage { since, reason });
    }

    fn outage(&self) -> MutexGuard<'_, Option<Outage>> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
