//! Reservations of one instance are settled by the other: once, and by the clock of Redis.

use std::sync::OnceLock;

use rlaas_proto::ratelimit::v1::reservation_service_client::ReservationServiceClient;
use rlaas_proto::ratelimit::v1::{CommitRequest, CommitResponse, ReserveRequest};
use rlaas_testkit::TempDir;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::*;

const RULES: &str = "rules:\n  - {name: money, algorithm: fixed-window, limit: 10000000000, window: 366d, \
                     reservable: true, hold: 1m}\n";

type Reservations = ReservationServiceClient<Channel>;

fn wanted(units: u64) -> CheckRequest {
    CheckRequest { cost: Some(units), ..request("alice") }
}

/// Returns the id; it is empty if the request is denied.
async fn reserve(by: &mut Reservations, units: u64) -> String {
    let request = ReserveRequest { request: Some(wanted(units)), ttl: None };
    by.reserve(request).await.expect("an answer").into_inner().reservation_id
}

async fn commit(by: &mut Reservations, id: &str, units: u64) -> Result<CommitResponse, Status> {
    let (reservation_id, request) = (id.to_owned(), Some(wanted(units)));
    let commit = CommitRequest { reservation_id, request, ..CommitRequest::default() };
    by.commit(commit).await.map(tonic::Response::into_inner)
}

/// Commits by both, and again by both: charged once.
async fn charge(clients: &mut [Reservations; 2], first: usize, id: &str, units: u64) {
    for turn in 0..4 {
        let by = &mut clients[(first + turn) % 2];
        let settled = commit(by, id, units).await.expect("a settlement");
        assert_eq!(settled.settlements[0].charged, units, "turn {turn} from {first}");
        assert_eq!(settled.replayed, turn > 0, "turn {turn} from {first}");
    }
}

#[tokio::test]
async fn two_versions_settle_each_others_reservations_once() {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let what = "two_versions_settle_each_others_reservations_once";
    let Some(older) = program_of(WITH_RESERVATIONS, &BUILT, what) else { return };
    let redis = RedisServer::start();
    let at = |seconds| redis.set_clock(T0 + Micros::from_secs(seconds));
    at(0);
    let (dir, url) = (TempDir::new(), format!("store.redis.url={}", redis.url()));
    let rules = dir.write("rules.yaml", RULES).display().to_string();
    let settings =
        ["store.backend=redis", &*url, "store.redis.timeout=10s", "deny-cache.enabled=false"];
    let servers = [serve(&older), rlaas(&["serve"])].map(|mut command| {
        command.args(["--config", &rules]);
        Rlaas::start_with(command, &settings)
    });
    let mut clients = [
        Reservations::new(servers[0].channel().await),
        Reservations::new(servers[1].channel().await),
    ];
    let mut looks = [servers[0].client().await, servers[1].client().await];
    let mut left = async || {
        let mut seen = Vec::new();
        for client in &mut looks {
            let looked = client.check(wanted(0)).await.expect("a look").into_inner();
            seen.push(looked.remaining);
        }
        assert_eq!(seen[0], seen[1]);
        seen[0]
    };
    let mut expected = 10_000_000_000;
    // What one holds the other settles, in time and late. The older one asks its own clock, which follows
    // that of Redis by its looks.
    for (seconds, reserved_by, settled_by) in
        [(0, 0, 1), (100, 1, 0), (200, 0, 1), (300, 1, 0), (400, 1, 1), (500, 0, 0)]
    {
        at(seconds);
        let id = reserve(&mut clients[reserved_by], 100).await;
        assert_eq!(left().await, expected - 100, "{seconds}");
        if seconds >= 200 {
            at(seconds + 61);
            assert_eq!(left().await, expected, "{seconds}");
        }
        charge(&mut clients, settled_by, &id, 100).await;
        expected -= 100;
        assert_eq!(left().await, expected, "{seconds}");
    }
    // Redis steps over the end of a settlement: this version knows that it does not know.
    at(1_000);
    let id = reserve(&mut clients[0], 100).await;
    charge(&mut clients, 0, &id, 100).await;
    expected -= 100;
    assert_eq!(left().await, expected);
    at(1_650);
    assert_eq!(left().await, expected);
    at(1_900);
    let late = commit(&mut clients[1], &id, 100).await.expect_err("too late");
    assert_eq!(late.code(), Code::OutOfRange, "{late}");
    assert_eq!(left().await, expected);
    // This version denies what does not fit beside the holds of both.
    for by in [0, 1, 0] {
        assert!(!reserve(&mut clients[by], 3_000_000_000).await.is_empty(), "{by}");
    }
    assert!(reserve(&mut clients[1], 3_000_000_000).await.is_empty());
    assert_eq!(left().await, expected - 9_000_000_000);
}
