//! Cases that only the memory store has: its bound, evictions, and expiry.

use std::time::Duration;

use super::{cases, per};
use rlaas::algorithm::Algorithm;
use rlaas::clock::Micros;
use rlaas::rules::RuleSet;
use rlaas::store::MemorySettings;
use rlaas_testkit::service::Service;
use rlaas_testkit::{eventually, rules};

/// Returns a service with a store of ten ids, and a limit of `units` a minute.
fn service_of_ten(algorithm: Algorithm, units: u64) -> Service {
    memory_of_ten(rules(algorithm, units, Micros::from_secs(60)))
}

fn memory_of_ten(rules: RuleSet) -> Service {
    Service::on_bounded_memory(rules, MemorySettings { max_keys: 10 })
}

fn keys(on: &Service) -> i64 {
    on.metrics.memory_keys.get()
}

cases! {
    all, memory_of_ten;
    bound_holds_and_evictions_are_counted: per(5, Micros::from_secs(60));
    denial_without_state_stores_none: per(5, Micros::from_secs(60));
}

async fn bound_holds_and_evictions_are_counted(on: Service) {
    for id in 0..1_000 {
        assert!(on.check(&id.to_string()).await.is_allowed());
        assert!(keys(&on) <= 10);
    }
    assert_eq!(on.metrics.memory_evictions.get(), 990);
}

async fn denial_without_state_stores_none(on: Service) {
    for id in 0..100 {
        assert!(!on.check_cost(&id.to_string(), 6).await.is_allowed());
    }
    assert_eq!(keys(&on), 0);
}

#[tokio::test]
async fn large_store_keeps_its_bound() {
    let rules = rules(Algorithm::FixedWindow, 5, Micros::from_secs(60));
    let on = Service::on_bounded_memory(rules, MemorySettings { max_keys: 3_000 });
    for id in 0..10_000 {
        on.check(&id.to_string()).await;
    }
    assert!((2_900..=3_000).contains(&keys(&on)), "{}", keys(&on));
}

#[tokio::test]
async fn ids_at_their_limit_are_evicted_last() {
    let on = service_of_ten(Algorithm::SlidingWindowLog, 2);
    for id in ["greedy-1", "greedy-2", "greedy-3"] {
        on.check_cost(id, 2).await;
    }
    for id in 0..1_000 {
        on.check(&id.to_string()).await;
    }
    for id in ["greedy-1", "greedy-2", "greedy-3"] {
        assert!(!on.check(id).await.is_allowed(), "{id} got out of its limit");
    }
}

#[tokio::test]
async fn expired_ids_are_removed_first_and_are_no_evictions() {
    let on = service_of_ten(Algorithm::SlidingWindowLog, 5);
    for id in 0..10 {
        on.check(&id.to_string()).await;
    }
    on.at(120.001);
    for id in 10..20 {
        on.check(&id.to_string()).await;
    }
    assert_eq!((keys(&on), on.metrics.memory_evictions.get()), (10, 0));
}

#[tokio::test]
async fn unused_ids_are_swept_in_the_background() {
    let on = service_of_ten(Algorithm::FixedWindow, 5);
    for id in 0..10 {
        on.check(&id.to_string()).await;
    }
    on.at(60.0);
    // States live through the last millisecond of their time, as in Redis.
    assert_eq!(keys(&on), 10);
    on.at(60.001);
    eventually("swept", Duration::from_secs(5), async || keys(&on) == 0).await;
}
