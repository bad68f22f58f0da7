//! The pages of rules: the list, one rule, and its mode.

use super::browser::{Browser, encoded, form, row};
use super::{ADMIN, CONSOLE, OPERATE, auth};
use crate::admin::watch_stats::TimedServers;
use crate::http::client::{HttpResponse, send_with};
use rlaas_testkit::process::{Rlaas, rlaas};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(20);
const RULES: &str = "\
rules:
  - name: pay
    endpoint: /pay
    limit: 2
    window: 1h
    near-limit: 0.5
    overrides: [{match: {user_id: vip}, limit: 9}]
  - {name: trial, endpoint: /pay, limit: 1, window: 1h, shadow: true}
";
const PAY: &str = "rule?project=_&name=pay";

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
    send_with(server, "POST", "/v1/check", &headers, Some(&body)).await.json()
}

/// Sends a form of a page, and returns the page to which it leads.
async fn send(browser: &Browser, page: &str, value: &str, more: &str) -> HttpResponse {
    let shown = browser.get(page).await.body;
    let sent = browser.post("rule", &format!("{}&{more}", form(&shown, value))).await;
    assert_eq!(sent.status, 303, "{value}: {sent:?}");
    browser.get(sent.header("location").expect("a page")).await
}

#[tokio::test]
async fn a_rule_is_shown_with_its_decisions_and_keys() {
    let settings = [CONSOLE, "http.hosts=test", "telemetry.top-keys=true"];
    let mut timed = TimedServers::start_from(RULES, 1, &settings);
    let browser = Browser::new(&timed.servers[0]);
    let first = browser.get(PAY).await;
    for text in ["The first numbers come within 10 s", "No decision of this rule", "No key has any"]
    {
        assert!(first.body.contains(text), "{text}: {}", first.body);
    }
    for _ in 0..4 {
        check(&timed.servers[0], "<script>\u{202e}").await;
    }
    for user in ["bob", "vip", "vip"] {
        check(&timed.servers[0], user).await;
    }
    let mut html = String::new();
    eventually("the numbers are there", TIMEOUT, async || {
        timed.advance(10);
        html = browser.get(PAY).await.body;
        html.contains("28.5 %")
    })
    .await;
    assert_eq!(row(&html, "U+202E").expect("a key"), ["2", "100 %"]);
    for text in [
        "class=\"badge\">2 per 1 h</strong>",
        "<span class=\"badge\">enforced</span>",
        "It is not one of those made at run time",
        "Counts by",
        "Counts, newest first",
        "data-events=\"now-events\"",
        "is /pay",
        "href=\"key?project=_&amp;rule=pay&amp;id=",
        "from 50 % on",
        "the check fails",
        "rlaas.yaml",
    ] {
        assert!(html.replace("<bdi class=\"foreign\">", "").contains(text), "{text}: {html}");
    }
    assert!(!html.contains("<script>") && !html.contains('\u{202e}'), "{html}");
    let used = browser.get(&format!("{PAY}&top=used")).await.body;
    assert_eq!(row(&used, ">bob<").expect("a key")[0], "1", "{used}");
    let (rules, now) =
        (browser.get("rules?sort=refused").await.body, browser.get("now").await.body);
    assert_eq!(row(&rules, ">pay<").expect("a rule")[..2], ["2", "28.5 %"], "{rules}");
    assert!(rules.find(">pay<") < rules.find(">trial<") && rules.contains("path class=\"part\""));
    assert_eq!(row(&now, "U+202E").expect("a key"), ["2"], "trial, in shadow, comes last: {now}");
    assert!(now.contains("href=\"key?user_id=%3Cscript%3E"), "{now}");
    let trial = browser.get("rule?project=_&name=trial").await.body;
    assert!(trial.contains("shadow: refuses nothing"), "{trial}");

    // A request is tried on the page of its key.
    assert!(html.contains("href=\"key?project=_&amp;rule=pay\">Try a request<"), "{html}");
    for (query, text) in [
        ("user_id=bob&resource=%2Fpay", "would be <strong class=\"good\">allowed"),
        ("user_id=bob&resource=%2Fpay&cost=2", "would be <strong class=\"bad\">refused"),
        ("user_id=bob&resource=%2Fread", ", not <bdi class=\"foreign\">/read</bdi>"),
        ("user_id=bob&attributes=x", "attributes must be lines"),
        ("resource=%2Fpay", "user_id must be 1 to 1024 bytes"),
        ("user_id=bob&cost=x", "cost must be 0 to"),
    ] {
        let tried = browser.get(&format!("key?project=_&rule=pay&{query}")).await.body;
        assert!(tried.contains(text), "{text}: {tried}");
    }
    let again = browser.get(&format!("{PAY}&top=used")).await.body;
    assert_eq!(row(&again, ">bob<").expect("a key")[0], "1", "a trial counts nothing");
    for (query, status, problem) in [
        ("name=none", 404, "rule must be the name of a rule"),
        ("name=", 400, "name must be the name of a rule"),
        ("name=pay&project=none", 404, "no such project"),
        ("name=pay&project=NO", 404, "no such project"),
        ("name=pay&top=x", 400, "top must be"),
        ("name=pay&name=pay", 400, "name: given twice"),
        ("name=%3Cscript%3E", 404, "rule must be"),
    ] {
        let page = browser.get(&format!("rule?{query}")).await;
        assert_eq!(page.status, status, "{query}");
        assert!(page.body.contains(problem), "{problem}: {}", page.body);
    }
    let now = browser.get("now").await.body;
    assert!(now.contains("href=\"rule?project=_&amp;name=pay\""), "{now}");
}

