//! Three servers on one Redis under load, while projects, keys and rules are edited at random.
//!
//! `SOAK=1` makes 1,000 edits and prints how long they took to be in force everywhere.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::{CheckRequest, OnStoreFailure, Rule};
use rlaas_testkit::process::{Rlaas, request};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use tokio::task::JoinHandle;
use tonic::{Code, Request};

use super::client::{Client, client, rule};

/// Longest time until an edit is in force everywhere.
const IN_FORCE: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_secs(20);
/// The project of the load, which is edited too.
const LOADED: &str = "loaded";

fn edits() -> usize {
    if std::env::var_os("SOAK").is_some() { 1_000 } else { 40 }
}

/// A random edit: which server makes it, what it is, of which project, and a number.
type Dice = (usize, u8, prop::sample::Index, i64);

fn dice() -> impl Strategy<Value = Dice> {
    (0..3_usize, 0..10_u8, any::<prop::sample::Index>(), 1..1_000_i64)
}

/// Three servers, their clients, and the secrets of active keys by project and id.
struct EditedFleet {
    servers: Vec<Rlaas>,
    clients: Vec<Client>,
    secrets: BTreeMap<String, BTreeMap<String, String>>,
    created: usize,
}

/// What a server says of a project: the project, its rules and its keys.
type View =
    Option<(Option<proto::Project>, Vec<proto::ProjectRule>, Vec<(String, i32, Option<i64>)>)>;

impl EditedFleet {
    async fn start(redis: &RedisServer) -> Self {
        let settings = ["auth.api-keys=accepted", "store.redis.timeout=1s"];
        let servers: Vec<Rlaas> = (0..3).map(|_| Rlaas::on_redis(redis, &settings)).collect();
        let mut clients = Vec::new();
        for server in &servers {
            clients.push(client(server, "").await);
        }
        Self { servers, clients, secrets: BTreeMap::new(), created: 0 }
    }

    async fn view(&self, server: usize, id: &str) -> View {
        let mut client = self.clients[server].clone();
        let project_id = id.to_owned();
        let request = proto::GetProjectRequest { project_id: project_id.clone() };
        let project = match client.get_project(request).await {
            Ok(response) => response.into_inner().project,
            Err(status) if status.code() == Code::NotFound => return None,
            Err(status) => panic!("{status}"),
        };
        let request =
            proto::ListRulesRequest { project_id: project_id.clone(), ..Default::default() };
        let rules = client.list_rules(request).await.ok()?.into_inner().rules;
        let request = proto::ListKeysRequest { project_id, ..Default::default() };
        let keys = client.list_keys(request).await.ok()?.into_inner().keys;
        let keys =
            keys.into_iter().map(|key| (key.id, key.state, key.expires_at.map(|at| at.seconds)));
        Some((project, rules, keys.collect()))
    }

    /// Makes an edit, and returns the project, and secrets that are no longer accepted.
    async fn edit(&mut self, (by, kind, of, number): Dice) -> (String, Vec<String>) {
        let mut client = self.clients[by].clone();
        let ids: Vec<String> = self.secrets.keys().cloned().collect();
        let id = of.get(&ids).clone();
        let named = |name: &str| Rule { max_requests: number, ..rule(name, name) };
        let mut ended = Vec::new();
        match kind {
            0 if ids.len() < 8 => {
                self.created += 1;
                let id = format!("project-{}", self.created);
                self.create(by, &id).await;
                return (id, ended);
            }
            1 if id != LOADED && ids.len() > 3 => {
                let request =
                    proto::DeleteProjectRequest { project_id: id.clone(), ..Default::default() };
                client.delete_project(request).await.expect("deleted");
                ended.extend(self.secrets.remove(&id).expect("a project").into_values());
            }
            2 | 3 if self.secrets[&id].len() < 8 => self.create_key(by, &id).await,
            4 if self.secrets[&id].len() > 1 => {
                let keys = self.secrets.get_mut(&id).expect("a project");
                let (key_id, secret) = keys.pop_first().expect("a key");
                let request = proto::RevokeKeyRequest {
                    project_id: id.clone(),
                    key_id,
                    ..Default::default()
                };
                client.revoke_key(request).await.expect("revoked");
                ended.push(secret);
            }
            5 if id != LOADED => {
                let keys = self.secrets.get_mut(&id).expect("a project");
                let (key_id, secret) = keys.pop_first().expect("a key");
                let request = proto::RotateKeyRequest {
                    project_id: id.clone(),
                    key_id,
                    grace: Some(prost_types::Duration::default()),
                    ..Default::default()
                };
                let rotated = client.rotate_key(request).await.expect("rotated").into_inner();
                keys.insert(rotated.key.expect("a key").id, rotated.secret);
                ended.push(secret);
            }
            6 | 7 => self.race(by, &id, named(&format!("rule-{}", number % 5))).await,
            8 => {
                let request = proto::DeleteRuleRequest {
                    project_id: id.clone(),
                    rule_name: format!("rule-{}", number % 5),
                    ..Default::default()
                };
                let refused = client.delete_rule(request).await.err().map(|status| status.code());
                assert!(matches!(refused, None | Some(Code::NotFound)), "{refused:?}");
            }
            _ => {
                let request = proto::ApplyRulesRequest {
                    project_id: id.clone(),
                    rules: ["rule-0", "rule-1", "rule-2"].map(named).to_vec(),
                    ..Default::default()
                };
                client.apply_rules(request).await.expect("applied");
            }
        }
        (id, ended)
    }

