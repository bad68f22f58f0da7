//! Windows from the first use: what begins one, what ends it, and what a change of the rule or of the clock does
//! to it, on both stores. Random histories are in `differential` and `holds`.

use std::sync::Arc;

use rlaas::algorithm::{Algorithm, Cost, Decision, Limit, Outcome, Window};
use rlaas::clock::Micros;
use rlaas::rules::{Coupling, EnforcedShare, Grant, Mode, Rule, RuleSet};
use rlaas::store::Action;
use rlaas::verdict::Verdict;
use rlaas_proto::ratelimit::v1::{CheckRequest, GetConfigRequest, WindowFrom};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, request, run};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::{Service, T0, span};

const HOUR: f64 = 3_600.0;
const MICRO: Micros = Micros::from_micros(1);

fn window(seconds: f64) -> Window {
    Window::from(span(seconds)).at_first_use()
}

fn rule(units: u64, seconds: f64) -> Rule {
    let limit = Limit::new(units, window(seconds)).expect("a limit");
    Rule::new_default(Algorithm::FixedWindow, limit)
}

fn rules(units: u64, seconds: f64) -> RuleSet {
    RuleSet::new(rule(units, seconds), Vec::new())
}

/// Services on both stores.
fn services(rules: &RuleSet) -> [Service; 2] {
    let server = Arc::new(RedisServer::start());
    [Service::on_memory(rules.clone()), Service::on_redis(rules.clone(), server)]
}

fn wait(decision: &Decision) -> Option<Micros> {
    match decision.outcome {
        Outcome::Denied { retry_after } => Some(retry_after),
        _ => None,
    }
}

/// What is left, and the time until all is whole.
fn left(decision: &Decision) -> (i64, Micros) {
    (decision.remaining, decision.reset_after)
}

#[tokio::test]
async fn the_first_take_begins_the_window_and_nothing_prolongs_it() {
    for on in services(&rules(3, 5.0 * HOUR)) {
        // Looks begin nothing, nor does a cost that is impossible.
        assert_eq!(left(&on.dry_run("alice", 1).await), (3, Micros::ZERO));
        assert_eq!(left(&on.dry_run("alice", 0).await), (3, Micros::ZERO));
        assert_eq!(on.check_cost("alice", 4).await.outcome, Outcome::Impossible);
        assert!(on.is_empty());
        on.at(1_000.5);
        assert_eq!(left(&on.check_cost("alice", 2).await), (1, span(5.0 * HOUR)));
        on.at(1_000.5 + HOUR);
        let denied = on.check_cost("alice", 2).await;
        assert_eq!((left(&denied), wait(&denied)), ((1, span(4.0 * HOUR)), Some(span(4.0 * HOUR))));
        assert_eq!(left(&on.check("alice").await), (0, span(4.0 * HOUR)));
        for _ in 0..3 {
            let denied = on.check("alice").await;
            // An attempt is not counted.
            assert_eq!((denied.current_count, wait(&denied)), (3, Some(span(4.0 * HOUR))));
        }
        let end = T0 + span(1_000.5 + 5.0 * HOUR);
        on.set_clock(end - MICRO);
        assert_eq!(wait(&on.check("alice").await), Some(MICRO));
        on.set_clock(end);
        assert_eq!(left(&on.dry_run("alice", 0).await), (3, Micros::ZERO));
        // The next one begins with the next use.
        on.set_clock(end + span(HOUR));
        assert_eq!(left(&on.check("alice").await), (2, span(5.0 * HOUR)));
    }
}

#[tokio::test]
async fn a_refund_counts_in_the_window_that_runs_and_a_count_of_0_is_none() {
    for on in services(&rules(3, 60.0)) {
        let (_, first) = on.take("alice", 2).await;
        on.at(10.0);
        let (_, second) = on.take("alice", 1).await;
        on.refund(second).await;
        assert_eq!(left(&on.dry_run("alice", 0).await), (1, span(50.0)));
        on.at(60.0);
        let (_, third) = on.take("alice", 1).await;
        // Of the window before.
        on.refund(first).await;
        assert_eq!(left(&on.dry_run("alice", 0).await), (2, span(60.0)));
        on.refund(third).await;
        assert_eq!(left(&on.dry_run("alice", 0).await), (3, Micros::ZERO));
        on.at(70.0);
        assert_eq!(left(&on.check("alice").await), (2, span(60.0)));
        on.act("alice", Action::Credit(Cost::new(5)), Coupling::AllOrNothing).await;
        assert_eq!(left(&on.dry_run("alice", 0).await), (3, Micros::ZERO));
        on.check("alice").await;
        on.act("alice", Action::Reset, Coupling::AllOrNothing).await;
        assert_eq!(left(&on.dry_run("alice", 0).await), (3, Micros::ZERO));
    }
}

