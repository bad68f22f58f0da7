//! Redis connections of a limiter: clones share one, and each worker has its own.

use std::time::Duration;

use rlaas::clock::Deadline;
use rlaas::rules::{Request, Rule};
use rlaas::store::{RedisSettings, Servers};
use rlaas_limiter::Limiter;
use rlaas_testkit::eventually;
use rlaas_testkit::redis::RedisServer;
use tokio::task::JoinSet;

const SOON: Duration = Duration::from_secs(20);

/// Returns a limiter of 4 units whose background task is not running yet.
fn limiter(redis: &RedisServer) -> Limiter {
    let url = redis.url().parse().map(Box::new).expect("a valid url");
    let settings = RedisSettings {
        timeout: Duration::from_secs(5),
        ..RedisSettings::new(Servers::Standalone(url))
    };
    let rule = Rule::gcra("login").limit(4).per(Duration::from_hours(1));
    Limiter::builder().rule(rule).redis(settings).build().expect("a limiter")
}

async fn allows(limiter: &Limiter) -> bool {
    let request = Request::user("alice").build().expect("a valid request");
    limiter.check(&request, Deadline::NEVER).await.expect("a verdict").is_allowed()
}

fn connections(redis: &RedisServer) -> usize {
    // One of them is the connection of this query.
    redis.query::<String>(&["CLIENT", "LIST", "TYPE", "normal"]).lines().count() - 1
}

#[tokio::test]
async fn workers_have_their_own_redis_connections() {
    let redis = RedisServer::start();
    let limiter = limiter(&redis);
    let mut background = JoinSet::new();
    let (worker, background_task) = limiter.for_worker();
    background.spawn(background_task);
    for _ in 0..2 {
        let (_, background_task) = limiter.for_worker();
        background.spawn(background_task);
    }
    let run = limiter.clone();
    background.spawn(async move { run.run().await });
    eventually("the connections of the limiter and its monitor", SOON, async || {
        connections(&redis) == 4
    })
    .await;
    assert!(allows(&worker).await && allows(&worker.clone()).await);
    assert_eq!(connections(&redis), 4, "clones share the connection");
    assert!(allows(&limiter).await, "the limiter itself connects on its first check");
    assert_eq!(connections(&redis), 5);
    // Without its background future a worker connects on the first check.
    let (another_worker, _) = limiter.for_worker();
    assert!(allows(&another_worker).await);
    assert_eq!(connections(&redis), 6);
    assert!(!allows(&limiter).await, "handles share states");
    redis.query::<()>(&["CLIENT", "KILL", "TYPE", "normal"]);
    let decides = async || {
        let request = Request::user("alice").build().expect("a valid request");

        worker.check(&request, Deadline::NEVER).await.is_ok()
    };
    eventually("a lost connection is replaced", SOON, decides).await;
}

#[tokio::test]
async fn clones_of_a_limiter_share_one_connection() {
    let redis = RedisServer::start();
    let limiter = limiter(&redis);
    let run = limiter.clone();
    let background = tokio::spawn(async move { run.run().await });
    for expected in [true, true, true, true, false] {
        assert_eq!(allows(&limiter.clone()).await, expected);
    }
    eventually("the connections of the limiter and its monitor", SOON, async || {
        connections(&redis) == 2
    })
    .await;
    background.abort();
    eventually("the connection of the monitor is closed", SOON, async || connections(&redis) == 1)
        .await;
    drop(limiter);
    eventually("all connections are closed", SOON, async || connections(&redis) == 0).await;
}
