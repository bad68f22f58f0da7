//! The journal and the snapshots of the memory store: changes and counters over restarts of the
//! program.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rlaas::algorithm::Algorithm;
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::selector::Target;
use rlaas_proto::ratelimit::v1::grant::Kind;
use rlaas_proto::ratelimit::v1::{CheckRequest, Grant};
use rlaas_testkit::process::{Rlaas, check, request, rlaas};
use rlaas_testkit::{TempDir, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Status;

use super::{AdminClient, admin, inspect, of_user, refund, reset, selector};

pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// Settings of a journal and snapshots in this folder.
pub(super) fn settings(folder: &Path) -> [String; 3] {
    [
        format!("store.memory.journal.path={}", folder.display()),
        "store.memory.snapshot=1s".to_owned(),
        "rate-limiter={max-requests: 5, window-size: 86400, overridable: true}".to_owned(),
    ]
}

pub(super) fn start(command: Command, folder: &Path) -> Rlaas {
    let settings = settings(folder);
    Rlaas::start_with(command, &settings.each_ref().map(String::as_str))
}

/// Sends JSON, and returns the whole response.
async fn post(address: &str, path: &str, body: &str) -> String {
    let mut connection = TcpStream::connect(address).await.expect("a connection");
    let len = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {len}\r\nConnection: close\r\n\r\n{body}"
    );
    connection.write_all(request.as_bytes()).await.expect("a request");
    let mut response = String::new();
    connection.read_to_string(&mut response).await.expect("a response");
    response
}

pub(super) async fn ban(client: &mut AdminClient, user: &str) -> Result<proto::Change, Status> {
    set_override(client, of_user(user), Kind::Banned(true)).await
}

async fn set_override(
    client: &mut AdminClient,
    selector: Option<proto::Selector>,
    kind: Kind,
) -> Result<proto::Change, Status> {
    let response = client.set_override(proto::SetOverrideRequest {
        selector,
        grant: Some(Grant { kind: Some(kind), burst: 0 }),
        ttl: Some(prost_types::Duration { seconds: 3600, nanos: 0 }),
        reason: "ticket 7".to_owned(),
        ..proto::SetOverrideRequest::default()
    });
    Ok(response.await?.into_inner().change.expect("a change"))
}

/// Returns all overrides, ordered by their keys.
pub(super) async fn bans(client: &mut AdminClient) -> Vec<proto::KeyOverride> {
    let request = proto::ListOverridesRequest { page_size: 1_000, ..Default::default() };
    let page = client.list_overrides(request).await;
    let mut overrides = page.expect("a page").into_inner().overrides;
    overrides.sort_by_cached_key(|one| format!("{:?} {:?}", one.key, one.grant));
    overrides
}

#[tokio::test]
async fn a_restart_keeps_counters_bans_and_request_ids() {
    let dir = TempDir::new();
    let folder = dir.path("journal");
    let mut server = start(rlaas(&["serve"]), &folder);
    let (mut client, mut admin_client) = (server.client().await, admin(&server).await);
    for _ in 0..4 {
        assert!(check(&mut client, "alice").await.expect("a decision").allowed);
    }
    ban(&mut admin_client, "bob").await.expect("a ban");
    let refunded = refund(&mut admin_client, of_user("alice"), 1, "once").await.expect("a refund");
    assert_eq!((refunded.after[0].used, refunded.replayed), (3, false));
    let listed = bans(&mut admin_client).await;
    assert_eq!(listed.len(), 1);
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());

    let server = start(rlaas(&["serve"]), &folder);
    let (mut client, mut admin_client) = (server.client().await, admin(&server).await);
    assert_eq!(bans(&mut admin_client).await, listed);
    assert!(!check(&mut client, "bob").await.expect("a decision").allowed);
    let replayed = refund(&mut admin_client, of_user("alice"), 1, "once").await.expect("a refund");
    assert!(replayed.replayed, "{replayed:?}");
    let states = inspect(&mut admin_client, of_user("alice")).await.expect("a state");
    assert_eq!((states[0].used, states[0].remaining), (3, 2));
}

/// Returns the states of all keys, by algorithm and user.
async fn inspect_all(client: &mut AdminClient) -> Vec<proto::KeyState> {
    let mut all = Vec::new();
    for algorithm in Algorithm::RATES {
        for user in USERS {
            let request = request_of(user, *algorithm);
            let states = inspect(client, selector(Target::Request(request))).await;
            all.extend(states.expect("a state"));
        }
    }
    all
}

/// Users of the rule of each algorithm.
const USERS: [&str; 6] = ["few", "full", "more", "banned", "both", "lifted"];

fn request_of(user: &str, algorithm: Algorithm) -> CheckRequest {
    CheckRequest { resource: format!("/{}", algorithm.name()), ..request(user) }
}

/// Waits for a snapshot that began in a later second than this one.
#[expect(clippy::disallowed_methods, reason = "the metric is of wall time")]
pub(crate) async fn wait_for_snapshot(server: &Rlaas) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let is_later = async || {
        let began = server.metric("rlaas_snapshot_timestamp_seconds").await;
        began.is_some_and(|began| Duration::from_secs_f64(began).as_secs() > now)
    };
    eventually("a snapshot is written", TIMEOUT, is_later).await;
}