#[tokio::test]
async fn a_changed_window_moves_the_end() {
    for on in services(&rules(3, 60.0)) {
        on.check_cost("alice", 3).await;
        on.limiter.replace_rules(rules(3, 120.0));
        on.at(50.0);
        assert_eq!(wait(&on.check("alice").await), Some(span(70.0)));
        // It lives to the new end, although nothing was taken since.
        on.set_clock(T0 + span(120.0) - MICRO);
        assert_eq!(wait(&on.check("alice").await), Some(MICRO));
        on.limiter.replace_rules(rules(3, 200.0));
        on.set_clock(T0 + span(120.0) - MICRO);
        assert_eq!(wait(&on.check("alice").await), Some(span(80.0) + MICRO));
        // Past: all is whole.
        on.limiter.replace_rules(rules(3, 100.0));
        assert_eq!(left(&on.check("alice").await), (2, span(100.0)));
    }
}

#[tokio::test]
async fn a_rule_that_changes_to_the_first_use_begins_at_0() {
    let epoch = Limit::new(3, span(60.0)).expect("a limit");
    let epoch = || RuleSet::new(Rule::new_default(Algorithm::FixedWindow, epoch), Vec::new());
    for on in services(&epoch()) {
        let (_, receipts) = on.take("alice", 3).await;
        on.limiter.replace_rules(rules(3, 60.0));
        assert_eq!(left(&on.check("alice").await), (2, span(60.0)));
        // They were taken from a window that is no more.
        on.refund(receipts).await;
        assert_eq!(on.dry_run("alice", 0).await.remaining, 2);
        let (_, receipts) = on.take("alice", 2).await;
        on.limiter.replace_rules(epoch());
        on.check_cost("bob", 3).await;
        let before = on.dry_run("alice", 0).await.remaining;
        on.refund(receipts).await;
        assert_eq!(on.dry_run("alice", 0).await.remaining, before);
    }
}

#[tokio::test]
async fn a_clock_that_goes_back_leaves_the_window_or_drops_it() {
    let memory = Service::on_memory(rules(3, 60.0));
    let server = Arc::new(RedisServer::start());
    let redis = Service::on_redis(rules(3, 60.0), Arc::clone(&server));
    for on in [&memory, &redis] {
        on.at(100.0);
        on.check("alice").await;
        // More than one window ahead: none. Every store follows such a step.
        on.at(39.0);
        assert_eq!(left(&on.dry_run("alice", 0).await), (3, Micros::ZERO));
    }
    // An instance that knows no later time decides by the time of Redis: it runs on to start and window.
    let other = Service::on_redis(rules(3, 60.0), Arc::clone(&server));
    other.at(40.0);
    assert_eq!(left(&other.check("alice").await), (1, span(120.0)));
    other.set_clock(T0 + span(160.0) - MICRO);
    assert_eq!(left(&other.dry_run("alice", 0).await), (1, MICRO));
    other.at(160.0);
    assert_eq!(left(&other.check("alice").await), (2, span(60.0)));
}

