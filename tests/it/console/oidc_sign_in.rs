//! Signing in at a real issuer: the authorization code flow, and those who try to break it.
//!
//! The issuer is on `localhost` and the console on 127.0.0.1, which are two sites for a browser.

use std::time::Duration;

use rlaas_testkit::process::Rlaas;
use rlaas_testkit::{TempDir, eventually};
use serde_json::json;

use super::jar::{CookieJar, resolved};
use super::{ADMIN, CONSOLE, address, auth};
use crate::oidc::issuer::IssuerProcess;

const TIMEOUT: Duration = Duration::from_secs(20);
const BEGUN: &str = "rlaas-console-sign-in";
const SESSION: &str = "rlaas-console";

/// A console whose visitors sign in at an issuer.
pub(super) struct IssuerConsole {
    server: Rlaas,
    issuer: Option<IssuerProcess>,
    console: String,
    pub(super) host: String,
    dir: TempDir,
}

impl IssuerConsole {
    /// Starts both. `None` if the issuer's packages are missing.
    async fn start(client: &str, more: &str) -> Option<Self> {
        let mut subject = Self::start_servers();
        let console = subject.console.clone();
        subject.start_issuer(client, &console, more).await?;
        Some(subject)
    }

    /// Starts the console, which knows no issuer yet.
    pub(super) fn start_servers() -> Self {
        let dir = TempDir::new();
        let settings = ["telemetry.log=trace", "server.limits.connections-per-address=10000"];
        let file = dir.write("rlaas.yaml", &listed());
        let server = Rlaas::start_from(&file, &[&[CONSOLE], &settings[..]].concat());
        let host = address(&server);
        Self { server, issuer: None, console: format!("http://{host}/console"), host, dir }
    }

    /// Starts the issuer of a client that browsers see at a URL, and reloads the console's settings: its
    /// port and that of the issuer are known by now.
    pub(super) async fn start_issuer(&mut self, client: &str, at: &str, more: &str) -> Option<()> {
        let redirect = format!("{at}/oidc-callback");
        let issuer = IssuerProcess::start_with(&json!({
            "host": "localhost",
            "port": 0,
            "keys": [{ "kid": "rsa", "alg": "RS256" }],
            "clients": {},
            "consoles": { client: [redirect] },
            "accounts": {
                "alice": { "roles": ["admin", "operate"], "projects": ["*"] },
                "bob": { "roles": ["operate"], "projects": ["shop"] },
                "guest": { "roles": ["auditor"] },
            },
        }))?;
        let secret = self.dir.write("secret", &format!("secret of {client}: 50 %+\n"));
        let secret = if client.starts_with("public-") {
            String::new()
        } else {
            format!(", client-secret-file: {}", secret.display())
        };
        let oidc = format!(
            "  oidc:\n    issuer: {}\n    audience: rlaas\n{more}    console: {{client-id: {client}, \
             redirect-uri: '{redirect}'{secret}}}\n",
            issuer.name()
        );
        self.dir.write("rlaas.yaml", &format!("{}{oidc}", listed()));
        self.server.signal("HUP");
        self.issuer = Some(issuer);
        eventually("the issuer's endpoints are known", TIMEOUT, async || {
            let begun = CookieJar::default().get(&self.url("oidc-sign-in")).await;
            begun.header("location").is_some_and(|to| to.starts_with("http://localhost:"))
        })
        .await;
        Some(())
    }

    /// Returns the name of the issuer.
    pub(super) fn issuer_name(&self) -> &str {
        self.issuer.as_ref().expect("a started issuer").name()
    }

    fn url(&self, page: &str) -> String {
        format!("{}/{page}", self.console)
    }

    /// Begins a sign-in, and returns the address at the issuer.
    async fn begin(&self, jar: &mut CookieJar, next: &str) -> String {
        let begun = jar.get(&self.url(&format!("oidc-sign-in?next={next}"))).await;
        assert_eq!(begun.status, 303, "{begun:?}");
        begun.header("location").expect("a redirect").to_owned()
    }

