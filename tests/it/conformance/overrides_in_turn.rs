//! Requests for one key that overrides with different limits decide: how much they pass together.

use rlaas::algorithm::{Algorithm, Limit, OnChange, window_index};
use rlaas::clock::{Deadline, Micros, Timestamp};
use rlaas::rules::{Grant, Matcher, Override, Part, Pattern, Request, Rule, RuleSet, TextPattern};
use rlaas_testkit::service::{Service, T0};

use super::cases;

cases! {
    all, memory redis;
    overrides_in_turn_pass_no_more_than_the_larger_limit: without_bursts;
    overrides_at_random_pass_no_more_than_the_book_says: without_bursts;
}
cases! {
    leaky_bucket gcra, memory redis;
    smaller_limit_cuts_the_units_in_use: without_bursts;
}
cases! {
    token_bucket, memory redis;
    bucket_is_full_once_the_last_override_has_filled_it: without_bursts;
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
        Override {
            matcher: Matcher { patterns: vec![(Part::Resource, resource)] },
            grant: Grant::Limited(granted.limit(algorithm)),
        }
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
    let request = Request::user(user).resource(resource).cost(cost).build().expect("a request");
    on.limiter.check(&request, Deadline::NEVER).await.expect("a verdict").is_allowed()
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

async fn overrides_at_random_pass_no_more_than_the_book_says(on: Service) {
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
    for (number, grants) in some.iter().enumerate() {
        on.limiter.replace_rules(rules(algorithm, *grants));
        for case in 0..8 {
            let user = format!("{number}-{case}");
            let mut passed = Vec::new();
            for step in 0..120 {
                let most_ms =
                    [1, 500, 4_000, 20_000, 70_000][usize::try_from(next(5)).expect("few")];
                now = now + Micros::from_millis(next(most_ms));
                on.set_clock(now);
                let granted = grants[usize::from(next(2) == 0)];
                let cost = [1, 1, 3][step % 3];
                if passes(&on, &user, granted.resource, cost).await {
                    passed.push((now, u64::from(cost), granted));
                }
            }
            check(algorithm, *grants, &passed);
        }
    }
}

/// Checks every span from one request to another.
fn check(
    algorithm: Algorithm,
    grants: [ResourceLimit; 2],
    passed: &[(Timestamp, u64, ResourceLimit)],
) {
    let [one, other] = grants;
    let (units, burst) = (one.units.max(other.units), one.burst.max(other.burst));
    let fill_time = |of: ResourceLimit| of.limit(algorithm).fill_time();
    let shortest = fill_time(one).min(fill_time(other));
    let has_bursts = grants.iter().any(|of| of.units != of.burst);
    for (at, (start, ..)) in passed.iter().enumerate() {
        let (mut sum, mut more, mut last) = (0, 0, *start);
        for (end, cost, by) in &passed[at..] {
            sum += cost;
            let span = end.since(*start);
            let refilled = || units * span.as_micros() / MINUTE.as_micros() + 1;
            let most = match algorithm {
                Algorithm::FixedWindow => {
                    units * (1 + window_index(*end, MINUTE) - window_index(*start, MINUTE))
                }
                Algorithm::SlidingWindowLog if span < MINUTE => units,
                Algorithm::SlidingWindowCounter if span < MINUTE => 2 * units,
                Algorithm::SlidingWindowLog | Algorithm::SlidingWindowCounter => break,
                Algorithm::TokenBucket => {
                    // Nothing passed until the bucket of an override was full again.
                    more += if has_bursts && end.since(last) >= shortest { burst } else { 0 };
                    burst + refilled() + more
                }
                Algorithm::LeakyBucket | Algorithm::Gcra => {
                    more += burst - by.burst;
                    burst + refilled() + more
                }
            };
            last = *end;
            assert!(sum <= most, "{sum} of {most} by {grants:?} from {start:?} to {end:?}");
        }
    }
}

async fn smaller_limit_cuts_the_units_in_use(on: Service) {
    assert!(passes(&on, "alice", "/wide", 20).await);
    on.at(12.0);
    // One of the 5 has drained, so that 5 are in use after this request.
    assert!(passes(&on, "alice", "/narrow", 1).await);
    assert!(passes(&on, "alice", "/wide", 15).await);
    assert!(!passes(&on, "alice", "/wide", 1).await);
}

async fn bucket_is_full_once_the_last_override_has_filled_it(on: Service) {
    on.limiter.replace_rules(rules(on.algorithm(), grants((20, 5), (5, 50))));
    assert!(passes(&on, "alice", "/narrow", 50).await);
    on.at(3.0);
    assert!(!passes(&on, "alice", "/narrow", 1).await);
    assert!(passes(&on, "alice", "/wide", 1).await);
    // 5 are there again after 15 s, and the state is forgotten a second later.
    on.at(19.1);
    assert!(passes(&on, "alice", "/narrow", 50).await);
}
