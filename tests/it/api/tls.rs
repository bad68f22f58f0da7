//! TLS: which clients are accepted, and certificates that change under load.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rlaas_proto::ratelimit::v1::GetConfigRequest;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::Code;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint, Error, Identity};

use rlaas_testkit::process::{Client, Rlaas, check};
use rlaas_testkit::tls::{Certificate, Certificates};
use rlaas_testkit::{TempDir, eventually};

const TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the settings of a server with this certificate.
fn server_certificate_settings(
    certificates: &Certificates,
    certificate: Certificate,
) -> Vec<String> {
    vec![
        format!("server.tls.cert={}", certificates.certificate(certificate).display()),
        format!("server.tls.key={}", certificates.key(certificate).display()),
    ]
}

pub(crate) fn mutual_tls_settings(certificates: &Certificates) -> Vec<String> {
    let mut settings = server_certificate_settings(certificates, Certificate::Server);
    settings.push(format!("server.tls.client-ca={}", certificates.authority().display()));
    settings
}

fn start(settings: &[String]) -> Rlaas {
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    Rlaas::start(&settings)
}

/// Connects over TLS with the test authority and, if given, a client certificate.
pub(crate) async fn channel(
    address: &str,
    certificates: &Certificates,
    shown: Option<Certificate>,
) -> Result<Channel, Error> {
    let authority = fs::read(certificates.authority()).expect("a certificate");
    let authority = tonic::transport::Certificate::from_pem(authority);
    let mut tls = ClientTlsConfig::new().ca_certificate(authority);
    if let Some(shown) = shown {
        let read = |path| fs::read(path).expect("a PEM file");
        let certificate = read(certificates.certificate(shown));
        tls = tls.identity(Identity::from_pem(certificate, read(certificates.key(shown))));
    }
    let endpoint = Endpoint::from_shared(format!("https://{address}")).expect("an address");
    endpoint.timeout(TIMEOUT).tls_config(tls)?.connect().await
}

/// Returns the result of a check with this client certificate.
async fn outcome(
    server: &Rlaas,
    certificates: &Certificates,
    shown: Option<Certificate>,
) -> Result<bool, Code> {
    let channel = channel(server.grpc(), certificates, shown).await;
    let mut client = Client::new(channel.map_err(|_no_handshake| Code::Unavailable)?);
    check(&mut client, "alice").await.map(|answer| answer.allowed).map_err(|status| status.code())
}

/// Performs a TLS handshake with this client certificate and these ALPN protocols.
pub(crate) async fn handshake(
    address: &str,
    certificates: &Certificates,
    shown: Option<Certificate>,
    offer: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_file_iter(certificates.authority()).expect("PEM") {
        roots.add(authority.expect("PEM")).expect("an authority");
    }
    let config = ClientConfig::builder().with_root_certificates(roots);
    let mut config = match shown {
        Some(shown) => {
            let key = PrivateKeyDer::from_pem_file(certificates.key(shown)).expect("a key");
            config.with_client_auth_cert(vec![read(certificates, shown)], key).expect("a pair")
        }
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = offer.iter().map(|protocol| protocol.as_bytes().to_owned()).collect();
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = TcpStream::connect(address).await?;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Returns the certificate that the server presents to a new connection.
async fn presented_by(server: &Rlaas, certificates: &Certificates) -> CertificateDer<'static> {
    let stream = handshake(server.grpc(), certificates, None, &["h2"]).await.expect("a handshake");
    let chain = stream.get_ref().1.peer_certificates().expect("a certificate");
    chain[0].clone().into_owned()
}

fn read(certificates: &Certificates, certificate: Certificate) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(certificates.certificate(certificate)).expect("a certificate")
}

/// Sends a GET by HTTP/1.1 over TLS and returns status and body.
async fn get(server: &Rlaas, certificates: &Certificates, path: &str) -> (u16, String) {
    get_as(server, certificates, None, path).await
}

