//! Slots under load: many callers on several instances, some of which are lost while they hold one.
//!
//! `SOAK=1` lasts a minute.

#![expect(clippy::disallowed_methods, reason = "callers work for some time, by the clock of Redis")]

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prost_types::Timestamp;
use rlaas_proto::ratelimit::v1::reservation_service_client::ReservationServiceClient;
use rlaas_proto::ratelimit::v1::{CancelRequest, CommitRequest, ExtendRequest, ReserveRequest};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, connect, request};
use rlaas_testkit::redis::RedisServer;
use tokio::time::sleep;

const SLOTS: usize = 20;
const CALLERS: usize = 200;
const HOLD: Duration = Duration::from_secs(5);
const RULES: &str =
    "rules:\n  - {name: jobs, algorithm: concurrency, limit: 20, hold: 5s, key-by: [resource]}\n";

/// When callers were in flight, and how many were lost.
#[derive(Debug, Default)]
struct InFlight {
    spans: Vec<(Duration, Duration)>,
    lost: usize,
}

impl InFlight {
    /// Returns the most callers at once. A span that ends when another begins is over.
    fn most(&self) -> usize {
        let starts = self.spans.iter().map(|(start, _)| (*start, 1));
        let ends = self.spans.iter().map(|(_, end)| (*end, -1));
        let mut changes: Vec<(Duration, isize)> = starts.chain(ends).collect();
        changes.sort_unstable();
        let sum = |sum: &mut isize, (_, change): (Duration, isize)| {
            *sum += change;
            Some(*sum)
        };
        changes.into_iter().scan(0, sum).max().unwrap_or_default().unsigned_abs()
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970")
}

fn time(at: Option<Timestamp>) -> Duration {
    let at = at.expect("an end");
    Duration::new(at.seconds.unsigned_abs(), at.nanos.unsigned_abs())
}

fn random_millis(below: u64) -> Duration {
    Duration::from_millis(RandomState::new().hash_one(()) % below)
}

fn reserve() -> ReserveRequest {
    let request = rlaas_proto::ratelimit::v1::CheckRequest {
        resource: "/jobs".to_owned(),
        ..request("alice")
    };
    ReserveRequest { request: Some(request), ttl: None }
}

/// Works under a slot, once. Renews it at half of its time. One in eight is lost on the way: its connection
/// breaks.
async fn call(server: &Rlaas, seen: &Mutex<InFlight>, until: Duration, longest: u64) {
    let mut client = ReservationServiceClient::new(connect(server.grpc()).await);
    let held = loop {
        let held = client.reserve(reserve()).await.expect("an answer").into_inner();
        if !held.reservation_id.is_empty() {
            break held;
        }
        if now() > until {
            return;
        }
        sleep(Duration::from_millis(20) + random_millis(200)).await;
    };
    let (start, id) = (now(), held.reservation_id);
    let mut ends_at = time(held.expires_at);
    let work = random_millis(longest);
    let is_lost = random_millis(8).is_zero();
    while now() < start + work {
        let renewal = ends_at.saturating_sub(HOLD / 2).min(start + work);
        sleep(renewal.saturating_sub(now())).await;
        if now() < start + work {
            let ttl = HOLD.try_into().ok();
            let extend = ExtendRequest { reservation_id: id.clone(), ttl, ..Default::default() };
            let extended = client.extend(extend).await.expect("an extension").into_inner();
            ends_at = time(extended.expires_at);
        }
    }
    let end = if is_lost { ends_at } else { now() };
    {
        let mut seen = seen.lock().expect("not poisoned");
        seen.spans.push((start, end.min(ends_at)));
        seen.lost += usize::from(is_lost);
    }
    if is_lost {
        return;
    }
    if work.as_millis().is_multiple_of(2) {
        client.cancel(CancelRequest { reservation_id: id }).await.expect("a settlement");
    } else {
        let commit =
            CommitRequest { reservation_id: id, actual: Some(1), ..CommitRequest::default() };
        client.commit(commit).await.expect("a settlement");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_callers_are_in_flight_than_there_are_slots() {
    let (seconds, longest) =
        if std::env::var_os("SOAK").is_some() { (60, 7_000) } else { (4, 1_500) };
    let dir = TempDir::new();
    let rules = dir.write("rules.yaml", RULES);
    let redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &url, "store.redis.timeout=10s"];
    let servers: Arc<[Rlaas]> = (0..3).map(|_| Rlaas::start_from(&rules, &settings)).collect();
    let (seen, until) =
        (Arc::new(Mutex::new(InFlight::default())), now() + Duration::from_secs(seconds));
    let callers = (0..CALLERS).map(|number| {
        let (servers, seen) = (Arc::clone(&servers), Arc::clone(&seen));
        tokio::spawn(async move {
            while now() < until {
                call(&servers[number % 3], &seen, until, longest).await;
            }
        })
    });
    for caller in futures_util::future::join_all(callers).await {
        caller.expect("a caller");
    }
    let seen = Arc::into_inner(seen).expect("all callers have ended");
    let seen = seen.into_inner().expect("not poisoned");
    let (calls, lost) = (seen.spans.len(), seen.lost);
    eprintln!("{calls} calls, {lost} lost, at most {} at once", seen.most());
    assert!(lost > 0 && calls > 2 * SLOTS, "{calls} calls, {lost} lost");
    assert_eq!(seen.most(), SLOTS);
    // All slots can be used when the last one who was lost has had its time.
    let latest = seen.spans.iter().map(|(_, end)| *end).max().unwrap_or_default();
    sleep(latest.saturating_sub(now())).await;
    let mut client = ReservationServiceClient::new(connect(servers[0].grpc()).await);
    for number in 0..=SLOTS {
        let held = client.reserve(reserve()).await.expect("an answer").into_inner();
        assert_eq!(held.reservation_id.is_empty(), number == SLOTS, "{number} were held");
    }
}
