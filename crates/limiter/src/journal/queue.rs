//! The changes that wait for the writer.

use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::JournalError;

/// Maximum number of calls whose changes wait.
const MAX_WAITING: usize = 4_096;
/// Maximum length of the changes that wait, in bytes.
const MAX_WAITING_LEN: usize = 64 << 20;

/// Called once the changes are on disk, or with the reason why they are not.
pub(super) type Done = Box<dyn FnOnce(Result<(), JournalError>) + Send>;

/// Changes of one call.
pub(super) struct Pending {
    pub(super) payload: Vec<u8>,
    pub(super) done: Done,
}

/// A queue with one consumer.
#[derive(Debug, Default)]
pub(super) struct ChangeQueue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Vec<Pending>,
    waiting_len: usize,
    is_closed: bool,
    /// The consumer has ended.
    has_ended: bool,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}

impl ChangeQueue {
    /// Adds the changes of one call.
    pub(super) fn push(&self, pending: Pending) -> Result<(), JournalError> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(JournalError::Closed);
        }
        let waiting_len = state.waiting_len + pending.payload.len();
        if state.waiting.len() >= MAX_WAITING || waiting_len > MAX_WAITING_LEN {
            return Err(JournalError::Overloaded);
        }
        state.waiting_len = waiting_len;
        state.waiting.push(pending);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Waits for changes, and returns all that wait: none after the timeout. Returns `None` once
    /// the queue is closed and empty.
    pub(super) fn next(&self, timeout: Option<Duration>) -> Option<Vec<Pending>> {
        let is_idle = |state: &mut State| state.waiting.is_empty() && !state.is_closed;
        let state = self.lock();
        let mut state = match timeout {
            Some(timeout) => {
                let waited = self.changed.wait_timeout_while(state, timeout, is_idle);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => self.changed.wait_while(state, is_idle).unwrap_or_else(PoisonError::into_inner),
        };
        state.waiting_len = 0;
        let waiting = std::mem::take(&mut state.waiting);
        (!waiting.is_empty() || !state.is_closed).then_some(waiting)
    }

    /// Accepts no more changes. Those that wait are still written.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Waits until the consumer has ended.
    pub(super) fn wait_for_end(&self) {
        let ended = self.changed.wait_while(self.lock(), |state| !state.has_ended);
        drop(ended.unwrap_or_else(PoisonError::into_inner));
    }

    /// Called when the consumer ends, for whatever reason: nothing that waits is written.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.has_ended = true;
        let unwritten = std::mem::take(&mut state.waiting);
        drop(state);
        self.changed.notify_all();
        for pending in unwritten {
            (pending.done)(Err(JournalError::Closed));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
