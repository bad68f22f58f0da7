//! Properties of looks and changes, for each algorithm on each store. `ADMIN_CASES` sets the number
//! of cases of each property, algorithm and store.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};
use rlaas::algorithm::{Algorithm, Cost, Decision, Limit};
use rlaas::clock::{Deadline, Micros};
use rlaas::plan::{SelectedKey, Selector, SelectorTarget};
use rlaas::rules::{Request, Rule, RuleSet};
use rlaas_limiter::{KeyChange, KeyState};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::{Service, T0};
use tokio::runtime::Builder;

const DEFAULT_CASES: u32 = 100;

/// A limit, units that are taken first, and units that are taken afterwards.
#[derive(Clone, Debug)]
struct Case {
    limit: Limit,
    /// Thousandths of the window to wait, and units to take, in turn.
    before: Vec<(u64, u64)>,
    after: Vec<(u64, u64)>,
    refund: u32,
}

impl Case {
    fn rules(&self, algorithm: Algorithm) -> RuleSet {
        RuleSet::new(Rule::new_default(algorithm, self.limit), Vec::new())
    }

    fn wait(&self, thousandths: u64) -> Micros {
        Micros::from_micros(self.limit.window().as_micros() / 1_000 * thousandths)
    }
}

fn cases(algorithm: Algorithm) -> impl Strategy<Value = Case> {
    let window_ms = prop::sample::select(vec![1_u64, 7, 1_000, 60_000, 86_400_000]);
    let debt = prop::option::weighted(0.3, 0..=100_u64);
    let limit = (1..=12_u64, window_ms, 50..=200_u64, debt).prop_map(
        move |(units, window_ms, percent, debt)| {
            let limit = Limit::new(units, Micros::from_millis(window_ms)).expect("a valid limit");
            let burst = (units * percent / 100).max(1);
            let limit = if algorithm.has_burst() { limit.with_burst(burst) } else { Ok(limit) };
            let limit = limit.expect("a valid burst");
            debt.map_or(limit, |percent| {
                limit.with_max_debt(units * percent / 100).expect("at most the limit")
            })
        },
    );
    let takes = || prop::collection::vec((0..=700_u64, 1..=4_u64), 0..12);
    let refund = prop_oneof![4 => 1..=6_u32, 1 => 1..=u32::MAX];
    (limit, takes(), takes(), refund).prop_map(|(limit, before, after, refund)| Case {
        limit,
        before,
        after,
        refund,
    })
}

/// A service with the rules of a case, whose clock stands at a time of its own.
struct AdministeredService {
    service: Service,
    now: rlaas::clock::Timestamp,
}

impl AdministeredService {
    fn advance(&mut self, by: Micros) {
        self.now = self.now + by;
        self.service.set_clock(self.now);
    }

    fn key(&self, user_id: &str) -> Vec<SelectedKey> {
        let request = Request::user(user_id).build().expect("a valid request");
        let selector = Selector { target: SelectorTarget::Request(&request), rule: None };
        self.service.limiter.snapshot().rules.select(&selector).expect("a key")
    }

    async fn inspect(&self, user_id: &str) -> KeyState {
        let states = self.service.limiter.inspect(&self.key(user_id), Deadline::NEVER).await;
        states.expect("a state").remove(0)
    }

    async fn change(&self, user_id: &str, change: KeyChange) -> (KeyState, KeyState) {
        let changed =
            self.service.limiter.change(&self.key(user_id), &change, Deadline::NEVER).await;
        let mut changed = changed.expect("a change");
        (changed.before.remove(0), changed.after.remove(0))
    }

    async fn look(&self, user_id: &str) -> Decision {
        self.service.dry_run(user_id, 1).await
    }
}

