//! The steps of one dry run.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use quanta::Instant;
use thiserror::Error;

use super::{DryRunSlot, SharedDryRuns};
use crate::clock::Deadline;

/// Length of a step. With the work between two looks at the clock it is less than 50 ms.
const STEP: Duration = Duration::from_millis(20);

/// The end of a dry run that is not wanted any more: its caller has gone, or its time is over.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("stopped")]
pub struct Stopped;

/// The steps of a dry run, on its own thread.
#[derive(Debug)]
pub struct Steps {
    slot: DryRunSlot,
    deadline: Deadline,
    has_caller_gone: Arc<AtomicBool>,
    began: Instant,
}

impl Steps {
    pub(super) fn new(
        slot: DryRunSlot,
        deadline: Deadline,
        has_caller_gone: Arc<AtomicBool>,
    ) -> Self {
        Self { slot, deadline, has_caller_gone, began: Instant::now() }
    }

    /// Ends the step if it is long enough or a revision is made, and waits for the next one.
    ///
    /// # Errors
    ///
    /// [`Stopped`].
    #[inline]
    pub fn pause(&mut self) -> Result<(), Stopped> {
        if self.began.elapsed() < STEP && !self.slot.shared.has_revision() {
            return Ok(());
        }
        self.begin()
    }

    /// As [`Steps::pause`], for work that knows no steps.
    #[inline]
    pub fn flow(&mut self) -> ControlFlow<()> {
        if self.pause().is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    /// Waits for the turn to make a step.
    pub(super) fn begin(&mut self) -> Result<(), Stopped> {
        let DryRunSlot { shared, id } = &self.slot;
        let SharedDryRuns { turns, .. } = &**shared;
        let mut queue = shared.queue();
        queue.line_up(*id);
        turns.notify_all();
        loop {
            let left = self.deadline.remaining();
            if self.has_caller_gone.load(Ordering::Relaxed) || left.is_zero() {
                return Err(Stopped);
            }
            if queue.is_turn_of(*id) && !shared.has_revision() {
                break;
            }
            queue = turns.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        self.began = Instant::now();
        Ok(())
    }
}
