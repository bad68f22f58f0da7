//! Changes that run: each in a task of its own, because it ends although its caller goes away.
//!
//! A change that stopped half-way would leave its request id claimed, and its audit entry without an
//! outcome. The number of tasks is bounded, and the drain of the server waits for them.

use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use tonic::{Code, Status};

use super::MAX_TIME;
use crate::api::status::with_reason;
use crate::clock::Deadline;

/// Most changes that run at the same time; further ones wait.
const MAX_RUNNING: usize = 256;

/// A change that is to run. Boxed as a trait object: the compiler does not prove the size of futures
/// of this depth to be [`Send`].
pub(super) type ChangeFuture<T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;

/// The changes that run in this process.
#[derive(Debug)]
pub(super) struct RunningChanges {
    permits: Arc<Semaphore>,
    tasks: TaskTracker,
}

impl RunningChanges {
    pub(super) fn new() -> Self {
        Self { permits: Arc::new(Semaphore::new(MAX_RUNNING)), tasks: TaskTracker::new() }
    }

    /// Runs a change, and returns its answer. If the caller stops waiting, or its deadline passes,
    /// a change that has begun goes on.
    ///
    /// # Errors
    ///
    /// `RESOURCE_EXHAUSTED` if too many changes run until the deadline, and this one has not begun;
    /// `DEADLINE_EXCEEDED` if it has not ended by the deadline; else as the change.
    ///
    /// # Panics
    ///
    /// If the change does.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        change: ChangeFuture<T>,
        deadline: Deadline,
    ) -> Result<T, Status> {
        let permit = Arc::clone(&self.permits).acquire_owned();
        let permit = timeout(deadline.or_within(MAX_TIME).remaining(), permit).await;
        let Ok(Ok(permit)) = permit else {
            let text = "too many changes run: nothing was changed";
            return Err(with_reason(Code::ResourceExhausted, "TOO_MANY_CHANGES", text.to_owned()));
        };
        let running = self.tasks.spawn(async move {
            let _held = permit;
            change.await
        });
        match timeout(deadline.remaining(), running).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) if error.is_panic() => resume_unwind(error.into_panic()),
            // The process ends, or the deadline has passed.
            Ok(Err(_)) | Err(_) => {
                let text = "deadline exceeded: the change may have been made";
                Err(with_reason(Code::DeadlineExceeded, "CHANGE_RUNNING", text.to_owned()))
            }
        }
    }

    /// Completes when no change runs.
    pub(super) async fn finished(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_change_goes_on_without_its_caller_and_the_drain_waits_for_it() {
        let running = RunningChanges::new();
        let (end, ended) = oneshot::channel::<()>();
        let (start, started) = oneshot::channel();
        let first = running.run(
            Box::pin(async move {
                start.send(()).expect("a test that waits");
                ended.await.expect("a test that ends it");
                Ok::<bool, Status>(false)
            }),
            Deadline::NEVER,
        );
        tokio::select! {
            answer = first => panic!("{answer:?}"),
            began = started => began.expect("a change"),
        }
        let is_finished = |within| timeout(within, running.finished());
        assert!(is_finished(Duration::from_millis(20)).await.is_err(), "the change still runs");
        end.send(()).expect("a change that runs without its caller");
        is_finished(Duration::from_secs(10)).await.expect("the change has ended");
    }

    #[tokio::test]
    async fn running_changes_are_bounded_and_callers_have_deadlines() {
        let running = RunningChanges::new();
        let soon = || Deadline::within(Duration::from_millis(20));
        for _ in 0..MAX_RUNNING {
            // The change outlives its caller's deadline, which may have passed already.
            let pending: ChangeFuture<bool> = Box::pin(std::future::pending());
            let answer = running.run(pending, Deadline::within(Duration::ZERO));
            let refused = answer.await.expect_err("it runs");
            assert_eq!(refused.code(), Code::DeadlineExceeded, "{refused:?}");
        }
        let more = || -> ChangeFuture<bool> { Box::pin(async { Ok(true) }) };
        let refused = running.run(more(), soon()).await.expect_err("too many");
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
        running.permits.add_permits(1);
        assert!(running.run(more(), Deadline::NEVER).await.expect("an answer"));
    }
}
