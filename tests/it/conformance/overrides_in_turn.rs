//! Requests for one key that overrides with different limits decide: how much they pass together.

use rlaas::algorithm::{Algorithm, Decision, Limit, OnChange, Outcome, window_index};
use rlaas::clock::{Deadline, Micros, Timestamp};
use rlaas::rules::{Grant, Matcher, Override, Part, Pattern, Request, Rule, RuleSet, TextPattern};
use rlaas_testkit::service::{Service, T0};

use super::cases;

cases! {
    all, memory redis;
    overrides_in_turn_pass_no_more_than_the_larger_limit: without_bursts;
    overrides_at_random_pass_no_more_than_the_larger_limit: without_bursts;
}
cases! {
    leaky_bucket gcra, memory redis;
    smaller_limit_waits_for_what_the_larger_has_taken: without_bursts;
}
cases! {
    token_bucket, memory redis;
    bucket_is_not_full_until_it_is_for_every_override: without_bursts;
}
cases! {
    buckets;
    override_that_only_looks_at_the_key_shares_nothing: by_user;
    changes_of_the_rule_beside_an_override_give_nothing_back: without_bursts;
    refund_by_a_limit_from_before_an_override_keeps_its_units: without_bursts;
}
cases! {
    token_bucket leaky_bucket gcra, memory redis;
    denial_by_a_smaller_limit_is_not_cached: without_bursts;
}

const MINUTE: Micros = Micros::from_secs(60);

/// Units per minute and units at once that a resource is granted.
#[derive(Clone, Copy, Debug)]
struct ResourceLimit {
    resource: &'static str,
    units: u64,
    burst: u64,
}

impl ResourceLimit {
    fn limit(self, algorithm: Algorithm) -> Limit {
        let limit = Limit::new(self.units, MINUTE).expect("a limit");
        if algorithm.has_burst() { limit.with_burst(self.burst).expect("a burst") } else { limit }
    }
}

const fn grants(wide: (u64, u64), narrow: (u64, u64)) -> [ResourceLimit; 2] {
    [
        ResourceLimit { resource: "/wide", units: wide.0, burst: wide.1 },
        ResourceLimit { resource: "/narrow", units: narrow.0, burst: narrow.1 },
    ]
}

const WITHOUT_BURSTS: [ResourceLimit; 2] = grants((20, 20), (5, 5));

fn without_bursts(algorithm: Algorithm) -> RuleSet {
    rules(algorithm, WITHOUT_BURSTS)
}

/// Grants two resources something else than the rule, on one state.
fn rules(algorithm: Algorithm, grants: [ResourceLimit; 2]) -> RuleSet {
    let overrides = grants.map(|granted| {
        let resource = Pattern::OneOf(vec![TextPattern::Exact(granted.resource.to_owned())]);
        let matcher = Matcher { patterns: vec![(Part::Resource, resource)] };
        Override::new(matcher, Grant::Limited(granted.limit(algorithm)))
    });
    let rule = Rule {
        overrides: overrides.to_vec(),
        on_change: Some(OnChange::Reset),
        ..Rule::new_default(algorithm, Limit::new(10, MINUTE).expect("a limit"))
    };
    RuleSet::new(rule, Vec::new())
}

/// Returns whether a request passes.
async fn passes(on: &Service, user: &str, resource: &str, cost: u32) -> bool {
    decision(on, user, resource, cost).await.is_allowed()
}

async fn decision(on: &Service, user: &str, resource: &str, cost: u32) -> Decision {
    let request = Request::user(user).resource(resource).cost(cost).build().expect("a request");
    let verdict = on.limiter.check(&request, Deadline::NEVER).await.expect("a verdict");
    verdict.deciding().decision
}

async fn overrides_in_turn_pass_no_more_than_the_larger_limit(on: Service) {
    let mut passed = 0;
    for second in 0..55 {
        on.at(f64::from(second));
        for granted in WITHOUT_BURSTS {
            passed += u32::from(passes(&on, "alice", granted.resource, 1).await);
        }
    }
    // A bucket is filled by up to as much again meanwhile.
    let most = if on.algorithm().has_burst() { 20 + 19 } else { 20 };
    assert!((5..=most).contains(&passed), "{passed}");
    let is_history = |key: &str| key.ends_with(":%limits");
    assert!(on.stored().unwrap_or_default().iter().all(|one| !is_history(&one.key)));
}

