//! The journal of the memory store, with the changes of administration that a restart must not lose,
//! and snapshots of its counters: files of one folder.
//!
//! A [`Change`] puts or deletes a named value. It is on disk when [`Journal::write`] returns, and
//! is restored by [`Journal::open`]. The journal does not know what values mean: each part of the
//! program has a [`Space`] of names of its own.
//!
//! One thread writes, and syncs once for all changes that wait. Frames have checksums
//! (`frame.rs`): a torn end is cut off, and damage elsewhere loses the records that it touches
//! (`recovery.rs`). The same thread compacts the files (`log_files.rs`). A failed write is
//! undone before its caller is told, so that a refused change does not come back. Counters are not
//! among the changes: now and then the store writes all of them to a snapshot (`snapshot.rs`).
//!
//! Why not a database: `docs/decisions/0034-journal.md`.
//!
//! ```
//! use std::sync::Arc;
//! use rlaas_limiter::clock::Clock;
//! use rlaas_limiter::journal::{Change, Journal, JournalSettings, Space};
//! use rlaas_limiter::observer::NoObserver;
//!
//! # let folder = std::env::temp_dir().join(format!("rlaas-journal-{}", std::process::id()));
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let settings = JournalSettings::new(&folder);
//! let open = || Journal::open(&settings, Clock::default(), Arc::new(NoObserver));
//!
//! let journal = open()?;
//! let put = Change::Put { space: Space::VALUES, name: b"secret", value: b"42", expires_at: None };
//! journal.write(&[put]).await?;
//! journal.close();
//!
//! let restored = open()?.take_restored(Space::VALUES);
//! assert_eq!(*restored[0].value, *b"42");
//! # Ok::<(), rlaas_limiter::journal::JournalError>(())
//! # })?;
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod change;
mod error;
mod folder;
mod frame;
mod log_file;
mod log_files;
mod queue;
mod reader;
mod recovery;
mod snapshot;
mod writer;

pub(crate) use snapshot::{Block, Part, SnapshotFile};

pub use change::{Change, MAX_CHANGE_LEN, RestoredValue, Space};
pub use error::JournalError;
pub use snapshot::SnapshotSettings;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use tokio::sync::oneshot;

use self::change::Restored;
use self::folder::Folder;
use self::frame::FileKind;
use self::queue::{ChangeQueue, Pending};
use self::writer::Writer;
use crate::clock::{Clock, Timestamp};
use crate::observer::Observer;

/// Settings of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalSettings {
    /// The folder. Created, with the mode 0700, if it does not exist.
    pub path: PathBuf,
}

impl JournalSettings {
    /// Settings of a journal in this folder.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }
}

/// A journal in a folder that is locked against other processes. Clones share it. It ends with the
/// last clone, after the changes that wait were written.
#[derive(Clone, Debug)]
pub struct Journal(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    path: PathBuf,
    queue: ChangeQueue,
    thread: Mutex<Option<JoinHandle<()>>>,
    restored: Mutex<Restored>,
    is_damaged: bool,
    clock: Clock,
}

impl Journal {
    /// Opens the journal, reads the values that it holds, and starts the thread that writes.
    ///
    /// `clock` tells which values have expired. `observer` is told about failures and the length.
    ///
    /// # Errors
    ///
    /// [`JournalError`] if another process uses the folder, if a file can't be used, or if another
    /// version wrote it; then nothing is removed. Damage is no error: it is logged, the values that
    /// it did not touch are returned, and the damaged file is kept.
    pub fn open(
        settings: &JournalSettings,
        clock: Clock,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, JournalError> {
        let folder = Folder::open(&settings.path, FileKind::Changes)?;
        let mut restored = Restored::default();
        let files = recovery::recover(folder, observer, |payload| {
            change::decode(payload).for_each(|change| restored.apply(&change));
        })?;
        restored.remove_expired(clock.now());
        let (queue, queued) = queue::channel();
        let is_damaged = !folder::damaged_files(&settings.path)?.is_empty();
        let writer = Writer::new(clock.clone(), queued, files);
        let thread = thread::Builder::new().name("journal".to_owned()).spawn(|| writer.run());
        let path = settings.path.clone();
        let thread =
            thread.map_err(|error| JournalError::io("start a thread for", &path, error))?;
        let (thread, restored) = (Mutex::new(Some(thread)), Mutex::new(restored));
        Ok(Self(Arc::new(Handle { path, queue, thread, restored, is_damaged, clock })))
    }

    /// Removes and returns the values of a space that were on disk when the journal was opened, in
    /// the order in which they were put last.
    pub fn take_restored(&self, space: Space) -> Vec<RestoredValue> {
        lock(&self.0.restored).take(space)
    }

    /// Returns `true` if a value was restored and not taken.
    pub(crate) fn has_restored(&self, space: Space, name: &[u8]) -> bool {
        lock(&self.0.restored).has(space, name)
    }

    /// Returns `true` if the folder had damaged files that were not accepted when the journal was
    /// opened: what it restores may be values of different times.
    pub fn is_damaged(&self) -> bool {
        self.0.is_damaged
    }

    /// Accepts the journal in a folder as far as it could be read: renames the damaged files that
    /// are kept there, and returns their new names. The next [`Journal::open`] finds no damage.
    ///
    /// # Errors
    ///
    /// [`JournalError`] if the folder or a file can't be used.
    pub fn accept(folder: &Path) -> Result<Vec<PathBuf>, JournalError> {
        folder::accept_damaged(folder)
    }

    /// Writes changes, all or none, and waits until they are on disk.
    ///
    /// They are written even if the future is dropped.
    ///
    /// # Errors
    ///
    /// [`JournalError`] if they are not on disk. They are not restored then.
    pub fn write(
        &self,
        changes: &[Change<'_>],
    ) -> impl Future<Output = Result<(), JournalError>> + Send + use<> {
        self.write_then(changes, || ())
    }

    /// As [`Journal::write`]. Once the changes are on disk, and before anything that is written
    /// later, calls `apply` on the journal's thread and returns its result. It is called even if
    /// the future is dropped, so memory and disk do not come apart. It must not block, nor wait
    /// for this journal.
    ///
    /// # Errors
    ///
    /// As [`Journal::write`]; then `apply` is not called.
    pub fn write_then<T, F>(
        &self,
        changes: &[Change<'_>],
        apply: F,
    ) -> impl Future<Output = Result<T, JournalError>> + Send + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        self.write_frames_then(&[changes], apply)
    }

    /// As [`Journal::write_then`], with a frame for each part of the changes: damage of one loses no
    /// other.
    pub(crate) fn write_frames_then<T, F>(
        &self,
        parts: &[&[Change<'_>]],
        apply: F,
    ) -> impl Future<Output = Result<T, JournalError>> + Send + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let done = Box::new(move |written: Result<(), JournalError>| {
            // The caller may have stopped waiting.
            let _dropped = sender.send(written.map(|()| apply()));
        });
        let parts = parts.iter().filter(|part| !part.is_empty());
        let payloads = parts.map(|part| change::encode(part)).collect::<Result<Vec<_>, _>>();
        let queued = payloads.and_then(|payloads| self.0.queue.push(Pending { payloads, done }));
        async move {
            queued?;
            receiver.await.unwrap_or(Err(JournalError::Closed))
        }
    }

    /// Returns the time by the clock of the journal.
    pub(crate) fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Accepts no more changes, waits until those that wait are on disk, and unlocks the folder.
    /// Blocks the thread.
    pub fn close(&self) {
        self.0.queue.close();
        if let Some(thread) = lock(&self.0.thread).take() {
            // A panic was logged, and refuses all changes.
            let _panic = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
