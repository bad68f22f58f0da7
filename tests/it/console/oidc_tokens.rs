//! Signing in at an issuer of the test, which may be hostile: ID tokens for the console alone, and
//! responses that are none.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rlaas_testkit::process::Rlaas;
use rlaas_testkit::{TempDir, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::jar::CookieJar;
use super::{CONSOLE, address};
use crate::http::client::HttpResponse;
use crate::oidc::signing::{SigningKey, claims};

const TIMEOUT: Duration = Duration::from_secs(20);

/// An issuer that responds to every code alike.
#[derive(Clone, Debug)]
struct AnyCodeIssuer {
    name: String,
    /// The head and the body of its response to a code.
    response: Arc<Mutex<(String, String)>>,
    is_away: Arc<AtomicBool>,
    /// Number of codes that it was asked for.
    exchanges: Arc<AtomicUsize>,
}

impl AnyCodeIssuer {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let name = format!("http://{}", listener.local_addr().expect("an address"));
        let issuer = Self {
            name,
            response: Arc::default(),
            is_away: Arc::default(),
            exchanges: Arc::default(),
        };
        let serving = issuer.clone();
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                let mut request = vec![0; 16 * 1024];
                let read = connection.read(&mut request).await.unwrap_or_default();
                let (head, body) = serving.respond(&String::from_utf8_lossy(&request[..read]));
                let length = body.len();
                let response = format!("HTTP/1.1 {head}\r\nContent-Length: {length}\r\n\r\n{body}");
                let _refused = connection.write_all(response.as_bytes()).await;
            }
        });
        issuer
    }

    fn respond(&self, request: &str) -> (String, String) {
        let ok = |body: Value| ("200 OK".to_owned(), body.to_string());
        let name = &self.name;
        if self.is_away.load(Ordering::Relaxed) {
            return ("503 Away".to_owned(), String::new());
        }
        if request.starts_with("POST /token ") {
            self.exchanges.fetch_add(1, Ordering::Relaxed);
            assert!(
                request.contains("client_id=console&") || request.ends_with("client_id=console")
            );
            assert!(request.contains("&code_verifier=") && !request.contains("authorization:"));
            return self.response.lock().expect("no panic").clone();
        }
        if request.starts_with("GET /keys ") {
            return ok(json!({ "keys": [SigningKey::new("known").public()] }));
        }
        ok(json!({
            "issuer": name, "jwks_uri": format!("{name}/keys"),
            "authorization_endpoint": format!("{name}/authorize?tenant=1"),
            "token_endpoint": format!("{name}/token"),
        }))
    }

    fn responds(&self, head: &str, body: String) {
        *self.response.lock().expect("no panic") = (head.to_owned(), body);
    }
}

/// A console whose visitors sign in at such an issuer.
struct AnyCodeConsole {
    server: Rlaas,
    issuer: AnyCodeIssuer,
    console: String,
    dir: TempDir,
}

impl AnyCodeConsole {
    async fn start() -> Self {
        let issuer = AnyCodeIssuer::start().await;
        let dir = TempDir::new();
        let file = dir.write("rlaas.yaml", &section(&issuer, "rlaas"));
        let server = Rlaas::start_from(&file, &[CONSOLE]);
        let console = format!("http://{}/console", address(&server));
        eventually("the issuer's endpoints are known", TIMEOUT, async || {
            let begun = CookieJar::default().get(&format!("{console}/oidc-sign-in")).await;
            begun.status == 303
        })
        .await;
        Self { server, issuer, console, dir }
    }

    /// Begins a sign-in, and lets the issuer respond to its code by an ID token with other claims.
    async fn sign_in(&self, jar: &mut CookieJar, change: impl FnOnce(&mut Value)) -> HttpResponse {
        let (nonce, callback) = self.begin(jar).await;
        let mut claims = claims(&self.issuer.name);
        claims["aud"] = json!(["console", "other"]);
        claims["azp"] = json!("console");
        claims["nonce"] = json!(nonce);
        change(&mut claims);
        let token = SigningKey::new("known").token(&claims);
        self.issuer.responds("200 OK", json!({ "id_token": token }).to_string());
        jar.get(&callback).await
    }

