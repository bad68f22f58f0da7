//! TLS to Redis: trusted and untrusted certificates, client certificates, and plaintext ports.

use std::time::Duration;

use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, check};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::tls::{Certificate, Certificates, ClientCertificates};

const TIMEOUT: Duration = Duration::from_secs(10);

fn over_tls(redis: &RedisServer, settings: &[&str]) -> Rlaas {
    let url = format!("store.redis.url={}", redis.url());
    let always = ["store.backend=redis", &url, "store.redis.timeout=10s"];
    Rlaas::start(&[&always, settings].concat())
}

fn ca_setting(certificates: &Certificates) -> String {
    format!("store.redis.tls.ca={}", certificates.authority().display())
}

fn client_certificate_settings(
    certificates: &Certificates,
    certificate: Certificate,
) -> [String; 2] {
    let path =
        |name, path: std::path::PathBuf| format!("store.redis.tls.{name}={}", path.display());
    [
        path("cert", certificates.certificate(certificate)),
        path("key", certificates.key(certificate)),
    ]
}

#[tokio::test]
async fn trusted_redis_certificate_is_accepted() {
    let certificates = Certificates::make();
    let redis = certificates.serve(Certificate::Server, ClientCertificates::Ignored);
    let server = over_tls(&redis, &[&ca_setting(&certificates)]);
    let response = check(&mut server.client().await, "alice").await.expect("an answer");
    assert!(response.allowed);
    assert_eq!(redis.keys(), ["rlaas:rate_limit:alice"]);
}

#[tokio::test]
async fn client_certificate_is_sent_to_redis() {
    let certificates = Certificates::make();
    let redis = certificates.serve(Certificate::Server, ClientCertificates::Required);
    let [cert, key] = client_certificate_settings(&certificates, Certificate::Client);
    let server = over_tls(&redis, &[&ca_setting(&certificates), &cert, &key]);
    assert!(check(&mut server.client().await, "alice").await.expect("an answer").allowed);

    let [cert, key] = client_certificate_settings(&certificates, Certificate::Foreign);
    let server = over_tls(&redis, &[&ca_setting(&certificates), &cert, &key]);
    assert_rejected(&server, "").await;
}

#[tokio::test]
async fn self_signed_redis_certificate_is_accepted_as_its_own_authority() {
    let certificates = Certificates::make();
    let own = |certificate| {
        format!("store.redis.tls.ca={}", certificates.certificate(certificate).display())
    };
    let redis = certificates.serve(Certificate::SelfSigned, ClientCertificates::Ignored);
    let server = over_tls(&redis, &[&own(Certificate::SelfSigned)]);
    assert!(check(&mut server.client().await, "alice").await.expect("an answer").allowed);
    // Any other authority is still rejected.
    assert_rejected(&over_tls(&redis, &[&ca_setting(&certificates)]), "CaUsedAsEndEntity").await;
    for (certificate, reason) in [
        (Certificate::ExpiredSelfSigned, "expired"),
        (Certificate::WrongHostSelfSigned, "not valid for name"),
    ] {
        let redis = certificates.serve(certificate, ClientCertificates::Ignored);
        assert_rejected(&over_tls(&redis, &[&own(certificate)]), reason).await;
        assert!(redis.keys().is_empty(), "{certificate:?}");
    }
}

#[tokio::test]
async fn untrusted_redis_certificates_are_rejected() {
    let certificates = Certificates::make();
    for (certificate, reason) in [
        (Certificate::Expired, "expired"),
        (Certificate::Foreign, "UnknownIssuer"),
        (Certificate::WrongHost, "not valid for name"),
    ] {
        let redis = certificates.serve(certificate, ClientCertificates::Ignored);
        let server = over_tls(&redis, &[&ca_setting(&certificates)]);
        assert_rejected(&server, reason).await;
        assert!(redis.keys().is_empty(), "{certificate:?}");
    }
    // Without `tls.ca` the authorities of the system apply.
    let redis = certificates.serve(Certificate::Server, ClientCertificates::Ignored);
    assert_rejected(&over_tls(&redis, &[]), "UnknownIssuer").await;
}

#[tokio::test]
async fn tls_and_plaintext_ports_do_not_mix() {
    let certificates = Certificates::make();
    let redis = RedisServer::start();
    let url = format!("store.redis.url=rediss://127.0.0.1:{}", redis.port());
    let server = Rlaas::start(&["store.backend=redis", &url, &ca_setting(&certificates)]);
    assert_rejected(&server, "").await;

    let redis = certificates.serve(Certificate::Server, ClientCertificates::Ignored);
    let url = format!("store.redis.url=redis://127.0.0.1:{}", redis.port());
    let server = Rlaas::start(&["store.backend=redis", &url]);
    assert_rejected(&server, "").await;
}

/// Asserts that checks fail, that the log has this reason, and that nothing panicked.
async fn assert_rejected(server: &Rlaas, reason: &str) {
    let status = check(&mut server.client().await, "alice").await.expect_err("no store");
    assert_eq!(status.message(), "store unavailable");
    let logged = async || server.log().contains("redis connection failed");
    eventually("the failure is logged", TIMEOUT, logged).await;
    let log = server.log();
    assert!(log.contains(reason), "{reason}:\n{log}");
    assert!(!log.contains("panicked"), "{log}");
}
