//! Cases of every algorithm, and those that need Redis.

use std::sync::Arc;

use super::{cases, per};
use rlaas::algorithm::{Algorithm, Limit};
use rlaas::clock::{Deadline, Micros};
use rlaas::control::{KeyGrant, OverrideChange};
use rlaas::rules::{Rule, RuleSet};
use rlaas_limiter::KeyChange;
use rlaas_testkit::rules;
use rlaas_testkit::service::Service;
use tokio::task::JoinSet;

super::on_both! { every_algorithm }

cases! {
    all, redis;
    two_instances_allow_exactly_the_limit: per(20, Micros::from_secs(60));
    state_of_another_algorithm_is_replaced: per(5, Micros::from_secs(60));
    foreign_value_is_replaced: per(5, Micros::from_secs(60));
}

cases! {
    all;
    use_ends_at_the_limit_however_many_attempts_follow: overridable;
}

fn overridable(algorithm: Algorithm) -> RuleSet {
    let limit = Limit::new(3, Micros::from_secs(60)).expect("a valid limit");
    RuleSet::new(Rule { overridable: true, ..Rule::new_default(algorithm, limit) }, Vec::new())
}

async fn use_ends_at_the_limit_however_many_attempts_follow(on: Service) {
    for _ in 0..40 {
        on.check("alice").await;
    }
    let keys = on.limiter.snapshot().rules.select_user("alice").expect("keys");
    let state = async || {
        let states = on.limiter.inspect(&keys, Deadline::NEVER).await.expect("a state");
        (states[0].used(), states[0].decision.remaining)
    };
    let grant = async |grant| {
        let set = OverrideChange::new(grant, Micros::from_secs(3_600), b"").expect("an override");
        let change = KeyChange::SetOverride(set);
        on.limiter.change(&keys, &change, Deadline::NEVER).await.expect("a change");
        on.check("alice").await;
    };
    assert_eq!(state().await, (3, 0));
    grant(KeyGrant::Limited { units: 2, burst: 2 }).await;
    assert_eq!(state().await, (2, 0), "the limit was lowered");
    // What is used is shown beneath a ban, too.
    grant(KeyGrant::Banned).await;
    assert_eq!(state().await.0, 2);
    on.at(240.0);
    assert_eq!(state().await.0, 0, "later");
}

async fn two_instances_allow_exactly_the_limit(on: Service) {
    let server = Arc::clone(on.redis().expect("a service on Redis"));
    let rules = rules(on.algorithm(), 20, Micros::from_secs(60));
    let instances = [Arc::new(on), Arc::new(Service::on_redis(rules, server))];
    let mut calls = JoinSet::new();
    for call in 0..200 {
        let instance = Arc::clone(&instances[call % 2]);
        calls.spawn(async move { instance.check("alice").await.is_allowed() });
    }
    let allowed = calls.join_all().await.into_iter().filter(|allowed| *allowed).count();
    assert_eq!(allowed, 20);
}

async fn state_of_another_algorithm_is_replaced(on: Service) {
    let server = on.redis().expect("a service on Redis");
    for before in Algorithm::RATES.iter().filter(|before| **before != on.algorithm()) {
        let rules = rules(*before, 5, Micros::from_secs(60));
        let id = before.name();
        Service::on_redis(rules, Arc::clone(server)).check_cost(id, 5).await;
        let first = on.check(id).await;
        assert_eq!(first.remaining, 4, "after {id}");
        assert_eq!(on.check(id).await.remaining, 3, "after {id}");
    }
}

async fn foreign_value_is_replaced(on: Service) {
    let hostile = [
        "abc",
        "",
        "0",
        "-1",
        "token 1 2",
        "gcra 1e9 2",
        "token 9 9 9 9",
        "counter 99999999999999999999 1 1",
        "leaky 99999999999999999999 0 0",
        "003",
        "gcra 1700000130000000 9007199254740992 1700000130000000 5 60000000",
        "gcra 1700000130000000 0 1700000100000000 9007199254740992 60000000",
        "counter 1700000100000000 9007199254740992 0",
    ];
    let fresh = on.check("alice").await;
    let redis = on.redis().expect("a service on Redis");
    let key = redis.keys().pop().expect("a key");
    for value in hostile {
        redis.query::<()>(&["SET", &key, value]);
        let counts = on.algorithm() == Algorithm::FixedWindow && value == "0";
        let decision = on.check("alice").await;
        assert_eq!(decision.remaining, fresh.remaining, "{value:?}");
        assert!(counts || redis.query::<String>(&["TYPE", &key]) != "none");
        let ttl: i64 = redis.query(&["PTTL", &key]);
        assert!(ttl > 0, "{value:?} lives for {ttl}");
    }
    redis.query::<()>(&["DEL", &key]);
    redis.query::<()>(&["LPUSH", &key, "a", "b"]);
    assert_eq!(on.check("alice").await.remaining, fresh.remaining);
}
