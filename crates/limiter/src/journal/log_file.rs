//! A file that grows: frames are appended, and are on disk before the append returns.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::JournalError;
use super::folder::{self, FileName, Folder, Role, create_new, open_existing};
use super::frame::{FileKind, HEADER_LEN, Marker, header, push_frame};
use super::reader::Scan;

/// Bytes that are written, and cut off again, to see whether the disk has space.
const PROBE_LEN: usize = 64 << 10;

/// Length of frames that are kept in memory before they are written.
const MAX_BUFFER_LEN: usize = 1 << 20;

/// The file at the end of a log.
#[derive(Debug)]
pub(super) struct LogFile {
    number: u64,
    path: PathBuf,
    file: File,
    marker: Marker,
    /// Bytes that are on disk.
    len: u64,
    /// Bytes after them that are written and not synced.
    unsynced: u64,
    /// Frames that are not written yet.
    buffer: Vec<u8>,
}

impl LogFile {
    /// Creates a file with this number.
    pub(super) fn create(
        folder: &Folder,
        kind: FileKind,
        number: u64,
    ) -> Result<Self, JournalError> {
        let path = folder.file(kind, (number, Role::Log));
        let (file, marker) = (create_new(&path)?, Marker::random());
        let mut log = Self { number, path, file, marker, len: 0, unsynced: 0, buffer: Vec::new() };
        log.buffer.extend_from_slice(&header(kind, marker));
        if let Err(error) = log.flush().and_then(|()| folder.sync()) {
            // Its number is not used again. A file without a header is removed at the next start.
            let _is_torn = folder::remove(&log.path);
            return Err(error);
        }
        Ok(log)
    }

    /// As [`LogFile::create`], if the disk has space for more than the header.
    pub(super) fn create_with_space(
        folder: &Folder,
        kind: FileKind,
        number: u64,
    ) -> Result<Self, JournalError> {
        let log = Self::create(folder, kind, number)?;
        let probed = log.file.write_all_at(&vec![0; PROBE_LEN], log.len);
        let probed = probed.and_then(|()| log.file.sync_data());
        let cut = log.file.set_len(log.len);
        if let Err(error) = probed.and(cut) {
            let _is_torn = folder::remove(&log.path);
            return Err(JournalError::io("write", &log.path, error));
        }
        Ok(log)
    }

    /// Continues a file that was read, and cuts off what a crash left after its last frame.
    pub(super) fn reopen(path: &Path, number: u64, scan: Scan) -> Result<Self, JournalError> {
        let marker = scan.marker.expect("a file whose frames were read");
        let file = open_existing(path)?;
        let (len, path) = (scan.valid_len, path.to_owned());
        let log = Self { number, path, file, marker, len, unsynced: 0, buffer: Vec::new() };
        log.cut()?;
        Ok(log)
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn name(&self) -> FileName {
        (self.number, Role::Log)
    }

    /// Returns the bytes that are on disk.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Returns `true` if the file has no frame.
    pub(super) fn is_empty(&self) -> bool {
        self.len <= HEADER_LEN as u64
    }

    /// Adds a frame. [`LogFile::flush`] writes it.
    pub(super) fn push(&mut self, payload: &[u8]) {
        let offset = self.len + self.unsynced + self.buffer.len() as u64;
        push_frame(&mut self.buffer, self.marker, offset, payload);
    }

    /// Writes the frames, and waits until they are on disk. After an error none of them may be
    /// read: [`LogFile::cut`] must succeed before anything else is written to the journal.
    pub(super) fn flush(&mut self) -> Result<(), JournalError> {
        let written = self.write().and_then(|()| self.file.sync_data());
        let unsynced = std::mem::take(&mut self.unsynced);
        if written.is_ok() {
            self.len += unsynced;
        }
        written.map_err(|error| JournalError::io("write", &self.path, error))
    }

    /// Writes the frames without a sync if they are many, so that memory is bounded. After an error
    /// as [`LogFile::flush`].
    pub(super) fn write_if_long(&mut self) -> Result<(), JournalError> {
        if self.buffer.len() < MAX_BUFFER_LEN {
            return Ok(());
        }
        self.write().map_err(|error| JournalError::io("write", &self.path, error))
    }

    /// Returns `true` if something was added since the last flush.
    pub(super) fn is_changed(&self) -> bool {
        self.unsynced > 0 || !self.buffer.is_empty()
    }

    fn write(&mut self) -> io::Result<()> {
        let written = self.file.write_all_at(&self.buffer, self.len + self.unsynced);
        match written {
            Ok(()) => self.unsynced += self.buffer.len() as u64,
            Err(_) => self.unsynced = 0,
        }
        self.buffer.clear();
        self.buffer.shrink_to(MAX_BUFFER_LEN);
        written
    }

    /// Cuts off everything after the frames that are known to be on disk.
    pub(super) fn cut(&self) -> Result<(), JournalError> {
        let cut = self.file.set_len(self.len).and_then(|()| self.file.sync_all());
        cut.map_err(|error| JournalError::io("cut", &self.path, error))
    }
}
