//! A file that is written whole: its content is on disk under a temporary name before it replaces
//! an earlier file.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::JournalError;
use super::folder::{Folder, create_temporary};
use super::frame::{FRAME_HEAD_LEN, FileKind, Marker, header, push_frame};

/// A new file of frames. Without [`WholeFile::finish`] it is removed.
#[derive(Debug)]
pub(super) struct WholeFile {
    output: BufWriter<File>,
    temporary: PathBuf,
    path: PathBuf,
    marker: Marker,
    len: u64,
}

impl WholeFile {
    /// Begins a file that will replace the one at `path`.
    pub(super) fn create(path: &Path, kind: FileKind) -> Result<Self, JournalError> {
        let (file, temporary) = create_temporary(path)?;
        let (output, path, marker) = (BufWriter::new(file), path.to_owned(), Marker::random());
        let mut created = Self { output, temporary, path, marker, len: 0 };
        created.write(&header(kind, marker))?;
        Ok(created)
    }

    /// Returns the bytes so far.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Adds a frame, unless the payload is empty.
    pub(super) fn push(&mut self, payload: &[u8]) -> Result<(), JournalError> {
        if payload.is_empty() {
            return Ok(());
        }
        let mut frame = Vec::with_capacity(FRAME_HEAD_LEN + payload.len());
        push_frame(&mut frame, self.marker, self.len, payload);
        self.write(&frame)
    }

    /// Makes the content durable, and gives the file its name in the folder. Returns its length.
    pub(super) fn finish(mut self, folder: &Folder) -> Result<u64, JournalError> {
        let synced = self.output.flush().and_then(|()| self.output.get_ref().sync_all());
        synced.map_err(|error| self.error(error))?;
        folder.rename(&self.temporary, &self.path)?;
        Ok(self.len)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), JournalError> {
        self.output.write_all(bytes).map_err(|error| self.error(error))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn error(&self, error: io::Error) -> JournalError {
        JournalError::io("write", &self.temporary, error)
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        // It has its final name, or is removed at the next start otherwise.
        let _is_renamed = fs::remove_file(&self.temporary);
    }
}
