//! Several hits of one key in one step: random actions give equal decisions on both stores.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};
use rlaas::algorithm::{Algorithm, Cost, Decision, Limit, TakenUnits};
use rlaas::clock::Micros;
use rlaas::rules::{Rule, RuleSet};
use rlaas::store::{Action, Coupling, MemorySettings};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::{Service, T0};
use tokio::runtime::Builder;

/// The advance of the clock in thousandths of the window, and the actions of the step.
type HitStep = (u64, Coupling, Vec<RandomAction>);

#[derive(Clone, Debug)]
enum RandomAction {
    Act(Action),
    /// Refunds one of the earlier hits, possibly more than once.
    Refund(prop::sample::Index),
}

impl RandomAction {
    fn action(&self, taken: &[TakenUnits]) -> Action {
        match self {
            Self::Act(action) => *action,
            Self::Refund(_) if taken.is_empty() => Action::Credit(Cost::ONE),
            Self::Refund(index) => Action::Refund(*index.get(taken)),
        }
    }
}

fn step() -> impl Strategy<Value = HitStep> {
    let cost = prop_oneof![1 => Just(0), 3 => Just(1), 3 => 2..=12_u32].prop_map(Cost::new);
    let action = prop_oneof![
        1 => cost.clone().prop_map(Action::Peek),
        2 => cost.clone().prop_map(Action::Report),
        4 => cost.clone().prop_map(Action::Take),
        1 => cost.prop_map(Action::Credit),
    ];
    let random_action = prop_oneof![
        20 => action.prop_map(RandomAction::Act),
        1 => Just(RandomAction::Act(Action::Reset)),
        4 => any::<prop::sample::Index>().prop_map(RandomAction::Refund),
    ];
    let coupling = prop_oneof![Just(Coupling::AllOrNothing), Just(Coupling::EachAlone)];
    (0..=700_u64, coupling, prop::collection::vec(random_action, 1..=4))
}

fn case() -> impl Strategy<Value = (Algorithm, Limit, Vec<HitStep>)> {
    let windows = prop::sample::select(vec![7_u64, 60_000, 366 * 86_400_000]);
    let debt = prop::sample::select(vec![None, Some(0), Some(50), Some(100)]);
    let algorithm = prop::sample::select(Algorithm::RATES);
    let steps = prop::collection::vec(step(), 1..=25);
    (algorithm, 1..=12_u64, windows, debt, steps).prop_map(
        |(algorithm, units, window_ms, debt, steps)| {
            let limit = Limit::new(units, Micros::from_millis(window_ms)).and_then(|limit| {
                debt.map_or(Ok(limit), |percent| limit.with_max_debt(units * percent / 100))
            });
            (algorithm, limit.expect("a valid limit"), steps)
        },
    )
}

#[test]
fn stores_agree_on_several_hits_of_one_key() {
    let cases = std::env::var("DIFFERENTIAL_CASES").ok().and_then(|text| text.parse().ok());
    let config =
        Config { cases: cases.unwrap_or(100), failure_persistence: None, ..Config::default() };
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let server = Arc::new(RedisServer::start());
    let try_case = |(algorithm, limit, steps): (Algorithm, Limit, Vec<HitStep>)| -> TestCaseResult {
        runtime.block_on(async {
            server.query::<()>(&["FLUSHALL"]);
            let rules = || RuleSet::new(Rule::new_default(algorithm, limit), Vec::new());
            let settings = MemorySettings { max_keys: 1_000 };
            let memory = Service::on_bounded_memory(rules(), settings);
            let redis = Service::on_redis(rules(), Arc::clone(&server));
            let mut now = T0;
            let mut taken: Vec<TakenUnits> = Vec::new();
            for (thousandths, coupling, random_actions) in steps {
                let actions: Vec<Action> = random_actions
                    .iter()
                    .map(|random_action| random_action.action(&taken))
                    .collect();
                now = now + Micros::from_micros(limit.window().as_micros() / 1000 * thousandths);
                memory.set_clock(now);
                redis.set_clock(now);
                let on_memory = memory.reply_to("alice", &actions, coupling).await;
                let on_redis = redis.reply_to("alice", &actions, coupling).await;
                prop_assert_eq!(&on_memory, &on_redis, "{:?} {:?} at {:?}", coupling, actions, now);
                taken.extend(on_memory.iter().filter_map(|reply| {
                    let cost = Cost::new(u32::try_from(reply.taken).ok()?);
                    let Decision { at, reset_after, .. } = reply.decision;
                    (cost != Cost::NONE).then_some(TakenUnits { cost, at, reset_after })
                }));
            }
            Ok(())
        })
    };
    if let Err(failure) = TestRunner::new(config).run(&case(), try_case) {
        panic!("{failure}");
    }
}
