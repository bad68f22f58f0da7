//! Signing in: who may, what a session is, and when it ends.

use std::time::Duration;

use super::browser::Browser;
use super::{ADMIN, CHECK, CONSOLE, OPERATE, auth, start_with_auth};
use crate::http::client::HttpResponse;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::{TempDir, eventually};
use tokio::task::JoinSet;

const TIMEOUT: Duration = Duration::from_secs(10);

#[tokio::test]
async fn no_page_without_a_role() {
    let server = start_with_auth(&[]);
    let mut browser = Browser::new(&server);
    let first = browser.get("instances?a=b%20c").await;
    let sign_in = "sign-in?next=instances%3Fa%3Db%2520c";
    assert_eq!((first.status, first.header("location")), (303, Some(sign_in)));
    let form = browser.get(sign_in).await;
    assert!(form.body.contains("name=\"next\" value=\"instances?a=b%20c\""), "{}", form.body);
    for (token, status, text) in [
        ("wrong", 401, "is not known"),
        ("", 401, "is not known"),
        (CHECK, 403, "role operate or admin is required"),
    ] {
        let refused = browser.sign_in(token).await;
        assert_eq!((refused.status, refused.header("set-cookie")), (status, None), "{token}");
        assert!(refused.body.to_lowercase().contains(text), "{}", refused.body);
        assert!(token.is_empty() || !refused.body.contains(token), "no secret in the page");
    }
    let by_certificate = browser.post("sign-in", "by=certificate").await;
    assert_eq!(by_certificate.status, 401);
    for token in [ADMIN, OPERATE] {
        let next = format!("by=token&token={token}&next=instances%3Fa%3Db");
        let response = browser.post("sign-in", &next).await;
        assert_eq!((response.status, response.header("location")), (303, Some("instances?a=b")));
    }
    let elsewhere = format!("token={ADMIN}&next=https%3A%2F%2Fevil.example");
    let response = browser.post("sign-in", &elsewhere).await;
    assert_eq!(response.header("location"), Some("now"));
    let bearer = format!("Authorization: Bearer {ADMIN}\r\n");
    let by_header = browser.send("GET", "instances", &bearer, "").await;
    assert_eq!(by_header.status, 303, "a browser adds no such header");
}

#[tokio::test]
async fn the_cookie_is_for_this_console_and_no_script() {
    let server = start_with_auth(&[]);
    let response = Browser::new(&server).sign_in(ADMIN).await;
    let cookie = response.header("set-cookie").expect("a cookie");
    let (pair, attributes) = cookie.split_once("; ").expect("attributes");
    assert_eq!(attributes, "HttpOnly; SameSite=Lax");
    let id = pair.strip_prefix("rlaas-console=").expect("the name");
    assert_eq!(id.len(), 43, "256 bits");
}

#[tokio::test]
async fn no_secret_is_shown() {
    let server = start_with_auth(&["telemetry.log=trace"]);
    let browser = Browser::signed_in(&server, ADMIN).await;
    let page = browser.get("instances").await;
    let id = browser.cookie.clone().expect("a cookie").replace("rlaas-console=", "");
    let secret = browser.secret("instances").await;
    for (what, text) in [("page", page.body.clone()), ("log", server.log())] {
        assert!(!text.contains(ADMIN) && !text.contains(&id), "{what}");
    }
    assert!(!server.log().contains(&secret));
    let is_logged = async || server.log().contains("signed in to the console");
    eventually("the sign-in is logged", TIMEOUT, is_logged).await;
}

#[tokio::test]
async fn a_planted_session_is_not_adopted_and_an_old_one_ends() {
    let server = start_with_auth(&[]);
    // Somebody gives the visitor a session that they know.
    let attacker = Browser::signed_in(&server, OPERATE).await;
    let mut victim = Browser::new(&server);
    for planted in [attacker.cookie.clone().expect("a cookie"), "rlaas-console=known".to_owned()] {
        victim.cookie = Some(planted.clone());
        let response = victim.sign_in(ADMIN).await;
        assert_eq!(response.status, 303);
        assert_ne!(victim.cookie, Some(planted), "a new id");
        assert!(victim.get("instances").await.body.contains("visitor-0"));
        assert_eq!(attacker.get("instances").await.status, 303, "the planted session has ended");
    }
    let first = victim.clone();
    victim.sign_in(ADMIN).await;
    assert_eq!(first.get("instances").await.status, 303, "signing in again ends the session");
    let both = format!("rlaas-console=planted; {}", victim.cookie.clone().expect("a cookie"));
    victim.cookie = Some(both);
    assert_eq!(victim.get("instances").await.status, 200, "a planted cookie locks nobody out");
}

