//! `at_least`: a request takes, or holds, what is there, over all rules in one step.

use rlaas_limiter::rules::{
    Costs, Matcher, Mode, Override, Part, Pattern, Request, Share, TextPattern,
};
use std::sync::atomic::{AtomicU64, Ordering};

use rlaas_limiter::observer::{DecidedRequest, ProjectObserver};
use rlaas_limiter::{Reserved, Settling, Verdict};

use super::*;

const LONG: Micros = Micros::from_secs(86_400);

fn named(name: &str, algorithm: Algorithm, units: u64) -> Rule {
    let limit = Limit::new(units, Limit::MAX_WINDOW).expect("a limit");
    Rule { name: name.into(), ..Rule::new_default(algorithm, limit) }
}

/// Services on both stores with these rules beside a default one that is not met.
fn services(rules: &[Rule], server: &Arc<RedisServer>) -> [Service; 2] {
    let _flushed: String = server.query(&["FLUSHALL"]);
    let set = || RuleSet::new(named("default", Algorithm::Gcra, 1), rules.to_vec());
    [Service::on_memory(set()), Service::on_redis(set(), Arc::clone(server))]
}

fn holding(rule: Rule, share_ppm: Option<u32>) -> Rule {
    let limit = *rule.grant.limit().expect("a limit");
    let limit = limit.with_max_debt(limit.units()).expect("a debt");
    let holds = Some(HoldTerms { longest: LONG, most: 100, share: share_ppm.and_then(Share::new) });
    Rule { holds, grant: Grant::Limited(limit), ..rule }
}

/// A request for up to 100 units by `id`, if it is not empty.
fn wanted(least: u64, id: &str) -> Request<'_> {
    let request = Request::user("alice").cost(100).build().and_then(|all| all.with_at_least(least));
    request.and_then(|all| all.with_request_id(id)).expect("a request")
}

async fn check(on: &Service, request: &Request<'_>) -> Verdict {
    on.limiter.check(request, Deadline::NEVER).await.expect("a verdict")
}

async fn reserve(on: &Service, request: &Request<'_>) -> Reserved {
    on.limiter.reserve(request, None, Deadline::NEVER).await.expect("a verdict")
}

/// Returns what is left by each rule.
fn left(verdict: &Verdict) -> Vec<i64> {
    verdict.decisions.iter().map(|decided| decided.decision.remaining).collect()
}

/// The units of allowed requests.
#[derive(Debug, Default)]
struct UnitsAllowed(AtomicU64);

impl ProjectObserver for UnitsAllowed {
    fn decided(&self, request: DecidedRequest) {
        if let DecidedRequest::Allowed { units } = request {
            self.0.fetch_add(units, Ordering::Relaxed);
        }
    }

    fn reported(&self, _units: u64) {}
}

#[tokio::test]
async fn twenty_callers_take_all_of_three_rules_and_never_more() {
    let server = Arc::new(RedisServer::start());
    let rules = [
        named("a", Algorithm::TokenBucket, 3_000),
        named("b", Algorithm::FixedWindow, 1_000),
        named("c", Algorithm::SlidingWindowLog, 2_000),
    ];
    for service in services(&rules, &server) {
        let caller = async |least| {
            let mut all = 0;
            loop {
                let verdict = check(&service, &wanted(least, "")).await;
                all += verdict.taken.expect("what is taken");
                if !verdict.is_allowed() {
                    return all;
                }
                tokio::task::yield_now().await;
            }
        };
        let callers = (0..20).map(|caller_of| caller(1 + caller_of % 7));
        let taken: u64 = futures_util::future::join_all(callers).await.iter().sum();
        let name = service.limiter.store().name();
        // One who takes any number has taken the last ones.
        assert_eq!(taken, 1_000, "{name}");
        let look = Request::user("alice").cost(0).build().expect("a request");
        assert_eq!(left(&check(&service, &look).await), [2_000, 0, 1_000], "{name}");
    }
}

