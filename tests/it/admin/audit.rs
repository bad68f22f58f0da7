//! The audit: what is recorded of changes, how it is read, and that nothing in it can be forged.

use std::collections::BTreeSet;

use prost::Message;
use prost_types::Timestamp;
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::audit_entry::State;
use rlaas_proto::ratelimit::v1::Grant;
use rlaas_proto::ratelimit::v1::grant::Kind;
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, check};
use rlaas_testkit::redis::RedisServer;
use tonic::Code;

use super::{AdminClient, admin, of_user, refund, reset};

/// Lists a page of the audit.
pub(super) async fn list(
    client: &mut AdminClient,
    request: proto::ListAuditRequest,
) -> Result<proto::ListAuditResponse, tonic::Status> {
    client.list_audit(request).await.map(tonic::Response::into_inner)
}

/// Lists the newest entries.
pub(super) async fn newest(client: &mut AdminClient) -> Vec<proto::AuditEntry> {
    list(client, proto::ListAuditRequest::default()).await.expect("a page").entries
}

fn summaries(entries: &[proto::AuditEntry]) -> Vec<&str> {
    entries.iter().map(|entry| entry.summary.as_str()).collect()
}

/// Servers on each store.
fn servers(redis: &RedisServer, settings: &[&str]) -> [Rlaas; 2] {
    [Rlaas::start(settings), Rlaas::on_redis(redis, settings)]
}

fn values(state: &proto::KeyState) -> Vec<Option<String>> {
    let key = state.key.clone().expect("a key");
    key.parts.into_iter().map(|part| part.value).collect()
}

#[tokio::test]
async fn a_change_is_recorded_with_its_caller_its_reason_and_its_effect() {
    let redis = RedisServer::start();
    for server in servers(&redis, &[]) {
        let (mut client, mut admin) = (server.client().await, admin(&server).await);
        for _ in 0..3 {
            check(&mut client, "alice").await.expect("a decision");
        }
        refund(&mut admin, of_user("alice"), 2, "one").await.expect("a change");
        reset(&mut admin, of_user("alice"), "").await.expect("a change");
        let entries = newest(&mut admin).await;
        assert_eq!(summaries(&entries), ["reset 1 key", "refund 2 units to 1 key"]);
        let [reset, refund] = &*entries else { panic!("{entries:?}") };
        assert!(refund.id < reset.id && refund.created_at.is_some());
        for (entry, action, request_id, used) in
            [(refund, "Refund", "one", [3, 1]), (reset, "Reset", "", [1, 0])]
        {
            assert_eq!(
                (&*entry.actor, &*entry.action, &*entry.target),
                ("local", action, "default")
            );
            assert_eq!((&*entry.reason, &*entry.request_id), ("a test", request_id));
            assert_eq!(entry.state(), State::Done);
            assert!(entry.error.is_none());
            let states = [&entry.before[..], &entry.after[..]].concat();
            assert_eq!(states.iter().map(|state| state.used).collect::<Vec<_>>(), used);
        }
        let shown = format!("{entries:?}");
        assert!(!shown.contains("alice"), "keys are hashed: {shown}");
        let hashed = values(&entries[0].before[0]);
        let [Some(hash)] = &*hashed else { panic!("{hashed:?}") };
        assert!(hash.starts_with('#') && hash.len() == 27, "{hash}");
        assert_eq!(hashed, values(&entries[1].after[0]), "the same key has the same hash");
    }
    let stored: Vec<u8> = redis.query(&["DUMP", "rlaas:audit"]);
    assert!(!stored.windows(5).any(|window| window == b"alice"));
}

#[tokio::test]
async fn a_ban_is_recorded_with_what_the_key_has_used() {
    let redis = RedisServer::start();
    for server in servers(&redis, &["rate-limiter.overridable=true"]) {
        let (mut client, mut admin) = (server.client().await, admin(&server).await);
        for _ in 0..4 {
            check(&mut client, "alice").await.expect("a decision");
        }
        let ban = proto::SetOverrideRequest {
            selector: of_user("alice"),
            grant: Some(Grant { kind: Some(Kind::Banned(true)), burst: 0 }),
            ttl: Some(prost_types::Duration { seconds: 60, nanos: 0 }),
            reason: "abuse".to_owned(),
            ..proto::SetOverrideRequest::default()
        };
        admin.set_override(ban).await.expect("a ban");
        let entries = newest(&mut admin).await;
        let states = [&entries[0].before[..], &entries[0].after[..]].concat();
        let seen = states.iter().map(|state| (state.used, state.limit));
        assert_eq!(seen.collect::<Vec<_>>(), [(4, 5), (4, 0)], "not as after a reset");
    }
}

