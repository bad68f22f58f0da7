//! A server that is killed while it writes: what is left is the old revision or the new one.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::{RedisServer, free_port};
use rlaas_testkit::{TempDir, eventually};

use super::client::{Client, client, rule};
use super::instance::{Running, project_id, soon};
use crate::admin::step_proxy::{StepFault, StepProxy};
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

/// Returns the limit of the rules of the project, which must all have the same one.
fn limit_in_force(instance: &Running, rules: usize) -> i64 {
    let state = instance.registry.project(&project_id("shop")).expect("the project");
    let specs = state.rules.specs();
    let limits: BTreeSet<_> = specs.values().map(|spec| spec.limit.value().copied()).collect();
    assert_eq!(specs.len(), rules);
    let [Some(limit)] = limits.into_iter().collect::<Vec<_>>()[..] else {
        panic!("rules of two revisions")
    };
    i64::try_from(limit).expect("a small limit")
}

/// Starts an instance that knows a folder alone.
async fn with_folder(folder: &Path) -> Running {
    let nowhere = format!("redis://127.0.0.1:{}", free_port());
    let instance = Running::on_redis(&standalone(&nowhere));
    instance.registry.open_state_dir(folder).await.expect("an unlocked folder");
    instance
}

/// Kills a server at one request of a write, and returns whether it came so far, and the limit that Redis
/// has then.
async fn kill_at(
    redis: &RedisServer,
    (words, step, fault): (&'static [&'static str], usize, StepFault),
    (before, after): (i64, i64),
) -> (bool, i64) {
    let (proxy, dir) = (StepProxy::to(redis.port()), TempDir::new());
    let url = format!("store.redis.url=redis://127.0.0.1:{}", proxy.port());
    let folder = dir.path("state");
    let state_dir = format!("state-dir={}", folder.display());
    let settings = ["store.backend=redis", "store.redis.timeout=10s", &url, &state_dir];
    let mut writing = Rlaas::start(&settings);
    let mut writer = client(&writing, "").await;
    let request = proto::GetProjectRequest { project_id: "shop".to_owned() };
    let is_read = async || writer.clone().get_project(request.clone()).await.is_ok();
    eventually("read", SOON, is_read).await;
    proxy.fail_at(words, step, fault);
    let write = tokio::spawn(async move { apply(&mut writer, after).await });
    eventually("the step", SOON, async || proxy.has_failed() || write.is_finished()).await;
    let was_pending = !write.is_finished();
    writing.signal("KILL");
    writing.wait();
    let written = write.await.expect("no panic");
    let fresh = Running::on_redis(&standalone(&redis.url()));
    fresh.registry.sync(soon()).await.expect("an answer");
    let found = limit_in_force(&fresh, 2);
    assert!(found == after || found == before && written.is_err(), "{found} {written:?}");
    let kept = limit_in_force(&with_folder(&folder).await, 2);
    assert!(kept == before || kept == found, "{kept} in the folder, {found} in Redis");
    assert!(written.is_err() || kept == after, "{kept} in the folder, {written:?}");
    (was_pending, found)
}

#[tokio::test]
async fn killed_server_leaves_the_old_or_the_new_revision_at_every_step_of_a_write() {
    let redis = RedisServer::start();
    Running::on_redis(&standalone(&redis.url())).put("shop", "Shop").await.expect("a change");
    let reading = Rlaas::on_redis(&redis, &[]);
    let reader = client(&reading, "").await;
    let mut before = 1;
    eventually("written", SOON, async || apply(&mut reader.clone(), 1).await.is_ok()).await;
    // The script that writes: before it runs, and after it has.
    let write: &[&str] = &["{rlaas:catalog}", "\r\nwrite\r\n"];
    let any: &[&str] = &[];
    for (fault, is_new) in [(StepFault::Hung, false), (StepFault::Unanswered, true)] {
        let (was_pending, found) = kill_at(&redis, (write, 0, fault), (before, before + 1)).await;
        assert!(was_pending);
        assert_eq!(found, before + i64::from(is_new), "{fault:?}");
        before = found;
    }
    // Each request from the beginning of the call until it has ended.
    for fault in [StepFault::Hung, StepFault::Unanswered] {
        for step in 0.. {
            let (was_pending, found) =
                kill_at(&redis, (any, step, fault), (before, before + 1)).await;
            println!("{fault:?} at request {step}: pending {was_pending}, new {}", found > before);
            before = found;
            if !was_pending {
                assert!(step > 1, "{step}");
                break;
            }
        }
    }
    let is_seen = async || limit(&mut reader.clone()).await == before;
    eventually("all others see it", SOON, is_seen).await;
}

