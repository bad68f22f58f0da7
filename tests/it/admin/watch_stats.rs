//! `WatchStats`: counters by rule, of the past and as they are made.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use rlaas::clock::{Micros, Timestamp};
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::CheckRequest;
use rlaas_testkit::process::{Rlaas, check, request, rlaas};
use rlaas_testkit::redis::{RedisServer, clock_shim};
use rlaas_testkit::{TempDir, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::{Code, Status, Streaming};

use super::top_keys::with_token;
use super::{AdminClient, admin};

const TIMEOUT: Duration = Duration::from_secs(20);
/// 2023-11-14, 22:15:05 UTC.
const T0: Timestamp = Timestamp::from_millis(1_700_000_105_000);
const RULES: &str = "\
rules:
  - {name: pay, endpoint: /pay, limit: 2, window: 1h}
  - {name: trial, endpoint: /pay, limit: 1, window: 1h, shadow: true}
";

type Points = Streaming<proto::WatchStatsResponse>;

/// Servers whose wall time the test sets.
pub(crate) struct TimedServers {
    pub(crate) servers: Vec<Rlaas>,
    clock: File,
    now: Timestamp,
    dir: TempDir,
}

impl TimedServers {
    fn start(count: usize, settings: &[&str]) -> Self {
        Self::start_from(RULES, count, settings)
    }

    /// Starts servers of this configuration.
    pub(crate) fn start_from(text: &str, count: usize, settings: &[&str]) -> Self {
        let dir = TempDir::new();
        let path = dir.write("clock", "");
        let clock = File::options().write(true).open(&path).expect("the clock file");
        let rules = dir.write("rlaas.yaml", text);
        let mut this = Self { servers: Vec::new(), clock, now: T0, dir };
        this.advance(0);
        for _ in 0..count {
            let mut command = rlaas(&["serve", "--config", rules.to_str().expect("a path")]);
            command.env("LD_PRELOAD", clock_shim()).env("TEST_CLOCK_FILE", &path);
            this.servers.push(Rlaas::start_with(command, settings));
        }
        this
    }

    /// Returns the configuration file of all.
    pub(crate) fn config(&self) -> PathBuf {
        self.dir.path("rlaas.yaml")
    }

    pub(crate) fn advance(&mut self, seconds: u64) {
        self.now = self.now + Micros::from_secs(seconds);
        let moved = self.now.as_micros();
        self.clock.write_all_at(&moved.to_le_bytes(), 0).expect("the clock file");
    }
}

fn seconds(seconds: i64) -> prost_types::Duration {
    prost_types::Duration { seconds, nanos: 0 }
}

fn all() -> proto::WatchStatsRequest {
    proto::WatchStatsRequest { project_id: "-".to_owned(), ..proto::WatchStatsRequest::default() }
}

async fn watch(client: &mut AdminClient, request: proto::WatchStatsRequest) -> Points {
    client.watch_stats(request).await.expect("a stream").into_inner()
}

async fn next(points: &mut Points) -> proto::WatchStatsResponse {
    let response = timeout(TIMEOUT, points.message()).await.expect("a point in time");
    response.expect("a point").expect("no end")
}

async fn end(points: &mut Points) -> Status {
    let ended = async {
        loop {
            match points.message().await {
                Ok(message) => assert!(message.is_some(), "ended without a status"),
                Err(status) => return status,
            }
        }
    };
    timeout(TIMEOUT, ended).await.expect("the end of the stream")
}

async fn pay(server: &Rlaas, user: &str, times: usize) {
    let mut client = server.client().await;
    for _ in 0..times {
        let request = CheckRequest { resource: "/pay".to_owned(), ..request(user) };
        client.check(request).await.expect("a decision");
    }
}

/// Returns rule, allowed, denied, and denied in shadow mode.
fn counts(point: &proto::WatchStatsResponse) -> Vec<(&str, u64, u64, u64)> {
    let rules = point.rules.iter();
    rules.map(|one| (&*one.rule, one.allowed, one.denied, one.shadow_denied)).collect()
}

#[tokio::test]
async fn fleet_is_watched_with_its_history_while_redis_comes_and_goes() {
    let mut redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let mut settings = vec!["store.backend=redis", &url, "store.redis.timeout=1s"];
    settings.extend(["server.workers=1", "rate-limiter.fail-open=true"]);
    let mut timed = TimedServers::start(2, &settings);
    pay(&timed.servers[0], "alice", 3).await;
    pay(&timed.servers[1], "bob", 1).await;
    let mut client = admin(&timed.servers[0]).await;
    let mut live = watch(&mut client, all()).await;
    timed.advance(10);
    let point = next(&mut live).await;
    let ids = point.coverage.clone().expect("a coverage");
    // The first of two instances may read before the other has written, which counts then.
    let mut points = vec![point];
    let total = |points: &[proto::WatchStatsResponse]| {
        let rules = points.iter().flat_map(|point| &point.rules);
        rules.filter(|one| one.rule == "pay").map(|one| one.allowed).sum::<u64>()
    };
    while total(&points) < 3 {
        timed.advance(10);
        points.push(next(&mut live).await);
    }
    assert!(ids.instances.len() <= 2 && ids.missing.is_empty(), "{ids:?}");
    let last = points.last().and_then(|point| point.coverage.clone()).expect("a coverage");
    assert_eq!((last.instances.len(), last.missing.len()), (2, 0), "{last:?}");
    if points.len() == 1 {
        let mut found = counts(&points[0]);
        found.sort_unstable();
        assert_eq!(found, [("pay", 3, 1, 0), ("trial", 2, 0, 2)]);
    }
    // Two rules have decided each of them.
    let mut requests = proto::RequestStats::default();
    for point in &points {
        requests.add(&point.request_sum());
    }
    assert_eq!((requests.allowed, requests.denied, requests.failed), (3, 1, 0));

    // The past comes first, and goes on without a gap.
    let request = proto::WatchStatsRequest { history: Some(seconds(900)), ..all() };
    let mut with_past = watch(&mut client, request).await;
    let past = next(&mut with_past).await;
    assert_eq!(past, points[0]);

    redis.kill();
    let mut checks = timed.servers[0].client().await;
    for _ in 0..3 {
        check(&mut checks, "carol").await.expect("a decision by policy");
    }
    let (mut degraded, mut let_through) = (0, 0);
    while degraded < 3 {
        timed.advance(10);
        let point = next(&mut live).await;
        let coverage = point.coverage.as_ref().expect("a coverage");
        let default = point.rules.iter().find(|one| one.rule == "default");
        degraded += default.map_or(0, |one| one.degraded);
        let_through += point.request_sum().fail_open;
        if let Some(default) = default {
            assert_eq!((default.fail_open, default.allowed), (default.degraded, default.degraded));
            assert_eq!((coverage.instances.len(), coverage.missing.len()), (1, 1), "{coverage:?}");
        }
    }
    assert_eq!(let_through, 3);

    // The drain ends all.
    timed.servers[0].signal("TERM");
    for points in [&mut live, &mut with_past] {
        let status = end(points).await;
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    }
}

#[tokio::test]
async fn instance_is_watched_each_second() {
    let dir = TempDir::new();
    let server = Rlaas::start_from(&dir.write("rlaas.yaml", RULES), &[]);
    let mut client = admin(&server).await;
    let request =
        proto::WatchStatsRequest { interval: Some(seconds(1)), this_instance: true, ..all() };
    let mut points = watch(&mut client, request.clone()).await;
    let only =
        proto::WatchStatsRequest { rule: "trial".to_owned(), max_rules: 1, ..request.clone() };
    let mut trial = watch(&mut client, only).await;
    let most = proto::WatchStatsRequest { max_rules: 1, ..request };
    let mut busiest = watch(&mut client, most).await;
    pay(&server, "alice", 3).await;
    check(&mut server.client().await, "bob").await.expect("a decision");
    let (mut seen, mut since) = (Vec::<(String, u64, u64, u64)>::new(), None);
    while seen.iter().map(|(_, allowed, denied, shadow)| allowed + denied + shadow).sum::<u64>() < 7
    {
        let point = next(&mut points).await;
        assert!(since.is_none() || since == point.since, "no gap: {point:?}");
        since.clone_from(&point.until);
        seen.extend(
            counts(&point)
                .into_iter()
                .map(|(rule, allowed, denied, shadow)| (rule.to_owned(), allowed, denied, shadow)),
        );
    }
    let sum = |rule: &str| {
        let counts = seen.iter().filter(|one| one.0 == rule);
        counts.fold((0, 0, 0), |sum, one| (sum.0 + one.1, sum.1 + one.2, sum.2 + one.3))
    };
    assert_eq!(sum("pay"), (2, 1, 0));
    assert_eq!(sum("trial"), (1, 0, 2));
    assert_eq!(sum("default"), (1, 0, 0));
    let mut of_trial = 0;
    while of_trial < 3 {
        let point = next(&mut trial).await;
        assert!(point.others.is_none() && point.rules.iter().all(|one| one.rule == "trial"));
        of_trial += point.rules.iter().map(|one| one.allowed + one.shadow_denied).sum::<u64>();
    }
    let mut others = 0;
    while others < 3 {
        let point = next(&mut busiest).await;
        assert!(point.rules.len() <= 1, "{point:?}");
        others += point.others.map_or(0, |all| all.allowed + all.denied + all.shadow_denied);
    }
}

#[tokio::test]
async fn callers_see_the_projects_of_their_roles() {
    let digest = |token: &str| {
        let digest = ring::digest::digest(&ring::digest::SHA256, token.as_bytes());
        let number = digest.as_ref().iter();
        number.fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    };
    let tokens = |shop: &str| {
        format!(
            "rate-limiter: {{max-requests: 100}}\n\
             auth: {{tokens: [{{name: o, sha256: {}, roles: [operate, admin, check]}}, \
             {{name: s, sha256: {}, roles: [{shop}], projects: [shop]}}, \
             {{name: c, sha256: {}, roles: [check]}}]}}\n",
            digest("operator"),
            digest("shopkeeper"),
            digest("checker"),
        )
    };
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", &tokens("operate"));
    let server = Rlaas::start_from(&file, &[]);
    let channel = server.channel().await;
    let mut projects = proto::project_service_client::ProjectServiceClient::new(channel);
    for id in ["shop", "blog"] {
        let project = proto::Project {
            id: id.to_owned(),
            display_name: id.to_owned(),
            ..proto::Project::default()
        };
        let create = proto::CreateProjectRequest {
            project: Some(project),
            reason: "a test".to_owned(),
            ..proto::CreateProjectRequest::default()
        };
        projects.create_project(with_token(create, "operator")).await.expect("a project");
    }
    let client = admin(&server).await;
    let of = |project_id: &str| proto::WatchStatsRequest {
        project_id: project_id.to_owned(),
        interval: Some(seconds(1)),
        this_instance: true,
        ..proto::WatchStatsRequest::default()
    };
    let open = async |project_id: &str, token: &str| {
        let opened = client.clone().watch_stats(with_token(of(project_id), token)).await;
        opened.map(tonic::Response::into_inner).map_err(|status| status.code())
    };
    let mut of_shop = open("shop", "shopkeeper").await.expect("a stream");
    let mut own = open("-", "shopkeeper").await.expect("a stream");
    let mut everything = open("-", "operator").await.expect("a stream");
    let request = CheckRequest { cost: Some(2), ..request("alice") };
    let mut checks = server.client().await;
    checks.check(with_token(request, "operator")).await.expect("a decision");
    eventually("the decision is seen", TIMEOUT, async || {
        let point = next(&mut everything).await;
        point.rules.iter().any(|one| one.rule == "default" && one.units == 2)
    })
    .await;
    for points in [&mut of_shop, &mut own] {
        for _ in 0..2 {
            assert!(next(points).await.rules.is_empty(), "decisions of no project of theirs");
        }
    }
    // The role is taken away: the streams end, and that of the other goes on.
    dir.write("rlaas.yaml", &tokens("check"));
    server.signal("HUP");
    for points in [&mut of_shop, &mut own] {
        let status = end(points).await;
        assert!(
            matches!(
                status.code(),
                Code::Unauthenticated | Code::PermissionDenied | Code::NotFound
            ),
            "{status:?}"
        );
    }
    next(&mut everything).await;
}

#[tokio::test]
async fn watchers_are_bounded() {
    let server = Rlaas::start(&[]);
    let mut client = admin(&server).await;
    let mut watching = Vec::new();
    for _ in 0..64 {
        watching.push(watch(&mut client, all()).await);
    }
    let refused = client.watch_stats(all()).await.expect_err("no place");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    watching.pop();
    eventually("a place is free", TIMEOUT, async || {
        client.clone().watch_stats(all()).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn points_are_events_over_http() {
    let dir = TempDir::new();
    let server = Rlaas::start_from(&dir.write("rlaas.yaml", RULES), &[]);
    let mut connection = TcpStream::connect(server.http()).await.expect("a connection");
    let get = "GET /v1/admin/stats?projectId=-&interval=1s&thisInstance=true HTTP/1.1\r\n\
               Host: localhost\r\n\r\n";
    connection.write_all(get.as_bytes()).await.expect("a request");
    let mut received = String::new();
    let mut bytes = [0; 4096];
    let read = async {
        while !received.contains("\r\n\r\n") {
            let len = connection.read(&mut bytes).await.expect("a response");
            received += str::from_utf8(&bytes[..len]).expect("text");
        }
        pay(&server, "alice", 1).await;
        while !received.contains(r#""rule":"trial""#) {
            let len = connection.read(&mut bytes).await.expect("an event");
            received += str::from_utf8(&bytes[..len]).expect("text");
        }
    };
    timeout(TIMEOUT, read).await.expect("an event in time");
    assert!(received.starts_with("HTTP/1.1 200 OK\r\n"), "{received}");
    assert!(received.contains("content-type: text/event-stream\r\n"), "{received}");
    let data = received.lines().filter_map(|line| line.strip_prefix("data: "));
    let data: Vec<serde_json::Value> =
        data.filter_map(|json| serde_json::from_str(json).ok()).collect();
    let point = data.iter().find(|point| !point["rules"].is_null()).expect("a point with rules");
    let rule = point["rules"].as_array().expect("rules").iter().find(|one| one["rule"] == "pay");
    assert_eq!(rule.expect("the rule")["allowed"], "1", "{point}");
    assert!(point["coverage"]["instances"].is_array(), "{point}");
}
