//! The page of keys: what an id has used, and changes of it.

use super::browser::{Browser, encoded, form, row, secret_of};
use super::{ADMIN, CONSOLE, OPERATE, auth};
use crate::http::client::{HttpResponse, send_with};
use rlaas_testkit::process::{Rlaas, rlaas};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(20);
const RULES: &str = "\
rules:
  - {name: pay, endpoint: /pay, limit: 3, window: 1h, overridable: true, near-limit: 0.6}
  - {name: plain, endpoint: /pay, limit: 1000, window: 1h, shadow: true}
";

/// Starts a server with these rules, whose callers have the tokens of [`ADMIN`] and [`OPERATE`].
fn start(settings: &[&str]) -> Rlaas {
    let tokens = auth(&[(ADMIN, "roles: [admin, operate, check]"), (OPERATE, "roles: [operate]")]);
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", &format!("{tokens}{RULES}"));
    Rlaas::start_from(&file, &[&[CONSOLE], settings].concat())
}

async fn check(server: &Rlaas, user: &str) -> Value {
    let headers = format!("Authorization: Bearer {ADMIN}\r\nContent-Type: application/json\r\n");
    let body = json!({"userId": user, "resource": "/pay"}).to_string();
    let response = send_with(server, "POST", "/v1/check", &headers, Some(&body)).await;
    response.json()
}

/// Sends a form of a page, and returns the page to which it leads.
async fn send(browser: &Browser, page: &str, change: &str, more: &str) -> HttpResponse {
    let shown = browser.get(page).await.body;
    let sent =
        browser.post("key", &format!("{}&change={change}&{more}", form(&shown, change))).await;
    assert_eq!(sent.status, 303, "{change}: {sent:?}");
    browser.get(sent.header("location").expect("a page")).await
}

const ALICE: &str = "key?user_id=alice&resource=%2Fpay";

#[tokio::test]
async fn every_change_is_made_once_and_reported() {
    let server = start(&[]);
    let browser = Browser::signed_in(&server, ADMIN).await;
    let empty = browser.get("key").await;
    assert!(empty.status == 200 && empty.body.contains("Type the user id"), "{empty:?}");
    for _ in 0..4 {
        check(&server, "alice").await;
    }
    let page = browser.get(ALICE).await;
    assert_eq!(page.status, 200);
    for text in [
        ">refused</strong> by rule",
        "near the limit",
        "passes in",
        "shadow: refuses nothing",
        "3 per 1 h",
        "Nobody has changed them",
        "href=\"rule?project=_&amp;name=pay\"",
        "overridable: true",
    ] {
        assert!(page.body.contains(text), "{text}: {}", page.body);
    }
    let reset = send(&browser, ALICE, "reset", "reason=a+ticket").await;
    for text in ["The key of rule pay is reset: 3 → 0 used.", "Everywhere by 20", "a ticket"] {
        assert!(reset.body.contains(text), "{text}: {}", reset.body);
    }
    assert_eq!(check(&server, "alice").await["allowed"], true);
    check(&server, "alice").await;
    let refunded = send(&browser, ALICE, "refund", "reason=r&units=1").await;
    assert!(refunded.body.contains("are refunded: 2 → 1 used."), "{}", refunded.body);

    let banned = send(&browser, ALICE, "ban", "reason=abuse&ttl=2h").await;
    for text in [
        "is banned until 20",
        " UTC: 3 → banned.",
        "from a ban of this key",
        "<dt>Ban</dt>",
        "abuse",
    ] {
        assert!(banned.body.contains(text), "{text}: {}", banned.body);
    }
    assert_eq!(check(&server, "alice").await["allowed"], false);
    let free = send(&browser, ALICE, "unban", "reason=over").await;
    assert!(
        free.body.contains("not banned any more: banned → 3.")
            && !free.body.contains("<dt>Ban</dt>")
    );
    assert_eq!(check(&server, "alice").await["allowed"], true);

    let raised = send(&browser, ALICE, "set-limit", "reason=vip&ttl=7d&limit=500&burst=").await;
    for text in ["has another limit until 20", " UTC: 3 → 500.", "500 per 1 h", "set for this key"]
    {
        assert!(raised.body.contains(text), "{text}: {}", raised.body);
    }
    let unlimited = send(&browser, ALICE, "set-limit", "reason=vip&ttl=7d&limit=Unlimited").await;
    assert!(unlimited.body.contains("nothing is counted"), "{}", unlimited.body);
    let cleared = send(&browser, ALICE, "clear-limit", "reason=over").await;
    assert!(
        cleared.body.contains("has the limit of the rule again: unlimited → 3."),
        "{}",
        cleared.body
    );
    assert!(cleared.body.contains("from the rule") && !cleared.body.contains("Other limit"));

    // A form that is sent twice makes one change.
    let form = format!(
        "{}&change=refund&reason=twice&units=1",
        form(&browser.get(ALICE).await.body, "refund")
    );
    let mut outcomes = Vec::new();
    for _ in 0..2 {
        let sent = browser.post("key", &form).await;
        let page = browser.get(sent.header("location").expect("a page")).await.body;
        outcomes.push(page.contains("This form was sent before"));
    }
    assert_eq!(outcomes, [false, true]);
    let other = browser.post("key", &form.replace("units=1", "units=2")).await;
    assert_eq!(other.status, 409, "the same form with other values: {}", other.body);
    assert_eq!(browser.get("audit").await.body.matches("twice").count(), 1);
}

