//! The page Change, and the history: rules as a text that is checked, tried, published and rolled back.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::browser::{Browser, form_with};
use super::{ADMIN, CONSOLE, OPERATE, start_with_auth};
use crate::http::client::HttpResponse;
use rlaas_testkit::TempDir;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::RedisServer;
use serde_json::{Value, json};

pub(super) const TIMEOUT: Duration = Duration::from_secs(20);
pub(super) const PAY: &str = "rules:\n- name: pay\n  limit: 5\n  window: 1h\n";

pub(super) fn start(settings: &[&str]) -> Rlaas {
    Rlaas::start(&[&[CONSOLE, "http.hosts=test", "auth.api-keys=accepted"], settings].concat())
}

pub(super) async fn create_shop(server: &Rlaas) {
    let project = json!({ "project": { "id": "shop" } }).to_string();
    assert_eq!(server.post("/v1/projects", &project).await.0, 201);
}

/// The page as somebody has loaded it.
pub(super) struct Editor {
    browser: Browser,
    pub(super) page: String,
}

impl Editor {
    pub(super) async fn open(browser: &Browser, project: &str) -> Self {
        let page = browser.get(&format!("change?project={project}")).await;
        assert_eq!(page.status, 200, "{page:?}");
        Self { browser: browser.clone(), page: page.body }
    }

    pub(super) fn field(&self, name: &str) -> String {
        let value = self.page.split(&format!("name=\"{name}\" value=\"")).nth(1);
        let value = value.and_then(|rest| rest.split('"').next());
        value.unwrap_or_else(|| panic!("no {name}: {}", self.page)).to_owned()
    }

    /// Returns the text of the page.
    pub(super) fn text(&self) -> String {
        let text = self.page.split("<textarea").nth(1).and_then(|rest| rest.split_once(">\n"));
        let text = text.and_then(|(_, rest)| rest.split("</textarea>").next());
        text.expect("a text").replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">")
    }

    /// Sends the form with a text and further fields. A page that comes back is the one that is seen.
    pub(super) async fn send(&mut self, route: &str, text: &str, fields: &str) -> HttpResponse {
        let names = ["secret", "request_id", "project", "revision", "planned"];
        let hidden = names.map(|name| format!("{name}={}&", self.field(name))).concat();
        let text = utf8_percent_encode(text, NON_ALPHANUMERIC);
        let response = self.browser.post(route, &format!("{hidden}rules={text}{fields}")).await;
        if response.body.contains("name=\"planned\"") {
            self.page.clone_from(&response.body);
        }
        response
    }

    /// Looks at the plan, and publishes.
    pub(super) async fn publish(&mut self, text: &str, fields: &str) -> HttpResponse {
        let checked = self.send("change-check", text, fields).await;
        assert_eq!(checked.status, 200, "{checked:?}");
        self.send("change-publish", text, fields).await
    }
}

pub(super) async fn rules(server: &Rlaas, project: &str) -> Vec<Value> {
    let (status, body) = server.get(&format!("/v1/projects/{project}/rules")).await;
    assert_eq!(status, 200, "{body}");
    let body: Value = serde_json::from_str(&body).expect("JSON");
    body["rules"].as_array().expect("rules").iter().map(|of| of["rule"].clone()).collect()
}

#[tokio::test]
async fn rules_are_published_after_their_plan_was_seen() {
    let server = start(&[]);
    let browser = Browser::new(&server);
    create_shop(&server).await;
    let mut editor = Editor::open(&browser, "shop").await;
    assert!(editor.text().contains("rules: []"), "{}", editor.text());
    assert!(editor.page.contains("<code>match.resource</code>"), "help: {}", editor.page);
    let unseen = editor.send("change-publish", PAY, "&reason=T-1").await;
    assert!(unseen.status == 409 && unseen.body.contains("1</data> new"), "{unseen:?}");
    assert!(rules(&server, "shop").await.is_empty(), "nothing is published without its plan");
    let other = PAY.replace('5', "6");
    let changed = editor.send("change-publish", &other, "&reason=T-1").await;
    assert_eq!(changed.status, 409, "the text is another one: {changed:?}");
    let published = editor.send("change-publish", &other, "&reason=T-1").await;
    assert_eq!(published.status, 303, "{published:?}");
    let link = published.header("location").expect("a location").to_owned();
    assert!(browser.get(&link).await.body.contains("Published as revision"));
    let again = editor.send("change-publish", &other, "&reason=T-1").await;
    assert_eq!(again.status, 303, "a double click changes nothing more");
    assert_eq!(rules(&server, "shop").await[0]["maxRequests"], "6");
    let editor = Editor::open(&browser, "shop").await;
    for line in ["project: shop", "- name: pay", "limit: 6", "window: 3600s"] {
        assert!(editor.text().contains(line), "{line}: {}", editor.text());
    }
    let history = browser.get("history?project=shop").await.body;
    let published_words = "<span title=\"ApplyRules\">1 rule published</span>";
    // A first revision can't be undone, whose button would name it too.
    assert_eq!(history.matches(published_words).count(), 1, "{history}");
    assert!(history.contains(">T-1<"), "{history}");
}

