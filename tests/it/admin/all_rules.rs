//! `TopKeys` without a rule: counts over all rules, by a value, over the fleet.

use std::time::Duration;

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::CheckRequest;
use rlaas_testkit::process::{Rlaas, request};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use tonic::{Code, Response};

use super::top_keys::{get, query, with_token, with_tokens};
use super::{AdminClient, admin};

const TIMEOUT: Duration = Duration::from_secs(20);
const RULES: &str = "\
telemetry: {top-keys: true}
rules:
  - {name: pay, match: {resource: /pay}, limit: 1, window: 1h}
  - {name: plan, match: {resource: /plan}, key-by: [plan, user_id], limit: 1, window: 1h}
  - {name: by-ip, match: {resource: /ip}, key-by: [ip], limit: 1, window: 1h}
  - {name: team, match: {resource: /team}, key-by: ['team|user_id'], limit: 1, window: 1h}
  - {name: none, match: {resource: /none}, key-by: [ip], limit: 1, window: 1h, mode: 'off'}
";

/// Sends requests.
async fn send(server: &Rlaas, user: &str, resource: &str, ip: Option<&str>, times: usize) {
    let mut client = server.client().await;
    let attributes = ip.map(|ip| ("ip".to_owned(), ip.to_owned())).into_iter().collect();
    let resource = resource.to_owned();
    let request = CheckRequest { resource, attributes, ..request(user) };
    for _ in 0..times {
        client.check(with_token(request.clone(), "operator")).await.expect("a decision");
    }
}

fn of_value(project: &str, value: &str) -> proto::TopKeysRequest {
    let (project_id, value) = (project.to_owned(), value.to_owned());
    proto::TopKeysRequest { project_id, value, ..query("") }
}

/// The rules of the keys, with their counts and errors.
fn counts(found: &proto::TopKeysResponse) -> Vec<(&str, u64, u64)> {
    denied(found).iter().map(|key| (&*key.rule, key.count, key.error)).collect()
}

fn denied(found: &proto::TopKeysResponse) -> &[proto::TopKey] {
    &found.denied.as_ref().expect("a list").keys
}

async fn found(client: &AdminClient, request: proto::TopKeysRequest) -> proto::TopKeysResponse {
    let answer = client.clone().top_keys(with_token(request, "operator")).await;
    answer.map(Response::into_inner).expect("counts")
}

/// Two instances on one Redis, each with requests of its own.
async fn fleet(dir: &TempDir, redis: &RedisServer, settings: &str) -> [Rlaas; 2] {
    let store =
        format!("store: {{backend: redis, redis: {{url: '{}', timeout: 10s}}}}\n", redis.url());
    let file = dir.write("rlaas.yaml", &with_tokens(&format!("{RULES}{settings}{store}")));
    let servers = [(); 2].map(|()| Rlaas::start_from(&file, &[]));
    send(&servers[0], "alice", "/pay", None, 4).await;
    send(&servers[1], "alice", "/pay", None, 3).await;
    send(&servers[1], "alice", "/plan", None, 2).await;
    send(&servers[0], "bob", "/ip", Some("alice"), 3).await;
    send(&servers[0], "bob", "/pay", None, 9).await;
    send(&servers[1], "carol", "/team", None, 2).await;
    servers
}

const OF_ALICE: [(&str, u64, u64); 3] = [("pay", 6, 0), ("by-ip", 2, 0), ("plan", 1, 0)];

