//! The files of one kind: frames are appended to the last, those before it are sealed.

use std::sync::Arc;

use tracing::{error, info, warn};

use super::JournalError;
use super::folder::{self, FileName, Folder, Role};
use super::frame::FileKind;
use super::log_file::LogFile;
use super::status::Status;

/// A base if there is one, and the logs after it.
#[derive(Debug)]
pub(super) struct LogFiles {
    folder: Arc<Folder>,
    status: Arc<Status>,
    kind: FileKind,
    /// The file that grows. After a failed write [`LogFiles::repair`] must succeed before anything
    /// else is written.
    pub(super) last: LogFile,
    /// Number of the newest file, which may be one that could not be created.
    number: u64,
    /// Those before it, in the order in which they are read.
    pub(super) sealed: Vec<FileName>,
    /// Bytes of the sealed files: of the base, and of the logs.
    pub(super) base_len: u64,
    pub(super) sealed_len: u64,
    /// `true` after a failure, until [`LogFiles::report`] is told of a success.
    pub(super) is_failing: bool,
}

impl LogFiles {
    pub(super) fn new(
        folder: Arc<Folder>,
        status: Arc<Status>,
        kind: FileKind,
        last: LogFile,
    ) -> Self {
        let number = last.number();
        let (sealed, base_len, sealed_len, is_failing) = (Vec::new(), 0, 0, false);
        Self { folder, status, kind, last, number, sealed, base_len, sealed_len, is_failing }
    }

    /// Adds a file of this length that is before the last one, and after those added so far.
    pub(super) fn add_sealed(&mut self, name: FileName, len: u64) {
        match name.1 {
            Role::Base => self.base_len += len,
            Role::Log => self.sealed_len += len,
        }
        self.sealed.push(name);
    }

    /// Returns the bytes of all logs.
    pub(super) fn log_len(&self) -> u64 {
        self.sealed_len + self.last.len()
    }

    /// After a failure: cuts off what was not completely written, and goes on in a new file. The
    /// old one can't be trusted: the kernel may have dropped data that it failed to write.
    pub(super) fn repair(&mut self) -> Result<(), JournalError> {
        self.last.cut()?;
        self.number += 1;
        let next = LogFile::create_with_space(&self.folder, self.kind, self.number)?;
        self.seal_last(next);
        Ok(())
    }

    /// Seals the last file, and goes on in a new one.
    pub(super) fn begin_file(&mut self) -> Result<(), JournalError> {
        self.number += 1;
        let next = LogFile::create(&self.folder, self.kind, self.number)?;
        self.seal_last(next);
        Ok(())
    }

    fn seal_last(&mut self, next: LogFile) {
        let sealed = std::mem::replace(&mut self.last, next);
        self.add_sealed(sealed.name(), sealed.len());
    }

    /// Follows a compaction: a base of `base_len` bytes has replaced the files up to its number,
    /// whose logs had `replaced_len` bytes. Files that were sealed meanwhile stay.
    pub(super) fn replaced_by_base(&mut self, number: u64, base_len: u64, replaced_len: u64) {
        self.sealed.retain(|(other, _)| *other > number);
        self.sealed.insert(0, (number, Role::Base));
        self.sealed_len -= replaced_len;
        self.base_len = base_len;
    }

    /// Removes the sealed files, which are not needed any more.
    pub(super) fn remove_sealed(&mut self) {
        for name in self.sealed.drain(..) {
            if let Err(error) = folder::remove(&self.folder.file(self.kind, name)) {
                warn!(%error, "old journal file not removed");
            }
        }
        (self.base_len, self.sealed_len) = (0, 0);
    }

    /// Reports the outcome of a write if it is another than before.
    pub(super) fn report(&mut self, written: &Result<(), JournalError>) {
        let is_failing = written.is_err();
        if is_failing == self.is_failing {
            return;
        }
        self.is_failing = is_failing;
        self.status.set_failing(self.kind, is_failing);
        match (self.kind, written) {
            (FileKind::Changes, Ok(())) => info!("journal is written again: changes are accepted"),
            (FileKind::Changes, Err(error)) => {
                error!(%error, "journal write failed: changes are refused");
            }
            (FileKind::Counters, Ok(())) => info!("journal of counters is written again"),
            (FileKind::Counters, Err(error)) => {
                error!(%error, "journal write failed: a restart would lose counters");
            }
        }
    }

    /// Reports the bytes on disk.
    pub(super) fn report_len(&self) {
        self.status.set_len(self.kind, self.base_len + self.log_len());
    }
}