    /// Returns the nonce of a sign-in, and the address to which the issuer sends the browser back.
    async fn begin(&self, jar: &mut CookieJar) -> (String, String) {
        let begun = jar.get(&format!("{}/oidc-sign-in", self.console)).await;
        let at_issuer = begun.header("location").expect("a redirect");
        let begins = format!("{}/authorize?tenant=1&response_type=code&", self.issuer.name);
        assert!(at_issuer.starts_with(&begins), "{at_issuer}");
        let parameter = |name: &str| {
            let value = at_issuer.split(&format!("&{name}=")).nth(1);
            value.and_then(|rest| rest.split('&').next()).expect("a parameter")
        };
        let callback =
            format!("{}/oidc-callback?code=c&state={}", self.console, parameter("state"));
        (parameter("nonce").to_owned(), callback)
    }
}

/// Returns the section of an issuer whose access tokens are for an audience.
fn section(issuer: &AnyCodeIssuer, audience: &str) -> String {
    format!(
        "auth:\n  oidc:\n    issuer: {}\n    audience: {audience}\n    console:\n      client-id: console\n      \
         redirect-uri: http://127.0.0.1:1/limits/console/oidc-callback\n",
        issuer.name
    )
}

#[tokio::test]
async fn a_session_outlives_the_time_in_which_the_keys_are_not_known() {
    let subject = AnyCodeConsole::start().await;
    let mut jar = CookieJar::default();
    assert_eq!(subject.sign_in(&mut jar, |_| ()).await.status, 303);
    let page = format!("{}/instances", subject.console);
    assert_eq!(jar.get(&page).await.status, 200);
    subject.issuer.is_away.store(true, Ordering::Relaxed);
    // Another audience makes another verifier, which has no keys yet.
    subject.dir.write("rlaas.yaml", &section(&subject.issuer, "other"));
    subject.server.signal("HUP");
    eventually("the keys are not known", TIMEOUT, async || {
        jar.clone().get(&page).await.status == 503
    })
    .await;
    let away = jar.get(&page).await;
    assert!(away.body.contains("keys of the issuer are not available"), "{}", away.body);
    subject.issuer.is_away.store(false, Ordering::Relaxed);
    eventually("the session goes on", TIMEOUT, async || {
        let status = jar.clone().get(&page).await.status;
        assert!([200, 503].contains(&status), "the session has ended");
        status == 200
    })
    .await;
}

#[tokio::test]
async fn an_id_token_is_for_the_console_and_its_client_alone() {
    let subject = AnyCodeConsole::start().await;
    let mut jar = CookieJar::default();
    let signed_in = subject.sign_in(&mut jar, |_| ()).await;
    assert_eq!((signed_in.status, signed_in.header("location")), (303, Some("now")));
    assert_eq!(jar.get(&format!("{}/instances", subject.console)).await.status, 200);
    let (_, token) = subject.issuer.response.lock().expect("no panic").clone();
    let token: Value = serde_json::from_str(&token).expect("a response");
    let bearer = format!("Authorization: Bearer {}\r\n", token["id_token"].as_str().expect("one"));
    let (status, _, body) = subject.server.get_with("/v1/admin/audit", &bearer).await;
    assert_eq!(status, 401, "no call is permitted by it: {body}");

    for (claim, value, status) in [
        ("azp", json!("console"), 303),
        ("azp", json!("other"), 401),
        // With further audiences it must be given.
        ("azp", json!(null), 401),
        ("aud", json!("rlaas"), 401),
        ("iss", json!("http://localhost:1"), 401),
        ("exp", json!(1), 401),
        ("nonce", json!(null), 401),
        ("nonce", json!(""), 401),
        ("nonce", json!(7), 401),
        ("roles", json!(["check"]), 403),
        ("roles", json!("admin"), 403),
    ] {
        let mut jar = CookieJar::default();
        let response = subject.sign_in(&mut jar, |claims| claims[claim] = value.clone()).await;
        assert_eq!(response.status, status, "{claim} {value}: {response:?}");
    }
}

