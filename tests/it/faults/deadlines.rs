//! Deadlines, cancelled calls, and more calls than may be in flight.

use std::time::Duration;

use rlaas::algorithm::Algorithm;
use rlaas::clock::Deadline;
use rlaas::rules::{self, Part};
use rlaas::store::{Servers, StoreError};
use rlaas_limiter::CheckError;
use rlaas_proto::ratelimit::v1::check_result::Result as ItemResult;
use rlaas_proto::ratelimit::v1::{CheckRequest, CheckResult};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming};

use super::load::{
    COUNTED, Client, RECOVERY, SOON, ambiguous, assert_sound, assert_unavailable, breaker, counted,
    store_errors, wait_for_store,
};
use super::multi_shard_library::{limiter, no_observer, rule, rule_set};
use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, check, request, signal};
use rlaas_testkit::proxy::{Behaviour, Proxy};
use rlaas_testkit::redis::RedisServer;

/// A stream of checks under one deadline, which this client does not enforce itself.
struct DeadlineStream {
    requests: mpsc::Sender<CheckRequest>,
    answers: Streaming<CheckResult>,
}

impl DeadlineStream {
    async fn start(client: &mut Client, timeout: &'static str) -> Self {
        let (requests, received) = mpsc::channel(1);
        let mut request = Request::new(ReceiverStream::new(received));
        let timeout = timeout.parse().expect("a header");
        request.metadata_mut().insert("grpc-timeout", timeout);
        let answers = client.check_stream(request).await.expect("a stream").into_inner();
        Self { requests, answers }
    }

    /// Sends a check and returns its count, or the code and message of its error.
    async fn check(&mut self, request_message: CheckRequest) -> Result<i64, (Code, String)> {
        self.requests.send(request_message).await.expect("an open stream");
        let result = self.answers.next().await.expect("a result").expect("an open stream").result;
        match result.expect("a result") {
            ItemResult::Response(response) => Ok(response.current_count),
            ItemResult::Error(error) => Err((error.code.into(), error.message)),
        }
    }
}

/// Returns `true` if the client made up this status because the server was late.
fn is_ours(status: &Status) -> bool {
    status.code() == Code::Cancelled && status.metadata().is_empty()
}

fn within<T>(timeout: Duration, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
}

/// Starts a server that reaches its Redis through a proxy.
async fn start_behind_proxy() -> (RedisServer, Proxy, Rlaas) {
    let redis = RedisServer::start();
    let proxy = Proxy::to(redis.port());
    let url = format!("store.redis.url={}", proxy.url());
    let always = ["store.backend=redis", &url, "store.redis.timeout=10s", "server.workers=1"];
    let always = [&always[..], &["deny-cache.enabled=false"]].concat();
    let server = Rlaas::start(&[&always[..], COUNTED].concat());
    wait_for_store(&server).await;
    (redis, proxy, server)
}

#[tokio::test]
async fn short_deadlines_do_not_affect_other_callers() {
    let (_redis, proxy, server) = start_behind_proxy().await;
    let mut client = server.client().await;
    for count in 1..=3 {
        assert_eq!(check(&mut client, "pat").await.expect("an answer").current_count, count);
    }
    proxy.set(Behaviour::Swallow);
    let mut calls = JoinSet::new();
    for _ in 0..5 {
        let mut client = client.clone();
        calls.spawn(async move { check(&mut client, "pat").await.expect("an answer") });
    }
    let mut calls_made = 0;
    // On a busy machine the deadlines of a round may pass before its calls are sent.
    let one_was_sent = async || {
        let mut round = JoinSet::new();
        for _ in 0..10 {
            let mut client = client.clone();
            round.spawn(async move {
                let mut stream = DeadlineStream::start(&mut client, "300m").await;
                stream.check(request("harry")).await.expect_err("no decision")
            });
        }
        for (code, message) in round.join_all().await {
            let known = [
                (Code::Unavailable, "store unavailable"),
                (Code::DeadlineExceeded, "deadline exceeded"),
            ];
            assert!(known.contains(&(code, &*message)), "{code:?}: {message}");
        }
        calls_made += 10;
        ambiguous(&server).await >= 1
    };
    eventually("the fate of a sent call is unknown", SOON, one_was_sent).await;
    proxy.set(Behaviour::Pass);
    let mut counts: Vec<i64> =
        calls.join_all().await.into_iter().map(|answer| answer.current_count).collect();
    counts.sort_unstable();
    assert_eq!(counts, [4, 5, 6, 7, 8], "their connection stays open; no reply is lost or swapped");
    for count in 9..=20 {
        assert_eq!(check(&mut client, "pat").await.expect("an answer").current_count, count);
    }
    let harry = check(&mut client, "harry").await.expect("an answer").current_count;
    assert!(harry <= calls_made + 1, "{harry} counted of {calls_made} calls and this one");
    assert_eq!(breaker(&server).await, 0);
    assert!(!server.log().contains("breaker opened"), "{}", server.log());
    assert_sound(&server);
}