    /// Signs in at the issuer, and returns the address to which it sends the browser back.
    async fn choose(&self, jar: &mut CookieJar, at_issuer: &str, account: &str) -> String {
        let page = jar.follow(at_issuer, "/oidc-callback").await;
        if page.contains("/oidc-callback") {
            return page;
        }
        let chosen = jar.post(&page, &format!("account={account}")).await;
        let location = chosen.header("location").unwrap_or_else(|| panic!("{chosen:?}"));
        let callback = jar.follow(&resolved(&page, location), "/oidc-callback").await;
        assert!(callback.starts_with(&self.url("oidc-callback?")), "{callback}");
        callback
    }
}

/// Returns the section of listed callers.
fn listed() -> String {
    auth(&[(ADMIN, "roles: [admin]")])
}

#[tokio::test]
async fn a_visitor_signs_in_at_the_issuer() {
    let Some(subject) = IssuerConsole::start("console", "    projects-claim: projects\n").await
    else {
        return;
    };
    let mut jar = CookieJar::default();
    let first = jar.get(&subject.url("audit?rule=a%20b")).await;
    let sign_in = first.header("location").expect("a redirect");
    let form = jar.get(&subject.url(sign_in)).await;
    let link = "href=\"oidc-sign-in?next=audit%3Frule%3Da%2520b\"";
    assert!(form.body.contains(link) && form.body.contains("Sign in with "), "{}", form.body);
    let at_issuer = subject.begin(&mut jar, "audit%3Frule%3Da%2520b").await;
    for parameter in [
        "response_type=code",
        "client_id=console",
        "scope=openid",
        "code_challenge_method=S256",
        "&nonce=",
        "&state=",
    ] {
        assert!(at_issuer.contains(parameter), "{parameter}: {at_issuer}");
    }
    let callback = subject.choose(&mut jar, &at_issuer, "alice").await;
    let signed_in = jar.get(&callback).await;
    let location = signed_in.header("location");
    assert_eq!((signed_in.status, location), (303, Some("audit?rule=a%20b")), "{signed_in:?}");
    let [session, begun] = signed_in.values("set-cookie")[..] else { panic!("{signed_in:?}") };
    assert!(session.starts_with("rlaas-console=") && session.ends_with("; HttpOnly; SameSite=Lax"));
    assert_eq!(begun, "rlaas-console-sign-in=; HttpOnly; SameSite=Lax; Max-Age=0");
    let page = jar.get(&subject.url("audit")).await;
    assert!(page.status == 200 && page.body.contains("#alice"), "{page:?}");

    let log = subject.server.log();
    let code = callback.split("code=").nth(1).and_then(|rest| rest.split('&').next());
    for secret in [code.expect("a code"), jar.cookie(&subject.host, SESSION).expect("a session")] {
        assert!(!log.contains(secret) && !page.body.contains(secret), "{secret}");
    }
    assert!(!log.contains("secret of console") && !log.contains("eyJ"), "a secret or a token");

    let mut other = CookieJar::default();
    let at_issuer = subject.begin(&mut other, "").await;
    let callback = subject.choose(&mut other, &at_issuer, "bob").await;
    assert_eq!(other.get(&callback).await.header("location"), Some("now"));
    let now = other.get(&subject.url("now")).await;
    assert!(now.status == 200 && now.body.contains("#bob"), "{now:?}");
    assert_eq!(other.get(&subject.url("instances")).await.status, 403, "roles for one project");
}

