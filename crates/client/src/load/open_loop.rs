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

use super::schedule::{Length, LoadPlan};

/// Time after the end of measuring in which queued calls are still started.
const GRACE_PERIOD: Duration = Duration::from_secs(1);
/// The longest sleep, and so the longest time to notice that the load was stopped.
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
    closes: Option<Duration>,
    due: AtomicU64,
    taken: AtomicU64,
    /// One permit for each call that is due and not taken. Closed when no further call starts.
    permits: Semaphore,
}

impl OpenLoop {
    /// Creates the loop of the warm-up. Calls that are queued when measuring begins are dropped,
    /// because they would delay measured calls.
    pub(super) fn warm_up(rate: NonZeroU32, plan: &LoadPlan) -> Self {
        let calls = calls_within(plan.warm_up, rate);
        Self::new(rate, Duration::ZERO, calls, Some(plan.warm_up))
    }

    /// Creates the loop of the measured part.
    pub(super) fn measured(rate: NonZeroU32, plan: &LoadPlan) -> Self {
        let (calls, closes) = match plan.length {
            Length::Calls(calls) => (calls, None),
            Length::Duration(duration) => {
                (calls_within(duration, rate), Some(plan.warm_up + duration + GRACE_PERIOD))
            }
        };
        Self::new(rate, plan.warm_up, calls, closes)
    }

    fn new(rate: NonZeroU32, begins: Duration, calls: u64, closes: Option<Duration>) -> Self {
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
        if self.closes.is_some_and(|closes| elapsed() > closes) {
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

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    fn plan(rate: u32, warm_up: Duration, length: Length) -> (NonZeroU32, LoadPlan) {
        let rate = NonZeroU32::new(rate).expect("a rate");
        (rate, LoadPlan { rate: Some(rate), warm_up, length })
    }

    #[test]
    fn call_is_due_from_its_intended_start_on() {
        for rate in [1, 3, 7, 999, 1_000, 30_011, 10_000_000] {
            let (rate, plan) = plan(rate, MILLI, Length::Calls(u64::MAX));
            let open = OpenLoop::measured(rate, &plan);
            for number in [0, 1, 2, 10, 1_001, 123_456_789] {
                let at = open.intended(number);
                assert_eq!(open.due_at(at), number + 1, "{rate}");
                assert_eq!(open.due_at(at.saturating_sub(Duration::from_nanos(1))), number);
            }
        }
    }

    #[tokio::test]
    async fn queued_call_keeps_its_intended_start() {
        let (rate, plan) = plan(1_000, MILLI * 10, Length::Calls(3));
        let open = OpenLoop::measured(rate, &plan);
        let late = || MILLI * 100;
        open.pace(late);
        assert_eq!(open.due(), 3);
        for expected in [(0, MILLI * 10), (1, MILLI * 11), (2, MILLI * 12)] {
            assert_eq!(open.next(late).await, Some(expected));
        }
        assert_eq!(open.next(late).await, None);
    }

    #[tokio::test]
    async fn queued_calls_of_the_warm_up_are_dropped() {
        let (rate, plan) = plan(1_000, MILLI * 10, Length::Calls(1));
        let open = OpenLoop::warm_up(rate, &plan);
        open.pace(|| MILLI * 9);
        assert_eq!(open.due(), 10);
        assert_eq!(open.next(|| MILLI * 10).await, Some((0, Duration::ZERO)));
        assert_eq!(open.next(|| MILLI * 11).await, None);
    }

    #[tokio::test]
    async fn no_call_starts_after_the_grace_period_or_a_stop() {
        let (rate, plan) = plan(1_000, Duration::ZERO, Length::Duration(MILLI * 10));
        let open = OpenLoop::measured(rate, &plan);
        open.pace(|| MILLI * 10);
        assert!(open.next(|| GRACE_PERIOD + MILLI * 10).await.is_some());
        assert_eq!(open.next(|| GRACE_PERIOD + MILLI * 11).await, None);
        let open = OpenLoop::measured(rate, &plan);
        open.pace(|| MILLI * 10);
        open.stop();
        assert_eq!(open.next(|| MILLI).await, None);
        assert_eq!(OpenLoop::warm_up(rate, &plan).next(|| MILLI).await, None);
    }
}
