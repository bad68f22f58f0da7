//! Rules of projects with `on-change`: each revision converts a state once, and none converts it back.

use std::num::NonZeroU64;
use std::time::Duration;

use rlaas::algorithm::OnChange;
use rlaas::clock::Deadline;
use rlaas::rules::spec::RuleSpec;
use rlaas::rules::{Request, Rule};
use rlaas_projects::Others;
use rlaas_testkit::redis::RedisServer;

use super::instance::{Running, project_id, soon};
use super::registry::memory;
use crate::fleet::instance::standalone;

/// Writes the rule `pay` of the project `shop`; returns its revision.
async fn write(on: &Running, units: u64) -> u64 {
    // No unit comes back within the test.
    let of_a_day = |name: &str, units| Rule::gcra(name).limit(units).per(Duration::from_hours(24));
    let pay = of_a_day("pay", units).on_change(OnChange::Reset);
    let other = RuleSpec { endpoint: vec!["/other".to_owned()].into(), ..of_a_day("other", 7) };
    on.apply("shop", &[pay, other], Others::Deleted).await.expect("rules").revision
}

/// Takes units of `pay`, and returns those that are left there.
async fn left_after(on: &Running, cost: u32) -> i64 {
    let request = Request::user("alice").cost(cost).in_project("shop").build().expect("a request");
    let verdict = on.registry.limiter().check(&request, Deadline::NEVER).await.expect("a verdict");
    verdict.deciding().decision.remaining
}

/// Returns the revisions of a rule: as it is kept, and in force.
fn revisions(on: &Running, name: &str) -> [Option<u64>; 2] {
    let state = on.registry.project(&project_id("shop")).expect("a project");
    let kept = state.rules.rule(name).and_then(|record| record.revision);
    let snapshot = on.registry.limiter().project_snapshot("shop").expect("rules");
    let in_force =
        snapshot.rules.iter().find(|rule| &*rule.name == name).and_then(|of| of.revision);
    [kept, in_force].map(|revision| revision.map(NonZeroU64::get))
}

async fn each_change_in_one_window_converts(on: &Running) {
    on.put("shop", "Shop").await.expect("a project");
    let first = write(on, 20).await;
    assert_eq!(left_after(on, 4).await, 16);
    // There and back, in one window.
    for _ in 0..3 {
        for units in [10, 20] {
            let revision = write(on, units).await;
            assert_eq!(revisions(on, "pay"), [Some(revision); 2]);
            // A rule that stays as it is keeps its own.
            assert_eq!(revisions(on, "other"), [Some(first); 2]);
            let expected = i64::try_from(units).expect("few") - 4;
            assert_eq!(left_after(on, 4).await, expected);
        }
    }
}

#[tokio::test]
async fn each_change_in_one_window_converts_in_memory() {
    each_change_in_one_window_converts(&memory()).await;
}

#[tokio::test]
async fn each_change_in_one_window_converts_on_all_instances() {
    let redis = RedisServer::start();
    let settings = standalone(&redis.url());
    let (one, mut late) = (Running::on_redis(&settings), Running::on_redis(&settings));
    each_change_in_one_window_converts(&one).await;
    late.registry.sync(soon()).await.expect("in force");
    assert_eq!(revisions(&late, "pay"), revisions(&one, "pay"));
    assert_eq!(revisions(&late, "other"), revisions(&one, "other"));
    assert_eq!(left_after(&late, 1).await, 15);

    late.stop_following();
    write(&one, 10).await;
    assert_eq!(left_after(&one, 4).await, 6);
    // It counts by its own numbers on the state as it is, and neither does it convert.
    assert_eq!(left_after(&late, 1).await, 5);
    assert_eq!(left_after(&one, 1).await, 4);
    assert_eq!(left_after(&late, 1).await, 3);
    // The next one follows the newest, though the instance that lags has counted by the same limit.
    write(&one, 20).await;
    assert_eq!(left_after(&one, 1).await, 19);
    late.resume_following();
}
