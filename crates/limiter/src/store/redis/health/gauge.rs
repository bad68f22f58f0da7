//! The worst state of all servers, for metrics: of their circuit breakers, and whether one may evict.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::observer::{BreakerState, Observer, StoreEvent};

/// Reports the worst state to an observer whenever a breaker has changed.
#[derive(Debug)]
pub(crate) struct BreakerGauge {
    /// Number of open and of half-open breakers.
    counts: Mutex<[usize; 2]>,
    /// Number of servers that may evict keys.
    evicting: AtomicUsize,
    observer: Arc<dyn Observer>,
}

/// States that are counted, the worst first.
const COUNTED: [BreakerState; 2] = [BreakerState::Open, BreakerState::HalfOpen];

impl BreakerGauge {
    pub(crate) fn new(observer: Arc<dyn Observer>) -> Self {
        Self { counts: Mutex::default(), evicting: AtomicUsize::new(0), observer }
    }

    /// Returns `true` if a server may evict keys.
    pub(crate) fn may_evict(&self) -> bool {
        self.evicting.load(Ordering::Relaxed) > 0
    }

    /// Records that one server now may evict keys, or may no longer.
    pub(crate) fn record_eviction(&self, from: bool, to: bool) {
        match (from, to) {
            (false, true) => _ = self.evicting.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = self.evicting.fetch_sub(1, Ordering::Relaxed),
            _ => return,
        }
        self.observer.store(StoreEvent::MayEvict(self.may_evict()));
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
