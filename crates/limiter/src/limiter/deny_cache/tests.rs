//! Tests: what is cached, for how long, and what removes it.

use std::collections::HashMap;

use super::*;
use crate::algorithm::{Decision, Limit};
use crate::clock::ManualClock;
use crate::plan::Plan;
use crate::rules::{Request, RequestFields, Rule, RuleSet};

const T0: Timestamp = Timestamp::from_millis(1_700_000_000_000);
const REVISION: u64 = 1;

/// A cache with a manual clock, and hits of users on one limit.
struct TestCache {
    cache: DenyCache,
    clock: ManualClock,
    rules: RuleSet,
    algorithm: Algorithm,
    grant: Grant,
}

impl TestCache {
    fn new(max_age: Micros, max_keys: u32) -> Self {
        let clock = ManualClock::new(T0);
        let settings = DenyCacheSettings { max_age: max_age.into(), max_keys };
        let cache = DenyCache::new(settings, Clock::Manual(clock.clone()));
        let (algorithm, limit) = (Algorithm::Gcra, Limit::new(5, Micros::from_secs(60)));
        let limit = limit.expect("a valid limit");
        let rules = RuleSet::new(Rule::new_default(algorithm, limit), Vec::new());
        Self { cache, clock, rules, algorithm, grant: Grant::Limited(limit) }
    }

    fn at(&self, since: Micros) {
        self.clock.set(T0 + since);
    }

    /// Makes the next denials those of a project.
    fn in_project(&mut self, project: &str) {
        self.rules = self.rules.clone().in_project(project);
    }

    fn key(&self, user_id: &str) -> Key {
        let attributes = HashMap::new();
        let fields = RequestFields {
            user_id,
            resource: "",
            attributes: &attributes,
            cost: None,
            dry_run: false,
        };
        let request = Request::new(fields).expect("a valid request");
        Plan::for_request(&self.rules, &request).hits[0].key.clone()
    }

    /// Records this outcome as if the store had been called now.
    fn record(&self, user: &str, cost: Cost, outcome: Outcome) {
        let key = self.key(user);
        let hit = self.hit(&key, cost);
        let decision = Decision {
            at: T0,
            outcome,
            current_count: 5,
            remaining: 0,
            reset_after: Micros::from_secs(60),
            ttl: Micros::from_secs(60),
            delay: Micros::ZERO,
        };
        let reply = HitReply::new(decision, 0);
        self.cache.record(&hit, REVISION, self.cache.now(), &reply);
    }

    fn deny(&self, user: &str, retry_after: Micros) {
        self.record(user, Cost::ONE, Outcome::Denied { retry_after });
    }

    fn denial(&self, user: &str) -> Option<Decision> {
        let key = self.key(user);
        let reply = self.cache.denial(&self.hit(&key, Cost::ONE), REVISION)?;
        Some(reply.decision)
    }

    fn hit<'a>(&'a self, key: &'a Key, cost: Cost) -> StoreHit<'a> {
        StoreHit::new(key, self.algorithm, &self.grant, Action::Take(cost))
    }

    fn wait(&self, user: &str) -> Option<Micros> {
        match self.denial(user)?.outcome {
            Outcome::Denied { retry_after } => Some(retry_after),
            Outcome::Allowed | Outcome::Impossible => None,
        }
    }

    fn held(&self) -> usize {
        let stripes = self.cache.stripes.iter().map(|stripe| stripe.lock().expect("no panic"));
        stripes.map(|stripe| stripe.young.denials.len() + stripe.old.denials.len()).sum()
    }
}

#[test]
fn a_denial_holds_to_the_microsecond_and_its_waits_shrink() {
    let test = TestCache::new(Micros::from_secs(3600), 1000);
    let (wait, instant) = (Micros::from_secs(12), Micros::from_micros(1));
    test.deny("alice", wait);
    for passed in [Micros::ZERO, instant, Micros::from_secs(5), wait - instant] {
        test.at(passed);
        assert_eq!(test.wait("alice"), Some(wait - passed));
        let decision = test.denial("alice").expect("a denial");
        let left = Micros::from_secs(60) - passed;
        assert_eq!((decision.reset_after, decision.ttl), (left, left));
        assert_eq!(test.denial("bob"), None);
    }
    test.at(wait);
    assert_eq!(test.denial("alice"), None);
}

#[test]
fn the_ttl_of_a_log_is_always_the_window() {
    let test = TestCache {
        algorithm: Algorithm::SlidingWindowLog,
        ..TestCache::new(Micros::from_secs(60), 1000)
    };
    test.deny("alice", Micros::from_secs(12));
    test.at(Micros::from_secs(5));
    assert_eq!(test.denial("alice").map(|decision| decision.ttl), Some(Micros::from_secs(60)));
}

