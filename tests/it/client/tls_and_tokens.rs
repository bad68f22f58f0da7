//! Clients with TLS and tokens.

use rlaas_client::{CheckError, Client, ClientBuilder, ConnectError, OnNoAnswer};
use tonic::Code;

use super::{check, fields};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::tls::{Certificate, Certificates};

const TOKEN: &str = "s3cret";
/// `printf %s s3cret | sha256sum`
const SHA256: &str = "1ec1c26b50d5d3c58d9583181af8076655fe00756bf7285940ba3670f99fcba0";

fn file(dir: &TempDir) -> std::path::PathBuf {
    let token = format!("{{name: shop, sha256: {SHA256}, roles: [check]}}");
    dir.write("rlaas.yaml", &format!("auth: {{tokens: [{token}]}}"))
}

async fn is_allowed(client: ClientBuilder) -> bool {
    let client = client.connect().await.expect("a server");
    check(&client, fields("alice")).await.expect("an answer").is_allowed()
}

#[tokio::test]
async fn token_is_sent_with_each_call() {
    let dir = TempDir::new();
    let server = Rlaas::start_from(&file(&dir), &[]);
    let client = || Client::builder(server.grpc()).on_no_answer(OnNoAnswer::Allow);
    assert!(is_allowed(client().token(TOKEN)).await);
    // A rejection is no missing answer: the policy for those does not apply.
    for client in [client(), client().token("other")] {
        let error = check(&client.connect().await.expect("a server"), fields("alice")).await;
        let Err(CheckError::Rejected(status)) = error else { panic!("{error:?}") };
        assert_eq!(status.code(), Code::Unauthenticated);
    }
    let client = client().token("s3cret\n");
    assert!(!format!("{client:?}").contains(TOKEN));
    let error = client.connect_lazy().expect_err("no header");
    assert!(matches!(error, ConnectError::Token) && !error.to_string().contains(TOKEN));
}

#[tokio::test]
async fn client_and_server_present_certificates() {
    let (dir, certificates) = (TempDir::new(), Certificates::make());
    let path = |path: std::path::PathBuf| path.display().to_string();
    let server = Rlaas::start_from(
        &file(&dir),
        &[
            &format!("server.tls.cert={}", path(certificates.certificate(Certificate::Server))),
            &format!("server.tls.key={}", path(certificates.key(Certificate::Server))),
            &format!("server.tls.client-ca={}", path(certificates.authority())),
        ],
    );
    let read = |path| std::fs::read(path).expect("a file");
    let ca = read(certificates.authority());
    let cert = read(certificates.certificate(Certificate::Client));
    let key = read(certificates.key(Certificate::Client));
    let https = format!("https://{}", server.grpc());
    let client = |address: &str| Client::builder(address).token(TOKEN);
    for address in [&*https, server.grpc()] {
        assert!(is_allowed(client(address).ca(&ca).identity(&cert, &key)).await, "{address}");
    }

    let unknown = client(&https).identity(&cert, &key).connect().await;
    assert!(matches!(unknown, Err(ConnectError::Unreachable(_))), "{unknown:?}");
    let anonymous = client(&https).ca(&ca).connect_lazy().expect("a client");
    let error = check(&anonymous, fields("alice")).await.expect_err("no certificate");
    assert!(matches!(error, CheckError::NoAnswer(_)), "{error}");

    let http = format!("http://{}", server.grpc());
    let error = client(&http).ca(&ca).connect_lazy().expect_err("no TLS");
    assert!(matches!(error, ConnectError::TlsUnused), "{error}");
    let error = client(&https).ca(&ca).identity(&cert, "no key").connect_lazy();
    assert!(matches!(error, Err(ConnectError::Tls(_))), "{error:?}");
    for address in ["ftp://host", "http://host name", ""] {
        let error = client(address).connect_lazy().expect_err("no address");
        assert!(matches!(error, ConnectError::Address), "{address}: {error}");
    }
}
