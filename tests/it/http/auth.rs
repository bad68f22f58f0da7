//! With `auth` set, only authorized callers get decisions; probes and documents stay open.

use ring::digest::{SHA256, digest};

use super::client::{HttpResponse, get, send_with};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::Rlaas;

pub(super) const CHECK: &str = "s3cret-of-the-checker";
pub(super) const ADMIN: &str = "s3cret-of-the-admin";
const DECISIONS: [(&str, &str, Option<&str>); 4] = [
    ("GET", "/check?userId=alice", None),
    ("POST", "/check", Some(r#"{"endpoint":"/r","key":"alice"}"#)),
    ("POST", "/v1/check", Some(r#"{"userId":"alice"}"#)),
    ("POST", "/json", Some(r#"{"domain":"d","descriptors":[{}]}"#)),
];

/// Starts a server that accepts [`CHECK`] with the role check and [`ADMIN`] with the role admin.
pub(super) fn start_with_auth() -> Rlaas {
    start_with_auth_and(&[])
}

/// Like [`start_with_auth`], with more settings.
pub(super) fn start_with_auth_and(settings: &[&str]) -> Rlaas {
    let token = |name: &str, token: &str, role: &str| {
        let bytes = digest(&SHA256, token.as_bytes());
        let hash =
            bytes.as_ref().iter().fold(String::new(), |hash, byte| format!("{hash}{byte:02x}"));
        format!("    - {{name: {name}, sha256: {hash}, roles: [{role}]}}\n")
    };
    let tokens = [token("shop", CHECK, "check"), token("ops", ADMIN, "admin")].concat();
    let dir = TempDir::new();
    Rlaas::start_from(&dir.write("auth.yaml", &format!("auth:\n  tokens:\n{tokens}")), settings)
}

/// Sends a request with a bearer token.
pub(super) async fn send_as(
    server: &Rlaas,
    (method, target, body): (&str, &str, Option<&str>),
    token: &str,
) -> HttpResponse {
    let header = format!("Authorization: Bearer {token}\r\n");
    send_with(server, method, target, &header, body).await
}

#[tokio::test]
async fn decisions_require_the_check_role() {
    let server = start_with_auth();
    for decision in DECISIONS {
        let unknown = send_as(&server, decision, "wrong").await;
        assert_eq!(unknown.status, 401, "{decision:?}");
        assert_eq!(unknown.header("www-authenticate"), Some("Bearer"));
        assert_eq!(unknown.detail(), "missing or unknown bearer token or client certificate");
        let other = send_as(&server, decision, ADMIN).await;
        assert_eq!((other.status, other.detail().as_str()), (403, "role check is required"));
        assert_eq!(send_as(&server, decision, CHECK).await.status, 200, "{decision:?}");
    }
    assert_eq!(get(&server, "/check?userId=alice").await.status, 401);
    let refused = server.metric("rlaas_refused_total{reason=\"unauthenticated\"}").await;
    assert_eq!(refused, Some(5.0));
    let rules = ("GET", "/rlconfig", None);
    for (token, status) in [("wrong", 401), (CHECK, 403), (ADMIN, 200)] {
        assert_eq!(send_as(&server, rules, token).await.status, status);
    }
    for open in ["/metrics", "/livez", "/readyz", "/healthcheck", "/openapi.json"] {
        assert_eq!(get(&server, open).await.status, 200, "{open}");
    }
}
