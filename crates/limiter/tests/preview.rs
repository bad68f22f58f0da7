//! Previews and explanations equal what a check decides, and count nothing.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::Config;
use rlaas_limiter::algorithm::{Algorithm, Cost, Limit};
use rlaas_limiter::clock::{Clock, ManualClock, Micros, Timestamp};
use rlaas_limiter::explain::Applies;
use rlaas_limiter::observer::NoObserver;
use rlaas_limiter::rules::descriptors::{
    Descriptor, DescriptorRequest, DescriptorRule, DescriptorSpec, Descriptors, HitsAddend,
    RequestDescriptor,
};
use rlaas_limiter::rules::{
    Coupling, Grant, Matcher, Mode, Override, Part, Pattern, Rule, RuleSet, Unmatched,
};
use rlaas_limiter::store::{MemorySettings, MemoryStore, Store};
use rlaas_limiter::{CheckError, Deadline, Limiter, Request, RuleDecision};

const T0: Timestamp = Timestamp::from_millis(1_700_000_100_000);

/// 100 cases, or as many as `DIFFERENTIAL_CASES` says.
fn config() -> Config {
    let cases = std::env::var("DIFFERENTIAL_CASES").ok().and_then(|cases| cases.parse().ok());
    Config { cases: cases.unwrap_or(100), failure_persistence: None, ..Config::default() }
}

/// Two limiters that see the same requests at the same time.
struct Twins {
    clock: ManualClock,
    /// Is asked for previews.
    asked: Limiter,
    /// Is never asked.
    twin: Limiter,
}

impl Twins {
    fn new(rules: &RuleSet) -> Self {
        let clock = ManualClock::new(T0);
        let limiter = || {
            let (settings, observer) = (MemorySettings::default(), Arc::new(NoObserver));
            let clock = Clock::Manual(clock.clone());
            let store = MemoryStore::new(settings, clock, observer.clone());
            Limiter::new(rules.clone(), Store::Memory(store), observer)
        };
        Self { asked: limiter(), twin: limiter(), clock }
    }

    fn after(&self, passed: Micros) {
        self.clock.set(self.clock.now() + passed);
    }
}

fn limited(units: u64, window: Micros) -> Grant {
    Grant::Limited(Limit::new(units, window).expect("a valid limit"))
}

fn algorithm() -> impl Strategy<Value = Algorithm> {
    (0..Algorithm::RATES.len()).prop_map(|at| Algorithm::RATES[at])
}

fn grant() -> impl Strategy<Value = Grant> {
    prop_oneof![
        8 => (1..6_u64).prop_map(|units| limited(units, Micros::from_secs(60))),
        1 => Just(Grant::Banned),
        1 => Just(Grant::Unlimited),
    ]
}

/// Patterns of few texts, so that many match.
fn matcher() -> impl Strategy<Value = Matcher> {
    let part =
        prop_oneof![Just(Part::UserId), Just(Part::Resource), Just(Part::Attribute("p".into()))];
    let pattern = prop_oneof![Just("a"), Just("b"), Just("a*"), Just("*")];
    prop::collection::btree_map(part, pattern, 0..3).prop_map(|patterns| Matcher {
        patterns: patterns.into_iter().map(|(part, text)| (part, Pattern::one(text))).collect(),
    })
}

fn rule(name: String) -> impl Strategy<Value = Rule> {
    let overrides = prop::collection::vec((matcher(), grant()), 0..3);
    (matcher(), algorithm(), grant(), overrides, any::<bool>(), 0..3_usize).prop_map(
        move |(matcher, algorithm, grant, overrides, is_shadow, key_by)| {
            let limit = Limit::new(1, Micros::from_secs(60)).expect("a valid limit");
            let overrides = overrides.into_iter();
            Rule {
                name: name.as_str().into(),
                matcher,
                grant,
                overrides: overrides
                    .map(|(matcher, grant)| Override::new(matcher, grant))
                    .collect(),
                mode: if is_shadow { Mode::Shadow } else { Mode::Enforced },
                key_by: match key_by {
                    0 => vec![Part::UserId],
                    1 => vec![Part::Resource, Part::Attribute("p".into())],
                    _ => vec![Part::AttributeOrUserId("p".into())],
                },
                ..Rule::new_default(algorithm, limit)
            }
        },
    )
}

