//! API keys: which calls they admit, and to which project.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use ring::digest::{SHA256, digest};
use rlaas::clock::Micros;
use rlaas::rules::spec::{Field, RuleSpec};
use rlaas_projects::registry::{Change, ChangeRank, ProjectState};
use rlaas_projects::{ApiKeySecret, Environment, NewKey, Others, Project};
use rlaas_proto::ratelimit::v1::{CheckBatchRequest, CheckRequest, CheckResult};
use rlaas_testkit::process::{Client, Rlaas, finish, request, rlaas, run};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::tls::{Certificate, Certificates};
use rlaas_testkit::{TempDir, eventually};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming};

use super::instance::{Running, make_change, now, project_id, rule};
use crate::api::tls::{channel, mutual_tls_settings};
use crate::fleet::instance::standalone;
use crate::http::client::{HttpResponse, exchange, send_with};

const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time until a change is in force everywhere.
const IN_FORCE: Duration = Duration::from_secs(2);
const GRACE: Micros = Micros::from_secs(60);

/// A Redis, and what writes projects to it.
struct Tenants {
    redis: RedisServer,
    writer: Running,
}

impl Tenants {
    fn start() -> Self {
        let redis = RedisServer::start();
        let writer = Running::on_redis(&standalone(&redis.url()));
        Self { redis, writer }
    }

    fn serve(&self, mode: &str, settings: &[&str]) -> Rlaas {
        let mode = format!("auth.api-keys={mode}");
        Rlaas::on_redis(&self.redis, &[&[mode.as_str(), "telemetry.log=debug"], settings].concat())
    }

    /// Creates a project with these rules and a key.
    async fn create(&self, id: &str, rules: &[RuleSpec]) -> Arc<ApiKeySecret> {
        self.writer.put(id, id).await.expect("a project");
        self.writer.apply(id, rules, Others::Kept).await.expect("rules");
        self.create_key(id, NewKey::default()).await
    }

    async fn create_key(&self, id: &str, key: NewKey) -> Arc<ApiKeySecret> {
        let secret = secret();
        let of = Arc::clone(&secret);
        let create = move |project: &mut Project| {
            project.create_key(key.clone(), &of, now()).expect("a key");
        };
        self.change_keys(id, create).await;
        secret
    }

    /// Replaces a key by another one.
    async fn rotate_key(&self, id: &str, before: &ApiKeySecret) -> Arc<ApiKeySecret> {
        let (secret, key) = (secret(), before.id().to_owned());
        let of = Arc::clone(&secret);
        let rotate = move |project: &mut Project| {
            project.rotate_key(&key, GRACE, &of, now()).expect("keys");
        };
        self.change_keys(id, rotate).await;
        secret
    }

    async fn revoke_key(&self, id: &str, secret: &ApiKeySecret) {
        let key = secret.id().to_owned();
        let revoke = move |project: &mut Project| {
            project.revoke_key(&key, now()).expect("a key");
        };
        self.change_keys(id, revoke).await;
    }

    async fn change_keys(&self, id: &str, change: impl Fn(&mut Project) + Send + 'static) {
        let change = move |before: Option<&ProjectState>| {
            let before = before.expect("a project");
            let mut project = before.project.clone();
            change(&mut project);
            let after = Some((project, before.rules.clone()));
            Ok::<_, Infallible>(Change { after, revision: None, result: () })
        };
        make_change(&self.writer.registry, project_id(id), ChangeRank::default(), change)
            .await
            .expect("a change");
    }
}

fn secret() -> Arc<ApiKeySecret> {
    Arc::new(ApiKeySecret::generate(&Environment::default()).expect("random numbers"))
}

/// A rule for `/login` whose state is that of the API key.
fn by_key(units: u64) -> RuleSpec {
    let key_by = Field::Set(vec!["api_key".to_owned()]);
    RuleSpec { key_by, endpoint: Field::Set(vec!["/login".to_owned()]), ..rule("login", units) }
}

