//! The secrets of API keys: shown once, and nowhere afterwards. A stolen copy of Redis, of a folder or
//! of a log shows none.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::{CheckBatchRequest, CheckRequest, Rule, UnmatchedPolicy};
use rlaas_testkit::process::{Rlaas, request, run};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use tonic::{Code, Request};

use super::client::{Client, client, http, rule};
use super::instance::Running;
use crate::fleet::instance::standalone;
use crate::http::client::send_with;

const SOON: Duration = Duration::from_secs(20);
/// Length of the parts of secrets that are looked for.
const PART: usize = 10;

/// Everything that is sent to a Redis.
struct Sent {
    commands: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
    connection: TcpStream,
}

impl Sent {
    fn to(redis: &RedisServer) -> Self {
        let mut connection = TcpStream::connect(("127.0.0.1", redis.port())).expect("redis");
        connection.write_all(b"MONITOR\r\n").expect("redis reads");
        let mut lines = BufReader::new(connection.try_clone().expect("a socket"));
        let mut first = String::new();
        lines.read_line(&mut first).expect("an answer");
        assert_eq!(first, "+OK\r\n");
        let commands = Arc::<Mutex<Vec<u8>>>::default();
        let kept = Arc::clone(&commands);
        let reader = std::thread::spawn(move || {
            let mut line = Vec::new();
            while lines.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                kept.lock().expect("no panic").append(&mut line);
            }
        });
        Self { commands, reader: Some(reader), connection }
    }

    fn commands(mut self) -> Vec<u8> {
        self.connection.shutdown(std::net::Shutdown::Both).expect("an open connection");
        self.reader.take().expect("a thread").join().expect("no panic");
        std::mem::take(&mut self.commands.lock().expect("no panic"))
    }
}

/// A place, and what it exposes.
type Exposed = (String, Vec<u8>);

/// Reads all files below a folder.
fn files(folder: &Path) -> Vec<Exposed> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.is_file() {
                let content = std::fs::read(&path).expect("a file");
                found.push((path.display().to_string(), content));
            }
        }
    }
    found
}

fn has(content: &[u8], part: &[u8]) -> bool {
    content.windows(part.len()).any(|window| window == part)
}

/// Returns the part of a secret that is no id and no environment.
fn hidden(secret: &str) -> &str {
    let random = secret.rsplit('_').next().expect("an end");
    &random[8..]
}

/// Returns the id of a key by its secret.
fn id_of(secret: &str) -> &str {
    &secret.rsplit('_').next().expect("an end")[..8]
}

fn assert_hidden(found: &[Exposed], secrets: &[String]) {
    for secret in secrets {
        let hidden = hidden(secret).as_bytes();
        assert_eq!(hidden.len(), 41, "{secret}");
        for (place, content) in found {
            let part = hidden.windows(PART).find(|part| has(content, part));
            assert!(part.is_none(), "{place} has {:?}", part.map(String::from_utf8_lossy));
        }
    }
}

fn with_key<T>(secret: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("x-api-key", secret.parse().expect("a header"));
    request
}

/// A request with the secret in an attribute, which the service replaces.
fn login(secret: &str) -> CheckRequest {
    let attributes = HashMap::from([("api_key".to_owned(), secret.to_owned())]);
    CheckRequest { resource: "/login".to_owned(), attributes, ..request("alice") }
}