fn rule_set() -> impl Strategy<Value = RuleSet> {
    let named = (0..4_usize)
        .prop_flat_map(|count| (0..count).map(|at| rule(format!("rule-{at}"))).collect::<Vec<_>>());
    (rule("default".to_owned()), named, 0..Unmatched::ALL.len()).prop_map(
        |(default, named, unmatched)| {
            let default = Rule { matcher: Matcher::default(), ..default };
            RuleSet::new(default, named).with_unmatched(Unmatched::ALL[unmatched])
        },
    )
}

#[derive(Clone, Debug)]
struct TimedCheck {
    user: String,
    resource: String,
    attribute: Option<String>,
    cost: u32,
    before: Micros,
}

fn call() -> impl Strategy<Value = TimedCheck> {
    let before = prop_oneof![Just(0), 0..90_000_000_u64].prop_map(Micros::from_micros);
    ("[ab]", "[ab]?", prop::option::of("[ab]"), 0..4_u32, before).prop_map(
        |(user, resource, attribute, cost, before)| TimedCheck {
            user,
            resource,
            attribute,
            cost,
            before,
        },
    )
}

/// The outcome of a rule, without the numbers that a check changes.
fn outcome(decided: &RuleDecision) -> (String, bool, String) {
    let outcome = format!("{:?} {:?}", decided.decision.outcome, decided.grant);
    (decided.rule.to_string(), decided.decision.is_allowed(), outcome)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn preview_and_explanation_equal_a_check(
        rules in rule_set(),
        calls in prop::collection::vec(call(), 1..12),
    ) {
        let twins = Twins::new(&rules);
        for TimedCheck { user, resource, attribute, cost, before } in &calls {
            twins.after(*before);
            let pairs: Vec<_> = attribute.iter().map(|value| ("p", value.as_str())).collect();
            let builder = Request::user(user).resource(resource).attributes(&*pairs).cost(*cost);
            let request = builder.build().expect("a valid request");
            let snapshot = twins.asked.snapshot();
            let explanation = snapshot.rules.explain(&request);
            let preview = twins.asked.preview(
                &snapshot, &explanation.plan, &explanation.keys, Deadline::NEVER,
            );
            let preview = now(preview).expect("memory never fails");

            let dry = builder.dry_run().build().expect("a valid request");
            let dry = twins.twin.check_now(&dry).expect("memory never waits");
            let checked = twins.twin.check_now(&request).expect("memory never waits");
            // The asked limiter makes the same changes, so that the next call finds the same.
            let _same = twins.asked.check_now(&request);
            let (dry, checked) = match (dry, checked) {
                (Ok(dry), Ok(checked)) => (dry, checked),
                (Err(CheckError::NoRule), Err(CheckError::NoRule)) => {
                    prop_assert!(explanation.plan.is_unmatched && explanation.plan.hits.is_empty());
                    continue;
                }
                other => return Err(TestCaseError::fail(format!("{other:?}"))),
            };

            prop_assert_eq!(format!("{:?}", preview.verdict), format!("{dry:?}"));
            prop_assert_eq!(preview.verdict.is_allowed(), checked.is_allowed());
            if !checked.is_allowed() {
                prop_assert_eq!(&preview.verdict.deciding().rule, &checked.deciding().rule);
            }
            let outcomes = |decisions: &[RuleDecision]| decisions.iter().map(outcome).collect::<Vec<_>>();
            prop_assert_eq!(outcomes(&preview.decisions), outcomes(&checked.decisions));
            let applying: Vec<_> = explanation
                .rules
                .iter()
                .filter(|rule| matches!(rule.applies, Applies::Yes(_)))
                .map(|rule| snapshot.rules.rule(rule.rule).name.to_string())
                .collect();
            let decided: Vec<_> = checked.decisions.iter().map(|one| one.rule.to_string()).collect();
            prop_assert_eq!(applying, decided);
            for (state, decided) in preview.states.iter().zip(&dry.decisions) {
                prop_assert_eq!(&state.rule, &decided.rule);
                prop_assert_eq!(state.decision.remaining, decided.decision.remaining);
            }
        }
    }
}

