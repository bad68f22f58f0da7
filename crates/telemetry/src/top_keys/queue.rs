//! The way of decisions to the sketches: each thread collects its own, without a lock.
//!
//! A decision appends its key to the batch of its thread. A full batch goes to the recorder's
//! queue, a batch of an idle thread when the thread calls [`flush`], which workers do several times
//! a second. If the queue is full, the thread records its batch itself, so that no decision is left
//! out.

use std::cell::RefCell;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::batch::{Batch, Usage};
use super::recorder::Recorder;

/// Where batches go.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) sender: SyncSender<Batch>,
    pub(super) recorder: Arc<Mutex<Recorder>>,
}

thread_local! {
    /// The batch of this thread, and the queue that it is for.
    static BATCH: RefCell<(Weak<Queue>, Batch)> = RefCell::default();
}

/// Adds a decision to the batch of this thread.
#[inline]
pub(super) fn push(queue: &Arc<Queue>, rule: u32, key: &[u8], usage: Usage) {
    BATCH.with_borrow_mut(|(owner, batch)| {
        if !std::ptr::eq(owner.as_ptr(), Arc::as_ptr(queue)) {
            send(owner, batch);
            *owner = Arc::downgrade(queue);
        }
        batch.push(rule, key, usage);
        if batch.is_full() {
            send(owner, batch);
        }
    });
}

/// Sends the decisions of this thread to the recorder.
pub(super) fn flush() {
    BATCH.with_borrow_mut(|(owner, batch)| {
        if !batch.is_empty() {
            send(owner, batch);
        }
    });
}

#[cold]
fn send(owner: &Weak<Queue>, batch: &mut Batch) {
    let full = std::mem::take(batch);
    // Without the queue its counts are not shown any more.
    let Some(queue) = owner.upgrade() else { return };
    if let Err(TrySendError::Full(batch) | TrySendError::Disconnected(batch)) =
        queue.sender.try_send(full)
    {
        queue.recorder.lock().unwrap_or_else(PoisonError::into_inner).record(&batch);
    }
    *batch = Batch::with_capacity();
}