async fn overrides_at_random_pass_no_more_than_the_larger_limit(on: Service) {
    let algorithm = on.algorithm();
    let all = [
        WITHOUT_BURSTS,
        grants((20, 5), (5, 50)),
        grants((60, 3), (2, 40)),
        grants((20, 50), (5, 5)),
    ];
    let some = if algorithm.has_burst() { &all[..] } else { &all[..1] };
    // A small random generator with a fixed seed.
    let mut random = 7_u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (random >> 33) % below
    };
    let mut now = T0;
    let twin = Service::on_memory(without_bursts(algorithm));
    for (number, grants) in some.iter().enumerate() {
        for one in [&on, &twin] {
            one.limiter.replace_rules(rules(algorithm, *grants));
        }
        for case in 0..8 {
            let user = format!("{number}-{case}");
            let mut passed = Vec::new();
            for step in 0..120 {
                let most_ms =
                    [1, 500, 4_000, 20_000, 70_000][usize::try_from(next(5)).expect("few")];
                now = now + Micros::from_millis(next(most_ms));
                let granted = grants[usize::from(next(2) == 0)];
                let cost = [1, 1, 3][step % 3];
                let mut decisions = Vec::new();
                for one in [&on, &twin] {
                    one.set_clock(now);
                    decisions.push(decision(one, &user, granted.resource, cost).await);
                }
                assert_eq!(decisions[0], decisions[1], "the memory store");
                if decisions[0].is_allowed() {
                    passed.push((now, u64::from(cost)));
                }
            }
            check(algorithm, *grants, &passed);
        }
    }
}

/// Checks every span from one request to another: no more has passed than by the larger burst and the
/// larger number of units per minute.
fn check(algorithm: Algorithm, grants: [ResourceLimit; 2], passed: &[(Timestamp, u64)]) {
    let [one, other] = grants;
    let (units, burst) = (one.units.max(other.units), one.burst.max(other.burst));
    for (at, (start, _)) in passed.iter().enumerate() {
        let mut sum = 0;
        for (end, cost) in &passed[at..] {
            sum += cost;
            let span = end.since(*start);
            let most = match algorithm {
                Algorithm::FixedWindow => {
                    units * (1 + window_index(*end, MINUTE) - window_index(*start, MINUTE))
                }
                Algorithm::SlidingWindowLog if span < MINUTE => units,
                Algorithm::SlidingWindowCounter if span < MINUTE => 2 * units,
                bucket if bucket.has_burst() => {
                    burst + units * span.as_micros() / MINUTE.as_micros()
                }
                _ => break,
            };
            assert!(sum <= most, "{sum} of {most} by {grants:?} from {start:?} to {end:?}");
        }
    }
}

async fn smaller_limit_waits_for_what_the_larger_has_taken(on: Service) {
    assert!(passes(&on, "alice", "/wide", 20).await);
    // One of the 20 has drained by the smaller limit, 4 by the larger one.
    on.at(12.0);
    let decision = decision(&on, "alice", "/narrow", 1).await;
    let retry_after = Micros::from_secs(15 * 12);
    assert_eq!(decision.outcome, Outcome::Denied { retry_after });
    assert_eq!((decision.remaining, decision.current_count), (0, 19));
    assert!(passes(&on, "alice", "/wide", 4).await);
    assert!(!passes(&on, "alice", "/wide", 1).await);
    // All but one have drained by the larger limit, which counts once a request passes by it.
    on.at(69.0);
    assert!(!passes(&on, "alice", "/narrow", 1).await);
    assert!(passes(&on, "alice", "/wide", 1).await);
    assert!(passes(&on, "alice", "/narrow", 1).await);
    // At the latest all have drained when they have by the limit that has decided last.
    assert!(passes(&on, "alice", "/wide", 10).await);
    on.at(69.0 + 61.0);
    assert!(passes(&on, "alice", "/narrow", 5).await);
}

