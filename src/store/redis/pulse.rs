//! Whether Redis answers, from the lanes to it; said in the log when it changes, once.

use std::error::Error;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
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
    /// When it went down, while it is down.
    down_since: Mutex<Option<Timestamp>>,
}

impl Default for Pulse {
    fn default() -> Self {
        Self {
            health: watch::Sender::new(Health::Unknown),
            lanes_up: AtomicUsize::new(0),
            clock: SystemClock::new(),
            down_since: Mutex::new(None),
        }
    }
}

impl Pulse {
    pub(super) fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// A lane has connected.
    pub(super) fn lane_up(&self) {
        self.lanes_up.fetch_add(1, Ordering::SeqCst);
        if self.health.send_replace(Health::Up) == Health::Up {
            return;
        }
        let outage = self.down_since().take().map(|since| self.clock.now().since(since));
        let outage_seconds = outage.map(|outage| Duration::from(outage).as_secs_f64());
        info!(outage_seconds, "redis answers");
    }

    /// A lane has lost its connection.
    pub(super) fn lane_down(&self) {
        if self.lanes_up.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.go_down(|| warn!("redis no longer answers"));
        }
    }

    /// A lane could not connect.
    pub(super) fn cannot_connect(&self, error: &dyn Error) {
        if self.lanes_up.load(Ordering::SeqCst) == 0 {
            self.go_down(|| warn!(%error, "redis does not answer"));
        }
    }

    fn go_down(&self, say: impl FnOnce()) {
        if self.health.send_replace(Health::Down) == Health::Down {
            return;
        }
        *self.down_since() = Some(self.clock.now());
        say();
    }

    fn down_since(&self) -> std::sync::MutexGuard<'_, Option<Timestamp>> {
        self.down_since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
