//! The search in the head: it leads to what has a name, and no secret that is typed into it is left anywhere.

use super::browser::{Browser, encoded};
use super::{ADMIN, CONSOLE, OPERATE, auth};
use crate::http::client::{HttpResponse, send_with};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::Rlaas;
use serde_json::{Value, json};

const RULES: &str = "rules: [{name: pay, endpoint: /pay, limit: 3, window: 1h}]\n";

fn start() -> Rlaas {
    let tokens = auth(&[
        (ADMIN, "roles: [admin, operate, check]"),
        (OPERATE, "projects: [shop], roles: [operate]"),
    ]);
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", &format!("{tokens}{RULES}"));
    Rlaas::start_from(&file, &[CONSOLE, "auth.api-keys=accepted", "telemetry.log=trace"])
}

/// Calls the API as an administrator.
async fn call(server: &Rlaas, path: &str, body: Value) -> Value {
    let headers = format!("Authorization: Bearer {ADMIN}\r\nContent-Type: application/json\r\n");
    let response = send_with(server, "POST", path, &headers, Some(&body.to_string())).await;
    assert!([200, 201].contains(&response.status), "{path}: {response:?}");
    response.json()
}

/// Sends the form of the search, and returns the response.
async fn search(browser: &Browser, text: &str) -> HttpResponse {
    let secret = browser.secret("now").await;
    let text = encoded(text);
    browser.post("search", &format!("secret={secret}&find={text}")).await
}

/// Returns the page to which the search leads at once.
async fn leads_to(browser: &Browser, text: &str) -> String {
    let found = search(browser, text).await;
    assert_eq!(found.status, 303, "{text}: {found:?}");
    found.header("location").expect("a page").to_owned()
}

#[tokio::test]
async fn a_search_leads_to_what_has_the_name_and_lists_several() {
    let server = start();
    let browser = Browser::signed_in(&server, ADMIN).await;
    call(&server, "/v1/projects", json!({"project": {"id": "shop", "displayName": "The shop"}}))
        .await;
    for (text, page) in [
        ("alice", "key?user_id=alice"),
        (" pay ", "rule?project=_&name=pay"),
        ("shop", "project?id=shop"),
        ("The shop", "project?id=shop"),
        ("pa", "key?user_id=pa"),
        ("", "key"),
    ] {
        assert_eq!(leads_to(&browser, text).await, page, "{text}");
    }
    // A project, a rule and a user with the same name.
    call(&server, "/v1/projects", json!({"project": {"id": "pay"}})).await;
    let links = ["href=\"project?id=pay\"", "href=\"rule?project=_&amp;name=pay\""];
    let of_user = "href=\"key?user_id=pay\"";
    let two = search(&browser, "pay").await;
    assert!(two.status == 200 && links.iter().all(|link| two.body.contains(link)), "{two:?}");
    assert!(!two.body.contains(of_user), "no key of such a user is in use: {}", two.body);
    call(&server, "/v1/check", json!({"userId": "pay", "resource": "/pay"})).await;
    let three = search(&browser, "pay").await.body;
    assert!(links.iter().chain([&of_user]).all(|link| three.contains(link)), "{three}");
    // Nothing of other projects is found.
    let of_shop = Browser::signed_in(&server, OPERATE).await;
    assert_eq!(leads_to(&of_shop, "pay").await, "key?user_id=pay");
    assert_eq!(leads_to(&of_shop, "shop").await, "project?id=shop");
    let hostile = "<script>alert(1)</script>\u{202e}\"'&\r\n";
    let page = browser.get(&leads_to(&browser, hostile).await).await;
    assert!(page.status == 200 && !page.body.contains("<script>alert"), "{page:?}");
    assert_eq!(search(&browser, &"a".repeat(1_025)).await.status, 400);
}

