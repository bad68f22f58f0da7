//! A load over gRPC, HTTP and the calls of Envoy and Kuadrant, with and without Redis, counted by its answers:
//! statistics and metrics have the same requests.

use std::collections::BTreeMap;
use std::time::Duration;

use rlaas_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use rlaas_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use rlaas_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_response::Code as Overall;
use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient as EnvoyClient;
use rlaas_proto::kuadrant::service::ratelimit::v1 as kuadrant;
use rlaas_proto::kuadrant::service::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient as KuadrantClient;
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::project_service_client::ProjectServiceClient;
use rlaas_proto::ratelimit::v1::check_result::Result as Item;
use rlaas_proto::ratelimit::v1::reservation_service_client::ReservationServiceClient;
use rlaas_proto::ratelimit::v1::{
    CheckBatchRequest, CheckRequest, CheckResult, CommitRequest, PartMatcher, ReportRequest,
    ReserveRequest, Rule,
};
use rlaas_testkit::process::{Client, Rlaas, connect, request};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use super::admin;
use crate::http::client::send_with;

const TIMEOUT: Duration = Duration::from_secs(30);
const RULES: &str = "\
unmatched: deny
auth: {api-keys: accepted}
rules:
  - {name: pay, endpoint: /pay, limit: 2, window: 1h}
  - {name: every, match: {resource: /p*}, limit: 1000, window: 1h}
  - {name: trial, endpoint: /pay, limit: 1, window: 1h, mode: shadow}
  - {name: tried, endpoint: /tried, limit: 1, window: 1h, mode: shadow}
  - {name: open, endpoint: /open, limit: 100, window: 1h, on-store-failure: allow}
  - {name: opened, endpoint: /open, limit: 100, window: 1h, on-store-failure: allow}
  - {name: tokens, endpoint: /tokens, algorithm: token-bucket, limit: 100, window: 1d, reservable: true,
     post-paid: true}
";
const ENVOY: &str = "\
domain: web
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: team, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: paid, rate_limit: {unit: year, requests_per_unit: 100, post_paid: true}}
  - {key: held, rate_limit: {unit: year, requests_per_unit: 100, reservable: true}}
";

/// Requests that were allowed, denied, failed and rejected.
type Outcomes = [u64; 4];

/// What the answers to requests say, by project.
#[derive(Debug, Default)]
struct Answers(BTreeMap<String, Outcomes>);

impl Answers {
    /// Counts an answer: whether it allows, or its status.
    fn add(&mut self, project: &str, answer: Result<bool, Code>) {
        let at = match answer {
            Ok(true) => 0,
            // No rule matches.
            Ok(false) | Err(Code::PermissionDenied) => 1,
            Err(Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded) => 2,
            Err(Code::InvalidArgument | Code::FailedPrecondition | Code::NotFound) => 3,
            Err(code) => panic!("{code:?}"),
        };
        self.0.entry(project.to_owned()).or_default()[at] += 1;
    }

    fn add_item(&mut self, result: &CheckResult) {
        self.add(
            "",
            match &result.result {
                Some(Item::Response(response)) => Ok(response.allowed),
                Some(Item::Error(error)) => Err(Code::from(error.code)),
                None => panic!("no result"),
            },
        );
    }
}

fn on(resource: &str, user: &str) -> CheckRequest {
    CheckRequest { resource: resource.to_owned(), ..request(user) }
}

fn code<T>(answer: Result<T, Status>, is_allowed: impl Fn(T) -> bool) -> Result<bool, Code> {
    answer.map(is_allowed).map_err(|status| status.code())
}

/// The clients of a server, and the secret of a key of the project `shop`.
struct Clients {
    check: Client,
    envoy: EnvoyClient<Channel>,
    kuadrant: KuadrantClient<Channel>,
    reservations: ReservationServiceClient<Channel>,
    secret: String,
}

impl Clients {
    async fn new(server: &Rlaas) -> Self {
        let channel = connect(server.grpc()).await;
        let mut projects = ProjectServiceClient::new(channel.clone());
        let project = Some(proto::Project { id: "shop".to_owned(), ..Default::default() });
        let create = proto::CreateProjectRequest { project, ..Default::default() };
        let created = async || projects.clone().create_project(create.clone()).await.is_ok();
        eventually("a project", TIMEOUT, created).await;
        let project_id = "shop".to_owned();
        let resource = PartMatcher { part: "resource".to_owned(), any_of: vec!["/pay".to_owned()] };
        let rule = Some(Rule {
            name: "pay".to_owned(),
            max_requests: 1,
            window: Some(prost_types::Duration { seconds: 3_600, nanos: 0 }),
            matchers: vec![resource],
            ..Default::default()
        });
        let create = proto::CreateRuleRequest { project_id, rule, ..Default::default() };
        projects.create_rule(create).await.expect("a rule");
        let create =
            proto::CreateKeyRequest { project_id: "shop".to_owned(), ..Default::default() };
        let secret = projects.create_key(create).await.expect("a key").into_inner().secret;
        Self {
            check: Client::new(channel.clone()),
            envoy: EnvoyClient::new(channel.clone()),
            kuadrant: KuadrantClient::new(channel.clone()),
            reservations: ReservationServiceClient::new(channel),
            secret,
        }
    }

