//! The timing of calls.
//!
//! Workers take their calls from [`Schedule::next`]. In a closed loop it returns at once, until the
//! time is used up. In an open loop the intended start of call n is n / rate after the start of the load,
//! whether earlier calls are answered or not.
//!
//! The calls of an open loop have even intervals rather than a Poisson distribution. So each second
//! has exactly `rate` calls, runs can be repeated, and calls wait in the queue because of the
//! server and not because of a burst by the generator.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::open_loop::OpenLoop;

/// The timing of the calls of a load.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadPlan {
    /// Calls per second of an open loop. `None`: a closed loop, as fast as the server answers.
    pub(super) rate: Option<NonZeroU32>,
    /// Duration of the load before measuring begins.
    pub(super) warm_up: Duration,
    /// Duration of the measured part.
    pub(super) duration: Duration,
}

/// A call to be started now.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScheduledCall {
    /// Counts from 0, separately in the warm-up and the measured part.
    pub(super) number: u64,
    pub(super) is_measured: bool,
    /// Intended start, since the start of the load.
    pub(super) intended: Duration,
}

/// The calls of a running load, shared by its workers.
#[derive(Debug)]
pub(super) struct Schedule {
    began: Instant,
    plan: LoadPlan,
    pace: Pace,
}

#[derive(Debug)]
enum Pace {
    Closed { warm_up_calls: AtomicU64, calls: AtomicU64 },
    Open { warm_up: OpenLoop, measured: OpenLoop },
}

impl Schedule {
    /// Starts the load now.
    pub(super) fn start(plan: LoadPlan) -> Self {
        let pace = match plan.rate {
            None => Pace::Closed { warm_up_calls: AtomicU64::new(0), calls: AtomicU64::new(0) },
            Some(rate) => Pace::Open {
                warm_up: OpenLoop::warm_up(rate, plan),
                measured: OpenLoop::measured(rate, plan),
            },
        };
        Self { began: now(), plan, pace }
    }

    pub(super) fn plan(&self) -> LoadPlan {
        self.plan
    }

    /// Returns the time since the start of the load.
    pub(super) fn elapsed(&self) -> Duration {
        now().saturating_duration_since(self.began)
    }

    /// Waits for the start of the next call and returns it; `None` if no further call starts.
    pub(super) async fn next(&self) -> Option<ScheduledCall> {
        match &self.pace {
            Pace::Closed { warm_up_calls, calls } => {
                let intended = self.elapsed();
                let is_measured = intended >= self.plan.warm_up;
                let counter = if is_measured { calls } else { warm_up_calls };
                let call = || ScheduledCall {
                    number: counter.fetch_add(1, Ordering::Relaxed),
                    is_measured,
                    intended,
                };
                (intended < self.measured_until()).then(call)
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

    /// Releases the calls of an open loop when they are due, up to the last one. Blocks the thread.
    /// Returns at once for a closed loop.
    pub(super) fn pace(&self) {
        if let Pace::Open { warm_up, measured } = &self.pace {
            warm_up.pace(|| self.elapsed());
            measured.pace(|| self.elapsed());
        }
    }

    /// Returns the end of measuring since the start of the load.
    pub(super) fn measured_until(&self) -> Duration {
        self.plan.warm_up + self.plan.duration
    }

    /// Returns the number of measured calls of an open loop that have been due so far; 0 of a closed one.
    pub(super) fn due(&self) -> u64 {
        match &self.pace {
            Pace::Closed { .. } => 0,
            Pace::Open { measured, .. } => measured.due(),
        }
    }

    /// Returns the number of measured calls of an open loop that [`Self::next`] has returned.
    pub(super) fn taken(&self) -> u64 {
        match &self.pace {
            Pace::Closed { .. } => 0,
            Pace::Open { measured, .. } => measured.taken(),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "for latencies; no decision depends on it")]
fn now() -> Instant {
    Instant::now()
}
