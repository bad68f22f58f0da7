//! Pages of other origins: `http.cors` lets them read decisions, and nothing else.

use super::auth::{CHECK, start_with_auth_and};
use super::client::{HttpResponse, send_with};
use rlaas_testkit::process::Rlaas;

const APP: &str = "https://app.example";

/// Sends a request of a page.
async fn send_from(server: &Rlaas, origin: &str, method: &str, target: &str) -> HttpResponse {
    let body = (method == "POST").then_some(r#"{"userId":"alice"}"#);
    let headers = format!("Origin: {origin}\r\nContent-Type: application/json\r\n");
    send_with(server, method, target, &headers, body).await
}

/// Asks, as a browser does, whether a page may send a request.
async fn preflight(server: &Rlaas, origin: &str, target: &str) -> HttpResponse {
    let headers = format!(
        "Origin: {origin}\r\nAccess-Control-Request-Method: POST\r\n\
         Access-Control-Request-Headers: content-type\r\n"
    );
    send_with(server, "OPTIONS", target, &headers, None).await
}

const DECISIONS: [(&str, &str); 3] =
    [("POST", "/v1/check"), ("GET", "/check?userId=alice"), ("POST", "/check")];

#[tokio::test]
async fn pages_of_listed_origins_read_decisions() {
    let server = Rlaas::start(&["http.cors=['https://app.example', 'http://localhost:3000']"]);
    for origin in [APP, "http://localhost:3000"] {
        for (method, target) in DECISIONS {
            let response = send_from(&server, origin, method, target).await;
            assert_eq!(response.header("access-control-allow-origin"), Some(origin));
            assert_eq!(response.header("vary"), Some("origin"));
            let exposed = response.header("access-control-expose-headers").expect("a list");
            assert!(exposed.contains("ratelimit") && exposed.contains("retry-after"), "{exposed}");
            assert_eq!(response.header("access-control-allow-credentials"), None);
            let path = target.split('?').next().unwrap_or_default();
            let asked = preflight(&server, origin, path).await;
            assert_eq!(asked.status, 204);
            assert_eq!(asked.header("access-control-allow-origin"), Some(origin));
            assert_eq!(asked.header("access-control-allow-methods"), Some("GET, POST"));
            let allowed = asked.header("access-control-allow-headers");
            assert_eq!(allowed, Some("authorization, content-type"));
        }
    }
    for origin in ["https://evil.example", "null", "https://app.example.evil.example", ""] {
        for (method, target) in DECISIONS {
            let response = send_from(&server, origin, method, target).await;
            assert_eq!(response.header("access-control-allow-origin"), None, "{origin}");
            assert_eq!(response.header("vary"), Some("origin"), "{origin}");
            let asked = preflight(&server, origin, "/v1/check").await;
            assert_eq!(asked.header("access-control-allow-origin"), None, "{origin}");
        }
    }
    for other in ["/json", "/metrics", "/rlconfig", "/openapi.json", "/v1/admin/keys:inspect", "/"]
    {
        for method in ["GET", "POST", "OPTIONS"] {
            let response = send_from(&server, APP, method, other).await;
            assert_eq!(response.header("access-control-allow-origin"), None, "{method} {other}");
            assert_eq!(response.header("vary"), None, "{method} {other}");
        }
        let asked = preflight(&server, APP, other).await;
        assert_eq!(asked.header("access-control-allow-origin"), None, "{other}");
    }
}

#[tokio::test]
async fn page_reads_that_its_token_is_refused() {
    let server = start_with_auth_and(&["http.cors=https://app.example"]);
    let refused = send_from(&server, APP, "POST", "/v1/check").await;
    assert_eq!(refused.status, 401);
    assert_eq!(refused.header("access-control-allow-origin"), Some(APP));
    // The preflight has no token.
    assert_eq!(preflight(&server, APP, "/v1/check").await.status, 204);
    let headers = format!("Origin: {APP}\r\nAuthorization: Bearer {CHECK}\r\n");
    let body = Some(r#"{"userId":"alice"}"#);
    let decided = send_with(&server, "POST", "/v1/check", &headers, body).await;
    assert_eq!((decided.status, decided.header("access-control-allow-origin")), (200, Some(APP)));
}

#[tokio::test]
async fn without_the_setting_no_response_has_such_headers() {
    let server = Rlaas::start(&[]);
    for (method, target) in DECISIONS {
        let response = send_from(&server, APP, method, target).await;
        assert_eq!(response.header("access-control-allow-origin"), None);
        assert_eq!(response.header("vary"), None);
    }
    assert_eq!(preflight(&server, APP, "/v1/check").await.header("vary"), None);
}
