//! One project edits its rules without pause on three servers of one Redis: others can make changes all the
//! same, and a key can be revoked at once.
//!
//! How long the changes take is printed. With `SOAK=1` there are 256 edits in flight on each server, and what
//! is promised is asserted: 500 ms until a key is revoked. That needs a machine without other work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::Rule;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use tokio::task::JoinHandle;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::client::{Client, client, rule};
use super::instance::Running;
use super::roles::{ROOT, TEAM, start_on};
use crate::fleet::instance::standalone;

const SOON: Duration = Duration::from_secs(20);
/// Longest time until a key is revoked, on a machine without other work.
const REVOKED: Duration = Duration::from_millis(500);
const KEYS: usize = 8;
/// Edits in flight on each server, with `SOAK=1`.
const IN_FLIGHT: usize = 256;

fn is_soak() -> bool {
    std::env::var_os("SOAK").is_some()
}

#[expect(clippy::disallowed_methods, reason = "measures how long changes take")]
fn now() -> Instant {
    Instant::now()
}

/// Three servers on one Redis, with two projects.
struct BusyFleet {
    _redis: RedisServer,
    servers: Vec<(Rlaas, TempDir)>,
    edits: Arc<Edits>,
}

/// The edits of the load.
#[derive(Debug, Default)]
struct Edits {
    is_over: AtomicBool,
    made: AtomicUsize,
    refused: AtomicUsize,
}

impl BusyFleet {
    async fn start(rules: usize) -> Self {
        let redis = RedisServer::start();
        // Servers wait before they make a catalogue.
        Running::on_redis(&standalone(&redis.url())).put("_", "").await.expect("a change");
        let url = format!("store.redis.url={}", redis.url());
        let settings = ["store.backend=redis", &url, "store.redis.timeout=10s"];
        let servers: Vec<_> =
            (0..3).map(|_| start_on("  api-keys: accepted\n", &settings)).collect();
        let mut root = client(&servers[0].0, ROOT).await;
        for id in ["shop", "blog"] {
            let project = Some(proto::Project { id: id.to_owned(), ..Default::default() });
            let request = proto::CreateProjectRequest { project, ..Default::default() };
            root.create_project(request).await.expect("a project");
            let rules = (0..rules).map(|number| rule(&format!("r{number}"), &format!("/{number}")));
            let request = proto::ApplyRulesRequest {
                project_id: id.to_owned(),
                rules: rules.collect(),
                ..Default::default()
            };
            root.apply_rules(request).await.expect("rules");
        }
        for (server, _) in &servers {
            let is_known =
                async || update(&mut client(server, ROOT).await, "shop", 0, 1).await.is_ok();
            eventually("the projects are known", SOON, is_known).await;
        }
        Self { _redis: redis, servers, edits: Arc::default() }
    }

    /// Creates API keys of the project that edits.
    async fn keys(&self) -> Vec<(String, String)> {
        let (mut root, mut keys) = (client(&self.servers[0].0, ROOT).await, Vec::new());
        for _ in 0..KEYS {
            let request =
                proto::CreateKeyRequest { project_id: "shop".to_owned(), ..Default::default() };
            let created = root.create_key(request).await.expect("a key").into_inner();
            keys.push((created.key.expect("a key").id, created.secret));
        }
        keys
    }

    /// Edits rules of the project on each server, so many at a time, until the end of the load.
    async fn load(&self, in_flight: usize) -> Vec<JoinHandle<()>> {
        let mut tasks = Vec::new();
        for (server, _) in &self.servers {
            let team = client(server, TEAM).await;
            for task in 0..in_flight {
                let (mut team, edits) = (team.clone(), Arc::clone(&self.edits));
                tasks.push(tokio::spawn(async move {
                    let mut limit = 1;
                    while !edits.is_over.load(Ordering::Relaxed) {
                        limit += 1;
                        match update(&mut team, "shop", task, limit).await {
                            Ok(()) => edits.made.fetch_add(1, Ordering::Relaxed),
                            Err(_) => edits.refused.fetch_add(1, Ordering::Relaxed),
                        };
                    }
                }));
            }
        }
        let made = self.edits.made.load(Ordering::Relaxed);
        let is_busy = async || self.edits.made.load(Ordering::Relaxed) >= made + 20;
        eventually("edits are made", SOON, is_busy).await;
        tasks
    }

    async fn end(&self, tasks: Vec<JoinHandle<()>>) {
        self.edits.is_over.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.expect("a task that ends");
        }
        let [made, refused] = [&self.edits.made, &self.edits.refused];
        println!("edits: {made:?} made, {refused:?} refused");
    }
}

async fn update(client: &mut Client, project: &str, of: usize, limit: i64) -> Result<(), Status> {
    let request = proto::UpdateRuleRequest {
        project_id: project.to_owned(),
        rule: Some(Rule { max_requests: limit, ..rule(&format!("r{}", of % 20), "/0") }),
        allow_missing: true,
        ..Default::default()
    };
    client.update_rule(request).await.map(drop)
}