#[tokio::test]
async fn a_user_id_alone_shows_what_refused_it_and_leads_to_the_change() {
    let server = start(&["telemetry.top-keys=true"]);
    let browser = Browser::signed_in(&server, ADMIN).await;
    for _ in 0..5 {
        check(&server, "alice").await;
        check(&server, "bob").await;
    }
    let mut page = String::new();
    eventually("the refusals are counted", TIMEOUT, async || {
        page = browser.get("key?user_id=alice").await.body;
        // Each thread sends what it has counted by itself.
        row(&page, ">pay<").is_some_and(|row| row[0] == "2")
    })
    .await;
    assert_eq!(row(&page, ">pay<").expect("a rule")[0], "2", "{page}");
    let card = "key?project=_&rule=pay&id=alice&user_id=alice";
    let link = card.replace('&', "&amp;");
    let bare = "href=\"key?user_id=alice&amp;cost=1\"";
    let answer = "alice is refused by pay until ";
    for text in [&*link, "passes in", answer, "Raise the limit", "Ban on all rules", bare] {
        assert!(page.contains(text), "{text}: {page}");
    }
    // A row a rule, and those in shadow last.
    let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text}: {page}"));
    assert!(at("Raise the limit") < at("id=\"shadow\"") && at("id=\"shadow\"") < at(">plain<"));
    let reset = send(&browser, "key?user_id=alice", "reset", "reason=from+its+row").await.body;
    assert!(reset.contains("The key of rule pay is reset") && reset.contains(">alice<"), "{reset}");
    for _ in 0..4 {
        check(&server, "alice").await;
    }
    assert!(!page.contains(">bob<"), "{page}");
    // The rule plain refuses nothing.
    assert_eq!(page.matches("in shadow, refuses nothing").count(), 1, "{page}");
    let request = browser.get("key?user_id=alice&cost=1").await.body;
    assert!(request.contains("without resource outside of projects"), "{request}");
    let nobody = browser.get("key?user_id=nobody").await;
    assert!(nobody.status == 200 && nobody.body.contains("No rule that knows users"), "{nobody:?}");

    let fields = "reason=vip&lasts=1h&ttl=&limit=500&burst=&refill=on";
    let raised = send(&browser, card, "set-limit", fields).await.body;
    for text in ["has another limit until 20", "What was used is given back.", "0 of 500 used"] {
        assert!(raised.contains(text), "{text}: {raised}");
    }
    let banned = send(&browser, card, "ban-project", "reason=flood&lasts=15m&ttl=").await.body;
    for text in [
        "The key is banned on pay.",
        "Not banned, since they are not overridable: ",
        "plain",
        "Rules that are made later are not covered.",
    ] {
        assert!(banned.contains(text), "{text}: {banned}");
    }
    assert_eq!(check(&server, "alice").await["allowed"], false);
    let again = send(&browser, card, "ban-project", "reason=flood&lasts=15m").await.body;
    assert!(again.contains("No ban was set. It was banned before on pay."), "{again}");
    let rule = browser.get("rule?project=_&name=pay").await.body;
    assert_eq!(rule.matches(">banned</span>").count(), 1, "alice, not bob: {rule}");
    let page = browser.get("key?user_id=alice").await.body;
    for text in [">banned</span> until", "alice is banned on pay until ", "flood"] {
        assert!(page.contains(text), "{text}: {page}");
    }
}