#[tokio::test]
async fn a_mode_is_set_for_a_time_and_ended() {
    let server = start(&[]);
    let browser = Browser::signed_in(&server, ADMIN).await;
    for _ in 0..2 {
        check(&server, "alice").await;
    }
    assert_eq!(check(&server, "alice").await["allowed"], false);
    let page = browser.get(PAY).await.body;
    assert!(!page.contains("End it now") && page.contains("The rule is"), "{page}");
    let shadow = send(&browser, PAY, "enforce", "mode=shadow&ttl=30m&reason=an+incident").await;
    for text in [
        "The mode of rule pay is shadow until 20",
        "Everywhere by 20",
        "That was set until",
        "By its configuration it is enforced",
        "End it now",
    ] {
        assert!(shadow.body.contains(text), "{text}: {}", shadow.body);
    }
    assert_eq!(check(&server, "alice").await["allowed"], true);
    let listed = browser.get("rules").await.body;
    assert!(listed.contains("set until"), "{listed}");

    let twice = format!("{}&ttl=1h&mode=off&reason=twice", form(&shadow.body, "enforce"));
    let mut outcomes = Vec::new();
    for _ in 0..2 {
        let sent = browser.post("rule", &twice).await;
        let page = browser.get(sent.header("location").expect("a page")).await.body;
        outcomes.push(page.contains("This form was sent before"));
    }
    assert_eq!(outcomes, [false, true]);
    let ended = send(&browser, PAY, "configured", "mode=configured&reason=over").await;
    assert!(ended.body.contains("is that of its configuration again"), "{}", ended.body);
    assert!(!ended.body.contains("End it now"), "{}", ended.body);
    assert_eq!(check(&server, "alice").await["allowed"], false);
    let audit = browser.get("audit").await.body;
    assert!(
        audit.contains("mode shadow for 30m")
            && audit.contains(&format!("href=\"{}\"", PAY.replace('&', "&amp;")))
    );

    let page = browser.get(PAY).await.body;
    let hidden = form(&page, "enforce");
    for (fields, status, problem) in [
        ("mode=shadow&ttl=&reason=typed", 400, "Ends after must be 1s to 30d"),
        ("mode=shadow&ttl=31d&reason=typed", 400, "Ends after must be 1s to 30d"),
        ("mode=none&ttl=1h&reason=typed", 400, "Mode must be one of"),
        ("mode=shadow&ttl=1h&reason=", 400, "Why must be 1 to 1024 bytes"),
        ("mode=configured&reason=", 400, "Why must be 1 to 1024 bytes"),
        ("mode=off&mode=shadow&ttl=1h&reason=typed", 400, "mode: given twice"),
    ] {
        let refused = browser.post("rule", &format!("{hidden}&{fields}")).await;
        assert_eq!(refused.status, status, "{fields}: {refused:?}");
        assert!(refused.body.contains(problem), "{problem}: {}", refused.body);
        if fields.contains("ttl=31d") {
            assert!(
                refused.body.contains("value=\"typed\"") && refused.body.contains("value=\"31d\"")
            );
        }
    }
    for (body, status) in [
        (hidden.replace("secret=", "secret=x"), 403),
        (hidden.replace("secret=", "other="), 403),
        (hidden.replace("request_id=", "other="), 400),
        (hidden.replace("query=", "query=name%3Dnone&other="), 404),
        (hidden.replace("query=", "other="), 400),
    ] {
        let body = format!("{body}&mode=off&ttl=1h&reason=r");
        let refused = browser.post("rule", &body).await;
        assert_eq!(refused.status, status, "{body}: {}", refused.body);
    }
    let elsewhere = format!("{hidden}&mode=off&ttl=1h&reason=r");
    let headers = "Origin: https://evil.example\r\n";
    assert_eq!(browser.post_with("rule", headers, &elsewhere).await.status, 403);
    assert!(browser.get(PAY).await.body.contains("The rule is <strong>enforced"));
}