#[tokio::test]
async fn short_deadlines_do_not_open_the_breaker() {
    let redis = RedisServer::start();
    let servers = Servers::Standalone(Box::new(redis.url().parse().expect("a valid url")));
    let rules = rule_set(vec![rule("user", Part::UserId, Algorithm::FixedWindow, 1_000)]);
    let limiter = limiter(servers, rules, 4096, no_observer());
    let background = limiter.clone();
    let running = tokio::spawn(async move { background.run().await });
    let received = rules::Request::user("harry").build().expect("a valid request");
    let check = async |deadline| limiter.check(&received, deadline).await;
    let wait_for_store = async || check(Deadline::NEVER).await.is_ok();
    eventually("Redis decides", SOON, wait_for_store).await;
    redis.query::<()>(&["CLIENT", "PAUSE", "100000", "WRITE"]);
    // Five failures in a row would open the breaker.
    for call in 0..20 {
        let late = check(Deadline::within(Duration::from_millis(20))).await.expect_err("no answer");
        let is_late = matches!(late, CheckError::StoreUnavailable(StoreError::Timeout(_)));
        assert!(is_late || matches!(late, CheckError::Expired), "call {call}: {late:?}");
    }
    redis.query::<()>(&["CLIENT", "UNPAUSE"]);
    assert!(check(Deadline::NEVER).await.expect("a verdict").is_allowed());
    running.abort();
}

#[tokio::test]
async fn response_is_sent_before_the_deadline_of_the_caller() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, COUNTED);
    wait_for_store(&server).await;
    let mut client = server.client().await;
    redis.query::<()>(&["CLIENT", "PAUSE", "100000", "WRITE"]);
    let mut in_time = 0;
    let answered = async || {
        let mut status = Status::ok("");
        let answer = async || {
            let request_message = within(Duration::from_millis(50), request("harry"));
            status = client.check(request_message).await.expect_err("no decision");
            true
        };
        let took = eventually("an answer", SOON, answer).await;
        if !is_ours(&status) {
            assert_eq!(status.code(), Code::Unavailable, "{status:?}");
            assert_eq!(status.message(), "store unavailable");
            // Without a usable connection the response comes sooner.
            in_time += u32::from(took >= Duration::from_millis(40));
        }
        in_time >= 10
    };
    // Not every response: this client may be late itself.
    eventually("answers in time", SOON * 2, answered).await;
    assert_sound(&server);
}