#[tokio::test]
async fn keys_are_in_clear_where_the_setting_says_so() {
    let redis = RedisServer::start();
    for server in servers(&redis, &["audit.keys=clear"]) {
        let mut admin = admin(&server).await;
        reset(&mut admin, of_user("alice"), "").await.expect("a change");
        let entries = newest(&mut admin).await;
        assert_eq!(values(&entries[0].before[0]), [Some("alice".to_owned())]);
        let key = entries[0].after[0].key.clone().expect("a key");
        assert_eq!(key.id, "alice");
    }
}

#[tokio::test]
async fn pages_and_filters_select_entries() {
    let redis = RedisServer::start();
    for server in servers(&redis, &[]) {
        let mut admin = admin(&server).await;
        for number in 0..7 {
            let user = if number % 2 == 0 { "alice" } else { "bob" };
            refund(&mut admin, of_user(user), number + 1, &format!("id{number}"))
                .await
                .expect("a change");
        }
        let all = newest(&mut admin).await;
        let ids: BTreeSet<_> = all.iter().map(|entry| entry.id.clone()).collect();
        assert_eq!((all.len(), ids.len()), (7, 7));
        for page_size in [1, 2, 3, 7, 1000, i32::MAX] {
            let (mut paged, mut page_token, mut calls) = (Vec::new(), String::new(), 0);
            loop {
                let request =
                    proto::ListAuditRequest { page_size, page_token, ..Default::default() };
                let page = list(&mut admin, request).await.expect("a page");
                assert!(page.entries.len() <= usize::try_from(page_size).expect("positive"));
                (calls, page_token) = (calls + 1, page.next_page_token);
                paged.extend(page.entries);
                if page_token.is_empty() {
                    break;
                }
            }
            assert_eq!(paged, all, "in {calls} pages of {page_size}");
        }
        let filtered = async |request: proto::ListAuditRequest| {
            let page = list(&mut admin.clone(), request).await.expect("a page");
            page.entries.into_iter().map(|entry| entry.request_id).collect::<Vec<_>>()
        };
        let any = proto::ListAuditRequest::default;
        let selector = of_user("bob");
        let of_bob = filtered(proto::ListAuditRequest { selector, ..any() }).await;
        assert_eq!(of_bob, ["id5", "id3", "id1"]);
        let selector = of_user("nobody");
        assert!(filtered(proto::ListAuditRequest { selector, ..any() }).await.is_empty());
        for (target, actor, expected) in
            [("default", "", 7), ("pay", "", 0), ("", "local", 7), ("", "token:a", 0)]
        {
            let (target, actor) = (target.to_owned(), actor.to_owned());
            let found = filtered(proto::ListAuditRequest { target, actor, ..any() }).await;
            assert_eq!(found.len(), expected);
        }
        let at = |entry: &proto::AuditEntry| entry.created_at;
        let (since, until) = (at(&all[4]), at(&all[1]));
        let found = filtered(proto::ListAuditRequest { since, until, ..any() }).await;
        let within = |entry: &&proto::AuditEntry| {
            let key = |time: Option<Timestamp>| time.map(|time| (time.seconds, time.nanos));
            key(at(entry)) >= key(since) && key(at(entry)) < key(until)
        };
        let expected: Vec<_> =
            all.iter().filter(within).map(|entry| entry.request_id.clone()).collect();
        assert_eq!(found, expected);
    }
}

#[tokio::test]
async fn changes_of_a_rule_are_its_own_those_of_its_keys_and_of_all_rules() {
    let server = Rlaas::start(&["auth.api-keys=accepted"]);
    let post = async |path: &str, body: &str| {
        let (status, answer) = server.post(path, body).await;
        assert!(status < 300, "{path}: {answer}");
    };
    post("/v1/projects", r#"{"project":{"id":"shop"}}"#).await;
    let rules = r#"{"rules":[{"name":"pay","maxRequests":5,"window":"60s"},
        {"name":"send","maxRequests":5,"window":"60s"}],"reason":"both"}"#;
    post("/v1/projects/shop/rules:apply", rules).await;
    post("/v1/admin/mode", r#"{"projectId":"shop","rule":"pay","mode":"RULE_MODE_SHADOW","ttl":"60s","reason":"mode"}"#).await;
    let key = r#"{"selector":{"projectId":"shop","rule":"send","request":{"userId":"alice"}},"reason":"key"}"#;
    post("/v1/admin/keys:reset", key).await;
    post("/v1/projects/shop/keys", "{}").await;
    let mut admin = admin(&server).await;
    for (rule, reasons) in
        [("pay", &["mode", "both"][..]), ("send", &["key", "both"]), ("buy", &["both"])]
    {
        let (project_id, rule) = ("shop".to_owned(), rule.to_owned());
        let request = proto::ListAuditRequest { project_id, rule, ..Default::default() };
        let found = list(&mut admin, request).await.expect("a page").entries;
        let found: Vec<_> = found.iter().map(|entry| &*entry.reason).collect();
        assert_eq!(found, reasons);
    }
}

