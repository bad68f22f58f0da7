//! `SetMode`: rules that are switched for a time, on one instance and on all.

use std::sync::Arc;
use std::time::Duration;

use prost_types::Timestamp;
use rlaas::clock::{Clock, ManualClock};
use rlaas::store::{RedisSettings, Servers};
use rlaas_admin::{AdminSettings, Administrator};
use rlaas_auth::Caller;
use rlaas_limiter::Limiter;
use rlaas_limiter::fleet::Fleet;
use rlaas_limiter::rules::{Mode, Rule};
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::{CheckRequest, GetConfigRequest, RuleMode as ModeMessage};
use rlaas_telemetry::metrics::Metrics;
use rlaas_testkit::process::{Rlaas, request};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use tonic::{Code, Status};

use super::{AdminClient, admin};

pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time from the reply to a change until every instance obeys it.
const IN_FORCE: Duration = Duration::from_secs(2);
pub(super) const RULES: &str = "\
rate-limiter: {limit: 1, window: 1h}
rules:
  - {name: pay, endpoint: /pay, limit: 1, window: 1h}
  - {name: trial, endpoint: /trial, limit: 1, window: 1h, mode: shadow}
  - {name: gone, endpoint: /gone, limit: 0, window: 1h, mode: off}
";

pub(crate) fn set(rule: &str, mode: ModeMessage, seconds: i64) -> proto::SetModeRequest {
    let ttl = prost_types::Duration { seconds, nanos: 0 };
    proto::SetModeRequest {
        rule: rule.to_owned(),
        mode: mode.into(),
        ttl: Some(ttl).filter(|_| mode != ModeMessage::Unspecified),
        reason: "a test".to_owned(),
        ..proto::SetModeRequest::default()
    }
}

pub(crate) async fn set_mode(
    client: &mut AdminClient,
    request: proto::SetModeRequest,
) -> Result<proto::SetModeResponse, Status> {
    client.set_mode(request).await.map(tonic::Response::into_inner)
}

/// Checks a request, and returns whether it may pass and the rules that decided.
async fn check(server: &Rlaas, user: &str, resource: &str) -> Result<(bool, Vec<String>), Status> {
    let request = CheckRequest { resource: resource.to_owned(), ..request(user) };
    let answer = server.client().await.check(request).await?.into_inner();
    Ok((answer.allowed, answer.decisions.into_iter().map(|one| one.rule).collect()))
}

/// Returns the mode in force and its end, as `GetConfig` tells them.
pub(super) async fn mode_of(server: &Rlaas, rule: &str) -> (ModeMessage, Option<Timestamp>) {
    let config = server.client().await.get_config(GetConfigRequest::default()).await;
    let rules = config.expect("the configuration").into_inner().rules;
    let rule = rules.into_iter().find(|one| one.name == rule).expect("the rule");
    (rule.mode(), rule.mode_ends_at)
}

pub(crate) async fn has_mode(server: &Rlaas, rule: &str, mode: ModeMessage) {
    has_mode_within(TIMEOUT, server, rule, mode).await;
}

async fn has_mode_within(timeout: Duration, server: &Rlaas, rule: &str, mode: ModeMessage) {
    eventually(&format!("{rule} is {mode:?}"), timeout, async || {
        mode_of(server, rule).await.0 == mode
    })
    .await;
}

