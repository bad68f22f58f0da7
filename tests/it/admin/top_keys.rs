//! `TopKeys`: counts of keys by rule and kind, in clear or hashed.

use std::time::Duration;

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::CheckRequest;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status};

use super::{AdminClient, admin};

const TIMEOUT: Duration = Duration::from_secs(20);
const RULES: &str = "\
rules:
  - {name: pay, endpoint: /pay, key-by: [user_id, plan], limit: 5, window: 1h, near-limit: 0.8}
telemetry: {top-keys: true}
";

pub(super) fn query(rule: &str) -> proto::TopKeysRequest {
    proto::TopKeysRequest { rule: rule.to_owned(), ..proto::TopKeysRequest::default() }
}

async fn top(client: &mut AdminClient, query: proto::TopKeysRequest) -> proto::TopKeysResponse {
    client.top_keys(query).await.expect("counts").into_inner()
}

/// Values of the parts of each key, and its count.
fn counts(list: Option<&proto::TopKeyList>) -> Vec<(Vec<Option<&str>>, u64)> {
    let values = |key: &proto::TopKey| {
        let parts = &key.key.as_ref().expect("a key").parts;
        Vec::leak(parts.clone()).iter().map(|part| part.value.as_deref()).collect()
    };
    list.expect("a list").keys.iter().map(|key| (values(key), key.count)).collect()
}

/// Sends a GET as a local program does, and returns status and body.
pub(super) async fn get(server: &Rlaas, path: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let mut connection = TcpStream::connect(server.http()).await.expect("a running server");
    connection.write_all(request.as_bytes()).await.expect("a server that reads the request");
    let mut response = String::new();
    connection.read_to_string(&mut response).await.expect("a response");
    let (head, body) = response.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("a status"), body.to_owned())
}

async fn pay(server: &Rlaas, user: &str, plan: Option<&str>, times: usize) {
    let mut client = server.client().await;
    let attributes = plan.map(|plan| ("plan".to_owned(), plan.to_owned()));
    let request = CheckRequest {
        user_id: user.to_owned(),
        resource: "/pay".to_owned(),
        attributes: attributes.into_iter().collect(),
        ..CheckRequest::default()
    };
    for _ in 0..times {
        client.check(request.clone()).await.expect("a decision");
    }
}

#[tokio::test]
async fn each_kind_has_its_counts() {
    let dir = TempDir::new();
    let server = Rlaas::start_from(&dir.write("rlaas.yaml", RULES), &[]);
    pay(&server, "alice", Some("free"), 9).await;
    pay(&server, "b:b", None, 6).await;
    pay(&server, "carol", None, 2).await;
    let mut client = admin(&server).await;
    eventually("every unit is counted", TIMEOUT, async || {
        top(&mut client.clone(), query("pay")).await.used.is_some_and(|used| used.total == 12)
    })
    .await;
    let (alice, bob, carol) =
        (vec![Some("alice"), Some("free")], vec![Some("b:b"), None], vec![Some("carol"), None]);
    let found = top(&mut client, query("pay")).await;
    let used = found.used.as_ref().expect("a list");
    assert_eq!(counts(Some(used)), [(alice.clone(), 5), (bob.clone(), 5), (carol, 2)]);
    assert!(used.keys.iter().all(|key| key.error == 0));
    let coverage = found.coverage.as_ref().expect("a coverage");
    assert_eq!((coverage.instances.len(), coverage.missing.len()), (1, 0), "memory is of one");
    let key = used.keys[0].key.as_ref().expect("a key");
    let names: Vec<&str> = key.parts.iter().map(|part| &*part.name).collect();
    assert_eq!((names, &*key.id), (vec!["user_id", "attributes.plan"], "alice:free"));
    assert_eq!(counts(found.denied.as_ref()), [(alice.clone(), 4), (bob.clone(), 1)]);
    assert_eq!(counts(found.near_limit.as_ref()), [(alice.clone(), 2), (bob, 2)]);
    assert_eq!(found.denied.expect("a list").total, 5);
    let hour = Some(prost_types::Duration { seconds: 3_600, nanos: 0 });
    let one = proto::TopKeysRequest { window: hour, max_keys: 1, ..query("pay") };
    assert_eq!(counts(top(&mut client, one).await.used.as_ref()), [(alice, 5)]);
    let (status, json) = get(&server, "/v1/admin/top-keys?rule=pay&withState=true").await;
    assert!(status == 200 && json.contains("\"total\":\"4\""), "{json}");
    // A rule that decides nothing has no counts.
    let none = top(&mut client, query("default")).await;
    assert_eq!(none.used, Some(proto::TopKeyList::default()));
}

/// Returns the state of a key by another call.
async fn inspected(client: &mut AdminClient, top: &proto::TopKey) -> Option<proto::KeyState> {
    let key = top.key.clone().expect("a key");
    let key = proto::KeyRef { parts: Vec::new(), storage_key: String::new(), ..key };
    let target = Some(proto::selector::Target::Key(key));
    let selector = Some(proto::Selector { target, rule: top.rule.clone(), ..Default::default() });
    let found = client.inspect(proto::InspectRequest { selector }).await.expect("a state");
    found.into_inner().keys.pop()
}

