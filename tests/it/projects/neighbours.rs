//! One project validates rules without pause and edits a rule again and again, while others work.
//!
//! How long the neighbours wait is printed. With `SOAK=1` the load is large, and what is promised is asserted:
//! 2 s until a change is in force everywhere, and 50 ms for 99 % of the probes. That needs `--release`, and a
//! machine without other work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::admin_service_client::AdminServiceClient;
use rlaas_proto::ratelimit::admin::v1::selector::Target;
use rlaas_proto::ratelimit::v1::grant::Kind;
use rlaas_proto::ratelimit::v1::{Algorithm, CheckRequest, Grant, Rule, RuleMode};
use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, request};
use rlaas_testkit::redis::RedisServer;
use tokio::task::JoinHandle;
use tonic::{Code, Request};

use super::client::{Client, client};
use super::validation::{create, limited};
use crate::admin::modes::{has_mode, set, set_mode};

const TIMEOUT: Duration = Duration::from_secs(20);
/// Longest time until a change is in force everywhere.
const IN_FORCE: Duration = Duration::from_secs(2);
/// Longest time of 99 % of the probes.
const PROBED: Duration = Duration::from_millis(50);
/// Time between two edits, two probes and two decisions.
const PACE: Duration = Duration::from_millis(20);

/// How much of everything there is.
struct NeighbourLoad {
    rules: usize,
    rounds: usize,
    calm: Duration,
}

fn is_soak() -> bool {
    std::env::var_os("SOAK").is_some()
}

fn load() -> NeighbourLoad {
    if is_soak() {
        NeighbourLoad { rules: 5_000, rounds: 10, calm: Duration::from_secs(10) }
    } else {
        NeighbourLoad { rules: 20, rounds: 1, calm: Duration::from_millis(100) }
    }
}

#[expect(clippy::disallowed_methods, reason = "measures how long neighbours wait")]
fn now() -> Instant {
    Instant::now()
}

/// Tasks that go on until they are stopped.
#[derive(Clone, Default)]
struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Calls something at each tick until it is stopped, and returns how long each call took.
fn every<F>(
    pace: Duration,
    running: &StopFlag,
    call: impl Fn() -> F + Send + 'static,
) -> JoinHandle<Vec<Duration>>
where
    F: Future<Output = ()> + Send,
{
    let running = running.clone();
    tokio::spawn(async move {
        let (mut ticks, mut took) = (tokio::time::interval(pace), Vec::new());
        while !running.is_stopped() {
            ticks.tick().await;
            let began = now();
            call().await;
            took.push(began.elapsed());
        }
        took
    })
}

/// Prints how long calls took. Returns the 99th percentile, and the maximum.
fn print(what: &str, mut took: Vec<Duration>) -> [Duration; 2] {
    took.sort();
    let at = |percent: usize| took[(took.len() - 1) * percent / 100];
    println!("{what}: {} times, p50 {:?}, p99 {:?}, max {:?}", took.len(), at(50), at(99), at(100));
    [at(99), at(100)]
}

/// Asserts with `SOAK` that no call took longer than a change may.
fn print_in_force(what: &str, took: Vec<Duration>) {
    let [_, max] = print(what, took);
    assert!(!is_soak() || max <= IN_FORCE, "{what}: {max:?}");
}

fn asked(user: &str, secret: &str) -> Request<CheckRequest> {
    let mut request = Request::new(CheckRequest {
        user_id: user.to_owned(),
        resource: "/".to_owned(),
        ..CheckRequest::default()
    });
    if !secret.is_empty() {
        request.metadata_mut().insert("x-api-key", secret.parse().expect("a header"));
    }
    request
}

/// Probes and decisions of a server for some time.
async fn measure(
    server: &Arc<Rlaas>,
    secret: &str,
    running: &StopFlag,
) -> [JoinHandle<Vec<Duration>>; 2] {
    let (of, limiter) = (Arc::clone(server), server.client().await);
    let probes = every(PACE, running, move || {
        let of = Arc::clone(&of);
        async move {
            assert_eq!(of.get("/livez").await.0, 200);
        }
    });
    let secret = secret.to_owned();
    let decisions = every(PACE, running, move || {
        let (mut limiter, secret) = (limiter.clone(), secret.clone());
        async move {
            limiter.check(asked("quiet", &secret)).await.expect("a decision");
        }
    });
    [probes, decisions]
}

async fn create_key(client: &mut Client, id: &str) -> (String, String) {
    let request = proto::CreateKeyRequest { project_id: id.to_owned(), ..Default::default() };
    let created = client.create_key(request).await.expect("a key").into_inner();
    (created.key.expect("a key").id, created.secret)
}

fn ban(user: &str) -> proto::SetOverrideRequest {
    let target = Some(Target::Request(request(user)));
    proto::SetOverrideRequest {
        selector: Some(proto::Selector { target, ..Default::default() }),
        grant: Some(Grant { kind: Some(Kind::Banned(true)), burst: 0 }),
        ttl: Some(prost_types::Duration { seconds: 3600, nanos: 0 }),
        reason: "abuse".to_owned(),
        ..proto::SetOverrideRequest::default()
    }
}

