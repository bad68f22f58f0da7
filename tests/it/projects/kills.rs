//! A server that is killed while it writes: what is left is the old revision or the new one.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::proxy::{Behaviour, Proxy};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};

use super::client::{Client, client, rule};
use super::instance::{Running, soon};
use crate::fleet::instance::standalone;

const SOON: Duration = Duration::from_secs(20);

async fn create(client: &mut Client) {
    let project = Some(proto::Project { id: "shop".to_owned(), ..proto::Project::default() });
    let request = proto::CreateProjectRequest { project, ..Default::default() };
    client.create_project(request).await.expect("a project");
}

/// Writes two rules with the same limit.
async fn apply(client: &mut Client, units: i64) -> Result<(), tonic::Status> {
    let rules = ["a", "b"].map(|name| rlaas_proto::ratelimit::v1::Rule {
        max_requests: units,
        ..rule(name, &format!("/{name}"))
    });
    let request = proto::ApplyRulesRequest {
        project_id: "shop".to_owned(),
        rules: rules.to_vec(),
        ..Default::default()
    };
    client.apply_rules(request).await.map(drop)
}

/// Returns the limit of both rules.
async fn limit(client: &mut Client) -> i64 {
    let request = proto::ListRulesRequest { project_id: "shop".to_owned(), ..Default::default() };
    let response = client.list_rules(request).await.expect("rules").into_inner();
    let limits: Vec<_> = response
        .rules
        .iter()
        .map(|rule| rule.rule.as_ref().expect("a rule").max_requests)
        .collect();
    assert!(limits.len() == 2 && limits[0] == limits[1], "{limits:?}");
    limits[0]
}

#[tokio::test]
async fn redis_has_the_old_or_the_new_revision_whichever_reply_is_the_last() {
    let redis = RedisServer::start();
    Running::on_redis(&standalone(&redis.url())).put("shop", "Shop").await.expect("a change");
    let reading = Rlaas::on_redis(&redis, &[]);
    let mut reader = client(&reading, "").await;
    let mut before = 1;
    eventually("written", SOON, async || apply(&mut reader.clone(), 1).await.is_ok()).await;
    for cut in 1..=6 {
        let proxy = Proxy::to(redis.port());
        let url = format!("store.redis.url={}", proxy.url());
        let writing = Rlaas::start(&["store.backend=redis", &url]);
        let mut writer = client(&writing, "").await;
        let request = proto::GetProjectRequest { project_id: "shop".to_owned() };
        eventually("read", SOON, async || {
            writer.clone().get_project(request.clone()).await.is_ok()
        })
        .await;
        proxy.set(Behaviour::CutEvery(cut));
        let after = before + 1;
        let written = apply(&mut writer, after).await;
        writing.signal("KILL");
        let state = Running::on_redis(&standalone(&redis.url()));
        state.registry.sync(soon()).await.expect("an answer");
        let revision = state.revision("shop");
        let get = proto::GetProjectRequest { project_id: "shop".to_owned() };
        eventually("in force", SOON, async || {
            let project = reader.clone().get_project(get.clone()).await;
            project.is_ok_and(|of| {
                of.into_inner().project.is_some_and(|project| project.revision == revision)
            })
        })
        .await;
        let found = limit(&mut reader).await;
        assert!(found == after || found == before && written.is_err(), "{found} {written:?}");
        before = found;
    }
}

#[tokio::test]
async fn journal_has_every_revision_that_was_acknowledged() {
    let dir = TempDir::new();
    let journal = format!("store.memory.journal.path={}", dir.path("journal").display());
    let mut last = 0;
    for _ in 0..3 {
        let mut server = Rlaas::start(&[&journal]);
        let mut writer = client(&server, "").await;
        if last == 0 {
            create(&mut writer).await;
        } else {
            let request = proto::GetProjectRequest { project_id: "shop".to_owned() };
            let is_read = async || writer.clone().get_project(request.clone()).await.is_ok();
            eventually("the journal is read", SOON, is_read).await;
            let found = limit(&mut writer).await;
            assert!(found == last || found == last + 1, "{found} after {last}");
            last = found;
        }
        let acknowledged = Arc::new(AtomicI64::new(last));
        let (counter, first) = (Arc::clone(&acknowledged), last + 1);
        let writing = tokio::spawn(async move {
            for units in first.. {
                if apply(&mut writer, units).await.is_err() {
                    break;
                }
                counter.store(units, Ordering::SeqCst);
            }
        });
        let enough = async || acknowledged.load(Ordering::SeqCst) >= first + 10;
        eventually("revisions", SOON, enough).await;
        server.signal("KILL");
        server.wait();
        writing.await.expect("the writer");
        last = acknowledged.load(Ordering::SeqCst);
    }
}
