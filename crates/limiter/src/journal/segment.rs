//! A file that grows: frames are appended, and are on disk before the append returns.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::JournalError;
use super::folder::{FileName, Folder, Role, create_new, open_existing};
use super::frame::{FileKind, HEADER_LEN, Marker, header, push_frame};
use super::reader::Scan;

/// Bytes that are written, and cut off again, to see whether the disk has space.
const PROBE_LEN: usize = 64 << 10;

/// The file at the end of a log.
#[derive(Debug)]
pub(super) struct Segment {
    number: u64,
    path: PathBuf,
    file: File,
    marker: Marker,
    /// Bytes that are on disk.
    len: u64,
    /// Frames that are not on disk yet.
    buffer: Vec<u8>,
}

impl Segment {
    /// Creates a file with this number.
    pub(super) fn create(
        folder: &Folder,
        kind: FileKind,
        number: u64,
    ) -> Result<Self, JournalError> {
        let path = folder.file(kind, (number, Role::Log));
        let (file, marker) = (create_new(&path)?, Marker::random());
        let mut segment = Self { number, path, file, marker, len: 0, buffer: Vec::new() };
        segment.buffer.extend_from_slice(&header(kind, marker));
        if let Err(error) = segment.flush().and_then(|()| folder.sync()) {
            // Its number is not used again. A file without a header is removed at the next start.
            let _is_torn = folder.remove(&segment.path);
            return Err(error);
        }
        Ok(segment)
    }

    /// As [`Segment::create`], if the disk has space for more than the header.
    pub(super) fn create_with_space(
        folder: &Folder,
        kind: FileKind,
        number: u64,
    ) -> Result<Self, JournalError> {
        let segment = Self::create(folder, kind, number)?;
        let probed = segment.file.write_all_at(&[0; PROBE_LEN], segment.len);
        let probed = probed.and_then(|()| segment.file.sync_data());
        let cut = segment.file.set_len(segment.len);
        if let Err(error) = probed.and(cut) {
            let _is_torn = folder.remove(&segment.path);
            return Err(JournalError::io("write", &segment.path, error));
        }
        Ok(segment)
    }

    /// Continues a file that was read, and cuts off what a crash left after its last frame.
    pub(super) fn reopen(path: &Path, number: u64, scan: Scan) -> Result<Self, JournalError> {
        let marker = scan.marker.expect("a file whose frames were read");
        let file = open_existing(path)?;
        let (len, path) = (scan.valid_len, path.to_owned());
        let segment = Self { number, path, file, marker, len, buffer: Vec::new() };
        segment.cut()?;
        Ok(segment)
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

    /// Adds a frame. [`Segment::flush`] writes it.
    pub(super) fn push(&mut self, payload: &[u8]) {
        let offset = self.len + self.buffer.len() as u64;
        push_frame(&mut self.buffer, self.marker, offset, payload);
    }

    /// Writes the frames, and waits until they are on disk. After an error none of them may be
    /// read: [`Segment::cut`] must succeed before anything else is written to the journal.
    pub(super) fn flush(&mut self) -> Result<(), JournalError> {
        let written = self.file.write_all_at(&self.buffer, self.len);
        let written = written.and_then(|()| self.file.sync_data());
        if written.is_ok() {
            self.len += self.buffer.len() as u64;
        }
        self.buffer.clear();
        self.buffer.shrink_to(1 << 20);
        written.map_err(|error| JournalError::io("write", &self.path, error))
    }

    /// Cuts off everything after the frames that are known to be on disk.
    pub(super) fn cut(&self) -> Result<(), JournalError> {
        let cut = self.file.set_len(self.len).and_then(|()| self.file.sync_all());
        cut.map_err(|error| JournalError::io("cut", &self.path, error))
    }
}
