//! Hostile issuers: whatever they answer, no token is valid and others are served.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use rlaas_testkit::eventually;
use rlaas_testkit::tls::{Certificate, Certificates};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tonic::Code;

use super::signing::{SigningKey, claims};
use super::{LISTED, TIMEOUT, code, serve};

const DISCOVERY: &str = "/.well-known/openid-configuration";

/// A server with a fixed response for each path. After its response a connection stays open.
#[derive(Clone, Debug)]
struct FixedResponses {
    name: String,
    responses: Arc<Mutex<HashMap<String, Vec<u8>>>>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl FixedResponses {
    async fn start() -> Self {
        Self::start_with(None).await
    }

    async fn start_with(tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let scheme = if tls.is_some() { "https://localhost" } else { "http://127.0.0.1" };
        let (responses, requests) = (Arc::default(), Arc::default());
        let server = Self { name: format!("{scheme}:{port}"), responses, requests };
        let serving = server.clone();
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let (serving, tls) = (serving.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serving.respond(connection).await,
                        Some(tls) => match tls.accept(connection).await {
                            Ok(connection) => serving.respond(connection).await,
                            Err(_refused) => {}
                        },
                    }
                });
            }
        });
        server
    }

    fn set(&self, path: &str, response: Vec<u8>) {
        self.responses.lock().expect("no panic").insert(path.to_owned(), response);
    }

    async fn respond(&self, mut connection: impl AsyncRead + AsyncWrite + Unpin) {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            match connection.read_u8().await {
                Ok(byte) => request.push(byte),
                Err(_closed) => return,
            }
        }
        let request = String::from_utf8_lossy(&request).into_owned();
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        let response = self.responses.lock().expect("no panic").get(&path).cloned();
        self.requests.lock().expect("no panic").push(path);
        let _closed = connection.write_all(&response.unwrap_or_default()).await;
        let _closed = connection.flush().await;
        let _closed = connection.read_to_end(&mut Vec::new()).await;
    }

    fn requests(&self, path: &str) -> usize {
        self.requests.lock().expect("no panic").iter().filter(|one| *one == path).count()
    }
}