async fn bucket_is_not_full_until_it_is_for_every_override(on: Service) {
    on.limiter.replace_rules(rules(on.algorithm(), grants((20, 5), (5, 50))));
    assert!(passes(&on, "alice", "/narrow", 50).await);
    on.at(3.0);
    assert!(!passes(&on, "alice", "/narrow", 1).await);
    assert!(passes(&on, "alice", "/wide", 1).await);
    // The smaller burst is full again after 15 s.
    on.at(19.1);
    assert!(!passes(&on, "alice", "/narrow", 2).await);
    assert!(passes(&on, "alice", "/narrow", 1).await);
}

async fn denial_by_a_smaller_limit_is_not_cached(on: Service) {
    let most = grants((20, 5), (5, 5));
    on.limiter.replace_rules(rules(on.algorithm(), most));
    assert!(passes(&on, "alice", "/wide", 5).await);
    // By the smaller limit, 1 has drained after 12 s.
    assert!(!passes(&on, "alice", "/narrow", 1).await);
    on.at(11.0);
    // By the larger one, 3 have.
    assert!(passes(&on, "alice", "/wide", 1).await);
    assert!(passes(&on, "alice", "/narrow", 1).await);
}

/// Grants more to one user, who has a state of their own.
fn by_user(algorithm: Algorithm) -> RuleSet {
    let [wide, narrow] = WITHOUT_BURSTS;
    let vip = Pattern::OneOf(vec![TextPattern::Exact("vip".to_owned())]);
    let matcher = Matcher { patterns: vec![(Part::UserId, vip)] };
    let rule = Rule {
        overrides: vec![Override::new(matcher, Grant::Limited(wide.limit(algorithm)))],
        ..Rule::new_default(algorithm, narrow.limit(algorithm))
    };
    RuleSet::new(rule, Vec::new())
}

async fn override_that_only_looks_at_the_key_shares_nothing(on: Service) {
    let rules = by_user(on.algorithm());
    let limit = |rule: &Rule| *rule.grant.limit().expect("a limit");
    assert!(rules.iter().all(|rule| !limit(rule).shares_state()));
    assert!(passes(&on, "vip", "", 20).await && passes(&on, "alice", "", 5).await);
}

/// Grants one resource more than `units`.
fn wide_beside(units: u64, algorithm: Algorithm) -> RuleSet {
    let [wide, narrow] = WITHOUT_BURSTS;
    let rules = rules(algorithm, [wide, narrow]);
    let default = rules.iter().next().expect("a rule");
    let limit = Limit::new(units, MINUTE).expect("a limit");
    let rule = Rule {
        overrides: default.overrides[..1].to_vec(),
        on_change: Some(OnChange::KeepUsed),
        ..Rule::new_default(algorithm, limit)
    };
    RuleSet::new(rule, Vec::new())
}

async fn changes_of_the_rule_beside_an_override_give_nothing_back(on: Service) {
    let mut passed = 0;
    for round in 0..8 {
        on.limiter.replace_rules(wide_beside(5 + round % 2, on.algorithm()));
        passed += u32::from(passes(&on, "alice", "/narrow", 1).await);
        for _ in 0..20 {
            passed += u32::from(passes(&on, "alice", "/wide", 1).await);
        }
    }
    assert!((5..=20).contains(&passed), "{passed}");
}

async fn refund_by_a_limit_from_before_an_override_keeps_its_units(on: Service) {
    let algorithm = on.algorithm();
    let alone = Rule::new_default(algorithm, Limit::new(5, MINUTE).expect("a limit"));
    on.limiter.replace_rules(RuleSet::new(alone, Vec::new()));
    let request = Request::user("alice").build().expect("a request");
    let receipts = on.limiter.check_with_receipts(&request, Deadline::NEVER).await;
    let (verdict, receipts) = receipts.expect("a verdict");
    assert!(verdict.is_allowed());
    on.limiter.replace_rules(wide_beside(5, algorithm));
    let mut passed = 1;
    for _ in 0..20 {
        passed += u32::from(passes(&on, "alice", "/wide", 1).await);
    }
    on.limiter.refund(receipts, Deadline::NEVER).await.expect("a refund");
    for _ in 0..20 {
        passed += u32::from(passes(&on, "alice", "/wide", 1).await);
    }
    // The one that was refunded is taken again.
    assert!((5..=21).contains(&passed), "{passed}");
}
