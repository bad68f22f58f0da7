//! Changes that run: each in a task of its own, because it ends although its caller goes away.
//!
//! A change that stopped half-way would leave its request id claimed, and its audit entry without an
//! outcome. The number of tasks is bounded, also for each project, and the drain of the server waits for
//! them.

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use rlaas_projects::registry::ChangeRank;
use rlaas_telemetry::holder::Holder;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use tonic::{Code, Status};

use super::refusals::too_many_changes;
use rlaas_core::clock::Deadline;
use rlaas_proto::status::with_reason;

/// Most changes that run at the same time for callers of all projects, and most for all others.
/// Revocations of API keys are counted apart.
const MAX_RUNNING: usize = 256;
/// Most for callers of one project.
const MAX_OF_PROJECT: usize = 4;
const MAX_REVOCATIONS_OF_PROJECT: usize = 16;

/// A change that is to run. Boxed as a trait object: the compiler does not prove the size of futures
/// of this depth to be [`Send`].
pub(super) type ChangeFuture<T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;

/// The changes that run in this process.
#[derive(Debug)]
pub(super) struct RunningChanges {
    /// The places of those on whose account changes run.
    places: Mutex<HashMap<(Holder, ChangeRank), Arc<Semaphore>>>,
    tasks: TaskTracker,
}

impl RunningChanges {
    pub(super) fn new() -> Self {
        Self { places: Mutex::default(), tasks: TaskTracker::new() }
    }

    /// Runs a change, and returns its answer. If the caller stops waiting, or its deadline passes,
    /// a change that has begun goes on.
    ///
    /// # Errors
    ///
    /// `RESOURCE_EXHAUSTED` if too many changes run, also of the project: this one has not begun;
    /// `DEADLINE_EXCEEDED` if it has not ended by the deadline; else as the change.
    ///
    /// # Panics
    ///
    /// If the change does.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        holder: Holder,
        rank: ChangeRank,
        change: ChangeFuture<T>,
        deadline: Deadline,
    ) -> Result<T, Status> {
        let place = self.place(holder, rank).ok_or_else(too_many_changes)?;
        let running = self.tasks.spawn(async move {
            let _held = place;
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

    /// Returns a place for a change, if there is one.
    fn place(&self, holder: Holder, rank: ChangeRank) -> Option<OwnedSemaphorePermit> {
        let most = match (&holder, rank.is_revocation) {
            (Holder::AllProjects, _) => MAX_RUNNING,
            (_, true) => MAX_REVOCATIONS_OF_PROJECT,
            (_, false) => MAX_OF_PROJECT,
        };
        let mut all = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        // A place that is held keeps those of its account.
        all.retain(|_, places| Arc::strong_count(places) > 1);
        let alike = all.keys().filter(|(_, other)| *other == rank).count();
        let account = (holder, rank);
        if alike >= MAX_RUNNING / MAX_OF_PROJECT && !all.contains_key(&account) {
            return None;
        }
        let places = all.entry(account).or_insert_with(|| Arc::new(Semaphore::new(most)));
        Arc::clone(places).try_acquire_owned().ok()
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

    use rlaas_auth::CallerScope;
    use tokio::sync::oneshot;

    use super::*;

    fn account(holder: Holder) -> (Holder, ChangeRank) {
        (holder, ChangeRank::default())
    }

    #[tokio::test]
    async fn a_change_goes_on_without_its_caller_and_the_drain_waits_for_it() {
        let running = RunningChanges::new();
        let (end, ended) = oneshot::channel::<()>();
        let (start, started) = oneshot::channel();
        let first = running.run(
            Holder::AllProjects,
            ChangeRank::default(),
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

    /// Runs changes without an end for as long as they may. Returns how many run.
    async fn fill(running: &RunningChanges, account: &(Holder, ChangeRank)) -> usize {
        let mut count = 0;
        loop {
            // The change outlives its caller's deadline, which may have passed already.
            let (holder, rank) = account.clone();
            let pending: ChangeFuture<bool> = Box::pin(std::future::pending());
            let answer = running.run(holder, rank, pending, Deadline::within(Duration::ZERO));
            let refused = answer.await.expect_err("it has no end");
            if refused.code() == Code::ResourceExhausted {
                return count;
            }
            assert_eq!(refused.code(), Code::DeadlineExceeded, "{refused:?}");
            count += 1;
        }
    }

    #[tokio::test]
    async fn running_changes_are_bounded_for_each_project_and_in_all() {
        let running = RunningChanges::new();
        let project = |id: &str| account(Holder::Project(id.to_owned()));
        assert_eq!(fill(&running, &project("shop")).await, 4);
        assert_eq!(fill(&running, &project("blog")).await, 4);
        let revocation = |(holder, rank): (Holder, ChangeRank)| {
            (holder, ChangeRank { is_revocation: true, ..rank })
        };
        assert_eq!(fill(&running, &revocation(project("shop"))).await, 16);
        for number in 0..62 {
            assert_eq!(fill(&running, &project(&number.to_string())).await, 4);
        }
        assert_eq!(fill(&running, &project("one more")).await, 0);
        // They do not wait for those of projects.
        let mut root = account(Holder::AllProjects);
        root.1.scope = CallerScope::AllProjects;
        assert_eq!(fill(&running, &root).await, 256);
        assert_eq!(fill(&running, &revocation(root)).await, 256);
    }

    #[tokio::test]
    async fn a_change_that_has_ended_leaves_its_place_to_the_next() {
        let running = RunningChanges::new();
        for number in 0..300 {
            let change = Box::pin(async { Ok(true) });
            let shop = Holder::Project(format!("shop {}", number % 100));
            let rank = ChangeRank::default();
            assert!(running.run(shop, rank, change, Deadline::NEVER).await.expect("an answer"));
        }
    }
}
