//! Redis is away: each form responds with its page, which says so and keeps what was typed.

use super::CONSOLE;
use super::browser::{Browser, form_with};
use rlaas_testkit::eventually;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::RedisServer;
use serde_json::{Value, json};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(20);
const TYPED: &str = "typed-before-the-outage";
const KEY: &str = "key?project=shop&user_id=alice&resource=%2Fpay";
const PROJECT: &str = "project?id=shop";

/// Forms: the page, a part of the form, its route and fields.
const FORMS: [(&str, &str, &str, &str); 14] = [
    (KEY, "value=\"reset\"", "key", "change=reset"),
    (KEY, "value=\"refund\"", "key", "change=refund&units=7"),
    (KEY, "value=\"ban\"", "key", "change=ban&ttl=2h"),
    (KEY, "value=\"unban\"", "key", "change=unban"),
    (KEY, "value=\"set-limit\"", "key", "change=set-limit&ttl=2h&limit=9&burst="),
    (KEY, "value=\"clear-limit\"", "key", "change=clear-limit"),
    (KEY, "value=\"ban-project\"", "key", "change=ban-project&lasts=1h"),
    ("projects", "id=\"new-id\"", "projects", "id=market&name=&unmatched=deny"),
    (PROJECT, "\"project-update\"", "project-update", "name=Renamed&unmatched=allow"),
    (PROJECT, "\"project-delete\"", "project-delete", "confirm=shop"),
    (PROJECT, "\"project-key-create\"", "project-key-create", "name=web&environment=&end="),
    (PROJECT, "\"project-key-rotate\"", "project-key-rotate", "grace=0"),
    (PROJECT, "\"project-key-revoke\"", "project-key-revoke", ""),
    ("history", "\"roll-back\"", "roll-back", ""),
];

#[tokio::test]
async fn every_form_says_that_redis_is_away_and_keeps_what_was_typed() {
    let mut redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &[CONSOLE, "http.hosts=test", "auth.api-keys=accepted"]);
    let post = async |path: &str, body: Value| server.post(path, &body.to_string()).await.0;
    let project = json!({ "project": { "id": "shop" } });
    eventually("a project", TIMEOUT, async || post("/v1/projects", project.clone()).await == 201)
        .await;
    for limit in [5, 6] {
        let rule =
            json!({ "name": "pay", "maxRequests": limit, "window": "60s", "overridable": true });
        let rules = json!({ "rules": [rule] });
        assert_eq!(post("/v1/projects/shop/rules:apply", rules).await, 200);
    }
    assert_eq!(post("/v1/projects/shop/keys", json!({})).await, 201);
    let browser = Browser::new(&server);
    // A ban and another limit, which can be ended.
    for (_, part, route, fields) in [FORMS[2], FORMS[4]] {
        let form = form_with(&browser.get(KEY).await.body, part);
        let sent = browser.post(route, &format!("{form}&{fields}&reason=before")).await;
        assert_eq!(sent.status, 303, "{part}: {sent:?}");
    }
    let list = browser.get("history?project=shop").await.body;
    let oldest = list.rsplit("&amp;revision=").next().and_then(|rest| rest.split('"').next());
    let history = format!("history?project=shop&revision={}", oldest.expect("a revision"));
    let mut forms = Vec::new();
    for (page, part, route, fields) in FORMS {
        let page = browser.get(if page == "history" { &history } else { page }).await.body;
        forms.push((route, format!("{}&{fields}&reason={TYPED}", form_with(&page, part)), part));
    }

    redis.kill();
    for (route, form, part) in forms {
        let refused = browser.post(route, &form).await;
        assert_eq!(refused.status, 503, "{part}: {refused:?}");
        let body = &refused.body;
        assert!(
            body.contains("<nav") && body.contains("class=\"problem\" role=\"alert\""),
            "{body}"
        );
        assert!(body.to_lowercase().contains("store unavailable"), "{part}: {body}");
        let again = body.split("<form").find(|form| form.contains(part));
        let again = again.unwrap_or_else(|| panic!("{part} is not shown again: {body}"));
        assert!(again.contains(&format!("value=\"{TYPED}\"")), "{part}: {again}");
    }
    let typed = format!("audit?rule={TYPED}");
    for (page, status) in [
        (&*typed, 503),
        (&history, 503),
        ("instances", 200),
        ("now", 200),
        ("rules", 200),
        ("rule?project=shop&name=pay", 200),
        ("projects", 200),
        ("change?project=shop", 200),
    ] {
        let shown = browser.get(page).await;
        assert_eq!(shown.status, status, "{page}: {shown:?}");
        assert!(shown.body.contains("<nav") && shown.body.contains("<h1"), "{page}: {shown:?}");
        if status == 503 {
            assert!(shown.body.contains("role=\"alert\""), "{page}: {shown:?}");
        }
        assert!(page != typed || shown.body.contains(&format!("value=\"{TYPED}\"")), "{shown:?}");
    }
}

#[tokio::test]
async fn every_page_says_that_redis_has_lost_the_projects() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &[CONSOLE, "http.hosts=test"]);
    let project = json!({ "project": { "id": "shop" } }).to_string();
    eventually("a project", TIMEOUT, async || server.post("/v1/projects", &project).await.0 == 201)
        .await;
    let browser = Browser::new(&server);
    let says = "can't be changed. </strong>";
    assert!(!browser.get("now").await.body.contains(says));
    redis.query::<()>(&["FLUSHALL"]);
    eventually("the page says so", TIMEOUT, async || {
        let page = browser.get("now").await.body;
        page.contains(says) && page.contains("rlaas project restore")
    })
    .await;
}
