//! Plans of changed rules: what they start from, and how much of them is shown.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::CONSOLE;
use super::browser::Browser;
use super::change::{Editor, PAY, TIMEOUT, create_shop, rules, start};
use rlaas_testkit::eventually;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::RedisServer;

#[tokio::test]
async fn a_plan_starts_from_the_rules_that_another_instance_has_published() {
    let redis = RedisServer::start();
    let settings = [CONSOLE, "http.hosts=test", "auth.api-keys=accepted"];
    let (one, server) = (Rlaas::on_redis(&redis, &settings), Rlaas::on_redis(&redis, &settings));
    create_shop(&one).await;
    let (one, two) = (Browser::new(&one), Browser::new(&server));
    let mut first = Editor::open(&one, "shop").await;
    assert_eq!(first.publish(&PAY.replace('5', "3"), "").await.status, 303);
    eventually("the rules of the other instance", TIMEOUT, async || {
        two.get("change?project=shop").await.body.contains("limit: 3")
    })
    .await;
    let (mut first, mut second) =
        (Editor::open(&one, "shop").await, Editor::open(&two, "shop").await);
    assert_eq!(second.send("change-check", PAY, "").await.status, 200);
    assert_eq!(first.publish(&PAY.replace('5', "7"), "").await.status, 303);
    // The second instance may not have heard of it yet.
    let refused = second.send("change-publish", PAY, "").await;
    assert!(refused.status == 409 && refused.body.contains("Others have changed"), "{refused:?}");
    let plan = refused.body.split("<h2>Plan</h2>").nth(1).expect("a plan");
    assert!(plan.contains(">7<") && !plan.contains(">3<"), "{plan}");
    assert_eq!(rules(&server, "shop").await[0]["maxRequests"], "7");
    assert_eq!(second.send("change-publish", PAY, "").await.status, 303);
    assert_eq!(rules(&server, "shop").await[0]["maxRequests"], "5");
}

#[tokio::test]
async fn countless_problems_are_counted_and_the_first_shown() {
    let server = start(&[]);
    let browser = Browser::new(&server);
    create_shop(&server).await;
    let mut editor = Editor::open(&browser, "shop").await;
    let text = |rule: &str| format!("rules:\n{}", rule.repeat(1_500));
    // Problems of the text, and problems that only the trial finds.
    for rule in ["- {name: a b, limit: 1, window: 1h}\n", "- {name: a, limit: 1, window: 1h}\n"] {
        let checked = editor.send("change-check", &text(rule), "").await;
        assert_eq!(checked.status, 200);
        let list = checked.body.split("<ul class=\"problems\">").nth(1).expect("problems");
        let list = list.split("</ul>").next().unwrap_or_default();
        assert_eq!(list.matches("<li>").count(), 501, "{rule}: {list}");
        assert!(list.contains("</data> more</li>"), "{rule}: {list}");
    }
}

#[tokio::test]
async fn checks_of_the_script_get_the_result_alone() {
    let server = start(&[]);
    let browser = Browser::new(&server);
    create_shop(&server).await;
    let editor = Editor::open(&browser, "shop").await;
    let names = ["secret", "project", "revision"];
    let hidden = names.map(|name| format!("{name}={}&", editor.field(name))).concat();
    let text = utf8_percent_encode(PAY, NON_ALPHANUMERIC);
    let headers = format!("Origin: http://{}\r\nX-Console-Check: 1\r\n", browser.address);
    let body = format!("{hidden}rules={text}");
    let checked = browser.post_with("change-check", &headers, &body).await;
    assert_eq!(checked.status, 200, "{checked:?}");
    assert!(checked.body.starts_with("<div id=\"result\""), "{checked:?}");
    assert!(checked.body.contains("1</data> new") && !checked.body.contains("<textarea"));
    let planned = checked.body.split("name=\"planned\" value=\"").nth(1);
    let planned = planned.and_then(|rest| rest.split('"').next()).expect("a plan");
    let body = format!("{body}&planned={planned}");
    let origin = format!("Origin: http://{}\r\n", browser.address);
    assert_eq!(browser.post_with("change-publish", &origin, &body).await.status, 303);
}