#[tokio::test]
async fn keys_of_a_value_are_counted_over_all_rules_and_instances() {
    let (dir, redis) = (TempDir::new(), RedisServer::start());
    let servers = fleet(&dir, &redis, "").await;
    for server in &servers {
        let client = admin(server).await;
        for project in ["", "-"] {
            eventually("all refusals of the fleet are counted", TIMEOUT, async || {
                counts(&found(&client, of_value(project, "alice")).await) == OF_ALICE
            })
            .await;
            let all = found(&client, of_value(project, "alice")).await;
            let otherwise: Vec<_> = all.keyed_otherwise.iter().map(|of| &*of.rule).collect();
            assert_eq!((otherwise, all.keyed_otherwise_left_out), (vec!["by-ip"], 0));
            let covered = all.coverage.as_ref().expect("a coverage");
            assert_eq!((covered.instances.len(), covered.missing.len()), (2, 0));
            assert_eq!(all.denied.as_ref().expect("a list").total, 0);
            let plan = denied(&all)[2].key.as_ref().expect("a key");
            let parts: Vec<_> = plan.parts.iter().map(|part| part.value.as_deref()).collect();
            assert_eq!(parts, [None, Some("alice")]);
            // By the part that stands for the user too.
            let carol = found(&client, of_value(project, "carol")).await;
            assert_eq!(counts(&carol), [("team", 1, 0)]);
            // Without a value: whoever is refused most, of any rule.
            let most = proto::TopKeysRequest { max_keys: 2, ..of_value(project, "") };
            let most = found(&client, most).await;
            assert_eq!(counts(&most), [("pay", 8, 0), ("pay", 6, 0)]);
            assert!(most.keyed_otherwise.is_empty(), "{most:?}");
        }
        assert!(denied(&found(&client, of_value("", "nobody")).await).is_empty());
    }
    let client = admin(&servers[0]).await;
    let refused = async |request, token| {
        let answer = client.clone().top_keys(with_token(request, token)).await;
        let status = answer.expect_err("a refusal");
        (status.code(), status.message().to_owned())
    };
    let long = of_value("", &"x".repeat(257));
    let with_rule = proto::TopKeysRequest { rule: "pay".to_owned(), ..of_value("", "alice") };
    let every = proto::TopKeysRequest { rule: "pay".to_owned(), ..of_value("-", "") };
    for (request, field) in [(long, "value"), (with_rule, "value"), (every, "rule")] {
        let (code, text) = refused(request, "operator").await;
        assert!(code == Code::InvalidArgument && text.starts_with(field), "{code:?}: {text}");
    }
    // Who may see hashes only can't find out whose they are.
    assert_eq!(refused(of_value("", "alice"), "administrator").await.0, Code::PermissionDenied);
    let administrator = with_token(of_value("-", "alice"), "administrator");
    let none = client.clone().top_keys(administrator).await.expect("counts").into_inner();
    assert!(denied(&none).is_empty() && none.coverage.is_some_and(|of| of.instances.is_empty()));
    let hashed = with_token(of_value("-", ""), "administrator");
    let hashed = client.clone().top_keys(hashed).await.expect("counts").into_inner();
    assert_eq!(counts(&hashed)[..2], [("pay", 8, 0), ("pay", 6, 0)]);
    assert!(!format!("{hashed:?}").contains("alice"), "{hashed:?}");
}

#[tokio::test]
async fn a_value_is_found_by_its_hash() {
    let (dir, redis) = (TempDir::new(), RedisServer::start());
    let key = dir.write("privacy.key", &"k".repeat(32));
    let privacy = format!("privacy: {{hash: [user_id], key-file: '{}'}}\n", key.display());
    let servers = fleet(&dir, &redis, &privacy).await;
    let client = admin(&servers[1]).await;
    eventually("all refusals of the fleet are counted", TIMEOUT, async || {
        counts(&found(&client, of_value("", "alice")).await) == OF_ALICE
    })
    .await;
    let all = found(&client, of_value("", "alice")).await;
    let value = |at: usize| {
        let parts = &denied(&all)[at].key.as_ref().expect("a key").parts;
        parts[0].value.clone().unwrap_or_default()
    };
    // The address is not hashed, and is found all the same.
    assert!(value(0).starts_with('#') && value(1) == "alice", "{all:?}");
    let by_hash = found(&client, of_value("-", &value(0))).await;
    assert_eq!(counts(&by_hash), OF_ALICE);
}

#[tokio::test]
async fn counts_are_on_with_the_console_and_answered_over_http() {
    let dir = TempDir::new();
    let rules = RULES.replace("telemetry: {top-keys: true}\n", "");
    let file = dir.write("rlaas.yaml", &rules);
    let off = Rlaas::start_from(&file, &[]);
    let path = "/v1/admin/top-keys?projectId=-&value=alice";
    let (status, body) = get(&off, path).await;
    assert!(status == 400 && body.contains("telemetry.top-keys is off"), "{status}: {body}");
    // On with the console.
    let server = Rlaas::start_from(&file, &["server.console=127.0.0.1:0"]);
    let mut checks = server.client().await;
    for _ in 0..3 {
        let pay = CheckRequest { resource: "/pay".to_owned(), ..request("alice") };
        checks.check(pay).await.expect("a decision");
    }
    eventually("the refusals are counted", TIMEOUT, async || {
        let (status, body) = get(&server, path).await;
        status == 200 && body.contains("\"rule\":\"pay\"") && body.contains("\"count\":\"2\"")
    })
    .await;
}

#[tokio::test]
async fn a_key_that_is_known_by_its_hash_is_not_taken_for_another() {
    let dir = TempDir::new();
    let server = Rlaas::start_from(&dir.write("rlaas.yaml", &with_tokens(RULES)), &[]);
    send(&server, &"x".repeat(1_000), "/pay", None, 3).await;
    let client = admin(&server).await;
    eventually("its refusals are counted", TIMEOUT, async || {
        counts(&found(&client, of_value("", "")).await) == [("pay", 2, 0)]
    })
    .await;
    let of_rule = query("pay");
    for all in [found(&client, of_value("", "")).await, found(&client, of_rule).await] {
        let key = denied(&all)[0].key.as_ref().expect("a key");
        assert!(key.id.starts_with('#') && key.id.len() == 33, "{key:?}");
        assert!(key.parts.is_empty(), "{key:?}");
    }
}
