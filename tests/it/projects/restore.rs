//! `RestoreCatalogue` over gRPC, over HTTP and by the command: who may end a conflict, and how.

use std::time::Duration;

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::admin_service_client::AdminServiceClient;
use rlaas_proto::ratelimit::v1::GetConfigRequest;
use rlaas_proto::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
use rlaas_testkit::process::{Rlaas, run};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use serde_json::{Value, json};
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::client::{Client, RestResponse, Token, client, http};
use super::instance::Running;
use super::roles::{DESK, ROOT, TEAM, start_on};
use crate::fleet::instance::standalone;

const SOON: Duration = Duration::from_secs(10);
const REASON: &str = "Redis came back empty";

/// Two servers whose Redis has lost their projects.
struct LostCatalogue {
    _redis: RedisServer,
    one: Rlaas,
    other: Rlaas,
    /// Revision of the catalogue that they know.
    revision: u64,
    _dirs: [TempDir; 2],
}

fn start(redis: &RedisServer) -> (Rlaas, TempDir) {
    let url = format!("store.redis.url={}", redis.url());
    start_on("", &["store.backend=redis", &url, "store.redis.timeout=10s"])
}

async fn create(client: &mut Client, id: &str) -> Result<(), Status> {
    let project = Some(proto::Project { id: id.to_owned(), ..Default::default() });
    let request = proto::CreateProjectRequest { project, ..Default::default() };
    client.create_project(request).await.map(drop)
}

/// Returns the ids of the projects that a server has in force.
async fn ids(server: &Rlaas) -> Vec<String> {
    let mut root = client(server, ROOT).await;
    let listed = root.list_projects(proto::ListProjectsRequest::default()).await;
    let projects = listed.expect("projects").into_inner().projects;
    projects.into_iter().map(|project| project.id).collect()
}

async fn is_in_conflict(server: &Rlaas) -> bool {
    server.metric("rlaas_catalogue_conflict").await == Some(1.0)
}

impl LostCatalogue {
    async fn start() -> Self {
        let redis = RedisServer::start();
        // Servers wait before they make a catalogue.
        Running::on_redis(&standalone(&redis.url())).put("_", "").await.expect("a change");
        let [(one, of_one), (other, of_other)] = [start(&redis), start(&redis)];
        let mut root = client(&one, ROOT).await;
        for id in ["shop", "blog"] {
            create(&mut root, id).await.expect("a project");
        }
        create(&mut root, "gone").await.expect("a project");
        let project_id = "gone".to_owned();
        let request = proto::DeleteProjectRequest { project_id, ..Default::default() };
        root.delete_project(request).await.expect("deleted");
        let all = ["blog", "shop", ""];
        eventually("in force", SOON, async || ids(&other).await == all).await;
        redis.query::<()>(&["FLUSHALL"]);
        for server in [&one, &other] {
            eventually("a conflict", SOON, async || is_in_conflict(server).await).await;
        }
        let channel = one.channel().await;
        let mut service = RateLimitServiceClient::with_interceptor(channel, Token(ROOT));
        let config = service.get_config(GetConfigRequest::default()).await;
        let revision = config.expect("the configuration").into_inner().catalogue_revision;
        Self { _redis: redis, one, other, revision, _dirs: [of_one, of_other] }
    }

    /// Asserts that all servers have all projects, and take writes.
    async fn assert_restored(&self, revision: u64) {
        assert!(revision > self.revision);
        for server in [&self.one, &self.other] {
            eventually("no conflict", SOON, async || !is_in_conflict(server).await).await;
            assert_eq!(ids(server).await, ["blog", "shop", ""]);
            let written = create(&mut client(server, ROOT).await, "shop").await;
            assert_eq!(written.expect_err("it stands").code(), Code::AlreadyExists);
        }
        // The store has lost its list of deleted projects.
        for server in [&self.one, &self.other] {
            let refused = create(&mut client(server, ROOT).await, "gone").await;
            let refused = refused.expect_err("an id that rests");
            let info = refused.get_details_error_info().expect("a reason");
            assert_eq!((refused.code(), &*info.reason), (Code::AlreadyExists, "PROJECT_DELETED"));
        }
        create(&mut client(&self.other, ROOT).await, "new").await.expect("a project");
        let channel = self.one.channel().await;
        let mut admin = AdminServiceClient::with_interceptor(channel, Token(ROOT));
        let listed = admin.list_audit(proto::ListAuditRequest::default()).await.expect("the audit");
        let entries = listed.into_inner().entries;
        let entry = entries.iter().find(|entry| entry.action == "RestoreCatalogue");
        let entry = entry.expect("an entry");
        assert_eq!((&*entry.actor, &*entry.reason), ("token:root", REASON));
        assert_eq!(entry.revision, revision);
    }
}

fn message(
    from: proto::CatalogueSource,
    reason: &str,
    revision: u64,
) -> proto::RestoreCatalogueRequest {
    let (from, reason) = (from.into(), reason.to_owned());
    proto::RestoreCatalogueRequest { from, reason, expected_revision: revision }
}