/// Like [`get`], with this client certificate.
async fn get_as(
    server: &Rlaas,
    certificates: &Certificates,
    shown: Option<Certificate>,
    path: &str,
) -> (u16, String) {
    let stream = handshake(server.http(), certificates, shown, &["http/1.1"]).await;
    let mut stream = stream.expect("a handshake");
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("a request");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("a response");
    let status = response.split(' ').nth(1).and_then(|code| code.parse().ok());
    let body = response.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status.expect("a status"), body.to_owned())
}

async fn metric(server: &Rlaas, certificates: &Certificates, name: &str) -> Option<f64> {
    let (_, text) = get(server, certificates, "/metrics").await;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.parse().ok()
}

#[tokio::test]
async fn tls_covers_grpc_and_http_but_not_unix_sockets() {
    let certificates = Certificates::make();
    let dir = TempDir::new();
    let socket = format!("unix:{}", dir.path("rlaas.sock").display());
    let mut settings = server_certificate_settings(&certificates, Certificate::Server);
    settings.push(format!("server.listen=127.0.0.1:0,{socket}"));
    let server = start(&settings);
    let (tcp, _) = server.grpc().split_once(',').expect("two addresses");

    let channel = channel(tcp, &certificates, None).await.expect("a connection");
    assert!(check(&mut Client::new(channel), "alice").await.expect("an answer").allowed);
    let plain = Endpoint::from_shared(format!("http://{tcp}")).expect("an address").connect().await;
    if let Ok(plain) = plain {
        check(&mut Client::new(plain), "alice").await.expect_err("plaintext is rejected");
    }
    let by_file = rlaas_testkit::process::connect(&socket).await;
    assert!(check(&mut Client::new(by_file), "alice").await.expect("an answer").allowed);

    assert_eq!(get(&server, &certificates, "/livez").await, (200, "ok\n".to_owned()));
    let expiry = "rlaas_tls_certificate_expiry_timestamp_seconds{certificate=\"server\"}";
    // The end of validity in crates/testkit/src/tls.rs: 20491231000000Z.
    assert_eq!(metric(&server, &certificates, expiry).await, Some(2_524_521_600.0));
    let failed = metric(&server, &certificates, "rlaas_tls_handshake_errors_total").await;
    assert!(failed.is_some_and(|failed| failed >= 1.0), "{failed:?}");
}

#[tokio::test]
async fn alpn_selects_the_http_version() {
    let certificates = Certificates::make();
    let server = start(&server_certificate_settings(&certificates, Certificate::Server));
    let agreed = async |address: &str, offer: &[&str]| {
        let stream = handshake(address, &certificates, None, offer).await.ok()?;
        let agreed = stream.get_ref().1.alpn_protocol().unwrap_or(b"-");
        Some(String::from_utf8(agreed.to_owned()).expect("a name"))
    };
    for (address, offer, expected) in [
        (server.grpc(), &["h2"][..], Some("h2")),
        (server.grpc(), &["h2", "http/1.1"], Some("h2")),
        (server.grpc(), &["http/1.1"], None),
        (server.grpc(), &[], Some("-")),
        (server.http(), &["h2", "http/1.1"], Some("h2")),
        (server.http(), &["http/1.1"], Some("http/1.1")),
        (server.http(), &[], Some("-")),
    ] {
        assert_eq!(agreed(address, offer).await.as_deref(), expected, "{address} {offer:?}");
    }
    // The HTTP listener serves HTTP/2 as well.
    let mut channel = channel(server.http(), &certificates, None).await.expect("a connection");
    let request = tonic::codegen::http::Request::get(format!("https://{}/livez", server.http()));
    let request = request.body(tonic::body::Body::empty()).expect("a request");
    std::future::poll_fn(|cx| tonic::codegen::Service::poll_ready(&mut channel, cx))
        .await
        .expect("a connection");
    let response = tonic::codegen::Service::call(&mut channel, request).await;
    assert_eq!(response.expect("an answer").status(), 200);
}

