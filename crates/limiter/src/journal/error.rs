//! Errors of the journal. Their texts name the setting and the path.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use super::frame::VERSION;

/// Reason why the journal could not be opened, or did not keep a change.
#[derive(Clone, Debug, Error)]
pub enum JournalError {
    /// A file or the folder can't be used, the disk is full, or a write failed.
    #[error("can't {operation} {path} (store.memory.journal.path or state-dir): {source}")]
    Io {
        /// Operation that failed, such as `write`.
        operation: &'static str,
        /// Path of the file or folder.
        path: PathBuf,
        /// Cause of the failure.
        source: Arc<io::Error>,
    },
    /// Another process has the folder open.
    #[error("another process uses {path} (store.memory.journal.path or state-dir)")]
    Locked {
        /// Path of the folder.
        path: PathBuf,
    },
    /// The folder or a file of it is not what it has to be. Nothing of it was changed.
    #[error("{path} (store.memory.journal.path or state-dir) {problem}")]
    NotOurs {
        /// Path of the file or folder.
        path: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Another version of this program wrote the file. It stays as it is.
    #[error(
        "{path} (store.memory.journal.path or state-dir) has format {version}, and this version \
         of the program reads format {own} alone: start the one that wrote it, or move the file \
         away",
        own = VERSION
    )]
    Version {
        /// Path of the file.
        path: PathBuf,
        /// Version of its format.
        version: u16,
    },
    /// The changes of one call exceed [`MAX_CHANGE_LEN`](super::MAX_CHANGE_LEN).
    #[error("changes of {len} bytes exceed the maximum of a journal record")]
    TooLarge {
        /// Length of the changes in bytes.
        len: usize,
    },
    /// Too many changes are waiting for the disk.
    #[error("too many changes are waiting for the journal (store.memory.journal)")]
    Overloaded,
    /// The journal was closed.
    #[error("the journal is closed (store.memory.journal)")]
    Closed,
}

impl JournalError {
    pub(crate) fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { operation, path: path.to_owned(), source: Arc::new(source) }
    }
}