#[tokio::test]
async fn a_denial_is_that_of_the_fewest_units_and_counts_no_attempt() {
    let server = Arc::new(RedisServer::start());
    let rules =
        [named("a", Algorithm::FixedWindow, 60), named("b", Algorithm::SlidingWindowCounter, 100)];
    for service in services(&rules, &server) {
        let name = service.limiter.store().name();
        let first = check(&service, &wanted(30, "")).await;
        assert_eq!((first.taken, left(&first)), (Some(60), vec![0, 40]), "{name}");
        for _ in 0..3 {
            let denied = check(&service, &wanted(1, "")).await;
            assert_eq!((denied.is_allowed(), denied.taken), (false, Some(0)), "{name}");
            assert_eq!(denied.deciding().decision.current_count, 60, "{name}: no attempt");
        }
        // What would never pass is told.
        let never = Request::user("alice").cost(100).build().and_then(|all| all.with_at_least(61));
        let never = check(&service, &never.expect("a request")).await;
        assert_eq!(never.deciding().decision.outcome, Outcome::Impossible, "{name}");
    }
}

#[tokio::test]
async fn rules_with_a_cost_of_their_own_say_yes_or_no() {
    let server = Arc::new(RedisServer::start());
    let requests = Rule { cost: Some(Cost::ONE), ..named("a", Algorithm::FixedWindow, 2) };
    let shadow = Rule { mode: Mode::Shadow, ..named("c", Algorithm::FixedWindow, 10) };
    let rules = [requests, named("b", Algorithm::TokenBucket, 150), shadow];
    for service in services(&rules, &server) {
        let name = service.limiter.store().name();
        let first = check(&service, &wanted(1, "")).await;
        assert_eq!((first.taken, left(&first)), (Some(100), vec![1, 50, 0]), "{name}");
        // The rule in shadow mode denies it and takes nothing.
        let second = check(&service, &wanted(1, "")).await;
        assert_eq!((second.taken, left(&second)), (Some(50), vec![0, 0, 0]), "{name}");
        let third = check(&service, &wanted(1, "")).await;
        assert!(!third.is_allowed(), "{name}");
    }
    // A cost by name is one of its own.
    for service in services(&rules[1..2], &server) {
        let by_name = wanted(10, "").with_costs(Costs::Pairs(&[("b", 7)])).expect("a request");
        let verdict = check(&service, &by_name).await;
        assert_eq!((verdict.taken, left(&verdict)), (Some(100), vec![143]));
        let dry = Request::user("alice").cost(200).dry_run().build();
        let dry = dry.and_then(|all| all.with_at_least(10)).expect("a request");
        let verdict = check(&service, &dry).await;
        assert_eq!((verdict.taken, left(&verdict)), (Some(143), vec![143]), "a dry run");
    }
}

#[tokio::test]
async fn a_reservation_holds_what_is_there_and_charges_it() {
    let server = Arc::new(RedisServer::start());
    let tokens = holding(named("a", Algorithm::TokenBucket, 120), Some(500_000));
    let money = holding(named("b", Algorithm::FixedWindow, 90), None);
    for service in services(&[tokens, money], &server) {
        let name = service.limiter.store().name();
        let first = reserve(&service, &wanted(10, "")).await;
        let held: Vec<u64> = first.verdict.decisions.iter().map(|decided| decided.held).collect();
        assert_eq!((first.verdict.taken, held), (Some(90), vec![60, 90]), "{name}");
        let denied = reserve(&service, &wanted(10, "")).await;
        assert_eq!((denied.verdict.taken, denied.verdict.deciding().is_held), (Some(0), true));
        let open = first.reservation.as_ref().expect("a reservation");
        let settling = Settling { actual: None, actuals: Costs::NONE };
        let settled = service.limiter.settle(open, settling, Deadline::NEVER).await;
        let settled = settled.expect("a settlement").settlements;
        let charged: Vec<u64> = settled.iter().map(|(_, settlement)| settlement.charged).collect();
        assert_eq!(charged, [60, 90], "{name}");
    }
}

