//! From one process to the next, as a rollout does it: nothing is lost and nothing fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rlaas::api::proto::GetConfigRequest;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::common::eventually;
use super::common::process::{Rlaas, check};
use super::common::redis::RedisServer;
use super::load::{COUNTED, Client};

const PATIENCE: Duration = Duration::from_secs(30);

/// Asks the first server as long as it is ready, then the second; nothing else may happen than an
/// answer.
async fn ask_on(mut clients: [Client; 2], drains: Arc<AtomicBool>, stop: Arc<AtomicBool>) -> u64 {
    let mut answers = 0;
    while !stop.load(Ordering::Relaxed) {
        let at = usize::from(drains.load(Ordering::Relaxed));
        check(&mut clients[at], "everybody").await.expect("an answer of one or the other");
        answers += 1;
    }
    answers
}

/// Raises a flag once the server says that it is not ready.
async fn follow(server: &Rlaas, drains: Arc<AtomicBool>) {
    let mut health = HealthClient::new(server.channel().await);
    let ready = HealthCheckRequest { service: rlaas::api::SERVICE.to_owned() };
    let mut watch = health.watch(ready).await.expect("a stream").into_inner();
    tokio::spawn(async move {
        while let Some(Ok(report)) = watch.next().await {
            drains.store(report.status == 2, Ordering::Relaxed);
        }
    });
}

#[tokio::test]
async fn f64_ten_thousand_requests_in_flight_survive_a_roll_to_another_process() {
    const CONNECTIONS: usize = 20;
    const CALLS: usize = 500;
    let redis = RedisServer::start();
    let roomy = ["store.redis.max-in-flight=20000", "store.redis.timeout=50s"];
    let settings = [COUNTED, &roomy, &["server.drain.delay=500ms"]].concat();
    let mut old = Rlaas::on_redis(&redis, &settings);
    let new = Rlaas::on_redis(&redis, &settings);
    let (drains, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    follow(&old, Arc::clone(&drains)).await;
    let mut asking = JoinSet::new();
    for _ in 0..10 {
        let clients = [old.client().await, new.client().await];
        asking.spawn(ask_on(clients, Arc::clone(&drains), Arc::clone(&stop)));
    }
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(old.client().await);
    }
    for client in &mut clients {
        check(client, "warm").await.expect("an answer");
    }

    // Scripts wait, everything else is answered.
    redis.query::<()>(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    let mut in_flight = JoinSet::new();
    for client in &clients {
        for _ in 0..CALLS {
            let mut client = client.clone();
            in_flight.spawn(async move { check(&mut client, "crowd").await });
        }
    }
    tokio::task::yield_now().await;
    for client in &mut clients {
        // It comes after all the others on the same connection.
        client.get_config(GetConfigRequest {}).await.expect("an answer");
    }
    old.signal("TERM");
    eventually("the roll", PATIENCE, async || drains.load(Ordering::Relaxed)).await;
    assert!(in_flight.try_join_next().is_none(), "none is answered so far");
    redis.query::<()>(&["CLIENT", "UNPAUSE"]);

    let mut answered = 0;
    while let Some(answer) = in_flight.join_next().await {
        answer.expect("no panic").expect("not lost, not failed");
        answered += 1;
    }
    assert_eq!(answered, CONNECTIONS * CALLS);
    eventually("the end", PATIENCE, async || old.has_ended()).await;
    assert_eq!(old.wait().code(), Some(0), "{}", old.log());
    assert!(old.log().contains(" drained"), "{}", old.log());
    let decisions = async || new.metric_sum("rlaas_decisions_total", &[]).await;
    let before = decisions().await;
    eventually("the new one goes on", PATIENCE, async || decisions().await > before).await;
    stop.store(true, Ordering::Relaxed);
    assert!(asking.join_all().await.into_iter().all(|answers| answers > 0));
    // Each was counted once.
    let key = redis.keys().into_iter().find(|key| key.contains("crowd")).expect("the crowd's");
    let counted: u64 = redis.query(&["GET", &key]);
    assert_eq!(counted, (CONNECTIONS * CALLS) as u64);
}
