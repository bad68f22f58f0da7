//! Where the calls of an HTTP/2 connection run.
//!
//! A task of its own for each call costs as much as a decision in memory. So where calls wait for
//! nothing, those that have come together are answered together, one after the other, before
//! anything is written: see [`Arrived::begin`].

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use hyper::rt::Executor;

/// Calls that have come by a connection and have not begun. Clones share them.
#[derive(Clone)]
pub(super) struct Arrived(Arc<Hall>);

struct Hall {
    calls: CallsWait,
    waiting: Mutex<Vec<BoxedCall>>,
    come: AtomicUsize,
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

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Arrived {
    fn execute(&self, call: F) {
        self.0.come.fetch_add(1, Ordering::Relaxed);
        match self.0.calls {
            CallsWait::Seldom => self.waiting().push(Box::pin(call)),
            CallsWait::Usually => drop(tokio::spawn(call)),
        }
    }
}

impl Arrived {
    pub(super) fn new(calls: CallsWait) -> Self {
        Self(Arc::new(Hall { calls, waiting: Mutex::default(), come: AtomicUsize::new(0) }))
    }

    /// Begins all that have come; those that have to wait go on as tasks. Has any come?
    pub(super) fn begin(&self) -> bool {
        let calls = std::mem::take(&mut *self.waiting());
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

    /// How many have come so far.
    pub(super) fn count(&self) -> usize {
        self.0.come.load(Ordering::Relaxed)
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<BoxedCall>> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn who_need_not_wait_is_answered_at_once_and_others_later() {
        let arrived = Arrived::new(CallsWait::Seldom);
        assert!(!arrived.begin(), "nobody has come");
        let (answer, answered) = oneshot::channel();
        arrived.execute(async { answer.send(1).expect("somebody who waits") });
        let (question, asked) = oneshot::channel();
        let (echo, mut echoed) = oneshot::channel();
        arrived.execute(async {
            echo.send(asked.await.expect("a question")).expect("somebody who waits");
        });
        assert!(arrived.begin());
        assert_eq!(arrived.count(), 2);
        assert_eq!(answered.await, Ok(1));
        assert!(echoed.try_recv().is_err(), "it has not been asked");
        question.send(2).expect("somebody who asks");
        assert_eq!(echoed.await, Ok(2));
    }
}
