//! The files of changes: frames are appended to the last, those before it are sealed.
//!
//! Compaction writes the changes that still count into one file, and removes those before it. It reads files,
//! not the memory of the program, so it depends on no part of it, and what is on disk is never lost
//! because memory does not have it yet.

use std::sync::Arc;

use tracing::{error, info};

use super::JournalError;
use super::change::{Change, Restored, decode, encode};
use super::folder::{self, FileName, Folder, Role, WholeFile};
use super::frame::FileKind;
use super::log_file::LogFile;
use super::reader::scan_file;
use crate::clock::Timestamp;
use crate::observer::{Observer, StoreEvent};

/// A base if there is one, and the logs after it.
#[derive(Debug)]
pub(super) struct LogFiles {
    folder: Folder,
    observer: Arc<dyn Observer>,
    /// The file that grows. After a failed write [`LogFiles::repair`] must succeed before anything
    /// else is written.
    pub(super) last: LogFile,
    /// Number of the newest file, which may be one that could not be created.
    number: u64,
    /// Those before it, in the order in which they are read, with their lengths in bytes.
    sealed: Vec<(FileName, u64)>,
    /// `true` after a failure, until [`LogFiles::report`] is told of a success.
    pub(super) is_failing: bool,
    /// `true` if some records were damaged, so that the files should be replaced.
    pub(super) is_damaged: bool,
    reported_len: u64,
}

impl LogFiles {
    pub(super) fn new(
        folder: Folder,
        observer: Arc<dyn Observer>,
        sealed: Vec<(FileName, u64)>,
        last: LogFile,
    ) -> Self {
        let number = last.number();
        let (is_failing, is_damaged, reported_len) = (false, false, 0);
        Self { folder, observer, last, number, sealed, is_failing, is_damaged, reported_len }
    }

    /// Returns the bytes of the base and of all logs.
    pub(super) fn len(&self) -> (u64, u64) {
        let len = |role| {
            let of_role = self.sealed.iter().filter(|((_, own), _)| *own == role);
            of_role.map(|(_, len)| len).sum::<u64>()
        };
        (len(Role::Base), len(Role::Log) + self.last.len())
    }

    /// After a failure: cuts off what was not completely written, and goes on in a new file. The
    /// old one can't be trusted: the kernel may have dropped data that it failed to write.
    pub(super) fn repair(&mut self) -> Result<(), JournalError> {
        self.last.cut()?;
        self.number += 1;
        let next = LogFile::create_with_space(&self.folder, self.number)?;
        self.seal_last(next);
        Ok(())
    }

    /// Replaces all files by a base with the changes that still count, and a new log.
    pub(super) fn compact(&mut self, now: Timestamp) -> Result<(), JournalError> {
        self.number += 1;
        let next = LogFile::create(&self.folder, self.number)?;
        self.seal_last(next);
        self.sealed = vec![compact(&self.folder, &self.sealed, now)?];
        Ok(())
    }

    fn seal_last(&mut self, next: LogFile) {
        let sealed = std::mem::replace(&mut self.last, next);
        self.sealed.push(((sealed.number(), Role::Log), sealed.len()));
    }

    /// Reports the outcome of a write if it is another than before.
    pub(super) fn report(&mut self, written: &Result<(), JournalError>) {
        let is_failing = written.is_err();
        if is_failing == self.is_failing {
            return;
        }
        self.is_failing = is_failing;
        self.observer.store(StoreEvent::JournalFailing(is_failing));
        match written {
            Ok(()) => info!("journal is written again: changes are accepted"),
            Err(error) => error!(%error, "journal write failed: changes are refused"),
        }
    }

    /// Reports the bytes on disk if they changed.
    pub(super) fn report_len(&mut self) {
        let (base_len, log_len) = self.len();
        if self.reported_len != base_len + log_len {
            self.reported_len = base_len + log_len;
            self.observer.store(StoreEvent::JournalLen(self.reported_len));
        }
    }
}

/// Writes a base with the changes of `files` that still count at `now`, and removes the files.
/// Returns the base and its length in bytes. Its number is that of the last file.
fn compact(
    folder: &Folder,
    files: &[(FileName, u64)],
    now: Timestamp,
) -> Result<(FileName, u64), JournalError> {
    let number = files.last().map_or(0, |((number, _), _)| *number);
    let name = (number, Role::Base);
    let mut restored = Restored::default();
    for (file, _) in files {
        scan_file(&folder.file(*file), FileKind::Changes, |payload| {
            decode(payload).for_each(|change| restored.apply(&change));
        })?;
    }
    restored.remove_expired(now);
    let mut base = WholeFile::create(&folder.file(name), FileKind::Changes)?;
    for (space, value) in restored.into_ordered() {
        let (name, content, expires_at) = (&*value.name, &*value.value, value.expires_at);
        // Each in a frame of its own, so that damage loses no other one.
        base.push(&encode(&[Change::Put { space, name, value: content, expires_at }])?)?;
    }
    let len = base.finish(folder)?;
    for (file, _) in files.iter().filter(|(file, _)| *file != name) {
        // Those that stay are removed at the next start.
        let _removed = folder::remove(&folder.file(*file));
    }
    Ok((name, len))
}
