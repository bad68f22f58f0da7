//! The page of exceptions: the bans and other limits in force, and their end.

use super::browser::{Browser, encoded, form_with, row};
use super::projects::field;
use super::{ADMIN, CONSOLE, OPERATE, auth};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::Rlaas;
use serde_json::json;

const RULES: &str = "\
rules:
  - {name: pay, endpoint: /pay, limit: 3, window: 1h, overridable: true}
  - {name: search, endpoint: /search, limit: 3, window: 1h, overridable: true}
  - {name: fixed, endpoint: /fixed, limit: 3, window: 1h}
";

async fn post(server: &Rlaas, path: &str, body: &serde_json::Value) {
    let headers = format!("Authorization: Bearer {ADMIN}\r\nContent-Type: application/json\r\n");
    let body = body.to_string();
    let sent = crate::http::client::send_with(server, "POST", path, &headers, Some(&body)).await;
    assert_eq!(sent.status, 200, "{path}: {sent:?}");
}

/// Sends the form of the page with the button of its first exception, and returns the page after it.
async fn end_first(browser: &Browser) -> String {
    let page = browser.get("exceptions").await.body;
    let end = encoded(&field(&page, "end").replace("&amp;", "&"));
    let form = form_with(&page, "name=\"end\"");
    let sent = browser.post("exceptions", &format!("{form}&end={end}&reason=over")).await;
    assert_eq!(sent.status, 303, "{sent:?}");
    browser.get(sent.header("location").expect("a page")).await.body
}

#[tokio::test]
async fn exceptions_are_listed_and_ended_by_key() {
    let tokens = auth(&[(ADMIN, "roles: [admin, operate]"), (OPERATE, "roles: [operate]")]);
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", &format!("{tokens}{RULES}"));
    let server = Rlaas::start_from(&file, &[CONSOLE]);
    let browser = Browser::signed_in(&server, ADMIN).await;
    let empty = browser.get("exceptions").await;
    assert!(empty.status == 200 && empty.body.contains("No ban or other limit"), "{empty:?}");

    let hostile = "<script>alert(1)</script>\u{202e}";
    let parts = json!([{ "name": "user_id", "value": hostile }]);
    let ban = json!({ "parts": parts, "ttl": "3600s", "reason": hostile });
    post(&server, "/v1/admin/keys:ban", &ban).await;
    let selector = json!({ "key": { "parts": parts }, "rule": "search" });
    let grant = json!({ "limit": "500" });
    let limit = json!({ "selector": selector, "grant": grant, "ttl": "60s", "reason": "vip" });
    post(&server, "/v1/admin/keys:override", &limit).await;

    let page = browser.get("exceptions").await.body;
    for text in ["2</data> rules", "End all", "End it", "limit 500", ">vip<", "class=\"until\""] {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert!(!page.contains("<script>alert") && !page.contains('\u{202e}'), "{page}");
    let bans = browser.get("exceptions?kind=ban&project=_").await.body;
    assert!(bans.contains("End all") && !bans.contains(">vip<"), "{bans}");
    let limits = browser.get("exceptions?kind=limit").await.body;
    assert!(limits.contains(">vip<") && !limits.contains("End all"), "{limits}");
    for (query, status) in [("kind=x", 400), ("project=NO", 404), ("kind=ban&kind=ban", 400)] {
        assert_eq!(browser.get(&format!("exceptions?{query}")).await.status, status, "{query}");
    }
    let form = form_with(&page, "name=\"end\"");
    for (fields, status) in [
        ("reason=r&end=project%3D_%26rule%3Dpay%26id%3Dnobody%26kind%3Dban%26all%3D1", 404),
        ("reason=r&end=project%3D_%26rule%3Dnone%26id%3Dnobody%26kind%3Dban", 404),
        ("reason=&end=project%3D_%26rule%3Dpay%26id%3Dnobody%26kind%3Dban", 400),
    ] {
        let refused = browser.post("exceptions", &format!("{form}&{fields}")).await;
        assert_eq!(refused.status, status, "{fields}: {}", refused.body);
        assert!(refused.body.contains("Nothing was changed") && refused.body.contains("End all"));
    }

    let (first, second) = (end_first(&browser).await, end_first(&browser).await);
    let said = [first.as_str(), second.as_str()].concat();
    assert!(said.contains("The bans on 2 rules are ended."), "{said}");
    assert!(said.contains("The exception of rule search is ended: 500 → 3."), "{said}");
    assert!(second.contains("No ban or other limit is in force"), "{second}");
    assert_eq!(row(&second, "vip"), None);

    let operator = Browser::signed_in(&server, OPERATE).await;
    let refused = operator.get("exceptions").await;
    assert!(
        refused.status == 403 && refused.body.contains("role admin is required"),
        "{refused:?}"
    );
    let secret = operator.secret("key").await;
    let end = "end=project%3D_%26rule%3Dpay%26id%3Dalice%26kind%3Dban&reason=r";
    let refused = operator.post("exceptions", &format!("secret={secret}&{end}")).await;
    assert_eq!(refused.status, 403, "{}", refused.body);
}

#[tokio::test]
async fn the_end_of_all_bans_of_a_key_leaves_those_of_others() {
    const SHARED: &str =
        "  - {name: all, key-by: [resource], limit: 9, window: 1h, overridable: true}\n";
    let tokens = auth(&[(ADMIN, "roles: [admin, operate]")]);
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", &format!("{tokens}{RULES}{SHARED}"));
    let server = Rlaas::start_from(&file, &[CONSOLE]);
    let browser = Browser::signed_in(&server, ADMIN).await;
    // A request of the user without a resource meets this key, too.
    for parts in [
        json!([{ "name": "user_id", "value": "bob" }]),
        json!([{ "name": "resource", "value": "" }]),
    ] {
        let ban = json!({ "parts": parts, "ttl": "3600s", "reason": "abuse" });
        post(&server, "/v1/admin/keys:ban", &ban).await;
    }
    let page = browser.get("exceptions").await.body;
    let buttons = page.match_indices("name=\"end\"").map(|(at, _)| &page[at..]);
    let all = buttons.map(|button| field(button, "end")).find(|value| value.contains("all=1"));
    let end = encoded(&all.expect("a button").replace("&amp;", "&"));
    let form = form_with(&page, "name=\"end\"");
    let sent = browser.post("exceptions", &format!("{form}&end={end}&reason=over")).await;
    assert_eq!(sent.status, 303, "{sent:?}");
    let page = browser.get(sent.header("location").expect("a page")).await.body;
    assert!(page.contains("The bans on 2 rules are ended."), "{page}");
    assert!(page.contains("abuse"), "the ban of the shared key stays: {page}");
}