#[tokio::test]
async fn the_secret_of_an_api_key_is_left_nowhere() {
    let server = start();
    let browser = Browser::signed_in(&server, ADMIN).await;
    call(&server, "/v1/projects", json!({"project": {"id": "shop"}})).await;
    let made = call(&server, "/v1/projects/shop/keys", json!({})).await;
    let secret = made["secret"].as_str().expect("a secret").to_owned();
    let id = made["key"]["id"].as_str().expect("an id").to_owned();
    let page = format!("key?user_id=rlaas_live_{id}");
    for text in [
        &*secret,
        &secret[..25],
        &format!("X-API-Key: {secret} "),
        &format!("RLAAS_API_KEY={secret}"),
        &format!("\"{secret}\""),
        &format!("X-API-Key:{secret}"),
        &id,
    ] {
        assert_eq!(leads_to(&browser, text).await, page, "{text}");
    }
    for text in [format!(" {secret}"), format!("Bearer {secret}")] {
        let typed = browser.get(&format!("key?user_id={}", encoded(&text))).await;
        assert_eq!((typed.status, typed.header("location")), (303, Some(&*page)), "{text}");
    }
    // That of another service, too.
    let foreign = format!("KEY=rlaas_test_Foreign1{}", "a".repeat(41));
    assert_eq!(leads_to(&browser, &foreign).await, "key?user_id=rlaas_test_Foreign1");
    let form = browser.get("now").await.body;
    let form = form.split("<form").find(|form| form.contains("name=\"find\"")).expect("a form");
    assert!(form.contains("method=\"post\"") && form.contains("action=\"search\""), "{form}");
    let refused = search(&browser, "rlaas_live_<b>TheRestIsSecret").await;
    assert!(refused.status == 400 && !refused.body.contains("TheRestIsSecret"), "{refused:?}");
    assert!(server.log().contains("signed in to the console"));
    for secret in [&secret[22..], "TheRestIsSecret", "Foreign1a"] {
        assert!(!server.log().contains(secret), "in the log");
    }
    assert_eq!(browser.get(&format!("search?find={id}")).await.status, 405);
    assert_eq!(browser.post("search", &format!("find={id}")).await.status, 403, "no form");
}

#[tokio::test]
async fn an_admin_without_operate_finds_and_revokes_a_key() {
    let tokens = auth(&[(ADMIN, "roles: [admin]")]);
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", &format!("{tokens}{RULES}"));
    let server = Rlaas::start_from(&file, &[CONSOLE, "auth.api-keys=accepted"]);
    call(&server, "/v1/projects", json!({"project": {"id": "shop"}})).await;
    let made = call(&server, "/v1/projects/shop/keys", json!({})).await;
    let (id, secret) = (made["key"]["id"].as_str(), made["secret"].as_str());
    let (id, secret) = (id.expect("an id"), secret.expect("a secret"));
    let browser = Browser::signed_in(&server, ADMIN).await;
    let page = browser.get(&leads_to(&browser, secret).await).await.body;
    let link = format!("href=\"project?id=shop&amp;key={id}#key-{id}\"");
    let answer = format!(">{id}</bdi> of the project <bdi class=\"foreign\">shop</bdi> is <");
    assert!(page.contains(&answer) && page.contains(&link), "{page}");
    assert!(!page.contains("not known"), "{page}");
}

#[tokio::test]
async fn an_id_that_only_looks_like_an_api_key_is_found_as_what_it_is() {
    let server = start();
    let browser = Browser::signed_in(&server, ADMIN).await;
    let user = "rlaas_team_engineers1";
    call(&server, "/v1/check", json!({"userId": user, "resource": "/pay"})).await;
    assert_eq!(leads_to(&browser, user).await, format!("key?user_id={user}"));
    let page = browser.get(&format!("key?user_id={user}")).await;
    assert!(
        page.status == 200 && page.body.contains(&format!(">no rule keyed by {user} refuses<")),
        "{page:?}"
    );
    call(&server, "/v1/check", json!({"userId": "rlaas_team_bo", "resource": "/pay"})).await;
    assert_eq!(leads_to(&browser, "rlaas_team_bo").await, "key?user_id=rlaas_team_bo");
    let project = json!({"project": {"id": "team", "displayName": "rlaas_team_x"}});
    call(&server, "/v1/projects", project).await;
    assert_eq!(leads_to(&browser, "rlaas_team_x").await, "project?id=team");
    // Both may be meant.
    let page = browser.get("key?user_id=rlaas_team_engineer").await.body;
    let both = "no rule keyed by rlaas_team_engineer refuses; no project that you may see has an API key engineer";
    assert!(page.contains(both), "{page}");
}
