//! What moves the bytes of a connection: a task of the thread that the connection is of.
//!
//! A task that is woken runs after all others that are ready. What is not to wait for them is
//! written by whoever has it sent: see [`Driver::at_once`].

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use deadpool_redis::redis::aio::MultiplexedConnection;
use futures_util::future::BoxFuture;
use futures_util::task::AtomicWaker;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A connection and its driver. Clones share both, and the last one closes the connection.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) driver: Driver,
}

/// A handle of the driver, which ends with the last one.
#[derive(Clone)]
pub(crate) struct Driver {
    work: Arc<Work>,
    /// Ends with the task.
    life: watch::Receiver<()>,
    _task: Arc<JoinSet<()>>,
}

/// What is to be done, by the task or by others.
struct Work {
    /// `None` when the connection is closed.
    moving: Mutex<Option<BoxFuture<'static, ()>>>,
    task: AtomicWaker,
    /// Does somebody else see to what there is to do? Then the task is not woken for it.
    is_held: AtomicBool,
    /// Has it been woken since [`Driver::at_once`] has begun to do it last?
    is_due: AtomicBool,
}

/// What the task does. The connection is closed with it.
struct Task {
    work: Arc<Work>,
    _life: watch::Sender<()>,
}

/// Ends the time in which somebody else sees to the work.
struct Hold<'a>(&'a Work);

impl Driver {
    /// Starts on this thread.
    pub(crate) fn start(moving: impl Future<Output = ()> + Send + 'static) -> Self {
        let work = Arc::new(Work {
            moving: Mutex::new(Some(Box::pin(moving))),
            task: AtomicWaker::new(),
            is_held: AtomicBool::new(false),
            is_due: AtomicBool::new(false),
        });
        let (end, life) = watch::channel(());
        let mut task = JoinSet::new();
        task.spawn(Task { work: Arc::clone(&work), _life: end });
        Self { work, life, _task: Arc::new(task) }
    }

    /// Completes when the connection is closed, by whomever.
    pub(crate) async fn closed(&self) {
        let mut life = self.life.clone();
        while life.changed().await.is_ok() {}
    }

    /// Does what `asks`, and writes what that has sent before it returns, as far as the connection
    /// takes it.
    pub(crate) fn at_once<T>(&self, asks: impl FnOnce() -> T) -> T {
        let work = &self.work;
        let hold = work.hold();
        let asked = asks();
        // What was sent before is written by this.
        work.is_due.store(false, Ordering::SeqCst);
        if work.poll().is_ready() {
            work.is_due.store(true, Ordering::SeqCst);
        }
        drop(hold);
        asked
    }
}

impl Work {
    fn poll(self: &Arc<Self>) -> Poll<()> {
        let waker = Waker::from(Arc::clone(self));
        let mut moving = self.moving();
        let Some(work) = &mut *moving else { return Poll::Ready(()) };
        let polled = work.as_mut().poll(&mut Context::from_waker(&waker));
        if polled.is_ready() {
            *moving = None;
        }
        polled
    }

    fn hold(&self) -> Hold<'_> {
        self.is_held.store(true, Ordering::SeqCst);
        Hold(self)
    }

    fn moving(&self) -> MutexGuard<'_, Option<BoxFuture<'static, ()>>> {
        self.moving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Work {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // In this order, and the other way round where a hold ends: one of the two sees the other.
        self.is_due.store(true, Ordering::SeqCst);
        if !self.is_held.load(Ordering::SeqCst) {
            self.task.wake();
        }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.is_held.store(false, Ordering::SeqCst);
        if self.0.is_due.load(Ordering::SeqCst) {
            self.0.task.wake();
        }
    }
}

impl Future for Task {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.work.task.register(context.waker());
        self.work.poll()
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        *self.work.moving() = None;
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Driver")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::sync::mpsc;
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
    use tokio::task::yield_now;

    /// A driver that moves numbers.
    fn start() -> (Driver, UnboundedSender<u32>, mpsc::Receiver<u32>) {
        let ((queue, mut queued), (wire, moved)) = (unbounded_channel(), mpsc::channel());
        let moving = poll_fn(move |context| {
            while let Poll::Ready(Some(number)) = queued.poll_recv(context) {
                wire.send(number).expect("a reader");
            }
            Poll::Pending
        });
        (Driver::start(moving), queue, moved)
    }

    #[tokio::test]
    async fn what_is_sent_at_once_does_not_wait_for_the_task() {
        let (driver, queue, moved) = start();
        yield_now().await;
        for number in 0..3 {
            driver.at_once(|| queue.send(number)).expect("a driver");
            assert_eq!(moved.try_recv(), Ok(number));
        }
        // Everything else does, and is not forgotten.
        queue.send(3).expect("a driver");
        assert_eq!(moved.try_recv(), Err(mpsc::TryRecvError::Empty));
        yield_now().await;
        assert_eq!(moved.try_recv(), Ok(3));
    }

    #[tokio::test]
    async fn nothing_is_forgotten_whoever_sends_it() {
        const EACH: u32 = 20_000;
        let (driver, queue, moved) = start();
        let senders: Vec<_> = (0..3)
            .map(|sender| {
                let (driver, queue) = (driver.clone(), queue.clone());
                std::thread::spawn(move || {
                    for number in 0..EACH {
                        let send = || queue.send(number).expect("a driver");
                        if (number + sender) % 3 == 0 { send() } else { driver.at_once(send) }
                    }
                })
            })
            .collect();
        let mut sum = 0;
        let all = async {
            for _ in 0..3 * EACH {
                // The last ones are moved by the task, or never.
                while moved.try_recv().map(|number| sum += u64::from(number)).is_err() {
                    yield_now().await;
                }
            }
        };
        let patience = std::time::Duration::from_mins(1);
        tokio::time::timeout(patience, all).await.expect("every number");
        assert_eq!(sum, 3 * u64::from(EACH) * u64::from(EACH - 1) / 2);
        for sender in senders {
            sender.join().expect("no panic");
        }
    }

    #[tokio::test]
    async fn a_panic_while_something_is_sent_stops_nothing() {
        let (driver, queue, moved) = start();
        yield_now().await;
        let asks = std::panic::AssertUnwindSafe(|| {
            driver.at_once(|| {
                queue.send(1).expect("a driver");
                panic!("as a test");
            })
        });
        std::panic::catch_unwind(asks).expect_err("a panic");
        yield_now().await;
        assert_eq!(moved.try_recv(), Ok(1));
    }

    #[tokio::test]
    async fn the_last_handle_closes_the_connection() {
        let (driver, queue, _moved) = start();
        let other = driver.clone();
        drop(driver);
        yield_now().await;
        assert!(!queue.is_closed());
        drop(other);
        yield_now().await;
        assert!(queue.is_closed());
    }

    #[tokio::test]
    async fn a_connection_that_has_ended_is_let_go() {
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let held = Arc::new(());
        let kept = Arc::clone(&held);
        let driver = Driver::start(async move {
            let _ended = ended.await;
            drop(kept);
        });
        yield_now().await;
        driver.at_once(|| end.send(())).expect("a driver");
        assert_eq!(Arc::strong_count(&held), 1);
        driver.closed().await;
    }
}
