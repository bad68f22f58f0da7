//! Floods: many calls at once are limited as few are, and cost other users nothing.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::future::{Ready, pending, ready};
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use http::StatusCode;
use rlaas_client::tower::remote;
use rlaas_client::{AnsweredBy, Client, ClientBuilder, OnNoAnswer, Verdict};
use rlaas_core::rules::Request;
use rlaas_limiter::tower::{KeyExtractor, KeyParts, RateLimitLayer};
use rlaas_proto::ratelimit::v1 as proto;
use rlaas_proto::{ERROR_DOMAIN, OVERLOADED};
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{advance, pause, resume};
use tonic::transport::server::{Server, TcpIncoming};
use tonic::{Code, Request as Incoming, Response, Status};
use tonic_types::{ErrorDetails, StatusExt};
use tower_layer::Layer;
use tower_service::Service;

use proto::check_response::{Reason, Source};
use proto::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};

/// Timeout of a call. The time of the client stands still, but that of the server does not.
const TIMEOUT: Duration = Duration::from_secs(3_600);
/// Units of each user.
const LIMIT: usize = 3;

/// A server that grants [`LIMIT`] units to each user, and all to `many`. It answers while it is awake, but for `lost`,
/// and sheds the calls of `shed`.
#[derive(Clone)]
struct Counter {
    users: Arc<Mutex<HashMap<String, OfUser>>>,
    awake: watch::Sender<bool>,
    delay: Duration,
}

/// While this lives, the time of tokio moves by [`advance`] alone.
struct FrozenTime(#[expect(dead_code, reason = "ends the task")] mpsc::Sender<()>);

impl FrozenTime {
    fn new() -> Self {
        let (sender, receiver) = mpsc::channel();
        // While a blocking task runs, paused time does not move by itself.
        tokio::task::spawn_blocking(move || receiver.recv());
        pause();
        Self(sender)
    }
}

impl Drop for FrozenTime {
    fn drop(&mut self) {
        resume();
    }
}

#[derive(Clone, Copy, Default)]
struct OfUser {
    count: usize,
    in_flight: usize,
    /// Most of them in flight at once.
    peak: usize,
}

impl Counter {
    /// Starts a server that answers after `delay`, and returns it with a client. From now on the time of the client
    /// stands still, so that a busy machine is none too late.
    async fn start(
        delay: Duration,
        settings: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> (Self, Client, FrozenTime) {
        let counter = Self { users: Arc::default(), awake: watch::Sender::new(true), delay };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address").to_string();
        let service = RateLimitServiceServer::new(counter.clone());
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                listener.set_nonblocking(true).expect("a socket");
                let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
                let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
                Server::builder().add_service(service).serve_with_incoming(incoming).await
            })
        });
        let client = Client::builder(address).timeout(TIMEOUT).on_no_answer(OnNoAnswer::Allow);
        let client = settings(client).connect().await.expect("a server");
        (counter, client, FrozenTime::new())
    }

    fn calls<T>(&self, user: &str, change: impl FnOnce(&mut OfUser) -> T) -> T {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        change(users.entry(user.to_owned()).or_default())
    }

    fn seen(&self, user: &str) -> OfUser {
        self.calls(user, |calls| *calls)
    }
}

#[tonic::async_trait]
impl RateLimitService for Counter {
    async fn check(
        &self,
        request: Incoming<proto::CheckRequest>,
    ) -> Result<Response<proto::CheckResponse>, Status> {
        let user = &request.get_ref().user_id;
        let count = self.calls(user, |calls| {
            calls.count += 1;
            calls.in_flight += 1;
            calls.peak = calls.peak.max(calls.in_flight);
            calls.count
        });
        let mut awake = self.awake.subscribe();
        if awake.wait_for(|awake| *awake).await.is_err() {
            pending::<()>().await;
        }
        #[expect(clippy::disallowed_methods, reason = "a server that is slow")]
        tokio::time::sleep(self.delay).await;
        self.calls(user, |calls| calls.in_flight -= 1);
        if user == "lost" {
            return Err(Status::unavailable("the connection is closing"));
        }
        if user == "shed" {
            let details = ErrorDetails::with_error_info(OVERLOADED, ERROR_DOMAIN, HashMap::new());
            return Err(Status::with_error_details(Code::ResourceExhausted, "shed", details));
        }
        let allowed = count <= LIMIT || user == "many";
        let reason = if allowed { Reason::WithinLimit } else { Reason::OverLimit };
        let retry_after = prost_types::Duration { seconds: 3_600, nanos: 0 };
        Ok(Response::new(proto::CheckResponse {
            allowed,
            reason: reason.into(),
            source: Source::Store.into(),
            retry_after: (!allowed).then_some(retry_after),
            ..proto::CheckResponse::default()
        }))
    }