/// Creates a project whose rule counts by key, and keys by every interface.
async fn create_keys(server: &Rlaas) -> Vec<String> {
    let mut admin = client(server, "").await;
    let unmatched = UnmatchedPolicy::Allow.into();
    let project = proto::Project { id: "shop".to_owned(), unmatched, ..Default::default() };
    let create = proto::CreateProjectRequest { project: Some(project), ..Default::default() };
    let created = async || admin.clone().create_project(create.clone()).await.is_ok();
    eventually("a project", SOON, created).await;
    let by_key = Rule { key_by: vec!["attributes.api_key".to_owned()], ..rule("login", "/login") };
    let create = proto::CreateRuleRequest {
        project_id: "shop".to_owned(),
        rule: Some(by_key),
        ..Default::default()
    };
    admin.create_rule(create).await.expect("a rule");
    let [first, second] = created_and_rotated(&mut admin).await;
    let by_http = http(server, "POST", "/v1/projects/shop/keys", "", "{}").await;
    let by_http = by_http.body["secret"].as_str().expect("a secret").to_owned();
    let (code, by_command, error) =
        run(&["key", "create", "shop", "--environment", "test", "--addr", server.grpc()]);
    assert_eq!(code, 0, "{error}");
    let own = http(server, "POST", "/projects", "", r#"{"project_name":"mine"}"#).await;
    let own = own.body["api_key"].as_str().expect("a secret").to_owned();
    vec![first, second, by_http, by_command.trim_end().to_owned(), own]
}

/// Creates a key twice under a request id, and rotates it.
async fn created_and_rotated(admin: &mut Client) -> [String; 2] {
    let (project_id, request_id) = ("shop".to_owned(), "once".to_owned());
    let create = proto::CreateKeyRequest {
        project_id: project_id.clone(),
        request_id,
        reason: "a test".to_owned(),
        ..Default::default()
    };
    let created = admin.create_key(create.clone()).await.expect("a key").into_inner();
    let again = admin.create_key(create).await.expect("an answer").into_inner();
    assert_eq!((again.replayed, &*again.secret), (true, ""));
    let key_id = created.key.expect("a key").id;
    let rotate = proto::RotateKeyRequest {
        project_id,
        key_id,
        request_id: "two".to_owned(),
        ..Default::default()
    };
    let rotated = admin.rotate_key(rotate.clone()).await.expect("a key").into_inner();
    let again = admin.rotate_key(rotate).await.expect("an answer").into_inner();
    assert_eq!((again.replayed, &*again.secret), (true, ""));
    [created.secret, rotated.secret]
}

/// Uses keys by every protocol, right and mistyped, and revokes one.
async fn use_keys(server: &Rlaas, secrets: &[String]) {
    let mut service = server.client().await;
    for secret in secrets {
        for message in [request("bob"), login(secret), login(secret)] {
            let response = service.check(with_key(secret, message)).await;
            let code = response.map_or_else(|status| status.code(), |_| Code::Ok);
            // One of the projects has no rules.
            assert!([Code::Ok, Code::PermissionDenied].contains(&code), "{code:?}");
        }
        let requests = vec![login(secret), request("carol")];
        let batch = with_key(secret, CheckBatchRequest { requests, ..Default::default() });
        service.check_batch(batch).await.expect("a batch");
        let sent = with_key(secret, tokio_stream::iter([login(secret), request("carol")]));
        let mut results = service.check_stream(sent).await.expect("a stream").into_inner();
        while results.message().await.expect("a result").is_some() {}
        let last = if secret.ends_with('0') { '1' } else { '0' };
        let mistyped = format!("{}{last}", &secret[..secret.len() - 1]);
        let refused = service.check(with_key(&mistyped, login(secret))).await;
        assert_eq!(refused.expect_err("a wrong key").code(), Code::Unauthenticated);
        let header = format!("x-api-key: {secret}\r\nContent-Type: application/json\r\n");
        let body = r#"{"userId":"alice","resource":"/login"}"#;
        send_with(server, "POST", "/v1/check", &header, Some(body)).await;
        let body = format!(r#"{{"endpoint":"/login","key":"bob","api_key":"{secret}"}}"#);
        let header = "Content-Type: application/json\r\n";
        let answer = send_with(server, "POST", "/check", header, Some(&body)).await;
        assert!([200, 403, 429].contains(&answer.status), "{answer:?}");
    }
    let path = format!("/v1/projects/shop/keys/{}", id_of(&secrets[1]));
    assert_eq!(http(server, "DELETE", &path, "", "").await.status, 204);
    let refused = service.check(with_key(&secrets[1], login("x"))).await;
    assert_eq!(refused.expect_err("a revoked key").code(), Code::Unauthenticated);
}

/// Returns what a server shows of itself.
async fn shown(server: &Rlaas) -> Vec<Exposed> {
    let mut found = Vec::new();
    for path in [
        "/metrics",
        "/v1/admin/audit",
        "/v1/admin/instances",
        "/v1/admin/overrides",
        "/v1/admin/top-keys?rule=default",
        "/v1/projects",
        "/v1/projects/shop",
        "/v1/projects/shop/keys",
        "/v1/projects/shop/rules",
        "/v1/projects/shop/revisions",
        "/v1/projects/shop/usage",
        "/projects",
    ] {
        let (status, body) = server.get(path).await;
        assert_eq!(status, 200, "{path}: {body}");
        found.push((path.to_owned(), body.into_bytes()));
    }
    found
}

/// Settings of a server that writes all it can.
const SETTINGS: [&str; 3] =
    ["auth.api-keys=accepted", "telemetry.log=debug", "telemetry.top-keys=true"];

/// Makes, uses and ends keys on a server, and stops it. Returns the secrets, and what it has shown
/// beyond files.
async fn live(mut server: Rlaas) -> (Vec<String>, Vec<Exposed>) {
    let secrets = create_keys(&server).await;
    use_keys(&server, &secrets).await;
    let mut found = shown(&server).await;
    server.signal("TERM");
    assert!(server.wait().success(), "{}", server.log());
    found.push(("the log".to_owned(), server.log().into_bytes()));
    (secrets, found)
}

#[tokio::test]
async fn stolen_copy_of_redis_shows_no_secret() {
    // The log has every write, also what is no longer there. Compressed values could hide a secret.
    let redis = RedisServer::start_with(&["--appendonly", "yes", "--rdbcompression", "no"]);
    let sent = Sent::to(&redis);
    Running::on_redis(&standalone(&redis.url())).put("first", "First").await.expect("a change");
    let dir = TempDir::new();
    let state_dir = format!("state-dir={}", dir.path("state").display());
    let settings = [&SETTINGS[..], &[&state_dir]].concat();
    let (secrets, mut found) = live(Rlaas::on_redis(&redis, &settings)).await;
    redis.query::<()>(&["SAVE"]);
    let [_, folder]: [String; 2] = redis.query(&["CONFIG", "GET", "dir"]);
    let of_redis = files(Path::new(&folder));
    let of_server = files(&dir.path("."));
    let commands = sent.commands();
    // The ids stand in all of them, and are no secrets: so a secret would be found, too.
    for secret in &secrets {
        let is_in = |found: &[Exposed], name: &str| {
            let mut files = found.iter().filter(|(place, _)| place.contains(name));
            files.any(|(_, content)| has(content, id_of(secret).as_bytes()))
        };
        for (found, name) in
            [(&of_redis, "dump.rdb"), (&of_redis, "appendonly"), (&of_server, "state")]
        {
            assert!(is_in(found, name), "{name} lacks {secret}");
        }
        assert!(has(&commands, id_of(secret).as_bytes()), "{secret}");
    }
    found.extend(of_redis);
    found.extend(of_server);
    found.push(("what is sent to redis".to_owned(), commands));
    assert_hidden(&found, &secrets);
}

#[tokio::test]
async fn stolen_journal_shows_no_secret() {
    let (dir, folder) = (TempDir::new(), "journal");
    let journal = format!("store.memory.journal.path={}", dir.path(folder).display());
    let settings = [&SETTINGS[..], &[&journal, "store.memory.snapshot=1s"]].concat();
    let (secrets, mut found) = live(Rlaas::start(&settings)).await;
    let of_server = files(&dir.path("."));
    for secret in &secrets {
        let mut journal = of_server.iter().filter(|(place, _)| place.contains(folder));
        assert!(journal.any(|(_, content)| has(content, id_of(secret).as_bytes())), "{secret}");
    }
    found.extend(of_server);
    assert_hidden(&found, &secrets);
}
