//! Three servers on one Redis under load: no request sees half a revision. While Redis is away decisions
//! follow the policies of rules, and an instance that starts then serves.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::check_response::Source;
use rlaas_proto::ratelimit::v1::{CheckRequest, CheckResponse, OnStoreFailure, Rule};
use rlaas_testkit::process::{Client as DecisionClient, Rlaas, request};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use tokio::task::JoinHandle;
use tonic::{Code, Request, Status};

use super::client::{Client, client, rule};

const SOON: Duration = Duration::from_secs(20);
/// Sum of the limits of the two rules of a pair.
const SUM: i64 = 100_000;

/// Writes rules of the project `shop` as one revision.
async fn apply(admin: &mut Client, rules: Vec<Rule>) {
    let project_id = "shop".to_owned();
    let request = proto::ApplyRulesRequest { project_id, rules, ..Default::default() };
    admin.apply_rules(request).await.expect("applied");
}

/// Creates the project `shop`, and returns the secret of a key.
async fn make_shop(admin: &mut Client) -> String {
    let project = Some(proto::Project { id: "shop".to_owned(), ..Default::default() });
    let create = proto::CreateProjectRequest { project, ..Default::default() };
    admin.create_project(create).await.expect("a project");
    let create = proto::CreateKeyRequest { project_id: "shop".to_owned(), ..Default::default() };
    admin.create_key(create).await.expect("a key").into_inner().secret
}

/// Returns two rules that match the same requests, whose limits have the sum [`SUM`].
fn pair(limit: i64) -> Vec<Rule> {
    let of = |name: &str, max_requests| Rule { max_requests, ..rule(name, "pair") };
    vec![of("one", limit), of("other", SUM - limit)]
}

async fn check(
    server: &Rlaas,
    secret: &str,
    message: CheckRequest,
) -> Result<CheckResponse, Status> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("x-api-key", secret.parse().expect("a header"));
    Ok(server.client().await.check(request).await?.into_inner())
}

fn look(resource: &str, user: &str) -> CheckRequest {
    CheckRequest { resource: resource.to_owned(), ..request(user) }
}