/// A tree with the key `u` for any value and the key `p` for some, each with a limit.
fn descriptors() -> impl Strategy<Value = Descriptors> {
    let rule = (algorithm(), grant(), any::<bool>(), 0..4_usize, any::<bool>());
    let coupling = prop_oneof![Just(Coupling::AllOrNothing), Just(Coupling::EachAlone)];
    (prop::collection::vec(rule, 4), coupling).prop_map(|(rules, coupling)| {
        let names = ["first", "second", "third", "fourth"];
        let rule_at = |at: usize| {
            let (algorithm, grant, is_post_paid, mode, replaces) = rules[at];
            let unlimited = DescriptorSpec { unlimited: true, ..DescriptorSpec::default() };
            DescriptorRule {
                name: names[at].into(),
                limit_name: Some(names[at].into()),
                algorithm,
                grant,
                mode: [Mode::Enforced, Mode::Enforced, Mode::Shadow, Mode::Quota][mode],
                replaces: if replaces && at > 0 { vec![names[at - 1].into()] } else { Vec::new() },
                is_post_paid,
                window: Micros::from_secs(60).into(),
                ..unlimited.build(coupling).expect("a valid rule")
            }
        };
        let node = |key: &str, value: Option<&str>, at: usize| Descriptor {
            key: key.to_owned(),
            value: value.map(str::to_owned),
            shares: false,
            value_to_metric: false,
            rule: Some(rule_at(at)),
            below: Vec::new(),
        };
        let above = Descriptor { below: vec![node("u", None, 3)], ..node("p", Some("b"), 2) };
        let tree = vec![node("u", None, 0), node("p", Some("a"), 1), above];
        Descriptors::new(vec![("edge".to_owned(), tree)], coupling)
    })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn preview_of_descriptors_equals_a_check(
        descriptors in descriptors(),
        calls in prop::collection::vec((descriptor_lists(), 0..90_000_000_u64), 1..12),
    ) {
        let limit = Limit::new(1, Micros::from_secs(60)).expect("a valid limit");
        let default = Rule::new_default(Algorithm::Gcra, limit);
        let rules = RuleSet::new(default, Vec::new()).with_descriptors(descriptors);
        let twins = Twins::new(&rules);
        for (list, before) in &calls {
            twins.after(Micros::from_micros(*before));
            let descriptors = list.iter().map(|(entries, hits)| RequestDescriptor {
                entries: entries.iter().copied().collect(),
                limit: None,
                hits: HitsAddend::Take(Cost::new(*hits)),
            });
            let request = DescriptorRequest::new("edge", descriptors.collect());
            let request = request.expect("a valid request");
            let snapshot = twins.asked.snapshot();
            let explained = snapshot.rules.explain_descriptors(&request, |_, _| 0.0);
            let explained = explained.expect("a request that the algorithms support");
            let preview = now(twins.asked.preview(
                &snapshot, &explained.plan.plan, &explained.keys, Deadline::NEVER,
            ));
            let preview = preview.expect("memory never fails");
            let checked = now(twins.twin.check_descriptors(&request, Deadline::NEVER));
            let checked = checked.expect("memory never fails");
            let _same = now(twins.asked.check_descriptors(&request, Deadline::NEVER));

            prop_assert_eq!(preview.verdict.is_allowed(), checked.is_allowed());
            let mut decisions = preview.decisions.iter();
            for (one, answer) in explained.descriptors.iter().zip(&checked.answers) {
                let applies = one.rule.as_ref().is_some_and(|rule| {
                    matches!(rule.applies, Applies::Yes(_))
                });
                prop_assert_eq!(applies, answer.is_some());
                let Some(answer) = answer else { continue };
                let decided = decisions.next().expect("a decision");
                prop_assert_eq!(&decided.rule, &answer.decided.rule);
                prop_assert_eq!(
                    decided.decision.is_allowed(),
                    answer.decided.decision.is_allowed(),
                    "{:?}\n{:?}", decided, answer.decided
                );
            }
        }
    }
}

type DescriptorList = Vec<(&'static [(&'static str, &'static str)], u32)>;

/// One to four descriptors, of which several may have one key.
fn descriptor_lists() -> impl Strategy<Value = DescriptorList> {
    const LISTS: [&[(&str, &str)]; 6] = [
        &[("u", "alice")],
        &[("u", "bob")],
        &[("p", "a")],
        &[("p", "b")],
        &[("p", "b"), ("u", "alice")],
        &[("nobody", "")],
    ];
    let one = (0..LISTS.len()).prop_map(|at| LISTS[at]);
    prop::collection::vec((one, 0..4_u32), 1..5)
}

/// Finishes a future that needs no waiting.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(done) => done,
        std::task::Poll::Pending => panic!("memory never waits"),
    }
}
