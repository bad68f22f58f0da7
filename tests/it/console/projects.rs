//! The page Projects: the list, one project, its keys and its usage.

use std::time::Duration;

use super::browser::{Browser, row, secret_of};
use super::{ADMIN, CONSOLE, OPERATE, auth, start_with_auth};
use crate::admin::watch_stats::TimedServers;
use crate::http::client::{HttpResponse, send_with};
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(20);
/// Every form of the pages, by its route.
const FORMS: [&str; 6] = [
    "projects",
    "project-update",
    "project-delete",
    "project-key-create",
    "project-key-rotate",
    "project-key-revoke",
];

pub(super) fn start() -> Rlaas {
    Rlaas::start(&[CONSOLE, "http.hosts=test", "auth.api-keys=accepted"])
}

/// Returns the value of the first field with a name in a page.
pub(super) fn field(html: &str, name: &str) -> String {
    let value = html.split(&format!("name=\"{name}\" value=\"")).nth(1);
    let value = value.and_then(|rest| rest.split('"').next());
    value.unwrap_or_else(|| panic!("no {name}: {html}")).to_owned()
}

/// Sends a form as the page has it, with these fields.
pub(super) async fn send(browser: &Browser, page: &str, route: &str, fields: &str) -> HttpResponse {
    let page = browser.get(page).await;
    let secret = secret_of(&page.body).unwrap_or_else(|| panic!("no form: {page:?}"));
    let id = field(&page.body, "request_id");
    browser.post(route, &format!("secret={secret}&request_id={id}&{fields}")).await
}

pub(super) async fn create(browser: &Browser, fields: &str) -> HttpResponse {
    send(browser, "projects", "projects", &format!("unmatched=deny&{fields}")).await
}

/// Creates a key of the project shop, and returns its secret and the page that shows it.
async fn create_key(browser: &Browser, fields: &str) -> (String, HttpResponse) {
    let fields = format!("project=shop&{fields}");
    let page = send(browser, "project?id=shop", "project-key-create", &fields).await;
    assert_eq!(page.status, 200, "{page:?}");
    let secret = page.body.split("readonly value=\"").nth(1);
    let secret = secret.and_then(|rest| rest.split('"').next()).expect("a secret");
    (secret.to_owned(), page)
}

/// Asks for a decision with a key, and returns the status.
async fn check(server: &Rlaas, secret: &str) -> u16 {
    let headers = format!("Content-Type: application/json\r\nX-Api-Key: {secret}\r\n");
    let body = json!({ "userId": "alice", "resource": "/pay" }).to_string();
    send_with(server, "POST", "/v1/check", &headers, Some(&body)).await.status
}

async fn project(server: &Rlaas, id: &str) -> Option<Value> {
    let (status, body) = server.get(&format!("/v1/projects/{id}")).await;
    (status == 200).then(|| serde_json::from_str(&body).expect("JSON"))
}

