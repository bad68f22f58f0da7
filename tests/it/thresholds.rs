//! Thresholds: each part of a limit that a key has used is told once, whatever happens in between.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::admin_service_client::AdminServiceClient;
use rlaas_proto::ratelimit::admin::v1::project_service_client::ProjectServiceClient;
use rlaas_proto::ratelimit::admin::v1::selector::Target;
use rlaas_proto::ratelimit::v1 as decisions;
use rlaas_proto::ratelimit::v1::reservation_service_client::ReservationServiceClient;
use rlaas_testkit::cluster::RedisCluster;
use rlaas_testkit::process::{Client, Rlaas, request, rlaas, run};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use tonic::Code;

const SOON: Duration = Duration::from_secs(20);
/// Windows that do not end while a test runs.
const RULES: &str = "\
rules:
  - {name: month, endpoint: /one, algorithm: fixed-window, limit: 10, window: 366d, notify-at: ['100%', '75%'],
     overridable: true, reservable: true}
  - {name: trial, endpoint: /one, algorithm: fixed-window, limit: 4, window: 366d, notify-at: 50%, mode: shadow}
  - {name: turn, endpoint: /turn, algorithm: fixed-window, window-from: first-use, limit: 4, window: 366d,
     notify_at: [50%]}
  - {name: wide, match: {resource: [/many, /pair]}, algorithm: fixed-window, limit: 50, window: 366d, notify-at: [50%, 100%]}
  - {name: team, endpoint: /pair, key-by: team, algorithm: fixed-window, limit: 200, window: 366d}
";

/// What tests look at: rule, user, part in percent, count, limit.
type ShownEvent = (String, String, u32, u64, i64);

async fn events(server: &Rlaas, project: &str) -> Vec<proto::ThresholdEvent> {
    let mut admin = AdminServiceClient::new(server.channel().await);
    let (mut all, mut after) = (Vec::new(), String::new());
    loop {
        let project_id = project.to_owned();
        let request = proto::ListThresholdEventsRequest { project_id, after, ..Default::default() };
        let Ok(page) = admin.list_threshold_events(request).await else { return all };
        let page = page.into_inner();
        if page.events.is_empty() {
            return all;
        }
        all.extend(page.events);
        after = page.last;
    }
}

fn shown(events: &[proto::ThresholdEvent]) -> Vec<ShownEvent> {
    let all = events.iter().map(|event| {
        let user = event.key.as_ref().map(|key| key.parts[0].value().to_owned());
        let part = event.threshold_ppm / 10_000;
        (event.rule.clone(), user.unwrap_or_default(), part, event.count, event.limit)
    });
    all.collect()
}

async fn are_listed(server: &Rlaas, expected: &[(&str, &str, u32, u64, i64)]) {
    let expected: Vec<ShownEvent> = expected
        .iter()
        .map(|(rule, user, part, count, limit)| {
            ((*rule).to_owned(), (*user).to_owned(), *part, *count, *limit)
        })
        .collect();
    eventually("the events", SOON, async || shown(&events(server, "").await) == expected).await;
}

async fn take(client: &mut Client, user: &str, resource: &str, cost: u64) -> bool {
    let resource = resource.to_owned();
    let asked = decisions::CheckRequest { resource, cost: Some(cost), ..request(user) };
    client.check(asked).await.expect("an answer").into_inner().allowed
}