#[tokio::test]
async fn expired_deadline_counts_nothing_and_is_reported() {
    let redis = RedisServer::start();
    let servers = [(Rlaas::start(COUNTED), 0), (Rlaas::on_redis(&redis, COUNTED), 1)];
    for (server, most_cut_short) in servers {
        wait_for_store(&server).await;
        let mut client = server.client().await;
        let mut stream = DeadlineStream::start(&mut client, "300m").await;
        let (mut passed, mut cut_short) = (0, 0);
        let over = async || match stream.check(request("alice")).await {
            Ok(count) => {
                passed += 1;
                assert_eq!(count, passed);
                false
            }
            // The last check may be on its way to Redis at the deadline.
            Err((Code::Unavailable, message)) => {
                assert_eq!(message, "store unavailable");
                cut_short += 1;
                false
            }
            Err((code, message)) => {
                assert_eq!((code, &*message), (Code::DeadlineExceeded, "deadline exceeded"));
                true
            }
        };
        eventually("the deadline has passed", SOON, over).await;
        assert!(passed > 0);
        for _ in 0..10 {
            let over = stream.check(request("alice")).await.expect_err("over");
            assert_eq!(over.0, Code::DeadlineExceeded);
        }
        assert_eq!(server.metric_sum("rlaas_expired_total", &[]).await, 11);
        assert!(cut_short <= most_cut_short, "{cut_short} were on their way to Redis");
        assert_eq!(ambiguous(&server).await, cut_short, "the fate of sent calls is unknown");

        // For a single call the client mostly gives up before the response arrives.
        let counted_as_expired = async || {
            let mut request_message = Request::new(request("alice"));
            let timeout = "1n".parse().expect("a header");
            request_message.metadata_mut().insert("grpc-timeout", timeout);
            let status = client.check(request_message).await.expect_err("over");
            assert!(is_ours(&status) || status.code() == Code::DeadlineExceeded, "{status:?}");
            server.metric_sum("rlaas_expired_total", &[]).await >= 21
        };
        eventually("the server counts expired calls", SOON, counted_as_expired).await;
        let counted = check(&mut client, "alice").await.expect("an answer").current_count;
        // Only the check at the deadline may have been counted.
        let may_be = passed + 1..=passed + 1 + i64::try_from(cut_short).expect("one at most");
        assert!(may_be.contains(&counted), "{counted} is not in {may_be:?}");
        assert_sound(&server);
    }
}

#[tokio::test]
async fn deadline_bounds_the_wait_for_a_hung_or_unreachable_redis() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &[COUNTED, &["store.redis.timeout=60s"]].concat());
    wait_for_store(&server).await;
    let mut client = server.client().await;
    let mut stream = DeadlineStream::start(&mut client, "3S").await;
    signal(redis.pid(), "STOP");
    let answer = tokio::time::timeout(SOON * 2, stream.check(request("alice"))).await;
    assert!(answer.expect("an answer within the caller's deadline").is_err());
    signal(redis.pid(), "CONT");

    // Connections to this listener are never answered: the first attempt hangs.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = silent.local_addr().expect("an address").port();
    let url = format!("store.redis.url=redis://127.0.0.1:{port}");
    let server = Rlaas::start(&["store.backend=redis", &url, "store.redis.timeout=60s"]);
    let mut client = server.client().await;
    let mut stream = DeadlineStream::start(&mut client, "3S").await;
    let answer = tokio::time::timeout(SOON * 2, stream.check(request("alice"))).await;
    let (code, message) =
        answer.expect("an answer within the caller's deadline").expect_err("no redis");
    assert_eq!((code, &*message), (Code::Unavailable, "store unavailable"));
}

#[tokio::test]
async fn short_stall_is_waited_for_and_a_long_one_times_out() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &[COUNTED, &["store.redis.timeout=1s"]].concat());
    wait_for_store(&server).await;
    let mut client = server.client().await;
    for count in 1..=5 {
        redis.query::<()>(&["CLIENT", "PAUSE", "5", "WRITE"]);
        assert_eq!(check(&mut client, "alice").await.expect("an answer").current_count, count);
        redis.query::<()>(&["DEBUG", "SLEEP", "0.005"]);
    }
    redis.query::<()>(&["CLIENT", "PAUSE", "100000", "WRITE"]);
    let (mut alice, mut bob) = (client.clone(), client.clone());
    tokio::join!(assert_unavailable(&mut alice, "alice"), assert_unavailable(&mut bob, "bob"));
    redis.query::<()>(&["CLIENT", "UNPAUSE"]);
    assert_eq!((store_errors(&server, "timeout").await, ambiguous(&server).await), (2, 2));
    // The timed-out calls may have been executed, but at most once.
    for (user, before) in [("alice", 5), ("bob", 0)] {
        let first = check(&mut client, user).await.expect("an answer").current_count;
        assert!((before + 1..=before + 2).contains(&first), "{user}: {first}");
        for count in first + 1..first + 5 {
            let answer = check(&mut client, user).await.expect("an answer");
            assert_eq!(answer.current_count, count, "{user}");
        }
    }
    assert_sound(&server);
}