#[tokio::test]
async fn a_project_is_created_once_changed_and_deleted() {
    let server = start();
    let browser = Browser::new(&server);
    let page = browser.get("projects").await;
    assert!(page.body.contains("requests without an API key"), "{}", page.body);
    let form = format!(
        "secret={}&request_id={}&unmatched=allow&name=Shop&reason=T-1",
        field(&page.body, "secret"),
        field(&page.body, "request_id")
    );
    let first = browser.post("projects", &form).await;
    assert_eq!(first.status, 303, "{first:?}");
    let link = first.header("location").expect("a location").to_owned();
    let again = browser.post("projects", &form).await;
    let id = |link: &str| link.split("id=").nth(1)?.split('&').next().map(str::to_owned);
    let again = again.header("location").expect("a location").to_owned();
    assert_eq!(id(&link), id(&again), "a double click makes one project");
    let shown = browser.get(&link).await;
    assert!(shown.body.contains("was created.") && shown.body.contains("Shop"), "{shown:?}");
    let id = id(&link).expect("an id");
    let made = project(&server, &id).await.expect("a project");
    assert_eq!(made["project"]["unmatched"], "UNMATCHED_POLICY_ALLOW", "{made}");
    let other = browser.post("projects", &form.replace("Shop", "Other")).await;
    assert!(other.status == 409 && other.body.contains("sent before"), "{other:?}");

    let page = format!("project?id={id}");
    let etag = field(&browser.get(&page).await.body, "etag");
    let saved = format!("project={id}&etag={etag}&name=Market&unmatched=deny&reason=T-2");
    let saved = send(&browser, &page, "project-update", &saved).await;
    assert_eq!(saved.status, 303, "{saved:?}");
    let made = project(&server, &id).await.expect("a project");
    assert_eq!(made["project"]["displayName"], "Market");
    assert_eq!(made["project"]["unmatched"], "UNMATCHED_POLICY_DENY");

    let wrong = send(&browser, &page, "project-delete", &format!("project={id}&confirm=x")).await;
    assert!(wrong.status == 400 && wrong.body.contains("Id to confirm must be"), "{wrong:?}");
    assert!(project(&server, &id).await.is_some());
    let right = format!("project={id}&confirm={id}&reason=T-3");
    let right = send(&browser, &page, "project-delete", &right).await;
    assert_eq!(right.status, 303, "{right:?}");
    assert_eq!(project(&server, &id).await, None);
    assert_eq!(browser.get(&page).await.status, 404);
    let audit = browser.get("audit").await.body;
    for reason in ["T-1", "T-2", "T-3"] {
        assert_eq!(audit.matches(&format!(">{reason}<")).count(), 1, "{reason}: {audit}");
    }
}

#[tokio::test]
async fn of_two_people_who_edit_at_once_the_second_compares() {
    let server = start();
    let browser = Browser::new(&server);
    create(&browser, "id=shop&name=Shop").await;
    let etag = field(&browser.get("project?id=shop").await.body, "etag");
    let save = async |etag: &str, name: &str| {
        let fields = format!("project=shop&etag={etag}&unmatched=deny&name={name}");
        send(&browser, "project?id=shop", "project-update", &fields).await
    };
    assert_eq!(save(&etag, "First").await.status, 303);
    assert_eq!(save(&etag, "First").await.status, 303, "the same form again");
    let refused = save(&etag, "Second").await;
    assert_eq!(refused.status, 409);
    for text in ["Somebody else has changed", ">First<", ">Second<", "value=\"Second\""] {
        assert!(refused.body.contains(text), "{text}: {}", refused.body);
    }
    assert_eq!(save(&field(&refused.body, "etag"), "Second").await.status, 303);
    let made = project(&server, "shop").await.expect("a project");
    assert_eq!(made["project"]["displayName"], "Second");
}

