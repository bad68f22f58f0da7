//! A file that grows: frames are appended, and are on disk before the append returns.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::JournalError;
use super::folder::{self, Folder, Role, create_new, open_existing};
use super::frame::{FileKind, Marker, header, push_frame};
use super::reader::Scan;

/// Bytes that are written, and cut off again, to see whether the disk has space.
const PROBE_LEN: usize = 64 << 10;

/// Memory that is kept for the frames of the next flush.
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
    /// Frames that are not written yet.
    buffer: Vec<u8>,
}

impl LogFile {
    /// Creates a file with this number.
    pub(super) fn create(folder: &Folder, number: u64) -> Result<Self, JournalError> {
        let path = folder.file((number, Role::Log));
        let (file, marker) = (create_new(&path)?, Marker::random());
        let buffer = header(FileKind::Changes, marker).to_vec();
        let mut log = Self { number, path, file, marker, len: 0, buffer };
        if let Err(error) = log.flush().and_then(|()| folder::sync(folder.path())) {
            // Its number is not used again. A file without a header is removed at the next start.
            let _is_torn = folder::remove(&log.path);
            return Err(error);
        }
        Ok(log)
    }

    /// As [`LogFile::create`], if the disk has space for more than the header.
    pub(super) fn create_with_space(folder: &Folder, number: u64) -> Result<Self, JournalError> {
        let log = Self::create(folder, number)?;
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
        let log = Self { number, path, file, marker, len, buffer: Vec::new() };
        log.cut()?;
        Ok(log)
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the bytes that are on disk.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Adds a frame. [`LogFile::flush`] writes it.
    pub(super) fn push(&mut self, payload: &[u8]) {
        let offset = self.len + self.buffer.len() as u64;
        push_frame(&mut self.buffer, self.marker, offset, payload);
    }

    /// Writes the frames, and waits until they are on disk. After an error none of them may be
    /// read: [`LogFile::cut`] must succeed before anything else is written to the journal.
    pub(super) fn flush(&mut self) -> Result<(), JournalError> {
        let written = self.file.write_all_at(&self.buffer, self.len);
        let written = written.and_then(|()| self.file.sync_data());
        if written.is_ok() {
            self.len += self.buffer.len() as u64;
        }
        self.buffer.clear();
        self.buffer.shrink_to(MAX_BUFFER_LEN);
        written.map_err(|error| JournalError::io("write", &self.path, error))
    }

    /// Cuts off everything after the frames that are known to be on disk.
    pub(super) fn cut(&self) -> Result<(), JournalError> {
        let cut = self.file.set_len(self.len).and_then(|()| self.file.sync_all());
        cut.map_err(|error| JournalError::io("cut", &self.path, error))
    }
}
