//! Bearer tokens of an OpenID Connect issuer: which calls they permit, which tokens are refused, and
//! what happens while the issuer is away or hostile.

mod hostile;
pub(crate) mod issuer;
mod keys;
mod refused;
mod roles;
pub(crate) mod signing;
mod streams;

use std::time::Duration;

use rlaas_proto::ratelimit::admin::v1::admin_service_client::AdminServiceClient;
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, request};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status};

use self::signing::{AUDIENCE, SigningKey};

const TIMEOUT: Duration = Duration::from_secs(20);
/// The token of a caller that is listed beside the issuer, and its hash.
const LISTED: &str = "abc";
const LISTED_HASH: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

/// Returns an `auth` section with an issuer and more of its settings, and with [`LISTED`].
fn section(issuer: &str, more: &str) -> String {
    format!(
        "auth:\n  oidc: {{issuer: '{issuer}', audience: {AUDIENCE}{more}}}\n  tokens:\n    \
         - {{name: listed, sha256: {LISTED_HASH}, roles: [check]}}\n"
    )
}

/// Starts a server that accepts the tokens of an issuer.
fn serve(issuer: &str, more: &str) -> Rlaas {
    let dir = TempDir::new();
    let settings = ["telemetry.log=trace", "rate-limiter.max-requests=100000"];
    Rlaas::start_from(&dir.write("rlaas.yaml", &section(issuer, more)), &settings)
}

/// Adds a bearer token to a request.
fn with_token<T>(message: T, token: &str) -> Request<T> {
    let mut request = Request::new(message);
    let header: MetadataValue<_> = format!("Bearer {token}").parse().expect("a header");
    request.metadata_mut().insert("authorization", header);
    request
}

/// Makes a Check with a token.
async fn check(server: &Rlaas, token: &str) -> Result<(), Status> {
    let mut client = server.client().await;
    client.check(with_token(request("alice"), token)).await.map(|_| ())
}

/// Returns the code of a Check with a token.
async fn code(server: &Rlaas, token: &str) -> Code {
    check(server, token).await.err().map_or(Code::Ok, |status| status.code())
}

/// Sends an HTTP request with a token, and returns the status and the whole response.
async fn http(
    server: &Rlaas,
    method: &str,
    target: &str,
    token: &str,
    body: &str,
) -> (u16, String) {
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {}\r\n\
         Content-Type: application/json\r\nAuthorization: Bearer {token}\r\n\r\n{body}",
        body.len()
    );
    let mut connection = TcpStream::connect(server.http()).await.expect("a running server");
    connection.write_all(head.as_bytes()).await.expect("a server that reads the request");
    let mut response = String::new();
    connection.read_to_string(&mut response).await.expect("a response");
    let status = response.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("{response:?}")), response)
}

async fn admin(server: &Rlaas) -> AdminServiceClient<tonic::transport::Channel> {
    AdminServiceClient::new(server.channel().await)
}

/// Returns the number of calls that were refused for a reason.
async fn refused(server: &Rlaas, reason: &str) -> u64 {
    let label = format!("reason=\"{reason}\"");
    server.metric_sum("rlaas_refused_total", &[&label]).await
}

/// Returns private keys for an issuer: one for each algorithm. The last is `known`.
fn keys(known: &SigningKey) -> Value {
    json!([{ "kid": "rsa", "alg": "RS256" }, { "kid": "ec", "alg": "ES256" }, known.private()])
}
