//! The queue of validations: one runs at a time in the whole process, on a thread that decides nothing.
//! Others wait in order. This module does not know what a validation does.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use rlaas_auth::run_blocking;
use rlaas_core::clock::Deadline;

/// Most validations that wait or run.
const MAX_VALIDATIONS: usize = 9;
/// Longest time of a validation, that of waiting included.
const MAX_TIME: Duration = Duration::from_secs(30);

/// The queue. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct ValidationQueue {
    places: Arc<Semaphore>,
    turn: Arc<Semaphore>,
}

/// The reason why a validation has no result.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum ValidationError {
    /// Too many wait.
    #[error("too many validations wait: try again")]
    TooMany,
    /// It took too long.
    #[error("the validation took longer than 30 s, or than its caller waits")]
    Expired,
}

impl Default for ValidationQueue {
    fn default() -> Self {
        let places = Arc::new(Semaphore::new(MAX_VALIDATIONS));
        Self { places, turn: Arc::new(Semaphore::new(1)) }
    }
}

impl ValidationQueue {
    /// Runs `work` when it is its turn. Once it runs it goes on without its caller.
    ///
    /// # Errors
    ///
    /// [`ValidationError`].
    pub(super) async fn run<T: Send + 'static>(
        &self,
        deadline: Deadline,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ValidationError> {
        let _place = self.places.try_acquire().map_err(|_| ValidationError::TooMany)?;
        let turn = Arc::clone(&self.turn);
        let run = async move {
            // The semaphore is never closed.
            let turn = turn.acquire_owned().await;
            run_blocking(move || {
                let _turn = turn;
                work()
            })
            .await
        };
        let deadline = deadline.or_within(MAX_TIME);
        timeout(deadline.remaining(), run).await.map_err(|_| ValidationError::Expired)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::task::JoinHandle;

    use super::*;

    /// A validation that runs until it is told to end.
    struct Held {
        end: mpsc::Sender<()>,
        result: JoinHandle<Result<(), ValidationError>>,
    }

    fn start(queue: &ValidationQueue) -> Held {
        let (end, ended) = mpsc::channel::<()>();
        let queue = queue.clone();
        let work = move || ended.recv().expect("it is told to end");
        let result = tokio::spawn(async move { queue.run(Deadline::NEVER, work).await });
        Held { end, result }
    }

    /// Waits until so many wait or run.
    async fn until(queue: &ValidationQueue, expected: usize) {
        let reached = async {
            while MAX_VALIDATIONS - queue.places.available_permits() != expected {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(20), reached).await.expect("so many validations");
    }

    #[tokio::test]
    async fn one_runs_and_eight_wait() {
        let queue = ValidationQueue::default();
        let mut held = Vec::new();
        for number in 1..=MAX_VALIDATIONS {
            held.push(start(&queue));
            until(&queue, number).await;
        }
        assert_eq!(queue.run(Deadline::NEVER, || ()).await, Err(ValidationError::TooMany));
        let gone = held.pop().expect("the last one");
        gone.result.abort();
        until(&queue, MAX_VALIDATIONS - 1).await;
        for Held { end, result } in held {
            end.send(()).expect("it runs or waits");
            assert_eq!(result.await.expect("a task"), Ok(()));
        }
        assert_eq!(queue.run(Deadline::NEVER, || 7).await, Ok(7));
    }

    #[tokio::test]
    async fn validation_has_a_deadline_and_waits_for_one_without_a_caller() {
        let queue = ValidationQueue::default();
        let one = start(&queue);
        until(&queue, 1).await;
        let soon = Deadline::within(Duration::from_millis(50));
        assert_eq!(queue.run(soon, || ()).await, Err(ValidationError::Expired));
        one.result.abort();
        until(&queue, 0).await;
        let soon = Deadline::within(Duration::from_millis(50));
        assert_eq!(queue.run(soon, || ()).await, Err(ValidationError::Expired), "it goes on");
        one.end.send(()).expect("it runs");
        assert_eq!(queue.run(Deadline::NEVER, || ()).await, Ok(()));
    }
}