    async fn create(&mut self, by: usize, id: &str) {
        let project = Some(proto::Project { id: id.to_owned(), ..Default::default() });
        let request = proto::CreateProjectRequest { project, ..Default::default() };
        self.clients[by].create_project(request).await.expect("a project");
        self.secrets.insert(id.to_owned(), BTreeMap::new());
        self.create_key(by, id).await;
    }

    async fn create_key(&mut self, by: usize, id: &str) {
        let request = proto::CreateKeyRequest { project_id: id.to_owned(), ..Default::default() };
        let created = self.clients[by].create_key(request).await.expect("a key").into_inner();
        let keys = self.secrets.get_mut(id).expect("a project");
        keys.insert(created.key.expect("a key").id, created.secret);
    }

    /// Two servers write a rule with the etag that both have read: one of them wins.
    async fn race(&self, by: usize, id: &str, rule: Rule) {
        let get = proto::GetRuleRequest { project_id: id.to_owned(), rule_name: rule.name.clone() };
        let read = self.clients[by].clone().get_rule(get).await;
        let etag = read.ok().and_then(|read| read.into_inner().rule).map(|rule| rule.etag);
        let update = |max_requests| proto::UpdateRuleRequest {
            project_id: id.to_owned(),
            rule: Some(Rule { max_requests, ..rule.clone() }),
            etag: etag.clone().unwrap_or_default(),
            allow_missing: etag.is_none(),
            ..Default::default()
        };
        let (mut one, mut other) = (self.clients[by].clone(), self.clients[(by + 1) % 3].clone());
        let (one, other) = tokio::join!(
            one.update_rule(update(rule.max_requests + 1)),
            other.update_rule(update(rule.max_requests + 2)),
        );
        if etag.is_none() {
            assert!(one.is_ok() && other.is_ok(), "nothing to lose: {one:?} {other:?}");
            return;
        }
        let [winner, loser] = if one.is_ok() { [one, other] } else { [other, one] };
        winner.expect("one of them wins");
        assert_eq!(loser.expect_err("a lost update").code(), Code::Aborted);
    }

    /// Waits until an edit is in force on all servers, and returns the time that it took.
    async fn await_everywhere(&self, (id, ended): &(String, Vec<String>)) -> Duration {
        let secret = self.secrets.get(id).and_then(|keys| keys.values().next_back());
        let is_everywhere = async || {
            let mut is_everywhere = true;
            let first = self.view(0, id).await;
            for server in 0..3 {
                is_everywhere &= self.view(server, id).await == first;
                for secret in ended {
                    is_everywhere &= self.code(server, secret).await == Code::Unauthenticated;
                }
                if let Some(secret) = secret {
                    is_everywhere &= self.code(server, secret).await != Code::Unauthenticated;
                }
            }
            is_everywhere && first.is_some() == self.secrets.contains_key(id)
        };
        eventually(&format!("the edit of {id} is in force"), IN_FORCE, is_everywhere).await
    }