#[test]
fn no_denial_is_cached_longer_than_max_age() {
    let age = Micros::from_secs(1);
    let test = TestCache::new(age, 1000);
    test.deny("alice", Micros::from_secs(3600));
    test.at(age - Micros::from_micros(1));
    assert!(test.denial("alice").is_some());
    test.at(age);
    assert_eq!(test.denial("alice"), None);
}

#[test]
fn a_denial_outlives_later_entries_while_there_is_space() {
    let test = TestCache::new(Micros::from_secs(10), 1000);
    for second in 0..40 {
        test.at(Micros::from_secs(second));
        test.deny(&second.to_string(), Micros::from_secs(10));
        let since = second.saturating_sub(9);
        for earlier in since..=second {
            assert!(test.denial(&earlier.to_string()).is_some(), "{earlier} at {second}");
        }
    }
}

#[test]
fn another_cost_limit_or_revision_does_not_match() {
    let test = TestCache::new(Micros::from_secs(60), 1000);
    let cost = Cost::new;
    test.record("alice", cost(3), Outcome::Denied { retry_after: Micros::from_secs(12) });
    let key = test.key("alice");
    let is_cached =
        |units, revision| test.cache.denial(&test.hit(&key, cost(units)), revision).is_some();
    assert!(is_cached(3, REVISION));
    for (units, revision) in [(0, 1), (1, 1), (2, 1), (4, 1), (6, 1), (3, 0), (3, 2)] {
        assert!(!is_cached(units, revision), "cost {units}, revision {revision}");
    }
    // An override grants this limit to other requests of the same user.
    let wider = Limit::new(1000, Micros::from_secs(60)).expect("a valid limit");
    let wider = Grant::Limited(wider);
    let hit = StoreHit { grant: &wider, ..test.hit(&key, cost(3)) };
    assert_eq!(test.cache.denial(&hit, REVISION), None);
}

#[test]
fn a_reply_from_before_a_change_is_not_cached() {
    let test = TestCache::new(Micros::from_secs(60), 1000);
    let key = test.key("alice");
    let retry_after = Micros::from_secs(12);
    let reply = || {
        let outcome = Outcome::Denied { retry_after };
        HitReply::new(Decision::uncounted(outcome), 0)
    };
    let record = |requested_at| {
        let hit = test.hit(&key, Cost::ONE);
        test.cache.record(&hit, REVISION, requested_at, &reply());
    };
    let before = test.cache.now();
    test.cache.forget(&key);
    record(before);
    assert_eq!(test.denial("alice"), None);
    record(test.cache.now());
    assert!(test.denial("alice").is_some());
    let before = test.cache.now();
    test.cache.clear();
    assert_eq!(test.denial("alice"), None);
    record(before);
    assert_eq!(test.held(), 0);
}

#[test]
fn long_keys_are_not_cached() {
    let test = TestCache::new(Micros::from_secs(60), 1000);
    let long = "x".repeat(MAX_KEY_LEN);
    test.deny(&long, Micros::from_secs(12));
    assert_eq!((test.denial(&long), test.held()), (None, 0));
}

#[test]
fn only_denials_are_cached() {
    let test = TestCache::new(Micros::from_secs(60), 1000);
    test.record("alice", Cost::ONE, Outcome::Allowed);
    test.record("alice", Cost::ONE, Outcome::Impossible);
    assert_eq!((test.denial("alice"), test.held()), (None, 0));
}

#[test]
fn the_number_of_entries_is_bounded() {
    let max = 320;
    let test = TestCache::new(Micros::from_secs(3600), max);
    for user in 0..10_000 {
        test.deny(&user.to_string(), Micros::from_secs(60));
        assert!(test.held() <= max as usize, "{} of {max}", test.held());
    }
    assert!(test.held() > max as usize / 2);
    assert!(test.denial("9999").is_some());
}

#[test]
fn denials_of_a_project_outlive_those_of_a_larger_one() {
    for (small, large) in [("", "large"), ("small", ""), ("small", "large")] {
        let mut test = TestCache::new(Micros::from_secs(3600), 320);
        test.in_project(small);
        let users: Vec<_> = (0..20).map(|user| user.to_string()).collect();
        for user in &users {
            test.deny(user, Micros::from_secs(60));
        }
        test.in_project(large);
        for user in 0..10_000 {
            test.deny(&user.to_string(), Micros::from_secs(60));
            assert!(test.held() <= 320, "{}", test.held());
        }
        test.in_project(small);
        let lost: Vec<_> = users.iter().filter(|user| test.denial(user).is_none()).collect();
        assert!(lost.is_empty(), "{small} {large}: {lost:?}");
    }
}
