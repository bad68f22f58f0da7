//! The sliding window log, and its keys in Redis.

use super::{cases, conforms, per};
use rlaas::algorithm::Algorithm;
use rlaas::clock::Micros;
use rlaas::rules::RuleSet;
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::rules;
use rlaas_testkit::service::Service;

super::on_both! { sliding_window_log }

const KEY: &str = "rlaas:rate_limit:alice";

fn b(algorithm: Algorithm) -> RuleSet {
    rules(algorithm, 5, Micros::from_secs(60))
}

cases! {
    sliding_window_log, redis;
    thousand_requests_leave_five_entries: b;
    log_key_lives_two_windows: b;
    set_never_holds_more_entries_than_the_limit: per(100, Micros::from_secs(60));
    large_cost_leaves_as_many_entries: per(5_000, Micros::from_secs(60));
    hostile_ids_are_encoded: b;
}

fn redis(on: &Service) -> &RedisServer {
    on.redis().expect("a service on Redis")
}

async fn thousand_requests_leave_five_entries(on: Service) {
    conforms("sliding_window_log", "a_thousand_in_one_millisecond", &on).await;
    assert_eq!(redis(&on).query::<u64>(&["ZCARD", KEY]), 5);
}

async fn log_key_lives_two_windows(on: Service) {
    let case = "the_log_lives_two_windows_from_the_last_request";
    conforms("sliding_window_log", case, &on).await;
    assert_eq!(redis(&on).query::<u64>(&["PTTL", KEY]), 120_000);
}

async fn set_never_holds_more_entries_than_the_limit(on: Service) {
    for call in 0..10_000_u32 {
        on.at(f64::from(call) * 0.006);
        assert!(on.check("alice").await.current_count <= 100);
        if call % 500 == 0 {
            assert!(redis(&on).query::<u64>(&["ZCARD", KEY]) <= 100);
        }
    }
}

async fn large_cost_leaves_as_many_entries(on: Service) {
    conforms("sliding_window_log", "a_large_cost_writes_as_many_entries", &on).await;
    assert_eq!(redis(&on).query::<u64>(&["ZCARD", KEY]), 5_000);
}

async fn hostile_ids_are_encoded(on: Service) {
    conforms("sliding_window_log", "hostile_ids_are_ids", &on).await;
    let keys = redis(&on).keys();
    assert!(keys.contains(&"rlaas:rate_limit:a%00b".to_owned()), "{keys:?}");
}
