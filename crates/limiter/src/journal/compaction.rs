//! Compaction: writes the changes that still count into one file, and removes those before it.
//!
//! It reads files, not memory, so it depends on no part of the program, and what is on disk is
//! never lost because memory does not have it yet. Memory is used for the names alone.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use tracing::error;

use super::JournalError;
use super::change::{Change, Space, decode};
use super::folder::{self, FileName, Folder, Role};
use super::frame::{FileKind, MAX_PAYLOAD_LEN, Marker, header, push_frame};
use super::reader::scan_file;
use crate::clock::Timestamp;

/// Length of changes from which on they are written as one frame.
const FRAME_LEN: usize = 64 << 10;

/// Writes a base with the changes of `files` that still count at `now`, and removes the files.
/// Returns the length of the base in bytes. The number of the base is that of the last file.
pub(super) fn compact(
    folder: &Folder,
    files: &[FileName],
    now: Timestamp,
) -> Result<u64, JournalError> {
    let Some(&(number, _)) = files.last() else { return Ok(0) };
    let path = folder.file(FileKind::Changes, (number, Role::Base));
    let (file, temporary) = folder::create_temporary(&path)?;
    let written = write_base(folder, files, now, file, &temporary);
    let renamed = written.and_then(|len| folder.replace(&temporary, &path).map(|()| len));
    let len = match renamed {
        Ok(len) => len,
        Err(error) => {
            // Removed at the next start otherwise.
            let _remains = folder::remove(&temporary);
            return Err(error);
        }
    };
    for name in files {
        let replaced = folder.file(FileKind::Changes, *name);
        if replaced != path {
            folder::remove(&replaced)?;
        }
    }
    folder.sync()?;
    Ok(len)
}

fn write_base(
    folder: &Folder,
    files: &[FileName],
    now: Timestamp,
    file: File,
    path: &Path,
) -> Result<u64, JournalError> {
    let last = last_puts(folder, files)?;
    let marker = Marker::random();
    let mut base = Base { output: BufWriter::new(file), marker, len: 0, pending: Vec::new() };
    let mut outcome = base.write(&header(FileKind::Changes, marker));
    let mut position = 0;
    for_each_change(folder, files, |change| {
        position += 1;
        let (space, name) = change.spaced_name();
        let is_last = last.get(&space).and_then(|names| names.get(name)) == Some(&position);
        if is_last && !change.is_expired(now) && outcome.is_ok() {
            outcome = base.push(change);
        }
    })?;
    let finished = outcome.and_then(|()| base.finish());
    finished.map_err(|error| JournalError::io("write", path, error))
}

/// For each name with a value, the position of the put among all changes.
type LastPuts = HashMap<Space, HashMap<Box<[u8]>, u64>>;

fn last_puts(folder: &Folder, files: &[FileName]) -> Result<LastPuts, JournalError> {
    let mut last = LastPuts::new();
    let mut position = 0;
    for_each_change(folder, files, |change| {
        position += 1;
        let (space, name) = change.spaced_name();
        let names = last.entry(space).or_default();
        match change {
            Change::Put { .. } => _ = names.insert(name.into(), position),
            Change::Delete { .. } => _ = names.remove(name),
        }
    })?;
    Ok(last)
}

fn for_each_change(
    folder: &Folder,
    files: &[FileName],
    mut visit: impl FnMut(&Change<'_>),
) -> Result<(), JournalError> {
    for name in files {
        let path = folder.file(FileKind::Changes, *name);
        let scan = scan_file(&path, FileKind::Changes, |payload| {
            decode(payload).for_each(|change| visit(&change));
        })?;
        if scan.damaged > 0 {
            error!(file = %path.display(), bytes = scan.damaged, "journal damaged: records lost");
        }
    }
    Ok(())
}

/// A base that is being written.
struct Base {
    output: BufWriter<File>,
    marker: Marker,
    len: u64,
    /// Changes of the next frame.
    pending: Vec<u8>,
}

impl Base {
    fn push(&mut self, change: &Change<'_>) -> std::io::Result<()> {
        let start = self.pending.len();
        change.encode(&mut self.pending);
        if self.pending.len() > MAX_PAYLOAD_LEN {
            let change = self.pending.split_off(start);
            self.flush()?;
            self.pending = change;
        }
        if self.pending.len() >= FRAME_LEN { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut frame = Vec::with_capacity(self.pending.len() + 16);
        push_frame(&mut frame, self.marker, self.len, &self.pending);
        self.pending.clear();
        self.write(&frame)
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.output.write_all(bytes)?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn finish(mut self) -> std::io::Result<u64> {
        self.flush()?;
        self.output.flush()?;
        self.output.get_ref().sync_all()?;
        Ok(self.len)
    }
}
