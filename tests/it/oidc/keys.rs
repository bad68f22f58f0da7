//! Keys of the issuer: rotated, and while the issuer is away.

use rlaas_testkit::tls::{Certificate, Certificates};
use rlaas_testkit::{TempDir, eventually};
use serde_json::json;
use tonic::Code;

use super::issuer::IssuerProcess;
use super::signing::{SigningKey, claims, with};
use super::{LISTED, TIMEOUT, check, code, http, keys, refused, section, serve};
use rlaas_testkit::process::Rlaas;

#[tokio::test]
async fn rotated_key_is_taken_and_tokens_of_the_old_one_end() {
    let [old, new] = ["old", "new"].map(SigningKey::new);
    let Some(issuer) = IssuerProcess::start(0, &keys(&old)) else { return };
    let name = issuer.name().to_owned();
    let server = serve(&name, "");
    let [by_old, by_new] = [&old, &new].map(|key| key.token(&claims(&name)));
    assert_eq!(code(&server, &by_old).await, Code::Ok);
    let port = issuer.stop();
    let issuer = IssuerProcess::start(port, &keys(&new)).expect("the same issuer");
    assert_eq!(issuer.name(), name);
    // The call waits for the fetch that it causes.
    assert_eq!(code(&server, &by_new).await, Code::Ok);
    assert_eq!(code(&server, &by_old).await, Code::Unauthenticated);
    assert_eq!(refused(&server, "oidc_unknown_key").await, 1);
    assert_eq!(code(&server, &issuer.token("shop", "RS256").await).await, Code::Ok);
}

#[tokio::test]
async fn issuer_that_is_away_at_the_start_lets_nobody_in_and_others_go_on() {
    let key = SigningKey::new("ed");
    let Some(issuer) = IssuerProcess::start(0, &keys(&key)) else { return };
    let name = issuer.name().to_owned();
    let token = key.token(&claims(&name));
    let port = issuer.stop();
    let server = serve(&name, "");
    let status = check(&server, &token).await.expect_err("no keys");
    let text = "keys of the issuer of bearer tokens are not available";
    assert_eq!((status.code(), status.message()), (Code::Unavailable, text));
    let (status, response) = http(&server, "GET", "/v1/admin/audit", &token, "").await;
    assert!(status == 503 && response.contains(text), "{response}");
    assert_eq!(refused(&server, "oidc_keys_unavailable").await, 2);
    assert_eq!(code(&server, LISTED).await, Code::Ok);
    assert_eq!(server.get("/readyz").await.0, 200);
    assert!(
        server.log().contains("fetching the keys of the OIDC issuer failed"),
        "{}",
        server.log()
    );

    let issuer = IssuerProcess::start(port, &keys(&key)).expect("the same issuer");
    let is_let_in = async || code(&server, &token).await == Code::Ok;
    eventually("the keys are fetched", TIMEOUT, is_let_in).await;

    issuer.stop();
    let later = key.token(&with(&name, "sub", json!("bob")));
    assert_eq!([code(&server, &token).await, code(&server, &later).await], [Code::Ok; 2]);
    let unknown = SigningKey::new("unknown").token(&claims(&name));
    assert_eq!(code(&server, &unknown).await, Code::Unauthenticated);
    assert_eq!(code(&server, &later).await, Code::Ok);
}

#[tokio::test]
async fn private_authority_is_trusted_if_it_is_set() {
    let certificates = Certificates::make();
    let key = SigningKey::new("ed");
    let ca = |file: &std::path::Path| format!(", ca: '{}'", file.display());
    let authority = ca(&certificates.authority());
    let foreign = ca(&certificates.certificate(Certificate::SelfSigned));
    for (certificate, ca, expected) in [
        (Certificate::Server, &authority, Code::Ok),
        (Certificate::Server, &foreign, Code::Unavailable),
        (Certificate::WrongHost, &authority, Code::Unavailable),
        (Certificate::Expired, &authority, Code::Unavailable),
    ] {
        let issuer = IssuerProcess::start_https(&certificates, certificate, &keys(&key));
        let Some(issuer) = issuer else { return };
        let server = serve(issuer.name(), ca);
        let token = key.token(&claims(issuer.name()));
        assert_eq!(code(&server, &token).await, expected, "{certificate:?}: {}", server.log());
        let has_failed = async || server.log().contains("TLS handshake failed");
        if expected == Code::Ok {
            assert!(!has_failed().await, "{certificate:?}: {}", server.log());
        } else {
            // The line may be read after the answer.
            eventually("the handshake's failure is logged", TIMEOUT, has_failed).await;
        }
    }
}

#[tokio::test]
async fn changed_settings_need_no_restart() {
    let key = SigningKey::new("ed");
    let Some(issuer) = IssuerProcess::start(0, &keys(&key)) else { return };
    let dir = TempDir::new();
    let tokens = section("http://127.0.0.1:1", "");
    let server = Rlaas::start_from(&dir.write("rlaas.yaml", &tokens), &[]);
    let token = key.token(&claims(issuer.name()));
    assert_eq!(code(&server, &token).await, Code::Unavailable);
    dir.write("rlaas.yaml", &section(issuer.name(), ""));
    let is_let_in = async || code(&server, &token).await == Code::Ok;
    eventually("the issuer is changed", TIMEOUT, is_let_in).await;
    dir.write("rlaas.yaml", &section(issuer.name(), ", roles-claim: groups"));
    let has_no_role = async || code(&server, &token).await == Code::PermissionDenied;
    eventually("the claim is changed", TIMEOUT, has_no_role).await;
    dir.write("rlaas.yaml", &tokens.replace("  oidc", "  # oidc"));
    let is_unknown = async || code(&server, &token).await == Code::Unauthenticated;
    eventually("the issuer is removed", TIMEOUT, is_unknown).await;
    assert_eq!(code(&server, LISTED).await, Code::Ok);
}
