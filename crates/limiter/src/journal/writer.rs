//! The thread that writes changes. Changes that wait together are written together, with one sync.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use tracing::{error, warn};

use super::JournalError;
use super::log_files::LogFiles;
use super::queue::{Pending, QueuedChanges};
use crate::clock::Clock;

/// Time between attempts to write after a failure, if nothing is waiting.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes that are not compacted, however little the base has.
const MIN_COMPACTED_LEN: u64 = 4 << 20;

/// The state of the thread.
pub(super) struct Writer {
    clock: Clock,
    queue: QueuedChanges,
    files: LogFiles,
    /// Length of the logs from which on they are compacted.
    compact_from: u64,
}

impl Writer {
    pub(super) fn new(clock: Clock, queue: QueuedChanges, files: LogFiles) -> Self {
        let (base_len, _) = files.len();
        let compact_from = if files.is_damaged { 0 } else { base_len.max(MIN_COMPACTED_LEN) };
        Self { clock, queue, files, compact_from }
    }

    /// Writes changes until the queue is closed and empty.
    pub(super) fn run(mut self) {
        loop {
            self.compact_if_due();
            let timeout = self.files.is_failing.then_some(RETRY_INTERVAL);
            match self.queue.next(timeout) {
                Ok(batch) => self.write(batch),
                Err(RecvTimeoutError::Timeout) => {
                    let repaired = self.files.repair();
                    self.files.report(&repaired);
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn write(&mut self, batch: Vec<Pending>) {
        let written = self.try_write(&batch);
        self.files.report(&written);
        for Pending { done, .. } in batch {
            let result = written.clone();
            // A change that panics must not end the journal.
            if catch_unwind(AssertUnwindSafe(|| done(result))).is_err() {
                error!("a change panicked after it was written to the journal");
            }
        }
        self.files.report_len();
    }

    fn try_write(&mut self, batch: &[Pending]) -> Result<(), JournalError> {
        if self.files.is_failing {
            self.files.repair()?;
        }
        for payload in batch.iter().flat_map(|Pending { payloads, .. }| payloads) {
            self.files.last.push(payload);
        }
        self.files.last.flush()
    }

    fn compact_if_due(&mut self) {
        let (_, log_len) = self.files.len();
        if log_len < self.compact_from || self.files.is_failing {
            return;
        }
        self.compact_from = match self.files.compact(self.clock.now()) {
            Ok(()) => self.files.len().0.max(MIN_COMPACTED_LEN),
            Err(error) => {
                warn!(%error, "journal could not be compacted; it grows until it can");
                log_len + MIN_COMPACTED_LEN
            }
        };
        self.files.report_len();
    }
}
