//! `BanKey`: bans of a key on every rule of a project that is keyed by its parts.

use std::fmt::Write;

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::CheckRequest;
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, request};
use rlaas_testkit::redis::RedisServer;
use serde_json::json;
use tonic::Code;

use super::http::post;
use super::{AdminClient, admin};

const RULES: &str = "\
rate-limiter: {overridable: true}
rules:
  - {name: pay, match: {resource: /pay}, limit: 9, window: 1h, overridable: true}
  - {name: read, match: {resource: /read}, limit: 9, window: 1h, overridable: true}
  - {name: fixed, match: {resource: /fixed}, limit: 9, window: 1h}
  - {name: by-ip, match: {resource: /ip}, key-by: [ip], limit: 9, window: 1h, overridable: true}
  - {name: plan, match: {resource: /plan}, key-by: [plan, user_id], limit: 9, window: 1h, overridable: true}
";

fn ban(parts: &[(&str, Option<&str>)], seconds: i64) -> proto::BanKeyRequest {
    let part = |(name, value): &(&str, Option<&str>)| proto::KeyPart {
        name: (*name).to_owned(),
        value: value.map(str::to_owned),
    };
    proto::BanKeyRequest {
        project_id: String::new(),
        parts: parts.iter().map(part).collect(),
        ttl: Some(prost_types::Duration { seconds, nanos: 0 }),
        reason: "a flood".to_owned(),
        end: false,
    }
}

async fn banned(client: &mut AdminClient, request: proto::BanKeyRequest) -> proto::BanKeyResponse {
    client.ban_key(request).await.expect("bans").into_inner()
}

async fn is_allowed(server: &Rlaas, resource: &str) -> bool {
    let request = CheckRequest { resource: resource.to_owned(), ..request("alice") };
    server.client().await.check(request).await.expect("a decision").into_inner().allowed
}

#[tokio::test]
async fn key_is_banned_on_every_rule_that_has_it_in_memory() {
    let dir = TempDir::new();
    on_every_rule(&Rlaas::start_from(&dir.write("rules.yaml", RULES), &[])).await;
}

#[tokio::test]
async fn key_is_banned_on_every_rule_that_has_it_in_redis() {
    let (dir, redis) = (TempDir::new(), RedisServer::start());
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &url, "store.redis.timeout=10s"];
    on_every_rule(&Rlaas::start_from(&dir.write("rules.yaml", RULES), &settings)).await;
}

async fn on_every_rule(server: &Rlaas) {
    let mut client = admin(server).await;
    let alice = [("user_id", Some("alice"))];
    let first = banned(&mut client, ban(&alice, 3_600)).await;
    assert_eq!(first.banned, ["default", "pay", "read"]);
    assert_eq!(
        (&*first.banned_before, &*first.not_overridable),
        (&[][..], &["fixed".to_owned()][..])
    );
    assert_eq!(first.keyed_otherwise, ["by-ip", "plan"]);
    assert!(first.everywhere_by.is_some());
    for (resource, expected) in [
        ("/pay", false),
        ("/read", false),
        ("", false),
        ("/fixed", true),
        ("/ip", true),
        ("/plan", true),
    ] {
        assert_eq!(is_allowed(server, resource).await, expected, "{resource}");
    }
    // A repeat changes nothing, nor does a ban that ends sooner; one that ends later does.
    for seconds in [3_600, 60] {
        let again = banned(&mut client, ban(&alice, seconds)).await;
        assert_eq!((&*again.banned, &*again.banned_before), (&[][..], &*first.banned), "{seconds}");
    }
    // One that is missing is set by a repeat.
    let clear = proto::ClearOverrideRequest {
        selector: super::of_parts("pay", &alice),
        kind: proto::OverrideKind::Ban.into(),
        reason: "over".to_owned(),
        request_id: String::new(),
    };
    client.clear_override(clear).await.expect("a change");
    let again = banned(&mut client, ban(&alice, 3_600)).await;
    assert_eq!((&*again.banned, again.banned_before.len()), (&["pay".to_owned()][..], 2));
    let later = banned(&mut client, ban(&alice, 7_200)).await;
    assert_eq!((later.banned, later.banned_before.len()), (first.banned, 0));
    let plan = [("user_id", Some("alice")), ("attributes.plan", None)];
    assert_eq!(banned(&mut client, ban(&plan, 60)).await.banned, ["plan"]);
    assert!(!is_allowed(server, "/plan").await);
    let none = banned(&mut client, ban(&[("resource", Some("/a"))], 60)).await;
    assert_eq!((none.banned.len(), none.keyed_otherwise.len()), (0, 6));
    let audit = client.list_audit(proto::ListAuditRequest::default()).await.expect("a page");
    let audit = audit.into_inner().entries;
    let bans: Vec<_> = audit.iter().filter(|entry| entry.action == "BanKey").collect();
    let of_first = bans.last().expect("an entry");
    assert_eq!((bans.len(), &*of_first.summary), (4, "ban 3 keys for 1h"));
    assert_eq!((&*of_first.reason, of_first.after.len()), ("a flood", 3));
    // They end together, with those of keys that a request of the user alone meets.
    let end = proto::BanKeyRequest { end: true, ttl: None, ..ban(&alice, 0) };
    let ended = banned(&mut client, end.clone()).await;
    assert_eq!(ended.ended, ["default", "pay", "read"]);
    assert!(ended.banned.is_empty() && ended.keyed_otherwise.is_empty(), "{ended:?}");
    assert!(ended.everywhere_by.is_some() && is_allowed(server, "/pay").await);
    let again = banned(&mut client, proto::BanKeyRequest { project_id: "-".to_owned(), ..end });
    assert_eq!(again.await, proto::BanKeyResponse::default());
    // Over HTTP too.
    let body = json!({
        "parts": [{ "name": "user_id", "value": "bob" }], "ttl": "60s", "reason": "a flood",
    });
    let (status, _, answer) = post(server, "ban", &body.to_string()).await;
    assert_eq!((status, &answer["banned"]), (200, &json!(["default", "pay", "read"])));
}

#[tokio::test]
async fn a_thousand_rules_are_banned_and_more_are_refused() {
    let dir = TempDir::new();
    let rules = |count: usize| {
        let mut text = "rate-limiter: {overridable: true}\nrules:\n".to_owned();
        for number in 1..count {
            let rule = format!("name: r{number:04}, match: {{resource: /{number}}}");
            let _infallible =
                writeln!(text, "  - {{{rule}, limit: 9, window: 1h, overridable: true}}");
        }
        text
    };
    let server = Rlaas::start_from(&dir.write("rules.yaml", &rules(1_000)), &[]);
    let mut client = admin(&server).await;
    let alice = ban(&[("user_id", Some("alice"))], 3_600);
    let all = banned(&mut client, alice.clone()).await;
    assert_eq!((all.banned.len(), &*all.banned[999]), (1_000, "r0999"));
    assert!(all.banned.is_sorted());
    assert!(!is_allowed(&server, "/999").await);
    assert_eq!(banned(&mut client, alice.clone()).await.banned_before.len(), 1_000);
    let audit = proto::ListAuditRequest { page_size: 100, ..Default::default() };
    let audit = client.list_audit(audit).await.expect("a page").into_inner().entries;
    assert_eq!(audit.iter().filter(|entry| entry.action == "BanKey").count(), 10);
    drop(server);
    let server = Rlaas::start_from(&dir.write("rules.yaml", &rules(1_001)), &[]);
    let refused = admin(&server).await.ban_key(alice).await.expect_err("too many");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().starts_with("parts must be those of"), "{}", refused.message());
}
