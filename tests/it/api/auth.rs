//! Bearer tokens: which calls they permit, what needs none, and that no secret is shown.

use std::path::PathBuf;
use std::time::Duration;

use ring::digest::{SHA256, digest};
use rlaas::api::SERVICE;
use rlaas_proto::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
use rlaas_proto::ratelimit::v1::{CheckBatchRequest, GetConfigRequest};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;

use rlaas_testkit::process::{Rlaas, finish, request, rlaas, run};
use rlaas_testkit::{TempDir, eventually};

const TIMEOUT: Duration = Duration::from_secs(10);
const CHECK: &str = "s3cret-of-the-checker";
const ADMIN: &str = "s3cret-of-the-admin";

/// Returns an `auth` section with a token for each role.
fn tokens(check: &str, admin: &str) -> String {
    format!(
        "auth:\n  tokens:\n    - {{name: shop, sha256: {}, roles: [check]}}\n    \
         - {{name: ops, sha256: {}, roles: [admin]}}\n",
        sha256(check),
        sha256(admin)
    )
}

fn sha256(token: &str) -> String {
    let bytes = digest(&SHA256, token.as_bytes());
    bytes.as_ref().iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// Starts a server that accepts [`CHECK`] and [`ADMIN`]; also returns its configuration file.
fn start_with_auth(settings: &[&str]) -> (Rlaas, TempDir, PathBuf) {
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", &tokens(CHECK, ADMIN));
    (Rlaas::start_from(&file, settings), dir, file)
}

type AuthClient<F> = RateLimitServiceClient<InterceptedService<Channel, F>>;

/// Returns a client that sends this `authorization` header unless it is empty.
async fn client(
    server: &Rlaas,
    header: String,
) -> AuthClient<impl FnMut(Request<()>) -> Result<Request<()>, Status>> {
    let with_header = move |mut request: Request<()>| {
        if !header.is_empty() {
            request.metadata_mut().insert("authorization", header.parse().expect("a header"));
        }
        Ok(request)
    };
    RateLimitServiceClient::with_interceptor(server.channel().await, with_header)
}

/// Returns the codes of `Check`, `CheckBatch`, `CheckStream` and `GetConfig`.
async fn codes(server: &Rlaas, header: String) -> [Code; 4] {
    let code = |status: Status| {
        assert!(!status.message().contains("s3cret"), "{status:?}");
        status.code()
    };
    let mut client = client(server, header).await;
    let check = client.check(request("alice")).await.err();
    let batch = client
        .check_batch(CheckBatchRequest { requests: vec![request("alice")], ..Default::default() })
        .await;
    let stream = client.check_stream(tokio_stream::once(request("alice"))).await.err();
    let config = client.get_config(GetConfigRequest::default()).await.err();
    [check, batch.err(), stream, config].map(|refused| refused.map_or(Code::Ok, code))
}

#[tokio::test]
async fn token_roles_select_the_permitted_calls() {
    use Code::{Ok, PermissionDenied, Unauthenticated};
    let (server, _dir, _file) = start_with_auth(&[]);
    let bearer = |token: &str| format!("Bearer {token}");
    assert_eq!(codes(&server, bearer(CHECK)).await, [Ok, Ok, Ok, PermissionDenied]);
    let forbidden = [PermissionDenied, PermissionDenied, PermissionDenied, Ok];
    assert_eq!(codes(&server, bearer(ADMIN)).await, forbidden);
    for unknown in [
        String::new(),
        bearer(""),
        bearer("s3cret"),
        bearer(&sha256(CHECK)),
        format!("Basic {CHECK}"),
        CHECK.to_owned(),
    ] {
        assert_eq!(codes(&server, unknown.clone()).await, [Unauthenticated; 4], "{unknown}");
    }
    let refused = async |reason| {
        let metric = format!("rlaas_refused_total{{reason=\"{reason}\"}}");
        server.metric(&metric).await
    };
    assert_eq!(refused("forbidden").await, Some(4.0));
    assert_eq!(refused("unauthenticated").await, Some(24.0));
    // Rejected calls took nothing: only alice has a key.
    assert_eq!(server.metric("rlaas_memory_keys").await, Some(1.0));
}

#[tokio::test]
async fn health_reflection_and_probes_need_no_token() {
    let (server, _dir, _file) = start_with_auth(&[]);
    let mut health = HealthClient::new(server.channel().await);
    for service in ["", SERVICE, "store"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        assert_eq!(health.check(request).await.expect("an answer").into_inner().status, 1);
    }
    let mut reflection = ServerReflectionClient::new(server.channel().await);
    let message_request = Some(MessageRequest::ListServices(String::new()));
    let request = ServerReflectionRequest { host: String::new(), message_request };
    reflection.server_reflection_info(tokio_stream::once(request)).await.expect("a stream");
    for path in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(server.get(path).await.0, 200, "{path}");
    }
    assert_eq!(run(&["health", "--addr", server.grpc()]).0, 0);
}