/// Returns a response with a body of this type.
fn ok(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn discovery(issuer: &str, keys: &str) -> Vec<u8> {
    ok(&json!({ "issuer": issuer, "jwks_uri": keys }).to_string())
}

fn key_set(key: &SigningKey) -> Vec<u8> {
    ok(&json!({ "keys": [key.public()] }).to_string())
}

/// Asserts that a server does not accept a token of the issuer, for a reason that it logs.
async fn assert_not_trusted(issuer: &FixedResponses, settings: &str, logged: &str) {
    let server = serve(&issuer.name, settings);
    let is_logged = async || server.log().contains(logged);
    eventually(logged, TIMEOUT, is_logged).await;
    let token = SigningKey::new("a").token(&claims(&issuer.name));
    assert_eq!(code(&server, &token).await, Code::Unavailable, "{logged}");
    assert_eq!(code(&server, LISTED).await, Code::Ok);
}

#[tokio::test]
async fn well_behaved_issuer_is_trusted() {
    let (issuer, key) = (FixedResponses::start().await, SigningKey::new("a"));
    issuer.set(DISCOVERY, discovery(&issuer.name, &format!("{}/keys?a=b", issuer.name)));
    issuer.set("/keys?a=b", key_set(&key));
    let server = serve(&issuer.name, "");
    assert_eq!(code(&server, &key.token(&claims(&issuer.name))).await, Code::Ok);
    // Unknown keys cause one more fetch, not one each.
    for number in 0..100 {
        let unknown = SigningKey::new(&number.to_string()).token(&claims(&issuer.name));
        assert_eq!(code(&server, &unknown).await, Code::Unauthenticated);
    }
    assert_eq!(issuer.requests("/keys?a=b"), 2);
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let (issuer, key) = (FixedResponses::start().await, SigningKey::new("a"));
    let keys = format!("{}/keys", issuer.name);
    let elsewhere = format!("HTTP/1.1 302 Found\r\nLocation: {keys}\r\nContent-Length: 0\r\n\r\n");
    issuer.set("/keys", key_set(&key));
    issuer.set("/moved", elsewhere.clone().into_bytes());
    issuer.set(DISCOVERY, discovery(&issuer.name, &format!("{}/moved", issuer.name)));
    assert_not_trusted(&issuer, "", "status 302 Found; redirects are not followed").await;
    issuer.set(DISCOVERY, elsewhere.into_bytes());
    assert_not_trusted(&issuer, "", "status 302 Found; redirects are not followed").await;
    assert_eq!(issuer.requests("/keys"), 0);
}

#[tokio::test]
async fn documents_are_bounded_and_must_be_valid() {
    let issuer = FixedResponses::start().await;
    let name = &issuer.name;
    let keys = format!("{name}/keys");
    let large = " ".repeat(2 * 1024 * 1024);
    let endless = format!("HTTP/1.1 200 OK\r\n\r\n{large}").into_bytes();
    let head = format!("HTTP/1.1 200 OK\r\nA: {}\r\n\r\n", "a".repeat(1024 * 1024));
    for (discovery, logged) in [
        (ok(&large), "document is larger than 1048576 bytes"),
        (endless, "document is larger than 1048576 bytes"),
        (head.into_bytes(), "not HTTP"),
        (b"SSH-2.0-OpenSSH\r\n\r\n".to_vec(), "not HTTP"),
        (ok("<html>"), "discovery document must have issuer and jwks_uri"),
        (ok(r#"{"issuer":"a"}"#), "discovery document must have issuer and jwks_uri"),
        (discovery("https://a.example", &keys), "discovery document is of issuer"),
        (discovery(&format!("{name}/"), &keys), "discovery document is of issuer"),
        (discovery(name, "http://10.0.0.1/keys"), "jwks_uri must be an https URL, or an http URL"),
        (discovery(name, "file:///etc/passwd"), "jwks_uri must be an https URL, or an http URL"),
    ] {
        issuer.set(DISCOVERY, discovery);
        assert_not_trusted(&issuer, "", logged).await;
    }
    assert_eq!(issuer.requests("/keys"), 0);
    issuer.set(DISCOVERY, discovery(name, &keys));
    let many = json!({ "keys": vec![SigningKey::new("a").public(); 101] }).to_string();
    for (keys, logged) in [
        (ok(&large), "document is larger than 1048576 bytes"),
        (ok("{}"), "key set: not a JSON Web Key Set"),
        (ok(&many), "key set: more than 100 keys"),
    ] {
        issuer.set("/keys", keys);
        assert_not_trusted(&issuer, "", logged).await;
    }
}

#[tokio::test]
async fn slow_issuer_is_given_up_after_five_seconds() {
    let issuer = FixedResponses::start().await;
    issuer.set(DISCOVERY, b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{".to_vec());
    assert_not_trusted(&issuer, "", "no response within 5 s").await;
}

#[tokio::test]
async fn https_issuer_may_not_name_keys_without_tls() {
    let certificates = Certificates::make();
    let chain = CertificateDer::from_pem_file(certificates.certificate(Certificate::Server));
    let key = PrivateKeyDer::from_pem_file(certificates.key(Certificate::Server)).expect("a key");
    let config = ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![chain.expect("a certificate")], key);
    let tls = TlsAcceptor::from(Arc::new(config.expect("a certificate and its key")));
    let (issuer, plain) =
        (FixedResponses::start_with(Some(tls)).await, FixedResponses::start().await);
    let ca = format!(", ca: '{}'", certificates.authority().display());
    plain.set("/keys", key_set(&SigningKey::new("a")));
    issuer.set(DISCOVERY, discovery(&issuer.name, &format!("{}/keys", plain.name)));
    assert_not_trusted(&issuer, &ca, "jwks_uri must be an https URL, as the issuer is").await;
    assert_eq!(plain.requests("/keys"), 0);
    issuer.set("/keys", key_set(&SigningKey::new("a")));
    issuer.set(DISCOVERY, discovery(&issuer.name, &format!("{}/keys", issuer.name)));
    let server = serve(&issuer.name, &ca);
    assert_eq!(code(&server, &SigningKey::new("a").token(&claims(&issuer.name))).await, Code::Ok);
}