#[tokio::test]
async fn a_response_of_another_sign_in_is_refused() {
    let Some(subject) = IssuerConsole::start("public-console", "").await else { return };
    let mut jar = CookieJar::default();
    let at_issuer = subject.begin(&mut jar, "").await;
    let callback = subject.choose(&mut jar, &at_issuer, "alice").await;
    let begun = jar.cookie(&subject.host, BEGUN).expect("a cookie").clone();

    let forged = callback.replace("state=", "state=A");
    let missing = callback.split("&state").next().expect("a code").to_owned();
    for url in [&forged, &missing, &subject.url("oidc-callback")] {
        let refused = jar.get(url).await;
        assert_eq!((refused.status, refused.values("set-cookie").len()), (400, 0), "{refused:?}");
        assert!(refused.body.contains("has not begun it"), "{}", refused.body);
    }
    let mut stranger = CookieJar::default();
    assert_eq!(stranger.get(&callback).await.status, 400, "a browser without the cookie");
    let _own = subject.begin(&mut stranger, "").await;
    assert_eq!(stranger.get(&callback).await.status, 400, "a browser with its own");
    let other_issuer = callback.replace("iss=http%3A%2F%2Flocalhost", "iss=http%3A%2F%2Fevil");
    assert_ne!(other_issuer, callback);
    let mut copy = jar.clone();
    assert_eq!(copy.get(&other_issuer).await.status, 400, "the response of another issuer");
    assert!(copy.cookie(&subject.host, BEGUN).is_none(), "a sign-in ends once");

    assert_eq!(jar.get(&callback).await.header("location"), Some("now"));
    assert!(jar.cookie(&subject.host, BEGUN).is_none());
    assert_eq!(jar.get(&callback).await.status, 400, "the same code again");
    jar.set(&subject.host, BEGUN, &begun);
    let replayed = jar.get(&callback).await;
    assert_eq!(replayed.status, 400, "the same code and cookie again");
    assert!(replayed.body.contains("this sign-in has ended"), "{}", replayed.body);
    assert!(replayed.values("set-cookie").iter().all(|cookie| cookie.starts_with(BEGUN)));

    let mut jar = CookieJar::default();
    let at_issuer = subject.begin(&mut jar, "").await;
    let nonce = at_issuer.split("&nonce=").nth(1).and_then(|rest| rest.split('&').next());
    let other = at_issuer.replace(nonce.expect("a nonce"), "of-another-sign-in");
    let callback = subject.choose(&mut jar, &other, "alice").await;
    let refused = jar.get(&callback).await;
    assert_eq!(refused.status, 401, "{refused:?}");
    assert!(refused.body.contains("ID token is of another sign-in"), "{}", refused.body);
    let counted =
        subject.server.metric_sum("rlaas_refused_total", &["reason=\"oidc_nonce\""]).await;
    assert_eq!(counted, 1);
}

#[tokio::test]
async fn those_whom_the_issuer_or_the_console_refuses_see_why() {
    let Some(mut subject) = IssuerConsole::start("console", "").await else { return };
    let mut jar = CookieJar::default();
    let at_issuer = subject.begin(&mut jar, "instances").await;
    let callback = subject.choose(&mut jar, &at_issuer, "refuse").await;
    let refused = jar.get(&callback).await;
    assert_eq!(refused.status, 403);
    for text in ["access_denied: not &lt;b&gt;today", "next=instances"] {
        assert!(refused.body.contains(text), "{text}: {}", refused.body);
    }
    let mut jar = CookieJar::default();
    let at_issuer = subject.begin(&mut jar, "").await;
    let callback = subject.choose(&mut jar, &at_issuer, "guest").await;
    let refused = jar.get(&callback).await;
    assert_eq!(refused.status, 403);
    assert!(refused.body.contains("The role operate or admin is required."), "{}", refused.body);
    assert!(jar.cookie(&subject.host, SESSION).is_none());

    let mut jar = CookieJar::default();
    let at_issuer = subject.begin(&mut jar, "").await;
    let callback = subject.choose(&mut jar, &at_issuer, "alice").await;
    drop(subject.issuer.take());
    let away = jar.get(&callback).await;
    assert_eq!(away.status, 503);
    assert!(away.body.contains("the issuer does not respond"), "{}", away.body);
    assert!(away.body.contains("name=\"token\""), "another way to sign in: {}", away.body);
}

#[tokio::test]
async fn begun_sign_ins_lock_nobody_out() {
    let Some(subject) = IssuerConsole::start("console", "").await else { return };
    let mut visitor = CookieJar::default();
    let at_issuer = subject.begin(&mut visitor, "").await;
    let callback = subject.choose(&mut visitor, &at_issuer, "alice").await;
    assert_eq!(visitor.get(&callback).await.status, 303);
    let at_issuer = subject.begin(&mut visitor, "").await;
    for _ in 0..2_000 {
        let begun = CookieJar::default().get(&subject.url("oidc-sign-in?next=now")).await;
        assert_eq!(begun.status, 303);
    }
    assert_eq!(visitor.get(&subject.url("now")).await.status, 200, "the session goes on");
    let callback = subject.choose(&mut visitor, &at_issuer, "alice").await;
    assert_eq!(visitor.get(&callback).await.status, 303, "and the sign-in that began before");
    assert_eq!(visitor.get(&subject.url("now")).await.status, 200);
}
