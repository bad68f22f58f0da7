//! Malicious and broken clients: the server cuts them off and serves everyone else.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rlaas_proto::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tonic::transport::Endpoint;

use super::load::{Load, WIDE, WINDOW};
use rlaas_testkit::eventually;
use rlaas_testkit::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, RST_STREAM, RawHttp2,
    WINDOW_UPDATE, header, headers, message,
};
use rlaas_testkit::process::{Rlaas, check, rlaas, run, signal};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::tools::skipped;

const CHECK: &str = "/ratelimit.v1.RateLimitService/Check";
const SOON: Duration = Duration::from_secs(20);
/// A short time for requests to arrive.
const SHORT: &str = "server.limits.request-time=1s";

/// Another client, whose calls must succeed throughout an attack.
struct Bystander {
    stop: oneshot::Sender<()>,
    calls: JoinHandle<u64>,
    memory_kib: u64,
}

impl Bystander {
    async fn start(server: &Rlaas) -> Self {
        let mut client = server.client().await;
        check(&mut client, "bystander").await.expect("an answer before the attack");
        let (stop, mut stopped) = oneshot::channel();
        let calls = tokio::spawn(async move {
            let mut answers = 0;
            while stopped.try_recv().is_err() {
                check(&mut client, "bystander").await.expect("an answer during the attack");
                answers += 1;
                tokio::task::yield_now().await;
            }
            answers
        });
        Self { stop, calls, memory_kib: server.resident_kib() }
    }

    /// Asserts after an attack that every call and probe succeeded, and that memory grew by less
    /// than `max_kib`.
    async fn was_served(self, server: &Rlaas, max_kib: u64) {
        assert_eq!(server.get("/livez").await.0, 200);
        assert_eq!(run(&["health", "--addr", server.grpc()]).0, 0);
        let more = server.resident_kib().saturating_sub(self.memory_kib);
        assert!(more < max_kib, "{more} KiB more than before");
        self.stop.send(()).expect("a bystander that still runs");
        let answers = self.calls.await.expect("every call was answered");
        assert!(answers > 0);
        assert!(!server.log().contains("panicked"), "{}", server.log());
    }
}

async fn refused(server: &Rlaas, reason: &str) -> u64 {
    let label = format!("reason=\"{reason}\"");
    server.metric_sum("rlaas_refused_connections_total", &[&label]).await
}

#[tokio::test]
async fn silent_connections_are_closed() {
    let server = Rlaas::start(&[SHORT]);
    let bystander = Bystander::start(&server).await;
    let mut silent = Vec::new();
    for _ in 0..1_100 {
        silent.push(TcpStream::connect(server.grpc()).await.expect("a connection"));
    }
    for mut connection in silent {
        let end = timeout(SOON, connection.read(&mut [0])).await.expect("an end");
        assert!(matches!(end, Ok(0) | Err(_)), "no bytes are sent");
    }
    assert!(refused(&server, "silent").await >= 1_100);
    bystander.was_served(&server, 50_000).await;
}

#[tokio::test]
async fn incomplete_preface_is_closed() {
    let server = Rlaas::start(&[SHORT]);
    let bystander = Bystander::start(&server).await;
    let mut connection = TcpStream::connect(server.grpc()).await.expect("a connection");
    connection.write_all(b"PRI * HTT").await.expect("an incomplete preface");
    let mut said = Vec::new();
    let end = timeout(SOON, connection.read_to_end(&mut said)).await.expect("an end");
    assert!(end.is_err() || said.len() < 100, "{said:?}");
    bystander.was_served(&server, 50_000).await;
}

