//! The journal of the memory store: what a restart must not lose, in files of one folder.
//!
//! A [`Change`] puts or deletes a named value. It is on disk when [`Journal::write`] returns, and
//! is restored by [`Journal::open`]. The journal does not know what values mean: each part of the
//! program has a [`Space`] of names of its own.
//!
//! One thread writes, and syncs once for all changes that wait. Frames have checksums
//! (`frame.rs`): a torn end is cut off, and damage elsewhere loses the records that it touches
//! (`recovery.rs`). Files are compacted in the background (`compaction.rs`). A failed write is
//! undone before its caller is told, so that a refused change does not come back.
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
mod compaction;
mod counters;
mod error;
mod folder;
mod frame;
mod log_file;
mod log_files;
mod queue;
mod reader;
mod recovery;
mod status;
mod writer;

pub(crate) use counters::{CountersLog, Records, RestoredCounters};

pub use change::{Change, MAX_CHANGE_LEN, RestoredValue, Space};
pub use error::JournalError;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;

use self::change::Restored;
use self::folder::Folder;
use self::frame::FileKind;
use self::queue::{ChangeQueue, Pending};
use self::status::Status;
use self::writer::Writer;
use crate::clock::Clock;
use crate::observer::Observer;

/// Settings of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalSettings {
    /// The folder. Created, with the mode 0700, if it does not exist.
    pub path: PathBuf,
    /// Interval at which the memory store writes the counters that changed; at least 1 ms. `None`:
    /// counters are not kept.
    pub counters: Option<Duration>,
}

impl JournalSettings {
    /// Settings of a journal in this folder, without counters.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), counters: None }
    }
}

/// A journal in a folder that is locked against other processes. Clones share it. It ends with the
/// last clone, after the changes that wait were written.
#[derive(Clone, Debug)]
pub struct Journal(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    path: PathBuf,
    queue: Arc<ChangeQueue>,
    restored: Mutex<Restored>,
    is_damaged: bool,
    /// Until the store takes them.
    counters: Mutex<Option<Counters>>,
}

/// Counters that were restored, their files, and the interval at which they are written.
#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) log: CountersLog,
    pub(crate) restored: RestoredCounters,
    pub(crate) interval: Duration,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl Journal {
    /// Opens the journal, reads the values that it holds, and starts the thread that writes.
    ///
    /// `clock` tells which values have expired. `observer` is told about failures and the length.
    ///
    /// # Errors
    ///
    /// [`JournalError`] if another process uses the folder, if a file can't be used, or if a later
    /// version wrote it. Damage is no error: it is logged, and the values that it did not touch are
    /// returned.
    pub fn open(
        settings: &JournalSettings,
        clock: Clock,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, JournalError> {
        let folder = Arc::new(Folder::open(&settings.path)?);
        let mut restored = Restored::default();
        let status = Arc::new(Status::new(observer));
        let recovered = recovery::recover(&folder, &status, FileKind::Changes, |payload| {
            let changes = payload.into_iter().flat_map(change::decode);
            changes.for_each(|change| restored.apply(&change));
        })?;
        restored.remove_expired(clock.now());
        let queue = Arc::new(ChangeQueue::default());
        let counters = if let Some(interval) = settings.counters {
            let (log, restored) = CountersLog::open(&folder, &status)?;
            Some(Counters { log, restored, interval: interval.max(Duration::from_millis(1)) })
        } else {
            counters::remove(&folder)?;
            None
        };
        let is_damaged = recovered.is_damaged;
        let writer = Writer::new(folder, clock, Arc::clone(&queue), recovered);
        let ending = Ending(Arc::clone(&queue));
        let run = move || {
            let _ending = ending;
            writer.run();
        };
        let thread = thread::Builder::new().name("journal".to_owned()).spawn(run);
        thread.map_err(|error| JournalError::io("start a thread for", &settings.path, error))?;
        let (path, restored) = (settings.path.clone(), Mutex::new(restored));
        Ok(Self(Arc::new(Handle {
            path,
            queue,
            restored,
            is_damaged,
            counters: Mutex::new(counters),
        })))
    }

    /// Removes and returns the values of a space that were on disk when the journal was opened, in
    /// the order in which they were put last.
    pub fn take_restored(&self, space: Space) -> Vec<RestoredValue> {
        lock(&self.0.restored).take(space)
    }

    /// Returns `true` if records were damaged when the journal was opened: what it restores may be
    /// values of different times.
    pub fn is_damaged(&self) -> bool {
        self.0.is_damaged
    }

    /// Removes and returns the counters, if they are kept.
    pub(crate) fn take_counters(&self) -> Option<Counters> {
        lock(&self.0.counters).take()
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
        let (sender, receiver) = oneshot::channel();
        let done = Box::new(move |written: Result<(), JournalError>| {
            // The caller may have stopped waiting.
            let _dropped = sender.send(written.map(|()| apply()));
        });
        let queued = change::encode(changes)
            .and_then(|payload| self.0.queue.push(Pending { payload, done }));
        async move {
            queued?;
            receiver.await.unwrap_or(Err(JournalError::Closed))
        }
    }

    /// Returns the error of a thread that did not start.
    pub(crate) fn start_error(&self, error: std::io::Error) -> JournalError {
        JournalError::io("start a thread for", self.path(), error)
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Accepts no more changes, waits until those that wait are on disk, and unlocks the folder.
    /// Blocks the thread.
    pub fn close(&self) {
        self.0.queue.close();
        self.0.queue.wait_for_end();
        drop(self.take_counters());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the queue when the thread ends, even by a panic.
struct Ending(Arc<ChangeQueue>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}
