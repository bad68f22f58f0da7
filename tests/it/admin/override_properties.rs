//! A property of overrides, for each algorithm on each store: a receipt of units that were taken
//! before an override was set or cleared never fills a key above full of the grant then in force.
//! `ADMIN_CASES` sets the number of cases.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};
use rlaas::algorithm::{Algorithm, Limit};
use rlaas::clock::{Deadline, Micros};
use rlaas::control::{KeyGrant, OverrideChange, OverrideKind};
use rlaas::operation::Receipt;
use rlaas::plan::{SelectedKey, Selector, SelectorTarget};
use rlaas::rules::{Grant, Matcher, Override, Part, Pattern, Request, Rule, RuleSet, TextPattern};
use rlaas_limiter::{KeyChange, KeyState};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::{Service, T0};
use tokio::runtime::Builder;

const DEFAULT_CASES: u32 = 20;
const MINUTE: Micros = Micros::from_secs(60);

/// A limit of the rule, one that the configuration grants to another user, and steps.
#[derive(Clone, Debug)]
struct ReceiptCase {
    units: u64,
    by_file: Option<u64>,
    debt: Option<u64>,
    steps: Vec<ReceiptStep>,
}

#[derive(Clone, Debug)]
enum ReceiptStep {
    /// Milliseconds.
    Wait(u64),
    Take(u64),
    /// Refunds one of the receipts so far: the number modulo how many there are.
    Refund(usize),
    Set(KeyGrant, u64),
    Clear(OverrideKind),
}

impl ReceiptCase {
    fn limit(&self, units: u64) -> Limit {
        let limit = Limit::new(units, MINUTE).expect("a valid limit");
        let with_debt = |debt: u64| limit.with_max_debt(debt.min(units)).expect("at most a limit");
        self.debt.map_or(limit, with_debt)
    }

    fn rules(&self, algorithm: Algorithm) -> RuleSet {
        let by_file = self.by_file.map(|units| {
            let pattern = Pattern::OneOf(vec![TextPattern::Exact("bob".to_owned())]);
            let matcher = Matcher { patterns: vec![(Part::UserId, pattern)] };
            Override::new(matcher, Grant::Limited(self.limit(units)))
        });
        let rule = Rule::new_default(algorithm, self.limit(self.units));
        let overrides = by_file.into_iter().collect();
        RuleSet::new(Rule { overridable: true, overrides, ..rule }, Vec::new())
    }
}

fn cases() -> impl Strategy<Value = ReceiptCase> {
    let units = || 1..=12_u64;
    let grant = prop_oneof![
        4 => (units(), units()).prop_map(|(units, burst)| KeyGrant::Limited { units, burst }),
        1 => Just(KeyGrant::Unlimited),
        1 => Just(KeyGrant::Banned),
    ];
    let kinds = vec![OverrideKind::Both, OverrideKind::Ban, OverrideKind::Grant];
    let step = prop_oneof![
        3 => (0..=30_000_u64).prop_map(ReceiptStep::Wait),
        4 => (1..=6_u64).prop_map(ReceiptStep::Take),
        4 => any::<usize>().prop_map(ReceiptStep::Refund),
        2 => (grant, 1..=60_u64).prop_map(|(grant, seconds)| ReceiptStep::Set(grant, seconds)),
        1 => prop::sample::select(kinds).prop_map(ReceiptStep::Clear),
    ];
    let by_file = prop::option::of(1..=12_u64);
    let debt = prop::option::weighted(0.3, 0..=12_u64);
    (1..=12_u64, by_file, debt, prop::collection::vec(step, 1..60))
        .prop_map(|(units, by_file, debt, steps)| ReceiptCase { units, by_file, debt, steps })
}

fn key(service: &Service) -> Vec<SelectedKey> {
    let request = Request::user("alice").build().expect("a valid request");
    let selector = Selector { target: SelectorTarget::Request(&request), rule: None };
    service.limiter.snapshot().rules.select(&selector).expect("a key")
}

async fn inspect(service: &Service) -> KeyState {
    let states = service.limiter.inspect(&key(service), Deadline::NEVER).await;
    states.expect("a state").remove(0)
}

async fn change(service: &Service, change: KeyChange) {
    service.limiter.change(&key(service), &change, Deadline::NEVER).await.expect("a change");
}

