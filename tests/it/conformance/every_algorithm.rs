//! What every algorithm promises; the registry says which there are.

use std::sync::Arc;

use super::{cases, left, per, retry_after};
use rlaas::algorithm::{Algorithm, Decision, Outcome};
use rlaas::clock::{Span, Timestamp};
use rlaas_testkit::rules;
use rlaas_testkit::service::{Service, T0, span};
use tokio::task::JoinSet;

cases! {
    all;
    ga_02_ids_do_not_share: per(1, Span::from_secs(1));
    ga_03_remaining_wait_and_reset: per(2, Span::from_secs(60));
    the_whole_limit_fits_and_one_more_is_impossible: per(7, Span::from_secs(60));
    the_announced_wait_is_enough_and_not_too_much: per(5, Span::from_secs(7));
    looking_changes_nothing: per(3, Span::from_secs(60));
    the_shortest_window_works: per(3, Span::from_millis(1));
    the_longest_window_works: per(3, Span::from_secs(366 * 86_400));
    the_year_2100_works: per(3, Span::from_secs(60));
    nothing_is_left_behind: per(3, Span::from_secs(60));
    a_denial_takes_nothing: per(5, Span::from_secs(60));
    a_clock_that_goes_back_a_day_blocks_nobody_for_longer_than_a_window: per(3, Span::from_secs(60));
}

async fn ga_02_ids_do_not_share(on: Service) {
    for (id, allowed) in [("user-a", true), ("user-b", true), ("user-a", false)] {
        assert_eq!(on.check(id).await.is_allowed(), allowed, "{id}");
    }
}

async fn ga_03_remaining_wait_and_reset(on: Service) {
    for remaining in [1, 0] {
        let decision = on.check("alice").await;
        assert_eq!((decision.is_allowed(), decision.remaining), (true, remaining));
    }
    let denied = on.check("alice").await;
    let wait = retry_after(&denied).expect("a wait");
    assert_eq!(denied.remaining, 0);
    assert!(wait > Span::ZERO && denied.reset_after >= wait, "{denied:?}");
}

async fn the_whole_limit_fits_and_one_more_is_impossible(on: Service) {
    for cost in [8, 1_000_000_001, u64::from(u32::MAX)] {
        assert_eq!(on.check_cost("alice", cost).await.outcome, Outcome::Impossible);
    }
    assert!(on.redis().is_none_or(|redis| redis.keys().is_empty()), "a denial leaves no state");
    let whole = on.check_cost("alice", 7).await;
    assert_eq!((whole.is_allowed(), whole.remaining), (true, 0));
    assert!(retry_after(&on.check_cost("alice", 7).await).is_some());
}

async fn the_announced_wait_is_enough_and_not_too_much(on: Service) {
    let mut now = T0;
    // A small generator: steps and costs without a pattern, the same in each run.
    let mut random = 1_u64;
    for _ in 0..200 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let cost = 1 + (random >> 33) % 5;
        now = now + Span::from_micros((random >> 40) % 900_000);
        on.set_clock(now);
        let Some(wait) = retry_after(&on.check_cost("alice", cost).await) else { continue };
        assert!(wait > Span::ZERO);
        now = now + wait;
        on.set_clock(Timestamp::from_micros(now.as_micros() - 1));
        assert!(!on.dry_run("alice", cost).await.is_allowed(), "too much: {wait}");
        on.set_clock(now);
        assert!(on.check_cost("alice", cost).await.is_allowed(), "not enough: {wait}");
    }
}

async fn looking_changes_nothing(on: Service) {
    let looks = async || {
        let first = on.check_cost("alice", 0).await;
        for cost in [0, 1, 2, 3, 4] {
            let dry = on.dry_run("alice", cost).await;
            assert_eq!(dry.is_allowed(), cost <= left(&first), "cost {cost}");
            assert_eq!((dry.remaining, dry.current_count), (first.remaining, first.current_count));
            assert_eq!(on.check_cost("alice", 0).await, first, "after a dry run of {cost}");
        }
        first.remaining
    };
    assert_eq!(looks().await, 3);
    assert!(on.redis().is_none_or(|redis| redis.keys().is_empty()));
    on.check_cost("alice", 2).await;
    assert_eq!(looks().await, 1);
    on.check("alice").await;
    assert_eq!(looks().await, 0);
}

