//! The promise of each algorithm for any span of time, tested with random traffic: the allowed
//! units of every span are added up.

use super::rules_with_burst;
use super::{Subject, T0};
use crate::algorithm::Algorithm;
use crate::clock::{Micros, Timestamp};
use crate::rules::RuleSet;

const UNITS: u64 = 7;
const BURST: u64 = 11;
const WINDOW: Micros = Micros::from_millis(700);

/// For each allowed request: the latest time that the clock had shown by then, and the units.
type Passed = Vec<(u64, u64)>;

async fn traffic(on: &Subject, calls: u32, max_step_back_us: u64) -> Passed {
    let mut passed = Passed::new();
    let (mut random, mut now, mut latest) = (7_u64, T0.as_micros(), T0.as_micros());
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (random >> 33) % below
    };
    for _ in 0..calls {
        now += match next(4) {
            0 => 0,
            1 => next(1_000),
            2 => next(100_000),
            _ => next(WINDOW.as_micros() / 2),
        };
        if max_step_back_us > 0 && next(10) == 0 {
            now = (now - next(max_step_back_us)).max(latest - max_step_back_us);
        }
        latest = latest.max(now);
        on.set_clock(Timestamp::from_micros(now));
        let cost = 1 + next(3);
        if on.check_cost("alice", cost).await.is_allowed() {
            passed.push((latest, cost));
        }
    }
    passed
}

/// Returns the largest excess in any span: the allowed units, less `allowance` of the length of the
/// span.
fn worst(passed: &Passed, allowance: impl Fn(u64) -> u64) -> u64 {
    let mut worst = 0;
    for (first, (start, _)) in passed.iter().enumerate() {
        let mut sum = 0;
        for (end, units) in &passed[first..] {
            sum += units;
            worst = worst.max(sum.saturating_sub(allowance(end.saturating_sub(*start))));
        }
    }
    worst
}

fn in_window(start: u64, passed: &Passed) -> u64 {
    let window = start..start + WINDOW.as_micros();
    passed.iter().filter(|(at, _)| window.contains(at)).map(|(_, units)| units).sum()
}

/// Panics if more units were allowed than the algorithm promises.
fn hold_to_promise(algorithm: Algorithm, passed: &Passed) {
    assert!(passed.len() > 50, "too few requests were allowed");
    let window = WINDOW.as_micros();
    match algorithm {
        Algorithm::FixedWindow => {
            for (at, _) in passed {
                assert!(in_window(at - at % window, passed) <= UNITS);
            }
        }
        Algorithm::SlidingWindowLog => {
            for (at, _) in passed {
                // The log stores whole milliseconds.
                assert!(in_window(at - at % 1_000, passed) <= UNITS);
            }
        }
        Algorithm::SlidingWindowCounter => {
            for (at, _) in passed {
                assert!(in_window(*at, passed) <= 2 * UNITS);
            }
        }
        _ => assert!(worst(passed, |length| length * UNITS / window) <= BURST),
    }
}

pub(super) fn promised(algorithm: Algorithm) -> RuleSet {
    let burst = if algorithm.has_burst() { BURST } else { UNITS };
    rules_with_burst(algorithm, UNITS, WINDOW, burst)
}

pub(super) async fn never_more_than_the_promise(on: Subject) {
    hold_to_promise(on.algorithm(), &traffic(&on, 2_000, 0).await);
}

pub(super) async fn time_that_steps_back_mints_nothing(on: Subject) {
    hold_to_promise(on.algorithm(), &traffic(&on, 1_000, WINDOW.as_micros()).await);
}
