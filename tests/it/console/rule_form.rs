//! The form of one rule on its page: saved by the rule's own etag.

use super::browser::{Browser, form_with};
use super::change::{Editor, create_shop, rules, start};
use super::{ADMIN, OPERATE, start_with_auth};
use rlaas_testkit::eventually;
use rlaas_testkit::process::Rlaas;
use std::time::Duration;

const RULES: &str = "\
rules:
- {name: pay, endpoint: /pay, limit: 100, window: 1h}
- {name: send, endpoint: /send, limit: 10, window: 1m, burst: 5, algorithm: token-bucket}
- {name: month, endpoint: /month, limit: 9, calendar: {unit: month}, algorithm: fixed-window}
";
const PAY: &str = "rule?project=shop&name=pay";
const SAME: &str = "length=1+h&rule_mode=enforce&share=&reason=r";

/// Starts a server with these rules in the project shop.
async fn start_shop() -> (Rlaas, Browser) {
    let server = start(&[]);
    let browser = Browser::new(&server);
    create_shop(&server).await;
    let mut editor = Editor::open(&browser, "shop").await;
    let published = editor.publish(RULES, "").await;
    assert_eq!(published.status, 303, "{published:?}");
    (server, browser)
}

/// Returns the hidden fields of the form of a page.
fn hidden(page: &str) -> String {
    form_with(page, "action=\"rule-update\"")
}