#[tokio::test]
async fn clients_without_a_trusted_certificate_are_rejected() {
    let certificates = Certificates::make();
    let server = start(&mutual_tls_settings(&certificates));
    let outcome = async |shown| outcome(&server, &certificates, shown).await;
    assert_eq!(outcome(Some(Certificate::Client)).await, Ok(true));
    for shown in [None, Some(Certificate::ForeignClient), Some(Certificate::Server)] {
        outcome(shown).await.expect_err("no connection");
    }
    // Without a certificate the HTTP listener serves probes, but no decisions.
    for path in ["/livez", "/readyz", "/metrics", "/openapi.json"] {
        assert_eq!(get(&server, &certificates, path).await.0, 200, "{path}");
    }
    let path = "/check?userId=alice";
    assert_eq!(get(&server, &certificates, path).await.0, 401);
    let certified = get_as(&server, &certificates, Some(Certificate::Client), path).await;
    assert_eq!(certified.0, 200, "{certified:?}");
    let foreign = Some(Certificate::ForeignClient);
    let mut stream = handshake(server.http(), &certificates, foreign, &["http/1.1"])
        .await
        .expect("a handshake on the client's side");
    assert!(stream.read(&mut [0]).await.is_err(), "a foreign certificate fails the handshake");
    let failed = metric(&server, &certificates, "rlaas_tls_handshake_errors_total").await;
    // Some clients retry the handshake.
    assert!(failed.is_some_and(|failed| failed >= 3.0), "{failed:?}");
}

#[tokio::test]
async fn certificate_names_map_to_roles() {
    use Code::{Ok, PermissionDenied, Unauthenticated};
    let certificates = Certificates::make();
    let dir = TempDir::new();
    let mut settings = mutual_tls_settings(&certificates);
    settings.push("telemetry.log=trace".to_owned());
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    for (name, roles, expected) in [
        ("shop.example", "[check]", [Ok, PermissionDenied]),
        ("spiffe://example/shop", "[check, admin]", [Ok, Ok]),
        ("spiffe://example/shop", "[admin]", [PermissionDenied, Ok]),
        // The common name does not count as a name.
        ("client", "[check]", [Unauthenticated, Unauthenticated]),
        ("spiffe://example", "[check]", [Unauthenticated, Unauthenticated]),
    ] {
        let text = format!("auth: {{clients: [{{name: '{name}', roles: {roles}}}]}}");
        let server = Rlaas::start_from(&dir.write("rlaas.yaml", &text), &settings);
        let channel = channel(server.grpc(), &certificates, Some(Certificate::Client)).await;
        let mut client = Client::new(channel.expect("a connection"));
        let check = check(&mut client, "alice").await.err();
        let config = client.get_config(GetConfigRequest::default()).await.err();
        let codes = [check, config].map(|refused| refused.map_or(Ok, |status| status.code()));
        assert_eq!(codes, expected, "{name} {roles}");
        let key = fs::read_to_string(certificates.key(Certificate::Server)).expect("a key");
        let secret = key.lines().nth(1).expect("a line of the key");
        assert!(server.log().contains("TRACE") && !server.log().contains(secret));
    }
}