#[tokio::test]
async fn calls_above_max_in_flight_are_shed_at_once() {
    let redis = RedisServer::start();
    let settings = [COUNTED, &["store.redis.max-in-flight=8", "store.redis.timeout=60s"]].concat();
    let server = Rlaas::on_redis(&redis, &settings);
    wait_for_store(&server).await;
    let client = server.client().await;
    signal(redis.pid(), "STOP");
    let mut calls = JoinSet::new();
    for _ in 0..30 {
        let mut client = client.clone();
        calls.spawn(async move { check(&mut client, "alice").await });
    }
    for _ in 0..22 {
        let status = calls.join_next().await.expect("a call").expect("no panic");
        let status = status.expect_err("shed");
        assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "overloaded"));
    }
    assert_eq!(server.metric_sum("rlaas_shed_total", &[]).await, 22);
    signal(redis.pid(), "CONT");
    let mut counts: Vec<i64> = calls
        .join_all()
        .await
        .into_iter()
        .map(|answer| answer.expect("an answer").current_count)
        .collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(counted(&redis), 8);
    assert_eq!(breaker(&server).await, 0);
    assert_sound(&server);
}

#[tokio::test]
async fn what_a_server_may_not_do_in_time_is_shed_before_it_is_sent() {
    const ADMITTED: u64 = 8192;
    let redis = RedisServer::start();
    let servers = Servers::Standalone(Box::new(redis.url().parse().expect("a valid url")));
    let rules = rule_set(vec![rule("user", Part::UserId, Algorithm::FixedWindow, 10_000)]);
    let limiter = limiter(servers, rules, 20_000, no_observer());
    // Loads the script.
    let warm = rules::Request::user("bob").build().expect("a valid request");
    limiter.check(&warm, Deadline::NEVER).await.expect("a verdict");
    signal(redis.pid(), "STOP");
    let mut calls = JoinSet::new();
    for _ in 0..ADMITTED + 100 {
        let limiter = limiter.clone();
        calls.spawn(async move {
            let received = rules::Request::user("alice").build().expect("a valid request");
            limiter.check(&received, Deadline::NEVER).await
        });
    }
    for _ in 0..100 {
        let shed = calls.join_next().await.expect("a call").expect("no panic");
        assert!(matches!(shed, Err(CheckError::Overloaded)), "{shed:?}");
    }
    signal(redis.pid(), "CONT");
    for verdict in calls.join_all().await {
        assert!(verdict.expect("a verdict").is_allowed());
    }
    assert_eq!(counted(&redis), ADMITTED + 1);
}

#[tokio::test]
async fn cancelled_calls_leak_nothing() {
    let redis = RedisServer::start();
    let waits = ["store.redis.max-in-flight=50", "store.redis.timeout=60s", "server.workers=1"];
    let server = Rlaas::on_redis(&redis, &[COUNTED, &waits].concat());
    let client = server.client().await;
    let connections = || {
        let clients: String = redis.query(&["CLIENT", "LIST", "TYPE", "normal"]);
        // One of them is the connection of this query.
        clients.lines().count() - 1
    };
    // Those of the worker and the monitor; that of the fleet comes before or after.
    eventually("both connections are open", SOON, async || connections() >= 2).await;
    // Cancels 5,000 calls at any time: before they are sent, in flight, and after the response.
    for wave in 0..100 {
        let mut calls = JoinSet::new();
        for caller in 0..50 {
            let mut client = client.clone();
            let timeout = Duration::from_micros(caller * 40 * (wave % 5));
            calls.spawn(
                async move { tokio::time::timeout(timeout, check(&mut client, "alice")).await },
            );
        }
        calls.join_all().await;
    }
    // Cancels calls that wait for Redis, with one more than may be in flight.
    for user in ["bob", "carol"] {
        let mut probe = server.client().await;
        let answers = async || check(&mut probe, "dave").await.is_ok();
        eventually("the store answers", RECOVERY, answers).await;
        signal(redis.pid(), "STOP");
        let mut calls = JoinSet::new();
        for _ in 0..51 {
            let mut client = client.clone();
            calls.spawn(async move { check(&mut client, user).await });
        }
        let shed = calls.join_next().await.expect("a call").expect("no panic");
        assert_eq!(shed.expect_err("shed").code(), Code::ResourceExhausted);
        if user == "bob" {
            calls.shutdown().await;
        }
        signal(redis.pid(), "CONT");
        for answer in calls.join_all().await {
            answer.expect("an answer: the calls fit");
        }
    }
    // The third is that of the fleet.
    assert!(connections() <= 3, "{} connections", connections());
    assert_eq!(breaker(&server).await, 0);
    assert_sound(&server);
}