#[tokio::test]
async fn token_changes_need_no_restart() {
    let (server, dir, _file) = start_with_auth(&[]);
    let code = async |token: &str| codes(&server, format!("Bearer {token}")).await[0];
    assert_eq!(code(CHECK).await, Code::Ok);
    dir.write("rlaas.yaml", &tokens("s3cret-of-tomorrow", ADMIN));
    let accepted = async || code("s3cret-of-tomorrow").await == Code::Ok;
    eventually("the new token is accepted", TIMEOUT, accepted).await;
    assert_eq!(code(CHECK).await, Code::Unauthenticated);

    dir.write("rlaas.yaml", "");
    let closed = async || code("s3cret-of-tomorrow").await == Code::Unauthenticated;
    eventually("every token is rejected", TIMEOUT, closed).await;
    assert!(server.log().contains("auth is empty now"), "{}", server.log());
}

#[tokio::test]
async fn tokens_and_hashes_are_never_shown() {
    let (server, dir, file) = start_with_auth(&["telemetry.log=trace"]);
    let bearer = |token: &str| format!("Bearer {token}");
    for token in [CHECK, ADMIN, "s3cret-that-is-wrong"] {
        codes(&server, bearer(token)).await;
    }
    let config = client(&server, bearer(ADMIN)).await.get_config(GetConfigRequest::default()).await;
    let config = format!("{:?}", config.expect("an answer"));
    let effective = finish(rlaas(&["config", "--config"]).arg(&file).output().expect("a program"));
    assert!(effective.1.contains("sha256: '***'"), "{effective:?}");
    let metrics = server.get("/metrics").await.1;
    let bad = "auth: {tokens: [{name: a, sha256: s3cret, roles: s3cret, s3cret: s3cret}]}";
    let bad = dir.write("bad.yaml", bad).display().to_string();
    let problems = run(&["check-config", &bad]).2.replace("tokens[0].s3cret: unknown", "");
    let log = server.log();
    assert!(log.contains("TRACE"), "{log}");
    for shown in [log, config, format!("{effective:?}"), metrics, problems] {
        for secret in ["s3cret", &sha256(CHECK), &sha256(ADMIN)] {
            assert!(!shown.contains(secret), "{secret}: {shown}");
        }
    }
}

#[tokio::test]
async fn enabling_auth_requires_a_restart_and_is_logged() {
    let dir = TempDir::new();
    let server = Rlaas::start_from(&dir.write("rlaas.yaml", ""), &[]);
    dir.write("rlaas.yaml", &tokens(CHECK, ADMIN));
    let logged = async || server.log().contains("key=\"auth\"");
    eventually("the required restart is logged", TIMEOUT, logged).await;
    assert_eq!(codes(&server, String::new()).await, [Code::Ok; 4]);
}
