//! Requests on their way to the recorder: each thread collects its own, without a lock.
//!
//! A full batch goes to the recorder's queue, a batch of an idle thread when the thread calls
//! [`flush`], which workers do several times a second, or ends. If the queue is full, the batch is
//! dropped and its requests are counted.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use prometheus_client::metrics::counter::Counter;
use rlaas_simulation::recording::EncodedRequest;

use crate::clock::Timestamp;

/// Most requests of a batch.
const MAX_ENTRIES: usize = 1_024;
/// Bytes of requests after which a batch is full.
const FULL_BYTES: usize = 64 * 1024;
/// Longest request in bytes. A longer one is dropped.
const MAX_REQUEST: usize = 256 * 1024;
/// Most empty batches that are kept to be filled again.
const MAX_EMPTY: usize = 8;

/// When a request was decided, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordedAt {
    pub(super) at: Timestamp,
    pub(super) was_refused: bool,
}

/// Requests of one thread.
#[derive(Debug, Default)]
pub(super) struct RecordBatch {
    entries: Vec<RecordEntry>,
    /// The bytes of the requests, one after the other.
    bytes: Vec<u8>,
    /// Requests that were too long.
    too_long: u64,
}

/// A request of a batch.
#[derive(Clone, Copy, Debug)]
struct RecordEntry {
    recorded: RecordedAt,
    len: u32,
}

/// Where batches go.
#[derive(Debug)]
pub(super) struct RecordQueue {
    pub(super) sender: SyncSender<RecordBatch>,
    pub(super) empty: EmptyRecordBatches,
    /// Metric of requests that were not recorded.
    pub(super) dropped: Counter,
    /// Requests that were dropped, and that the recording does not say so yet.
    pub(super) lost: AtomicU64,
    /// Whether the recorder is to end when the queue is empty.
    pub(super) is_closing: AtomicBool,
}

/// Batches to be filled again: without them each would be allocated on one thread and freed on
/// another one.
#[derive(Debug, Default)]
pub(super) struct EmptyRecordBatches(Mutex<Vec<RecordBatch>>);

/// The batch of a thread, and the queue that it is for.
#[derive(Default)]
struct ThreadBatch {
    owner: Weak<RecordQueue>,
    batch: RecordBatch,
}

thread_local! {
    static BATCH: RefCell<ThreadBatch> = RefCell::default();
}

/// Adds a request to the batch of this thread. `append` appends its bytes; without any it is not
/// recorded.
#[inline]
pub(super) fn push(
    queue: &Arc<RecordQueue>,
    recorded: RecordedAt,
    append: impl FnOnce(&mut Vec<u8>),
) {
    BATCH.with_borrow_mut(|thread| {
        if !std::ptr::eq(thread.owner.as_ptr(), Arc::as_ptr(queue)) {
            thread.send();
            thread.owner = Arc::downgrade(queue);
        }
        thread.batch.push(recorded, append);
        if thread.batch.is_full() {
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
        if self.batch.requests() == 0 {
            return;
        }
        let full = std::mem::take(&mut self.batch);
        let Some(queue) = self.owner.upgrade() else { return };
        if let Err(TrySendError::Full(batch) | TrySendError::Disconnected(batch)) =
            queue.sender.try_send(full)
        {
            queue.count_lost(batch.requests());
            queue.empty.put(batch);
        }
        self.batch = queue.empty.take();
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

impl EmptyRecordBatches {
    fn take(&self) -> RecordBatch {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.unwrap_or_else(|| RecordBatch {
            entries: Vec::with_capacity(MAX_ENTRIES),
            bytes: Vec::with_capacity(FULL_BYTES + 1024),
            too_long: 0,
        })
    }

    /// Keeps a batch that was written.
    pub(super) fn put(&self, mut batch: RecordBatch) {
        batch.entries.clear();
        batch.bytes.clear();
        batch.bytes.shrink_to(2 * FULL_BYTES);
        batch.too_long = 0;
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < MAX_EMPTY {
            kept.push(batch);
        }
    }
}

impl RecordBatch {
    #[inline]
    fn push(&mut self, recorded: RecordedAt, append: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        append(&mut self.bytes);
        let len = self.bytes.len() - start;
        if len > MAX_REQUEST {
            self.bytes.truncate(start);
            self.too_long += 1;
        } else if len > 0 {
            let len = u32::try_from(len).expect("at most MAX_REQUEST");
            self.entries.push(RecordEntry { recorded, len });
        }
    }

    fn is_full(&self) -> bool {
        self.entries.len() >= MAX_ENTRIES || self.bytes.len() >= FULL_BYTES
    }

    fn requests(&self) -> u64 {
        self.entries.len() as u64 + self.too_long
    }

    /// Returns how many requests were too long to be recorded.
    pub(super) fn too_long(&self) -> u64 {
        self.too_long
    }

    /// Returns the requests.
    pub(super) fn encoded(&self) -> Vec<EncodedRequest<'_>> {
        let mut rest = self.bytes.as_slice();
        let requests = self.entries.iter().map(|entry| {
            let (request, after) = rest.split_at(entry.len as usize);
            rest = after;
            let RecordedAt { at, was_refused } = entry.recorded;
            EncodedRequest { at, request, was_refused }
        });
        requests.collect()
    }
}