/// Asks without pause until `is_over`; each answer must have the limits of one revision. Returns how
/// many different ones it saw.
fn keep_asking(
    client: DecisionClient,
    secret: &str,
    (is_over, asked): (Arc<AtomicBool>, Arc<AtomicU64>),
) -> JoinHandle<usize> {
    let (mut client, secret) = (client, secret.to_owned());
    tokio::spawn(async move {
        let mut seen = BTreeSet::new();
        while !is_over.load(Ordering::Relaxed) {
            let mut request = Request::new(look("pair", "alice"));
            request.metadata_mut().insert("x-api-key", secret.parse().expect("a header"));
            let answer = client.check(request).await.expect("a decision").into_inner();
            let limits: Vec<i64> = answer.decisions.iter().map(|of| of.limit).collect();
            assert_eq!(limits.len(), 2, "{answer:?}");
            assert_eq!(limits.iter().sum::<i64>(), SUM, "limits of two revisions: {limits:?}");
            seen.insert(limits[0]);
            asked.fetch_add(1, Ordering::Relaxed);
        }
        seen.len()
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_sees_half_a_revision() {
    let edits = if std::env::var_os("SOAK").is_some() { 500 } else { 40 };
    let redis = RedisServer::start();
    let settings = ["auth.api-keys=accepted", "store.redis.timeout=5s"];
    let servers: Vec<Rlaas> = (0..3).map(|_| Rlaas::on_redis(&redis, &settings)).collect();
    let mut admin = client(&servers[0], "").await;
    let secret = make_shop(&mut admin).await;
    apply(&mut admin, pair(SUM / 2)).await;
    for server in &servers {
        let is_in_force = async || {
            let answer = check(server, &secret, look("pair", "bob")).await;
            answer.is_ok_and(|answer| answer.decisions.len() == 2)
        };
        eventually("in force", SOON, is_in_force).await;
    }
    let load = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (mut callers, mut writers) = (Vec::new(), Vec::new());
    for server in &servers {
        callers.push(keep_asking(server.client().await, &secret, load.clone()));
        writers.push(client(server, "").await);
    }
    for edit in 0..edits {
        apply(&mut writers[usize::try_from(edit % 3).expect("small")], pair(10_000 + edit)).await;
    }
    load.0.store(true, Ordering::Relaxed);
    let mut seen = Vec::new();
    for caller in callers {
        seen.push(caller.await.expect("each answer has one revision"));
    }
    let asked = load.1.load(Ordering::Relaxed);
    println!("{edits} edits, {asked} answers; revisions seen by each server: {seen:?}");
    assert!(seen.iter().all(|revisions| *revisions > 1), "{seen:?}");
}

/// Rules whose policies differ, each for a resource of its name.
fn policies() -> Vec<Rule> {
    let of = |name: &str, policy: OnStoreFailure| Rule {
        max_requests: 4,
        on_store_failure: policy.into(),
        ..rule(name, name)
    };
    let local = Rule { local_share_ppm: 500_000, ..of("local", OnStoreFailure::Local) };
    vec![of("allow", OnStoreFailure::Allow), of("deny", OnStoreFailure::Deny), local]
}

/// Returns whether requests of one user pass, and why, while Redis is away.
async fn answers(server: &Rlaas, secret: &str, resource: &str) -> Vec<(bool, Source)> {
    let mut answers = Vec::new();
    for _ in 0..6 {
        let answer = check(server, secret, look(resource, "alice")).await.expect("a decision");
        answers.push((answer.allowed, answer.source()));
    }
    answers
}

#[tokio::test]
async fn instance_that_starts_while_redis_is_away_serves_by_the_policies_of_rules() {
    let dir = TempDir::new();
    let kept = dir.path("redis").display().to_string();
    std::fs::create_dir(&kept).expect("a folder");
    let durable = ["--dir", &kept, "--appendonly", "yes", "--appendfsync", "always"];
    let mut redis = RedisServer::start_with(&durable);
    let state_dir = format!("state-dir={}", dir.path("state").display());
    // An instance that starts without Redis is ready if no rule of files needs it.
    let settings =
        ["auth.api-keys=accepted", "store.redis.timeout=1s", "rate-limiter.on-store-failure=allow"];
    let with_folder = [&settings[..], &[&state_dir]].concat();
    let one = Rlaas::on_redis(&redis, &settings);
    let leaving = Rlaas::on_redis(&redis, &with_folder);
    let mut admin = client(&one, "").await;
    let secret = make_shop(&mut admin).await;
    apply(&mut admin, policies()).await;
    let knows = async |server: &Rlaas| {
        check(server, &secret, look("allow", "bob")).await.is_ok_and(|answer| answer.allowed)
    };
    for server in [&one, &leaving] {
        eventually("in force", SOON, async || knows(server).await).await;
    }
    drop(leaving);
    redis.kill();
    let started = Rlaas::on_redis(&redis, &with_folder);
    for server in [&one, &started] {
        let allowed = answers(server, &secret, "allow").await;
        assert_eq!(allowed, [(true, Source::FailOpen); 6]);
        let denied = answers(server, &secret, "deny").await;
        assert_eq!(denied, [(false, Source::FailClosed); 6]);
        // Half of 4 is the share of each instance.
        let local = answers(server, &secret, "local").await;
        let expected = [true, true, false, false, false, false];
        assert_eq!(local, expected.map(|allowed| (allowed, Source::LocalFallback)));
        let unknown = check(server, "rlaas_live_unknown", look("allow", "alice")).await;
        assert_eq!(unknown.expect_err("no key").code(), Code::Unauthenticated);
        let create =
            proto::CreateKeyRequest { project_id: "shop".to_owned(), ..Default::default() };
        let refused = client(server, "").await.create_key(create).await;
        assert_eq!(refused.expect_err("no store").code(), Code::Unavailable);
        assert_eq!(server.get("/readyz").await.0, 200);
    }
    redis.restart();
    for server in [&one, &started] {
        let is_back = async || {
            let answer = check(server, &secret, look("deny", "carol")).await;
            answer.is_ok_and(|answer| answer.allowed && answer.source() == Source::Store)
        };
        eventually("Redis decides again", SOON, is_back).await;
    }
}
