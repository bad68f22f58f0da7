//! A mixed fleet: this program and an older one decide from one Redis at the same time.
//!
//! `tests/mixed/REF` names the older commit, `RESERVATIONS` beside it one that has reservations, and asks its
//! own clock when they end. `MIXED=1` builds them in a worktree below `target/mixed`, which takes minutes;
//! without it, or without those commits in the history, the tests are skipped.

mod reservations;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use rlaas::algorithm::Algorithm;
use rlaas::clock::Micros;
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::admin_service_client::AdminServiceClient;
use rlaas_proto::ratelimit::admin::v1::selector::Target;
use rlaas_proto::ratelimit::v1::grant::Kind;
use rlaas_proto::ratelimit::v1::{CheckRequest, CheckResponse, Grant};
use rlaas_testkit::cluster::RedisCluster;
use rlaas_testkit::process::{Client, Rlaas, check, request, rlaas};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::T0;
use rlaas_testkit::tools::{finish, left_out, skipped};

const COMMIT: &str = include_str!("../../mixed/REF");
const WITH_RESERVATIONS: &str = include_str!("../../mixed/RESERVATIONS");
const LIMIT: i64 = 10;
const WINDOW: Micros = Micros::from_secs(3600);
/// A resource that the rules of all algorithms match.
const EVERY: &str = "/every";

/// Returns the older program, built once; or reports `what` as skipped.
fn older_program(what: &str) -> Option<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    program_of(COMMIT, &BUILT, what)
}

fn program_of(
    commit: &str,
    built: &OnceLock<Result<PathBuf, String>>,
    what: &str,
) -> Option<PathBuf> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    if std::env::var_os("MIXED").is_none() {
        // It takes minutes, so NO_SKIP does not ask for it.
        left_out(&format!("mixed_fleet::{what}"), "MIXED is not set");
        return None;
    }
    let build_one = || {
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        build(commit.trim())
    };
    match built.get_or_init(build_one) {
        Ok(program) => Some(program.clone()),
        Err(reason) => {
            skipped(&format!("mixed_fleet::{what}"), reason);
            None
        }
    }
}

/// Builds an older commit, unless it has been built. A build that fails is a failure; a history that lacks
/// it is not.
fn build(commit: &str) -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let git = |arguments: &[&str]| finish(Command::new("git").current_dir(root).args(arguments));
    git(&["cat-file", "-e", &format!("{commit}^{{commit}}")])
        .map_err(|error| format!("the history lacks commit {commit}: {error}"))?;
    let target = root.join("target/mixed");
    let program = target.join(format!("rlaas-{commit}"));
    if program.exists() {
        return Ok(program);
    }
    let source = target.join(commit);
    if !source.join("Cargo.toml").exists() {
        git(&["worktree", "prune"])?;
        git(&["worktree", "add", "--detach", &source.display().to_string(), commit])
            .unwrap_or_else(|error| panic!("no worktree of {commit}: {error}"));
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(&source).args(["build", "--locked", "--bin", "rlaas", "--target-dir"]);
    finish(cargo.arg(target.join("build"))).unwrap_or_else(|error| panic!("{error}"));
    std::fs::rename(target.join("build/debug/rlaas"), &program)
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    Ok(program)
}

/// Returns the command by which the older program serves.
fn serve(older: &Path) -> Command {
    let mut command = Command::new(older);
    command.arg("serve").env_remove("REDIS_URL").env_remove("RUST_LOG");
    command
}

/// The older and this program on the same store, with a rule for each algorithm.
struct Fleet {
    _servers: [Rlaas; 2],
    clients: [Client; 2],
    /// The store's clock stands still between two calls: whole responses can be compared.
    is_timeless: bool,
}

impl Fleet {
    async fn start(older: &Path, store: &[String], is_timeless: bool) -> Self {
        let rules = Algorithm::RATES.iter().map(|algorithm| {
            let name = algorithm.name();
            format!(
                "{{name: {name}, endpoint: [/{name}, {EVERY}], algorithm: {name}, \
                 limit: {LIMIT}, window: 1h}}"
            )
        });
        let rules = format!("rules=[{}]", rules.collect::<Vec<_>>().join(", "));
        let always = ["store.backend=redis", "store.redis.timeout=10s", "deny-cache.enabled=false"];
        let store = store.iter().map(String::as_str);
        let settings: Vec<&str> = always.into_iter().chain([&*rules]).chain(store).collect();
        let servers = [serve(older), rlaas(&["serve"])];
        let servers = servers.map(|command| Rlaas::start_with(command, &settings));
        let clients = [servers[0].client().await, servers[1].client().await];
        Self { _servers: servers, clients, is_timeless }
    }