#[tokio::test]
async fn a_ban_of_a_moment_ago_is_the_answer_although_nobody_has_asked_and_holds_in_all_projects() {
    let tokens = auth(&[(ADMIN, "roles: [admin, operate, check]")]);
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", &format!("{tokens}{RULES}"));
    let shop = "project: shop\nrules: [{name: read, limit: 9, window: 1h, overridable: true}]\n";
    let shop = dir.write("shop.yaml", shop);
    let mut serve = rlaas(&["serve"]);
    serve.args([Path::new("--config"), &file, Path::new("--config"), &shop]);
    let server = Rlaas::start_with(serve, &[CONSOLE, "telemetry.top-keys=false"]);
    let browser = Browser::signed_in(&server, ADMIN).await;
    let card = "key?project=_&rule=pay&id=eve";
    let page = browser.get(card).await.body;
    assert!(page.contains("in every project that you administer"), "{page}");
    let names = "Projects that you administer: <bdi class=\"foreign\">_, shop</bdi>";
    assert!(page.contains(names), "{page}");
    let fields = "reason=flood&lasts=15m&ttl=&everywhere=on";
    let banned = send(&browser, card, "ban-project", fields).await.body;
    assert!(banned.contains("The key is banned on _/pay, shop/read."), "{banned}");
    let page = browser.get("key?user_id=eve").await.body;
    assert!(page.contains("eve is banned on pay and read (shop) until "), "{page}");
    // Each row has its reason and the forms of its own project.
    assert_eq!(page.matches(": <bdi class=\"foreign\">flood</bdi>").count(), 2, "{page}");
    for (project, rule) in [("_", "pay"), ("shop", "read")] {
        let search = format!("project={project}&amp;user_id=eve&amp;rule={rule}&amp;id=eve");
        let search = format!("name=\"search\" value=\"{search}\"");
        assert!(page.contains(&search), "{search}: {page}");
    }
}

