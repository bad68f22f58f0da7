//! Reads the files of a journal when it is opened: reports damage and keeps the damaged files, cuts
//! torn ends, and finds the file to continue. A damaged one is not continued.

use std::sync::Arc;

use tracing::{error, warn};

use super::JournalError;
use super::folder::{self, Folder, Role};
use super::frame::{FileKind, HEADER_LEN};
use super::log_file::LogFile;
use super::log_files::LogFiles;
use super::reader::{ends_torn, read_marker, scan_file};
use crate::observer::Observer;

/// Reads all files, and passes the payload of each valid frame to `receive`, in order.
///
/// Damage loses the records that it touches, and is logged as an error. Those after it are restored:
/// each is a whole value, so none depends on another. To refuse to start instead would turn one bad
/// sector into an outage of every limit. The file is kept, which marks the folder as damaged.
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
        if scan.marker.is_none() && scan.len <= HEADER_LEN as u64 && name.1 == Role::Log {
            // The process ended while it created the file.
            folder::remove(&path)?;
            continue;
        }
        let is_last_log = is_newest && name.1 == Role::Log;
        let is_torn = is_last_log && ends_torn(&path, &scan)?;
        let lost = scan.damaged + if is_torn { 0 } else { scan.torn() };
        let is_whole = lost == 0 && scan.marker.is_some();
        if !is_whole {
            is_damaged = true;
            let kept = folder::keep_damaged(&path)?;
            error!(
                file = %path.display(), bytes = lost, kept = %kept.display(),
                "journal damaged: records lost, the others are restored"
            );
        } else if scan.torn() > 0 {
            warn!(
                file = %path.display(), bytes = scan.torn(),
                "journal ends in the midst of a record, which is cut off"
            );
        }
        if is_last_log && is_whole {
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
