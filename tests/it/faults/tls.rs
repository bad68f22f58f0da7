//! Redis behind TLS: trusted, expired, foreign, of another host, wanting certificates, not there.

use std::time::Duration;

use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, check};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::tls::{Certificate, Certificates, ClientCertificates};

const PATIENCE: Duration = Duration::from_secs(10);

fn over_tls(redis: &RedisServer, settings: &[&str]) -> Rlaas {
    let url = format!("store.redis.url={}", redis.url());
    let always = ["store.backend=redis", &url, "store.redis.timeout=10s"];
    Rlaas::start(&[&always, settings].concat())
}

fn trusting(certificates: &Certificates) -> String {
    format!("store.redis.tls.ca={}", certificates.authority().display())
}

fn showing(certificates: &Certificates, certificate: Certificate) -> [String; 2] {
    let path =
        |name, path: std::path::PathBuf| format!("store.redis.tls.{name}={}", path.display());
    [
        path("cert", certificates.certificate(certificate)),
        path("key", certificates.key(certificate)),
    ]
}

#[tokio::test]
async fn f25_a_trusted_server_decides() {
    let certificates = Certificates::make();
    let redis = certificates.serve(Certificate::Server, ClientCertificates::Ignored);
    let server = over_tls(&redis, &[&trusting(&certificates)]);
    let response = check(&mut server.client().await, "alice").await.expect("an answer");
    assert!(response.allowed);
    assert_eq!(redis.keys(), ["rlaas:rate_limit:alice"]);
}

#[tokio::test]
async fn f25_a_server_may_want_our_certificate() {
    let certificates = Certificates::make();
    let redis = certificates.serve(Certificate::Server, ClientCertificates::Required);
    let [cert, key] = showing(&certificates, Certificate::Client);
    let server = over_tls(&redis, &[&trusting(&certificates), &cert, &key]);
    assert!(check(&mut server.client().await, "alice").await.expect("an answer").allowed);

    let [cert, key] = showing(&certificates, Certificate::Foreign);
    let server = over_tls(&redis, &[&trusting(&certificates), &cert, &key]);
    fails(&server, "").await;
}

#[tokio::test]
async fn f25_a_certificate_may_be_its_own_authority() {
    let certificates = Certificates::make();
    let own = |certificate| {
        format!("store.redis.tls.ca={}", certificates.certificate(certificate).display())
    };
    let redis = certificates.serve(Certificate::OwnAuthority, ClientCertificates::Ignored);
    let server = over_tls(&redis, &[&own(Certificate::OwnAuthority)]);
    assert!(check(&mut server.client().await, "alice").await.expect("an answer").allowed);
    // Another one is as foreign as ever.
    fails(&over_tls(&redis, &[&trusting(&certificates)]), "CaUsedAsEndEntity").await;
    for (certificate, reason) in [
        (Certificate::ExpiredOwnAuthority, "expired"),
        (Certificate::WrongHostOwnAuthority, "not valid for name"),
    ] {
        let redis = certificates.serve(certificate, ClientCertificates::Ignored);
        fails(&over_tls(&redis, &[&own(certificate)]), reason).await;
        assert!(redis.keys().is_empty(), "{certificate:?}");
    }
}

#[tokio::test]
async fn f25_whom_we_do_not_trust_is_not_asked() {
    let certificates = Certificates::make();
    for (certificate, reason) in [
        (Certificate::Expired, "expired"),
        (Certificate::Foreign, "UnknownIssuer"),
        (Certificate::WrongHost, "not valid for name"),
    ] {
        let redis = certificates.serve(certificate, ClientCertificates::Ignored);
        let server = over_tls(&redis, &[&trusting(&certificates)]);
        fails(&server, reason).await;
        assert!(redis.keys().is_empty(), "{certificate:?}");
    }
    // Without our authority the system's do not know the server.
    let redis = certificates.serve(Certificate::Server, ClientCertificates::Ignored);
    fails(&over_tls(&redis, &[]), "UnknownIssuer").await;
}

#[tokio::test]
async fn f25_tls_and_a_plain_port_do_not_meet() {
    let certificates = Certificates::make();
    let redis = RedisServer::start();
    let url = format!("store.redis.url=rediss://127.0.0.1:{}", redis.port());
    let server = Rlaas::start(&["store.backend=redis", &url, &trusting(&certificates)]);
    fails(&server, "").await;

    let redis = certificates.serve(Certificate::Server, ClientCertificates::Ignored);
    let url = format!("store.redis.url=redis://127.0.0.1:{}", redis.port());
    let server = Rlaas::start(&["store.backend=redis", &url]);
    fails(&server, "").await;
}

/// Nothing is decided, the log says why, and nobody panics.
async fn fails(server: &Rlaas, reason: &str) {
    let status = check(&mut server.client().await, "alice").await.expect_err("no store");
    assert_eq!(status.message(), "store unavailable");
    let told = async || server.log().contains("redis does not answer");
    eventually("the reason is told", PATIENCE, told).await;
    let log = server.log();
    assert!(log.contains(reason), "{reason}:\n{log}");
    assert!(!log.contains("panicked"), "{log}");
}