#[tokio::test]
async fn a_customer_and_an_api_key_are_looked_up_too() {
    let tokens = auth(&[(ADMIN, "roles: [admin, operate, check]")]);
    let dir = TempDir::new();
    let rules = "\
rules:
  - {name: by-customer, key-by: [customer], match: {resource: /q}, limit: 2, window: 1h, overridable: true}
  - {name: by-ip, key-by: [ip], match: {resource: /q}, limit: 9, window: 1h}
";
    let file = dir.write("rlaas.yaml", &format!("{tokens}{rules}"));
    let server = Rlaas::start_from(&file, &[CONSOLE, "auth.api-keys=accepted"]);
    let call = async |path: &str, body: Value| {
        let headers =
            format!("Authorization: Bearer {ADMIN}\r\nContent-Type: application/json\r\n");
        send_with(&server, "POST", path, &headers, Some(&body.to_string())).await.json()
    };
    let request = json!({"userId": "bob", "resource": "/q", "attributes": {"customer": "acme"}});
    call("/v1/check", request.clone()).await;
    let browser = Browser::signed_in(&server, ADMIN).await;
    let page = browser.get("key?user_id=acme").await.body;
    for text in [">no rule keyed by acme refuses<", ">by-customer<", "Raise the limit"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    call("/v1/check", request.clone()).await;
    let page = browser.get("key?user_id=acme").await.body;
    assert!(page.contains(">acme is refused by by-customer until "), "{page}");
    // It is found: the other one alone is not looked at.
    let others = "are not looked at: <data class=\"number\" value=\"1\">1</data>";
    assert!(page.contains(others), "{page}");
    // A request with a resource is answered first.
    let page = browser.get("key?user_id=acme&resource=/q").await.body;
    let [request, id] = ["A request ", "acme is refused by"].map(|text| page.find(text));
    assert!(request.is_some() && request < id, "{page}");

    let made = call("/v1/projects", json!({"project": {"id": "shop"}})).await;
    assert_eq!(made["project"]["id"], "shop", "{made}");
    let made = call("/v1/projects/shop/keys", json!({})).await;
    let (id, secret) = (&made["key"]["id"], made["secret"].as_str().expect("a secret"));
    let id = id.as_str().expect("an id");
    let typed = browser.get(&format!("key?user_id={secret}")).await;
    let beginning = format!("key?user_id=rlaas_live_{id}");
    assert_eq!((typed.status, typed.header("location")), (303, Some(&*beginning)));
    let answer = format!(">{id}</bdi> of the project <bdi class=\"foreign\">shop</bdi> is <");
    let link = format!("href=\"project?id=shop&amp;key={id}#key-{id}\"");
    let page = browser.get(&beginning).await.body;
    assert!(page.contains(&answer) && page.contains(&link), "{page}");
    assert!(!page.contains("Rules that it meets"), "{page}");
    // So is its id alone, which may be that of a user, too.
    let page = browser.get(&format!("key?user_id={id}")).await.body;
    assert!(page.contains(&answer) && page.contains(&link), "{page}");
    let found = call("/v1/admin/look-up", json!({"userId": id, "projectId": "-"})).await;
    assert_eq!(found["answer"], format!("API key {id} of the project shop is active"), "{found}");
    call("/v1/check", json!({"userId": id, "resource": "/q", "attributes": {"customer": id}}))
        .await;
    let found = call("/v1/admin/look-up", json!({"userId": id, "projectId": "-"})).await;
    let both = format!("API key {id} of the project shop is active; no rule keyed by {id} refuses");
    assert_eq!(found["answer"], both, "{found}");
    let unknown = browser.get("key?user_id=rlaas_live_AAAAAAAA").await.body;
    assert!(unknown.contains("no project that you may see has an API key AAAAAAAA"), "{unknown}");
    let empty = browser.get("key").await.body;
    let field = empty.split("<input").find(|input| input.contains("id=\"user_id\""));
    assert!(field.is_some_and(|field| field.contains("autofocus")), "{empty}");
}

#[tokio::test]
async fn a_form_that_is_not_valid_changes_nothing_and_keeps_its_fields() {
    let server = start(&[]);
    let browser = Browser::signed_in(&server, ADMIN).await;
    check(&server, "alice").await;
    let page = browser.get(ALICE).await.body;
    for (change, fields, problem) in [
        ("reset", "reason=", "Why must be 1 to 1024 bytes"),
        ("reset", &*format!("reason={}", "a".repeat(1025)), "Why must be 1 to 1024 bytes"),
        ("refund", "reason=typed&units=0", "Units must be 1 to"),
        ("refund", "reason=typed&units=%3Cscript%3E", "Units must be 1 to"),
        ("ban", "reason=typed&ttl=", "Another time must be 1s to 366d"),
        ("ban", "reason=typed&ttl=400d", "Another time must be 1s to 366d"),
        ("set-limit", "reason=typed&ttl=1h&limit=0", "Limit must be 1 to"),
        ("set-limit", "reason=typed&ttl=1h&limit=5000000000", "Limit must be 1 to"),
        ("set-limit", "reason=typed&ttl=1h&limit=7&burst=x", "Most at once must be 1 to"),
        (
            "set-limit",
            "reason=typed&ttl=1h&limit=unlimited&burst=1",
            "Most at once must be unset without limit",
        ),
        ("reset", "reason=typed&reason=typed", "reason: given twice"),
    ] {
        let refused =
            browser.post("key", &format!("{}&change={change}&{fields}", form(&page, change))).await;
        assert_eq!(refused.status, 400, "{change} {fields}: {refused:?}");
        assert!(refused.body.contains(problem), "{problem}: {}", refused.body);
        assert!(!refused.body.contains("<script>"), "{}", refused.body);
        assert!(refused.body.contains("<details id=\"") && refused.body.contains(" open>"));
        if fields.contains("typed&u") {
            assert!(refused.body.contains("value=\"typed\""), "{}", refused.body);
        }
    }
    let reset = format!("{}&change=reset", form(&page, "reset"));
    for (body, status) in [
        (reset.replace("change=reset", "change=explode"), 400),
        (reset.replace("of_rule=", "of_rule=x"), 404),
        (reset.replace("request_id=", "other_id="), 400),
        (reset.replace("search=", "search=%25ff&x="), 400),
        (reset.replace("secret=", "secret=x"), 403),
        (reset.replace("secret=", "other="), 403),
    ] {
        let refused = browser.post("key", &format!("{body}&reason=r")).await;
        assert_eq!(refused.status, status, "{body}: {}", refused.body);
    }
    let elsewhere = browser.post_with("key", "Origin: https://evil.example\r\n", &reset).await;
    assert_eq!(elsewhere.status, 403);
    let audit = browser.get("audit").await.body;
    assert!(audit.contains("Nothing has been changed"), "{audit}");
    for (query, status, problem) in [
        ("resource=%2Fpay", 400, "user_id must be 1 to 1024 bytes"),
        (&*format!("user_id={}", "a".repeat(1025)), 400, "user_id must be 1 to 1024 bytes"),
        ("user_id=a&attributes=plan", 400, "attributes must be lines"),
        ("user_id=a&project=none", 404, "no such project"),
        ("user_id=a&project=NO", 404, "no such project"),
        ("user_id=a&rule=none", 404, "rule must be the name of a rule"),
        ("id=alice", 400, "rule must be set"),
        ("id=a:b:c&rule=pay", 400, "id must be the id of a key"),
        ("user_id=%ff", 400, "in UTF-8"),
    ] {
        let page = browser.get(&format!("key?{query}")).await;
        assert_eq!(page.status, status, "{query}");
        assert!(page.body.contains(problem), "{problem}: {}", page.body);
    }
}

#[tokio::test]
async fn roles_are_those_of_the_api() {
    let server = start(&[]);
    let admin = Browser::signed_in(&server, ADMIN).await;
    let operator = Browser::signed_in(&server, OPERATE).await;
    check(&server, "alice").await;
    let (of_admin, shown) = (admin.get(ALICE).await.body, operator.get(ALICE).await.body);
    assert!(shown.contains("Reset this key") && !shown.contains("Ban this key"), "{shown}");
    assert!(!shown.contains("Last changes") && of_admin.contains("Last changes"));
    let reset = send(&operator, ALICE, "reset", "reason=r").await;
    assert!(reset.body.contains("is reset"), "{}", reset.body);
    // The form of an administrator, with the secret of the operator.
    let secret = secret_of(&shown).expect("a secret");
    for change in ["ban", "set-limit"] {
        let body = format!("{}&change={change}", form(&of_admin, change));
        let at = body.find('&').expect("fields");
        let body = format!("secret={secret}{}&reason=r&ttl=1h&limit=5", &body[at..]);
        let refused = operator.post("key", &body).await;
        assert_eq!(refused.status, 403, "{change}: {}", refused.body);
        assert!(refused.body.contains("role admin is required"), "{}", refused.body);
    }

    let tokens =
        auth(&[(ADMIN, "roles: [admin]"), (OPERATE, "projects: [shop], roles: [operate]")]);
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", &format!("{tokens}{RULES}"));
    let server = Rlaas::start_from(&file, &[CONSOLE]);
    let admin = Browser::signed_in(&server, ADMIN).await;
    let page = admin.get(ALICE).await;
    assert!(page.status == 200 && page.body.contains("The role operate is required"), "{page:?}");
    for hidden in ["Reset this key", "Refund units", "<dt>Used</dt>", "would be", "rlaas:rule:"] {
        assert!(!page.body.contains(hidden), "{hidden}: {}", page.body);
    }
    let reset = format!("{}&change=reset&reason=r", form(&page.body, "ban"));
    let refused = admin.post("key", &reset).await;
    assert_eq!(refused.status, 403, "{}", refused.body);
    assert!(refused.body.contains("role operate is required"), "{}", refused.body);
    for (change, fields, outcome) in [
        ("ban", "reason=r&ttl=1h", "is banned until"),
        ("set-limit", "reason=r&ttl=1h&limit=5", "has another limit until"),
        ("unban", "reason=r", "is not banned any more"),
        ("clear-limit", "reason=r", "has the limit of the rule again"),
    ] {
        let changed = send(&admin, ALICE, change, fields).await;
        assert!(changed.body.contains(outcome), "{change}: {}", changed.body);
        assert!(!changed.body.contains("<dt>Used</dt>"), "{}", changed.body);
    }
    assert!(admin.get(ALICE).await.body.contains("SetOverride"), "the audit is shown");
    let operator = Browser::signed_in(&server, OPERATE).await;
    let own = operator.get("key").await.body;
    assert!(own.contains("All projects") && own.contains("href=\"key\""), "{own}");
    assert!(!own.contains("href=\"exceptions\""), "{own}");
    for project in ["_", "", "blog", "shop"] {
        // The project shop does not exist either.
        let page = operator.get(&format!("{ALICE}&project={project}")).await;
        assert_eq!(page.status, 404, "{project}: {}", page.body);
    }
}

#[tokio::test]
async fn hostile_ids_are_found_by_their_links_and_do_nothing() {
    let server = start(&["audit.keys=clear"]);
    let browser = Browser::signed_in(&server, ADMIN).await;
    let long = "é".repeat(512);
    for id in ["<script>alert(1)</script>\u{202e}\0\"'&\r\n%:{}", &long] {
        check(&server, id).await;
        let link = format!("key?user_id={}&resource=%2Fpay", encoded(id));
        let page = browser.get(&link).await;
        assert!(page.status == 200 && page.body.contains("1 of 3 used"), "{page:?}");
        let reset = send(&browser, &link, "reset", &format!("reason={}", encoded(&id[..2]))).await;
        assert!(reset.body.contains("is reset: 1 → 0 used."), "{}", reset.body);
        for html in [&page.body, &reset.body] {
            assert!(!html.contains("<script>") && !html.contains(" style="), "{html}");
        }
    }
    let by_id = browser.get("key?rule=pay&id=alice").await;
    assert!(by_id.status == 200 && by_id.body.contains("0 of 3 used"), "{by_id:?}");
    let banned = send(&browser, "key?rule=pay&id=alice", "ban", "reason=r&ttl=1h").await;
    assert!(banned.body.contains("is banned until"), "{}", banned.body);
    assert_eq!(check(&server, "alice").await["allowed"], false);
}

#[tokio::test]
async fn without_redis_the_rules_are_shown_and_changes_refused() {
    let mut redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let server = start(&["store.backend=redis", &url]);
    eventually("the server is ready", TIMEOUT, async || server.get("/readyz").await.0 == 200).await;
    let browser = Browser::signed_in(&server, ADMIN).await;
    for _ in 0..9 {
        check(&server, "alice").await;
    }
    let page = browser.get(ALICE).await;
    assert_eq!(page.status, 200, "{}", page.body);
    let id_alone = "key?user_id=alice";
    eventually("the refusals are counted", TIMEOUT, async || {
        browser.get(id_alone).await.body.contains("alice is refused by pay")
    })
    .await;
    redis.kill();
    let away = browser.get(id_alone).await;
    assert_eq!(away.status, 503);
    for text in
        ["The keys of this id are not known", "can't be read", "Rules that it meets", "not known"]
    {
        assert!(away.body.contains(text), "{text}: {}", away.body);
    }
    let away = browser.get(ALICE).await;
    assert_eq!(away.status, 503);
    for text in [
        "can't be read: <bdi class=\"foreign\">store unavailable",
        "3 per 1 h",
        "not known",
        "there is no form for them",
        "Try again",
    ] {
        assert!(away.body.contains(text), "{text}: {}", away.body);
    }
    for form in ["Reset this key", "Set the limit", "Ban this key"] {
        assert!(page.body.contains(form) && !away.body.contains(form), "{form}: {}", away.body);
    }
    let body = format!("{}&change=reset&reason=a+typed+text", form(&page.body, "reset"));
    let refused = browser.post("key", &body).await;
    assert_eq!(refused.status, 503);
    assert!(refused.body.contains("value=\"a typed text\""), "{}", refused.body);
    redis.restart();
    eventually("the same form works again", TIMEOUT, async || {
        browser.post("key", &body).await.status == 303
    })
    .await;
}

#[tokio::test]
async fn a_raise_begins_with_the_limit_in_force_and_lowers_only_at_the_second_look() {
    let server = start(&[]);
    let browser = Browser::signed_in(&server, ADMIN).await;
    let shown = browser.get(ALICE).await.body;
    assert!(shown.contains("name=\"limit\" value=\"3\""), "{shown}");
    let raise = async |page: &str, button: &str, limit: &str| {
        let fields = format!("{}&change={button}&reason=r&lasts=1h", form(page, "set-limit"));
        browser.post("key", &format!("{fields}&ttl=&limit={limit}&burst=")).await
    };
    let outcome = async |sent: HttpResponse| {
        assert_eq!(sent.status, 303, "{sent:?}");
        browser.get(sent.header("location").expect("a page")).await.body
    };
    // The buttons are of what the field says.
    for (button, limit, change) in [
        ("set-limit+2", "3", "3 → 6"),
        ("set-limit+10", "6", "6 → 60"),
        ("set-limit+unlimited", "60", "60 → unlimited"),
    ] {
        let page = browser.get(ALICE).await.body;
        assert!(page.contains(&format!("name=\"limit\" value=\"{limit}\"")), "{limit}: {page}");
        let page = outcome(raise(&page, button, limit).await).await;
        assert!(page.contains(change), "{change}: {page}");
    }
    let page = browser.get(ALICE).await.body;
    assert!(page.contains("name=\"limit\" value=\"unlimited\""), "{page}");
    let limit_in_force = async || {
        let page = browser.get(ALICE).await.body;
        page.split("name=\"limit\" value=\"").nth(1).expect("a limit")[..3].to_owned()
    };
    let first = raise(&page, "set-limit", "500").await;
    assert_eq!(first.status, 409, "{first:?}");
    let text = "Limit must not be below the limit in force: pay unlimited → 500";
    assert!(first.body.contains(text) && first.body.contains("value=\"500\""), "{}", first.body);
    assert_eq!(limit_in_force().await, "unl");
    // The second look is of the values that were seen.
    let other = raise(&first.body, "set-limit", "400").await;
    assert_eq!((other.status, &*limit_in_force().await), (409, "unl"), "{other:?}");
    let second = outcome(raise(&other.body, "set-limit", "400").await).await;
    assert!(second.contains("has another limit until 20"), "{second}");
    assert!(second.contains("unlimited → 400."), "{second}");
    let audit = browser.get("audit").await.body;
    assert_eq!(audit.matches("unlimited → 400").count(), 1, "{audit}");
    assert!(audit.contains(">3 → 6<"), "{audit}");
}
