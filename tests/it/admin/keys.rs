//! Inspect, Reset and Refund over gRPC, in memory and in Redis.

use rlaas::clock::{Micros, Timestamp};
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::selector::Target;
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, check, request};
use rlaas_testkit::redis::{RedisServer, free_port};
use tonic::Code;
use tonic_types::StatusExt;

use super::{admin, inspect, of_parts, of_user, refund, reset, selector};

const RULES: &str = "\
rules:
  - {name: pay, match: {resource: /pay}, key_by: [resource, user_id], algorithm: gcra, limit: 3, window: 60s}
  - {name: a-b, match: {resource: /pay}, algorithm: token-bucket, limit: 5, window: 60s}
";

/// Servers on each store, with these rules.
fn servers(dir: &TempDir, redis: &RedisServer) -> [Rlaas; 2] {
    let file = dir.write("rules.yaml", RULES);
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &url, "store.redis.timeout=10s"];
    [Rlaas::start_from(&file, &[]), Rlaas::start_from(&file, &settings)]
}

fn numbers(state: &proto::KeyState) -> (&str, i64, i64, i64) {
    (&state.rule, state.limit, state.used, state.remaining)
}

#[tokio::test]
async fn a_key_is_shown_and_changed_on_each_store() {
    let (dir, redis) = (TempDir::new(), RedisServer::start());
    for server in servers(&dir, &redis) {
        let (mut client, mut admin) = (server.client().await, admin(&server).await);
        let mut pay = request("alice");
        pay.resource = "/pay".to_owned();
        for _ in 0..4 {
            client.check(pay.clone()).await.expect("a decision");
        }
        let target = || selector(Target::Request(pay.clone()));
        for _ in 0..2 {
            let found = inspect(&mut admin, target()).await.expect("two found");
            let shown: Vec<_> = found.iter().map(numbers).collect();
            assert_eq!(shown, [("a-b", 5, 3, 2), ("pay", 3, 3, 0)]);
            assert!(found[0].retry_after.is_none() && found[1].retry_after.is_some());
            let key = found[1].key.clone().expect("a key");
            let names: Vec<_> = key.parts.iter().map(|part| &*part.name).collect();
            assert_eq!((names, &*key.id), (vec!["resource", "user_id"], "/pay:alice"));
        }
        let change = refund(&mut admin, target(), 2, "one").await.expect("a change");
        let shown: Vec<_> = change.before.iter().chain(&change.after).map(numbers).collect();
        let before = [("a-b", 5, 3, 2), ("pay", 3, 3, 0)];
        assert_eq!(shown, [before[0], before[1], ("a-b", 5, 1, 4), ("pay", 3, 1, 2)]);
        assert!(change.everywhere_by.is_some() && !change.replayed);
        let parts = [("resource", Some("/pay")), ("user_id", Some("alice"))];
        let change = reset(&mut admin, of_parts("pay", &parts), "").await.expect("a change");
        let shown: Vec<_> = change.before.iter().chain(&change.after).map(numbers).collect();
        assert_eq!(shown, [("pay", 3, 1, 2), ("pay", 3, 0, 3)]);
        let found = inspect(&mut admin, target()).await.expect("two found");
        assert_eq!(numbers(&found[0]), ("a-b", 5, 1, 4));
    }
}

#[tokio::test]
async fn storage_key_is_the_name_in_redis() {
    let (dir, redis) = (TempDir::new(), RedisServer::start());
    let [memory, server] = servers(&dir, &redis);
    let user_id = "a:{b}\0\n";
    check(&mut server.client().await, user_id).await.expect("a decision");
    let mut seen = Vec::new();
    for server in [memory, server] {
        let found = inspect(&mut admin(&server).await, of_user(user_id)).await.expect("a state");
        let key = found[0].key.clone().expect("a key");
        assert_eq!(key.parts[0].value.as_deref(), Some(user_id));
        seen.push(key.storage_key);
    }
    assert_eq!(seen, [":a%3A%7Bb%7D%00%0A", "rlaas:rate_limit:a%3A%7Bb%7D%00%0A"]);
    assert_eq!(redis.keys(), [&*seen[1]]);
}

#[tokio::test]
async fn store_away_is_told_and_no_policy_applies() {
    let url = format!("store.redis.url=redis://127.0.0.1:{}", free_port());
    let open = ["store.backend=redis", &url, "rate-limiter.fail-open=true"];
    let server = Rlaas::start(&open);
    let mut admin = admin(&server).await;
    assert!(check(&mut server.client().await, "alice").await.expect("fail-open").allowed);
    let away = [
        inspect(&mut admin, of_user("alice")).await.map(drop),
        reset(&mut admin, of_user("alice"), "").await.map(drop),
        refund(&mut admin, of_user("alice"), 1, "id").await.map(drop),
    ];
    for status in away.map(|result| result.expect_err("no store")) {
        assert_eq!((status.code(), status.message()), (Code::Unavailable, "store unavailable"));
        let info = status.get_details_error_info().expect("a reason");
        assert_eq!((&*info.reason, &*info.domain), ("STORE_UNAVAILABLE", "rlaas"));
    }
}