    /// Asks the program whose turn it is.
    async fn check(&mut self, turn: i64, resource: &str, cost: Option<u64>) -> CheckResponse {
        let request = CheckRequest {
            user_id: format!("user of {resource}"),
            resource: resource.to_owned(),
            cost,
            ..CheckRequest::default()
        };
        let client = &mut self.clients[usize::try_from(turn % 2).expect("0 or 1")];
        client.check(request).await.expect("a decision").into_inner()
    }

    /// Both programs see the same state.
    async fn agree(&mut self, resource: &str) -> CheckResponse {
        let look = [self.check(0, resource, Some(0)).await, self.check(1, resource, Some(0)).await];
        let [older, this] = look;
        if self.is_timeless {
            // The older version does not send the windows of the rules.
            let mut comparable = this.clone();
            comparable.decisions.iter_mut().for_each(|decision| decision.window = None);
            assert_eq!(older, comparable, "{resource}");
        }
        let numbers = |of: &CheckResponse| (of.allowed, of.limit, of.remaining, of.current_count);
        assert_eq!(numbers(&older), numbers(&this), "{resource}");
        this
    }

    /// Takes turns until the limit is used up, from a state in which nothing is used.
    async fn use_up(&mut self, resource: &str, first: i64) {
        for taken in 1..=LIMIT {
            let response = self.check(first + taken, resource, None).await;
            assert!(response.allowed, "{resource}, unit {taken}: {response:?}");
            assert_eq!(response.remaining, LIMIT - taken, "{resource}, unit {taken}");
        }
        for turn in [0, 1] {
            let response = self.check(turn, resource, None).await;
            assert!(!response.allowed, "{resource}, unit 11 of program {turn}: {response:?}");
            assert!(response.retry_after.is_some(), "{resource}: {response:?}");
        }
    }
}

/// The resources, and the one that all rules match last: it takes from all of them or from none.
fn resources() -> Vec<String> {
    let each = Algorithm::RATES.iter().map(|algorithm| format!("/{}", algorithm.name()));
    each.chain([EVERY.to_owned()]).collect()
}

#[tokio::test]
async fn two_versions_count_together_on_one_server() {
    let Some(older) = older_program("two_versions_count_together_on_one_server") else { return };
    let redis = RedisServer::start();
    redis.set_clock(T0);
    let url = format!("store.redis.url={}", redis.url());
    let mut fleet = Fleet::start(&older, &[url], true).await;
    for (first, resource) in (0..).zip(resources()) {
        fleet.use_up(&resource, first).await;
        fleet.agree(&resource).await;
    }
    // What comes back with time is seen alike, and is granted once: what one takes the other lacks.
    for step in 1..=8 {
        redis.set_clock(T0 + Micros::from_micros(step * WINDOW.as_micros() / 4));
        for resource in resources() {
            let before = fleet.agree(&resource).await;
            let turn = i64::try_from(step).expect("a small number");
            let response = fleet.check(turn, &resource, None).await;
            assert_eq!(response.allowed, before.remaining > 0, "{resource}, step {step}");
            let after = fleet.agree(&resource).await;
            let taken = i64::from(response.allowed);
            assert_eq!(after.remaining, before.remaining - taken, "{resource}, step {step}");
        }
    }
    // Two windows after the last take nothing is left of it.
    redis.set_clock(T0 + Micros::from_micros(5 * WINDOW.as_micros()));
    for (first, resource) in (1..).zip(resources()) {
        fleet.use_up(&resource, first).await;
    }
}

#[tokio::test]
async fn two_versions_count_together_on_a_cluster() {
    let Some(older) = older_program("two_versions_count_together_on_a_cluster") else { return };
    let cluster = RedisCluster::start(3, 0).await;
    let mut fleet = Fleet::start(&older, &cluster.settings(), false).await;
    for (first, resource) in (0..).zip(resources()) {
        fleet.use_up(&resource, first).await;
        fleet.agree(&resource).await;
    }
}

