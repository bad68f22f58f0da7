//! Who runs, who waits, and whose turn it is.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::{DryRunError, DryRunKind};
use crate::projects::ProjectId;

/// Most dry runs that wait for others to end.
const MAX_WAITING: usize = 8;
/// Most that run, and take turns.
const MAX_RUNNING: usize = 4;
/// Most previews among them, each of which may take a few hundred MiB.
const MAX_PREVIEWS: usize = 2;

/// The dry runs that wait and that run.
#[derive(Debug, Default)]
pub(super) struct DryRunQueue {
    last_id: u64,
    waiting: VecDeque<Waiting>,
    running: Vec<QueuedRun>,
    /// Those that run and are ready for a step: it is the turn of the first one.
    ready: VecDeque<u64>,
}

/// A dry run that has its place.
#[derive(Debug)]
pub(super) struct Entered {
    pub(super) id: u64,
    /// Completes when it may begin; closed if it lost its place.
    pub(super) begun: oneshot::Receiver<()>,
}

#[derive(Clone, Debug)]
struct QueuedRun {
    id: u64,
    project: ProjectId,
    kind: DryRunKind,
}

#[derive(Debug)]
struct Waiting {
    entry: QueuedRun,
    start: oneshot::Sender<()>,
}

impl DryRunQueue {
    /// Adds a dry run. If too many wait, the newest one of the project with most of them loses its
    /// place.
    ///
    /// # Errors
    ///
    /// [`DryRunError::TooMany`] if that is this one.
    pub(super) fn enter(
        &mut self,
        project: &ProjectId,
        kind: DryRunKind,
    ) -> Result<Entered, DryRunError> {
        self.last_id += 1;
        let (id, project) = (self.last_id, project.clone());
        let (start, begun) = oneshot::channel();
        self.waiting.push_back(Waiting { entry: QueuedRun { id, project, kind }, start });
        self.begin_next();
        if self.waiting.len() > MAX_WAITING {
            let of = |project: &ProjectId| {
                self.waiting.iter().filter(|one| one.entry.project == *project).count()
            };
            // Of equals the last one.
            let places =
                (0..self.waiting.len()).max_by_key(|at| of(&self.waiting[*at].entry.project));
            let lost = places.and_then(|at| self.waiting.remove(at));
            if lost.is_some_and(|lost| lost.entry.id == id) {
                return Err(DryRunError::TooMany);
            }
        }
        Ok(Entered { id, begun })
    }

    /// Removes a dry run, and begins others that waited for it.
    pub(super) fn leave(&mut self, id: u64) {
        self.waiting.retain(|one| one.entry.id != id);
        self.running.retain(|one| one.id != id);
        self.ready.retain(|one| *one != id);
        self.begin_next();
    }

    /// Makes a dry run the last one of those that are ready for a step.
    pub(super) fn line_up(&mut self, id: u64) {
        self.ready.retain(|one| *one != id);
        self.ready.push_back(id);
    }

    /// Returns `true` if it is the turn of a dry run.
    pub(super) fn is_turn_of(&self, id: u64) -> bool {
        self.ready.front() == Some(&id)
    }

    fn begin_next(&mut self) {
        while let Some(at) = self.waiting.iter().position(|one| self.may_begin(&one.entry))
            && let Some(Waiting { entry, start }) = self.waiting.remove(at)
        {
            // Its caller may have gone: then it has left, or is about to.
            if start.send(()).is_ok() {
                self.running.push(entry);
            }
        }
    }

    fn may_begin(&self, entry: &QueuedRun) -> bool {
        let previews = || self.running.iter().filter(|one| one.kind == DryRunKind::Preview).count();
        self.running.len() < MAX_RUNNING
            && self.running.iter().all(|one| one.project != entry.project)
            && (entry.kind != DryRunKind::Preview || previews() < MAX_PREVIEWS)
    }

    /// Returns how many wait, and how many run.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.waiting.len(), self.running.len())
    }
}