#[tokio::test]
async fn a_response_without_a_token_signs_nobody_in() {
    let subject = AnyCodeConsole::start().await;
    let redirect = "302 Found\r\nLocation: http://127.0.0.1:1/";
    for (head, body, status, text) in [
        (redirect, String::new(), 503, "does not respond as it should"),
        ("500 Oops", "{\"error\":\"a\"}".to_owned(), 503, "does not respond as it should"),
        ("200 OK", "{}".to_owned(), 503, "does not respond as it should"),
        ("200 OK", "{\"id_token\":7}".to_owned(), 503, "does not respond as it should"),
        ("200 OK", "{\"id_token\":\"a.b.c\"}".to_owned(), 401, "Not signed in"),
        ("200 OK", " ".repeat(1024 * 1024 + 1), 503, "does not respond as it should"),
        ("400 Bad", "{\"error\":\"<script>\u{202e}\"}".to_owned(), 403, "&lt;script&gt;<span"),
        ("400 Bad", format!("{{\"error\":\"{}\"}}", "e".repeat(10_000)), 403, "eee"),
        ("400 Bad", "no JSON".to_owned(), 503, "does not respond as it should"),
    ] {
        let mut jar = CookieJar::default();
        let (_, callback) = subject.begin(&mut jar).await;
        subject.issuer.responds(head, body.clone());
        let response = jar.get(&callback).await;
        let shown = format!("{head} {}", &body[..body.len().min(30)]);
        assert_eq!(response.status, status, "{shown}: {response:?}");
        assert!(
            response.body.contains(text) && response.body.len() < 6_000,
            "{shown}: {response:?}"
        );
        assert_eq!(response.values("set-cookie").len(), 1, "{response:?}");
    }
}

#[tokio::test]
async fn a_begun_sign_in_exchanges_one_code_and_failures_are_logged_once() {
    let subject = AnyCodeConsole::start().await;
    subject.issuer.responds("400 Bad", "{\"error\":\"invalid_grant\"}".to_owned());
    for sign_in in 1..=3 {
        let mut jar = CookieJar::default();
        let (_, callback) = subject.begin(&mut jar).await;
        let statuses = [
            jar.clone().get(&callback).await.status,
            jar.clone().get(&callback.replace("code=c", "code=d")).await.status,
            jar.clone().get(&callback).await.status,
        ];
        assert_eq!(statuses, [403, 400, 400]);
        assert_eq!(subject.issuer.exchanges.load(Ordering::Relaxed), sign_in);
    }
    let lines = subject.server.log();
    assert_eq!(lines.matches("the OIDC issuer refused a code").count(), 1, "{lines}");
}

#[tokio::test]
async fn without_an_issuer_the_page_says_so() {
    let section = "auth:\n  oidc:\n    issuer: http://127.0.0.1:1\n    audience: rlaas\n    console:\n      \
                   client-id: console\n      redirect-uri: http://127.0.0.1:1/console/oidc-callback\n";
    let server = Rlaas::start_from(&TempDir::new().write("rlaas.yaml", section), &[CONSOLE]);
    let away = CookieJar::default()
        .get(&format!("http://{}/console/oidc-sign-in?next=audit", address(&server)))
        .await;
    assert_eq!((away.status, away.values("set-cookie").len()), (503, 0));
    assert!(away.body.contains("the endpoints of the issuer are not known"), "{}", away.body);
    assert!(away.body.contains("oidc-sign-in?next=audit"), "{}", away.body);
}