fn login(user_id: &str) -> CheckRequest {
    CheckRequest { resource: "/login".to_owned(), ..request(user_id) }
}

fn with_key<T>(key: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if !key.is_empty() {
        request.metadata_mut().insert("x-api-key", key.parse().expect("a header"));
    }
    request
}

/// Asks for a decision. Returns the name of the rule, and whether it allows; empty if none matched.
async fn check(server: &Rlaas, key: &str, of: CheckRequest) -> Result<(String, bool), Code> {
    let response = server.client().await.check(with_key(key, of)).await;
    let refused = |status: Status| {
        assert!(key.len() < 10 || !status.message().contains(key), "{status:?}");
        status.code()
    };
    response.map_err(refused).map(|response| {
        let response = response.into_inner();
        (response.rule, response.allowed)
    })
}

/// Waits until a key has this effect.
async fn await_code(server: &Rlaas, key: &str, code: Code) {
    let is_so = async || {
        let mut look = login("look");
        look.cost = Some(0);
        check(server, key, look).await.err().unwrap_or(Code::Ok) == code
    };
    eventually("the change is in force", IN_FORCE, is_so).await;
}

async fn post(server: &Rlaas, path: &str, key: &str, body: &str) -> HttpResponse {
    let key = if key.is_empty() { String::new() } else { format!("x-api-key: {key}\r\n") };
    send_with(server, "POST", path, &key, Some(body)).await
}

async fn refused(server: &Rlaas, reason: &str) -> u64 {
    let label = format!("reason=\"api_key_{reason}\"");
    server.metric_sum("rlaas_refused_total", &[&label]).await
}

/// Returns a key with another checksum.
fn mistyped(secret: &ApiKeySecret) -> String {
    let text = secret.expose();
    let last = if text.ends_with('0') { "1" } else { "0" };
    text[..text.len() - 1].to_owned() + last
}

