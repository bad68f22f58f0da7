//! The limits that are found are those that trying every limit finds.

use std::collections::HashMap;

use proptest::prelude::*;
use rlaas_core::algorithm::{Algorithm, Cost, Limit, State};
use rlaas_core::clock::{Micros, Timestamp};
use rlaas_core::rules::{Rule, RuleSet};
use rlaas_simulation::limits::{
    FoundLimit, HitRecorder, LimitReport, LimitSettings, RecordedHits, RefusalMeasure,
    SpoolSettings, find_limits,
};
use rlaas_simulation::simulation::MaxShare;
use rlaas_simulation::{Dictionary, RecordedFields, RecordedRequest, TimedRequest};

/// One request of a trace: milliseconds since the one before, user, cost.
type Step = (u64, u8, u32);

/// Random cases, more if `SOAK` asks for them.
fn config() -> ProptestConfig {
    let cases = if std::env::var_os("SOAK").is_some() { 5_000 } else { 100 };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Returns the times of the requests. The time since the one before is in twelfths of a window and
/// microseconds beside them.
fn times(window: Micros, trace: &[Step]) -> Vec<(Timestamp, u8, u32)> {
    let mut at = Timestamp::from_micros(1_700_000_000_123_456);
    let timed = trace.iter().map(|(twelfths, user, cost)| {
        at = at + Micros::from_micros(window.as_micros() * twelfths / 12 + twelfths % 3);
        (at, *user, *cost)
    });
    timed.collect()
}

fn recorded(trace: &[(Timestamp, u8, u32)]) -> RecordedHits {
    let limit = Limit::new(1, Micros::from_secs(1)).expect("a limit");
    let rules = RuleSet::new(Rule::new_default(Algorithm::Gcra, limit), Vec::new());
    let spool = SpoolSettings { directory: std::env::temp_dir(), max_bytes: u64::MAX };
    let mut recorder = HitRecorder::new(&rules, &[], spool).expect("a recorder");
    let mut dictionary = Dictionary::default();
    for (at, user, cost) in trace {
        let user_id = format!("user {user}").into();
        let fields = RecordedFields { user_id, cost: *cost, ..RecordedFields::default() };
        let request = dictionary.number(RecordedRequest::Fields(fields));
        let timed = TimedRequest { at: *at, request, was_refused: false };
        recorder.record(timed, &dictionary).expect("space");
    }
    recorder.finish()
}

fn shares() -> Vec<MaxShare> {
    let shares = [0, 1_000, 50_000, 200_000, 500_000];
    shares
        .into_iter()
        .map(|millionths| MaxShare::from_millionths(millionths).expect("a share"))
        .collect()
}

/// Returns the requests and the ids that a limit refuses.
fn refused(algorithm: Algorithm, limit: &Limit, trace: &[(Timestamp, u8, u32)]) -> (u64, u64) {
    let mut users: HashMap<u8, (State, bool)> = HashMap::new();
    let mut requests = 0;
    for (at, user, cost) in trace {
        let (state, was_refused) = users.entry(*user).or_default();
        // As a store does: a cost of 0 changes nothing.
        let decision = match Cost::new(*cost) {
            Cost::NONE => algorithm.decide(state, limit, *at, Cost::NONE),
            cost => algorithm.take(state, limit, *at, cost),
        };
        if !decision.is_allowed() {
            requests += 1;
            *was_refused = true;
        }
    }
    (requests, users.values().filter(|(_, was_refused)| *was_refused).count() as u64)
}

/// Tries every limit. Returns the smallest one from which on at most the share is refused.
fn brute_force(
    trace: &[(Timestamp, u8, u32)],
    results: &[(u64, u64)],
    of: RefusalMeasure,
    share: MaxShare,
) -> u64 {
    let ids = trace.iter().map(|(_, user, _)| user).collect::<std::collections::HashSet<_>>().len();
    let is_too_many = |(requests, refused_ids): &(u64, u64)| match of {
        RefusalMeasure::Requests => *requests > share.most_of(trace.len() as u64),
        RefusalMeasure::Ids => *refused_ids > share.most_of(ids as u64),
    };
    let largest_too_small = results.iter().rposition(is_too_many);
    // The result at position 0 is that of limit 1.
    largest_too_small.map_or(1, |position| position as u64 + 2)
}

fn check(
    algorithm: Algorithm,
    window: Micros,
    burst: Option<u64>,
    trace: &[Step],
) -> Result<(), TestCaseError> {
    let trace = times(window, trace);
    let settings = LimitSettings {
        algorithms: vec![algorithm],
        windows: vec![window],
        burst,
        shares: shares(),
        measures: RefusalMeasure::ALL.to_vec(),
    };
    let report = find_limits(&recorded(&trace), &settings, |_| {}).expect("limits");
    let curve = &report.rules[0].curves[0];
    let units: u64 = trace.iter().map(|(_, _, cost)| u64::from(*cost)).sum();
    let results = (1..=units + 1).map(|units| {
        let limit = Limit::new(units, window).expect("a limit");
        let limit = burst.map_or(limit, |burst| limit.with_burst(burst).expect("a burst"));
        refused(algorithm, &limit, &trace)
    });
    let results: Vec<_> = results.collect();
    for found in &curve.limits {
        let expected = brute_force(&trace, &results, found.of, found.share);
        let expected = FoundLimit::Exactly { limit: expected };
        // With a small burst the largest limit that was tried may refuse too many.
        if burst.is_none() {
            prop_assert_eq!(found.found, expected, "{:?}", found);
        } else if let FoundLimit::Exactly { limit } = found.found
            && limit <= units
        {
            prop_assert_eq!(found.found, expected, "{:?}", found);
        }
    }
    for point in &curve.points {
        if let Some(result) = results.get(usize::try_from(point.limit).expect("small") - 1) {
            prop_assert_eq!((point.requests, point.ids), *result, "limit {}", point.limit);
        }
    }
    Ok(())
}

fn trace(costs: impl Strategy<Value = u32>) -> impl Strategy<Value = Vec<Step>> {
    let pause = prop_oneof![6 => 0_u64..3, 3 => 0_u64..12, 1 => 0_u64..40];
    prop::collection::vec((pause, 0_u8..4, costs), 1..60)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn limits_equal_those_of_trying_every_limit(
        algorithm in prop::sample::select(Algorithm::ALL),
        window in prop::sample::select(vec![7_u64, 1_000, 60_000]),
        trace in trace(prop_oneof![3 => 0_u32..4, 2 => 1_u32..30, 1 => Just(200_u32)]),
    ) {
        check(algorithm, Micros::from_millis(window), None, &trace)?;
    }

    #[test]
    fn limits_equal_those_of_trying_every_limit_if_all_costs_are_equal(
        algorithm in prop::sample::select(Algorithm::ALL),
        cost in 1_u32..5,
        trace in trace(Just(1_u32)),
    ) {
        let trace: Vec<Step> = trace.into_iter().map(|(pause, user, _)| (pause, user, cost)).collect();
        check(algorithm, Micros::from_millis(1_000), None, &trace)?;
    }

    #[test]
    fn limits_with_a_burst_equal_those_of_trying_every_limit(
        algorithm in prop::sample::select(vec![Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra]),
        burst in 1_u64..60,
        trace in trace(prop_oneof![3 => 0_u32..4, 1 => 1_u32..30]),
    ) {
        check(algorithm, Micros::from_millis(1_000), Some(burst), &trace)?;
    }
}

/// A trace by which a larger limit refuses more: with 2 units the cost of 3 never fits, so two
/// requests of 1 pass; with 3 it takes them all.
fn trap(users: u8) -> Vec<Step> {
    (0..users).flat_map(|user| [(0, user, 3), (0, user, 1), (0, user, 1), (0, user, 1)]).collect()
}

fn report(trace: &[Step], algorithm: Algorithm) -> LimitReport {
    let window = Micros::from_secs(60);
    let settings = LimitSettings {
        algorithms: vec![algorithm],
        windows: vec![window],
        burst: None,
        shares: vec![MaxShare::from_millionths(500_000).expect("a share")],
        measures: vec![RefusalMeasure::Requests],
    };
    find_limits(&recorded(&times(window, trace)), &settings, |_| {}).expect("limits")
}

#[test]
fn a_limit_below_one_that_refuses_more_is_not_enough() {
    for algorithm in Algorithm::ALL {
        let report = report(&trap(3), *algorithm);
        let curve = &report.rules[0].curves[0];
        let refused: Vec<u64> = curve.points.iter().take(4).map(|point| point.requests).collect();
        // Limit 2 refuses half of the requests, limit 3 refuses three quarters.
        assert_eq!(refused, [9, 6, 9, 6], "{algorithm:?}");
        assert_eq!(curve.limits[0].found, FoundLimit::Exactly { limit: 4 }, "{algorithm:?}");
    }
}

#[test]
fn a_cost_above_the_maximum_of_the_algorithm_is_unreachable() {
    let report = report(&[(0, 0, 20_000)], Algorithm::SlidingWindowLog);
    assert_eq!(report.rules[0].curves[0].limits[0].found, FoundLimit::Unreachable);
}
