//! Ids hashed by the key of `privacy.key-file`: a reload of the key is followed wherever ids are shown.

use std::path::PathBuf;
use std::time::Duration;

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::grant::Kind;
use rlaas_telemetry::keyed;
use rlaas_testkit::process::{Rlaas, request};
use rlaas_testkit::{TempDir, eventually};
use tonic::Streaming;

use super::overrides::set;
use super::top_keys::{query, with_token, with_tokens};
use super::{AdminClient, admin, of_parts, of_user};

const SOON: Duration = Duration::from_secs(20);

/// Writes a configuration with this key, or without one.
fn write(dir: &TempDir, key: Option<&str>) -> PathBuf {
    let privacy = key.map(|key| {
        let file = dir.write("privacy.key", key);
        format!("privacy: {{key-file: '{}'}}\n", file.display())
    });
    let rest = format!("{}telemetry: {{top-keys: true}}\n", privacy.unwrap_or_default());
    dir.write("rlaas.yaml", &with_tokens(&rest))
}

fn first_value(key: Option<&proto::KeyRef>) -> String {
    let value = key.and_then(|key| key.parts.first()?.value.clone());
    value.expect("a key of one part")
}

/// Decides about alice, and gives her units back. Returns her id as an administrator sees it in the
/// audit, in top keys, and in a stream.
async fn shown(
    server: &Rlaas,
    client: &mut AdminClient,
    events: &mut Streaming<proto::WatchDecisionsResponse>,
) -> [String; 3] {
    let mut checks = server.client().await;
    checks.check(with_token(request("alice"), "operator")).await.expect("a decision");
    let response = events.message().await.expect("an event").expect("no end");
    let reset = proto::ResetRequest {
        selector: of_user("alice"),
        reason: "a test".to_owned(),
        request_id: String::new(),
    };
    client.reset(with_token(reset, "operator")).await.expect("a change");
    let listed = client.list_audit(with_token(proto::ListAuditRequest::default(), "administrator"));
    let entries = listed.await.expect("a page").into_inner().entries;
    let mut top = async || {
        let query = with_token(query("default"), "administrator");
        client.top_keys(query).await.expect("counts").into_inner().used.expect("a list").keys
    };
    eventually("the key is counted", SOON, async || !top().await.is_empty()).await;
    [
        first_value(entries[0].before[0].key.as_ref()),
        first_value(top().await[0].key.as_ref()),
        first_value(response.events[0].key.as_ref()),
    ]
}

#[tokio::test]
async fn a_reloaded_key_hashes_ids_in_the_audit_top_keys_and_streams() {
    let dir = TempDir::new();
    let (one, other) = ("k".repeat(32), "n".repeat(32));
    let server = Rlaas::start_from(&write(&dir, Some(&one)), &[]);
    let mut client = admin(&server).await;
    let all = with_token(proto::WatchDecisionsRequest::default(), "administrator");
    let mut events = client.watch_decisions(all).await.expect("a stream").into_inner();
    let mut seen = Vec::new();
    for key in [Some(&one), Some(&other), None] {
        if !seen.is_empty() {
            let reloads = || server.log().matches("configuration reloaded").count();
            let before = reloads();
            write(&dir, key.map(String::as_str));
            eventually("the key is reloaded", SOON, async || reloads() > before).await;
        }
        let shown = shown(&server, &mut client, &mut events).await;
        // Without a file the key is a random one in the store.
        let expected =
            key.map_or_else(|| shown[0].clone(), |key| keyed(key.as_bytes()).shown("alice"));
        assert!(shown.iter().all(|one| *one == expected), "{shown:?}, not {expected}");
        assert!(
            expected.starts_with('#') && !seen.contains(&expected),
            "{expected} after {seen:?}"
        );
        seen.push(expected);
    }
}

