//! The journal of the memory store: changes over restarts of the program, a folder that can't be
//! used, a disk without space.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::Grant;
use rlaas_proto::ratelimit::v1::grant::Kind;
use rlaas_testkit::process::{Rlaas, check, program, rlaas, run};
use rlaas_testkit::{TempDir, eventually};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::{Code, Status};

use super::{AdminClient, admin, inspect, of_user, refund, reset};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Settings of a journal in this folder.
fn settings(folder: &Path) -> [String; 4] {
    [
        format!("store.memory.journal.path={}", folder.display()),
        "store.memory.journal.counters=true".to_owned(),
        "store.memory.journal.fsync=10ms".to_owned(),
        "rate-limiter={max-requests: 5, window-size: 86400, overridable: true}".to_owned(),
    ]
}

fn start(command: Command, folder: &Path) -> Rlaas {
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

async fn ban(client: &mut AdminClient, user: &str) -> Result<proto::Change, Status> {
    let response = client.set_override(proto::SetOverrideRequest {
        selector: of_user(user),
        grant: Some(Grant { kind: Some(Kind::Banned(true)), burst: 0 }),
        ttl: Some(prost_types::Duration { seconds: 3600, nanos: 0 }),
        reason: "ticket 7".to_owned(),
        request_id: String::new(),
    });
    Ok(response.await?.into_inner().change.expect("a change"))
}

async fn bans(client: &mut AdminClient) -> Vec<proto::KeyOverride> {
    let page = client.list_overrides(proto::ListOverridesRequest::default()).await;
    page.expect("a page").into_inner().overrides
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

#[tokio::test]
async fn a_second_process_and_a_folder_that_cannot_be_made_are_named() {
    let dir = TempDir::new();
    let folder = dir.path("journal");
    let _server = start(rlaas(&["serve"]), &folder);
    for (folder, reason) in [
        (folder.as_path(), "another process uses"),
        (Path::new("/proc/rlaas"), "can't create"),
        (Path::new("/dev/null"), "can't create"),
    ] {
        let path = format!("store.memory.journal.path={}", folder.display());
        let listen = ["--set", "server.listen=127.0.0.1:0", "--set", "server.http=127.0.0.1:0"];
        let (code, _, log) = run(&[&["serve", "--set", &path], &listen[..]].concat());
        assert_eq!(code, 1, "{log}");
        assert!(log.contains(reason), "{log}");
        assert!(log.contains("store.memory.journal.path"), "{log}");
        assert!(log.contains(&folder.display().to_string()), "{log}");
    }
}

#[tokio::test]
async fn a_full_disk_refuses_changes_and_no_decision() {
    let dir = TempDir::new();
    // The shell ignores the signal for files above their limit, so that writes fail instead.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(program()).arg("serve");
    command.env_remove("REDIS_URL").env_remove("RUST_LOG");
    let server = start(command, &dir.path("journal"));
    let (mut client, mut admin_client) = (server.client().await, admin(&server).await);
    ban(&mut admin_client, "alice").await.expect("a ban");
    let limit_files = |len| {
        let pid = Pid::from_raw(server.pid().cast_signed()).expect("a process");
        let limit = Rlimit { current: len, maximum: None };
        prlimit(Some(pid), Resource::Fsize, limit).expect("a limit");
    };
    let gauge = async || server.metric("rlaas_journal_failing").await;
    assert_eq!(gauge().await, Some(0.0));
    limit_files(Some(0));
    let status = ban(&mut admin_client, "bob").await.expect_err("a full disk");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(status.message().contains("store.memory.journal"), "{status:?}");
    assert!(!status.message().contains(&dir.path("").display().to_string()), "{status:?}");
    assert_eq!(gauge().await, Some(1.0));
    for (user, is_allowed) in [("alice", false), ("bob", true), ("carol", true)] {
        let response = check(&mut client, user).await.expect("a decision");
        assert_eq!(response.allowed, is_allowed, "{user}");
    }
    assert_eq!(bans(&mut admin_client).await.len(), 1);
    limit_files(None);
    eventually("the journal recovers", TIMEOUT, async || gauge().await == Some(0.0)).await;
    ban(&mut admin_client, "bob").await.expect("a ban");
    let log = server.log();
    assert_eq!(log.matches("changes are refused").count(), 1, "{log}");
    assert_eq!(log.matches("changes are accepted").count(), 1, "{log}");
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
    assert_eq!(server.log().matches(loses).count(), 2, "{}", server.log());

    let dir = TempDir::new();
    let server = start(rlaas(&["serve"]), &dir.path("journal"));
    let mut client = admin(&server).await;
    let response = client.reset(request).await.expect("a reset");
    assert!(response.metadata().get("rlaas-warning").is_none());
    reset(&mut client, of_user("alice"), "").await.expect("a reset");
    assert!(!server.log().contains(loses), "{}", server.log());
}