async fn revoke(client: &mut Client, key_id: &str) -> Result<(), Status> {
    let (project_id, key_id) = ("shop".to_owned(), key_id.to_owned());
    let request = proto::RevokeKeyRequest { project_id, key_id, ..Default::default() };
    client.revoke_key(request).await.map(drop)
}

/// Returns `true` if a server has a key as revoked.
async fn is_revoked(server: &Rlaas, key_id: &str) -> bool {
    let request = proto::ListKeysRequest {
        project_id: "shop".to_owned(),
        key_id: key_id.to_owned(),
        ..Default::default()
    };
    let listed = client(server, ROOT).await.list_keys(request).await.expect("keys").into_inner();
    listed.keys.iter().all(|key| key.state() == proto::api_key::State::Revoked)
}

/// Revokes keys while the project edits, on one server after the other.
async fn revoke_all_under_load(rules: usize, in_flight: usize) {
    let fleet = BusyFleet::start(rules).await;
    let keys = fleet.keys().await;
    let tasks = fleet.load(in_flight).await;
    let (mut took, mut failed) = (Vec::new(), Vec::new());
    for (number, (id, _)) in keys.iter().enumerate() {
        let mut root = client(&fleet.servers[number % 3].0, ROOT).await;
        let begun = now();
        if let Err(status) = revoke(&mut root, id).await {
            failed.push(status);
        }
        took.push(begun.elapsed());
    }
    took.sort();
    println!(
        "{in_flight} in flight on each, {rules} rules: revoked in {took:?}, {failed:?} failed"
    );
    // A caller of all projects edits another project, and the same one.
    for project in ["blog", "shop"] {
        let mut root = client(&fleet.servers[1].0, ROOT).await;
        let begun = now();
        let edited = update(&mut root, project, 0, 7).await;
        println!("root edits {project}: {:?}, {edited:?}", begun.elapsed());
        if project == "blog" {
            edited.expect("an edit of another project");
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
    let is_measured = is_soak() && in_flight == IN_FLIGHT;
    assert!(!is_measured || took[KEYS - 1] <= REVOKED, "{took:?}");
    for (server, _) in &fleet.servers {
        for (id, _) in &keys {
            eventually("revoked everywhere", SOON, async || is_revoked(server, id).await).await;
        }
    }
    fleet.end(tasks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_revoked_while_its_project_edits_without_pause() {
    revoke_all_under_load(20, if is_soak() { IN_FLIGHT } else { 16 }).await;
}

/// The project takes many calls to read, and others write it meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_revoked_while_a_large_project_is_edited() {
    revoke_all_under_load(250, 8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_change_too_many_of_a_project_is_refused_and_others_are_not() {
    let fleet = BusyFleet::start(20).await;
    let server = &fleet.servers[0].0;
    let tasks = fleet.load(16).await;
    let mut team = client(server, TEAM).await;
    let refused = loop {
        if let Err(status) = update(&mut team, "shop", 0, 9).await
            && status.code() == Code::ResourceExhausted
        {
            break status;
        }
    };
    let info = refused.get_details_error_info().expect("a reason");
    assert_eq!((&*info.domain, &*info.reason), ("rlaas", "TOO_MANY_CHANGES"));
    assert_eq!(refused.message(), "too many changes are being made: nothing was changed");
    update(&mut client(server, ROOT).await, "blog", 0, 9).await.expect("an edit");
    fleet.end(tasks).await;
    update(&mut team, "shop", 0, 10).await.expect("an edit");
}

/// A project that floods a server with revocations keeps nobody from changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revocations_of_one_project_leave_room_for_others() {
    let fleet = BusyFleet::start(20).await;
    let keys = fleet.keys().await;
    let (server, is_over) = (&fleet.servers[0].0, Arc::new(AtomicBool::new(false)));
    let (made, team) = (Arc::new(AtomicUsize::new(0)), client(server, TEAM).await);
    let flood: Vec<_> = (0..32)
        .map(|_| {
            let (is_over, made) = (Arc::clone(&is_over), Arc::clone(&made));
            let (mut team, id) = (team.clone(), keys[0].0.clone());
            tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    if revoke(&mut team, &id).await.is_ok() {
                        made.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    let is_flooded = async || made.load(Ordering::Relaxed) > 20;
    eventually("keys are revoked", SOON, is_flooded).await;
    let mut root = client(server, ROOT).await;
    let mut team = client(server, TEAM).await;
    for (id, _) in &keys[1..] {
        let begun = now();
        revoke(&mut root, id).await.expect("revoked");
        update(&mut root, "blog", 0, 9).await.expect("an edit of another project");
        update(&mut team, "shop", 0, 9).await.expect("an edit of the project");
        println!("one revoked and two edited in {:?}", begun.elapsed());
    }
    is_over.store(true, Ordering::Relaxed);
    for task in flood {
        task.await.expect("a task that ends");
    }
}
