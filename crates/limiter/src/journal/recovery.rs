//! Reads the files of a journal when it is opened: reports damage, cuts torn ends, and finds the
//! file to continue.

use std::sync::Arc;

use tracing::{error, warn};

use super::JournalError;
use super::folder::{self, Folder, Role};
use super::frame::{FileKind, HEADER_LEN};
use super::log_file::LogFile;
use super::log_files::LogFiles;
use super::reader::{Scan, read_marker, scan_file};
use crate::observer::Observer;

/// Reads all files, and passes the payload of each valid frame to `receive`, in order.
///
/// Damage in the midst of a file loses the records that it touches, and is logged as an error.
/// Those after it are restored: each is a whole value, so none depends on another. To refuse to
/// start instead would turn one bad sector into an outage of every limit.
pub(super) fn recover(
    folder: Folder,
    observer: Arc<dyn Observer>,
    mut receive: impl FnMut(&[u8]),
) -> Result<LogFiles, JournalError> {
    let mut files = folder.files()?;
    // Before anything is removed.
    for name in &files {
        read_marker(&folder.file(*name), FileKind::Changes)?;
    }
    // A crash may leave files that the last base replaces.
    if let Some(base) = files.iter().rposition(|(_, role)| *role == Role::Base) {
        for name in files.drain(..base) {
            folder::remove(&folder.file(name))?;
        }
        let (number, _) = files[0];
        while files.get(1).is_some_and(|(other, _)| *other <= number) {
            folder::remove(&folder.file(files.remove(1)))?;
        }
    }
    let newest = files.last().copied();
    let (mut sealed, mut last_log, mut is_damaged) = (Vec::new(), None, false);
    for name in files {
        let path = folder.file(name);
        let scan = scan_file(&path, FileKind::Changes, &mut receive)?;
        let is_newest = Some(name) == newest;
        if scan.marker.is_none() && scan.len <= HEADER_LEN as u64 {
            // The process ended while it created the file.
            folder::remove(&path)?;
            continue;
        }
        let lost = lost(&scan, is_newest && name.1 == Role::Log);
        if lost > 0 {
            is_damaged = true;
            error!(
                file = %path.display(), bytes = lost,
                "journal damaged: records lost, the others are restored"
            );
            match folder::keep_damaged(&path) {
                Ok(kept) => warn!(kept = %kept.display(), "damaged journal file kept"),
                Err(error) => warn!(%error, "damaged journal file not kept"),
            }
        } else if scan.torn() > 0 {
            warn!(
                file = %path.display(), bytes = scan.torn(),
                "journal ends in the midst of a record, which is cut off"
            );
        }
        if is_newest && name.1 == Role::Log && scan.marker.is_some() {
            last_log = Some((path, name.0, scan));
            continue;
        }
        sealed.push((name, scan.len));
    }
    let last = match last_log {
        Some((path, number, scan)) => LogFile::reopen(&path, number, scan)?,
        None => LogFile::create(&folder, newest.map_or(1, |(number, _)| number + 1))?,
    };
    let mut files = LogFiles::new(folder, observer, sealed, last);
    files.is_damaged = is_damaged;
    files.report_len();
    Ok(files)
}

/// Returns the number of damaged bytes. At the end of the last log they are a torn write.
fn lost(scan: &Scan, may_be_torn: bool) -> u64 {
    let at_end = if may_be_torn && scan.marker.is_some() { 0 } else { scan.torn() };
    scan.damaged + at_end
}
