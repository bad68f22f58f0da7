//! The page of the instances.

use std::time::Duration;

use super::CONSOLE;
use super::browser::Browser;
use rlaas_testkit::eventually;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::RedisServer;

const TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn memory_shows_this_instance_only_and_says_so() {
    let server = Rlaas::start(&[CONSOLE]);
    let page = Browser::new(&server).get("instances").await;
    assert_eq!(page.status, 200);
    for text in [
        "<html lang=\"en\">",
        "Skip to content",
        "aria-current=\"page\"",
        "<caption>",
        "scope=\"col\"",
        "this one",
        "are not listed",
        env!("CARGO_PKG_VERSION"),
    ] {
        assert!(page.body.contains(text), "{text}: {}", page.body);
    }
}

#[tokio::test]
async fn redis_shows_the_fleet_and_its_nodes_and_an_outage_is_told() {
    let redis = RedisServer::start();
    let (one, _other) = (Rlaas::on_redis(&redis, &[CONSOLE]), Rlaas::on_redis(&redis, &[]));
    let browser = Browser::new(&one);
    let page = async || browser.get("instances").await.body;
    eventually("both instances are shown", TIMEOUT, async || {
        page().await.contains("</data> instances")
    })
    .await;
    let both = page().await;
    assert!(both.contains("Redis nodes") && both.contains("closed"), "{both}");
    for text in ["master", "noeviction", " MiB, no limit", "</data> rule answers errors."] {
        assert!(both.contains(text), "{text}: {both}");
    }
    assert!(both.contains("reporting") && !both.contains("does not answer"), "{both}");
    drop(redis);
    eventually("the page shows the outage", TIMEOUT, async || {
        page().await.contains("The store does not answer.")
    })
    .await;
    let alone = page().await;
    let (_, nodes) = alone.split_once("Redis nodes").expect("the nodes");
    for text in ["and still", "</data> failed, ", "</data> let through", "not known"] {
        assert!(nodes.contains(text), "{text}: {nodes}");
    }
    for text in ["</data> instance, ", "other instances are not known"] {
        assert!(alone.contains(text), "{text}: {alone}");
    }
    assert!(!alone.contains("all reporting"), "{alone}");
}