/// The number of allowed calls of five under one request id, and of those that were replayed.
async fn five_under_one_id(client: &mut Client, request_id: &str) -> (usize, usize) {
    let (mut allowed, mut replayed) = (0, 0);
    for _ in 0..5 {
        let request = CheckRequest {
            request_id: request_id.to_owned(),
            resource: "/gcra".to_owned(),
            ..request("alice")
        };
        let response = client.check(request).await.expect("a decision").into_inner();
        allowed += usize::from(response.allowed);
        replayed += usize::from(response.replayed);
    }
    (allowed, replayed)
}

#[tokio::test]
async fn the_older_version_ignores_request_ids() {
    let Some(older) = older_program("the_older_version_ignores_request_ids") else { return };
    let redis = RedisServer::start();
    redis.set_clock(T0);
    let url = format!("store.redis.url={}", redis.url());
    let mut fleet = Fleet::start(&older, &[url], true).await;
    let left = async |fleet: &mut Fleet| {
        let request =
            CheckRequest { cost: Some(0), resource: "/gcra".to_owned(), ..request("alice") };
        fleet.clients[1].check(request).await.expect("a look").into_inner().remaining
    };
    // This version takes one unit for five calls under one id, the older one five.
    assert_eq!(five_under_one_id(&mut fleet.clients[1], "one").await, (5, 4));
    assert_eq!(left(&mut fleet).await, LIMIT - 1);
    assert_eq!(five_under_one_id(&mut fleet.clients[0], "two").await, (5, 0));
    assert_eq!(left(&mut fleet).await, LIMIT - 6);
    // It neither reads a record of this version nor leaves one.
    assert_eq!(five_under_one_id(&mut fleet.clients[0], "one").await, (4, 0));
    assert_eq!(left(&mut fleet).await, 0);
    assert_eq!(five_under_one_id(&mut fleet.clients[1], "two").await, (0, 0));
}

#[tokio::test]
async fn the_older_version_ignores_bans_and_overrides() {
    let Some(older) = older_program("the_older_version_ignores_bans_and_overrides") else { return };
    let redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let always =
        ["store.backend=redis", "store.redis.timeout=10s", "deny-cache.enabled=false", &url];
    let limit = "max-requests: 3, window-size: 86400";
    // The setting is unknown to the older version, which would not start with it.
    let (of_older, of_this) = (
        format!("rate-limiter={{{limit}}}"),
        format!("rate-limiter={{{limit}, overridable: true}}"),
    );
    let [older, this] = [(serve(&older), of_older), (rlaas(&["serve"]), of_this)]
        .map(|(command, rule)| Rlaas::start_with(command, &[&always[..], &[&rule]].concat()));
    let (mut older_client, mut this_client) = (older.client().await, this.client().await);
    let mut admin = AdminServiceClient::new(this.channel().await);
    let set = |user: &str, kind| proto::SetOverrideRequest {
        selector: Some(proto::Selector {
            target: Some(Target::Request(request(user))),
            rule: String::new(),
            project_id: String::new(),
        }),
        grant: Some(Grant { kind: Some(kind), burst: 0 }),
        ttl: Some(prost_types::Duration { seconds: 3600, nanos: 0 }),
        reason: "a test".to_owned(),
        ..proto::SetOverrideRequest::default()
    };
    admin.set_override(set("mallory", Kind::Banned(true))).await.expect("a ban");
    admin.set_override(set("alice", Kind::Limit(100))).await.expect("an override");
    let allowed = async |user: &str, client: &mut Client| {
        let mut allowed = 0;
        for _ in 0..5 {
            let response = check(client, user).await.expect("a decision");
            allowed += usize::from(response.allowed);
        }
        allowed
    };
    // The ban holds on this version, whatever the older one answers.
    assert_eq!(allowed("mallory", &mut this_client).await, 0);
    assert_eq!(allowed("mallory", &mut older_client).await, 3);
    assert_eq!(allowed("mallory", &mut this_client).await, 0);
    // The override holds on this version; the older one denies by the rule, and they count together.
    assert_eq!(allowed("alice", &mut this_client).await, 5);
    assert_eq!(allowed("alice", &mut older_client).await, 0);
    assert_eq!(allowed("alice", &mut this_client).await, 5);
}