async fn every_use_tells_once(server: &Rlaas) {
    let mut client = server.client().await;
    let mut admin = AdminServiceClient::new(server.channel().await);
    let mut expected = Vec::new();
    assert!(take(&mut client, "ann", "/one", 7).await);
    // The rule in shadow mode denies 7 of 4, and counts nothing.
    assert!(take(&mut client, "ann", "/one", 1).await);
    expected.push(("month", "ann", 75, 8, 10));
    are_listed(server, &expected).await;
    // Given back and taken again: told already. In shadow mode 1 + 1 of 4 are half.
    let refund = proto::RefundRequest {
        selector: Some(proto::Selector {
            rule: "month".to_owned(),
            target: Some(Target::Request(decisions::CheckRequest {
                resource: "/one".to_owned(),
                ..request("ann")
            })),
            ..Default::default()
        }),
        units: 3,
        reason: "a test".to_owned(),
        request_id: "refund".to_owned(),
    };
    admin.refund(refund).await.expect("a refund");
    assert!(take(&mut client, "ann", "/one", 1).await);
    expected.push(("trial", "ann", 50, 2, 4));
    assert!(take(&mut client, "ann", "/one", 2).await);
    are_listed(server, &expected).await;
    // What is held is not used; what is settled is.
    let mut reservations = ReservationServiceClient::new(server.channel().await);
    let asked =
        decisions::CheckRequest { resource: "/one".to_owned(), cost: Some(2), ..request("ann") };
    let reserve = decisions::ReserveRequest { request: Some(asked), ..Default::default() };
    let reserved = reservations.reserve(reserve).await.expect("an answer").into_inner();
    assert!(reserved.verdict.as_ref().is_some_and(|verdict| verdict.allowed), "{reserved:?}");
    assert!(take(&mut client, "bea", "/turn", 2).await);
    expected.push(("turn", "bea", 50, 2, 4));
    are_listed(server, &expected).await;
    let commit =
        decisions::CommitRequest { reservation_id: reserved.reservation_id, ..Default::default() };
    reservations.commit(commit).await.expect("a settlement");
    expected.push(("month", "ann", 100, 10, 10));
    are_listed(server, &expected).await;
    // Another limit in force has thresholds of its own.
    let raise = r#"{"selector": {"rule": "month", "request": {"userId": "ann", "resource": "/one"}},
        "grant": {"limit": "12"}, "ttl": "3600s", "reason": "a test", "requestId": "raise"}"#;
    let (status, body) = server.post("/v1/admin/keys:override", raise).await;
    assert_eq!(status, 200, "{body}");
    assert!(take(&mut client, "ann", "/one", 2).await);
    expected.push(("month", "ann", 100, 12, 12));
    // Shadow: 1, 1 and 2 of 4 fit, the last 2 do not.
    are_listed(server, &expected).await;
    let all = events(server, "").await;
    assert_eq!(all.iter().map(|event| event.shadow).filter(|shadow| *shadow).count(), 1);
    let ids: BTreeSet<&str> = all.iter().map(|event| &*event.id).collect();
    assert_eq!(ids.len(), all.len());
}

#[tokio::test]
async fn every_use_tells_once_in_memory() {
    let dir = TempDir::new();
    let server = Rlaas::start_from(&dir.write("rules.yaml", RULES), &[]);
    every_use_tells_once(&server).await;
}

#[tokio::test]
async fn every_use_tells_once_in_redis() {
    let (dir, redis) = (TempDir::new(), RedisServer::start());
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &*url, "store.redis.timeout=10s"];
    let server = Rlaas::start_from(&dir.write("rules.yaml", RULES), &settings);
    every_use_tells_once(&server).await;
    let lives: u64 = redis.query(&["TTL", "rlaas:p:_:thresholds"]);
    assert!((365 * 86_400..=366 * 86_400).contains(&lives), "{lives}");
}