#[tokio::test]
async fn an_entry_holds_the_number_of_keys_that_do_not_fit() {
    let dir = TempDir::new();
    let rule = |number| {
        format!(
            "  - {{name: rule-{number:02}, match: {{user_id: \"*\"}}, limit: 5, window: 60s}}\n"
        )
    };
    let rules: String = (0..63).map(rule).collect();
    let file = dir.write("rules.yaml", &format!("rules:\n{rules}"));
    let server = Rlaas::start_from(&file, &[]);
    let mut admin = admin(&server).await;
    let user = "u".repeat(1024);
    reset(&mut admin, of_user(&user), "").await.expect("a change");
    let reason = "r".repeat(1024);
    let request = proto::RefundRequest {
        selector: of_user(&user),
        units: 1,
        reason,
        request_id: "i".repeat(64),
    };
    admin.refund(request).await.expect("a change");
    for entry in newest(&mut admin).await {
        assert!(entry.encoded_len() <= 8 * 1024, "{} bytes", entry.encoded_len());
        for (side, listed) in [("before", entry.before.len()), ("after", entry.after.len())] {
            let told = format!("{side}: {} of 63 keys left out", 63 - listed);
            assert_eq!(entry.summary.contains(&told), listed < 63, "{}", entry.summary);
            assert!(listed > 5, "{listed} keys {side}");
        }
        assert!(entry.after.len() < 63, "some do not fit");
        assert_eq!(entry.target, "", "several rules");
    }
    // An entry is found by a key that it leaves out.
    let mut last = of_user(&user).expect("a selector");
    last.rule = "rule-62".to_owned();
    let request = proto::ListAuditRequest { selector: Some(last), ..Default::default() };
    assert_eq!(list(&mut admin, request).await.expect("a page").entries.len(), 2);
}

#[tokio::test]
async fn the_audit_keeps_the_newest_entries() {
    let redis = RedisServer::start();
    for server in servers(&redis, &["audit.max-entries=3"]) {
        let mut admin = admin(&server).await;
        for number in 0..150 {
            let id = format!("id{number}");
            refund(&mut admin, of_user("alice"), 1, &id).await.expect("a change");
        }
        let request = proto::ListAuditRequest { page_size: 1000, ..Default::default() };
        let entries = list(&mut admin, request).await.expect("a page").entries;
        // Redis removes records in groups of 100.
        assert!((3..=53).contains(&entries.len()), "{}", entries.len());
        assert_eq!(entries[0].request_id, "id149");
        assert!(entries.iter().all(|entry| entry.state() == State::Done));
    }
}

#[tokio::test]
async fn refused_calls_are_not_in_the_audit() {
    let server = Rlaas::start(&[]);
    let mut admin = admin(&server).await;
    let request = |reason: &str, units| proto::RefundRequest {
        selector: of_user("alice"),
        units,
        reason: reason.to_owned(),
        request_id: "one".to_owned(),
    };
    admin.refund(request("", 1)).await.expect_err("no reason");
    admin.refund(request("a test", 0)).await.expect_err("no units");
    assert!(newest(&mut admin).await.is_empty());
}

#[tokio::test]
async fn an_audit_that_can_not_be_written_changes_nothing() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &[]);
    let (mut client, mut admin) = (server.client().await, admin(&server).await);
    for _ in 0..3 {
        check(&mut client, "alice").await.expect("a decision");
    }
    redis.query::<()>(&["SET", "rlaas:audit", "foreign"]);
    let refusal = reset(&mut admin, of_user("alice"), "").await.expect_err("no audit");
    assert_eq!(refusal.code(), Code::Unavailable);
    assert_eq!(refusal.message(), "the audit can't be written: nothing was changed");
    let states = super::inspect(&mut admin, of_user("alice")).await.expect("a state");
    assert_eq!(states[0].used, 3);
    redis.query::<()>(&["DEL", "rlaas:audit"]);
    reset(&mut admin, of_user("alice"), "").await.expect("a change");
    assert_eq!(server.metric("rlaas_breaker_state").await, Some(0.0));
}