#[tokio::test]
async fn the_default_rule_says_what_decides_in_its_place() {
    let server = Rlaas::start(&[CONSOLE, "unmatched=deny"]);
    let browser = Browser::new(&server);
    let policy = "requests without a rule are refused (unmatched: deny)";
    let shown = browser.get("key?project=_&user_id=a").await.body;
    assert!(shown.contains(policy) && !shown.contains("another rule is"), "{shown}");
    let default = browser.get("rule?project=_&name=default").await.body;
    assert!(default.contains("no request: those without a rule are refused"), "{default}");
}

#[tokio::test]
async fn keys_modes_and_projects_follow_the_roles() {
    let server = start(&["telemetry.top-keys=true"]);
    let (admin, operator) =
        (Browser::signed_in(&server, ADMIN).await, Browser::signed_in(&server, OPERATE).await);
    let of_admin = admin.get(PAY).await.body;
    let shown = operator.get(PAY).await.body;
    assert!(
        shown.contains("The role admin is required to set it") && shown.contains("Try a request")
    );
    let secret = super::browser::secret_of(&shown).expect("a secret");
    let body = form(&of_admin, "enforce");
    let at = body.find('&').expect("fields");
    let body = format!("secret={secret}{}&mode=off&ttl=1h&reason=r", &body[at..]);
    let refused = operator.post("rule", &body).await;
    assert!(refused.status == 403 && refused.body.contains("role admin is required"));

    let tokens =
        auth(&[(ADMIN, "roles: [admin, check]"), (OPERATE, "projects: [shop], roles: [operate]")]);
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", &format!("{tokens}  api-keys: accepted\n{RULES}"));
    let server = Rlaas::start_from(&file, &[CONSOLE, "telemetry.top-keys=true"]);
    let change = async |path: &str, body: &str| {
        let headers =
            format!("Authorization: Bearer {ADMIN}\r\nContent-Type: application/json\r\n");
        let response = send_with(&server, "POST", path, &headers, Some(body)).await;
        assert!([200, 201].contains(&response.status), "{path}: {response:?}");
    };
    for project in ["shop", "blog"] {
        change("/v1/projects", &format!("{{\"project\": {{\"id\": \"{project}\"}}}}")).await;
        let rule = format!(
            "{{\"rules\": [{{\"name\": \"of-{project}\", \"maxRequests\": 1, \"window\": \"3600s\"}}]}}"
        );
        change(&format!("/v1/projects/{project}/rules:apply"), &rule).await;
    }
    for _ in 0..3 {
        check(&server, "alice").await;
    }
    let admin = Browser::signed_in(&server, ADMIN).await;
    eventually("the keys are counted, hashed", TIMEOUT, async || {
        let page = admin.get(PAY).await.body;
        assert!(!page.contains("alice") && !page.contains("href=\"key?"), "{page}");
        page.contains("foreign\">#")
    })
    .await;
    assert!(!admin.get(PAY).await.body.contains("Try a request"));
    let operator = Browser::signed_in(&server, OPERATE).await;
    let (all, own) = (admin.get("rules").await.body, operator.get("rules").await.body);
    assert!(all.contains("of-blog") && all.contains(">pay<"), "{all}");
    assert!(
        all.contains("run time, <a href=\"rule?project=blog&amp;name=of-blog#change\">change</a>"),
        "{all}"
    );
    assert!(own.contains("of-shop") && !own.contains("of-blog") && !own.contains(">pay<"), "{own}");
    for (page, status) in [
        ("rule?project=shop&name=of-shop", 200),
        ("rule?project=blog&name=of-blog", 404),
        (PAY, 404),
        ("rules?project=blog", 404),
        ("rules?project=_", 404),
        ("rules?project=shop", 200),
        ("key?project=shop&user_id=alice", 200),
        ("key?project=blog&user_id=alice", 404),
    ] {
        assert_eq!(operator.get(page).await.status, status, "{page}");
    }
    // Nothing is said of the instance and its store.
    let rule = operator.get("rule?project=shop&name=of-shop").await.body;
    assert!(!rule.contains("instance") && rule.contains(" of the project</dd>"), "{rule}");
    let key = "key?project=shop&user_id=alice";
    let reset = form(&operator.get(key).await.body, "reset");
    let sent = operator.post("key", &format!("{reset}&change=reset&reason=r")).await;
    let reset = operator.get(sent.header("location").expect("a page")).await.body;
    assert!(reset.contains("is reset") && !reset.contains("A restart"), "{reset}");
}