#[tokio::test]
async fn rule_is_switched_and_switched_back_early() {
    let dir = TempDir::new();
    let server = Rlaas::start_from(&dir.write("rules.yaml", RULES), &[]);
    let mut client = admin(&server).await;
    assert!(check(&server, "alice", "/pay").await.expect("an answer").0);
    assert!(!check(&server, "alice", "/pay").await.expect("an answer").0);

    let answer = set_mode(&mut client, set("pay", ModeMessage::Shadow, 3600)).await.expect("set");
    assert!(answer.everywhere_by.is_some() && answer.ends_at.is_some(), "{answer:?}");
    assert_eq!(answer.coverage.expect("coverage").instances.len(), 1);
    let in_shadow = check(&server, "alice", "/pay").await.expect("an answer");
    assert_eq!(
        in_shadow,
        (true, vec!["pay".to_owned()]),
        "the default rule does not begin to apply"
    );
    assert_eq!(mode_of(&server, "pay").await, (ModeMessage::Shadow, answer.ends_at));

    set_mode(&mut client, set("pay", ModeMessage::Off, 3600)).await.expect("set");
    assert_eq!(check(&server, "alice", "/pay").await.expect("an answer"), (true, Vec::new()));
    // The later setting counts, for all rules too.
    set_mode(&mut client, set("*", ModeMessage::Enforce, 3600)).await.expect("set");
    for rule in ["pay", "trial", "gone", "default"] {
        assert_eq!(mode_of(&server, rule).await.0, ModeMessage::Enforce, "{rule}");
    }
    assert!(!check(&server, "alice", "/pay").await.expect("an answer").0);
    assert!(!check(&server, "alice", "/gone").await.expect("an answer").0);

    let ended = set_mode(&mut client, set("*", ModeMessage::Unspecified, 0)).await.expect("set");
    assert_eq!(ended.ends_at, None);
    for (rule, mode) in [
        ("pay", ModeMessage::Enforce),
        ("trial", ModeMessage::Shadow),
        ("gone", ModeMessage::Off),
        ("default", ModeMessage::Enforce),
    ] {
        assert_eq!(mode_of(&server, rule).await, (mode, None), "{rule}");
    }
    let entries = client.list_audit(proto::ListAuditRequest::default()).await.expect("the audit");
    let entries = entries.into_inner().entries;
    let summaries: Vec<_> = entries.iter().map(|entry| (&*entry.target, &*entry.summary)).collect();
    assert_eq!(
        summaries,
        [
            ("*", "every rule: mode of the configuration"),
            ("*", "every rule: mode enforce for 1h"),
            ("pay", "rule pay: mode off for 1h"),
            ("pay", "rule pay: mode shadow for 1h"),
        ]
    );
}

#[tokio::test]
async fn matching_rule_counts_as_matched_whatever_its_mode() {
    let dir = TempDir::new();
    let file = dir.write("rules.yaml", RULES);
    let server = Rlaas::start_from(&file, &["unmatched=deny"]);
    for (resource, rules) in [("/trial", vec!["trial".to_owned()]), ("/gone", Vec::new())] {
        for _ in 0..2 {
            assert_eq!(check(&server, "a", resource).await.expect(resource), (true, rules.clone()));
        }
    }
    let refused = check(&server, "a", "/other").await.expect_err("no rule");
    assert_eq!(refused.code(), Code::PermissionDenied);
    let mut client = admin(&server).await;
    for mode in [ModeMessage::Shadow, ModeMessage::Off] {
        set_mode(&mut client, set("pay", mode, 60)).await.expect("set");
        for _ in 0..2 {
            assert!(check(&server, "a", "/pay").await.expect("an answer").0, "{mode:?}");
        }
    }
    // The default rule goes on beside a rule that is in shadow mode by configuration alone.
    let server = Rlaas::start_from(&file, &[]);
    let mut client = admin(&server).await;
    set_mode(&mut client, set("trial", ModeMessage::Enforce, 60)).await.expect("set");
    let decided = check(&server, "a", "/trial").await.expect("an answer");
    assert_eq!(decided, (true, vec!["trial".to_owned(), "default".to_owned()]));
    assert_eq!(check(&server, "a", "/gone").await.expect("an answer"), (true, Vec::new()));
}

#[tokio::test]
async fn retry_gets_the_first_answer() {
    let redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    for settings in [&[][..], &["store.backend=redis", &url]] {
        let server = Rlaas::start(settings);
        let mut client = admin(&server).await;
        let request = || proto::SetModeRequest {
            request_id: "one".to_owned(),
            ..set("default", ModeMessage::Shadow, 60)
        };
        let first = set_mode(&mut client, request()).await.expect("set");
        set_mode(&mut client, set("default", ModeMessage::Off, 60)).await.expect("set");
        let again = set_mode(&mut client, request()).await.expect("an answer");
        assert_eq!(again, proto::SetModeResponse { replayed: true, ..first });
        assert_eq!(mode_of(&server, "default").await.0, ModeMessage::Off);
    }
}