#[tokio::test]
async fn slow_grpc_bodies_time_out() {
    let server = Rlaas::start(&[SHORT]);
    let bystander = Bystander::start(&server).await;
    let mut slow = RawHttp2::connect(server.grpc(), &[]).await;
    for call in 0..1_000 {
        slow.call(2 * call + 1, CHECK).await.expect("a call");
        let part = Frame::new(DATA, 0, 2 * call + 1, message(&[0; 100])[..50].to_vec());
        slow.send(&part).await.expect("an incomplete message");
    }
    for _ in 0..1_000 {
        let end = slow.next_of(HEADERS).await.expect("an end of each call");
        assert!(end.flags & END_STREAM != 0, "only trailers, with an error");
    }
    bystander.was_served(&server, 50_000).await;
}

#[tokio::test]
async fn slow_http_requests_are_closed() {
    let server = Rlaas::start(&[SHORT]);
    let bystander = Bystander::start(&server).await;
    let mut slow = JoinSet::new();
    for _ in 0..100 {
        let mut connection = TcpStream::connect(server.http()).await.expect("a connection");
        slow.spawn(async move {
            // A header every 100 ms, without end.
            connection.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n").await?;
            loop {
                connection.write_all(b"x: y\r\n").await?;
                if let Ok(end) = timeout(Duration::from_millis(100), connection.read_u8()).await {
                    end?;
                }
            }
        });
    }
    let closed = timeout(SOON, slow.join_all()).await.expect("all are closed");
    assert!(closed.into_iter().all(|end: std::io::Result<()>| end.is_err()));
    bystander.was_served(&server, 50_000).await;
}

/// Whether the attacker is cut off depends on timing, so only the effect on others is asserted.
#[tokio::test]
async fn rapid_resets_do_not_affect_other_clients() {
    const BURST: u32 = 1_000;
    let server = Rlaas::start(&[]);
    let bystander = Bystander::start(&server).await;
    let mut attacker = RawHttp2::connect(server.grpc(), &[]).await;
    for burst in 0..200 {
        let mut bytes = Vec::new();
        for call in burst * BURST..(burst + 1) * BURST {
            let stream = 2 * call + 1;
            bytes.extend(Frame::new(HEADERS, END_HEADERS, stream, headers(CHECK)).to_bytes());
            bytes.extend(Frame::new(RST_STREAM, 0, stream, 8_u32.to_be_bytes()).to_bytes());
        }
        // The server closed the connection, or stopped reading from it.
        if !matches!(timeout(SOON, attacker.send_bytes(&bytes)).await, Ok(Ok(()))) {
            break;
        }
    }
    bystander.was_served(&server, 100_000).await;
}

#[tokio::test]
async fn provoked_server_resets_close_the_connection() {
    let server = Rlaas::start(&[]);
    let bystander = Bystander::start(&server).await;
    let mut attacker = RawHttp2::connect(server.grpc(), &[]).await;
    let mut sent = 0_u32;
    while sent < 100_000 {
        let stream = 2 * sent + 1;
        let call = Frame::new(HEADERS, END_HEADERS, stream, headers(CHECK)).to_bytes();
        // A window increment of 0 is a stream error.
        let wrong = Frame::new(WINDOW_UPDATE, 0, stream, [0; 4]).to_bytes();
        if attacker.send_bytes(&[call, wrong].concat()).await.is_err() {
            break;
        }
        sent += 1;
    }
    assert!(sent < 100_000, "the connection was never closed");
    bystander.was_served(&server, 100_000).await;
}

#[tokio::test]
async fn endless_continuation_frames_close_the_connection() {
    let server = Rlaas::start(&[]);
    let bystander = Bystander::start(&server).await;
    for size in [0, 1_000] {
        let mut attacker = RawHttp2::connect(server.grpc(), &[]).await;
        let begin = Frame::new(HEADERS, 0, 1, headers(CHECK));
        attacker.send(&begin).await.expect("headers without their end");
        let more: Vec<u8> = (0..size / 50).flat_map(|_| header("x", &"y".repeat(46))).collect();
        let mut sent = 0;
        let more = Frame::new(CONTINUATION, 0, 1, more);
        while sent < 1_000_000 && attacker.send(&more).await.is_ok() {
            sent += 1;
        }
        assert!(sent < 1_000_000, "the connection was never closed");
    }
    bystander.was_served(&server, 50_000).await;
}

