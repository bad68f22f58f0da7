//! Says once that rules decide by policy, and once that they no longer do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tracing::{info, warn};

use crate::clock::{Micros, SystemClock, Timestamp};
use crate::store::StoreError;

/// Policies have had nothing to say for this long when it is over: of several servers one may be
/// away while others decide.
const CALM: Micros = Micros::from_secs(1);

/// Whether rules decide by policy because the store does not.
#[derive(Debug)]
pub(super) struct Degradation {
    is_on: AtomicBool,
    clock: SystemClock,
    spell: Mutex<Option<Spell>>,
}

#[derive(Clone, Copy, Debug)]
struct Spell {
    since: Timestamp,
    last: Timestamp,
    decisions: u64,
}

impl Degradation {
    pub(super) fn new() -> Self {
        Self { is_on: AtomicBool::new(false), clock: SystemClock::new(), spell: Mutex::default() }
    }

    /// The store has decided.
    pub(super) fn store_decides(&self) {
        if !self.is_on.load(Ordering::Relaxed) {
            return;
        }
        let now = self.clock.now();
        let mut spell = self.spell.lock().unwrap_or_else(PoisonError::into_inner);
        let over = spell.take_if(|spell| now.since(spell.last) >= CALM);
        if let Some(Spell { since, last, decisions }) = over {
            self.is_on.store(false, Ordering::Relaxed);
            let seconds = Duration::from(last.since(since)).as_secs_f64();
            info!(seconds, decisions, "the store decides again, no longer the rules' policies");
        }
    }

    /// Policies have decided instead.
    pub(super) fn policies_decide(&self, error: &StoreError) {
        let now = self.clock.now();
        let mut spell = self.spell.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(spell) = &mut *spell {
            spell.last = now;
            spell.decisions += 1;
            return;
        }
        *spell = Some(Spell { since: now, last: now, decisions: 1 });
        self.is_on.store(true, Ordering::Relaxed);
        warn!(%error, "the store does not decide: the rules' policies do");
    }
}