#[tokio::test]
async fn a_request_id_changes_once_whatever_instance_is_asked() {
    let (dir, redis) = (TempDir::new(), RedisServer::start());
    let [memory, one] = servers(&dir, &redis);
    let other = Rlaas::on_redis(&redis, &[]);
    for (one, other) in [(&memory, &memory), (&one, &other)] {
        let mut client = one.client().await;
        for _ in 0..4 {
            check(&mut client, "alice").await.expect("a decision");
        }
        let (mut one, mut other) = (admin(one).await, admin(other).await);
        let first = refund(&mut one, of_user("alice"), 1, "id").await.expect("a change");
        assert!(!first.replayed);
        for client in [&mut one, &mut other] {
            let again = refund(client, of_user("alice"), 1, "id").await.expect("a replay");
            assert_eq!(again, proto::Change { replayed: true, ..first.clone() });
        }
        let found = inspect(&mut other, of_user("alice")).await.expect("a state");
        assert_eq!(numbers(&found[0]), ("default", 5, 3, 2));
        for (units, user_id) in [(2, "alice"), (1, "bob")] {
            let status = refund(&mut other, of_user(user_id), units, "id").await;
            let status = status.expect_err("another change");
            let text = "request_id must be a new one: it was used for another change";
            assert_eq!((status.code(), status.message()), (Code::InvalidArgument, text));
        }
        let status = reset(&mut other, of_user("alice"), "id").await.expect_err("another change");
        assert_eq!(status.code(), Code::InvalidArgument);
        // Concurrent calls change once; those that come too early are told so.
        let calls = (0..8).map(|_| {
            let mut client = other.clone();
            async move { refund(&mut client, of_user("alice"), 1, "hedged").await }
        });
        let answers = futures_util::future::join_all(calls).await;
        let first = answers.iter().flatten().filter(|change| !change.replayed).count();
        assert_eq!(first, 1, "{answers:?}");
        for status in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        }
        let found = inspect(&mut other, of_user("alice")).await.expect("a state");
        assert_eq!(numbers(&found[0]), ("default", 5, 2, 3));
    }
}

#[tokio::test]
async fn a_reset_is_a_moment_of_the_clock_of_the_store_and_its_zone_that_of_the_calendar() {
    let (dir, redis) = (TempDir::new(), RedisServer::start());
    let calendar = "  - {name: month, match: {resource: /pay}, algorithm: fixed-window, limit: 9,
      calendar: {unit: month, zone: Europe/Berlin}}\n";
    let file = dir.write("rules.yaml", &format!("{RULES}{calendar}"));
    // 30 November 2026, 12:00 in UTC; the month ends at 23:00.
    let start = Timestamp::from_millis(1_796_040_000_000);
    redis.set_clock(start);
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &url, "store.redis.timeout=10s"];
    let server = Rlaas::start_from(&file, &settings);
    let (mut client, mut admin) = (server.client().await, admin(&server).await);
    let mut pay = request("alice");
    pay.resource = "/pay".to_owned();
    for seconds in [0, 7, 3_600] {
        let now = start + Micros::from_secs(seconds);
        redis.set_clock(now);
        client.check(pay.clone()).await.expect("a decision");
        let found = inspect(&mut admin, selector(Target::Request(pay.clone()))).await;
        let found = found.expect("three keys");
        for state in &found {
            let (at, after) = (state.reset_at.expect("a moment"), state.reset_after);
            let [at, after] =
                [(at.seconds, at.nanos), after.map_or((0, 0), |d| (d.seconds, d.nanos))].map(
                    |(seconds, nanos)| i128::from(seconds) * 1_000_000 + i128::from(nanos / 1_000),
                );
            assert_eq!(at - after, i128::from(now.as_micros()), "{state:?}");
        }
        let zones: Vec<_> = found.iter().map(|state| (&*state.rule, &*state.zone)).collect();
        assert_eq!(zones, [("a-b", ""), ("month", "Europe/Berlin"), ("pay", "")]);
        let windows: Vec<_> = found.iter().map(|state| state.window.map(|w| w.seconds)).collect();
        assert_eq!(windows, [Some(60), Some(30 * 86_400), Some(60)]);
        assert_eq!(found[1].reset_at.map(|at| at.seconds), Some(1_796_079_600));
        assert_eq!(found[1].reset_words(), "1 Dec, 00:00 Europe/Berlin");
    }
}