    async fn check(&mut self, answers: &mut Answers, request: CheckRequest) {
        let answer = self.check.check(request).await;
        answers.add("", code(answer, |response| response.get_ref().allowed));
    }

    /// Sends what is no request: looks and dry runs, whatever becomes of them.
    async fn look(&mut self) {
        for resource in ["/pay", "/none"] {
            let dry_run = CheckRequest { dry_run: true, ..on(resource, "alice") };
            let look = CheckRequest { cost: Some(0), ..on(resource, "alice") };
            let invalid = CheckRequest { dry_run: true, ..on(resource, "") };
            for no_request in [dry_run, look, invalid] {
                let _answer = self.check.check(no_request.clone()).await;
                let reserve = ReserveRequest { request: Some(no_request), ttl: None };
                let _answer = self.reservations.reserve(reserve).await;
            }
        }
        // Charges, and a settlement of nothing.
        let _answer = self.envoy.should_rate_limit(descriptors(&["paid"])).await;
        let _answer = self.kuadrant.report(descriptors(&["user", "team"])).await;
        let report = ReportRequest { request: Some(on("/tokens", "alice")) };
        let _answer = self.check.report(report).await;
        let commit = CommitRequest { request: Some(on("/tokens", "alice")), ..Default::default() };
        let _answer = self.reservations.commit(commit).await;
    }

    async fn reserve(&mut self, answers: &mut Answers, cost: u64, request_id: &str) -> String {
        let request = CheckRequest { cost: Some(cost), ..on("/tokens", "alice") };
        let request = Some(CheckRequest { request_id: request_id.to_owned(), ..request });
        let reserved = self.reservations.reserve(ReserveRequest { request, ttl: None }).await;
        let reserved = reserved.map(tonic::Response::into_inner);
        let id =
            reserved.as_ref().map_or(String::new(), |reserved| reserved.reservation_id.clone());
        answers.add(
            "",
            code(reserved, |reserved| reserved.verdict.is_some_and(|verdict| verdict.allowed)),
        );
        id
    }

    async fn descriptors(&mut self, answers: &mut Answers) {
        for keys in
            [&["user"][..], &["user"], &["team", "other"], &["team", "paid"], &["other"], &[]]
        {
            let answer = self.envoy.should_rate_limit(descriptors(keys)).await;
            answers.add("", code(answer, |answer| answer.get_ref().overall_code() == Overall::Ok));
            let answer = self.kuadrant.check_rate_limit(descriptors(keys)).await;
            answers.add("", code(answer, |answer| answer.get_ref().overall_code() == Overall::Ok));
        }
        for amount in [7, 1_000] {
            let RateLimitRequest { domain, descriptors, .. } = descriptors(&["held"]);
            let reserve = kuadrant::ReserveRequest { domain, descriptors, amount, ttl: None };
            let answer = self.kuadrant.reserve(reserve).await;
            answers.add("", code(answer, |answer| answer.get_ref().code() == Overall::Ok));
        }
    }

