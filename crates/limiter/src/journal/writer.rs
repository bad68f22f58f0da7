//! The thread that writes changes. Changes that wait together are written together, with one sync.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tracing::{error, info, warn};

use super::JournalError;
use super::compaction::compact;
use super::folder::{FileName, Folder, Role};
use super::frame::FileKind;
use super::log_file::LogFile;
use super::queue::{ChangeQueue, Pending};
use super::recovery::Recovered;
use super::status::Status;
use crate::clock::Clock;

/// Time between attempts to write after a failure, if nothing is waiting.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes that are not compacted, however little the base has.
const MIN_COMPACTED_LEN: u64 = 4 << 20;

/// The state of the thread.
pub(super) struct Writer {
    pub(super) folder: Arc<Folder>,
    pub(super) clock: Clock,
    pub(super) queue: Arc<ChangeQueue>,
    pub(super) status: Arc<Status>,
    file: LogFile,
    /// Number of the newest file, which may be one that could not be created.
    number: u64,
    sealed: Vec<FileName>,
    base_len: u64,
    sealed_len: u64,
    /// Length of the logs from which on they are compacted.
    compact_from: u64,
    compaction: Option<Compaction>,
    is_failing: bool,
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
        status: Arc<Status>,
        recovered: Recovered,
    ) -> Self {
        let Recovered { file, sealed, base_len, sealed_len, is_damaged } = recovered;
        let (number, _) = file.name();
        let compact_from = if is_damaged { 0 } else { base_len.max(MIN_COMPACTED_LEN) };
        Self {
            folder,
            clock,
            queue,
            status,
            file,
            number,
            sealed,
            base_len,
            sealed_len,
            compact_from,
            compaction: None,
            is_failing: false,
        }
    }

    /// Writes changes until the queue is closed and empty.
    pub(super) fn run(mut self) {
        self.report_len();
        loop {
            self.finish_compaction(false);
            self.start_compaction();
            let has_work = self.is_failing || self.compaction.is_some();
            let Some(batch) = self.queue.next(has_work.then_some(RETRY_INTERVAL)) else { break };
            if batch.is_empty() {
                if self.is_failing {
                    let repaired = self.repair();
                    self.report(&repaired);
                }
                continue;
            }
            let written = self.write(&batch);
            self.report(&written);
            for Pending { done, .. } in batch {
                let result = written.clone();
                // A change that panics must not end the journal.
                if catch_unwind(AssertUnwindSafe(|| done(result))).is_err() {
                    error!("a change panicked after it was written to the journal");
                }
            }
            self.report_len();
        }
        self.finish_compaction(true);
    }

    fn write(&mut self, batch: &[Pending]) -> Result<(), JournalError> {
        if self.is_failing {
            self.repair()?;
        }
        for Pending { payload, .. } in batch {
            self.file.push(payload);
        }
        self.file.flush()
    }

    /// After a failure: cuts off what was not completely written, and goes on in a new file. The
    /// old one can't be trusted: the kernel may have dropped data that it failed to write.
    fn repair(&mut self) -> Result<(), JournalError> {
        self.file.cut()?;
        self.number += 1;
        let next = LogFile::create_with_space(&self.folder, FileKind::Changes, self.number)?;
        self.seal(next);
        Ok(())
    }

    /// Continues with `next`.
    fn seal(&mut self, next: LogFile) {
        let sealed = std::mem::replace(&mut self.file, next);
        self.sealed_len += sealed.len();
        self.sealed.push(sealed.name());
    }

    /// Reports a change of state.
    fn report(&mut self, written: &Result<(), JournalError>) {
        let is_failing = written.is_err();
        if is_failing == self.is_failing {
            return;
        }
        self.is_failing = is_failing;
        self.status.set_failing(FileKind::Changes, is_failing);
        match written {
            Ok(()) => info!("journal is written again: changes are accepted"),
            Err(error) => error!(%error, "journal write failed: changes are refused"),
        }
    }

    fn log_len(&self) -> u64 {
        self.sealed_len + self.file.len()
    }

    fn report_len(&self) {
        self.status.set_len(FileKind::Changes, self.base_len + self.log_len());
    }

    fn start_compaction(&mut self) {
        let has_logs = self.sealed.iter().any(|(_, role)| *role == Role::Log);
        let is_due = self.log_len() >= self.compact_from && (has_logs || !self.file.is_empty());
        if !is_due || self.is_failing || self.compaction.is_some() {
            return;
        }
        let (number, _) = self.file.name();
        self.number += 1;
        match LogFile::create(&self.folder, FileKind::Changes, self.number) {
            Ok(next) => self.seal(next),
            Err(error) => return self.postpone_compaction(&error),
        }
        let (folder, files) = (Arc::clone(&self.folder), self.sealed.clone());
        let (now, len) = (self.clock.now(), self.sealed_len);
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
                // Files that were sealed meanwhile, after failures, stay.
                self.sealed.retain(|(other, _)| *other > number);
                self.sealed.insert(0, (number, Role::Base));
                self.sealed_len -= replaced;
                self.base_len = len;
                self.compact_from = len.max(MIN_COMPACTED_LEN);
                self.report_len();
            }
            Ok(Err(error)) => self.postpone_compaction(&error),
            Err(_panic) => error!("the compaction of the journal panicked"),
        }
    }

    fn postpone_compaction(&mut self, error: &JournalError) {
        warn!(%error, "journal could not be compacted; it grows until it can");
        self.compact_from = self.log_len() + MIN_COMPACTED_LEN;
    }
}
