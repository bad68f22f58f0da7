//! Forms of projects that are sent again.

use super::CONSOLE;
use super::browser::Browser;
use super::projects::{create, field, send, start};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, rlaas};

#[tokio::test]
async fn a_form_that_is_shown_again_makes_the_same_change() {
    let server = start();
    let browser = Browser::new(&server);
    create(&browser, "id=shop").await;
    let refused = create(&browser, "id=shop&name=Second").await;
    assert_eq!(refused.status, 409, "{refused:?}");
    let page = browser.get("projects").await.body;
    let (secret, id) = (field(&page, "secret"), field(&page, "request_id"));
    let form = format!("secret={secret}&request_id={id}&unmatched=deny");
    let taken = browser.post("projects", &format!("{form}&id=shop")).await;
    assert_eq!((taken.status, field(&taken.body, "request_id")), (409, id.clone()));
    assert_eq!(browser.post("projects", &format!("{form}&id=market")).await.status, 303);
    let other = browser.post("projects", &format!("{form}&id=other")).await;
    assert_eq!(other.status, 409);
    assert_ne!(field(&other.body, "request_id"), id, "the id was used for another change");

    let page = browser.get("project?id=shop").await.body;
    let (secret, id) = (field(&page, "secret"), field(&page, "request_id"));
    let form = format!("secret={secret}&request_id={id}&project=shop&end=x");
    let wrong = browser.post("project-key-create", &form).await;
    assert_eq!(wrong.status, 400);
    let key_form = wrong.body.split("action=\"project-key-create\"").nth(1).expect("the form");
    assert_eq!(field(key_form, "request_id"), id);
}

#[tokio::test]
async fn a_project_that_was_never_written_is_compared_too() {
    let dir = TempDir::new();
    let service = dir.write("rlaas.yaml", "auth: { api-keys: accepted }\n");
    let shop = dir.write("shop.yaml", "project: shop\nrules: []\n");
    let mut command = rlaas(&["serve", "--config"]);
    command.arg(service).arg("--config").arg(shop);
    let server = Rlaas::start_with(command, &[CONSOLE, "http.hosts=test"]);
    let browser = Browser::new(&server);
    let etag = field(&browser.get("project?id=shop").await.body, "etag");
    assert_eq!(etag, "0000000000000000");
    for (name, status) in [("First", 303), ("Second", 409)] {
        let fields = format!("project=shop&etag={etag}&unmatched=deny&name={name}");
        let saved = send(&browser, "project?id=shop", "project-update", &fields).await;
        assert_eq!(saved.status, status, "{name}: {saved:?}");
    }
}
