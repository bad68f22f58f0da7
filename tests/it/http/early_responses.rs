//! Responses that are sent before the request body was read: clients must receive them over HTTP/2
//! too.

use std::process::Command;

use super::auth::{ADMIN, CHECK, start_with_auth_and};
use rlaas_testkit::tls::{Certificate, Certificates};

/// Number of requests of each kind. Before the fix one in eight lost its response.
const ROUNDS: usize = 30;

#[test]
fn early_response_to_a_post_reaches_curl() {
    let certificates = Certificates::make();
    let path = |path: std::path::PathBuf| path.display().to_string();
    let server = start_with_auth_and(&[
        &format!("server.tls.cert={}", path(certificates.certificate(Certificate::Server))),
        &format!("server.tls.key={}", path(certificates.key(Certificate::Server))),
    ]);
    let ca = path(certificates.authority());
    let body = format!("{{\"userId\":\"alice\",\"resource\":\"{}\"}}", "x".repeat(100_000));
    for (method, target, token, status) in [
        ("POST", "/v1/check", "wrong", "401"),
        ("POST", "/v1/check", ADMIN, "403"),
        ("POST", "/nothing", CHECK, "404"),
        ("PUT", "/v1/check", CHECK, "405"),
        ("POST", "/metrics", CHECK, "405"),
        ("POST", "/v1/check", CHECK, "400"),
    ] {
        let url = format!("https://{}{target}", server.http());
        let authorization = format!("Authorization: Bearer {token}");
        for round in 0..ROUNDS {
            let output = Command::new("curl")
                .args(["--silent", "--show-error", "--http2", "--cacert", &ca, "-X", method])
                .args(["-H", &authorization, "--data-binary", &body, "-o", "/dev/null"])
                .args(["-w", "%{http_version} %{http_code}", &url])
                .output()
                .expect("curl");
            let error = String::from_utf8_lossy(&output.stderr);
            let printed = String::from_utf8_lossy(&output.stdout);
            assert_eq!(printed, format!("2 {status}"), "{target}, round {round}: {error}");
        }
    }
}