#[expect(clippy::disallowed_methods, reason = "waits are compared with wall time")]
#[tokio::test]
async fn a_killed_process_shows_the_same_of_every_key_after_the_start() {
    let dir = TempDir::new();
    let rules = Algorithm::RATES.iter().map(|algorithm| {
        let name = algorithm.name();
        // Units do not come back while the test runs.
        format!(
            "{{name: {name}, endpoint: /{name}, algorithm: {name}, limit: 6, window: 366d, \
             overridable: true}}"
        )
    });
    let rules = format!("rules=[{}]", rules.collect::<Vec<_>>().join(", "));
    let folder = settings(&dir.path("journal"));
    let settings: Vec<_> = folder.iter().map(String::as_str).chain([&*rules]).collect();
    let mut server = Rlaas::start(&settings);
    let (mut client, mut admin_client) = (server.client().await, admin(&server).await);
    for algorithm in Algorithm::RATES {
        for (user, kind) in [
            ("more", Kind::Limit(100)),
            ("banned", Kind::Banned(true)),
            ("both", Kind::Unlimited(true)),
            ("both", Kind::Banned(true)),
            ("lifted", Kind::Banned(true)),
        ] {
            let selector = selector(Target::Request(request_of(user, *algorithm)));
            set_override(&mut admin_client, selector, kind).await.expect("an override");
        }
        admin_client
            .clear_override(proto::ClearOverrideRequest {
                selector: selector(Target::Request(request_of("lifted", *algorithm))),
                reason: "ticket 7".to_owned(),
                ..proto::ClearOverrideRequest::default()
            })
            .await
            .expect("cleared");
        for (user, takes) in USERS.into_iter().zip([2, 8, 20, 1, 1, 3]) {
            for _ in 0..takes {
                client.check(request_of(user, *algorithm)).await.expect("a decision");
            }
        }
    }
    let reset = selector(Target::Request(request_of("lifted", Algorithm::RATES[0])));
    super::reset(&mut admin_client, reset, "").await.expect("a reset");
    wait_for_snapshot(&server).await;
    let audit = async |client: &mut AdminClient| {
        let request = proto::ListAuditRequest { page_size: 1_000, ..Default::default() };
        client.list_audit(request).await.expect("a page").into_inner()
    };
    let (asked_at, before) = (SystemTime::now(), inspect_all(&mut admin_client).await);
    let (banned, recorded) = (bans(&mut admin_client).await, audit(&mut admin_client).await);
    assert_eq!((before.len(), banned.len()), (36, 24));
    assert_eq!(recorded.entries.len(), 37);
    let used: Vec<_> = before.iter().map(|state| state.used).collect();
    // What is used ends at the limit. The first `lifted` was reset.
    assert_eq!(used[..12], [2, 6, 20, 0, 0, 0, 2, 6, 20, 0, 0, 3]);
    server.signal("KILL");
    server.wait();

    let server = Rlaas::start(&settings);
    let mut admin_client = admin(&server).await;
    let after = inspect_all(&mut admin_client).await;
    let elapsed = asked_at.elapsed().expect("a clock that goes on");
    assert_eq!(before.len(), after.len());
    for (before, after) in before.into_iter().zip(after) {
        let (before, waits) = without_waits(before);
        let (after, waits_after) = without_waits(after);
        assert_eq!(after, before);
        for (wait, wait_after) in waits.into_iter().zip(waits_after) {
            let has_passed = wait.checked_sub(wait_after);
            assert!(has_passed.is_some_and(|passed| passed <= elapsed), "{wait:?} {wait_after:?}");
        }
    }
    assert_eq!(bans(&mut admin_client).await, banned);
    assert_eq!(audit(&mut admin_client).await, recorded);
}

/// Takes what decreases with time out of a state.
fn without_waits(mut state: proto::KeyState) -> (proto::KeyState, [Duration; 2]) {
    let waits = [state.retry_after.take(), state.reset_after.take()].map(|wait| {
        let wait = wait.unwrap_or_default();
        Duration::try_from(wait).expect("not negative")
    });
    (state, waits)
}

#[tokio::test]
async fn without_a_journal_reply_and_log_say_that_a_restart_loses_changes() {
    let loses = "a restart loses this change";
    let server = Rlaas::start(&[]);
    let request = proto::ResetRequest {
        selector: of_user("alice"),
        reason: "a test".to_owned(),
        request_id: String::new(),
    };
    let response = admin(&server).await.reset(request.clone()).await.expect("a reset");
    let warning = response.metadata().get("rlaas-warning").expect("a warning");
    assert!(warning.to_str().expect("text").contains(loses), "{warning:?}");
    let body = r#"{"selector": {"request": {"userId": "alice"}}, "reason": "a test"}"#;
    let head = post(server.http(), "/v1/admin/keys:reset", body).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.to_lowercase().contains("rlaas-warning: a restart loses"), "{head}");
    // The log is written by a thread of its own.
    eventually("both changes are in the log", Duration::from_secs(20), async || {
        server.log().matches(loses).count() == 2
    })
    .await;

    let dir = TempDir::new();
    let server = start(rlaas(&["serve"]), &dir.path("journal"));
    let mut client = admin(&server).await;
    let response = client.reset(request).await.expect("a reset");
    assert!(response.metadata().get("rlaas-warning").is_none());
    reset(&mut client, of_user("alice"), "").await.expect("a reset");
    assert!(!server.log().contains(loses), "{}", server.log());
}