#[tokio::test]
async fn a_rule_in_shadow_and_one_for_a_share_of_the_keys_count_alike_on_both_stores() {
    let share = EnforcedShare::new(250_000).expect("a share");
    let named = |name: &str, rule: Rule| Rule { name: name.into(), ..rule };
    let both = vec![
        named("share", Rule { enforce: share, ..rule(2, 60.0) }),
        named("watched", Rule { mode: Mode::Shadow, ..rule(1, 90.0) }),
    ];
    let [memory, redis] = services(&RuleSet::new(rule(9, 60.0), both));
    let mut refused = 0;
    for step in 0..200_u32 {
        for on in [&memory, &redis] {
            on.at(f64::from(step) * 1.7);
        }
        let user = format!("user-{}", step * 7 % 11);
        let on_memory = memory.verdict(&user, None, false).await.expect("a verdict");
        let on_redis = redis.verdict(&user, None, false).await.expect("a verdict");
        let numbers = |verdict: &Verdict| {
            let decisions = verdict.decisions.iter();
            decisions.map(|decided| (decided.decision, decided.mode)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(&on_memory), numbers(&on_redis), "step {step}");
        refused += usize::from(!on_memory.is_allowed());
        let watched = &on_memory.decisions[1].decision;
        // Attempts are not counted; what the other rule refuses takes nothing.
        assert!(watched.current_count <= 1, "{watched:?}");
    }
    assert!(refused > 5, "{refused}");
}

#[tokio::test]
async fn redis_has_one_key_without_a_window() {
    let server = Arc::new(RedisServer::start());
    let on = Service::on_redis(rules(3, 60.0), Arc::clone(&server));
    on.check_cost("alice", 2).await;
    let key = "rlaas:rate_limit:alice";
    assert_eq!(server.keys(), [key]);
    let expected = format!("window {} 2 60000000", T0.as_micros());
    assert_eq!(server.query::<String>(&["GET", key]), expected);
    // A second longer than the window.
    assert_eq!(server.query::<u64>(&["PTTL", key]), 61_000);
    // What no limit can have written counts as none.
    server.query::<()>(&["SET", key, "window 1 x"]);
    assert_eq!(left(&on.check("alice").await), (2, span(60.0)));
}

#[test]
fn share_of_an_instance_alone_is_from_the_first_use_too() {
    let Grant::Limited(limit) = rule(10, 60.0).grant else { panic!("a limit") };
    assert!(limit.share(500_000).windows().is_from_first_use());
}

const RULES: &str = "\
rules:
  - {name: plan, endpoint: /chat, algorithm: fixed-window, limit: 500, window: 5h, WINDOW_FROM: first-use}
  - {name: other, endpoint: /other, algorithm: fixed-window, limit: 5, window: 5h}
";

#[tokio::test]
async fn a_server_shows_the_window_and_its_end() {
    let (dir, redis) = (TempDir::new(), RedisServer::start());
    let url = format!("store.redis.url={}", redis.url());
    for (key, store) in [("window-from", "memory"), ("window_from", "redis")] {
        let rules = dir.write("rules.yaml", &RULES.replace("WINDOW_FROM", key));
        let settings = ["store.backend=redis", &*url];
        let settings = if store == "redis" { &settings[..] } else { &[] };
        let server = Rlaas::start_from(&rules, settings);
        let mut client = server.client().await;
        let asked = |cost| CheckRequest {
            resource: "/chat".to_owned(),
            cost: Some(cost),
            ..request("alice")
        };
        let looked = client.check(asked(0)).await.expect("a look").into_inner();
        assert_eq!((looked.reset_at, looked.remaining), (None, 500));
        let checked = client.check(asked(3)).await.expect("a decision").into_inner();
        assert_eq!(checked.remaining, 497);
        let (end, rest) = (checked.reset_at.expect("an end"), checked.reset_after.expect("a time"));
        assert_eq!((rest.seconds, rest.nanos), (18_000, 0), "{end:?}");
        let again = client.check(asked(0)).await.expect("a look").into_inner();
        assert_eq!(again.reset_at, Some(end));

        let config = client.get_config(GetConfigRequest::default()).await.expect("rules");
        let config = config.into_inner();
        let from = |name: &str| {
            let rule = config.rules.iter().find(|rule| rule.name == name).expect("the rule");
            rule.window_from()
        };
        assert_eq!(from("plan"), WindowFrom::FirstUse);
        assert_eq!(from("other"), WindowFrom::Unspecified);
        let address = server.grpc();
        let (_, explained, _) =
            run(&["explain", "alice", "--resource", "/chat", "--addr", address]);
        assert!(explained.contains("500 per 5h from the first use"), "{explained}");
        let (_, listed, _) = run(&["rule", "list", "--in-force", "--addr", address]);
        assert!(listed.contains("5h from the first use"), "{listed}");
    }
}
