//! The timing of calls.
//!
//! Workers take their calls from [`Schedule::next`]. In a closed loop it returns at once, until the
//! time or the number of calls is used up. In an open loop the intended start of call n is n / rate
//! after the start of the load, whether earlier calls are answered or not.
//!
//! The calls of an open loop have even intervals rather than a Poisson distribution. So each second
//! has exactly `rate` calls, runs can be repeated, and calls wait in the queue because of the
//! server and not because of a burst by the generator.

use std::num::NonZeroU32;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::open_loop::OpenLoop;

/// The timing of the calls of a load.
#[derive(Clone, Copy, Debug)]
pub struct LoadPlan {
    /// Calls per second of an open loop. `None`: a closed loop, as fast as the server answers.
    pub rate: Option<NonZeroU32>,
    /// Duration of the load before measuring begins.
    pub warm_up: Duration,
    /// Length of the measured part.
    pub length: Length,
}

/// The length of the measured part.
#[derive(Clone, Copy, Debug)]
pub enum Length {
    /// A duration.
    Duration(Duration),
    /// A number of calls.
    Calls(u64),
}

impl Length {
    /// Returns `true` if the measured part is over after `calls` calls.
    fn is_over(self, calls: u64) -> bool {
        matches!(self, Self::Calls(most) if calls >= most)
    }
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
    stopped: OnceLock<Duration>,
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
                warm_up: OpenLoop::warm_up(rate, &plan),
                measured: OpenLoop::measured(rate, &plan),
            },
        };
        Self { began: now(), plan, stopped: OnceLock::new(), pace }
    }

    pub(super) fn plan(&self) -> &LoadPlan {
        &self.plan
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

    /// Releases the calls of an open loop when they are due, up to the last one. Blocks the thread.
    /// Returns at once for a closed loop.
    pub(super) fn pace(&self) {
        if let Pace::Open { warm_up, measured } = &self.pace {
            warm_up.pace(|| self.elapsed());
            measured.pace(|| self.elapsed());
        }
    }

    /// Stops early: no further call starts.
    pub(super) fn stop(&self) {
        let _first_time_counts = self.stopped.set(self.elapsed());
        if let Pace::Open { warm_up, measured } = &self.pace {
            warm_up.stop();
            measured.stop();
        }
    }

    /// Returns `true` if the load was stopped early.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.get().is_some()
    }

    /// Returns the end of measuring since the start of the load; `None` for [`Length::Calls`].
    pub(super) fn measured_until(&self) -> Option<Duration> {
        let Length::Duration(duration) = self.plan.length else { return None };
        let end = self.plan.warm_up + duration;
        Some(self.stopped.get().map_or(end, |stopped| end.min(*stopped)))
    }

    /// Returns the number of measured calls that [`Self::next`] has returned.
    pub(super) fn taken(&self) -> u64 {
        match &self.pace {
            Pace::Closed { calls, .. } => {
                let taken = calls.load(Ordering::Relaxed);
                // The counter also counts attempts after the last call.
                if let Length::Calls(calls) = self.plan.length { taken.min(calls) } else { taken }
            }
            Pace::Open { measured, .. } => measured.taken(),
        }
    }

    /// Returns the number of measured calls that have been due so far; `None` in a closed loop.
    pub(super) fn due(&self) -> Option<u64> {
        match &self.pace {
            Pace::Closed { .. } => None,
            Pace::Open { measured, .. } => Some(measured.due()),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "for latencies; no decision depends on it")]
fn now() -> Instant {
    Instant::now()
}