/// Returns the units left, and full; `None` if the grant is no limit.
fn left_of(state: &KeyState) -> Option<(i64, i64)> {
    let limit = state.grant.limit()?;
    Some((state.decision.remaining, i64::try_from(limit.burst()).expect("few units")))
}

async fn never_above_full(service: &Service, case: &ReceiptCase) -> TestCaseResult {
    let (mut now, mut receipts) = (T0, Vec::<Receipt>::new());
    for step in &case.steps {
        match step {
            ReceiptStep::Wait(millis) => {
                now = now + Micros::from_millis(*millis);
                service.set_clock(now);
            }
            ReceiptStep::Take(cost) => receipts.extend(service.take("alice", *cost).await.1),
            ReceiptStep::Refund(_) if receipts.is_empty() => {}
            ReceiptStep::Refund(which) => {
                let receipt = receipts.swap_remove(which % receipts.len());
                let taken = i64::try_from(receipt.taken.cost.units()).expect("few units");
                let before = inspect(service).await;
                service.refund(vec![receipt]).await;
                let after = inspect(service).await;
                if let (Some((before, _)), Some((after, full))) =
                    (left_of(&before), left_of(&after))
                {
                    prop_assert!(after <= full, "{after} of {full}");
                    let given = after - before;
                    prop_assert!((0..=taken).contains(&given), "{before} to {after}");
                }
            }
            ReceiptStep::Set(grant, seconds) => {
                let set = OverrideChange::new(*grant, Micros::from_secs(*seconds), b"");
                change(service, KeyChange::SetOverride(set.expect("a valid override"))).await;
            }
            ReceiptStep::Clear(kind) => change(service, KeyChange::ClearOverride(*kind)).await,
        }
    }
    change(service, KeyChange::ClearOverride(OverrideKind::Both)).await;
    let (left, full) = left_of(&inspect(service).await).expect("the limit of the rule");
    prop_assert!(left <= full && full == i64::try_from(case.units).expect("few units"));
    // As many pass as are left, and no more.
    let left = u64::try_from(left).unwrap_or_default();
    prop_assert!(!service.dry_run("alice", left + 1).await.is_allowed());
    prop_assert!(left == 0 || service.check_cost("alice", left).await.is_allowed());
    Ok(())
}

#[test]
fn a_refund_is_never_above_full_of_the_grant_in_force() {
    let cases_of_each = std::env::var("ADMIN_CASES").ok().and_then(|text| text.parse().ok());
    let config = Config {
        cases: cases_of_each.unwrap_or(DEFAULT_CASES),
        failure_persistence: None,
        ..Config::default()
    };
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let server = Arc::new(RedisServer::start());
    for algorithm in Algorithm::RATES {
        for on_redis in [false, true] {
            let run = |case: ReceiptCase| {
                runtime.block_on(async {
                    let rules = case.rules(*algorithm);
                    let service = if on_redis {
                        server.query::<()>(&["FLUSHALL"]);
                        Service::on_redis(rules, Arc::clone(&server))
                    } else {
                        Service::on_memory(rules)
                    };
                    never_above_full(&service, &case).await
                })
            };
            let store = if on_redis { "redis" } else { "memory" };
            if let Err(failure) = TestRunner::new(config.clone()).run(&cases(), run) {
                panic!("{} in {store}: {failure}", algorithm.name());
            }
            eprintln!("{} in {store}: {} cases", algorithm.name(), config.cases);
        }
    }
}

/// An override of a key may be the limit that a file grants to another: a receipt of it is refunded
/// by the limit of its own key.
#[tokio::test]
async fn a_receipt_is_not_taken_for_one_by_the_limit_of_another_key() {
    let steps = vec![
        ReceiptStep::Set(KeyGrant::Limited { units: 7, burst: 1 }, 1),
        ReceiptStep::Take(3),
        ReceiptStep::Clear(OverrideKind::Both),
        ReceiptStep::Take(5),
        ReceiptStep::Refund(0),
    ];
    let case = ReceiptCase { units: 11, by_file: Some(7), debt: None, steps };
    let service = Service::on_memory(case.rules(Algorithm::FixedWindow));
    never_above_full(&service, &case).await.expect("6 of 11 are left");
}