#[tokio::test]
async fn certificate_reload_under_load_fails_no_call() {
    let certificates = Certificates::make();
    let dir = TempDir::new();
    // As Kubernetes mounts a Secret: `data` is a symlink to the current folder.
    for certificate in [Certificate::Server, Certificate::Renewed] {
        let folder = dir.path(&format!("{certificate:?}"));
        fs::create_dir(&folder).expect("a directory");
        fs::copy(certificates.certificate(certificate), folder.join("tls.crt")).expect("a copy");
        fs::copy(certificates.key(certificate), folder.join("tls.key")).expect("a copy");
    }
    let swap = |to: Certificate| {
        symlink(format!("{to:?}"), dir.path("new")).expect("a symlink");
        fs::rename(dir.path("new"), dir.path("data")).expect("a swap");
    };
    swap(Certificate::Server);
    let path = |name: &str| dir.path("data").join(name).display().to_string();
    let server = start(&[
        format!("server.tls.cert={}", path("tls.crt")),
        format!("server.tls.key={}", path("tls.key")),
        "rate-limiter.max-requests=100000".to_owned(),
    ]);
    let (server, certificates) = (Arc::new(server), Arc::new(certificates));

    let stop = Arc::new(AtomicBool::new(false));
    let mut load = JoinSet::new();
    for user in ["stays", "comes-and-goes"] {
        let (server, stop) = (Arc::clone(&server), Arc::clone(&stop));
        let certificates = Arc::clone(&certificates);
        load.spawn(async move {
            let connect = async || {
                Client::new(channel(server.grpc(), &certificates, None).await.expect("TLS"))
            };
            let (mut client, mut calls) = (connect().await, 0);
            while !stop.load(Ordering::Relaxed) {
                if user == "comes-and-goes" {
                    client = connect().await;
                }
                let answer = check(&mut client, user).await.expect("no failed call");
                assert_eq!(answer.current_count, calls);
                calls += 1;
            }
            calls
        });
    }
    for certificate in [Certificate::Server, Certificate::Renewed, Certificate::Server] {
        swap(certificate);
        let expected = read(&certificates, certificate);
        let seen = async || presented_by(&server, &certificates).await == expected;
        eventually("new connections get the new certificate", TIMEOUT, seen).await;
    }
    stop.store(true, Ordering::Relaxed);
    for calls in load.join_all().await {
        assert!(calls > 0);
    }
    assert!(server.log().contains("certificates reloaded"), "{}", server.log());
}

#[tokio::test]
async fn invalid_certificate_files_leave_the_old_one_in_force() {
    let certificates = Certificates::make();
    let dir = TempDir::new();
    let place = |name: &str, from: std::path::PathBuf| {
        dir.write(name, &fs::read_to_string(from).expect("a PEM file"))
    };
    let cert = place("tls.crt", certificates.certificate(Certificate::Server));
    let key = place("tls.key", certificates.key(Certificate::Server));
    let server = start(&[
        format!("server.tls.cert={}", cert.display()),
        format!("server.tls.key={}", key.display()),
    ]);
    let successful = async |wanted: f64| {
        let name = "rlaas_tls_last_reload_successful";
        let seen = async || metric(&server, &certificates, name).await == Some(wanted);
        eventually("the metric", TIMEOUT, seen).await;
    };
    successful(1.0).await;
    dir.write("tls.crt", "no certificate");
    successful(0.0).await;
    let problem = format!("{}: must be PEM with a certificate", cert.display());
    let logged = async || server.log().contains(&problem);
    eventually("the problem is logged", TIMEOUT, logged).await;
    assert_eq!(
        presented_by(&server, &certificates).await,
        read(&certificates, Certificate::Server)
    );
    place("tls.crt", certificates.certificate(Certificate::Renewed));
    let logged = async || server.log().contains("does not belong to the certificate");
    eventually("the mismatch with the old key is logged", TIMEOUT, logged).await;
    assert_eq!(server.log().matches(&problem).count(), 1, "logged once: {}", server.log());
    place("tls.key", certificates.key(Certificate::Renewed));
    successful(1.0).await;
    assert_eq!(
        presented_by(&server, &certificates).await,
        read(&certificates, Certificate::Renewed)
    );

    place("tls.crt", certificates.certificate(Certificate::Expired));
    place("tls.key", certificates.key(Certificate::Expired));
    let logged = async || server.log().contains("expired certificate=\"server\"");
    eventually("an expired certificate is loaded with a warning", TIMEOUT, logged).await;
}

#[tokio::test]
async fn hung_handshakes_do_not_block_other_clients() {
    let certificates = Certificates::make();
    let mut server = start(&server_certificate_settings(&certificates, Certificate::Server));
    let mut hanging = Vec::new();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(server.grpc()).await.expect("a connection");
        // The first byte of a handshake.
        stream.write_all(&[0x16]).await.expect("a byte");
        hanging.push(stream);
    }
    assert_eq!(outcome(&server, &certificates, None).await, Ok(true));
    server.signal("TERM");
    eventually("the end", Duration::from_secs(5), async || server.has_ended()).await;
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
}