#[tokio::test]
async fn a_request_id_repeats_what_was_taken() {
    let server = Arc::new(RedisServer::start());
    let rules = [
        named("a", Algorithm::TokenBucket, 70),
        holding(named("b", Algorithm::Gcra, 1_000), Some(10_000)),
    ];
    for service in services(&rules, &server) {
        let name = service.limiter.store().name();
        let units = Arc::new(UnitsAllowed::default());
        let limiter = service.limiter.observed_by(units.clone());
        for replayed in [false, true, true] {
            let verdict = limiter.check(&wanted(10, "one"), Deadline::NEVER).await;
            let verdict = verdict.expect("a verdict");
            assert_eq!((verdict.taken, verdict.replayed), (Some(70), replayed), "{name}");
            assert_eq!(left(&verdict), [0, 930], "{name}");
        }
        // Another least number is another request.
        let other = wanted(11, "one");
        assert!(service.limiter.check(&other, Deadline::NEVER).await.is_err(), "{name}");
        assert_eq!(units.0.load(Ordering::Relaxed), 70, "{name}: usage");

        // Its receipts give back what it took.
        let request = Request::user("bob").cost(100).build().and_then(|all| all.with_at_least(1));
        let request = request.expect("a request");
        let checked = limiter.check_with_receipts(&request, Deadline::NEVER).await;
        let (verdict, receipts) = checked.expect("a verdict");
        assert_eq!((verdict.taken, receipts.len()), (Some(70), 2), "{name}");
        limiter.refund(receipts, Deadline::NEVER).await.expect("a refund");
        let look = Request::user("bob").cost(0).build().expect("a request");
        assert_eq!(left(&check(&service, &look).await), [70, 1_000], "{name}");
    }
    // A reservation says what it has held, where that is less than what holds at most; or the cost.
    for (used, expected) in [(0, 100), (10, 30)] {
        let rule = holding(named("b", Algorithm::Gcra, 40), Some(1_000_000));
        for service in services(&[rule], &server) {
            let other = Request::user("alice").cost(used).build().expect("a request");
            check(&service, &other).await;
            for replayed in [false, true] {
                let reserved = reserve(&service, &wanted(10, "one")).await.verdict;
                assert_eq!((reserved.taken, reserved.replayed), (Some(expected), replayed));
            }
        }
    }
}

/// Returns a rule that leaves so much to others, for every request of a batch.
fn with_headroom(rule: Rule, ppm: u32) -> Rule {
    let batch = Pattern::OneOf(vec![TextPattern::Exact("batch".to_owned())]);
    let matcher = Matcher { patterns: vec![(Part::Attribute("tier".into()), batch)] };
    let headroom = Share::new(ppm);
    Rule { overrides: vec![Override { matcher, grant: None, headroom }], ..rule }
}

fn of_batch(cost: u32) -> Request<'static> {
    let tier: &[(&str, &str)] = &[("tier", "batch")];
    Request::user("alice").cost(cost).attributes(tier).build().expect("a request")
}

#[tokio::test]
async fn a_log_leaves_more_than_a_request_may_take() {
    let server = Arc::new(RedisServer::start());
    let log = with_headroom(named("a", Algorithm::SlidingWindowLog, 20_000), 600_000);
    for service in services(&[log], &server) {
        let name = service.limiter.store().name();
        let first = check(&service, &of_batch(5_000)).await;
        assert_eq!((first.is_allowed(), left(&first)), (true, vec![3_000]), "{name}");
        let denied = check(&service, &of_batch(3_001)).await;
        assert!(matches!(denied.deciding().decision.outcome, Outcome::Denied { .. }), "{name}");
        let never = check(&service, &of_batch(8_001)).await;
        assert_eq!(never.deciding().decision.outcome, Outcome::Impossible, "{name}");
        let most = of_batch(10_000).with_at_least(1).expect("a request");
        assert_eq!(check(&service, &most).await.taken, Some(3_000), "{name}");
        let people = Request::user("alice").cost(10_000).build().expect("a request");
        assert_eq!(left(&check(&service, &people).await), [2_000], "{name}");
    }
}

#[tokio::test]
async fn slots_are_kept_for_others() {
    let server = Arc::new(RedisServer::start());
    let limit = Limit::new(20, Micros::from_secs(60)).expect("a limit");
    let holds = Some(HoldTerms { longest: LONG, most: 20, share: None });
    let slots = Rule {
        name: "a".into(),
        holds,
        cost: Some(Cost::ONE),
        ..Rule::new_default(Algorithm::Concurrency, limit)
    };
    let slots = with_headroom(slots, 100_000);
    for service in services(&[slots], &server) {
        let name = service.limiter.store().name();
        for slot in 1..=18_i64 {
            let reserved = reserve(&service, &of_batch(1)).await.verdict;
            assert_eq!((reserved.is_allowed(), left(&reserved)), (true, vec![18 - slot]), "{name}");
        }
        let denied = reserve(&service, &of_batch(1)).await.verdict;
        assert_eq!((denied.is_allowed(), denied.deciding().is_held), (false, true), "{name}");
        let people = Request::user("alice").build().expect("a request");
        assert_eq!(left(&reserve(&service, &people).await.verdict), [1], "{name}");
    }
}