    async fn check_batch(
        &self,
        _: Incoming<proto::CheckBatchRequest>,
    ) -> Result<Response<proto::CheckBatchResponse>, Status> {
        Err(Status::unimplemented("not part of the test"))
    }

    type CheckStreamStream = tonic::codegen::BoxStream<proto::CheckResult>;

    async fn check_stream(
        &self,
        _: Incoming<tonic::Streaming<proto::CheckRequest>>,
    ) -> Result<Response<Self::CheckStreamStream>, Status> {
        Err(Status::unimplemented("not part of the test"))
    }

    async fn report(
        &self,
        _: Incoming<proto::ReportRequest>,
    ) -> Result<Response<proto::ReportResponse>, Status> {
        Err(Status::unimplemented("not part of the test"))
    }

    async fn get_config(
        &self,
        _: Incoming<proto::GetConfigRequest>,
    ) -> Result<Response<proto::GetConfigResponse>, Status> {
        Err(Status::unimplemented("not part of the test"))
    }
}

async fn check(client: &Client, user: &str) -> Verdict {
    let request = Request::user(user).build().expect("a valid request");
    client.check(&request).await.expect("a verdict")
}

/// Begins this many checks of a user.
fn begin(client: &Client, user: &'static str, count: usize) -> JoinSet<Verdict> {
    let mut calls = JoinSet::new();
    for _ in 0..count {
        let client = client.clone();
        calls.spawn(async move { check(&client, user).await });
    }
    calls
}

/// Counts verdicts by what they are, such as `passed by Server: WITHIN_LIMIT`.
fn summary(verdicts: &[Verdict]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for verdict in verdicts {
        let outcome = if verdict.is_allowed() { "passed" } else { "refused" };
        let kind = format!("{outcome} by {:?}: {}", verdict.answered_by(), verdict.reason());
        *counts.entry(kind).or_default() += 1;
    }
    counts
}

fn all(kind: &str, count: usize) -> BTreeMap<String, usize> {
    BTreeMap::from([(kind.to_owned(), count)])
}

#[tokio::test]
async fn flood_of_one_user_is_limited_and_others_are_answered() {
    let (_server, client, _time) = Counter::start(Duration::from_millis(20), |client| client).await;
    let flood = begin(&client, "alice", 20_000);
    let others = begin(&client, "many", 100);
    let others = others.join_all().await;
    assert!(others.iter().all(|one| one.answered_by() == AnsweredBy::Server), "{others:?}");
    let flood = flood.join_all().await;
    let passed = flood.iter().filter(|verdict| verdict.is_allowed()).count();
    assert_eq!(passed, LIMIT, "{:?}", summary(&flood));
    // 128 are sent, a quarter of the queue waits, and the rest is refused by the client.
    let refused = flood.iter().filter(|verdict| verdict.reason() == "OVER_LIMIT").count();
    assert!(refused >= 128, "{:?}", summary(&flood));
    assert_eq!(client.unanswered(), 0);
}

#[tokio::test]
async fn large_limit_is_granted_to_calls_at_once() {
    let (_server, client, _time) = Counter::start(Duration::ZERO, |client| client).await;
    let verdicts = begin(&client, "many", 2_000).join_all().await;
    assert_eq!(summary(&verdicts), all("passed by Server: WITHIN_LIMIT", 2_000));
}

#[tokio::test]
async fn refused_key_has_one_call_in_flight_whose_refusal_answers_the_others() {
    // Without the cache of refusals.
    let settings = |client: ClientBuilder| client.max_age(Duration::ZERO);
    let (server, client, _time) = Counter::start(Duration::ZERO, settings).await;
    for _ in 0..=LIMIT {
        check(&client, "alice").await;
    }
    server.awake.send_replace(false);
    let calls = begin(&client, "alice", 200);
    while server.seen("alice").in_flight == 0 {
        tokio::task::yield_now().await;
    }
    server.awake.send_replace(true);
    let verdicts = calls.join_all().await;
    assert_eq!(server.seen("alice").peak, 1);
    assert!(verdicts.iter().all(|verdict| verdict.reason() == "OVER_LIMIT"));
    let by_server = verdicts.iter().filter(|one| one.answered_by() == AnsweredBy::Server).count();
    assert_eq!(LIMIT + 1 + by_server, server.seen("alice").count);
    assert!(by_server < 200, "nobody has waited");
    // What takes nothing asks by itself.
    let look = Request::user("alice").cost(0).build().expect("a valid request");
    let look = client.check(&look).await.expect("a verdict");
    assert_eq!(look.answered_by(), AnsweredBy::Server);
}

