//! `SetMode` while something fails: Redis is away, catalogues conflict, clocks step.

use std::sync::Arc;

use rlaas::clock::{Clock, ManualClock, Micros};
use rlaas_limiter::rules::Mode;
use rlaas_projects::registry::Registry;
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::project_service_client::ProjectServiceClient;
use rlaas_proto::ratelimit::v1::RuleMode as ModeMessage;
use rlaas_telemetry::metrics::Metrics;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Code;

use super::admin;
use super::modes::{RULES, TIMEOUT, has_mode, instance, mode_of, set, set_mode, set_on};

#[tokio::test]
async fn answering_instance_obeys_alone_while_redis_is_away() {
    let mut redis = RedisServer::start();
    let dir = TempDir::new();
    let file = dir.write("rules.yaml", RULES);
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &*url];
    let one = Rlaas::start_from(&file, &settings);
    let other = Rlaas::start_from(&file, &settings);
    let mut client = admin(&one).await;
    set_mode(&mut client, set("*", ModeMessage::Enforce, 60)).await.expect("set");
    has_mode(&other, "pay", ModeMessage::Enforce).await;
    redis.kill();
    let first = proto::SetModeRequest {
        request_id: "one".to_owned(),
        ..set("pay", ModeMessage::Off, 3600)
    };
    let answer = set_mode(&mut client, first.clone()).await.expect("set");
    assert_eq!(answer.everywhere_by, None);
    assert_eq!(answer.coverage.as_ref().expect("coverage").instances.len(), 1);
    assert_eq!(mode_of(&one, "pay").await, (ModeMessage::Off, answer.ends_at));
    assert_eq!(mode_of(&other, "pay").await.0, ModeMessage::Enforce);
    assert!(one.log().contains("mode set on this instance alone"), "{}", one.log());
    let again = set_mode(&mut client, first).await.expect("an answer");
    assert_eq!(again, proto::SetModeResponse { replayed: true, ..answer });
    let second = set("trial", ModeMessage::Off, 3600);
    set_mode(&mut client, second).await.expect("set");
    // The later one wins, wherever it was made.
    let mut far = admin(&other).await;
    set_mode(&mut far, set("pay", ModeMessage::Shadow, 3600)).await.expect("set");
    redis.restart();
    for server in [&one, &other] {
        has_mode(server, "pay", ModeMessage::Shadow).await;
    }
    eventually("both changes are in the audit", TIMEOUT, async || {
        let entries = client.list_audit(proto::ListAuditRequest::default()).await;
        let entries = entries.map(|list| list.into_inner().entries).unwrap_or_default();
        let summaries: Vec<_> = entries.iter().map(|entry| &*entry.summary).collect();
        // Newest first, as they were made.
        let place = |of: &str| summaries.iter().position(|summary| summary.starts_with(of));
        let late = |of: &str| {
            let says = |summary: &str| summary.ends_with("before while the store was away");
            place(of).filter(|at| summaries.get(*at).is_some_and(|summary| says(summary)))
        };
        let (first, second) =
            (late("rule pay: mode off for 1h, set "), late("rule trial: mode off"));
        first > second && second.is_some() && late("rule pay: mode shadow").is_some()
    })
    .await;
}

#[tokio::test]
async fn others_are_told_of_a_mode_at_once() {
    let redis = RedisServer::start();
    let clock = ManualClock::new(Clock::default().now());
    let [one, other] = [instance(&redis, &clock), instance(&redis, &clock)];
    let mut background = JoinSet::new();
    let limiter = other.limiter().clone();
    let metrics = Arc::new(Metrics::new());
    let registry = Registry::new(limiter.clone(), other.fleet().clone(), metrics);
    background.spawn(async move { limiter.run().await });
    let listening = other.clone();
    background.spawn(async move { registry.run(listening.modes().changed()).await });
    // Nothing else reads the modes: neither instance polls.
    let told =
        async || timeout(TIMEOUT, other.modes().changed().notified()).await.expect("a message");
    // Those that were set before it listened.
    told().await;
    set_on(&one, set("pay", ModeMessage::Off, 60)).await;
    told().await;
    other.modes().obey().await;
    let snapshot = other.limiter().snapshot();
    let rule = snapshot.rules.iter().find(|rule| &*rule.name == "pay").expect("the rule");
    assert_eq!(rule.mode, Mode::Off);
}

