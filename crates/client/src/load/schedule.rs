//! Which call is to start when.
//!
//! Workers ask for their [`Schedule::next`] call. In a closed loop they get one at once, until the
//! time or the calls are used up. In an open loop call n is meant to start n / rate after the
//! beginning, whether earlier ones are answered or not. Even spacing, not Poisson: each second has
//! exactly `rate` calls, a run can be repeated, and what queues does so because of the server and
//! not because of a burst that the generator made.

use std::num::NonZeroU32;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::open_loop::OpenLoop;

/// When calls are made.
#[derive(Clone, Copy, Debug)]
pub struct LoadPlan {
    /// Calls per second of an open loop; `None`: a closed loop, as fast as the server answers.
    pub rate: Option<NonZeroU32>,
    /// How long the server is loaded before anything is measured.
    pub warm_up: Duration,
    /// When the measured part is over.
    pub length: Length,
}

/// When the measured part is over.
#[derive(Clone, Copy, Debug)]
pub enum Length {
    /// After this time.
    Duration(Duration),
    /// After this many calls.
    Calls(u64),
}

impl Length {
    /// Have so many calls used it up?
    fn is_over(self, calls: u64) -> bool {
        matches!(self, Self::Calls(most) if calls >= most)
    }
}

/// A call that is to be made now.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScheduledCall {
    /// Counted from 0 in the warm-up and in the measured part.
    pub(super) number: u64,
    pub(super) is_measured: bool,
    /// When it is meant to start, since the beginning of the load.
    pub(super) intended: Duration,
}

/// The calls of a load that has begun; shared by all who make them.
#[derive(Debug)]
pub(super) struct Schedule {
    began: Instant,
    plan: LoadPlan,
    stopped: OnceLock<Duration>,
    pace: Pace,
}

#[derive(Debug)]
enum Pace {
    Closed { warm_up_calls: AtomicU64, calls: AtomicU64 },
    Open { warm_up: OpenLoop, measured: OpenLoop },
}

impl Schedule {
    /// Begins now.
    pub(super) fn start(plan: LoadPlan) -> Self {
        let pace = match plan.rate {
            None => Pace::Closed { warm_up_calls: AtomicU64::new(0), calls: AtomicU64::new(0) },
            Some(rate) => Pace::Open {
                warm_up: OpenLoop::warm_up(rate, &plan),
                measured: OpenLoop::measured(rate, &plan),
            },
        };
        Self { began: now(), plan, stopped: OnceLock::new(), pace }
    }

    pub(super) fn plan(&self) -> &LoadPlan {
        &self.plan
    }

    /// Time since the beginning.
    pub(super) fn elapsed(&self) -> Duration {
        now().saturating_duration_since(self.began)
    }

    /// The call that is to be made next, as soon as it is to start; `None` when there is no more.
    pub(super) async fn next(&self) -> Option<ScheduledCall> {
        match &self.pace {
            Pace::Closed { warm_up_calls, calls } => {
                let intended = self.elapsed();
                let is_late = self.measured_until().is_some_and(|until| intended >= until);
                if is_late || self.is_stopped() {
                    return None;
                }
                let is_measured = intended >= self.plan.warm_up;
                let counter = if is_measured { calls } else { warm_up_calls };
                let number = counter.fetch_add(1, Ordering::Relaxed);
                let is_over = is_measured && self.plan.length.is_over(number);
                (!is_over).then_some(ScheduledCall { number, is_measured, intended })
            }
            Pace::Open { warm_up, measured } => {
                let elapsed = || self.elapsed();
                if let Some((number, intended)) = warm_up.next(elapsed).await {
                    return Some(ScheduledCall { number, is_measured: false, intended });
                }
                let (number, intended) = measured.next(elapsed).await?;
                Some(ScheduledCall { number, is_measured: true, intended })
            }
        }
    }

    /// Gives out calls as they come to be due, until all are; blocks. A closed loop has no need.
    pub(super) fn pace(&self) {
        if let Pace::Open { warm_up, measured } = &self.pace {
            warm_up.pace(|| self.elapsed());
            measured.pace(|| self.elapsed());
        }
    }

    /// Ends early: calls that have not started do not start any more.
    pub(super) fn stop(&self) {
        let _first_time_counts = self.stopped.set(self.elapsed());
        if let Pace::Open { warm_up, measured } = &self.pace {
            warm_up.stop();
            measured.stop();
        }
    }

    /// Has it been ended early?
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.get().is_some()
    }

    /// When measuring ends, unless it ends with a number of calls.
    pub(super) fn measured_until(&self) -> Option<Duration> {
        let Length::Duration(duration) = self.plan.length else { return None };
        let end = self.plan.warm_up + duration;
        Some(self.stopped.get().map_or(end, |stopped| end.min(*stopped)))
    }

    /// Measured calls that have been given out.
    pub(super) fn taken(&self) -> u64 {
        match &self.pace {
            Pace::Closed { calls, .. } => {
                let taken = calls.load(Ordering::Relaxed);
                // Those who asked for one more got none.
                if let Length::Calls(calls) = self.plan.length { taken.min(calls) } else { taken }
            }
            Pace::Open { measured, .. } => measured.taken(),
        }
    }

    /// Measured calls that have been due so far; `None` in a closed loop.
    pub(super) fn due(&self) -> Option<u64> {
        match &self.pace {
            Pace::Closed { .. } => None,
            Pace::Open { measured, .. } => Some(measured.due()),
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "latency is the machine's time; nothing decides by it"
)]
fn now() -> Instant {
    Instant::now()
}
