//! Cases that only Redis has: keys, foreign values, several instances, the clock of the server.

use std::sync::Arc;

use super::{cases, counted, on_redis};
use rlaas::algorithm::Algorithm;
use rlaas::clock::Micros;
use rlaas::rules::RuleSet;
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::rules;
use rlaas_testkit::service::{Service, T0};

const LOG_KEY: &str = "rlaas:rate_limit:alice";
const WINDOW_KEY: &str = "rlaas:rate_limit:alice:28333335";

fn five_a_minute(algorithm: Algorithm) -> RuleSet {
    rules(algorithm, 5, Micros::from_secs(60))
}

fn redis(on: &Service) -> &RedisServer {
    on.redis().expect("a service on Redis")
}

#[tokio::test]
async fn takes_from_fixed_windows_need_two_commands_each_and_refusals_write_nothing() {
    let on = on_redis(five_a_minute(Algorithm::FixedWindow));
    let commands = async |user: &str, cost: u64| {
        redis(&on).query::<()>(&["CONFIG", "RESETSTAT"]);
        on.check_cost(user, cost).await;
        let stats: String = redis(&on).query(&["INFO", "commandstats"]);
        ["pttl", "get", "set", "incrby", "del"].map(|command| {
            let of_command = stats.split(&format!("cmdstat_{command}:calls=")).nth(1);
            of_command
                .map_or(0, |rest| rest.split(',').next().expect("calls").parse().expect("a number"))
        })
    };
    on.check("bob").await;
    assert_eq!(commands("alice", 1).await, [1, 0, 1, 0, 0_u64], "a new counter");
    assert_eq!(commands("alice", 1).await, [1, 0, 0, 1, 0], "a known one");
    assert_eq!(commands("carol", 6).await, [0, 1, 0, 0, 0], "a cost above the limit");
    assert_eq!(redis(&on).query::<u64>(&["EXISTS", "rlaas:rate_limit:carol:28333335"]), 0);
}

#[tokio::test]
async fn sliding_window_log_stores_the_documented_members() {
    let on = on_redis(five_a_minute(Algorithm::SlidingWindowLog));
    for at in [-100.0, -85.0, -70.0] {
        on.at(at);
        on.check("alice").await;
    }
    assert_eq!(redis(&on).keys(), [LOG_KEY]);
    let entries: Vec<(String, u64)> =
        redis(&on).query(&["ZRANGE", LOG_KEY, "0", "-1", "WITHSCORES"]);
    let scores: Vec<u64> = entries.iter().map(|(_, score)| *score).collect();
    assert_eq!(scores, [1_700_000_000_000, 1_700_000_015_000, 1_700_000_030_000]);
    for (member, score) in entries {
        let suffix = member.strip_prefix(&format!("{score}-")).expect("{ms}-{suffix}");
        assert!(!suffix.is_empty());
    }
}

#[tokio::test]
async fn fixed_window_uses_the_clock_of_redis() {
    // The host's clock is years ahead of the server's.
    let on = on_redis(five_a_minute(Algorithm::FixedWindow));
    on.check("alice").await;
    assert_eq!(redis(&on).keys(), [WINDOW_KEY]);
}

#[tokio::test]
async fn foreign_value_under_a_log_key_is_replaced() {
    let on = on_redis(five_a_minute(Algorithm::SlidingWindowLog));
    redis(&on).query::<()>(&["SET", LOG_KEY, "abc"]);
    assert_eq!(counted(&on.check("alice").await), (true, 0));
    assert_eq!(counted(&on.check("alice").await), (true, 1));
    redis(&on).query::<()>(&["DEL", LOG_KEY]);
    redis(&on).query::<()>(&["LPUSH", LOG_KEY, "a", "b"]);
    assert_eq!(counted(&on.check("alice").await), (true, 0));
}

#[tokio::test]
async fn foreign_value_under_a_window_key_is_replaced() {
    let on = on_redis(five_a_minute(Algorithm::FixedWindow));
    for value in ["abc", "-3", "1e3", "99999999999999999999", ""] {
        redis(&on).query::<()>(&["SET", WINDOW_KEY, value]);
        assert_eq!(counted(&on.check("alice").await), (true, 1), "{value:?}");
    }
    redis(&on).query::<()>(&["DEL", WINDOW_KEY]);
    redis(&on).query::<()>(&["LPUSH", WINDOW_KEY, "a", "b"]);
    assert_eq!(counted(&on.check("alice").await), (true, 1));
    assert_eq!(redis(&on).query::<u64>(&["PTTL", WINDOW_KEY]), 60_000);
}

#[tokio::test]
async fn count_without_time_to_live_gets_one() {
    let on = on_redis(five_a_minute(Algorithm::FixedWindow));
    redis(&on).query::<()>(&["SET", WINDOW_KEY, "2"]);
    assert_eq!(counted(&on.check("alice").await), (true, 3));
    assert_eq!(redis(&on).query::<u64>(&["PTTL", WINDOW_KEY]), 60_000);
}

cases! {
    all, redis;
    two_instances_share_counts: five_a_minute;
    counters_outlive_the_service: five_a_minute;
    unreadable_state_is_an_error: five_a_minute;
}

async fn two_instances_share_counts(one: Service) {
    let server = Arc::clone(one.redis().expect("a service on Redis"));
    let other = Service::on_redis(five_a_minute(one.algorithm()), server);
    let instances = [Arc::new(one), Arc::new(other)];
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..500 {
        for instance in &instances {
            let instance = Arc::clone(instance);
            calls.spawn(async move { instance.check("alice").await.is_allowed() });
        }
    }
    let allowed = calls.join_all().await.into_iter().filter(|allowed| *allowed).count();
    assert_eq!(allowed, 5);
}

async fn counters_outlive_the_service(before: Service) {
    let server = Arc::clone(before.redis().expect("a service on Redis"));
    let rules = five_a_minute(before.algorithm());
    for _ in 0..5 {
        assert!(before.check("alice").await.is_allowed());
    }
    drop(before);
    let after = Service::on_redis(rules, server);
    assert!(!after.check("alice").await.is_allowed());
}

async fn unreadable_state_is_an_error(on: Service) {
    redis(&on).query::<()>(&["ACL", "SETUSER", "default", "-get", "-pttl", "-zcount"]);
    let denied = on.verdict("alice", None, false).await;
    assert!(denied.is_err());
    assert!(redis(&on).keys().is_empty());
}

#[tokio::test]
async fn window_that_ends_in_flight_uses_the_right_key() {
    let on = on_redis(rules(Algorithm::FixedWindow, 5, Micros::from_secs(1)));
    for step in 0..20_u32 {
        // From the second call on, Redis' clock is an hour ahead of the time of its last reply.
        on.at(f64::from(step) * 3_600.0);
        assert_eq!(counted(&on.check("alice").await), (true, 1));
        let keys = redis(&on).keys();
        let index = (T0.as_millis() / 1_000) + u64::from(step) * 3_600;
        assert!(keys.contains(&format!("rlaas:rate_limit:alice:{index}")), "{keys:?}");
    }
}

#[tokio::test]
async fn log_entries_per_request_are_bounded() {
    let on = on_redis(rules(Algorithm::SlidingWindowLog, 100_000, Micros::from_secs(60)));
    let too_much = on.check_cost("alice", 10_001).await;
    assert_eq!(too_much.outcome, rlaas::algorithm::Outcome::Impossible);
    assert!(on.check_cost("alice", 10_000).await.is_allowed());
    assert_eq!(redis(&on).query::<u64>(&["ZCARD", LOG_KEY]), 10_000);
}
