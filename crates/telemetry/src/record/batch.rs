//! Requests on their way to the recorder: each thread collects its own, without a lock.
//!
//! A full batch goes to the recorder's queue, a batch of an idle thread when the thread calls
//! [`flush`], which workers do several times a second, or ends. If the queue is full, the batch is
//! dropped and its requests are counted.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Weak};

use prometheus_client::metrics::counter::Counter;
use rlaas_simulation::recording::RecordedLine;

/// Most requests of a batch.
const MAX_REQUESTS: usize = 1_024;
/// Bytes of requests after which a batch is full.
const FULL_BYTES: usize = 256 * 1024;
/// Longest request in bytes. A longer one is dropped.
const MAX_REQUEST: usize = 256 * 1024;

/// Requests of one thread.
pub(super) type RecordBatch = Vec<RecordedLine>;

/// Where batches go.
#[derive(Debug)]
pub(super) struct RecordQueue {
    pub(super) sender: SyncSender<RecordBatch>,
    /// Metric of requests that were not recorded.
    pub(super) dropped: Counter,
    /// Requests that were dropped, and that the recording does not say so yet.
    pub(super) lost: AtomicU64,
    /// Whether the recorder is to end when the queue is empty.
    pub(super) is_closing: AtomicBool,
}

/// The batch of a thread, and the queue that it is for.
#[derive(Default)]
struct ThreadBatch {
    owner: Weak<RecordQueue>,
    batch: RecordBatch,
    /// Bytes of the requests.
    bytes: usize,
}

thread_local! {
    static BATCH: RefCell<ThreadBatch> = RefCell::default();
}

/// Adds a request to the batch of this thread.
pub(super) fn push(queue: &Arc<RecordQueue>, line: RecordedLine) {
    let bytes = line.bytes();
    if bytes > MAX_REQUEST {
        queue.count_lost(1);
        return;
    }
    BATCH.with_borrow_mut(|thread| {
        if !std::ptr::eq(thread.owner.as_ptr(), Arc::as_ptr(queue)) {
            thread.send();
            thread.owner = Arc::downgrade(queue);
        }
        thread.batch.push(line);
        thread.bytes += bytes;
        if thread.batch.len() >= MAX_REQUESTS || thread.bytes >= FULL_BYTES {
            thread.send();
        }
    });
}

/// Sends the requests of this thread to the recorder.
pub(super) fn flush() {
    BATCH.with_borrow_mut(ThreadBatch::send);
}

impl ThreadBatch {
    #[cold]
    fn send(&mut self) {
        self.bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        let Some(queue) = self.owner.upgrade().filter(|_| !batch.is_empty()) else { return };
        if let Err(TrySendError::Full(batch) | TrySendError::Disconnected(batch)) =
            queue.sender.try_send(batch)
        {
            queue.count_lost(batch.len() as u64);
        }
    }
}

impl Drop for ThreadBatch {
    /// Sends what a thread has when it ends.
    fn drop(&mut self) {
        self.send();
    }
}

impl RecordQueue {
    pub(super) fn count_lost(&self, requests: u64) {
        self.dropped.inc_by(requests);
        self.lost.fetch_add(requests, Ordering::Relaxed);
    }
}
