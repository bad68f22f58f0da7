//! A rollout from one process to the next: no request is lost or fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prost::Message;
use rlaas_proto::ratelimit::v1::CheckResponse;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::load::{COUNTED, Client};
use rlaas_testkit::eventually;
use rlaas_testkit::http2::{
    DATA, END_STREAM, Frame, GOAWAY, INITIAL_WINDOW_SIZE, RawHttp2, SETTINGS, message,
};
use rlaas_testkit::process::{Rlaas, check, request};
use rlaas_testkit::redis::RedisServer;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Sends checks to the first server while it is ready, then to the second. Every check must
/// succeed.
async fn check_until_stopped(
    mut clients: [Client; 2],
    is_draining: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
) -> u64 {
    let mut answers = 0;
    while !stop.load(Ordering::Relaxed) {
        let at = usize::from(is_draining.load(Ordering::Relaxed));
        check(&mut clients[at], "everybody").await.expect("an answer of one of the servers");
        answers += 1;
    }
    answers
}

/// Sets a flag once the server reports that it is not ready.
async fn watch_readiness(server: &Rlaas, is_draining: Arc<AtomicBool>) {
    let mut health = HealthClient::new(server.channel().await);
    let ready = HealthCheckRequest { service: rlaas::api::SERVICE.to_owned() };
    let mut watch = health.watch(ready).await.expect("a stream").into_inner();
    tokio::spawn(async move {
        while let Some(Ok(report)) = watch.next().await {
            is_draining.store(report.status == 2, Ordering::Relaxed);
        }
    });
}

/// A connection with a flow control window of 0: the server can send only headers of responses.
struct StalledConnection(RawHttp2);

impl StalledConnection {
    /// Connects and sends this number of checks for the user `crowd`.
    async fn start(server: &Rlaas, calls: u32) -> Self {
        const PATH: &str = "/ratelimit.v1.RateLimitService/Check";
        let mut connection = RawHttp2::connect(server.grpc(), &[(INITIAL_WINDOW_SIZE, 0)]).await;
        let payload = message(&request("crowd").encode_to_vec());
        for call in 0..calls {
            let stream = 2 * call + 1;
            connection.call(stream, PATH).await.expect("a server");
            let request_frame = Frame::new(DATA, END_STREAM, stream, payload.clone());
            connection.send(&request_frame).await.expect("a server");
        }
        Self(connection)
    }

    async fn wait_for_goaway(&mut self) {
        loop {
            let frame = self.0.next().await.expect("a GOAWAY frame");
            assert_ne!(frame.kind, DATA, "the window is 0");
            if frame.kind == GOAWAY {
                return;
            }
        }
    }

    /// Opens the window, reads all responses and returns their counts.
    async fn read_responses(mut self) -> Vec<i64> {
        let [high, low] = INITIAL_WINDOW_SIZE.to_be_bytes();
        let open = Frame::new(SETTINGS, 0, 0, [high, low, 0, 0, 0xff, 0xff]);
        self.0.send(&open).await.expect("a server");
        let mut counts = Vec::new();
        while let Ok(answer) = self.0.next_of(DATA).await {
            let answer = CheckResponse::decode(&answer.payload[5..]).expect("an answer");
            assert!(answer.allowed);
            counts.push(answer.current_count);
        }
        counts
    }
}

/// Returns the count of the user `crowd`.
fn counted(redis: &RedisServer) -> i64 {
    let key = redis.keys().into_iter().find(|key| key.contains("crowd"));
    key.map_or(0, |key| redis.query(&["GET", &key]))
}

#[tokio::test]
async fn rollout_answers_ten_thousand_requests_in_flight() {
    const CONNECTIONS: u32 = 20;
    const CALLS: u32 = 500;
    const TOTAL: i64 = (CONNECTIONS * CALLS) as i64;
    let redis = RedisServer::start();
    let limits = ["store.redis.max-in-flight=20000", "server.drain.delay=500ms"];
    let settings = [COUNTED, &limits].concat();
    let mut old = Rlaas::on_redis(&redis, &settings);
    let new = Rlaas::on_redis(&redis, &settings);
    let (is_draining, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    watch_readiness(&old, Arc::clone(&is_draining)).await;
    let mut callers = JoinSet::new();
    for _ in 0..10 {
        let clients = [old.client().await, new.client().await];
        callers.spawn(check_until_stopped(clients, Arc::clone(&is_draining), Arc::clone(&stop)));
    }
    let mut crowd = Vec::new();
    for _ in 0..CONNECTIONS {
        crowd.push(StalledConnection::start(&old, CALLS).await);
    }
    eventually("every check is decided", TIMEOUT, async || counted(&redis) == TOTAL).await;
    old.signal("TERM");
    eventually("the first server is not ready", TIMEOUT, async || {
        is_draining.load(Ordering::Relaxed)
    })
    .await;
    for connection in &mut crowd {
        connection.wait_for_goaway().await;
    }
    let mut counts = Vec::new();
    for connection in crowd {
        counts.extend(connection.read_responses().await);
    }
    // Each check was answered, and each was counted once.
    counts.sort_unstable();
    assert!(counts.iter().copied().eq(1..=TOTAL), "{} answers", counts.len());
    assert_eq!(counted(&redis), TOTAL);

    eventually("the first process ends", TIMEOUT, async || old.has_ended()).await;
    assert_eq!(old.wait().code(), Some(0), "{}", old.log());
    assert!(old.log().contains(" drained"), "{}", old.log());
    let decisions = async || new.metric_sum("rlaas_decisions_total", &[]).await;
    let before = decisions().await;
    eventually("the second server makes decisions", TIMEOUT, async || decisions().await > before)
        .await;
    stop.store(true, Ordering::Relaxed);
    assert!(callers.join_all().await.into_iter().all(|answers| answers > 0));
}
