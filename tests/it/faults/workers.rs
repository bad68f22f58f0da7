//! Handles of one limiter on Redis: clones share a connection, a worker has one of its own.

use std::time::Duration;

use rlaas::clock::Deadline;
use rlaas::limiter::Limiter;
use rlaas::rules::{Request, Rule};
use rlaas::store::{RedisSettings, Servers};
use rlaas_testkit::eventually;
use rlaas_testkit::redis::RedisServer;
use tokio::task::JoinSet;

const SOON: Duration = Duration::from_secs(20);

/// A limiter of 4 units that is not run yet.
fn limiter(redis: &RedisServer) -> Limiter {
    let url = redis.url().parse().map(Box::new).expect("a valid url");
    let settings = RedisSettings {
        timeout: Duration::from_secs(5),
        ..RedisSettings::of(Servers::Standalone(url))
    };
    let rule = Rule::gcra("login").limit(4).per(Duration::from_hours(1));
    Limiter::builder().rule(rule).redis(settings).build().expect("a limiter")
}

async fn allows(limiter: &Limiter) -> bool {
    let request = Request::user("alice").build().expect("a valid request");
    limiter.check(&request, Deadline::NEVER).await.expect("a verdict").is_allowed()
}

fn connections(redis: &RedisServer) -> usize {
    // All but the one that asks.
    redis.query::<String>(&["CLIENT", "LIST", "TYPE", "normal"]).lines().count() - 1
}

#[tokio::test]
async fn workers_have_their_own_redis_connections() {
    let redis = RedisServer::start();
    let limiter = limiter(&redis);
    let mut background = JoinSet::new();
    let (of_worker, keep) = limiter.for_worker();
    background.spawn(keep);
    for _ in 0..2 {
        let (_, keep) = limiter.for_worker();
        background.spawn(keep);
    }
    let run = limiter.clone();
    background.spawn(async move { run.run().await });
    eventually("theirs and the monitor's", SOON, async || connections(&redis) == 4).await;
    assert!(allows(&of_worker).await && allows(&of_worker.clone()).await);
    assert_eq!(connections(&redis), 4, "clones share it");
    assert!(allows(&limiter).await, "the others have one too");
    assert_eq!(connections(&redis), 5);
    // Without the future a worker connects when it asks.
    let (of_another, _) = limiter.for_worker();
    assert!(allows(&of_another).await);
    assert_eq!(connections(&redis), 6);
    assert!(!allows(&limiter).await, "states are shared");
    redis.query::<()>(&["CLIENT", "KILL", "TYPE", "normal"]);
    let decides = async || {
        let request = Request::user("alice").build().expect("a valid request");
        of_worker.check(&request, Deadline::NEVER).await.is_ok()
    };
    eventually("a lost one is replaced", SOON, decides).await;
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
    eventually("theirs and the monitor's", SOON, async || connections(&redis) == 2).await;
    background.abort();
    eventually("the monitor's is gone", SOON, async || connections(&redis) == 1).await;
    drop(limiter);
    eventually("none", SOON, async || connections(&redis) == 0).await;
}