#[tokio::test]
async fn every_instance_obeys_also_one_that_starts_later() {
    let redis = RedisServer::start();
    let dir = TempDir::new();
    let file = dir.write("rules.yaml", RULES);
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &*url];
    let one = Rlaas::start_from(&file, &settings);
    let other = Rlaas::start_from(&file, &settings);
    let mut client = admin(&one).await;
    let answer = set_mode(&mut client, set("pay", ModeMessage::Off, 3600)).await.expect("set");
    has_mode_within(IN_FORCE, &other, "pay", ModeMessage::Off).await;
    let later = Rlaas::start_from(&file, &settings);
    has_mode(&later, "pay", ModeMessage::Off).await;
    assert_eq!(mode_of(&later, "pay").await.1, answer.ends_at);
    // Redis loses everything: the instances put it back.
    redis.query::<()>(&["FLUSHALL"]);
    let after_loss = Rlaas::start_from(&file, &settings);
    has_mode(&after_loss, "pay", ModeMessage::Off).await;
    set_mode(&mut admin(&later).await, set("*", ModeMessage::Unspecified, 0)).await.expect("set");
    let servers = [&one, &other, &after_loss];
    let obey = |server| has_mode_within(IN_FORCE, server, "pay", ModeMessage::Enforce);
    futures_util::future::join_all(servers.map(obey)).await;
}

#[tokio::test]
async fn journal_keeps_modes_over_a_restart() {
    let dir = TempDir::new();
    let file = dir.write("rules.yaml", RULES);
    let path = format!("store.memory.journal.path={}", dir.path("journal").display());
    let server = Rlaas::start_from(&file, &[&path]);
    let mut client = admin(&server).await;
    set_mode(&mut client, set("pay", ModeMessage::Shadow, 3600)).await.expect("set");
    let last = set_mode(&mut client, set("pay", ModeMessage::Off, 3600)).await.expect("set");
    drop(server);
    let server = Rlaas::start_from(&file, &[&path]);
    has_mode(&server, "pay", ModeMessage::Off).await;
    assert_eq!(mode_of(&server, "pay").await.1, last.ends_at);
}

/// An instance in this process, whose clock the test moves.
pub(super) fn instance(redis: &RedisServer, clock: &ManualClock) -> Administrator {
    let limit = Rule::gcra("pay").limit(1).per(Duration::from_hours(1)).resource("/pay");
    let url = redis.url().parse().map(Box::new).expect("a valid url");
    let timeout = Duration::from_secs(5);
    let settings = RedisSettings { timeout, ..RedisSettings::new(Servers::Standalone(url)) };
    let limiter = Limiter::builder().rule(limit).redis(settings).build().expect("a limiter");
    let fleet = Fleet::new(limiter.store());
    let settings =
        AdminSettings { clock: Clock::Manual(clock.clone()), ..AdminSettings::default() };
    Administrator::new(limiter, fleet, Arc::new(Metrics::new()), settings)
}

/// Sets a mode on an instance in this process.
pub(super) async fn set_on(instance: &Administrator, request: proto::SetModeRequest) {
    let mut request = tonic::Request::new(request);
    request.extensions_mut().insert(Caller::local());
    instance.set_mode(&request).await.expect("set");
}

#[tokio::test]
async fn modes_are_those_of_one_project_or_of_all() {
    let redis = RedisServer::start();
    let clock = ManualClock::new(Clock::default().now());
    let administrator = instance(&redis, &clock);
    let limiter = administrator.limiter();
    let rules = limiter.snapshot().rules.clone();
    limiter.replace_project_rules("shop", rules.clone());
    let mode_in = |project: &str| {
        let snapshot = limiter.project_snapshot(project).expect("a project");
        snapshot.rules.iter().last().expect("a rule").mode
    };
    let set = async |project_id: &str, mode| {
        let project_id = project_id.to_owned();
        let request = proto::SetModeRequest { project_id, ..set("*", mode, 60) };
        set_on(&administrator, request).await;
    };
    set("shop", ModeMessage::Off).await;
    assert_eq!((mode_in("shop"), mode_in("")), (Mode::Off, Mode::Enforced));
    set("-", ModeMessage::Shadow).await;
    assert_eq!((mode_in("shop"), mode_in("")), (Mode::Shadow, Mode::Shadow));
    // Rules that are put in force later obey, too.
    limiter.replace_project_rules("blog", rules);
    assert_eq!(mode_in("blog"), Mode::Shadow);
}