#[tokio::test]
async fn events_are_waited_for_and_followed() {
    let dir = TempDir::new();
    let file = dir.write("rules.yaml", RULES);
    let mut server = Rlaas::start_from(&file, &[]);
    for (query, field) in
        [("wait=31s", "wait"), ("wait=-1s", "wait"), ("after=x", "after"), ("pageSize=-1", "page")]
    {
        let (status, body) = server.get(&format!("/v1/admin/events?{query}")).await;
        assert_eq!(status, 400, "{query}: {body}");
        assert!(body.contains(field), "{query}: {body}");
    }
    let mut client = server.client().await;
    let ((_, waited), _allowed) = tokio::join!(
        server.get("/v1/admin/events?wait=20s"),
        take(&mut client, "bea", "/turn", 3),
    );
    assert!(waited.contains(r#""thresholdPpm":500000"#), "{waited}");
    assert!(waited.contains(r#""count":"3""#), "{waited}");
    let (code, out, error) = run(&["events", "--addr", server.grpc()]);
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("turn user_id=bea: 3 of 4 used (50%), until "), "{out}");
    let follow = ["events", "--addr", server.grpc(), "--follow", "--json"];
    let mut program =
        rlaas(&follow).stdout(std::process::Stdio::piped()).spawn().expect("a program");
    let (sender, lines) = std::sync::mpsc::channel();
    let out = program.stdout.take().expect("a pipe");
    std::thread::spawn(move || {
        use std::io::{BufRead, BufReader};
        BufReader::new(out).lines().map_while(Result::ok).all(|line| sender.send(line).is_ok())
    });
    assert!(lines.recv_timeout(SOON).expect("a line").contains("bea"));
    assert!(take(&mut client, "cy", "/turn", 2).await);
    assert!(lines.recv_timeout(SOON).expect("a line").contains("cy"));
    // A server that is away for a while is asked again.
    let address = format!("server.listen={}", server.grpc());
    server.signal("TERM");
    server.wait();
    let server = Rlaas::start_from(&file, &[&address]);
    assert!(take(&mut server.client().await, "dan", "/turn", 2).await);
    assert!(lines.recv_timeout(SOON).expect("a line").contains("dan"));
    program.kill().expect("a signal");
    program.wait().expect("an end");
}

#[tokio::test]
async fn a_server_that_drains_tells_what_was_reached() {
    let (dir, redis) = (TempDir::new(), RedisServer::start());
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &*url, "store.redis.timeout=10s"];
    let file = dir.write("rules.yaml", RULES);
    let mut server = Rlaas::start_from(&file, &settings);
    let client = server.client().await;
    let calls = (0..60).map(|user| {
        let mut client = client.clone();
        async move { take(&mut client, &format!("user-{user}"), "/turn", 2).await }
    });
    assert!(join_all(calls).await.into_iter().all(|is_allowed| is_allowed));
    server.signal("TERM");
    server.wait();
    let server = Rlaas::start_from(&file, &settings);
    assert_eq!(events(&server, "").await.len(), 60);
}

/// What answers of one caller say: which instance has answered that a user has reached a part; and calls that were
/// not answered, which may have.
#[derive(Default)]
struct Reached {
    answered: BTreeMap<(String, u32), usize>,
    unknown: BTreeSet<String>,
}

#[tokio::test]
async fn instances_tell_each_threshold_once_while_redis_and_one_of_them_are_killed() {
    const USERS: usize = 30;
    let durable = ["--appendonly", "yes", "--appendfsync", "always"];
    let (dir, mut redis) = (TempDir::new(), RedisServer::start_with(&durable));
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &*url, "store.redis.timeout=1s"];
    let file = dir.write("rules.yaml", RULES);
    let (survivor, killed) =
        (Rlaas::start_from(&file, &settings), Rlaas::start_from(&file, &settings));
    let load = async |server: &Rlaas, instance: usize, seed: usize| {
        let (mut client, mut reached) = (server.client().await, Reached::default());
        for step in 0..150 {
            let user = format!("user-{}", (step * 7 + seed) % USERS);
            let asked = decisions::CheckRequest { resource: "/many".to_owned(), ..request(&user) };
            match client.check(asked).await {
                Ok(answer) => {
                    let answer = answer.into_inner();
                    let part =
                        [(25, 50), (50, 100)].iter().find(|(at, _)| *at == answer.current_count);
                    if let Some((_, part)) = part.filter(|_| answer.allowed) {
                        reached.answered.insert((user, *part), instance);
                    }
                }
                Err(_) => _ = reached.unknown.insert(user),
            }
        }
        reached
    };
    let callers = (0..24).map(|seed| {
        let (server, instance) = if seed % 2 == 0 { (&survivor, 0) } else { (&killed, 1) };
        load(server, instance, seed)
    });
    let interrupt = async {
        let has_begun = async || events(&survivor, "").await.len() > USERS / 4;
        eventually("some events", SOON, has_begun).await;
        redis.kill();
        redis.restart();
        let goes_on = async || events(&survivor, "").await.len() > USERS / 2;
        eventually("more events", SOON, goes_on).await;
        killed.signal("KILL");
    };
    let (all, ()) = tokio::join!(join_all(callers), interrupt);
    // Whoever is not at the limit yet reaches it now.
    let mut client = survivor.client().await;
    for user in 0..USERS {
        while take(&mut client, &format!("user-{user}"), "/many", 1).await {}
    }
    let mut events_seen = Vec::new();
    let lost = async || survivor.metric("rlaas_threshold_events_lost_total").await.unwrap_or(0.0);
    eventually("the events are in the log", SOON, async || {
        let before = events_seen.len();
        events_seen = shown(&events(&survivor, "").await);
        before == events_seen.len() && before > USERS
    })
    .await;
    let unique: BTreeSet<(&str, u32)> =
        events_seen.iter().map(|(_, user, part, ..)| (&**user, *part)).collect();
    assert_eq!(unique.len(), events_seen.len(), "duplicates");
    let mut missing = 0.0;
    for user in 0..USERS {
        let user = format!("user-{user}");
        for part in [50, 100] {
            let name = (user.clone(), part);
            let by_killed = all.iter().any(|caller| caller.answered.get(&name) == Some(&1));
            let unknown = all.iter().any(|caller| caller.unknown.contains(&user));
            if !unique.contains(&(&*user, part)) && !by_killed && !unknown {
                missing += 1.0;
            }
        }
    }
    assert!(missing <= lost().await, "{missing} are missing: {events_seen:?}");
    assert!(events_seen.len() > USERS, "{events_seen:?}");
}

#[tokio::test]
async fn step_that_is_undone_tells_what_stays_in_a_cluster() {
    let (dir, cluster) = (TempDir::new(), RedisCluster::start(3, 0).await);
    let settings = cluster.settings();
    let mut settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    settings.push("store.redis.timeout=10s");
    let server = Rlaas::start_from(&dir.write("rules.yaml", RULES), &settings);
    // The team has 200 for all; each of 8 users half of what it asks, so that most steps are undone in the end.
    let callers = (0..16).map(async |seed: usize| {
        let mut client = server.client().await;
        for step in 0..60 {
            let user = format!("user-{}", (step + seed) % 8);
            let asked = decisions::CheckRequest {
                resource: "/pair".to_owned(),
                cost: Some(1 + (step as u64 % 5)),
                attributes: [("team".to_owned(), "red".to_owned())].into(),
                ..request(&user)
            };
            client.check(asked).await.expect("an answer");
        }
    });
    join_all(callers).await;
    let mut counts = BTreeMap::new();
    for user in 0..8 {
        let user = format!("user-{user}");
        let mut admin = AdminServiceClient::new(server.channel().await);
        let target = decisions::CheckRequest { resource: "/pair".to_owned(), ..request(&user) };
        let selector = proto::Selector {
            rule: "wide".to_owned(),
            target: Some(Target::Request(target)),
            ..Default::default()
        };
        let inspect = proto::InspectRequest { selector: Some(selector) };
        let keys = admin.inspect(inspect).await.expect("a state").into_inner().keys;
        counts.insert(user, keys[0].used);
    }
    assert_eq!(counts.values().sum::<i64>(), 200, "{counts:?}");
    eventually("what stays is told", SOON, async || {
        let events = shown(&events(&server, "").await);
        let unique: BTreeSet<_> =
            events.iter().map(|(_, user, part, ..)| (user.clone(), *part)).collect();
        assert_eq!(unique.len(), events.len(), "{events:?}");
        counts.iter().all(|(user, count)| {
            let is_listed = |part| unique.contains(&(user.clone(), part));
            (*count < 25 || is_listed(50)) && (*count < 50 || is_listed(100))
        })
    })
    .await;
}

#[tokio::test]
async fn flood_of_one_project_costs_no_other_one() {
    let server = Rlaas::start(&["auth.api-keys=accepted"]);
    let mut admin = ProjectServiceClient::new(server.channel().await);
    let mut keys = Vec::new();
    for id in ["loud", "quiet"] {
        let project = Some(proto::Project { id: id.to_owned(), ..Default::default() });
        let create = proto::CreateProjectRequest { project, ..Default::default() };
        admin.create_project(create).await.expect("a project");
        let rule = decisions::Rule {
            name: "day".to_owned(),
            algorithm: decisions::Algorithm::FixedWindow.into(),
            max_requests: 1,
            window: Some(prost_types::Duration { seconds: 366 * 86_400, nanos: 0 }),
            notify_at_ppm: vec![1_000_000],
            ..Default::default()
        };
        let create = |rule| proto::CreateRuleRequest {
            project_id: id.to_owned(),
            rule: Some(rule),
            ..Default::default()
        };
        for notify_at_ppm in [vec![9_999], vec![1_000_001], vec![10_000; 6]] {
            let refused = decisions::Rule { notify_at_ppm, ..rule.clone() };
            let refused = admin.create_rule(create(refused)).await.expect_err("a refusal");
            assert_eq!(refused.code(), Code::InvalidArgument);
            assert!(refused.message().contains("notify_at_ppm"), "{refused}");
        }
        admin.create_rule(create(rule)).await.expect("a rule");
        let create = proto::CreateKeyRequest { project_id: id.to_owned(), ..Default::default() };
        keys.push(admin.create_key(create).await.expect("a key").into_inner().secret);
    }
    let as_project = |key: &str, user: usize| {
        let mut asked = tonic::Request::new(request(&format!("user-{user}")));
        asked.metadata_mut().insert("x-api-key", key.parse().expect("a key"));
        asked
    };
    let callers = (0..8).map(async |caller| {
        let mut client = server.client().await;
        for step in 0..200 {
            let asked = as_project(&keys[0], caller * 200 + step);
            client.check(asked).await.expect("an answer");
            if caller == 0 && step % 50 == 0 {
                client.check(as_project(&keys[1], step)).await.expect("an answer");
            }
        }
    });
    join_all(callers).await;
    eventually("the quiet one", SOON, async || events(&server, "quiet").await.len() == 4).await;
    let mut admin = AdminServiceClient::new(server.channel().await);
    let request = proto::ListThresholdEventsRequest {
        project_id: "loud".to_owned(),
        page_size: 1_000,
        ..Default::default()
    };
    let dropped = server.metric_sum("rlaas_threshold_events_dropped_total", &["loud"]).await;
    eventually("all are accounted for", SOON, async || {
        let listed = admin.list_threshold_events(request.clone()).await.expect("a list");
        let listed = listed.into_inner();
        assert_eq!(listed.dropped, dropped);
        let listed_ever = server.metric_sum("rlaas_threshold_events_total", &["other"]).await;
        listed_ever + dropped == 1_604 && listed.events.len() as u64 == 1_000.min(1_600 - dropped)
    })
    .await;
}
