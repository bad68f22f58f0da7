//! Dry runs: validations and previews, which hold nobody up.
//!
//! Each runs on a thread of its own, of low priority, step by step. One step runs at a time in the
//! whole process, so that all dry runs together take one processor at most; those of different
//! projects take turns. While a revision is made they pause. A dry run whose caller has gone ends.
//!
//! Of each project one runs at a time. Others wait, and if too many do, a project with most of them
//! loses one. This module does not know what a dry run does.

mod queue;
mod steps;
#[cfg(test)]
mod tests;

pub use steps::{Steps, Stopped};

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::oneshot;
use tokio::time::timeout;

use self::queue::{DryRunQueue, Entered};
use super::ProjectId;
use crate::clock::Deadline;

/// Longest time of a dry run, that of waiting included.
const MAX_TIME: Duration = Duration::from_secs(30);
/// Added to the niceness of the process: about a tenth of the time of other threads while they want
/// all of it.
const NICENESS: i32 = 10;

/// The dry runs of this process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct DryRuns(Arc<SharedDryRuns>);

/// What a dry run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DryRunKind {
    /// Builds rules.
    Validation,
    /// Tries rules on requests, which takes memory.
    Preview,
}

/// The reason why a dry run has no result.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum DryRunError {
    /// Too many wait.
    #[error("too many validations and previews wait: try again")]
    TooMany,
    /// It took too long.
    #[error("the validation or preview took longer than 30 s, or than its caller waits")]
    Expired,
}

/// Keeps dry runs paused while a revision is made.
#[derive(Debug)]
pub struct RevisionGuard(Arc<SharedDryRuns>);

#[derive(Debug, Default)]
struct SharedDryRuns {
    queue: Mutex<DryRunQueue>,
    /// Notified when it is another one's turn, or when a dry run may be over.
    turns: Condvar,
    /// Revisions that are made now.
    revisions: AtomicUsize,
}

/// The place of a dry run: among those that wait, or that run. Left when it is dropped.
#[derive(Debug)]
struct DryRunSlot {
    shared: Arc<SharedDryRuns>,
    id: u64,
}

/// Ends a dry run when its caller goes.
struct CallerGuard {
    shared: Arc<SharedDryRuns>,
    has_gone: Arc<AtomicBool>,
}

impl DryRuns {
    /// Runs `work` when it is its turn, and returns its result. `work` must call [`Steps::pause`]
    /// again and again: it runs for 50 ms at most between two calls.
    ///
    /// # Errors
    ///
    /// [`DryRunError`].
    ///
    /// # Panics
    ///
    /// If `work` does, or no thread can be started.
    pub async fn run<T: Send + 'static>(
        &self,
        project: &ProjectId,
        kind: DryRunKind,
        deadline: Deadline,
        work: impl FnOnce(&mut Steps) -> Result<T, Stopped> + Send + 'static,
    ) -> Result<T, DryRunError> {
        let deadline = deadline.or_within(MAX_TIME);
        let Entered { id, begun } = self.0.queue().enter(project, kind)?;
        let slot = DryRunSlot { shared: Arc::clone(&self.0), id };
        match timeout(deadline.remaining(), begun).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(DryRunError::TooMany),
            Err(_) => return Err(DryRunError::Expired),
        }
        let caller = CallerGuard { shared: Arc::clone(&self.0), has_gone: Arc::default() };
        let mut steps = Steps::new(slot, deadline, Arc::clone(&caller.has_gone));
        let (sender, result) = oneshot::channel();
        let thread = thread::Builder::new().name("dry-run".to_owned());
        let thread = thread.spawn(move || {
            lower_priority();
            let result = steps.begin().and_then(|()| work(&mut steps));
            drop(steps);
            // The caller may have gone.
            let _sent = sender.send(result);
        });
        thread.expect("a thread");
        match timeout(deadline.remaining(), result).await {
            Ok(Ok(result)) => result.map_err(|Stopped| DryRunError::Expired),
            Ok(Err(_)) => panic!("a dry run has panicked"),
            Err(_) => Err(DryRunError::Expired),
        }
    }

    /// Lets a revision pass: dry runs pause until the guard is dropped.
    pub fn revision(&self) -> RevisionGuard {
        self.0.revisions.fetch_add(1, Ordering::Relaxed);
        RevisionGuard(Arc::clone(&self.0))
    }
}

impl SharedDryRuns {
    fn queue(&self) -> MutexGuard<'_, DryRunQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_revision(&self) -> bool {
        self.revisions.load(Ordering::Relaxed) > 0
    }

    /// Wakes all that wait for their turn.
    fn wake(&self) {
        // Those that have looked and do not wait yet hold the lock.
        drop(self.queue());
        self.turns.notify_all();
    }
}

impl Drop for RevisionGuard {
    fn drop(&mut self) {
        if self.0.revisions.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.wake();
        }
    }
}

impl Drop for DryRunSlot {
    fn drop(&mut self) {
        self.shared.queue().leave(self.id);
        self.shared.turns.notify_all();
    }
}

impl Drop for CallerGuard {
    fn drop(&mut self) {
        self.has_gone.store(true, Ordering::Relaxed);
        self.shared.wake();
    }
}

/// Lowers the priority of the calling thread, where threads have their own.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::nice(NICENESS) {
        tracing::debug!(%error, "can't lower the priority of a thread");
    }
}