#[tokio::test]
async fn a_caller_has_ten_sessions_and_strangers_take_none() {
    let server = start_with_auth(&["server.limits.connections-per-address=10000"]);
    let operator = Browser::signed_in(&server, OPERATE).await;
    let mut sessions = Vec::new();
    for _ in 0..11 {
        sessions.push(Browser::signed_in(&server, ADMIN).await);
    }
    let stranger = Browser::new(&server);
    // Together, since each one is answered later than the one before it.
    let mut wrong = wrong_tokens(&stranger, 200);
    for _ in 0..1_000 {
        assert_eq!(stranger.get("sign-in").await.status, 200);
    }
    while let Some(refused) = wrong.join_next().await {
        let refused = refused.expect("no panic");
        assert_eq!((refused.status, refused.header("set-cookie")), (401, None));
    }
    assert_eq!(sessions[0].get("instances").await.status, 303, "the oldest of eleven");
    for session in &sessions[1..] {
        assert_eq!(session.get("instances").await.status, 200);
    }
    assert_eq!(operator.get("instances").await.status, 200);
}

/// Sends wrong tokens at the same time.
fn wrong_tokens(stranger: &Browser, times: usize) -> JoinSet<HttpResponse> {
    let send = |stranger: Browser| async move { stranger.post("sign-in", "token=wrong").await };
    (0..times).map(|_| send(stranger.clone())).collect()
}

#[tokio::test]
async fn a_right_token_does_not_wait_for_wrong_ones() {
    let server = start_with_auth(&["server.limits.connections-per-address=10000"]);
    let stranger = Browser::new(&server);
    let mut wrong = wrong_tokens(&stranger, 20);
    let first = wrong.join_next().await.expect("an answer").expect("no panic");
    assert_eq!(first.status, 401);
    // From the same address, as all that is behind one proxy.
    assert_eq!(Browser::new(&server).sign_in(ADMIN).await.status, 303);
    assert_eq!(Browser::new(&server).sign_in(CHECK).await.status, 403, "known, without a role");
    while wrong.try_join_next().is_some() {}
    assert!(wrong.len() > 10, "{} of 20 still wait: the last ones for 5 s", wrong.len());
}

#[tokio::test]
async fn roles_are_those_of_this_moment() {
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", &auth(&[(ADMIN, "roles: [admin]")]));
    let server = Rlaas::start_from(&file, &[CONSOLE]);
    let browser = Browser::signed_in(&server, ADMIN).await;
    assert_eq!(browser.get("instances").await.status, 200);
    let reload = |tokens: &[(&str, &str)]| {
        dir.write("rlaas.yaml", &auth(tokens));
        server.signal("HUP");
    };
    let becomes = async |status: u16, what: &str| {
        eventually(what, TIMEOUT, async || browser.get("instances").await.status == status).await;
    };
    reload(&[(ADMIN, "roles: [check]")]);
    becomes(403, "the role is taken away").await;
    reload(&[(ADMIN, "roles: [operate]")]);
    becomes(200, "another role is given").await;
    reload(&[(ADMIN, "projects: [shop], roles: [admin]")]);
    becomes(403, "the role is limited to a project").await;
    reload(&[(OPERATE, "roles: [operate]")]);
    becomes(303, "the token is taken off the list").await;
    reload(&[(ADMIN, "roles: [admin]")]);
    eventually("the token is listed again", TIMEOUT, async || {
        Browser::new(&server).sign_in(ADMIN).await.status == 303
    })
    .await;
    assert_eq!(browser.get("instances").await.status, 303, "its session has ended");
}

#[tokio::test]
async fn a_sign_in_leads_back_to_the_page_of_a_form() {
    let server = start_with_auth(&[]);
    let browser = Browser::new(&server);
    let sent = async |page: &str| {
        let at = format!("http://{}", browser.address);
        let headers = format!("Origin: {at}\r\nReferer: {page}\r\n");
        let moved = browser.post_with("rule-update", &headers, "limit=7").await;
        moved.header("location").expect("a page").to_owned()
    };
    let rule = "https://ops.example/limits/console/rule?project=shop&name=pay";
    let next = "sign-in?next=rule%3Fproject%3Dshop%26name%3Dpay&unsent=1";
    assert_eq!(sent(rule).await, next);
    assert_eq!(sent("https://ops.example/other").await, "sign-in?unsent=1");
}
