//! Writes counters to the journal: a thread that visits the slots that changed, each interval.
//!
//! A decision marks its slot, and does nothing else. The thread holds the lock of a stripe for at
//! most [`SLOTS_PER_LOCK`] changed slots.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tracing::error;

use super::{KeyLocation, MemorySettings, MemoryStore, PaddedStripe, lock};
use crate::clock::{Clock, HighWaterMarks, Micros, Timestamp};
use crate::journal::{
    CountersLog, Journal, JournalError, JournalSettings, Records, RestoredCounters, Space,
};
use crate::observer::Observer;

/// Changed slots that are read while a lock is held, for some microseconds.
const SLOTS_PER_LOCK: usize = 32;
/// Intervals over which a dump is spread.
const DUMP_INTERVALS: usize = 8;

impl MemoryStore {
    /// Creates a store with the state that a journal has, and writes changes to the journal.
    ///
    /// # Errors
    ///
    /// [`JournalError`] if the journal can't be opened.
    pub fn open(
        settings: MemorySettings,
        journal: &JournalSettings,
        clock: Clock,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, JournalError> {
        let journal = Journal::open(journal, clock.clone(), Arc::clone(&observer))?;
        let mut store = Self::new(settings, clock, observer);
        store.restore_overrides(&journal.take_restored(Space::CONTROL));
        let counters = journal.take_counters();
        let persistence = Persistence::new(journal);
        if let Some(counters) = counters {
            store.restore_counters(&counters.restored);
            let (stripes, clock) = (Arc::clone(&store.stripes), store.clock.clone());
            persistence.start(stripes, clock, counters.log, counters.interval)?;
        }
        store.persistence = Some(Arc::new(persistence));
        Ok(store)
    }

    fn restore_counters(&self, counters: &RestoredCounters) {
        for stripe in &*self.stripes {
            lock(stripe).keep_changes(counters.marks.clone());
        }
        let time = self.clock.now();
        let invalid = counters.states.values().filter(|state| !state.is_valid()).count();
        if invalid > 0 {
            error!(keys = invalid, "counters in the journal are not valid: they begin anew");
        }
        for (key, state) in counters.states.iter().filter(|(_, state)| state.is_valid()) {
            // A state of another algorithm or limit is what it would be without a restart.
            if time < state.expires_at() + Micros::from_millis(1) {
                let KeyLocation { hash, stripe } = self.location_of(key.as_bytes());
                lock(&self.stripes[stripe]).restore(hash, key, state.clone(), time);
            }
        }
        for (key, history) in counters.limits.iter().filter(|(_, history)| history.is_valid()) {
            let key = key.as_bytes();
            if history.is_alive(time) {
                let stripe = self.location_of(key).stripe;
                lock(&self.stripes[stripe]).set_limit_history(key, history.clone(), time);
            }
        }
    }

    /// Returns the journal, if there is one.
    pub fn journal(&self) -> Option<&Journal> {
        self.persistence.as_ref().map(|persistence| &persistence.journal)
    }

    /// Writes counters and changes to the journal for the last time, and unlocks its folder.
    /// Blocks the thread. Without a journal does nothing.
    pub fn close_journal(&self) {
        if let Some(persistence) = &self.persistence {
            persistence.close();
        }
    }
}

/// The journal of a store, and the thread that writes its counters. The thread ends when this is
/// dropped, after a last interval.
#[derive(Debug)]
pub(super) struct Persistence {
    pub(super) journal: Journal,
    signal: Arc<Signal>,
}

/// Tells the thread to end, and its end.
#[derive(Debug, Default)]
struct Signal {
    state: Mutex<SignalState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct SignalState {
    is_closing: bool,
    is_running: bool,
}

impl Persistence {
    /// A journal without counters.
    pub(super) fn new(journal: Journal) -> Self {
        Self { journal, signal: Arc::default() }
    }