#[tokio::test]
async fn states_are_those_of_inspect_in_one_answer() {
    let (dir, mut redis) = (TempDir::new(), RedisServer::start());
    let file = dir.write("rlaas.yaml", RULES);
    let store = format!("store.redis.url={}", redis.url());
    for settings in [&[][..], &["store.backend=redis", &store]] {
        let server = Rlaas::start_from(&file, settings);
        pay(&server, "alice", None, 9).await;
        pay(&server, "b:b", Some("free"), 2).await;
        pay(&server, &"long".repeat(100), None, 1).await;
        let mut client = admin(&server).await;
        let with_state = proto::TopKeysRequest { with_state: true, ..query("pay") };
        eventually("every unit is counted", TIMEOUT, async || {
            top(&mut client.clone(), query("pay")).await.used.is_some_and(|used| used.total == 8)
        })
        .await;
        let found = top(&mut client, with_state.clone()).await;
        let lists = [&found.denied, &found.near_limit, &found.used];
        let keys: Vec<_> = lists.into_iter().flatten().flat_map(|list| &list.keys).collect();
        let mut known = 0;
        for key in &keys {
            let Some(state) = key.state.clone() else { continue };
            known += 1;
            let expected = inspected(&mut client, key).await.expect("a state");
            // They are of another moment.
            let at = |of: proto::KeyState| proto::KeyState {
                retry_after: None,
                reset_after: None,
                ..of
            };
            assert_eq!(state.retry_after.is_some(), expected.retry_after.is_some());
            assert_eq!(at(state), at(expected));
        }
        // Alice is in all lists; the long key has an id alone.
        assert_eq!((keys.len(), known), (5, 4), "{keys:?}");
        assert!(top(&mut client, query("pay")).await.used.expect("a list").keys[0].state.is_none());
        if !settings.is_empty() {
            redis.kill();
            let found = top(&mut client, with_state).await.used.expect("a list");
            assert!(found.keys.len() == 3 && found.keys.iter().all(|key| key.state.is_none()));
        }
    }
}

fn fails(answer: Result<tonic::Response<proto::TopKeysResponse>, Status>) -> (Code, String) {
    let status = answer.expect_err("an error");
    (status.code(), status.message().to_owned())
}

#[tokio::test]
async fn server_that_counts_no_keys_says_so() {
    let off = Rlaas::start(&[]);
    let answer = admin(&off).await.top_keys(query("default")).await;
    let (code, message) = fails(answer);
    assert_eq!(code, Code::FailedPrecondition);
    assert!(message.contains("telemetry.top-keys"), "{message}");
}

/// SHA-256 of `operator` and of `administrator`.
const OPERATE: &str = "06e55b633481f7bb072957eabcf110c972e86691c3cfedabe088024bffe42f23";
const ADMIN: &str = "4194d1706ed1f408d5e02d672777019f4d5385c766a8c6ca8acba3167d36a7b9";

/// Settings with a token for each of the roles `operate` and `admin`, and one without a role.
pub(super) fn with_tokens(rest: &str) -> String {
    format!(
        "{rest}auth: {{tokens: [{{name: o, sha256: {OPERATE}, roles: [operate, check]}}, \
         {{name: a, sha256: {ADMIN}, roles: [admin]}}]}}\n"
    )
}

/// Adds a token to a request.
pub(super) fn with_token<T>(message: T, token: &str) -> Request<T> {
    let mut request = Request::new(message);
    let value = MetadataValue::try_from(format!("Bearer {token}")).expect("ASCII");
    request.metadata_mut().insert("authorization", value);
    request
}

#[tokio::test]
async fn admin_alone_sees_hashed_keys() {
    let dir = TempDir::new();
    let server = Rlaas::start_from(&dir.write("rlaas.yaml", &with_tokens(RULES)), &[]);
    let request = CheckRequest {
        user_id: "alice".to_owned(),
        resource: "/pay".to_owned(),
        ..CheckRequest::default()
    };
    let mut checks = server.client().await;
    checks.check(with_token(request, "operator")).await.expect("a decision");
    let client = admin(&server).await;
    let seen = async |token: &str| {
        let query = proto::TopKeysRequest { with_state: true, ..query("pay") };
        let found = client.clone().top_keys(with_token(query, token)).await;
        found.map(|found| found.into_inner().used.expect("a list"))
    };
    eventually("the unit is counted", TIMEOUT, async || {
        seen("operator").await.is_ok_and(|found| found.total == 1)
    })
    .await;
    let clear = seen("operator").await.expect("counts");
    assert_eq!(counts(Some(&clear)), [(vec![Some("alice"), None], 1)]);
    assert!(clear.keys[0].state.is_some());
    let hashed = seen("administrator").await.expect("counts");
    assert_eq!(hashed.keys[0].state, None);
    let key = hashed.keys[0].key.as_ref().expect("a key");
    for shown in [&key.id, key.parts[0].value.as_ref().expect("a value")] {
        assert!(shown.starts_with('#') && shown.len() == 27, "{shown}");
    }
    assert_eq!((key.parts[1].value.as_ref(), &*key.storage_key), (None, ""));
    assert!(!format!("{hashed:?}").contains("alice"), "{hashed:?}");
    assert_eq!(seen("nobody").await.expect_err("no caller").code(), Code::Unauthenticated);
}