/// Runs a property on each store. Prints the number of cases.
fn check(algorithm: &str, property: impl AsyncFn(AdministeredService, Case) -> TestCaseResult) {
    let algorithm = Algorithm::from_name(algorithm).expect("an algorithm");
    let cases_of_each = std::env::var("ADMIN_CASES").ok().and_then(|text| text.parse().ok());
    let config = Config {
        cases: cases_of_each.unwrap_or(DEFAULT_CASES),
        failure_persistence: None,
        ..Config::default()
    };
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let server = Arc::new(RedisServer::start());
    for on_redis in [false, true] {
        let run = |case: Case| {
            runtime.block_on(async {
                let rules = case.rules(algorithm);
                let service = if on_redis {
                    server.query::<()>(&["FLUSHALL"]);
                    Service::on_redis(rules, Arc::clone(&server))
                } else {
                    Service::on_memory(rules)
                };
                let mut subject = AdministeredService { service, now: T0 };
                subject.advance(Micros::ZERO);
                property(subject, case).await
            })
        };
        let ran = TestRunner::new(config.clone()).run(&cases(algorithm), run);
        let store = if on_redis { "redis" } else { "memory" };
        if let Err(failure) = ran {
            panic!("{} in {store}: {failure}", algorithm.name());
        }
        eprintln!("{} in {store}: {} cases", algorithm.name(), config.cases);
    }
}

/// Looks change nothing and are equal, and so is the state before the next change.
async fn inspect_equals_a_look(mut subject: AdministeredService, case: Case) -> TestCaseResult {
    for (wait, units) in &case.before {
        subject.advance(case.wait(*wait));
        subject.service.check_cost("alice", *units).await;
        let stored = subject.service.stored();
        let state = subject.inspect("alice").await;
        prop_assert_eq!(state.decision, subject.look("alice").await);
        prop_assert_eq!(state.decision, subject.inspect("alice").await.decision);
        prop_assert!(subject.service.stored() == stored, "a look has changed a key");
    }
    let looked = subject.inspect("alice").await.decision;
    let (before, _) = subject.change("alice", KeyChange::Reset).await;
    prop_assert_eq!(before.decision, looked);
    Ok(())
}

/// After a reset all decisions are those of a key that was never asked for.
async fn reset_equals_a_twin(mut subject: AdministeredService, case: Case) -> TestCaseResult {
    for (wait, units) in &case.before {
        subject.advance(case.wait(*wait));
        subject.service.check_cost("alice", *units).await;
    }
    let (_, after) = subject.change("alice", KeyChange::Reset).await;
    prop_assert_eq!(after.decision, subject.look("twin").await);
    prop_assert_eq!(after.decision, subject.look("alice").await);
    for (wait, units) in &case.after {
        subject.advance(case.wait(*wait));
        let twin = subject.service.check_cost("twin", *units).await;
        prop_assert_eq!(subject.service.check_cost("alice", *units).await, twin);
    }
    Ok(())
}

/// A refund gives the units back that are in use, and no more.
async fn refund_is_never_above_full(
    mut subject: AdministeredService,
    case: Case,
) -> TestCaseResult {
    for (wait, units) in &case.before {
        subject.advance(case.wait(*wait));
        subject.service.check_cost("alice", *units).await;
    }
    let refund = KeyChange::Refund(Cost::new(case.refund));
    let (before, after) = subject.change("alice", refund).await;
    prop_assert_eq!(after.decision, subject.look("alice").await);
    let full = i64::try_from(case.limit.burst()).expect("few units");
    let (left, now_left) = (before.decision.remaining, after.decision.remaining);
    prop_assert!(left <= now_left && now_left <= full, "{left} to {now_left} of {full}");
    prop_assert!(now_left - left <= i64::from(case.refund), "{left} to {now_left}");
    // As many pass as are left, and no more.
    let left = u64::try_from(now_left).unwrap_or_default();
    prop_assert!(!subject.service.dry_run("alice", left + 1).await.is_allowed());
    prop_assert!(left == 0 || subject.service.check_cost("alice", left).await.is_allowed());
    let (_, full_again) = subject.change("alice", KeyChange::Refund(Cost::new(u32::MAX))).await;
    prop_assert_eq!(full_again.decision.remaining, full);
    Ok(())
}

macro_rules! properties {
    ($algorithms:tt: $($property:ident)+) => {
        $(mod $property {
            properties! { @each $property $algorithms }
        })+
    };
    (@each $property:ident [$($algorithm:ident)+]) => {
        $(#[test]
        fn $algorithm() {
            super::check(stringify!($algorithm), super::$property);
        })+
    };
}

rlaas_limiter::with_algorithms! {
    all [properties] []
    [: inspect_equals_a_look reset_equals_a_twin refund_is_never_above_full]
}
