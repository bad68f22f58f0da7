//! The state of all breakers as one: the worst is reported.

use std::sync::{Arc, Mutex, PoisonError};

use crate::observer::{BreakerState, Observer, StoreEvent};

/// Reports to an observer whenever the breaker of a server has changed its state.
#[derive(Debug)]
pub(crate) struct BreakerGauge {
    counts: Mutex<Counts>,
    observer: Arc<dyn Observer>,
}

/// Breakers that are not closed.
#[derive(Debug, Default)]
struct Counts {
    half_open: usize,
    open: usize,
}

impl BreakerGauge {
    pub(crate) fn new(observer: Arc<dyn Observer>) -> Self {
        Self { counts: Mutex::default(), observer }
    }

    /// Notes that one breaker has changed its state.
    pub(crate) fn changed(&self, from: BreakerState, to: BreakerState) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.count_mut(from) {
            *count = count.saturating_sub(1);
        }
        if let Some(count) = counts.count_mut(to) {
            *count += 1;
        }
        self.observer.store(StoreEvent::Breakers(match *counts {
            Counts { open: 1.., .. } => BreakerState::Open,
            Counts { half_open: 1.., .. } => BreakerState::HalfOpen,
            Counts { .. } => BreakerState::Closed,
        }));
    }
}

impl Counts {
    fn count_mut(&mut self, state: BreakerState) -> Option<&mut usize> {
        match state {
            BreakerState::Closed => None,
            BreakerState::HalfOpen => Some(&mut self.half_open),
            BreakerState::Open => Some(&mut self.open),
        }
    }
}