fn rules_of(count: usize, limit: i64) -> Vec<Rule> {
    (0..count).map(|number| limited(&format!("r{number}"), &format!("/{number}"), limit)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neighbours_go_on_while_a_project_validates_without_pause() {
    let NeighbourLoad { rules, rounds, calm } = load();
    let redis = RedisServer::start();
    let settings = [
        "auth.api-keys=accepted",
        "projects.max-rules=6000",
        "rate-limiter.overridable=true",
        "rate-limiter.max-requests=100000",
    ];
    let one = Arc::new(Rlaas::on_redis(&redis, &settings));
    let two = Rlaas::on_redis(&redis, &settings);
    let mut projects = client(&one, "").await;
    let algorithm = Algorithm::Gcra.into();
    let everybody = Rule { matchers: Vec::new(), algorithm, ..limited("all", "", 1_000_000) };
    create(&mut projects, "noisy", vec![everybody.clone()]).await;
    let quiet = create(&mut projects, "quiet", vec![everybody.clone()]).await;

    let running = StopFlag::default();
    let [probes, decisions] = measure(&one, &quiet, &running).await;
    tokio::time::timeout(calm, std::future::pending::<()>()).await.expect_err("some time");
    running.stop();
    print("calm: /livez", probes.await.expect("probes"));
    print("calm: decisions", decisions.await.expect("decisions"));

    let running = StopFlag::default();
    let validations = {
        let client = projects.clone();
        every(Duration::from_micros(1), &running, move || {
            let (mut client, project_id) = (client.clone(), "noisy".to_owned());
            let rules = rules_of(rules, 3);
            let request = proto::ValidateRequest { project_id, rules, ..Default::default() };
            async move {
                client.validate(request).await.expect("a validation");
            }
        })
    };
    let edits = {
        let client = projects.clone();
        let number = Arc::new(std::sync::atomic::AtomicI64::new(1));
        every(PACE, &running, move || {
            let (mut client, number) = (client.clone(), number.fetch_add(1, Ordering::Relaxed));
            async move {
                let rule = Some(limited("edited", "/edited", number));
                let project_id = "noisy".to_owned();
                let request = proto::UpdateRuleRequest {
                    project_id,
                    rule,
                    allow_missing: true,
                    ..Default::default()
                };
                client.update_rule(request).await.expect("an edit");
            }
        })
    };
    let [probes, decisions] = measure(&one, &quiet, &running).await;
    let (mut revoked, mut applied, mut banned, mut switched) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut other = two.client().await;
    for round in 0..rounds {
        let (id, secret) = create_key(&mut projects, "quiet").await;
        eventually("the key is in force everywhere", TIMEOUT, async || {
            other.clone().check(asked("a", &secret)).await.is_ok()
        })
        .await;
        let began = now();
        let (project_id, key_id) = ("quiet".to_owned(), id);
        let request = proto::RevokeKeyRequest { project_id, key_id, ..Default::default() };
        projects.revoke_key(request).await.expect("a revoked key");
        loop {
            match other.check(asked("a", &secret)).await {
                Ok(_) => tokio::task::yield_now().await,
                Err(refused) => break assert_eq!(refused.code(), Code::Unauthenticated),
            }
        }
        revoked.push(began.elapsed());
        let began = now();
        let limit = i64::try_from(round).expect("a small number") + 1;
        let all = [vec![everybody.clone()], rules_of(rules, limit)].concat();
        let project_id = "quiet".to_owned();
        let request = proto::ApplyRulesRequest { project_id, rules: all, ..Default::default() };
        projects.apply_rules(request).await.expect("rules");
        applied.push(began.elapsed());
        let mut admin = AdminServiceClient::new(one.channel().await);
        let began = now();
        let ban = ban(&format!("mallory-{round}"));
        admin.set_override(ban).await.expect("a ban");
        banned.push(began.elapsed());
        let began = now();
        let mode = if round % 2 == 0 { RuleMode::Shadow } else { RuleMode::Enforce };
        set_mode(&mut admin, set("default", mode, 3_600)).await.expect("a mode");
        has_mode(&two, "default", mode).await;
        switched.push(began.elapsed());
    }
    running.stop();
    print_in_force("key revoked everywhere", revoked);
    print_in_force(&format!("{rules} rules applied"), applied);
    print_in_force("ban answered", banned);
    print_in_force("mode in force everywhere", switched);
    let [p99, _] = print("noisy: /livez", probes.await.expect("probes"));
    assert!(!is_soak() || p99 <= PROBED, "/livez: {p99:?}");
    print("noisy: decisions", decisions.await.expect("decisions"));
    print("noisy: validations", validations.await.expect("validations"));
    print("noisy: edits", edits.await.expect("edits"));
}
