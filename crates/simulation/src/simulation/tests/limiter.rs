//! A simulation decides as a limiter does whose clock is moved.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;
use rlaas_core::algorithm::{Algorithm, Limit};
use rlaas_core::clock::{Clock, Deadline, ManualClock, Micros};
use rlaas_core::rules::descriptors::{Descriptor, DescriptorRule, DescriptorSpec, Descriptors};
use rlaas_core::rules::spec::{Field, RateSpec};
use rlaas_core::rules::{
    Coupling, Matcher, Mode, Part, Pattern, Rule, RuleSet, TextPattern, Unmatched,
};
use rlaas_limiter::observer::NoObserver;
use rlaas_limiter::store::{MemorySettings, MemoryStore, Store};
use rlaas_limiter::{CheckError, Limiter};

use super::{at_millis, fields};
use crate::request::{
    RecordedDescriptor, RecordedDescriptors, RecordedRequest, TimedRequest, descriptor_request,
    with_request,
};
use crate::simulation::{
    SimulatedDecision, SimulatedOutcome, SimulatedVerdict, Simulation, SimulationSettings,
};

/// The outcome and the decisions of a live limiter.
fn live(
    limiter: &Limiter,
    request: &RecordedRequest,
) -> (SimulatedOutcome, Vec<SimulatedDecision>) {
    let outcome = |is_allowed: bool| {
        if is_allowed { SimulatedOutcome::Allowed } else { SimulatedOutcome::Refused }
    };
    match request {
        RecordedRequest::Fields(of) => {
            let check = with_request(of, |request| limiter.check_now(request));
            match check.expect("a valid request").expect("memory never waits") {
                Ok(verdict) => (
                    outcome(verdict.is_allowed()),
                    verdict.decisions.iter().map(SimulatedDecision::from).collect(),
                ),
                Err(CheckError::NoRule) => (SimulatedOutcome::RefusedUnmatched, Vec::new()),
                Err(error) => panic!("{error}"),
            }
        }
        RecordedRequest::Descriptors(of) => {
            let request = descriptor_request(of).expect("a valid request");
            let mut check = pin!(limiter.check_descriptors(&request, Deadline::NEVER));
            let Poll::Ready(verdict) = check.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            else {
                panic!("memory never waits");
            };
            match verdict {
                Ok(verdict) => {
                    let answers = verdict.answers.iter().flatten();
                    let decisions =
                        answers.map(|answer| SimulatedDecision::from(&answer.decided)).collect();
                    (outcome(verdict.is_allowed()), decisions)
                }
                Err(CheckError::Descriptor(reason)) => {
                    (SimulatedOutcome::Invalid(reason.into()), Vec::new())
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn limiter(rules: RuleSet, clock: &ManualClock) -> Limiter {
    let clock = Clock::Manual(clock.clone());
    let store = MemoryStore::new(MemorySettings::default(), clock, Arc::new(NoObserver));
    Limiter::new(rules, Store::Memory(store), Arc::new(NoObserver))
}

fn simulated(verdict: &SimulatedVerdict) -> (SimulatedOutcome, Vec<SimulatedDecision>) {
    (verdict.outcome, verdict.decisions.to_vec())
}

fn algorithms() -> impl Strategy<Value = Algorithm> {
    prop::sample::select(Algorithm::RATES)
}

fn modes() -> impl Strategy<Value = Mode> {
    use Mode::{Enforced, Quota, Shadow, ShadowQuota};
    prop::sample::select(vec![Enforced, Enforced, Enforced, Shadow, Quota, Quota, ShadowQuota])
}

fn limits() -> impl Strategy<Value = Limit> {
    let window = prop::sample::select(vec![1_u64, 50, 1_000, 60_000]);
    (1..8_u64, window)
        .prop_map(|(units, ms)| Limit::new(units, Micros::from_millis(ms)).expect("a limit"))
}

prop_compose! {
    /// One rule for everybody, and rules for single resources.
    fn rule_sets()(
        default in (algorithms(), limits()),
        named in prop::collection::vec((algorithms(), limits(), modes(), 0..3_usize, any::<bool>()), 0..4),
        unmatched in prop::sample::select(&Unmatched::ALL),
        trees in prop::collection::vec((algorithms(), limits(), modes()), 3),
        coupling in prop::sample::select(vec![Coupling::AllOrNothing, Coupling::EachAlone]),
    ) -> RuleSet {
        let named = named.into_iter().enumerate().map(|(number, (algorithm, limit, mode, of, by))| {
            let mut rule = Rule::new_default(algorithm, limit);
            rule.name = format!("rule-{number}").into();
            rule.mode = mode;
            if of > 0 {
                let pattern = Pattern::OneOf(vec![TextPattern::Exact(format!("/{of}"))]);
                rule.matcher = Matcher { patterns: vec![(Part::Resource, pattern)] };
            }
            rule.key_by = if by { vec![Part::Resource] } else { vec![Part::UserId] };
            rule
        });
        let rules = RuleSet::new(Rule::new_default(default.0, default.1), named.collect());
        let descriptor = |(number, (algorithm, limit, mode)): (usize, (Algorithm, Limit, Mode))| {
            Descriptor {
                key: format!("key-{number}"),
                value: None,
                shares: false,
                value_to_metric: false,
                rule: Some(descriptor_rule(number, algorithm, limit, mode, coupling)),
                below: Vec::new(),
            }
        };
        let tree = trees.into_iter().enumerate().map(descriptor).collect();
        let descriptors = Descriptors::new(vec![("domain".to_owned(), tree)], coupling);
        rules.with_unmatched(unmatched).with_descriptors(descriptors)
    }
}

fn descriptor_rule(
    number: usize,
    algorithm: Algorithm,
    limit: Limit,
    mode: Mode,
    coupling: Coupling,
) -> DescriptorRule {
    let rate = RateSpec {
        algorithm: Field::Set(algorithm),
        limit: Field::Set(limit.units()),
        window: Field::Set(limit.windows()),
        ..RateSpec::default()
    };
    let label = format!("domain.key-{number}");
    let spec = DescriptorSpec { label, rate, mode, ..DescriptorSpec::default() };
    spec.build(coupling).expect("a valid rule")
}

fn requests() -> impl Strategy<Value = RecordedRequest> {
    let flat = (0..3_u8, 0..3_u8, 0..4_u32)
        .prop_map(|(user, of, cost)| fields(&user.to_string(), &format!("/{of}"), cost));
    let limit = prop::option::weighted(0.1, (1..4_u64, prop::sample::select(vec![1_000_000_u64])));
    let descriptor = (0..4_u8, 0..2_u8, -1..4_i64, limit).prop_map(|(key, value, hits, limit)| {
        let entries = [(format!("key-{key}").into(), value.to_string().into())];
        RecordedDescriptor { entries: Box::new(entries), hits, limit }
    });
    let descriptors = prop::collection::vec(descriptor, 1..4).prop_map(|descriptors| {
        let (domain, descriptors) = ("domain".into(), descriptors.into());
        RecordedRequest::Descriptors(RecordedDescriptors { domain, descriptors })
    });
    prop_oneof![flat, descriptors]
}

fn cases() -> u32 {
    std::env::var("SOAK").ok().and_then(|text| text.parse().ok()).unwrap_or(100)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]
    #[test]
    fn a_simulation_decides_as_a_limiter_with_a_moved_clock(
        candidate in rule_sets(),
        against in prop::option::of(rule_sets()),
        steps in prop::collection::vec(
            (prop::sample::select(vec![0_u64, 0, 1, 7, 49, 333, 1_000, 70_000]), requests()),
            1..150,
        ),
    ) {
        let clock = ManualClock::default();
        let live_candidate = limiter(candidate.clone(), &clock);
        let live_against = against.clone().map(|rules| limiter(rules, &clock));
        let settings = SimulationSettings { against, ..SimulationSettings::new(candidate) };
        let mut simulation = Simulation::new(settings);
        let mut millis = 0;
        for (step, request) in steps {
            millis += step;
            clock.set(at_millis(millis));
            let expected = live(&live_candidate, &request);
            let expected_against = live_against.as_ref().map(|limiter| live(limiter, &request));
            let arrival = TimedRequest { at: at_millis(millis), request, was_refused: false };
            let decided = simulation.decide(&arrival);
            prop_assert_eq!(simulated(&decided.candidate), expected);
            prop_assert_eq!(decided.against.as_ref().map(simulated), expected_against);
        }
    }
}