async fn the_shortest_window_works(on: Service) {
    for step in 0..20_u64 {
        // Two windows and a bit: nothing of the one before is left.
        on.set_clock(T0 + Span::from_micros(step * 2_345));
        for _ in 0..3 {
            assert!(on.check("alice").await.is_allowed(), "step {step}");
        }
        let wait = retry_after(&on.check("alice").await).expect("a wait");
        assert!(wait <= Span::from_micros(1_001), "{wait}");
    }
}

async fn the_longest_window_works(on: Service) {
    for _ in 0..3 {
        assert!(on.check("alice").await.is_allowed());
    }
    let wait = retry_after(&on.check("alice").await).expect("a wait");
    let there = T0 + wait;
    on.set_clock(Timestamp::from_micros(there.as_micros() - 1));
    assert!(!on.check("alice").await.is_allowed());
    on.set_clock(there);
    assert!(on.check("alice").await.is_allowed());
}

async fn the_year_2100_works(on: Service) {
    let year_2100 = Timestamp::from_millis(4_102_444_800_000);
    on.set_clock(year_2100);
    for _ in 0..3 {
        assert!(on.check("alice").await.is_allowed());
    }
    let wait = retry_after(&on.check("alice").await).expect("a wait");
    on.set_clock(year_2100 + wait);
    assert!(on.check("alice").await.is_allowed());
}

async fn nothing_is_left_behind(on: Service) {
    let fresh = on.check("alice").await;
    on.check_cost("alice", 2).await;
    if let Some(redis) = on.redis() {
        for key in redis.keys() {
            let ttl: i64 = redis.query(&["PTTL", &key]);
            assert!((60_000..=121_000).contains(&ttl), "{key}: {ttl}");
        }
    }
    // All times to live are over; the window is that of T0 again, four windows later.
    on.at(240.0);
    assert!(on.redis().is_none_or(|redis| redis.keys().is_empty()));
    let later = on.check("alice").await;
    assert_eq!(Decision { at: fresh.at, ..later }, fresh);
}

async fn a_denial_takes_nothing(on: Service) {
    on.check_cost("alice", 3).await;
    let before = on.check_cost("alice", 0).await;
    for cost in [3, 4, 5, 6] {
        assert!(!on.check_cost("alice", cost).await.is_allowed());
        assert_eq!(on.check_cost("alice", 0).await, before, "after a denied cost of {cost}");
    }
    assert!(on.check_cost("alice", 2).await.is_allowed());
}

async fn a_clock_that_goes_back_a_day_blocks_nobody_for_longer_than_a_window(on: Service) {
    on.at(86_400.0);
    on.check_cost("alice", 3).await;
    on.at(0.0);
    // At most one extra refill.
    let mut passed = 0;
    for _ in 0..10 {
        passed += u32::from(on.check("alice").await.is_allowed());
    }
    assert!(passed <= 3, "{passed}");
    on.at(60.000_001);
    assert!(on.check("alice").await.is_allowed());
}

cases! {
    all, redis;
    ga_01_two_instances_let_exactly_the_limit_pass: per(20, Span::from_secs(60));
    a_state_of_another_algorithm_is_replaced: per(5, Span::from_secs(60));
    a_foreign_value_is_replaced: per(5, Span::from_secs(60));
}

async fn ga_01_two_instances_let_exactly_the_limit_pass(on: Service) {
    let server = Arc::clone(on.redis().expect("a service on Redis"));
    let rules = rules(on.algorithm(), 20, Span::from_secs(60));
    let instances = [Arc::new(on), Arc::new(Service::on_redis(rules, server))];
    let mut calls = JoinSet::new();
    for call in 0..200 {
        let instance = Arc::clone(&instances[call % 2]);
        calls.spawn(async move { instance.check("alice").await.is_allowed() });
    }
    let allowed = calls.join_all().await.into_iter().filter(|allowed| *allowed).count();
    assert_eq!(allowed, 20);
}

async fn a_state_of_another_algorithm_is_replaced(on: Service) {
    let server = on.redis().expect("a service on Redis");
    for before in Algorithm::ALL.iter().filter(|before| **before != on.algorithm()) {
        let rules = rules(*before, 5, Span::from_secs(60));
        let id = before.name();
        Service::on_redis(rules, Arc::clone(server)).check_cost(id, 5).await;
        let first = on.check(id).await;
        assert_eq!(first.remaining, 4, "after {id}");
        assert_eq!(on.check(id).await.remaining, 3, "after {id}");
    }
}

async fn a_foreign_value_is_replaced(on: Service) {
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

#[test]
fn the_cases_are_about_moved_time() {
    assert_eq!(span(1.000_001), Span::from_micros(1_000_001));
    assert_eq!(T0.as_millis() / 60_000, 28_333_335);
}
