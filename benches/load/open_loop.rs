//! The open loop: calls become due by the clock and wait in a queue for a free worker.
//!
//! The queue consists of two numbers, due and taken, so that a slow server needs no memory here.
//! Timers of tokio have a resolution of one millisecond, which is more than most answers take. So a
//! separate thread sleeps with the resolution of the system (about 50 µs) and wakes the workers.

use std::fs;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::schedule::LoadPlan;

/// Time after the end of measuring in which queued calls are still started.
const GRACE_PERIOD: Duration = Duration::from_secs(1);
/// The longest sleep, and so the longest time to notice that no further call starts.
const MAX_SLEEP: Duration = Duration::from_millis(50);
const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// The calls of the warm-up or of the measured part.
#[derive(Debug)]
pub(super) struct OpenLoop {
    rate: NonZeroU32,
    /// Intended start of the first call, since the start of the load.
    begins: Duration,
    calls: u64,
    /// End of the time in which calls are started, since the start of the load.
    closes: Duration,
    due: AtomicU64,
    taken: AtomicU64,
    /// One permit for each call that is due and not taken. Closed when no further call starts.
    permits: Semaphore,
}

impl OpenLoop {
    /// Creates the loop of the warm-up. Calls that are queued when measuring begins are dropped,
    /// because they would delay measured calls.
    pub(super) fn warm_up(rate: NonZeroU32, plan: LoadPlan) -> Self {
        let calls = calls_within(plan.warm_up, rate);
        Self::new(rate, Duration::ZERO, calls, plan.warm_up)
    }

    /// Creates the loop of the measured part.
    pub(super) fn measured(rate: NonZeroU32, plan: LoadPlan) -> Self {
        let closes = plan.warm_up + plan.duration + GRACE_PERIOD;
        Self::new(rate, plan.warm_up, calls_within(plan.duration, rate), closes)
    }

    fn new(rate: NonZeroU32, begins: Duration, calls: u64, closes: Duration) -> Self {
        let permits = Semaphore::new(0);
        if calls == 0 {
            permits.close();
        }
        let (due, taken) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { rate, begins, calls, closes, due, taken, permits }
    }

    /// Waits for a call that is due, and returns the number and the intended start of the oldest
    /// one; `None` if no further call starts.
    pub(super) async fn next(&self, elapsed: impl Fn() -> Duration) -> Option<(u64, Duration)> {
        self.permits.acquire().await.ok()?.forget();
        if elapsed() > self.closes {
            self.stop();
            return None;
        }
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        if number + 1 == self.calls {
            self.stop();
        }
        Some((number, self.intended(number)))
    }

    /// Adds a permit for each call when it is due, up to the last one. Blocks the thread.
    pub(super) fn pace(&self, elapsed: impl Fn() -> Duration) {
        let mut due = 0;
        while due < self.calls && !self.permits.is_closed() {
            let now = elapsed();
            let wait = self.intended(due).saturating_sub(now);
            if !wait.is_zero() {
                thread::park_timeout(wait.min(MAX_SLEEP));
                continue;
            }
            let more = self.due_at(now) - due;
            due += more;
            self.due.store(due, Ordering::Relaxed);
            self.permits.add_permits(usize::try_from(more).unwrap_or(Semaphore::MAX_PERMITS));
        }
    }

    /// Stops the loop: no further call starts.
    pub(super) fn stop(&self) {
        self.permits.close();
    }

    /// Returns the number of calls that have been due so far.
    pub(super) fn due(&self) -> u64 {
        self.due.load(Ordering::Relaxed)
    }

    /// Returns the number of calls that [`Self::next`] has returned.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Returns the number of calls with an intended start up to `now`.
    fn due_at(&self, now: Duration) -> u64 {
        let later = now.saturating_add(Duration::from_nanos(1));
        calls_within(later.saturating_sub(self.begins), self.rate).min(self.calls)
    }

    fn intended(&self, number: u64) -> Duration {
        let nanos = u128::from(number) * NANOS_PER_SECOND / u128::from(self.rate.get());
        self.begins + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Returns the number of calls in a duration that begins with a call.
fn calls_within(duration: Duration, rate: NonZeroU32) -> u64 {
    let calls = (duration.as_nanos() * u128::from(rate.get())).div_ceil(NANOS_PER_SECOND);
    u64::try_from(calls).unwrap_or(u64::MAX)
}

/// Sets the smallest timer slack for threads that this thread spawns from now on. By default Linux
/// wakes threads up to 50 µs late, to combine wake-ups.
pub(super) fn minimize_timer_slack() {
    let _best_effort = fs::write("/proc/self/timerslack_ns", "1");
}
