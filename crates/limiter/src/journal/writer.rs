//! The thread that writes changes. Changes that wait together are written together, with one sync.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tracing::{error, warn};

use super::JournalError;
use super::compaction::compact;
use super::folder::{Folder, Role};
use super::log_files::LogFiles;
use super::queue::{ChangeQueue, Pending};
use super::recovery::Recovered;
use crate::clock::Clock;

/// Time between attempts to write after a failure, if nothing is waiting.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes that are not compacted, however little the base has.
const MIN_COMPACTED_LEN: u64 = 4 << 20;

/// The state of the thread.
pub(super) struct Writer {
    folder: Arc<Folder>,
    clock: Clock,
    queue: Arc<ChangeQueue>,
    files: LogFiles,
    /// Length of the logs from which on they are compacted.
    compact_from: u64,
    compaction: Option<Compaction>,
}

/// A compaction that runs.
struct Compaction {
    thread: JoinHandle<Result<u64, JournalError>>,
    /// Number of the last file that it replaces.
    number: u64,
    /// Length of the logs that it replaces.
    len: u64,
}

impl Writer {
    pub(super) fn new(
        folder: Arc<Folder>,
        clock: Clock,
        queue: Arc<ChangeQueue>,
        recovered: Recovered,
    ) -> Self {
        let Recovered { files, is_damaged } = recovered;
        let compact_from = if is_damaged { 0 } else { files.base_len.max(MIN_COMPACTED_LEN) };
        Self { folder, clock, queue, files, compact_from, compaction: None }
    }

    /// Writes changes until the queue is closed and empty.
    pub(super) fn run(mut self) {
        loop {
            self.finish_compaction(false);
            self.start_compaction();
            let has_work = self.files.is_failing || self.compaction.is_some();
            let Some(batch) = self.queue.next(has_work.then_some(RETRY_INTERVAL)) else { break };
            if batch.is_empty() {
                if self.files.is_failing {
                    let repaired = self.files.repair();
                    self.files.report(&repaired);
                }
                continue;
            }
            let written = self.write(&batch);
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
        self.finish_compaction(true);
    }

    fn write(&mut self, batch: &[Pending]) -> Result<(), JournalError> {
        if self.files.is_failing {
            self.files.repair()?;
        }
        for Pending { payload, .. } in batch {
            self.files.last.push(payload);
        }
        self.files.last.flush()
    }

    fn start_compaction(&mut self) {
        let last = &self.files.last;
        let has_logs = self.files.sealed.iter().any(|(_, role)| *role == Role::Log);
        let is_due = self.files.log_len() >= self.compact_from && (has_logs || !last.is_empty());
        if !is_due || self.files.is_failing || self.compaction.is_some() {
            return;
        }
        let number = last.number();
        if let Err(error) = self.files.begin_file() {
            return self.postpone_compaction(&error);
        }
        let (folder, files) = (Arc::clone(&self.folder), self.files.sealed.clone());
        let (now, len) = (self.clock.now(), self.files.sealed_len);
        let thread = thread::Builder::new().name("journal-compact".to_owned());
        match thread.spawn(move || compact(&folder, &files, now)) {
            Ok(thread) => self.compaction = Some(Compaction { thread, number, len }),
            Err(error) => {
                let error = JournalError::io("compact", self.folder.path(), error);
                self.postpone_compaction(&error);
            }
        }
    }

    fn finish_compaction(&mut self, wait: bool) {
        let Some(Compaction { thread, number, len: replaced }) =
            self.compaction.take_if(|one| wait || one.thread.is_finished())
        else {
            return;
        };
        match thread.join() {
            Ok(Ok(len)) => {
                self.files.replaced_by_base(number, len, replaced);
                self.compact_from = len.max(MIN_COMPACTED_LEN);
                self.files.report_len();
            }
            Ok(Err(error)) => self.postpone_compaction(&error),
            Err(_panic) => error!("the compaction of the journal panicked"),
        }
    }

    fn postpone_compaction(&mut self, error: &JournalError) {
        warn!(%error, "journal could not be compacted; it grows until it can");
        self.compact_from = self.files.log_len() + MIN_COMPACTED_LEN;
    }
}