#[tokio::test]
async fn an_id_that_rules_hash_is_shown_alike_to_all_and_a_ban_by_it_bans() {
    let dir = TempDir::new();
    let key = dir.write("privacy.key", &"k".repeat(32));
    let rest = format!(
        "privacy: {{hash: [user_id], key-file: '{}'}}\ntelemetry: {{top-keys: true}}\n\
         rules: [{{name: all, match: {{user_id: a*}}, limit: 5, window: 1h, overridable: true}}]\n",
        key.display()
    );
    let server = Rlaas::start_from(&dir.write("rlaas.yaml", &with_tokens(&rest)), &[]);
    let mut client = admin(&server).await;
    let mut streams = Vec::new();
    for token in ["operator", "administrator"] {
        let all = with_token(proto::WatchDecisionsRequest::default(), token);
        streams.push(client.watch_decisions(all).await.expect("a stream").into_inner());
    }
    let mut checks = server.client().await;
    let mut check = async || {
        let answer = checks.check(with_token(request("alice"), "operator")).await;
        answer.expect("a decision").into_inner().allowed
    };
    assert!(check().await);
    let mut shown = Vec::new();
    for (token, events) in ["operator", "administrator"].into_iter().zip(&mut streams) {
        let response = events.message().await.expect("an event").expect("no end");
        shown.push(first_value(response.events[0].key.as_ref()));
        let top = async || {
            let query = with_token(query("all"), token);
            let found = client.clone().top_keys(query).await.expect("counts").into_inner();
            found.used.expect("a list").keys
        };
        eventually("the key is counted", SOON, async || !top().await.is_empty()).await;
        shown.push(first_value(top().await[0].key.as_ref()));
    }
    let expected = keyed("k".repeat(32).as_bytes()).shown("alice");
    assert!(shown.iter().all(|one| *one == expected), "{shown:?}, not {expected}");
    let alice = of_parts("all", &[("user_id", Some(&expected))]);
    let ban = with_token(set(alice, Kind::Banned(true)), "administrator");
    client.set_override(ban).await.expect("a ban");
    assert!(!check().await);
}

#[tokio::test]
async fn an_override_of_a_hash_that_no_key_has_is_refused() {
    let dir = TempDir::new();
    let key = dir.write("privacy.key", &"k".repeat(32));
    let hash = |hashed: &str| {
        let rules = "rate-limiter: {overridable: true}\n\
                     rules: [{name: pay, match: {resource: /pay}, limit: 5, window: 1h, overridable: true}]\n";
        let privacy = format!("privacy: {{hash: [{hashed}], key-file: '{}'}}\n", key.display());
        Rlaas::start_from(&dir.write("rlaas.yaml", &(privacy + rules)), &[])
    };
    let shown = keyed("k".repeat(32).as_bytes()).shown("alice");
    let by_user = || of_user(&shown);
    let by_parts = || of_parts("pay", &[("user_id", Some(&*shown))]);
    let by_rule =
        || Some(proto::Selector { rule: "pay".to_owned(), ..by_user().expect("a selector") });
    for (hashed, taken) in [("user_id", [false, true, true]), ("resource", [false; 3])] {
        let server = hash(hashed);
        let mut client = admin(&server).await;
        for (selector, is_taken) in [by_user(), by_parts(), by_rule()].into_iter().zip(taken) {
            let answer = client.set_override(set(selector, Kind::Limit(9))).await;
            let Err(status) = answer else {
                assert!(is_taken, "{hashed}: {answer:?}");
                continue;
            };
            assert!(!is_taken, "{hashed}: {status:?}");
            assert_eq!(status.code(), tonic::Code::InvalidArgument);
            assert!(
                status.message().starts_with("selector must have values in clear"),
                "{status:?}"
            );
        }
        let parts = vec![proto::KeyPart { name: "user_id".to_owned(), value: Some(shown.clone()) }];
        let ttl = Some(prost_types::Duration { seconds: 60, nanos: 0 });
        let reason = "a flood".to_owned();
        let ban = proto::BanKeyRequest { parts, ttl, reason, ..Default::default() };
        assert_eq!(client.ban_key(ban).await.is_ok(), taken[1], "{hashed}");
        // Its keys have values in clear.
        let alice = client.set_override(set(of_user("alice"), Kind::Limit(9))).await;
        alice.expect("an override");
    }
}

#[tokio::test]
async fn where_nothing_is_hashed_such_an_id_is_as_any_other() {
    let server = Rlaas::start(&["rate-limiter.overridable=true"]);
    let mut client = admin(&server).await;
    let strange = keyed("k".repeat(32).as_bytes()).shown("alice");
    client.set_override(set(of_user(&strange), Kind::Limit(9))).await.expect("an override");
}
