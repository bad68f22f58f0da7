//! Overrides and bans, set, listed and ended over gRPC.

use std::time::Duration;

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::Grant;
use rlaas_proto::ratelimit::v1::grant::Kind;
use rlaas_testkit::process::{Rlaas, check};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use tonic::Code;

use super::{AdminClient, admin, inspect, of_parts, of_user, reset};

const RULES: &str = "\
rate-limiter: {max-requests: 2, overridable: true}
rules:
  - {name: plain, match: {resource: /plain}, limit: 3, window: 60s}
";

pub(super) fn set(selector: Option<proto::Selector>, kind: Kind) -> proto::SetOverrideRequest {
    proto::SetOverrideRequest {
        selector,
        grant: Some(Grant { kind: Some(kind), burst: 0 }),
        ttl: Some(prost_types::Duration { seconds: 3600, nanos: 0 }),
        reason: "ticket 7".to_owned(),
        ..proto::SetOverrideRequest::default()
    }
}

/// Ends both kinds.
pub(super) fn clear(selector: Option<proto::Selector>) -> proto::ClearOverrideRequest {
    proto::ClearOverrideRequest {
        selector,
        kind: proto::OverrideKind::Unspecified.into(),
        reason: "over".to_owned(),
        request_id: String::new(),
    }
}

async fn list(client: &mut AdminClient, rule: &str) -> Vec<proto::KeyOverride> {
    let mut request =
        proto::ListOverridesRequest { rule: rule.to_owned(), page_size: 1, ..Default::default() };
    let mut all = Vec::new();
    loop {
        let page = client.list_overrides(request.clone()).await.expect("a page").into_inner();
        all.extend(page.overrides);
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return all;
        }
    }
}

#[tokio::test]
async fn bans_and_other_overrides_stand_side_by_side_in_memory() {
    let dir = TempDir::new();
    stand_side_by_side(Rlaas::start_from(&dir.write("rules.yaml", RULES), &[])).await;
}

#[tokio::test]
async fn bans_and_other_overrides_stand_side_by_side_in_redis() {
    let (dir, redis) = (TempDir::new(), RedisServer::start());
    stand_side_by_side(on_redis(&dir, &redis)).await;
}

fn on_redis(dir: &TempDir, redis: &RedisServer) -> Rlaas {
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &url, "store.redis.timeout=10s"];
    Rlaas::start_from(&dir.write("rules.yaml", RULES), &settings)
}

async fn stand_side_by_side(server: Rlaas) {
    let (mut client, mut admin) = (server.client().await, admin(&server).await);
    for expected in [true, true, false] {
        let response = check(&mut client, "alice").await.expect("a decision");
        assert_eq!(response.allowed, expected);
    }
    let change = admin.set_override(set(of_user("alice"), Kind::Limit(5))).await;
    let change = change.expect("an override").into_inner().change.expect("a change");
    assert_eq!((change.before[0].limit, change.after[0].limit), (2, 5));
    assert_eq!((change.before[0].remaining, change.after[0].remaining), (0, 3));
    assert_eq!(change.before[0].grant_from(), proto::GrantFrom::Rule);
    assert_eq!(change.after[0].grant_from(), proto::GrantFrom::KeyOverride);
    let set_one = &change.after[0].overrides[0];
    assert_eq!((&*set_one.actor, &*set_one.reason), ("local", "ticket 7"));
    let (created_at, expires_at) = (set_one.created_at.expect("a time"), set_one.expires_at);
    let lasts = expires_at.expect("a time").seconds - created_at.seconds;
    assert!((3599..=3601).contains(&lasts), "{lasts}");
    assert!(check(&mut client, "alice").await.expect("a decision").allowed);

    let change = admin.set_override(set(of_user("alice"), Kind::Banned(true))).await;
    let change = change.expect("a ban").into_inner().change.expect("a change");
    assert_eq!((change.after[0].limit, change.after[0].overrides.len()), (0, 2));
    assert!(!check(&mut client, "alice").await.expect("a decision").allowed);
    // A reset leaves both.
    reset(&mut admin, of_user("alice"), "").await.expect("a reset");
    let states = inspect(&mut admin, of_user("alice")).await.expect("a state");
    assert_eq!((states[0].limit, states[0].overrides.len()), (0, 2));

    let clear = |kind: proto::OverrideKind| proto::ClearOverrideRequest {
        kind: kind.into(),
        ..clear(of_user("alice"))
    };
    let change = admin.clear_override(clear(proto::OverrideKind::Ban)).await;
    let change = change.expect("a change").into_inner().change.expect("a change");
    assert_eq!((change.before[0].overrides.len(), change.after[0].overrides.len()), (2, 1));
    assert_eq!((change.after[0].limit, change.after[0].used), (5, 0));
    for _ in 0..2 {
        let change = admin.clear_override(clear(proto::OverrideKind::Unspecified)).await;
        let change = change.expect("a change").into_inner().change.expect("a change");
        assert!(change.after[0].overrides.is_empty());
        assert_eq!(change.after[0].limit, 2);
    }
}

