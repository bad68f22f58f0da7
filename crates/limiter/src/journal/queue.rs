//! The changes that wait for the writer.

use std::iter;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{JournalError, lock};

/// Maximum number of calls whose changes wait.
const MAX_WAITING: usize = 4_096;
/// Maximum length of the changes that wait, in bytes.
const MAX_WAITING_LEN: usize = 64 << 20;

/// Called once the changes are on disk, or with the reason why they are not. Dropped if the writer
/// ends before.
pub(super) type Done = Box<dyn FnOnce(Result<(), JournalError>) + Send>;

/// Changes of one call.
pub(super) struct Pending {
    /// Of one frame each.
    pub(super) payloads: Vec<Vec<u8>>,
    pub(super) done: Done,
}

impl Pending {
    fn len(&self) -> usize {
        self.payloads.iter().map(Vec::len).sum()
    }
}

/// The end of the queue to which changes are added.
#[derive(Debug)]
pub(super) struct ChangeQueue {
    /// `None` after it was closed.
    sender: Mutex<Option<SyncSender<Pending>>>,
    waiting_len: Arc<AtomicUsize>,
}

/// The end of the queue at which they are written.
#[derive(Debug)]
pub(super) struct QueuedChanges {
    receiver: Receiver<Pending>,
    waiting_len: Arc<AtomicUsize>,
}

/// Creates a queue.
pub(super) fn channel() -> (ChangeQueue, QueuedChanges) {
    let (sender, receiver) = sync_channel(MAX_WAITING);
    let waiting_len = Arc::<AtomicUsize>::default();
    let queued = QueuedChanges { receiver, waiting_len: Arc::clone(&waiting_len) };
    (ChangeQueue { sender: Mutex::new(Some(sender)), waiting_len }, queued)
}

impl ChangeQueue {
    /// Adds the changes of one call.
    pub(super) fn push(&self, pending: Pending) -> Result<(), JournalError> {
        let len = pending.len();
        let sender = lock(&self.sender);
        let sender = sender.as_ref().ok_or(JournalError::Closed)?;
        let waiting = self.waiting_len.fetch_add(len, Ordering::SeqCst) + len;
        let result = if waiting > MAX_WAITING_LEN {
            Err(JournalError::Overloaded)
        } else {
            sender.try_send(pending).map_err(|error| match error {
                TrySendError::Full(_) => JournalError::Overloaded,
                TrySendError::Disconnected(_) => JournalError::Closed,
            })
        };
        if result.is_err() {
            self.waiting_len.fetch_sub(len, Ordering::SeqCst);
        }
        result
    }

    /// Accepts no more changes. Those that wait are still written.
    pub(super) fn close(&self) {
        lock(&self.sender).take();
    }
}

impl QueuedChanges {
    /// Waits for changes, and returns all that wait.
    ///
    /// # Errors
    ///
    /// After the timeout, or once the queue is closed and empty.
    pub(super) fn next(&self, timeout: Option<Duration>) -> Result<Vec<Pending>, RecvTimeoutError> {
        let first = match timeout {
            Some(timeout) => self.receiver.recv_timeout(timeout)?,
            None => self.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected)?,
        };
        let others = self.receiver.try_iter().take(MAX_WAITING);
        let all: Vec<_> = iter::once(first).chain(others).collect();
        let len = all.iter().map(Pending::len).sum();
        self.waiting_len.fetch_sub(len, Ordering::SeqCst);
        Ok(all)
    }
}