#[tokio::test]
async fn a_rule_is_raised_at_once_and_what_can_refuse_more_is_shown_first() {
    let (server, browser) = start_shop().await;
    let page = browser.get(PAY).await.body;
    for text in ["value=\"100\"", "value=\"1 h\"", "href=\"#change\""] {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert!(!page.contains("name=\"burst\""), "its algorithm has none: {page}");
    let raised = browser.post("rule-update", &format!("{}&limit=200&{SAME}", hidden(&page))).await;
    assert_eq!(raised.status, 303, "{raised:?}");
    let link = raised.header("location").expect("a page").to_owned();
    let page = browser.get(&link).await.body;
    for text in ["Rule pay was saved as revision", ": 200 per 1 h.", "Undo the last change"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    let lower = "&limit=60&length=2+h&rule_mode=enforce&share=25&reason=typed";
    let refused = browser.post("rule-update", &format!("{}{lower}", hidden(&page))).await;
    assert_eq!(refused.status, 409, "{refused:?}");
    for text in [
        "it can refuse more than the rule in force",
        "The rule now, and what you typed",
        "value=\"typed\"",
        "value=\"60\"",
    ] {
        assert!(refused.body.contains(text), "{text}: {}", refused.body);
    }
    let other = format!("{}{}", hidden(&refused.body), lower.replace("=60", "=50"));
    assert_eq!(browser.post("rule-update", &other).await.status, 409, "another step");
    let again = browser.post("rule-update", &format!("{}{lower}", hidden(&refused.body))).await;
    assert_eq!(again.status, 303, "{again:?}");
    let all = rules(&server, "shop").await;
    let pay = all.iter().find(|rule| rule["name"] == "pay").expect("pay");
    assert_eq!((&pay["maxRequests"], &pay["window"]), (&"60".into(), &"7200s".into()));
    assert_eq!(pay["enforcePpm"], 250_000);
    let page = browser.get(PAY).await.body;
    assert!(page.contains("enforced for 25 % of the keys</span>"), "{page}");

    let has_changes = async || {
        let page = browser.get(PAY).await.body;
        page.split("Changed: ").nth(1).is_some_and(|rest| {
            let changes = rest.split("</p>").next().unwrap_or_default();
            [
                "data-changed-at=",
                ">Rule changed<",
                ">pay<",
                ">Rules published<",
                "&amp;base=before\"",
            ]
            .iter()
            .all(|text| changes.contains(text))
        })
    };
    eventually("the changes below the chart", Duration::from_secs(30), has_changes).await;

    let history = browser.get("history?project=shop").await.body;
    let back = history.split("href=\"history?").find(|link| link.contains("Undo%20of%20revision"));
    let back = back.and_then(|link| link.split('"').next()).expect("the way back");
    let seen = browser.get(&format!("history?{}", back.replace("&amp;", "&"))).await.body;
    let undone = browser.post("roll-back", &form_with(&seen, "Roll back to this revision")).await;
    assert_eq!(undone.status, 303, "{undone:?}");
    let all = rules(&server, "shop").await;
    assert!(
        all.iter().any(|rule| rule["name"] == "pay" && rule["maxRequests"] == "200"),
        "{all:?}"
    );
    let audit = browser.get("audit?project=shop").await.body;
    for words in [">Rule changed<", ">Rules published<", ">Rules rolled back<", ">Project created<"]
    {
        assert!(audit.contains(words), "{words}: {audit}");
    }
}

#[tokio::test]
async fn changes_of_different_rules_do_not_collide_and_those_of_one_are_compared() {
    let (server, browser) = start_shop().await;
    let first = browser.get(PAY).await.body;
    let other = browser.get("rule?project=shop&name=send").await.body;
    assert!(other.contains("name=\"burst\" value=\"5\""), "{other}");
    let pay = |page: &str, limit: u32| format!("{}&limit={limit}&{SAME}", hidden(page));
    let saved = browser.post("rule-update", &pay(&first, 200)).await;
    assert_eq!(saved.status, 303, "{saved:?}");
    let send = format!("{}&limit=11&length=1+min&burst=&rule_mode=enforce&reason=", hidden(&other));
    let saved = browser.post("rule-update", &send).await;
    assert_eq!(saved.status, 303, "another rule was changed meanwhile: {saved:?}");
    let all = rules(&server, "shop").await;
    let send = all.iter().find(|rule| rule["name"] == "send").expect("send");
    assert_eq!((&send["maxRequests"], &send["burst"]), (&"11".into(), &"11".into()));

    let twice = browser.post("rule-update", &pay(&first, 200)).await;
    assert_eq!(twice.status, 303, "a double click: {twice:?}");
    let stale = browser.post("rule-update", &pay(&first, 300)).await;
    assert_eq!(stale.status, 409, "{stale:?}");
    for text in ["Somebody else has changed the rule", "The rule now, and what you typed", ">300<"]
    {
        assert!(stale.body.contains(text), "{text}: {}", stale.body);
    }
    let again = browser.post("rule-update", &pay(&stale.body, 300)).await;
    assert_eq!(again.status, 303, "the visitor has seen both: {again:?}");
    let all = rules(&server, "shop").await;
    assert!(
        all.iter().any(|rule| rule["name"] == "pay" && rule["maxRequests"] == "300"),
        "{all:?}"
    );
    let without = format!("{}&etag_of=&limit=400&{SAME}", hidden(&browser.get(PAY).await.body));
    let refused = browser.post("rule-update", &without.replace("&etag=", "&etag_was=")).await;
    assert_eq!(refused.status, 409, "without an etag nothing is saved: {refused:?}");
}

#[tokio::test]
async fn values_that_are_not_valid_stand_beside_their_field() {
    let (server, browser) = start_shop().await;
    let page = browser.get(PAY).await.body;
    for (fields, problem) in [
        ("limit=0&length=1h", "Limit must be 1 to"),
        ("limit=x&length=1h", "Limit must be 1 to"),
        ("limit=2000000000&length=1h", "Limit must be"),
        ("limit=200&length=soon", "Window must be 1 ms to 366 d"),
        ("limit=200&length=1h&share=101", "Share of the keys must be 0 to 100"),
    ] {
        let body = format!("{}&rule_mode=enforce&reason=typed&{fields}", hidden(&page));
        let refused = browser.post("rule-update", &body).await;
        assert_eq!(refused.status, 400, "{fields}: {refused:?}");
        let invalid = refused.body.matches("aria-invalid=\"true\"").count();
        assert_eq!(invalid, 1, "{fields}: {}", refused.body);
        for text in [problem, "value=\"typed\"", "Nothing was changed"] {
            assert!(refused.body.contains(text), "{text}: {}", refused.body);
        }
    }
    let month = browser.get("rule?project=shop&name=month").await.body;
    assert!(month.contains("Windows of a calendar: 9 per month"), "{month}");
    assert!(!month.contains("name=\"length\""), "{month}");
    let saved = format!("{}&limit=10&rule_mode=shadow&reason=r", hidden(&month));
    assert_eq!(browser.post("rule-update", &saved).await.status, 303);
    let all = rules(&server, "shop").await;
    let month = all.iter().find(|rule| rule["name"] == "month").expect("month");
    assert_eq!((&month["maxRequests"], &month["mode"]), (&"10".into(), &"RULE_MODE_SHADOW".into()));
    assert_eq!(month["calendar"]["unit"], "MONTH", "the calendar stays: {month}");
}

#[tokio::test]
async fn the_form_is_for_admins() {
    let server = start_with_auth(&["http.hosts=test"]);
    let admin = Browser::signed_in(&server, ADMIN).await;
    let operator = Browser::signed_in(&server, OPERATE).await;
    let mut editor = Editor::open(&admin, "_").await;
    assert_eq!(editor.publish(RULES, "").await.status, 303);
    let path = "rule?project=_&name=pay";
    let shown = operator.get(path).await.body;
    assert!(shown.contains("The role admin is required to change it"), "{shown}");
    let own = super::browser::secret_of(&shown).expect("a secret");
    let body = format!("{}&limit=200&{SAME}", hidden(&admin.get(path).await.body));
    let (_, rest) = body.split_once('&').expect("fields");
    let refused = operator.post("rule-update", &format!("secret={own}&{rest}")).await;
    assert!(
        refused.status == 403 && refused.body.contains("role admin is required"),
        "{refused:?}"
    );
    let strange = admin.post("rule-update", &body.replace("secret=", "secret=x")).await;
    assert_eq!(strange.status, 403, "{strange:?}");
    assert_eq!(admin.post("rule-update", &body).await.status, 303);
}