#[tokio::test]
async fn server_that_is_killed_while_it_writes_its_folder_keeps_the_old_or_the_new_revision() {
    const RULES: usize = 300;
    let (redis, dir) = (RedisServer::start(), TempDir::new());
    Running::on_redis(&standalone(&redis.url())).put("shop", "Shop").await.expect("a change");
    let folder = dir.path("state");
    let state_dir = format!("state-dir={}", folder.display());
    let long = |number: usize| format!("/{number}/{}", "x".repeat(900));
    let apply_all = async |writer: &mut Client, max_requests: i64| {
        let of = |number| rlaas_proto::ratelimit::v1::Rule {
            max_requests,
            ..rule(&format!("rule-{number}"), &long(number))
        };
        let rules = (0..RULES).map(of).collect();
        let project_id = "shop".to_owned();
        let request = proto::ApplyRulesRequest { project_id, rules, ..Default::default() };
        writer.apply_rules(request).await.map(drop)
    };
    let mut before = 1;
    for round in 0..3 {
        let mut server = Rlaas::on_redis(&redis, &[&state_dir]);
        let writer = client(&server, "").await;
        if round == 0 {
            let is_written = async || apply_all(&mut writer.clone(), before).await.is_ok();
            eventually("written", SOON, is_written).await;
        }
        let request = proto::GetProjectRequest { project_id: "shop".to_owned() };
        let is_read = async || writer.clone().get_project(request.clone()).await.is_ok();
        eventually("read", SOON, is_read).await;
        let (lens, after) = (lens_of(&folder), before + 1);
        let len: u64 = lens.values().sum();
        let call = async { apply_all(&mut writer.clone(), after).await };
        // Until the folder grows by more than the age of the catalogue.
        let grows = async {
            while lens_of(&folder).values().sum::<u64>() <= len + 1_000 {
                tokio::task::yield_now().await;
            }
        };
        let is_acknowledged = tokio::select! {
            written = call => { written.expect("written"); true }
            () = grows => false,
        };
        server.signal("KILL");
        server.wait();
        let cuts = cuts(&folder, &lens, &dir.path(&format!("cut-{round}")));
        let kept = limit_in_force(&with_folder(&folder).await, RULES);
        assert!(kept == after || kept == before && !is_acknowledged, "{kept} {is_acknowledged}");
        let mut found = Vec::new();
        for cut in &cuts {
            found.push(limit_in_force(&with_folder(cut).await, RULES));
        }
        println!("killed: new {}; cut off: {found:?}", kept == after);
        assert!(found.iter().all(|limit| [before, after].contains(limit)), "{found:?}");
        let fresh = Running::on_redis(&standalone(&redis.url()));
        fresh.registry.sync(soon()).await.expect("an answer");
        before = limit_in_force(&fresh, RULES);
        assert_eq!(before, after, "Redis had it before the folder");
    }
}

/// Returns the lengths of the files of a folder.
fn lens_of(folder: &Path) -> BTreeMap<OsString, u64> {
    let files = std::fs::read_dir(folder).expect("a folder").flatten();
    files.filter_map(|file| Some((file.file_name(), file.metadata().ok()?.len()))).collect()
}

/// Returns copies of a folder in which a file that has grown is cut off at several lengths, as if the
/// process had ended when it had written so much.
fn cuts(folder: &Path, before: &BTreeMap<OsString, u64>, copies: &Path) -> Vec<PathBuf> {
    const PARTS: u64 = 6;
    let mut cuts = Vec::new();
    for (name, len) in lens_of(folder) {
        let old = before.get(&name).copied().unwrap_or(len);
        for part in 0..=PARTS {
            if old >= len {
                break;
            }
            let copy = copies.join(format!("{part}-{len}"));
            std::fs::create_dir_all(&copy).expect("a folder");
            for file in lens_of(folder).into_keys() {
                std::fs::copy(folder.join(&file), copy.join(&file)).expect("a copy");
            }
            let file = std::fs::File::options().write(true).open(copy.join(&name));
            let cut = file.expect("a file").set_len(old + (len - old) * part / PARTS);
            cut.expect("a shorter file");
            cuts.push(copy);
        }
    }
    cuts
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