    /// Returns the outcome of a call that takes nothing.
    async fn code(&self, server: usize, secret: &str) -> Code {
        let look = CheckRequest { cost: Some(0), ..request("look") };
        let mut client = self.servers[server].client().await;
        client.check(with_key(secret, look)).await.err().map_or(Code::Ok, |status| status.code())
    }
}

fn with_key(secret: &str, message: CheckRequest) -> Request<CheckRequest> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("x-api-key", secret.parse().expect("a header"));
    request
}

/// Calls that are made without pause, none of which may fail.
struct SteadyLoad {
    is_over: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    callers: Vec<JoinHandle<()>>,
}

impl SteadyLoad {
    async fn start(fleet: &EditedFleet, secret: &str) -> Self {
        let (is_over, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut callers = Vec::new();
        for server in &fleet.servers {
            let (mut client, secret) = (server.client().await, secret.to_owned());
            let (is_over, calls) = (Arc::clone(&is_over), Arc::clone(&calls));
            callers.push(tokio::spawn(async move {
                let mut user = 0_u64;
                while !is_over.load(Ordering::Relaxed) {
                    user += 1;
                    let check = CheckRequest {
                        resource: "steady".to_owned(),
                        ..request(&(user % 1_000).to_string())
                    };
                    client.check(with_key(&secret, check)).await.expect("a decision");
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        Self { is_over, calls, callers }
    }

    /// Waits for another 100 decisions.
    async fn goes_on(&self) {
        let seen = self.calls.load(Ordering::Relaxed);
        let more = async || self.calls.load(Ordering::Relaxed) > seen + 100;
        eventually("decisions go on", SOON, more).await;
    }

    async fn finish(self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        for caller in self.callers {
            caller.await.expect("no decision fails");
        }
        self.calls.load(Ordering::Relaxed)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_edits_are_in_force_everywhere_and_no_decision_fails() {
    let dir = TempDir::new();
    let kept = dir.path("").display().to_string();
    let mut redis = RedisServer::start_with(&[
        "--dir",
        &kept,
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
    ]);
    let mut fleet = EditedFleet::start(&redis).await;
    fleet.create(0, LOADED).await;
    let steady =
        Rule { on_store_failure: OnStoreFailure::Allow.into(), ..rule("steady", "steady") };
    fleet.race(0, LOADED, steady).await;
    fleet.await_everywhere(&(LOADED.to_owned(), Vec::new())).await;
    // The last one: the edits end the first.
    let secret = fleet.secrets[LOADED].values().next().expect("a key").clone();
    fleet.secrets.get_mut(LOADED).expect("a project").clear();
    fleet.create_key(0, LOADED).await;
    let load = SteadyLoad::start(&fleet, &secret).await;

    let mut runner = TestRunner::deterministic();
    let mut times = Vec::new();
    for edit in 0..edits() {
        let dice = dice().new_tree(&mut runner).expect("dice").current();
        let made = fleet.edit(dice).await;
        times.push(fleet.await_everywhere(&made).await);
        if edit == edits() / 2 {
            redis.kill();
            load.goes_on().await;
            let request =
                proto::CreateKeyRequest { project_id: LOADED.to_owned(), ..Default::default() };
            let refused = fleet.clients[0].clone().create_key(request).await;
            assert_eq!(refused.expect_err("no store").code(), Code::Unavailable);
            load.goes_on().await;
            redis.restart();
            // Each server connects again at a time of its own.
            for client in &fleet.clients {
                let is_back = async || {
                    let project = proto::Project { id: LOADED.to_owned(), ..Default::default() };
                    let request = proto::UpdateProjectRequest {
                        project: Some(project),
                        ..Default::default()
                    };
                    client.clone().update_project(request).await.is_ok()
                };
                eventually("writes are taken again", SOON, is_back).await;
            }
            fleet.await_everywhere(&(LOADED.to_owned(), Vec::new())).await;
        }
    }
    let calls = load.finish().await;
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!(
        "{} edits in force everywhere: p50 {:?}, p99 {:?}, longest {:?}; {calls} decisions",
        times.len(),
        at(50),
        at(99),
        at(100),
    );
    assert!(calls > 100, "{calls}");
}
