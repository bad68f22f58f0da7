//! Logs once when policies start to decide in place of the store, and once when the store decides
//! again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tracing::{info, warn};

use crate::clock::{Micros, SystemClock, Timestamp};
use crate::store::StoreError;

/// Time without a decision by policy after which an episode ends. Of several servers one may be
/// unavailable while the others decide.
const RECOVERY_TIME: Micros = Micros::from_secs(1);

/// Tracks whether policies decide because the store fails.
#[derive(Debug)]
pub(super) struct Degradation {
    is_degraded: AtomicBool,
    clock: SystemClock,
    episode: Mutex<Option<Episode>>,
}

/// A period in which policies decide.
#[derive(Clone, Copy, Debug)]
struct Episode {
    since: Timestamp,
    last: Timestamp,
    decisions: u64,
}

impl Degradation {
    pub(super) fn new() -> Self {
        Self {
            is_degraded: AtomicBool::new(false),
            clock: SystemClock::new(),
            episode: Mutex::default(),
        }
    }

    /// Records that the store decided.
    pub(super) fn store_decided(&self) {
        if !self.is_degraded.load(Ordering::Relaxed) {
            return;
        }
        let now = self.clock.now();
        let mut episode = self.episode.lock().unwrap_or_else(PoisonError::into_inner);
        let over = episode.take_if(|episode| now.since(episode.last) >= RECOVERY_TIME);
        if let Some(Episode { since, last, decisions }) = over {
            self.is_degraded.store(false, Ordering::Relaxed);
            let seconds = Duration::from(last.since(since)).as_secs_f64();
            info!(seconds, decisions, "store recovered: decisions by policy ended");
        }
    }

    /// Records that a policy decided in place of the store.
    pub(super) fn policy_decided(&self, error: &StoreError) {
        let now = self.clock.now();
        let mut episode = self.episode.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(episode) = &mut *episode {
            episode.last = now;
            episode.decisions += 1;
            return;
        }
        *episode = Some(Episode { since: now, last: now, decisions: 1 });
        self.is_degraded.store(true, Ordering::Relaxed);
        warn!(%error, "store failed: decisions by policy (on-store-failure)");
    }
}