    /// Starts to write counters each `interval`.
    pub(super) fn start(
        &self,
        stripes: Arc<[PaddedStripe]>,
        clock: Clock,
        log: CountersLog,
        interval: Duration,
    ) -> Result<(), JournalError> {
        let signal = Arc::clone(&self.signal);
        let passes =
            Passes { stripes, clock, log, next_to_dump: None, marks: HighWaterMarks::default() };
        self.signal.update(|state| state.is_running = true);
        let run = move || {
            let _ended = Ended(Arc::clone(&signal));
            // Dropped before the end is reported, since it holds the lock of the folder.
            let mut passes = passes;
            loop {
                let is_closing = signal.wait(interval);
                passes.run();
                if is_closing {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("journal-counters".to_owned()).spawn(run);
        if thread.is_err() {
            self.signal.update(|state| state.is_running = false);
        }
        thread.map(drop).map_err(|error| self.journal.start_error(error))
    }

    /// Writes the last interval and all changes that wait, and unlocks the folder.
    pub(super) fn close(&self) {
        self.signal.update(|state| state.is_closing = true);
        self.signal.wait_for_end();
        self.journal.close();
    }
}

impl Drop for Persistence {
    fn drop(&mut self) {
        self.signal.update(|state| state.is_closing = true);
    }
}

impl Signal {
    fn update(&self, change: impl FnOnce(&mut SignalState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// Waits for an interval. Returns `true` if the thread has to end.
    fn wait(&self, interval: Duration) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(state, interval, |state| !state.is_closing);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_closing
    }

    fn wait_for_end(&self) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = self.changed.wait_while(state, |state| state.is_running);
        drop(ended.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Reports the end of the thread, even by a panic.
struct Ended(Arc<Signal>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.update(|state| state.is_running = false);
    }
}

/// Passes over all stripes.
struct Passes {
    stripes: Arc<[PaddedStripe]>,
    clock: Clock,
    log: CountersLog,
    /// While a dump is made: the next stripe of which all slots are written.
    next_to_dump: Option<usize>,
    /// The times that were written last.
    marks: HighWaterMarks,
}

impl Passes {
    fn run(&mut self) {
        if self.next_to_dump.is_none() && self.log.needs_dump() {
            self.log.begin_dump();
            self.next_to_dump = Some(0);
            // A file must not depend on those before it.
            self.marks = HighWaterMarks::default();
        }
        let from = self.next_to_dump.unwrap_or(self.stripes.len());
        let to = from + self.stripes.len().div_ceil(DUMP_INTERVALS);
        let mut records = Records::default();
        let mut marks = HighWaterMarks::default();
        for (position, stripe) in self.stripes.iter().enumerate() {
            let is_dumped = (from..to).contains(&position);
            let mut below = None;
            loop {
                let mut stripe = lock(stripe);
                if below.is_none() {
                    raise(&mut marks, stripe.marks(), self.clock.now());
                    if !stripe.take_removed(&mut records) {
                        self.log.mark_incomplete();
                    }
                }
                let start = below.unwrap_or_else(|| stripe.len());
                let now = self.clock.now();
                below = stripe.take_changed(start, SLOTS_PER_LOCK, is_dumped, now, &mut records);
                drop(stripe);
                self.log.append(&mut records);
                if below.is_none() {
                    break;
                }
            }
        }
        if marks != self.marks {
            marks.iter().for_each(|(window, time)| records.push_mark(window, time));
            self.log.append(&mut records);
            self.marks = marks;
        }
        self.log.flush();
        if self.next_to_dump.is_some() {
            self.next_to_dump = (to < self.stripes.len()).then_some(to);
            if self.next_to_dump.is_none() {
                self.log.finish_dump();
            }
        }
        // Once for each interval: observers take it for its end.
        self.log.report_len();
    }
}

/// Raises each time to that of a stripe, if it is later there. A time more than a window ahead is
/// of before the clock was set back, and of no effect.
fn raise(marks: &mut HighWaterMarks, stripe: &HighWaterMarks, now: Timestamp) {
    for (window, time) in stripe.iter() {
        if time > marks.latest(window) && time.since(now) <= window {
            marks.set(window, time);
        }
    }
}
