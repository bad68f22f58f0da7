//! The page of the audit.

use super::browser::Browser;
use super::{ADMIN, CONSOLE, OPERATE, auth, start_with_auth};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::Rlaas;
use serde_json::json;

/// Resets the key of a user, as a local program does.
async fn reset(server: &Rlaas, user_id: &str, reason: &str) {
    let selector = json!({ "request": { "userId": user_id } });
    let body = json!({ "selector": selector, "reason": reason }).to_string();
    let (status, answer) = server.post("/v1/admin/keys:reset", &body).await;
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test]
async fn changes_are_listed_in_pages_and_hostile_texts_do_nothing() {
    let server = Rlaas::start(&[CONSOLE, "http.hosts=test", "audit.keys=clear"]);
    let browser = Browser::new(&server);
    let empty = browser.get("audit").await;
    assert!(empty.status == 200 && empty.body.contains("Nothing has been changed"), "{empty:?}");
    let hostile = "<script>alert(1)</script>\"'\u{202e}\0";
    reset(&server, hostile, hostile).await;
    let page = browser.get("audit").await;
    assert_eq!(page.status, 200);
    let shown = "&lt;script&gt;alert(1)&lt;/script&gt;&quot;'<span class=\"code-point\">U+202E</span>\
                 <span class=\"code-point\">U+0000</span>";
    assert!(page.body.matches(shown).count() >= 2, "id and reason: {}", page.body);
    assert!(!page.body.contains("<script>") && !page.body.contains('\u{202e}'));
    for text in ["Reset", "reset 1 key", ">local</bdi>", "done", "<time datetime="] {
        assert!(page.body.contains(text), "{text}: {}", page.body);
    }
    for number in 0..60 {
        reset(&server, "alice", &format!("reason {number}.")).await;
    }
    let first = browser.get("audit").await.body;
    assert!(first.contains("reason 59.") && first.contains("reason 10."));
    assert!(!first.contains("reason 9."), "50 changes a page");
    let older = first.split("href=\"audit?page=").nth(1).and_then(|rest| rest.split('"').next());
    let older = format!("audit?page={}", older.expect("a link to the next page"));
    let second = browser.get(&older).await.body;
    assert!(
        second.contains("reason 9.") && second.contains(shown) && !second.contains("reason 10.")
    );
}

#[tokio::test]
async fn the_search_is_checked_and_survives_its_values() {
    let server = Rlaas::start(&[CONSOLE, "http.hosts=test"]);
    let browser = Browser::new(&server);
    reset(&server, "alice", "a ticket").await;
    for (query, status, text) in [
        ("actor=local&project=_", 200, "a ticket"),
        ("actor=nobody", 200, "No change fits."),
        ("actor=%22%3E%3Cscript%3E", 200, "value=\"&quot;&gt;&lt;script&gt;\""),
        ("from=2000-01-01&to=2000-01-02", 200, "No change fits."),
        ("from=2000-01-01", 200, "a ticket"),
        ("rule=default&last=1h", 200, "a ticket"),
        ("project=_&rule=default", 200, "<option value=\"default\" selected>"),
        ("rule=pay", 200, "No change fits."),
        ("last=30d", 200, "aria-current=\"true\">30 days"),
        ("last=2h", 400, "last must be 1h, 1d, 7d or 30d"),
        ("from=yesterday", 400, "from must be a day"),
        ("project=NO%20id", 404, "no such project"),
        ("page=1", 400, "page_token must be"),
        ("actor=a&actor=b", 400, "actor: given twice"),
        ("actor=%ff", 400, "in UTF-8"),
    ] {
        let page = browser.get(&format!("audit?{query}")).await;
        assert_eq!(page.status, status, "{query}");
        assert!(page.body.contains(text), "{query}: {}", page.body);
    }
}

#[tokio::test]
async fn the_audit_is_for_admins_and_for_their_projects() {
    let server = start_with_auth(&[]);
    let operator = Browser::signed_in(&server, OPERATE).await;
    let refused = operator.get("audit").await;
    assert!(
        refused.status == 403 && refused.body.contains("role admin is required"),
        "{refused:?}"
    );
    assert!(!operator.get("instances").await.body.contains("href=\"audit\""));
    let admin = Browser::signed_in(&server, ADMIN).await;
    assert_eq!(admin.get("audit").await.status, 200);
    assert!(admin.get("instances").await.body.contains("href=\"audit\""));

    let of_shop = auth(&[(ADMIN, "projects: [shop], roles: [admin]")]);
    let file = TempDir::new();
    let server = Rlaas::start_from(&file.write("rlaas.yaml", &of_shop), &[CONSOLE]);
    let browser = Browser::signed_in(&server, ADMIN).await;
    let own = browser.get("audit").await;
    assert!(own.status == 200 && own.body.contains("Nothing has been changed"), "{own:?}");
    for project in ["_", "other", "shop"] {
        // The project shop does not exist, and no more does one without a role.
        let refused = browser.get(&format!("audit?project={project}")).await;
        assert_eq!(refused.status, 404, "{project}");
    }
}