#[tokio::test]
async fn conflict_is_ended_over_grpc() {
    use proto::CatalogueSource::{Instance, Store, Unspecified};
    let lost = LostCatalogue::start().await;
    let revision = lost.revision;
    let mut root = client(&lost.one, ROOT).await;
    let refused = create(&mut root, "new").await.expect_err("a conflict");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    let right = || message(Instance, REASON, revision);
    for (token, request, code) in [
        ("", right(), Code::Unauthenticated),
        ("unknown", right(), Code::Unauthenticated),
        // Administrators of one project.
        (TEAM, right(), Code::PermissionDenied),
        (DESK, right(), Code::PermissionDenied),
        (ROOT, message(Unspecified, REASON, revision), Code::InvalidArgument),
        (ROOT, message(Instance, "", revision), Code::InvalidArgument),
        (ROOT, message(Instance, &"x".repeat(1_025), revision), Code::InvalidArgument),
        (ROOT, message(Instance, REASON, revision + 1), Code::Aborted),
        (ROOT, message(Instance, REASON, 0), Code::Aborted),
        // It has none.
        (ROOT, message(Store, REASON, revision), Code::FailedPrecondition),
    ] {
        let context = format!("{token} {request:?}");
        let refused = client(&lost.one, token).await.restore_catalogue(request).await;
        assert_eq!(refused.expect_err(&context).code(), code, "{context}");
    }
    assert!(is_in_conflict(&lost.one).await);
    let restored = root.restore_catalogue(right()).await.expect("a restored catalogue");
    lost.assert_restored(restored.into_inner().catalogue_revision).await;
    let again = root.restore_catalogue(right()).await.expect_err("no conflict");
    assert_eq!(again.code(), Code::FailedPrecondition, "{again:?}");
}

async fn post(server: &Rlaas, token: &str, body: &Value) -> RestResponse {
    let header = format!("Authorization: Bearer {token}\r\n");
    let header = if token.is_empty() { "" } else { header.as_str() };
    http(server, "POST", "/v1/catalogue:restore", header, &body.to_string()).await
}

#[tokio::test]
async fn conflict_is_ended_over_http() {
    const INSTANCE: &str = "CATALOGUE_SOURCE_INSTANCE";
    let lost = LostCatalogue::start().await;
    let body = |from: &str, revision: u64| json!({ "from": from, "reason": REASON, "expectedRevision": revision.to_string() });
    let right = body(INSTANCE, lost.revision);
    for (token, body, status) in [
        ("", right.clone(), 401),
        ("unknown", right.clone(), 401),
        (TEAM, right.clone(), 403),
        (DESK, right.clone(), 403),
        (ROOT, body("CATALOGUE_SOURCE_UNSPECIFIED", lost.revision), 400),
        (ROOT, body("BACKUP", lost.revision), 400),
        (ROOT, json!({ "from": INSTANCE, "expectedRevision": lost.revision.to_string() }), 400),
        (ROOT, body(INSTANCE, lost.revision + 1), 409),
        (ROOT, body("CATALOGUE_SOURCE_STORE", lost.revision), 400),
    ] {
        let refused = post(&lost.one, token, &body).await;
        assert_eq!(refused.status, status, "{token} {body}: {refused:?}");
        assert_eq!(refused.body["status"], status, "a problem document: {refused:?}");
    }
    assert!(is_in_conflict(&lost.one).await);
    let restored = post(&lost.one, ROOT, &right).await;
    assert_eq!(restored.status, 200, "{restored:?}");
    let revision = restored.body["catalogueRevision"].as_str().and_then(|text| text.parse().ok());
    lost.assert_restored(revision.expect("a revision")).await;
    assert_eq!(post(&lost.one, ROOT, &right).await.status, 400);
}

/// Runs the command. Returns its exit code, output and errors.
fn restore(server: &Rlaas, token: &str, options: &[&str]) -> (i32, String, String) {
    let command = ["project", "restore", "--reason", REASON, "--addr", server.grpc()];
    let token: &[&str] = if token.is_empty() { &[] } else { &["--token", token] };
    run(&[&command[..], token, options].concat())
}

#[tokio::test]
async fn conflict_is_ended_by_the_command() {
    let lost = LostCatalogue::start().await;
    let [revision, stale] = [lost.revision, lost.revision + 1].map(|number| number.to_string());
    let of = |from: &'static str, revision| ["--from", from, "--expected-revision", revision];
    let right = of("instance", &revision);
    for (token, options, expected) in [
        ("", right, "UNAUTHENTICATED"),
        (TEAM, right, "PERMISSION_DENIED"),
        (DESK, right, "PERMISSION_DENIED"),
        (ROOT, of("instance", &stale), "ABORTED"),
        (ROOT, of("store", &revision), "FAILED_PRECONDITION"),
        (ROOT, of("backup", &revision), "instance, store"),
        (ROOT, of("instance", "newest"), "--expected-revision"),
    ] {
        let (code, out, error) = restore(&lost.one, token, &options);
        assert_eq!((code, &*out), (2, ""), "{token} {options:?}");
        assert!(error.contains(expected), "{token} {options:?}: {error}");
    }
    let (code, _, error) = restore(&lost.one, ROOT, &["--from", "instance"]);
    assert!(code == 2 && error.contains("--expected-revision"), "{error}");
    assert!(is_in_conflict(&lost.one).await);
    let (code, out, error) = restore(&lost.one, ROOT, &right);
    assert_eq!(code, 0, "{error}");
    let shown = out.strip_prefix("catalogue restored as revision ");
    let shown = shown.and_then(|rest| rest.strip_suffix('\n')?.parse().ok());
    lost.assert_restored(shown.unwrap_or_else(|| panic!("{out}"))).await;
}