#[tokio::test]
async fn a_secret_is_shown_once_and_nowhere_else() {
    let server = start();
    let browser = Browser::new(&server);
    create(&browser, "id=shop").await;
    let page = browser.get("project?id=shop").await.body;
    let form = format!(
        "secret={}&request_id={}&project=shop&name=till&environment=test&end=",
        field(&page, "secret"),
        field(&page, "request_id")
    );
    let shown = browser.post("project-key-create", &form).await;
    assert_eq!((shown.status, shown.header("cache-control")), (200, Some("no-store")));
    let secret = field(&shown.body.replace("readonly", "name=\"x\""), "x");
    assert!(secret.starts_with("rlaas_test_"), "{secret}");
    assert_eq!(check(&server, &secret).await, 403, "no rule");
    let again = browser.post("project-key-create", &form).await;
    assert!(again.body.contains("was created by this form before"), "{again:?}");
    let random = &secret["rlaas_test_".len() + 8..];
    for later in [
        again.body,
        browser.get("project?id=shop").await.body,
        browser.get("audit").await.body,
        server.log(),
    ] {
        assert!(!later.contains(random), "{later}");
    }
    let page = browser.get("project?id=shop").await.body;
    for text in [">till<", ">test<", "active", "in the hour from"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert_eq!(page.matches("Revoke now").count(), 1, "{page}");
}

#[tokio::test]
async fn keys_are_replaced_and_revoked() {
    let server = start();
    let browser = Browser::new(&server);
    create(&browser, "id=shop").await;
    let (first, _) = create_key(&browser, "end=2999-01-01T00:00").await;
    let key = field(&browser.get("project?id=shop").await.body, "key");
    let rotate = async |fields: &str| {
        let fields = format!("project=shop&key={key}&{fields}");
        send(&browser, "project?id=shop", "project-key-rotate", &fields).await
    };
    let wrong = rotate("grace=7").await;
    assert!(wrong.status == 400 && wrong.body.contains("The replaced key must be"), "{wrong:?}");
    let rotated = rotate("grace=3600").await;
    assert!(rotated.status == 200 && rotated.body.contains("It replaces the key"), "{rotated:?}");
    let second = field(&rotated.body.replace("readonly", "name=\"x\""), "x");
    for secret in [&first, &second] {
        assert_eq!(check(&server, secret).await, 403, "valid, without a rule");
    }
    let ended = rotate("grace=3600").await;
    assert!(ended.status == 409 && ended.body.contains("replaced already"), "{ended:?}");
    let fields = format!("project=shop&key={key}&reason=leaked");
    let revoked = send(&browser, "project?id=shop", "project-key-revoke", &fields).await;
    assert_eq!(revoked.status, 303, "{revoked:?}");
    eventually("the end of the key", TIMEOUT, async || check(&server, &first).await == 401).await;
    assert_eq!(check(&server, &second).await, 403);
    let page = browser.get("project?id=shop").await.body;
    assert!(page.contains("revoked</span> <time ") && page.contains("replaced by"), "{page}");
}

#[tokio::test]
async fn fields_are_checked_and_stay() {
    let server = start();
    let browser = Browser::new(&server);
    let hostile = "%3Cscript%3Ealert(1)%3C/script%3E%E2%80%AE";
    let created = create(&browser, &format!("id=shop&name={hostile}")).await;
    assert_eq!(created.status, 303, "{created:?}");
    let long = "a".repeat(1_025);
    for (fields, text) in [
        ("id=Shop", "Id must be"),
        ("id=a&unmatched=no", "given twice"),
        (&format!("id=a&name={}", "n".repeat(129)), "Name must be"),
        (&format!("id=a&reason={long}"), "Why must be at most 1024 bytes"),
    ] {
        let refused = create(&browser, fields).await;
        assert!(refused.status == 400 && refused.body.contains(text), "{text}: {refused:?}");
    }
    let kept = create(&browser, &format!("id=%22%3E%3Cb%3E&reason={hostile}")).await.body;
    assert!(kept.contains("value=\"&quot;&gt;&lt;b&gt;\"") && !kept.contains("<script>"), "{kept}");
    let taken = create(&browser, "id=shop").await;
    assert!(taken.status == 409 && taken.body.contains("with this id exists"), "{taken:?}");
    for (fields, text) in [
        ("environment=LIVE", "Environment must be"),
        ("end=tomorrow", "End must be a time"),
        ("end=2001-01-01T00:00", "End must be in the future"),
        ("name=%00&end=x", "End must be a time"),
    ] {
        let fields = format!("project=shop&{fields}");
        let refused = send(&browser, "project?id=shop", "project-key-create", &fields).await;
        assert!(refused.status == 400 && refused.body.contains(text), "{text}: {refused:?}");
    }
    for page in ["projects", "project?id=shop", "projects?q=%3Cscript%3E"] {
        let page = browser.get(page).await;
        assert!(page.status == 200 && !page.body.contains("<script>"), "{page:?}");
        // An input has the name as it is.
        let shown = page.body.replace("\u{202e}\" autocomplete", "");
        assert!(!shown.contains('\u{202e}'), "{page:?}");
    }
    assert!(browser.get("project?id=shop").await.body.contains("U+202E"));
    for (page, status) in [
        ("projects?page=0", 400),
        ("projects?page=x", 400),
        ("projects?page=9", 200),
        ("projects?q=a&q=b", 400),
        ("project?id=none", 404),
        ("project", 404),
        ("usage.csv?project=none", 404),
        ("project?id=_", 200),
    ] {
        assert_eq!(browser.get(page).await.status, status, "{page}");
    }
}

#[tokio::test]
async fn many_projects_are_searched_and_paged() {
    let server = start();
    let browser = Browser::new(&server);
    for number in 0..120 {
        let project = json!({ "project": { "id": format!("shop-{number}") } }).to_string();
        assert_eq!(server.post("/v1/projects", &project).await.0, 201);
    }
    let first = browser.get("projects").await.body;
    for text in [">shop-119<", ">shop-70<", "page=2\"", "rel=\"next\""] {
        assert!(first.contains(text), "{text}: {first}");
    }
    assert!(!first.contains(">shop-69<") && !first.contains("rel=\"prev\""), "{first}");
    let last = browser.get("projects?page=3").await.body;
    assert!(last.contains(">shop-0<") && last.contains(">_<"), "{last}");
    assert!(!last.contains("rel=\"next\""), "{last}");
    let found = browser.get("projects?q=SHOP-11").await.body;
    assert!(found.contains(">shop-11<") && found.contains(">shop-110<"), "{found}");
    assert!(!found.contains(">shop-12<"), "{found}");
    assert!(browser.get("projects?q=nothing").await.body.contains("No project fits."));
}

#[tokio::test]
async fn a_project_begins_with_its_requests_keys_and_rules() {
    let settings = [CONSOLE, "http.hosts=test", "auth.api-keys=accepted"];
    let mut timed = TimedServers::start_from("rules: []\n", 1, &settings);
    let browser = Browser::new(&timed.servers[0]);
    create(&browser, "id=shop").await;
    create(&browser, "id=idle").await;
    // There is no point yet: nothing is known, which is not nothing.
    let cells = async |id: &str| row(&browser.get("projects").await.body, id).unwrap_or_default();
    assert_eq!(cells("shop").await, ["–", "–", "–", "0", "0"]);
    let rule = json!({ "rule": { "name": "pay", "maxRequests": "2", "window": "3600s" } });
    assert_eq!(timed.servers[0].post("/v1/projects/shop/rules", &rule.to_string()).await.0, 201);
    let (secret, _) = create_key(&browser, "").await;
    for status in [200, 200, 429, 429] {
        assert_eq!(check(&timed.servers[0], &secret).await, status);
    }
    eventually("the requests", TIMEOUT, async || {
        timed.advance(10);
        cells("shop").await == ["4", "50 %", "0", "1", "1"]
    })
    .await;
    assert_eq!(cells("idle").await, ["0", "0 %", "0", "0", "0"]);
    let page = browser.get("project?id=shop").await.body;
    let places = [">50 %<", ">pay<", "API keys</h2>", "Usage by day", "<summary>Settings<"];
    let places = places.map(|text| page.find(text).unwrap_or_else(|| panic!("{text}: {page}")));
    assert!(places.is_sorted(), "{places:?}");
}

#[tokio::test]
async fn usage_is_shown_and_downloaded() {
    let server = start();
    let browser = Browser::new(&server);
    create(&browser, "id=shop").await;
    assert!(browser.get("project?id=shop").await.body.contains("No request was decided"));
    let rule = json!({ "rule": { "name": "pay", "maxRequests": "2", "window": "3600s" } });
    let (status, answer) = server.post("/v1/projects/shop/rules", &rule.to_string()).await;
    assert_eq!(status, 201, "{answer}");
    let (secret, _) = create_key(&browser, "").await;
    eventually("the rule", TIMEOUT, async || check(&server, &secret).await == 429).await;
    let page = browser.get("project?id=shop").await.body;
    for text in
        ["per day (UTC)", "Table of usage by day", "more may come", "usage.csv?project=shop"]
    {
        assert!(page.contains(text), "{text}: {page}");
    }
    for (by, texts) in [
        ("key", ["Usage by key", "usage.csv?project=shop&amp;by=key"]),
        ("rule", ["Usage by rule", "<bdi class=\"foreign\">pay</bdi></th><td class=\"right\">"]),
    ] {
        let page = browser.get(&format!("project?id=shop&by={by}")).await.body;
        assert!(texts.iter().all(|text| page.contains(text)), "{page}");
    }
    let file = browser.get("usage.csv?project=shop&by=rule").await;
    assert!(file.body.trim_end().ends_with(",pay"), "{}", file.body);
    let file = browser.get("usage.csv?project=shop").await;
    let content_type = file.header("content-type").expect("a type");
    assert!(content_type.starts_with("text/csv"), "{content_type}");
    let disposition = file.header("content-disposition").expect("a disposition");
    assert_eq!(disposition, "attachment; filename=\"usage-shop.csv\"");
    let mut lines = file.body.split("\r\n");
    let header = "project_id,day,allowed,denied,units,preliminary,key,rule";
    assert_eq!(lines.next(), Some(header));
    assert!(lines.next().is_some_and(|line| line.starts_with("shop,") && line.contains(",2,")));
}

#[tokio::test]
async fn roles_are_those_of_the_operations() {
    let server = start_with_auth(&["auth.api-keys=accepted"]);
    let operator = Browser::signed_in(&server, OPERATE).await;
    let admin = Browser::signed_in(&server, ADMIN).await;
    assert_eq!(create(&admin, "id=shop").await.status, 303);
    let shown = operator.get("project?id=shop").await;
    assert!(shown.status == 200 && !shown.body.contains("Create an API key"), "{shown:?}");
    assert!(!shown.body.contains("Delete the project"), "{shown:?}");
    assert!(!operator.get("projects").await.body.contains("Create project"));
    let secret = operator.secret("projects").await;
    for route in FORMS {
        let body = format!("secret={secret}&project=shop&id=b&unmatched=deny&confirm=shop");
        let refused = operator.post(route, &body).await;
        assert_eq!(refused.status, 403, "{route}: {refused:?}");
        assert!(refused.body.contains("role admin is required"), "{route}: {refused:?}");
        let body = body.replace(&secret, "other");
        let refused = admin.post(route, &body).await;
        assert!(refused.status == 403 && refused.body.contains("Nothing was changed"), "{route}");
    }
    assert_eq!(admin.get("project?id=shop").await.status, 200);
    assert_eq!(admin.get("project?id=b").await.status, 404);

    let file = TempDir::new();
    let of_shop = auth(&[(ADMIN, "projects: [shop], roles: [admin]"), (OPERATE, "roles: [admin]")]);
    let server = Rlaas::start_from(
        &file.write("rlaas.yaml", &of_shop),
        &[CONSOLE, "auth.api-keys=accepted"],
    );
    let of_all = Browser::signed_in(&server, OPERATE).await;
    for id in ["shop", "other"] {
        assert_eq!(create(&of_all, &format!("id={id}")).await.status, 303);
    }
    let of_shop = Browser::signed_in(&server, ADMIN).await;
    let listed = of_shop.get("projects").await.body;
    assert!(listed.contains(">shop<") && !listed.contains(">other<"), "{listed}");
    assert!(!listed.contains("Create project"), "{listed}");
    for page in ["project?id=other", "project?id=_", "usage.csv?project=other"] {
        assert_eq!(of_shop.get(page).await.status, 404, "{page}");
    }
    let secret = of_shop.secret("project?id=shop").await;
    for (route, project, status) in [
        ("projects", "more", 403),
        ("project-delete", "shop", 403),
        ("project-delete", "other", 404),
        ("project-update", "other", 404),
        ("project-key-create", "other", 404),
        ("project-key-create", "shop", 200),
    ] {
        let body = format!("secret={secret}&project={project}&id={project}&confirm={project}");
        assert_eq!(of_shop.post(route, &body).await.status, status, "{route} {project}");
    }
}

#[tokio::test]
async fn without_redis_projects_are_shown_and_changes_refused() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &[CONSOLE, "http.hosts=test"]);
    let browser = Browser::new(&server);
    let created = async || create(&browser, "id=shop").await.status == 303;
    eventually("a project", TIMEOUT, created).await;
    drop(redis);
    let page = browser.get("project?id=shop").await;
    assert_eq!(page.status, 200, "{page:?}");
    assert!(
        page.body.contains("The usage can&#39;t be read")
            || page.body.contains("The usage can't be read"),
        "{page:?}"
    );
    let etag = field(&page.body, "etag");
    let fields = format!("project=shop&etag={etag}&unmatched=deny&name=x");
    let refused = send(&browser, "project?id=shop", "project-update", &fields).await;
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.body.contains("value=\"x\""), "{refused:?}");
    assert_eq!(browser.get("usage.csv?project=shop").await.status, 503);
}