#[tokio::test]
async fn ten_thousand_rules_and_a_thousand_projects_are_found() {
    let dir = TempDir::new();
    let mut text = "rules:\n".to_owned();
    for rule in 0..10_000 {
        let _infallible =
            writeln!(text, "  - {{name: rule-{rule:05}, endpoint: /{rule}, limit: 5, window: 1m}}");
    }
    let mut files = vec![dir.write("rules.yaml", &text)];
    for project in 0..1_000 {
        let text = format!(
            "project: project-{project:03}\nrules: [{{name: of-{project:03}, limit: 1, window: 1h}}]\n"
        );
        files.push(dir.write(&format!("project-{project}.yaml"), &text));
    }
    let mut command = rlaas(&["serve"]);
    for file in &files {
        command.arg("--config").arg(file);
    }
    let server = Rlaas::start_with(command, &[CONSOLE, "http.hosts=test"]);
    let browser = Browser::new(&server);
    let first = browser.get("rules").await;
    assert!(first.body.contains("11,001</data> rules"), "with the default rule");
    assert!(first.body.len() < 150 * 1024, "{}", first.body.len());
    assert!(first.body.contains("rule-00098") && !first.body.contains("rule-00099"));
    let second = browser.get("rules?page=2").await.body;
    assert!(second.contains("rule-00099") && second.contains("Previous rules"), "{second}");
    let last = browser.get("rules?page=111").await.body;
    assert!(last.contains("of-999") && !last.contains("Next rules"), "{last}");
    let found = browser.get("rules?name=OF-12").await.body;
    assert!(found.contains("of-120") && found.contains("of-129"), "{found}");
    assert!(found.contains("10</data> rules"));
    let one = browser.get("rules?project=project-500").await.body;
    assert!(one.contains("of-500") && !one.contains("of-501"), "{one}");
    let rule = browser.get("key?project=_&rule=rule-09999&user_id=a&resource=%2F1").await;
    assert!(
        rule.status == 200 && rule.body.contains(", not <bdi class=\"foreign\">/1</bdi>"),
        "{rule:?}"
    );
    for (query, status, text) in [
        ("name=none", 200, "No rule fits."),
        ("page=112", 200, "There are no more rules."),
        ("page=0", 400, "page must be a number from 1"),
        ("sort=limit", 400, "sort must be empty, refused or rate"),
        ("page=x", 400, "page must be a number from 1"),
        ("project=none", 404, "no such project"),
        (&*format!("name={}", encoded("<script>\u{202e}\0")), 200, "No rule fits."),
    ] {
        let page = browser.get(&format!("rules?{query}")).await;
        assert!(page.status == status && page.body.contains(text), "{query}: {}", page.body);
        assert!(!page.body.contains("<script>"), "{}", page.body);
    }
}

