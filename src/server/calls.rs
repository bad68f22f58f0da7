//! Runs the calls of HTTP/2 connections in turns with everything else of their worker.
//!
//! A runtime runs its tasks in the order in which they became ready. Thousands of calls that arrive at
//! once would stand before each step of reading one reply of Redis, which then comes after its timeout.
//! So all calls of a worker are in a [`LocalSet`], which runs some tens of them and then lets the
//! connections and timers go on.

use std::cell::RefCell;
use std::rc::Rc;

use hyper::rt::Executor;
use tokio::task::LocalSet;

thread_local! {
    /// The calls of this worker. `None` on other threads, such as those of unit tests.
    static CALLS: RefCell<Option<Rc<LocalSet>>> = const { RefCell::new(None) };
}

/// Runs the future of a worker, and the calls of the connections that it spawns, until it ends.
pub(super) async fn with_calls<F: Future>(worker: F) -> F::Output {
    let calls = Rc::new(LocalSet::new());
    CALLS.set(Some(Rc::clone(&calls)));
    let output = calls.run_until(worker).await;
    CALLS.take();
    output
}

/// Spawns the calls of a connection beside those of its worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallExecutor;

impl<F> Executor<F> for CallExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, call: F) {
        CALLS.with_borrow(|calls| match calls {
            Some(calls) => drop(calls.spawn_local(call)),
            None => drop(tokio::spawn(call)),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_task_does_not_wait_for_all_calls_that_came_before_it() {
        let begun = Arc::new(AtomicUsize::new(0));
        let (of_calls, of_task) = (Arc::clone(&begun), Arc::clone(&begun));
        let worker = async move {
            for _ in 0..10_000 {
                let begun = Arc::clone(&of_calls);
                CallExecutor.execute(async move { _ = begun.fetch_add(1, Ordering::Relaxed) });
            }
            let before = tokio::spawn(async move { of_task.load(Ordering::Relaxed) });
            before.await.expect("no panic")
        };
        assert!(with_calls(worker).await < 200);
        assert!(CALLS.take().is_none());
    }
}