#[tokio::test]
async fn every_problem_and_warning_is_shown_at_once() {
    let server = start(&[]);
    let browser = Browser::new(&server);
    create_shop(&server).await;
    let mut editor = Editor::open(&browser, "shop").await;
    let text = "rules:\n- {name: a b, limit: x, window: 1s}\n- {name: b, limit: 1, wndow: 1s}\n\
                - {name: c, limit: 9, window: 1h}\n- {name: d, limit: 8, window: 1h}\n";
    let checked = editor.send("change-check", text, "").await;
    assert_eq!(checked.status, 200);
    for shown in [
        "rules[0].name",
        "rules[0].limit",
        "rules[1].wndow: unknown key, did you mean rules[1].window?",
        "rules[1].window",
        "line 3",
        "nothing can be published",
        "1</data> warning",
    ] {
        assert!(checked.body.contains(shown), "{shown}: {}", checked.body);
    }
    let kept = editor.send("change-publish", text, "").await;
    assert!(kept.status == 400 && editor.text() == text, "{kept:?}");
    for (text, shown) in [
        ("rules: [", "nothing can be published"),
        ("a: b\n", "unknown key"),
        ("project: other\nrules: []\n", "project: must be shop"),
        ("unmatched: allow\nrules: []\n", "unmatched: must be deny"),
        ("rules:\n- {name: <script>, limit: 1, window: 1s}\n", "rules[0].name"),
        ("rules:\n- {name: a, limit: 1, window: 1s, match: {user-id: '\u{202e}'}}\n", "U+202E"),
        ("rules:\n- {name: a, limit: 1, window: 1s}\n- {name: a, limit: 1, window: 1s}\n", {
            "rules[1].name"
        }),
    ] {
        let checked = editor.send("change-check", text, "").await;
        assert!(checked.status == 200 && checked.body.contains(shown), "{shown}: {checked:?}");
        assert!(!checked.body.contains("<script>"), "{checked:?}");
    }
    // A warning of a rule that stays as it is comes after the plan.
    let warned = "rules:\n- {name: c, limit: 9, window: 1h}\n- {name: d, limit: 8, window: 1h}\n";
    assert_eq!(editor.publish(warned, "").await.status, 303);
    let mut editor = Editor::open(&browser, "shop").await;
    let more = format!("{warned}- {{name: e, limit: 1, window: 1m, match: {{resource: /e}}}}\n");
    let checked = editor.send("change-check", &more, "").await.body;
    let [plan, warning] =
        [">Plan<", "1</data> warning of rules that stay"].map(|text| checked.find(text));
    assert!(
        plan.is_some() && plan < warning && !checked.contains("1</data> warning<"),
        "{checked}"
    );
    assert_eq!(server.post("/v1/projects/shop/rules:apply", r#"{"prune":true}"#).await.0, 200);
    let mut editor = Editor::open(&browser, "shop").await;
    let long = format!("&reason={}", "a".repeat(1_025));
    let refused = editor.publish(PAY, &long).await;
    assert!(refused.status == 400 && refused.body.contains("Why must be"), "{refused:?}");
    assert!(rules(&server, "shop").await.is_empty());
}

#[tokio::test]
async fn one_rule_is_edited_while_the_others_stay() {
    let server = start(&[]);
    let browser = Browser::new(&server);
    create_shop(&server).await;
    let mut editor = Editor::open(&browser, "shop").await;
    let both = PAY.to_owned() + "- name: send\n  limit: 9\n  window: 1h\n";
    assert_eq!(editor.publish(&both, "").await.status, 303);
    let mut editor = Editor::open(&browser, "shop&name=pay").await;
    let text = editor.text();
    assert!(text.contains("pay") && !text.contains("send"), "{text}");
    let published = editor.publish(&text.replace("limit: 5", "limit: 7"), "&name=pay").await;
    assert_eq!(published.status, 303, "{published:?}");
    let link = published.header("location").expect("a page");
    assert!(link.starts_with("change?project=shop&name=pay&"), "{link}");
    for other in [PAY.replace("pay", "paid"), both, "rules: []\n".to_owned()] {
        let checked = editor.send("change-check", &other, "&name=pay").await;
        assert!(checked.body.contains("must have the rule pay alone"), "{other}: {checked:?}");
    }
    let mut editor = Editor::open(&browser, "shop&name=new").await;
    let new = PAY.replace("pay", "new");
    assert_eq!(editor.publish(&new, "&name=new").await.status, 303);
    let limits: Vec<_> = rules(&server, "shop").await;
    let limits: Vec<_> = limits.iter().map(|of| (&of["name"], &of["maxRequests"])).collect();
    let all =
        [("pay", "7"), ("send", "9"), ("new", "5")].map(|(name, of)| (json!(name), json!(of)));
    assert!(all.iter().all(|(name, of)| limits.contains(&(name, of))), "{limits:?}");
    assert_eq!(limits.len(), 3, "{limits:?}");
}

#[tokio::test]
async fn of_two_people_who_edit_at_once_the_second_keeps_the_text_and_compares() {
    let server = start(&[]);
    let browser = Browser::new(&server);
    create_shop(&server).await;
    let (mut first, mut second) =
        (Editor::open(&browser, "shop").await, Editor::open(&browser, "shop").await);
    let theirs = "rules:\n- {name: pay, limit: 7, window: 1h}\n";
    assert_eq!(first.publish(theirs, "&reason=urgent").await.status, 303);
    let refused = second.publish(PAY, "").await;
    assert_eq!(refused.status, 409, "{refused:?}");
    for text in ["Others have changed the project", ">urgent<", "Changes of the others", ">7<"] {
        assert!(refused.body.contains(text), "{text}: {}", refused.body);
    }
    assert_eq!(second.text(), PAY);
    assert_eq!(rules(&server, "shop").await[0]["maxRequests"], "7");
    let published = second.send("change-publish", PAY, "").await;
    assert_eq!(published.status, 303, "seen by now: {published:?}");
    assert_eq!(rules(&server, "shop").await[0]["maxRequests"], "5");

    let mut editor = Editor::open(&browser, "shop").await;
    assert_eq!(server.post("/v1/projects/shop/keys", "{}").await.0, 201);
    let published = editor.publish(theirs, "").await;
    assert_eq!(published.status, 303, "a new API key changes no rule: {published:?}");
}

#[tokio::test]
async fn revisions_are_compared_and_rolled_back() {
    let server = start(&[]);
    let browser = Browser::new(&server);
    create_shop(&server).await;
    for (limit, reason) in [("5", "first"), ("9", "second")] {
        let mut editor = Editor::open(&browser, "shop").await;
        let fields = format!("&reason={reason}");
        assert_eq!(editor.publish(&PAY.replace('5', limit), &fields).await.status, 303);
    }
    let list = browser.get("history?project=shop").await.body;
    let revisions: Vec<&str> = list
        .split("scope=\"row\"><a href=\"history?project=shop&amp;revision=")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap_or_default())
        .collect();
    assert_eq!(revisions.len(), 2, "{list}");
    let shown = browser.get(&format!("history?project=shop&revision={}", revisions[0])).await.body;
    assert!(shown.contains(">5<") && shown.contains(">9<"), "{shown}");
    assert!(shown.contains("the newest revision") && !shown.contains("roll-back"), "{shown}");
    let page = browser.get(&format!("history?project=shop&revision={}", revisions[1])).await.body;
    let field = |name: &str| {
        let value = page.split(&format!("name=\"{name}\" value=\"")).nth(1);
        value.and_then(|rest| rest.split('"').next()).unwrap_or_default().to_owned()
    };
    let back = format!(
        "secret={}&project=shop&revision={}&expected={}&reason=back",
        field("secret"),
        revisions[1],
        field("expected")
    );
    let rolled = browser.post("roll-back", &back).await;
    assert_eq!(rolled.status, 303, "{rolled:?}");
    assert_eq!(rules(&server, "shop").await[0]["maxRequests"], "5");
    let again = browser.post("roll-back", &back).await;
    assert_eq!(again.status, 303, "a double click: {again:?}");
    let link = again.header("location").expect("a location").to_owned();
    assert!(browser.get(&link).await.body.contains("are in force already"), "{link}");
    let mut editor = Editor::open(&browser, "shop").await;
    assert_eq!(editor.publish(&PAY.replace('5', "8"), "").await.status, 303);
    let stale = browser.post("roll-back", &back).await;
    assert!(stale.status == 409 && stale.body.contains("Others have changed"), "{stale:?}");
    for (query, status) in [
        ("history?project=none", 404),
        ("history?project=shop&revision=1x", 400),
        ("history?project=shop&revision=999999", 404),
        ("change?project=none", 404),
        ("change", 404),
    ] {
        assert_eq!(browser.get(query).await.status, status, "{query}");
    }
}

#[tokio::test]
async fn the_last_change_is_undone_where_it_was_made_in_the_history_and_on_the_project() {
    let server = start(&[]);
    let browser = Browser::new(&server);
    create_shop(&server).await;
    let mut pages = Vec::new();
    for limit in ["5", "9"] {
        let mut editor = Editor::open(&browser, "shop").await;
        let published = editor.publish(&PAY.replace('5', limit), "").await;
        let page = published.header("location").expect("a page").to_owned();
        pages.push(browser.get(&page).await.body);
    }
    assert!(!pages[0].contains("Undo the last change"), "there is nothing before the first");
    let history = browser.get("history?project=shop").await.body;
    let project = browser.get("project?id=shop").await.body;
    let undo = "Undo the last change";
    for page in [&pages[1], &history, &project] {
        assert_eq!(page.matches(undo).count(), 1, "{page}");
        assert!(page.contains("1 rule published</span> by "), "{page}");
    }
    let later = browser.get("change?project=shop").await.body;
    assert!(!later.contains(undo), "nothing was changed just now: {later}");

    let older = history.rsplit("&amp;revision=").next().and_then(|rest| rest.split('"').next());
    let older = format!("history?project=shop&revision={}", older.expect("two revisions"));
    let beside = browser.get(&older).await.body;
    assert!(beside.contains("against the rules in force"), "{beside}");
    assert!(beside.contains(">9<") && beside.contains(">5<"), "{beside}");
    let before = browser.get(&format!("{older}&base=before")).await.body;
    assert!(before.contains("against the one before") && before.contains("1</data> new"));

    let way_back = async |page: &str| {
        let link = page.split("href=\"history?").find(|link| link.contains("Undo%20of%20revision"));
        let link = link.and_then(|link| link.split('"').next()).expect("the way back");
        browser.get(&format!("history?{}", link.replace("&amp;", "&"))).await.body
    };
    let seen = way_back(&pages[1]).await;
    for text in ["against the rules in force", ">9<", ">5<", "value=\"Undo of revision "] {
        assert!(seen.contains(text), "{text}: {seen}");
    }
    let form = form_with(&seen, "Roll back to this revision") + "&reason=Undo";
    let undone = browser.post("roll-back", &form).await;
    assert_eq!(undone.status, 303, "{undone:?}");
    assert_eq!(rules(&server, "shop").await[0]["maxRequests"], "5");
    let link = undone.header("location").expect("a page").to_owned();
    let page = browser.get(&link).await.body;
    assert!(page.contains("are in force again, as revision"), "{page}");
    assert!(page.contains(">Undo<") && page.contains(">1 rule rolled back<"), "{page}");
    let mut editor = Editor::open(&browser, "shop").await;
    assert_eq!(editor.publish(&PAY.replace('5', "7"), "").await.status, 303);
    let stale = browser.post("roll-back", &form).await;
    assert!(stale.status == 409 && stale.body.contains("nothing was rolled back"), "{stale:?}");
    assert_eq!(rules(&server, "shop").await[0]["maxRequests"], "7", "a later change is not undone");
}

#[tokio::test]
async fn rules_of_files_are_read_only_and_name_their_file() {
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", PAY);
    let server = Rlaas::start_from(&file, &[CONSOLE, "http.hosts=test"]);
    let browser = Browser::new(&server);
    let mut editor = Editor::open(&browser, "_").await;
    for text in ["read-only", ">pay<", "rlaas.yaml"] {
        assert!(editor.page.contains(text), "{text}: {}", editor.page);
    }
    assert!(!editor.text().contains("pay"), "{}", editor.text());
    let checked = editor.send("change-check", PAY, "").await;
    assert!(checked.body.contains("must not be that of a rule of a file"), "{checked:?}");
}

#[tokio::test]
async fn long_texts_are_for_these_forms_alone() {
    let server = start(&[]);
    let browser = Browser::new(&server);
    create_shop(&server).await;
    let mut editor = Editor::open(&browser, "shop").await;
    let rule = |number: usize| {
        format!("- {{name: r{number}, endpoint: /{number}, limit: 1, window: 1h}}\n")
    };
    let text = format!("rules:\n{}", (0..2_000).map(rule).collect::<String>());
    assert!(text.len() > 64 * 1024);
    let published = editor.publish(&text, "").await;
    assert_eq!(published.status, 303, "{published:?}");
    let page = browser.get("change?project=shop").await.body;
    assert!(page.contains("more than 500 rules") && !page.contains("<textarea"), "{page}");
    let mut editor = Editor::open(&browser, "shop&name=r7").await;
    assert_eq!(editor.text().matches("name: r").count(), 1);
    // Three bytes each, as the form has them.
    let long = "#".repeat(1_400_000);
    let refused = editor.send("change-check", &long, "").await;
    assert_eq!(refused.status, 400, "{}", refused.status);
    let secret = editor.field("secret");
    let other = format!("secret={secret}&project=shop&name={}", "a".repeat(65 * 1024));
    assert_eq!(browser.post("project-update", &other).await.status, 400);
}

#[tokio::test]
async fn roles_are_those_of_the_operations() {
    let server = start_with_auth(&["http.hosts=test"]);
    let admin = Browser::signed_in(&server, ADMIN).await;
    let operator = Browser::signed_in(&server, OPERATE).await;
    let mut editor = Editor::open(&operator, "_").await;
    assert!(!editor.page.contains("formaction=\"change-publish\""), "{}", editor.page);
    assert_eq!(editor.send("change-check", PAY, "").await.status, 200);
    for route in ["change-publish", "roll-back"] {
        let refused = editor.send(route, PAY, "").await;
        assert!(refused.status == 403, "{route}: {refused:?}");
        assert!(refused.body.contains("role admin is required"), "{route}: {refused:?}");
    }
    for route in ["change-check", "change-publish", "roll-back"] {
        let refused = admin.post(route, "secret=other&project=_&rules=").await;
        assert!(refused.status == 403 && refused.body.contains("Nothing was changed"), "{route}");
        let stranger = Browser::new(&server).post(route, "secret=other").await;
        assert_eq!(stranger.status, 303, "{route}");
    }
    assert!(rules_by_page(&admin).await.contains("rules: []"));
}

async fn rules_by_page(browser: &Browser) -> String {
    Editor::open(browser, "_").await.text()
}

#[tokio::test]
async fn without_redis_rules_are_checked_and_not_published() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &[CONSOLE, "http.hosts=test"]);
    let browser = Browser::new(&server);
    let mut editor = Editor::open(&browser, "_").await;
    drop(redis);
    assert_eq!(editor.send("change-check", PAY, "").await.status, 200);
    let refused = editor.send("change-publish", PAY, "&reason=a+typed+reason").await;
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.body.contains("value=\"a typed reason\""), "{refused:?}");
    assert_eq!(editor.text(), PAY);
    let history = browser.get("history?project=_").await;
    assert!(history.status == 503 && history.body.contains("can't be read"), "{history:?}");
}
