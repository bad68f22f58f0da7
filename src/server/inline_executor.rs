//! Runs the calls of an HTTP/2 connection in place where they wait for nothing.
//!
//! A task of its own for each call costs as much as a decision in memory. So where calls wait for
//! nothing, those that have come together are answered together, one after the other, before
//! anything is written: see [`InlineExecutor::run_queued`].

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use hyper::rt::Executor;

/// Calls that have come by a connection and have not begun. Clones share them.
#[derive(Clone)]
pub(super) struct InlineExecutor {
    calls: CallsWait,
    queued: Arc<Mutex<Vec<BoxedCall>>>,
}

/// Do calls wait for something outside of this process?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallsWait {
    /// They are answered at once, with few exceptions.
    Seldom,
    /// Most wait, for Redis: each is a task from the start.
    Usually,
}

type BoxedCall = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for InlineExecutor {
    fn execute(&self, call: F) {
        match self.calls {
            CallsWait::Seldom => self.queued().push(Box::pin(call)),
            CallsWait::Usually => drop(tokio::spawn(call)),
        }
    }
}

impl InlineExecutor {
    pub(super) fn new(calls: CallsWait) -> Self {
        Self { calls, queued: Arc::default() }
    }

    /// Runs all that have come; those that have to wait go on as tasks. Returns `true` if there were
    /// any.
    pub(super) fn run_queued(&self) -> bool {
        let calls = std::mem::take(&mut *self.queued());
        let any = !calls.is_empty();
        // As a task it is polled once more, and says then who is to be woken.
        let mut nobody = Context::from_waker(Waker::noop());
        for mut call in calls {
            if call.as_mut().poll(&mut nobody).is_pending() {
                tokio::spawn(call);
            }
        }
        any
    }

    fn queued(&self) -> MutexGuard<'_, Vec<BoxedCall>> {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn who_need_not_wait_is_answered_at_once_and_others_later() {
        let executor = InlineExecutor::new(CallsWait::Seldom);
        assert!(!executor.run_queued(), "nobody has come");
        let (answer, answered) = oneshot::channel();
        executor.execute(async { answer.send(1).expect("somebody who waits") });
        let (question, asked) = oneshot::channel();
        let (echo, mut echoed) = oneshot::channel();
        executor.execute(async {
            echo.send(asked.await.expect("a question")).expect("somebody who waits");
        });
        assert!(executor.run_queued());
        assert_eq!(answered.await, Ok(1));
        assert!(echoed.try_recv().is_err(), "it has not been asked");
        question.send(2).expect("somebody who asks");
        assert_eq!(echoed.await, Ok(2));
    }
}
