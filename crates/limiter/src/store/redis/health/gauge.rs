//! The worst state of all servers, for metrics: of their circuit breakers, and whether one may evict.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::observer::{BreakerState, Observer, StoreEvent};
use crate::store::redis::connection::server_info::ServerInfo;

/// Reports the worst state to an observer whenever a breaker has changed.
#[derive(Debug)]
pub(crate) struct BreakerGauge {
    /// Number of open and of half-open breakers.
    counts: Mutex<[usize; 2]>,
    /// Number of servers that may evict keys.
    evicting: AtomicUsize,
    /// Number of servers whose restart loses everything.
    not_persistent: AtomicUsize,
    observer: Arc<dyn Observer>,
}

/// States that are counted, the worst first.
const COUNTED: [BreakerState; 2] = [BreakerState::Open, BreakerState::HalfOpen];

impl BreakerGauge {
    pub(crate) fn new(observer: Arc<dyn Observer>) -> Self {
        let (evicting, not_persistent) = Default::default();
        Self { counts: Mutex::default(), evicting, not_persistent, observer }
    }

    /// Returns `true` if a server may evict keys.
    pub(crate) fn may_evict(&self) -> bool {
        self.evicting.load(Ordering::Relaxed) > 0
    }

    /// Returns `true` if the restart of a server loses everything.
    pub(crate) fn is_not_persistent(&self) -> bool {
        self.not_persistent.load(Ordering::Relaxed) > 0
    }

    /// Records the description of one server in place of the one before.
    pub(crate) fn record_info(&self, from: Option<&ServerInfo>, to: Option<&ServerInfo>) {
        let move_count = |count: &AtomicUsize, is_counted: fn(&ServerInfo) -> bool| {
            let (from, to) = (from.is_some_and(is_counted), to.is_some_and(is_counted));
            match (from, to) {
                (false, true) => _ = count.fetch_add(1, Ordering::Relaxed),
                (true, false) => _ = count.fetch_sub(1, Ordering::Relaxed),
                _ => {}
            }
            from != to
        };
        move_count(&self.not_persistent, |info| info.is_not_persistent);
        if move_count(&self.evicting, |info| info.eviction_policy.is_some()) {
            self.observer.store(StoreEvent::MayEvict(self.may_evict()));
        }
    }

    /// Records that one breaker has changed its state.
    pub(crate) fn record_change(&self, from: BreakerState, to: BreakerState) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut worst = BreakerState::Closed;
        for (state, count) in COUNTED.into_iter().zip(&mut *counts).rev() {
            *count = (*count + usize::from(state == to)).saturating_sub(usize::from(state == from));
            if *count > 0 {
                worst = state;
            }
        }
        self.observer.store(StoreEvent::Breakers(worst));
    }
}