#[tokio::test]
async fn without_redis_a_mode_is_set_on_this_instance() {
    let mut redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let server = start(&["store.backend=redis", &url, "telemetry.top-keys=true"]);
    eventually("the server is ready", TIMEOUT, async || server.get("/readyz").await.0 == 200).await;
    let browser = Browser::signed_in(&server, ADMIN).await;
    redis.kill();
    let page = browser.get(PAY).await;
    assert_eq!(page.status, 200, "{}", page.body);
    let set = send(&browser, PAY, "enforce", "mode=off&ttl=30m&reason=an+outage").await;
    for text in ["On this instance alone: the store is away", "off: ignored"] {
        assert!(set.body.contains(text), "{text}: {}", set.body);
    }
}

#[tokio::test]
async fn a_rule_of_a_calendar_opens_on_what_each_customer_has_used() {
    let rules = "\
rules:
  - name: quota
    match: {attributes: {customer: '*'}}
    key-by: [customer]
    algorithm: fixed-window
    limit: 10
    calendar: {unit: year, zone: Europe/Berlin}
";
    let settings = [CONSOLE, "http.hosts=test", "telemetry.top-keys=true"];
    let mut timed = TimedServers::start_from(rules, 1, &settings);
    let browser = Browser::new(&timed.servers[0]);
    for (customer, requests) in [("acme", 4), ("<b>", 14)] {
        for _ in 0..requests {
            let attributes = json!({"customer": customer});
            let body = json!({"userId": "a", "attributes": attributes}).to_string();
            let headers = "Content-Type: application/json\r\n";
            send_with(&timed.servers[0], "POST", "/v1/check", headers, Some(&body)).await;
        }
    }
    let mut html = String::new();
    eventually("both are counted", TIMEOUT, async || {
        timed.advance(10);
        html = browser.get("rule?project=_&name=quota").await.body;
        html.contains("10 of 10 used") && html.contains("4 of 10 used")
    })
    .await;
    let opening = html.split("<dl class=\"tiles\"").next().expect("a beginning");
    let [full, acme] = ["10 of 10 used", "4 of 10 used"].map(|text| opening.find(text));
    assert!(full.is_some() && full < acme, "{html}");
    assert_eq!(
        (row(opening, "b&gt;"), row(opening, "acme")),
        (Some(vec!["100 %".to_owned()]), Some(vec!["40 %".to_owned()]))
    );
    assert!(opening.contains(">1 Jan ") && opening.contains(", 00:00 Europe/Berlin<"), "{opening}");
    assert!(!html.contains("<b>"), "{html}");
    assert!(opening.contains("href=\"use.csv?project=_&amp;name=quota\" download"), "{opening}");
    let file = browser.get("use.csv?project=_&name=quota").await;
    assert_eq!(file.header("content-disposition"), Some("attachment; filename=\"use.csv\""));
    let lines: Vec<&str> = file.body.lines().collect();
    assert_eq!(lines[0], "customer,used,limit,share,reset_at");
    assert!(lines[1].contains("<b>,10,10,100 %,20"), "{lines:?}");
    assert!(lines[2].contains("acme,4,10,40 %,20") && lines.len() == 3, "{lines:?}");
    assert_eq!(browser.get("use.csv?project=_&name=none").await.status, 404);
}
