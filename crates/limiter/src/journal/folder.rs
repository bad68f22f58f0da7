//! The folder of a journal or of snapshots: its lock, and the names of its files. All files have the
//! mode 0600, and one that is written whole replaces an earlier one only when it is on disk. One folder
//! may have both, each with a lock of its own.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::JournalError;
use super::frame::{FRAME_HEAD_LEN, FileKind, Marker, header, push_frame};

const CHANGES: &str = "changes-";
const TEMPORARY: &str = "tmp";
/// Suffix of a hard link to a damaged file, which outlives the file and marks the folder as damaged.
const DAMAGED: &str = "damaged";
/// Suffix of such a link that marks nothing any more.
const ACCEPTED: &str = "accepted";

/// Role of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// Everything up to the log of the same number, without what was replaced since.
    Base,
    /// Records in the order in which they were written.
    Log,
}

/// The number and the role of a file. In order, files are read from the first to the last.
pub(super) type FileName = (u64, Role);

/// A folder whose files of one kind are locked against other processes.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Opens and locks the folder. Creates it, with the mode 0700, if it does not exist.
    pub(super) fn open(path: &Path, kind: FileKind) -> Result<Self, JournalError> {
        let (lock_name, prefix) = names(kind);
        let mut builder = DirBuilder::new();
        let created = builder.recursive(true).mode(0o700).create(path);
        created.map_err(|error| JournalError::io("create", path, error))?;
        let lock_path = path.join(lock_name);
        check_is_file(&lock_path)?;
        let lock = open_options().create(true).truncate(false).open(&lock_path);
        let lock = lock.map_err(|error| JournalError::io("open", &lock_path, error))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(JournalError::Locked { path: path.to_owned() }),
            Err(error) => return Err(JournalError::io("lock", &lock_path, error.into())),
        }
        let folder = Self { path: path.to_owned(), _lock: lock };
        for name in names_in(path)? {
            let path = folder.path.join(&name);
            let is_own = name.starts_with(prefix);
            if is_own && path.extension().is_some_and(|extension| extension == TEMPORARY) {
                remove(&path)?;
            } else if is_own || name == lock_name {
                check_is_file(&path)?;
                make_private(&path)?;
            }
        }
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a file of changes.
    pub(super) fn file(&self, (number, role): FileName) -> PathBuf {
        let role = match role {
            Role::Base => "base",
            Role::Log => "log",
        };
        self.path.join(format!("{CHANGES}{number:010}.{role}"))
    }

    /// Returns the files of changes, in the order in which they are read.
    pub(super) fn files(&self) -> Result<Vec<FileName>, JournalError> {
        let names = names_in(&self.path)?;
        let mut files: Vec<_> = names.iter().filter_map(|name| parse(name)).collect();
        files.sort_unstable();
        Ok(files)
    }

    /// Renames a file of the folder, in place of the one that has the name.
    pub(super) fn rename(&self, from: &Path, to: &Path) -> Result<(), JournalError> {
        fs::rename(from, to).map_err(|error| JournalError::io("rename", from, error))?;
        sync(&self.path)
    }
}

/// Makes created, renamed and removed names durable.
pub(super) fn sync(folder: &Path) -> Result<(), JournalError> {
    let synced = File::open(folder).and_then(|opened| opened.sync_all());
    synced.map_err(|error| JournalError::io("sync", folder, error))
}

fn names_in(folder: &Path) -> Result<Vec<String>, JournalError> {
    let read = |error| JournalError::io("read", folder, error);
    let entries = fs::read_dir(folder).map_err(read)?;
    let names = entries.map(|entry| Ok(entry.map_err(read)?.file_name()));
    // Names that are not UTF-8 are not ours.
    names.filter_map(|name| name.map(|name| name.into_string().ok()).transpose()).collect()
}

/// Returns the damaged files of changes that are kept in a folder and were not accepted.
pub(super) fn damaged_files(folder: &Path) -> Result<Vec<PathBuf>, JournalError> {
    let paths = names_in(folder)?.into_iter().filter(|name| name.starts_with(CHANGES));
    let paths = paths.map(|name| folder.join(name));
    Ok(paths
        .filter(|path| path.extension().is_some_and(|extension| extension == DAMAGED))
        .collect())
}

/// Renames the damaged files of changes, and returns their new names.
pub(super) fn accept_damaged(folder: &Path) -> Result<Vec<PathBuf>, JournalError> {
    let rename = |path: PathBuf| {
        let accepted = path.with_extension(ACCEPTED);
        let renamed = fs::rename(&path, &accepted);
        renamed.map_err(|error| JournalError::io("rename", &path, error))?;
        Ok(accepted)
    };
    let accepted = damaged_files(folder)?.into_iter().map(rename).collect::<Result<_, _>>()?;
    sync(folder)?;
    Ok(accepted)
}

/// Keeps the content of a damaged file under another name, for inspection.
pub(super) fn keep_damaged(path: &Path) -> Result<PathBuf, JournalError> {
    let kept = path.with_extension(DAMAGED);
    if kept.exists() {
        remove(&kept)?;
    }
    fs::hard_link(path, &kept).map_err(|error| JournalError::io("link", &kept, error))?;
    Ok(kept)
}

/// Creates a file for a new content of `path`; see [`Folder::rename`].
pub(super) fn create_temporary(path: &Path) -> Result<(File, PathBuf), JournalError> {
    let temporary = path.with_extension(TEMPORARY);
    let file = open_options().create(true).truncate(true).open(&temporary);
    Ok((file.map_err(|error| JournalError::io("create", &temporary, error))?, temporary))
}

/// Removes a file.
pub(super) fn remove(path: &Path) -> Result<(), JournalError> {
    fs::remove_file(path).map_err(|error| JournalError::io("remove", path, error))
}

/// Creates a file that must not exist.
pub(super) fn create_new(path: &Path) -> Result<File, JournalError> {
    let file = open_options().create_new(true).open(path);
    file.map_err(|error| JournalError::io("create", path, error))
}

/// Opens a file to be written.
pub(super) fn open_existing(path: &Path) -> Result<File, JournalError> {
    open_options().open(path).map_err(|error| JournalError::io("open", path, error))
}

/// Refuses a symbolic link, a pipe, a folder or the like under the name of a file.
fn check_is_file(path: &Path) -> Result<(), JournalError> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => Ok(()),
        Ok(_) => {
            let problem = "must be a file, not a link, a pipe or a folder: move it away";
            Err(JournalError::NotOurs { path: path.to_owned(), problem })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(JournalError::io("read", path, error)),
    }
}

/// Takes permissions for others away from a file, such as one that was copied back.
fn make_private(path: &Path) -> Result<(), JournalError> {
    let set = || {
        let of_owner = 0o700;
        if (fs::metadata(path)?.permissions().mode() & 0o777) | of_owner == of_owner {
            return Ok(());
        }
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))
    };
    set().map_err(|error| JournalError::io("set the mode of", path, error))
}

fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options.write(true).mode(0o600).custom_flags(flags.bits().cast_signed());
    options
}

/// Returns the name of the lock of the files of a kind, and the start of their names.
fn names(kind: FileKind) -> (&'static str, &'static str) {
    match kind {
        FileKind::Changes => ("lock", CHANGES),
        FileKind::Snapshot => ("snapshot.lock", "snapshot."),
    }
}

fn parse(name: &str) -> Option<FileName> {
    let (number, role) = name.strip_prefix(CHANGES)?.split_once('.')?;
    let role = match role {
        "base" => Role::Base,
        "log" => Role::Log,
        _ => return None,
    };
    Some((number.parse().ok()?, role))
}

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
