//! Compaction: writes the changes that still count into one file, and removes those before it.
//!
//! It reads files, not the memory of the program, so it depends on no part of it, and what is on
//! disk is never lost because memory does not have it yet.

use super::JournalError;
use super::change::{Change, Restored, decode, encode};
use super::folder::{self, FileName, Folder, Role};
use super::frame::FileKind;
use super::reader::scan_file;
use super::whole_file::WholeFile;
use crate::clock::Timestamp;

/// Writes a base with the changes of `files` that still count at `now`, and removes the files.
/// Returns the base and its length in bytes. Its number is that of the last file.
pub(super) fn compact(
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