#[tokio::test]
async fn modes_are_set_everywhere_while_catalogues_conflict() {
    let mut redis = RedisServer::start();
    let dir = TempDir::new();
    let file = dir.write("rules.yaml", RULES);
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &*url];
    let servers = [(); 2].map(|()| Rlaas::start_from(&file, &settings));
    let mut projects = ProjectServiceClient::new(servers[0].channel().await);
    let create = |id: &str| proto::CreateProjectRequest {
        project: Some(proto::Project { id: id.to_owned(), ..proto::Project::default() }),
        reason: "a test".to_owned(),
        ..proto::CreateProjectRequest::default()
    };
    // Redis must have been without a catalogue for a while.
    let created = async || projects.create_project(create("shop")).await.is_ok();
    eventually("a project", TIMEOUT, created).await;
    let mut others = ProjectServiceClient::new(servers[1].channel().await);
    let request = || proto::GetProjectRequest { project_id: "shop".to_owned() };
    let known = async || others.get_project(request()).await.is_ok();
    eventually("the project is in force", TIMEOUT, known).await;
    redis.kill();
    redis.restart();
    for server in &servers {
        let conflicts = async || server.metric("rlaas_catalogue_conflict").await == Some(1.0);
        eventually("a conflict", TIMEOUT, conflicts).await;
    }

    let mut client = admin(&servers[0]).await;
    let answer = set_mode(&mut client, set("pay", ModeMessage::Off, 3600)).await.expect("set");
    assert!(answer.everywhere_by.is_some(), "{answer:?}");
    for server in &servers {
        has_mode(server, "pay", ModeMessage::Off).await;
        assert_eq!(mode_of(server, "pay").await.1, answer.ends_at);
    }
    set_mode(&mut admin(&servers[1]).await, set("pay", ModeMessage::Shadow, 1)).await.expect("set");
    for server in &servers {
        // Neither a mode that was set before nor the last one.
        has_mode(server, "pay", ModeMessage::Enforce).await;
    }
    let entries = client.list_audit(proto::ListAuditRequest::default()).await.expect("the audit");
    let entries = entries.into_inner().entries;
    let summaries: Vec<_> = entries.iter().map(|entry| &*entry.summary).collect();
    assert_eq!(summaries, ["rule pay: mode shadow for 1s", "rule pay: mode off for 1h"]);
    let refused = projects.create_project(create("blog")).await.expect_err("a conflict");
    assert_eq!(refused.code(), Code::FailedPrecondition);
}

#[tokio::test]
async fn clock_steps_end_modes_and_bring_them_back() {
    let redis = RedisServer::start();
    let start = Clock::default().now();
    let clocks = [(); 2].map(|()| ManualClock::new(start));
    let instances = [0, 1].map(|at| instance(&redis, &clocks[at]));
    let modes = async || {
        let mut modes = Vec::new();
        for instance in &instances {
            instance.modes().obey().await;
            let snapshot = instance.limiter().snapshot();
            let rule = snapshot.rules.iter().find(|rule| &*rule.name == "pay").expect("the rule");
            modes.push(rule.mode);
        }
        modes
    };
    let (enforced, shadow) = (Mode::Enforced, Mode::Shadow);
    // The first mode is kept for 600 s, as the one that the second replaces.
    set_on(&instances[0], set("pay", ModeMessage::Off, 600)).await;
    set_on(&instances[1], set("pay", ModeMessage::Shadow, 60)).await;
    assert_eq!(modes().await, [shadow; 2]);
    for (seconds, there) in
        [(59, shadow), (60, enforced), (900, enforced), (30, shadow), (0, shadow)]
    {
        clocks[1].set(start + Micros::from_secs(seconds));
        assert_eq!(modes().await, [shadow, there], "{seconds} s");
    }
    // A clock that was set back sets no mode that is earlier than those that it knows.
    clocks[1].set(start - Micros::from_secs(3600));
    set_on(&instances[1], set("pay", ModeMessage::Off, 7200)).await;
    assert_eq!(modes().await, [Mode::Off; 2]);
    clocks[1].set(start);
    assert_eq!(modes().await, [Mode::Off; 2]);
    for clock in &clocks {
        clock.set(start + Micros::from_secs(3600));
    }
    assert_eq!(modes().await, [enforced; 2]);
}