#[tokio::test]
async fn oversized_headers_are_rejected_and_the_connection_stays_open() {
    let server = Rlaas::start(&[]);
    let bystander = Bystander::start(&server).await;
    let mut attacker = RawHttp2::connect(server.grpc(), &[]).await;
    let large: Vec<u8> = (0..300).flat_map(|_| header("x", &"y".repeat(100))).collect();
    let block = [headers(CHECK), large].concat();
    let (first, rest) = block.split_at(16_000);
    let begin = Frame::new(HEADERS, END_STREAM, 1, first).to_bytes();
    let end = Frame::new(CONTINUATION, END_HEADERS, 1, rest).to_bytes();
    attacker.send_bytes(&[begin, end].concat()).await.expect("large headers");
    let answer = attacker.next_of(HEADERS).await.expect("431");
    assert_eq!(answer.stream, 1);
    bystander.was_served(&server, 50_000).await;

    let mut http = TcpStream::connect(server.http()).await.expect("a connection");
    let large = format!("GET /livez HTTP/1.1\r\nHost: x\r\nx: {}\r\n\r\n", "y".repeat(100_000));
    let _closed_early = http.write_all(large.as_bytes()).await;
    let mut answer = Vec::new();
    let _reset = http.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn streams_above_the_limit_of_a_connection_are_refused() {
    let server = Rlaas::start(&["server.limits.streams=100", SHORT]);
    let bystander = Bystander::start(&server).await;
    let mut attacker = RawHttp2::connect(server.grpc(), &[]).await;
    for call in 0..1_000 {
        if attacker.call(2 * call + 1, CHECK).await.is_err() {
            break;
        }
    }
    let refusal = attacker.next_of(RST_STREAM).await.expect("a refusal");
    assert_eq!(refusal.payload, 7_u32.to_be_bytes(), "REFUSED_STREAM");
    bystander.was_served(&server, 50_000).await;
}

#[tokio::test]
async fn connections_above_the_limits_are_refused_and_counted() {
    let server = Rlaas::start(&["server.limits.connections=20"]);
    let mut clients = Vec::new();
    for _ in 0..20 {
        clients.push(server.client().await);
    }
    let mut refusal = TcpStream::connect(server.grpc()).await.expect("a connection");
    refusal.write_all(b"P").await.expect("a byte");
    assert!(matches!(refusal.read(&mut [0]).await, Ok(0) | Err(_)));
    assert_eq!(refused(&server, "full").await, 1);
    for client in &mut clients {
        check(client, "alice").await.expect("an answer");
    }
    assert_eq!(server.get("/readyz").await.0, 200, "probes have a limit of their own");
    drop(clients);
    let answered = async || {
        let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc()));
        let Ok(channel) = endpoint.expect("an address").connect().await else { return false };
        check(&mut RateLimitServiceClient::new(channel), "alice").await.is_ok()
    };
    eventually("new connections are accepted again", SOON, answered).await;

    let server = Rlaas::start(&["server.limits.connections-per-address=5"]);
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(server.client().await);
    }
    let mut refusal = TcpStream::connect(server.grpc()).await.expect("a connection");
    refusal.write_all(b"P").await.expect("a byte");
    assert!(matches!(refusal.read(&mut [0]).await, Ok(0) | Err(_)));
    assert_eq!(refused(&server, "address_full").await, 1);
}

#[tokio::test]
async fn idle_connections_cost_only_memory() {
    const IDLE: usize = 10_000;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if limit.current.is_some_and(|limit| limit < 2 * IDLE as u64) {
        let why = format!("ulimit -n is below {}", 2 * IDLE);
        skipped("faults::attacks::idle_connections_cost_only_memory", &why);
        return;
    }
    let settings =
        ["server.limits.connections=11000", "server.limits.connections-per-address=11000"];
    let server = Rlaas::start(&settings);
    let bystander = Bystander::start(&server).await;
    let mut idle = Vec::new();
    for _ in 0..IDLE {
        idle.push(RawHttp2::connect(server.grpc(), &[]).await);
    }
    // On a busy machine connections wait in the backlog.
    eventually("all connections are open", SOON, async || {
        server.metric_sum("rlaas_open_connections", &["api=\"grpc\""]).await > IDLE as u64
    })
    .await;
    bystander.was_served(&server, 600_000).await;
}