    /// Sends requests of every protocol, of users whose names begin so.
    async fn load(&mut self, server: &Rlaas, answers: &mut Answers, prefix: &str) {
        let alice = &format!("{prefix}-alice");
        for resource in ["/pay", "/pay", "/pay", "/plain", "/open", "/tried", "/tried", "/none"] {
            self.check(answers, on(resource, alice)).await;
        }
        self.check(answers, on("/pay", "")).await;
        // One request, and its replay while the store answers.
        let once = CheckRequest { request_id: format!("{prefix}-1"), ..on("/plain", alice) };
        self.check(answers, once.clone()).await;
        let again = self.check.check(once).await;
        let is_replay = again.as_ref().is_ok_and(|answer| answer.get_ref().replayed);
        if !is_replay {
            answers.add("", code(again, |response| response.get_ref().allowed));
        }
        let bob = &format!("{prefix}-bob");
        let items = || ["/pay", "/pay", "/pay", "/none"].map(|resource| on(resource, bob));
        let dry_run = CheckRequest { dry_run: true, ..on("/pay", bob) };
        let requests = [&items()[..], &[dry_run, on("/pay", "")]].concat();
        let batch = CheckBatchRequest { requests, ..Default::default() };
        let results = self.check.check_batch(batch).await.expect("a batch").into_inner().results;
        results
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != 4)
            .for_each(|(_, item)| answers.add_item(item));
        let stream = self.check.check_stream(tokio_stream::iter(items())).await;
        let mut stream = stream.expect("a stream").into_inner();
        while let Some(item) = stream.message().await.expect("an item") {
            answers.add_item(&item);
        }
        self.over_http(server, answers, bob).await;
        for _ in 0..6 {
            let mut with_key = Request::new(on("/pay", alice));
            with_key.metadata_mut().insert("x-api-key", self.secret.parse().expect("a header"));
            let answer = self.check.check(with_key).await;
            answers.add("shop", code(answer, |response| response.get_ref().allowed));
        }
        self.descriptors(answers).await;
    }

    async fn over_http(&self, server: &Rlaas, answers: &mut Answers, user: &str) {
        let headers = "Content-Type: application/json\r\n";
        let body = |user: &str| format!(r#"{{"userId": "{user}", "resource": "/plain"}}"#);
        let (valid, invalid) = (body(user), body(""));
        let dry_run = valid.replace('}', r#", "dryRun": true}"#);
        for (target, body) in [
            ("/v1/check", Some(&valid)),
            ("/v1/check", Some(&invalid)),
            ("/v1/check", Some(&dry_run)),
            ("/check?userId=bob", None),
            ("/check?userId=", None),
        ] {
            let method = if body.is_some() { "POST" } else { "GET" };
            let answer = send_with(server, method, target, headers, body.map(|body| &**body)).await;
            let answer = match answer.status {
                200 => Ok(true),
                403 | 429 => Ok(false),
                400 => Err(Code::InvalidArgument),
                500 | 503 => Err(Code::Unavailable),
                status => panic!("{target}: {status}"),
            };
            if body != Some(&dry_run) {
                answers.add("", answer);
            }
        }
    }
}

fn descriptors(keys: &[&str]) -> RateLimitRequest {
    let descriptor = |key: &&str| RateLimitDescriptor {
        entries: vec![Entry { key: (*key).to_owned(), value: "alice".to_owned() }],
        ..Default::default()
    };
    let descriptors = keys.iter().map(descriptor).collect();
    RateLimitRequest { domain: "web".to_owned(), descriptors, hits_addend: 1 }
}

#[tokio::test]
async fn requests_are_the_answers_by_status() {
    let mut redis = RedisServer::start();
    let dir = TempDir::new();
    let envoy = format!("envoy.files={}", dir.write("envoy.yaml", ENVOY).display());
    let url = format!("store.redis.url={}", redis.url());
    let settings =
        ["store.backend=redis", &url, "store.redis.timeout=5s", "envoy.deadline=5s", &envoy];
    let server = Rlaas::start_from(&dir.write("rlaas.yaml", RULES), &settings);
    let mut clients = Clients::new(&server).await;
    let watch = proto::WatchStatsRequest {
        project_id: "-".to_owned(),
        interval: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
        this_instance: true,
        ..Default::default()
    };
    let mut points = admin(&server).await.watch_stats(watch).await.expect("a stream").into_inner();
    let mut answers = Answers::default();
    clients.load(&server, &mut answers, "up").await;
    clients.look().await;
    let id = clients.reserve(&mut answers, 10, "r").await;
    let commit = CommitRequest { reservation_id: id, actual: Some(4), ..Default::default() };
    clients.reservations.commit(commit).await.expect("settled");
    // Its reservation stands no more.
    clients.reserve(&mut answers, 10, "r").await;
    clients.reserve(&mut answers, 1_000, "").await;
    let of_up = answers.0[""];
    assert!(of_up[1] > 5 && of_up[2] == 0 && of_up[3] > 3, "{answers:?}");
    redis.kill();
    clients.load(&server, &mut answers, "down").await;
    clients.look().await;
    clients.reserve(&mut answers, 10, "").await;
    assert!(answers.0[""][2] > 10 && answers.0["shop"][2] > 0, "{answers:?}");

    let (mut told, mut fail_open) = (BTreeMap::<String, Outcomes>::new(), 0);
    let counted = timeout(TIMEOUT, async {
        while told != answers.0 {
            let point = points.message().await.expect("a point").expect("no end");
            assert!(point.other_requests.is_none());
            for stats in point.requests {
                let sum = told.entry(stats.project_id).or_default();
                let outcomes = [stats.allowed, stats.denied, stats.failed, stats.rejected];
                sum.iter_mut().zip(outcomes).for_each(|(sum, count)| *sum += count);
                fail_open += stats.fail_open;
            }
        }
    });
    let counted = counted.await;
    assert!(counted.is_ok(), "{told:?} is not {answers:?}");
    // Two rules let it through.
    assert_eq!(fail_open, 1);
    for (project, outcomes) in &answers.0 {
        for (outcome, count) in ["allowed", "denied", "failed", "rejected"].iter().zip(outcomes) {
            let series =
                format!("rlaas_requests_total{{project=\"{project}\",outcome=\"{outcome}\"}}");
            assert_eq!(server.metric(&series).await, count.to_string().parse().ok(), "{series}");
        }
    }
}
