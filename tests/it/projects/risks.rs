//! Warnings of settings of Redis by which projects may be lost.

use std::time::Duration;

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_testkit::eventually;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::RedisServer;

use super::client::client;

const TIMEOUT: Duration = Duration::from_secs(20);
const EVICTING: [&str; 4] = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
const MAY_EVICT: &str = "redis may evict projects and API keys";
const NOT_PERSISTENT: &str = "redis loses projects and API keys when it restarts";

/// Creates a project.
async fn create(server: &Rlaas) {
    let mut client = client(server, "").await;
    let project = Some(proto::Project { id: "shop".to_owned(), ..Default::default() });
    let request = proto::CreateProjectRequest { project, ..Default::default() };
    // Redis must have been without projects for a while.
    let created = async || client.create_project(request.clone()).await.is_ok();
    eventually("a project", TIMEOUT, created).await;
}

/// Waits until the log has a line and the metric this value, while the server looks at its projects
/// more often than each second.
async fn tells(redis: &RedisServer, server: &Rlaas, line: &str, at_risk: f64) {
    let look = "for i = 1, 30 do redis.call('PUBLISH', 'rlaas:catalog', 'look') end";
    eventually(line, TIMEOUT, async || {
        redis.query::<()>(&["EVAL", look, "0"]);
        let metric = server.metric("rlaas_catalogue_at_risk").await;
        server.log().contains(line) && metric == Some(at_risk)
    })
    .await;
}

fn set(redis: &RedisServer, name: &str, value: &str) {
    redis.query::<()>(&["CONFIG", "SET", name, value]);
}

#[tokio::test]
async fn settings_by_which_projects_may_be_lost_are_warned_of_when_they_change() {
    let redis = RedisServer::start_with(&[&EVICTING[..], &["--save", "3600 1"]].concat());
    let server = Rlaas::on_redis(&redis, &[]);
    create(&server).await;
    tells(&redis, &server, MAY_EVICT, 1.0).await;
    assert!(server.log().contains("allkeys-lru"), "{}", server.log());
    assert!(!server.log().contains(NOT_PERSISTENT), "{}", server.log());
    // Projects have no time to live.
    set(&redis, "maxmemory-policy", "volatile-lru");
    tells(&redis, &server, "no setting of redis is known", 0.0).await;
    set(&redis, "save", "");
    tells(&redis, &server, NOT_PERSISTENT, 1.0).await;
    set(&redis, "appendonly", "yes");
    tells(&redis, &server, NOT_PERSISTENT, 0.0).await;
    let log = server.log();
    let counts = [MAY_EVICT, NOT_PERSISTENT].map(|line| log.matches(line).count());
    assert_eq!(counts, [1, 1], "{log}");
    // An instance that starts later warns, too.
    set(&redis, "appendonly", "no");
    tells(&redis, &server, NOT_PERSISTENT, 1.0).await;
    let later = Rlaas::on_redis(&redis, &[]);
    tells(&redis, &later, NOT_PERSISTENT, 1.0).await;
}

#[tokio::test]
async fn nothing_is_said_without_projects_or_of_what_redis_does_not_tell() {
    let redis = RedisServer::start_with(&EVICTING);
    redis.query::<()>(&["ACL", "SETUSER", "default", "-config"]);
    let server = Rlaas::on_redis(&redis, &[]);
    let is_known = async || server.metric("rlaas_redis_may_evict").await == Some(1.0);
    eventually("the policy is known", TIMEOUT, is_known).await;
    assert!(!server.log().contains(MAY_EVICT), "there are no projects: {}", server.log());
    create(&server).await;
    tells(&redis, &server, MAY_EVICT, 1.0).await;
    // It has neither a log nor snapshots, which only CONFIG tells.
    assert!(!server.log().contains(NOT_PERSISTENT), "{}", server.log());
    redis.query::<()>(&["ACL", "SETUSER", "default", "-info"]);
    tells(&redis, &server, "no setting of redis is known", 0.0).await;
}