fn sha256(token: &str) -> String {
    let bytes = digest(&SHA256, token.as_bytes());
    bytes.as_ref().iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

#[tokio::test]
async fn key_names_the_project_by_every_protocol() {
    let tenants = Tenants::start();
    let key = tenants.create("shop", &[by_key(3)]).await;
    let key = key.expose();
    let server = tenants.serve("accepted", &[]);
    await_code(&server, key, Code::Ok).await;
    let shop = Ok(("login".to_owned(), true));
    let rule_of = async |key, of| check(&server, key, of).await;
    assert_eq!(rule_of(key, login("alice")).await, shop);
    assert_eq!(rule_of("", login("alice")).await, Ok(("default".to_owned(), true)));
    // The project has no rule for it.
    assert_eq!(rule_of(key, request("alice")).await, Err(Code::PermissionDenied));
    let body = r#"{"userId":"alice","resource":"/login"}"#;
    let answer = post(&server, "/v1/check", key, body).await;
    assert_eq!((answer.status, &answer.json()["rule"]), (200, &"login".into()), "{answer:?}");
    let legacy = format!(r#"{{"endpoint":"/login","key":"bob","api_key":"{key}"}}"#);
    assert_eq!(post(&server, "/check", "", &legacy).await.status, 200);
    // All of them have counted for the key.
    assert_eq!(post(&server, "/check", "", &legacy).await.status, 429);
    let in_header = r#"{"endpoint":"/login","key":"bob"}"#;
    assert_eq!(post(&server, "/check", key, in_header).await.status, 429);
    assert_eq!(post(&server, "/check", "", in_header).await.status, 200);
    let other = format!(r#"{{"endpoint":"/other","key":"bob","api_key":"{key}"}}"#);
    assert_eq!(post(&server, "/check", "", &other).await.status, 403);
    let requests = vec![login("carol"), request("carol")];
    let batch = with_key(key, CheckBatchRequest { requests, ..Default::default() });
    let batch = server.client().await.check_batch(batch).await.expect("a batch").into_inner();
    let is_denied = |result: &CheckResult| format!("{result:?}").contains("allowed: false");
    assert!(is_denied(&batch.results[0]), "{batch:?}");
    assert!(format!("{:?}", batch.results[1]).contains("no rule"), "{batch:?}");
    for wrong in ["x", &mistyped(&secret()), secret().expose()] {
        assert_eq!(rule_of(wrong, login("alice")).await, Err(Code::Unauthenticated), "{wrong}");
        let legacy = format!(r#"{{"endpoint":"/login","key":"bob","api_key":"{wrong}"}}"#);
        assert_eq!(post(&server, "/check", "", &legacy).await.status, 401, "{wrong}");
        assert_eq!(post(&server, "/v1/check", wrong, body).await.status, 401, "{wrong}");
        assert_eq!(post(&server, "/check", key, &legacy).await.status, 401, "{wrong}");
    }
    for (reason, count) in [("malformed", 4), ("checksum", 4), ("unknown", 4)] {
        assert_eq!(refused(&server, reason).await, count, "{reason}");
    }
    let bank = tenants.create("bank", &[by_key(3)]).await;
    await_code(&server, bank.expose(), Code::Ok).await;
    let both = post(&server, "/check", bank.expose(), &legacy).await;
    assert_eq!((both.status, refused(&server, "disagrees").await), (401, 1));
}

#[tokio::test]
async fn commands_send_a_key() {
    let tenants = Tenants::start();
    let key = tenants.create("shop", &[by_key(100)]).await;
    let key = key.expose();
    let server = tenants.serve("required", &[]);
    await_code(&server, key, Code::Ok).await;
    let to = ["--resource", "/login", "--addr", server.grpc()];
    let check = [&["check", "alice"][..], &to].concat();
    assert_eq!(run(&check).0, 2, "none is given");
    let (code, out, error) = run(&[&check[..], &["--api-key", key]].concat());
    assert_eq!((code, out.contains("(login)")), (0, true), "{out}{error}");
    let by_environment = rlaas(&check).env("RLAAS_API_KEY", key).output();
    assert_eq!(finish(by_environment.expect("the program")).0, 0);
    let (code, _, error) = run(&[&check[..], &["--api-key", "two\nlines"]].concat());
    assert_eq!((code, error.contains("--api-key must be")), (2, true), "{error}");
    // Only client commands read the variable; the configuration ignores it.
    let config = rlaas(&["config"]).env("RLAAS_API_KEY", key).output();
    let (code, out, error) = finish(config.expect("the program"));
    assert_eq!((code, out.contains(key), error.as_str()), (0, false, ""));
}

#[tokio::test]
async fn mode_decides_what_calls_without_a_key_may_do() {
    let tenants = Tenants::start();
    let key = tenants.create("shop", &[by_key(100)]).await;
    let (off, required) = (tenants.serve("off", &[]), tenants.serve("required", &[]));
    await_code(&required, key.expose(), Code::Ok).await;
    for unread in ["x", key.expose()] {
        let default = Ok(("default".to_owned(), true));
        assert_eq!(check(&off, unread, login(unread)).await, default, "{unread}");
    }
    assert_eq!(check(&required, "", login("alice")).await, Err(Code::Unauthenticated));
    let body = r#"{"endpoint":"/login","key":"bob"}"#;
    assert_eq!(post(&required, "/check", "", body).await.status, 401);
    assert_eq!(refused(&required, "missing").await, 2);
    // Envoy's service takes no keys.
    let envoy = r#"{"domain":"a","descriptors":[{"entries":[{"key":"b"}]}]}"#;
    for key in ["", "x"] {
        assert_eq!(post(&required, "/json", key, envoy).await.status, 200, "{key}");
    }
}

#[tokio::test]
async fn keys_stand_beside_tokens_and_all_must_be_valid() {
    let tenants = Tenants::start();
    let key = tenants.create("shop", &[by_key(100)]).await;
    let dir = TempDir::new();
    let token =
        |name, roles| format!("- {{name: {name}, sha256: {}, roles: {roles}}}", sha256(name));
    let within = |name, roles, project: &str| {
        token(name, roles).replace('}', &format!(", projects: [{project}]}}"))
    };
    let tokens = [
        token("checker", "[check]"),
        token("operator", "[operate]"),
        within("of-shop", "[check, admin]", "shop"),
        within("of-bank", "[check, admin]", "bank"),
        within("clerk", "[operate]", "shop"),
    ];
    let tokens = tokens.join("\n    ");
    let file =
        dir.write("rlaas.yaml", &format!("auth:\n  api-keys: accepted\n  tokens:\n    {tokens}\n"));
    let url = format!("store.redis.url={}", tenants.redis.url());
    let server =
        Rlaas::start_from(&file, &["store.backend=redis", &url, "store.redis.timeout=10s"]);
    await_code(&server, key.expose(), Code::Ok).await;
    let code = async |token: &str, key: &str| {
        let mut request = with_key(key, login("alice"));
        if !token.is_empty() {
            let bearer = format!("Bearer {token}").parse().expect("a header");
            request.metadata_mut().insert("authorization", bearer);
        }
        let response = server.client().await.check(request).await;
        response.map_or_else(|status| status.code(), |_| Code::Ok)
    };
    let key = key.expose();
    for (token, key, expected) in [
        ("", key, Code::Ok),
        ("checker", key, Code::Ok),
        ("checker", "", Code::Ok),
        ("checker", "x", Code::Unauthenticated),
        ("unknown", key, Code::Unauthenticated),
        ("operator", key, Code::PermissionDenied),
        ("", "", Code::Unauthenticated),
        // What stands beside a key must be for its project.
        ("of-shop", key, Code::Ok),
        ("of-bank", key, Code::PermissionDenied),
        ("clerk", key, Code::PermissionDenied),
        ("of-shop", "", Code::PermissionDenied),
        ("of-shop", "x", Code::Unauthenticated),
    ] {
        assert_eq!(code(token, key).await, expected, "{token} {key}");
    }
    // A key gives no other role.
    let config = with_key(key, rlaas_proto::ratelimit::v1::GetConfigRequest::default());
    let config = server.client().await.get_config(config).await.expect_err("no role");
    assert_eq!(config.code(), Code::Unauthenticated);
    let body = format!(r#"{{"endpoint":"/login","key":"bob","api_key":"{key}"}}"#);
    assert_eq!(post(&server, "/check", "", &body).await.status, 200);
    let without = r#"{"endpoint":"/login","key":"bob"}"#;
    assert_eq!(post(&server, "/check", "", without).await.status, 401);
    for (token, body, status) in [
        ("of-shop", body.as_str(), 200),
        ("of-bank", &body, 403),
        ("clerk", &body, 403),
        ("unknown", &body, 401),
        ("of-bank", without, 403),
    ] {
        let bearer = format!("Authorization: Bearer {token}\r\n");
        let answer = send_with(&server, "POST", "/check", &bearer, Some(body)).await;
        assert_eq!(answer.status, status, "{token} {body}");
    }
    // Administration takes no less of what is shown.
    for (token, key, path, status) in [
        ("of-shop", key, "shop", 200),
        ("clerk", key, "shop", 200),
        ("of-bank", key, "bank", 403),
        ("unknown", key, "shop", 401),
        ("of-shop", "x", "shop", 401),
    ] {
        let headers = format!("Authorization: Bearer {token}\r\nx-api-key: {key}\r\n");
        let path = format!("/v1/projects/{path}/rules");
        let answer = send_with(&server, "GET", &path, &headers, None).await;
        assert_eq!(answer.status, status, "{token} {key} {path}: {answer:?}");
    }
}

#[tokio::test]
async fn certificate_beside_a_key_must_be_for_its_project() {
    let tenants = Tenants::start();
    let bank = tenants.create("bank", &[by_key(100)]).await;
    let shop = tenants.create("shop", &[by_key(100)]).await;
    let (certificates, dir) = (Certificates::make(), TempDir::new());
    let clients = "[{name: shop.example, roles: [check], projects: [shop]}]";
    let text = format!("auth: {{api-keys: accepted, clients: {clients}}}");
    let mut settings = mutual_tls_settings(&certificates);
    settings.push("store.backend=redis".to_owned());
    settings.push(format!("store.redis.url={}", tenants.redis.url()));
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let server = Rlaas::start_from(&dir.write("rlaas.yaml", &text), &settings);
    let shown = Some(Certificate::Client);
    let channel = channel(server.grpc(), &certificates, shown).await.expect("a connection");
    let code = async |key: &str| {
        let response = Client::new(channel.clone()).check(with_key(key, login("alice"))).await;
        response.map_or_else(|status| status.code(), |_| Code::Ok)
    };
    for (key, expected) in [
        (shop.expose(), Code::Ok),
        (bank.expose(), Code::PermissionDenied),
        ("x", Code::Unauthenticated),
        ("", Code::PermissionDenied),
    ] {
        eventually("keys are in force", TIMEOUT, async || code(key).await == expected).await;
    }
}

#[tokio::test]
async fn key_gives_no_role_while_nobody_is_listed() {
    let tenants = Tenants::start();
    let key = tenants.create("shop", &[by_key(100)]).await;
    let server = tenants.serve("accepted", &[]);
    await_code(&server, key.expose(), Code::Ok).await;
    for (headers, status) in [
        (String::new(), 200),
        (format!("x-api-key: {}\r\n", key.expose()), 403),
        ("x-api-key: x\r\n".to_owned(), 401),
    ] {
        for path in ["/v1/projects", "/v1/admin/audit", "/projects"] {
            let request = format!(
                "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n"
            );
            let answer = exchange(server.http(), request.as_bytes()).await;
            assert_eq!(answer.status, status, "{path} {headers}: {answer:?}");
        }
    }
}

#[tokio::test]
async fn attribute_is_set_by_the_service_alone_and_outlives_rotations() {
    let tenants = Tenants::start();
    let first = tenants.create("shop", &[by_key(2)]).await;
    let server = tenants.serve("accepted", &[]);
    await_code(&server, first.expose(), Code::Ok).await;
    let mut forged = login("alice");
    for value in ["a", "b"] {
        forged.attributes.insert("api_key".to_owned(), value.to_owned());
        let allowed = check(&server, first.expose(), forged.clone()).await;
        assert_eq!(allowed, Ok(("login".to_owned(), true)));
    }
    let second = tenants.rotate_key("shop", &first).await;
    await_code(&server, second.expose(), Code::Ok).await;
    for key in [&first, &second] {
        let denied = check(&server, key.expose(), login("bob")).await;
        assert_eq!(denied, Ok(("login".to_owned(), false)));
    }
    let expected = format!("rlaas:p:shop:rule:login:{}", first.id());
    assert!(tenants.redis.keys().contains(&expected), "{:?}", tenants.redis.keys());
}

/// Opens a stream, and makes its first request.
async fn stream(server: &Rlaas, key: &str) -> (mpsc::Sender<CheckRequest>, Streaming<CheckResult>) {
    let (requests, sent) = mpsc::channel(8);
    let request = with_key(key, ReceiverStream::new(sent));
    let opened = server.client().await.check_stream(request).await;
    let mut results = opened.expect("a stream").into_inner();
    requests.send(login("alice")).await.expect("an open stream");
    results.message().await.expect("a result").expect("a result");
    (requests, results)
}

#[tokio::test]
async fn revoked_key_stops_everywhere_and_on_open_streams() {
    let tenants = Tenants::start();
    let (key, stays) = (
        tenants.create("shop", &[by_key(1_000_000)]).await,
        tenants.create("bank", &[by_key(1_000_000)]).await,
    );
    let servers = [tenants.serve("accepted", &[]), tenants.serve("required", &[])];
    let (mut idle, mut busy, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for server in &servers {
        await_code(server, key.expose(), Code::Ok).await;
        await_code(server, stays.expose(), Code::Ok).await;
        idle.push(stream(server, key.expose()).await);
        busy.push(stream(server, key.expose()).await);
        others.push(stream(server, stays.expose()).await);
    }
    tenants.revoke_key("shop", &key).await;
    let stops = async {
        for server in &servers {
            await_code(server, key.expose(), Code::Unauthenticated).await;
        }
        // From now on no request of a stream is decided.
        for (requests, results) in &mut busy {
            _ = requests.send(login("alice")).await;
            let ended = results.message().await.expect_err("a status");
            assert_eq!(ended.code(), Code::Unauthenticated);
        }
        for (_requests, results) in &mut idle {
            let ended = results.message().await.expect_err("a status");
            assert_eq!(ended.code(), Code::Unauthenticated);
        }
    };
    timeout(IN_FORCE, stops)
        .await
        .expect("the end of all streams, from the reply of the change on");
    for (requests, results) in &mut others {
        requests.send(login("alice")).await.expect("an open stream");
        results.message().await.expect("a result").expect("a result");
    }
}

#[tokio::test]
async fn rotation_loses_no_call() {
    let tenants = Tenants::start();
    let first = tenants.create("shop", &[by_key(1_000_000)]).await;
    let servers = [tenants.serve("required", &[]), tenants.serve("required", &[])];
    for server in &servers {
        await_code(server, first.expose(), Code::Ok).await;
    }
    let calling = async |server: &Rlaas, key: &str| {
        let mut client = server.client().await;
        for _ in 0..300 {
            client.check(with_key(key, login("alice"))).await.expect("a decision");
        }
    };
    let old = first.expose();
    let rotating = tenants.rotate_key("shop", &first);
    let (second, (), ()) =
        tokio::join!(rotating, calling(&servers[0], old), calling(&servers[1], old));
    for server in &servers {
        await_code(server, second.expose(), Code::Ok).await;
        calling(server, second.expose()).await;
        calling(server, old).await;
    }
}

#[tokio::test]
async fn failures_of_others_do_not_refuse_a_valid_key() {
    let tenants = Tenants::start();
    let key = tenants.create("shop", &[by_key(1_000_000)]).await;
    let server = tenants.serve("required", &[]);
    await_code(&server, key.expose(), Code::Ok).await;
    let mut client = server.client().await;
    let (unknown, mistyped) = (secret(), mistyped(&key));
    for _ in 0..500 {
        for wrong in [unknown.expose(), &mistyped, "x"] {
            client.check(with_key(wrong, login("a"))).await.expect_err("a wrong key");
        }
        client.check(with_key(key.expose(), login("a"))).await.expect("a decision");
    }
    for reason in ["unknown", "checksum", "malformed"] {
        assert_eq!(refused(&server, reason).await, 500, "{reason}");
    }
}

#[tokio::test]
async fn keys_are_unavailable_while_none_is_known() {
    let mut tenants = Tenants::start();
    let key = tenants.create("shop", &[by_key(100)]).await;
    // Redis comes back with the keys: without them there is a conflict.
    tenants.redis.query::<()>(&["SAVE"]);
    tenants.redis.kill();
    let settings = ["rate-limiter.on-store-failure=allow"];
    let server = tenants.serve("accepted", &settings);
    assert_eq!(check(&server, key.expose(), login("a")).await, Err(Code::Unavailable));
    assert_eq!(post(&server, "/v1/check", key.expose(), "{}").await.status, 503);
    // Files decide about calls without a key, but the instance is not ready.
    assert!(check(&server, "", login("a")).await.is_ok());
    let reason = "not ready: the projects and API keys in force are not known: see the log\n";
    assert_eq!(server.get("/readyz").await, (503, reason.to_owned()));
    tenants.redis.restart();
    let is_ready = async || server.get("/readyz").await.0 == 200;
    eventually("the instance is ready", TIMEOUT, is_ready).await;
}
