//! The worst state of all circuit breakers, for metrics.

use std::sync::{Arc, Mutex, PoisonError};

use crate::observer::{BreakerState, Observer, StoreEvent};

/// Reports the worst state to an observer whenever a breaker has changed.
#[derive(Debug)]
pub(crate) struct BreakerGauge {
    /// Number of open and of half-open breakers.
    counts: Mutex<[usize; 2]>,
    observer: Arc<dyn Observer>,
}

/// States that are counted, the worst first.
const COUNTED: [BreakerState; 2] = [BreakerState::Open, BreakerState::HalfOpen];

impl BreakerGauge {
    pub(crate) fn new(observer: Arc<dyn Observer>) -> Self {
        Self { counts: Mutex::default(), observer }
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