#[tokio::test]
async fn overrides_are_listed_by_page_rule_and_kind_in_memory() {
    let dir = TempDir::new();
    are_listed(Rlaas::start_from(&dir.write("rules.yaml", RULES), &[])).await;
}

#[tokio::test]
async fn overrides_are_listed_by_page_rule_and_kind_in_redis() {
    let (dir, redis) = (TempDir::new(), RedisServer::start());
    are_listed(on_redis(&dir, &redis)).await;
}

async fn are_listed(server: Rlaas) {
    let mut admin = admin(&server).await;
    assert!(list(&mut admin, "").await.is_empty());
    let users = ["alice", "b:{o}b\0\n"];
    for user_id in users {
        for kind in [Kind::Banned(true), Kind::Unlimited(true)] {
            admin.set_override(set(of_user(user_id), kind)).await.expect("an override");
        }
    }
    let mut all = list(&mut admin, "").await;
    assert_eq!(list(&mut admin, "default").await.len(), all.len());
    assert!(list(&mut admin, "plain").await.is_empty());
    let user = |one: &proto::KeyOverride| {
        one.key.as_ref().expect("a key").parts[0].value.clone().expect("a value")
    };
    all.sort_by_key(user);
    let shown: Vec<_> = all.iter().map(|one| (user(one), one.rule.clone())).collect();
    let rule = || "default".to_owned();
    let (alice, bob) = (users[0].to_owned(), users[1].to_owned());
    let expected = [(alice.clone(), rule()), (alice, rule()), (bob.clone(), rule()), (bob, rule())];
    assert_eq!(shown, expected);
    let request =
        proto::ListOverridesRequest { kind: proto::OverrideKind::Ban.into(), ..Default::default() };
    let bans = admin.list_overrides(request).await.expect("a page").into_inner().overrides;
    let is_ban = |one: &proto::KeyOverride| {
        one.grant.and_then(|grant| grant.kind) == Some(Kind::Banned(true))
    };
    assert!(bans.len() == 2 && bans.iter().all(is_ban), "{bans:?}");
}