#[tokio::test]
async fn key_has_a_quarter_of_the_queue_and_a_place_for_a_second() {
    for policy in [OnNoAnswer::Deny, OnNoAnswer::Allow] {
        let settings = |client: ClientBuilder| client.on_overload(policy);
        let (server, client, _time) = Counter::start(Duration::ZERO, settings).await;
        check(&client, "many").await;
        server.awake.send_replace(false);
        let mut calls = begin(&client, "many", 128 + 2_500);
        let mut waited = Vec::new();
        // The others are decided while those are in flight or wait.
        let verdicts = begin(&client, "many", 200).join_all().await;
        let allowed = policy == OnNoAnswer::Allow;
        let outcome = if allowed { "passed" } else { "refused" };
        let overloaded = format!("{outcome} by Policy: OVERLOADED");
        assert_eq!(summary(&verdicts), all(&overloaded, 200));
        let wait = verdicts[0].response().retry_after.map(|wait| wait.seconds);
        assert_eq!(wait, (!allowed).then_some(1));
        // Those in flight are answered late, and those that wait are refused after a second.
        advance(Duration::from_millis(1_010)).await;
        while calls.len() > 128 {
            waited.push(calls.join_next().await.expect("a call").expect("no panic"));
        }
        server.awake.send_replace(true);
        let answered = summary(&calls.join_all().await);
        assert_eq!(answered, all("passed by Server: WITHIN_LIMIT", 128));
        assert_eq!(summary(&waited), all(&overloaded, 2_500));
        assert_eq!(client.unanswered(), 0);
    }
}

#[tokio::test]
async fn policy_decides_all_calls_while_the_server_is_silent() {
    let (server, client, _time) = Counter::start(Duration::ZERO, |client| client).await;
    server.awake.send_replace(false);
    let calls = begin(&client, "lost", 2_000);
    while server.seen("lost").in_flight < 128 {
        tokio::task::yield_now().await;
    }
    server.awake.send_replace(true);
    let no_answer = |count| all("passed by Policy: NO_ANSWER", count);
    assert_eq!(summary(&calls.join_all().await), no_answer(2_000));
    assert_eq!(server.seen("lost").count, 128, "those that waited were decided");
    server.awake.send_replace(false);
    // The next ones find a place, and are sent; the others are decided at once.
    let mut calls = begin(&client, "many", 500);
    let mut verdicts = Vec::new();
    while calls.len() > 128 {
        verdicts.push(calls.join_next().await.expect("a call").expect("no panic"));
    }
    assert_eq!(summary(&verdicts), no_answer(500 - 128));
    server.awake.send_replace(true);
    let answered = |count| all("passed by Server: WITHIN_LIMIT", count);
    assert_eq!(summary(&calls.join_all().await), answered(128));
    // It answers again: calls wait.
    assert_eq!(summary(&begin(&client, "many", 500).join_all().await), answered(500));
    assert_eq!(client.unanswered(), 2_000 + 500 - 128);
}

#[tokio::test]
async fn callers_that_have_gone_leave_their_places() {
    let (server, client, _time) = Counter::start(Duration::ZERO, |client| client).await;
    server.awake.send_replace(false);
    let mut gone = begin(&client, "many", 2_000);
    while server.seen("many").in_flight < 128 {
        tokio::task::yield_now().await;
    }
    let call = begin(&client, "alice", 1);
    gone.shutdown().await;
    server.awake.send_replace(true);
    assert!(call.join_all().await[0].is_allowed());
    assert_eq!(server.seen("many").count, 128, "the others were never sent");
}

/// A service that responds to all requests.
#[derive(Clone)]
struct Hello;

impl Service<http::Request<()>> for Hello {
    type Response = http::Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<http::Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<()>) -> Self::Future {
        ready(Ok(http::Response::new(String::new())))
    }
}

#[tokio::test]
async fn layer_limits_a_flood_and_answers_503_without_a_decision() {
    let (_server, client, _time) = Counter::start(Duration::from_millis(20), |client| client).await;
    let user = |request: &http::request::Parts| Some(KeyParts::user(&request.uri.path()[1..]));
    let layer = RateLimitLayer::builder(remote(client), KeyExtractor::custom(user));
    let layer = layer.on_no_answer(OnNoAnswer::Allow).build().expect("valid settings");
    let service = layer.layer(Hello);
    let request = |user: &str| http::Request::get(format!("/{user}")).body(()).expect("a request");
    let mut connections = JoinSet::new();
    for _ in 0..1_000 {
        let mut service = service.clone();
        connections.spawn(async move {
            let mut statuses = Vec::new();
            for _ in 0..20 {
                let Ok(response) = service.call(request("alice")).await;
                statuses.push(response.status());
            }
            statuses
        });
    }
    let statuses: Vec<_> = connections.join_all().await.into_iter().flatten().collect();
    let count = |status| statuses.iter().filter(|one| **one == status).count();
    assert_eq!(count(StatusCode::OK), LIMIT);
    assert_eq!(count(StatusCode::TOO_MANY_REQUESTS), 20_000 - LIMIT);
    let Ok(shed) = service.clone().call(request("shed")).await;
    assert_eq!(shed.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(shed.headers()["retry-after"], "1");
}