#[tokio::test]
async fn exhausted_file_descriptors_pause_accept_and_spare_redis() {
    let redis = RedisServer::start();
    let mut shell = Command::new("sh");
    let program = rlaas(&[]).get_program().to_owned();
    shell.args(["-c", "ulimit -n 128 && exec \"$0\" serve \"$@\""]).arg(program);
    shell.env_remove("REDIS_URL").env_remove("RUST_LOG");
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &url, WIDE, WINDOW];
    let server = Rlaas::start_with(shell, &settings);
    let mut client = server.client().await;
    check(&mut client, "alice").await.expect("an answer");
    let mut crowd = Vec::new();
    for _ in 0..300 {
        if let Ok(mut connection) = TcpStream::connect(server.grpc()).await {
            let _refused = connection.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
            crowd.push(connection);
        }
    }
    // Reconnecting to Redis needs file descriptors.
    let _killed: i64 = redis.query(&["CLIENT", "KILL", "TYPE", "normal"]);
    for user in 0..20 {
        let answered = async || check(&mut client, &user.to_string()).await.is_ok();
        eventually("Redis decides", SOON, answered).await;
    }
    assert_eq!(server.get("/readyz").await.0, 200);
    let before = server.cpu_ticks();
    let _second = timeout(Duration::from_secs(1), std::future::pending::<()>()).await;
    let spent = server.cpu_ticks() - before;
    assert!(spent < 50, "busy loop: {spent} hundredths of a second of CPU in a second");
    drop(crowd);
    let accepted = async || {
        let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc()));
        let Ok(channel) = endpoint.expect("an address").connect().await else { return false };
        check(&mut RateLimitServiceClient::new(channel), "bob").await.is_ok()
    };
    eventually("new connections are accepted again", SOON, accepted).await;
}

#[tokio::test]
async fn mass_cancellation_does_not_close_the_connection() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &[WIDE, WINDOW]);
    let load = Load::start(&server, 2).await;
    for _ in 0..5 {
        let client = server.client().await;
        check(&mut client.clone(), "warm").await.expect("an answer");
        // The client itself closes a connection after 1,024 answers that it no longer wants.
        for _ in 0..10 {
            signal(redis.pid(), "STOP");
            let mut calls = JoinSet::new();
            for _ in 0..100 {
                let mut client = client.clone();
                calls.spawn(async move {
                    timeout(Duration::from_millis(20), check(&mut client, "hasty")).await
                });
            }
            for ended in calls.join_all().await {
                assert!(!matches!(ended, Ok(Err(_))), "only cancelled or answered: {ended:?}");
            }
            signal(redis.pid(), "CONT");
            check(&mut client.clone(), "warm").await.expect("an answer in between");
        }
    }
    let opened = server.metric_sum("rlaas_connections_total", &["api=\"grpc\""]).await;
    assert_eq!(opened, 7, "{}", server.log());
    let tally: Arc<_> = load.finish().await;
    assert!(tally.calls() > 0);
}

#[tokio::test]
async fn protocol_error_is_reported_by_goaway() {
    let server = Rlaas::start(&[]);
    let mut connection = RawHttp2::connect(server.grpc(), &[]).await;
    connection.send(&Frame::new(DATA, 0, 1, [0; 10])).await.expect("data of no call");
    let goaway = connection.next_of(GOAWAY).await.expect("GOAWAY");
    assert_eq!(goaway.payload[4..8], 1_u32.to_be_bytes(), "PROTOCOL_ERROR");
}