#[tokio::test]
async fn pages_leave_nothing_out_while_other_keys_come_and_go() {
    let (dir, mut redis) = (TempDir::new(), RedisServer::start());
    let server = on_redis(&dir, &redis);
    let mut admin = admin(&server).await;
    for number in 0..200 {
        let selector = of_user(&format!("user-{number:03}"));
        admin.set_override(set(selector, Kind::Unlimited(true))).await.expect("an override");
    }
    // A step of SCAN ends when it has seen so many keys: with fewer others it goes further.
    let others = |command: &str, first: u32, last: u32| {
        let script = format!("for i = {first}, {last} do redis.call({command}) end");
        redis.query::<()>(&["EVAL", &script, "0"]);
    };
    let mut request = proto::ListOverridesRequest { page_size: 10, ..Default::default() };
    for fewer in [true, false] {
        if fewer {
            others("'SET', 'x' .. i, 1", 1, 4_000);
        }
        let (mut listed, mut pages) = (Vec::new(), 0);
        loop {
            let page = admin.list_overrides(request.clone()).await.expect("a page").into_inner();
            assert!(page.overrides.len() <= 10);
            listed.extend(page.overrides.into_iter().map(|one| one.key.expect("a key").id));
            let (first, last) = (pages * 100 + 1, pages * 100 + 100);
            others(if fewer { "'DEL', 'x' .. i" } else { "'SET', 'x' .. i, 1" }, first, last);
            pages += 1;
            request.page_token = page.next_page_token;
            if request.page_token.is_empty() {
                break;
            }
        }
        listed.sort_unstable();
        // SCAN shows a key again if Redis resizes its table meanwhile.
        listed.dedup();
        let expected: Vec<String> = (0..200).map(|number| format!("user-{number:03}")).collect();
        assert_eq!(listed, expected, "in {pages} pages");
    }

    // Places in the list of a server that was restarted say nothing about it.
    let page = admin.list_overrides(request.clone()).await.expect("a page").into_inner();
    redis.kill();
    redis.restart();
    request.page_token = page.next_page_token;
    let mut refused = None;
    let is_known = async || {
        refused = admin.clone().list_overrides(request.clone()).await.err();
        refused.as_ref().is_some_and(|status| status.code() == Code::InvalidArgument)
    };
    eventually("the restart is known", Duration::from_secs(20), is_known).await;
    let status = refused.expect("a refusal");
    let text = "page_token must be empty: other servers have the keys by now, so list them again";
    assert_eq!(status.message(), text);
    request.page_token.clear();
    let page = admin.list_overrides(request).await.expect("a page").into_inner();
    assert!(page.overrides.is_empty() && page.next_page_token.is_empty());
}

#[tokio::test]
async fn a_raise_that_would_lower_a_limit_changes_nothing() {
    let dir = TempDir::new();
    let rules = "\
rate-limiter: {max-requests: 30, overridable: true}
rules:
  - {name: bucket, match: {resource: /b}, algorithm: token-bucket, limit: 30, burst: 50, window: 60s,
     overridable: true}
";
    let server = Rlaas::start_from(&dir.write("rules.yaml", rules), &[]);
    let mut admin = admin(&server).await;
    let raise = |kind, burst| {
        let grant = Some(Grant { kind: Some(kind), burst });
        proto::SetOverrideRequest {
            grant,
            raise_only: true,
            request_id: "the same".to_owned(),
            ..set(of_parts("bucket", &[("user_id", Some("alice"))]), kind)
        }
    };
    let mut refused = async |kind, burst| {
        let status = admin.set_override(raise(kind, burst)).await.expect_err("a refusal");
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(rlaas_proto::is_lowering(&status), "{status:?}");
        let found = inspect(&mut admin, of_parts("bucket", &[("user_id", Some("alice"))])).await;
        assert!(found.expect("a state")[0].overrides.iter().all(|set| set.reason != "ticket 7"));
        status.message().to_owned()
    };
    let text = "grant.limit must not be below the limit in force: bucket 30 → 29";
    assert_eq!(refused(Kind::Limit(29), 50).await, text);
    assert!(refused(Kind::Limit(40), 0).await.ends_with(": bucket 50 → 40 at once"));
    assert!(refused(Kind::Banned(true), 0).await.ends_with(": bucket 30 → banned"));
    // Under a ban it is the limit beneath that counts.
    let alice = || of_parts("bucket", &[("user_id", Some("alice"))]);
    let unlimited = proto::SetOverrideRequest {
        reason: "before".to_owned(),
        ..set(alice(), Kind::Unlimited(true))
    };
    let ban = proto::SetOverrideRequest {
        reason: "before".to_owned(),
        ..set(alice(), Kind::Banned(true))
    };
    let mut other = super::admin(&server).await;
    other.set_override(ban).await.expect("a ban");
    assert!(refused(Kind::Limit(29), 50).await.ends_with(": bucket 30 → 29"));
    other.set_override(unlimited).await.expect("an override");
    assert!(refused(Kind::Limit(500), 0).await.ends_with(": bucket unlimited → 500"));
    // A refused id is free for the change that is meant.
    let lower = proto::SetOverrideRequest { raise_only: false, ..raise(Kind::Limit(500), 0) };
    let change = other.set_override(lower).await.expect("a change").into_inner().change;
    assert_eq!(change.expect("a change").after[0].overrides.len(), 2);
}
