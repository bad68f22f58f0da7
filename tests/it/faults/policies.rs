//! Store failure policies: `error`, `allow`, `deny` and `local`, alone and combined.

use prost::Message;
use rlaas::algorithm::Algorithm;
use rlaas_proto::ratelimit::v1::reservation_service_client::ReservationServiceClient;
use rlaas_proto::ratelimit::v1::{
    CheckBatchRequest, CheckRequest, CheckResponse, CheckResult, ReportRequest, ReserveRequest,
    check_result,
};
use tokio_stream::StreamExt;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::load::{Client, RECOVERY, SOON, assert_sound, breaker, wait_for_store};
use rlaas_testkit::process::{Rlaas, check, connect, request};
use rlaas_testkit::redis::{RedisServer, free_port};
use rlaas_testkit::{TempDir, eventually};

/// A rule for every policy; its name is part of each resource that it matches. The windows outlast
/// the tests.
const RULES: &str = "
# Applies beside a shadow.
rate-limiter: {fail-open: true}
rules:
  - {name: allow, match: {resource: [/allow, /allow+local]}, algorithm: fixed, limit: 10,
     window: 366d, on-store-failure: allow}
  - {name: deny, match: {resource: [/deny, /deny+local]}, algorithm: fixed, limit: 10,
     window: 366d, on-store-failure: deny}
  - {name: local, match: {resource: [/local, /allow+local, /deny+local, /error+local]},
     algorithm: fixed, limit: 10, window: 366d, on-store-failure: local, local-share: 0.5}
  - {name: error, match: {resource: [/error+local, /error, /ban+error]}, algorithm: fixed,
     limit: 10, window: 366d}
  - {name: ban, endpoint: /ban+error, algorithm: fixed, limit: 10, window: 366d,
     overrides: [{match: {user_id: '*'}, limit: 0}]}
  - {name: shadow, endpoint: /shadow, algorithm: fixed, limit: 1, window: 366d, shadow: true}
  - {name: opens, endpoint: /opens, algorithm: fixed, limit: 10, window: 366d,
     breaker-opens-rule: true}
";

fn request_for(resource: &str, user: &str) -> CheckRequest {
    CheckRequest { resource: resource.to_owned(), ..request(user) }
}

async fn check_resource(client: &mut Client, resource: &str, user: &str) -> CheckResponse {
    let answer = client.check(request_for(resource, user)).await;
    answer.unwrap_or_else(|status| panic!("{resource}: {status:?}")).into_inner()
}

/// Returns how many of these calls are allowed.
async fn allowed(client: &mut Client, resource: &str, user: &str, calls: usize) -> usize {
    let mut allowed = 0;
    for _ in 0..calls {
        allowed += usize::from(check_resource(client, resource, user).await.allowed);
    }
    allowed
}

/// Returns `allowed`, the source and the reason.
fn summary(answer: &CheckResponse) -> (bool, &'static str, &'static str) {
    (answer.allowed, answer.source().as_str_name(), answer.reason().as_str_name())
}

fn start(rules: &str, url: &str) -> (TempDir, Rlaas) {
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", rules);
    let url = format!("store.redis.url={url}");
    let settings = ["store.backend=redis", &url, "store.redis.timeout=10s"];
    let server = Rlaas::start_from(&file, &settings);
    (dir, server)
}

/// Returns the domain and the reason of a status.
fn reason(status: &Status) -> String {
    let info = status.get_details_error_info();
    info.map(|info| format!("{} {}", info.domain, info.reason)).unwrap_or_default()
}

/// Returns the reason of a failed item of a batch or stream.
fn reason_of_item(result: &CheckResult) -> String {
    let Some(check_result::Result::Error(error)) = &result.result else { panic!("{result:?}") };
    let code = Code::from_i32(error.code);
    reason(&Status::with_details(code, &*error.message, error.encode_to_vec().into()))
}

fn nowhere() -> String {
    format!("redis://127.0.0.1:{}", free_port())
}

#[tokio::test]
async fn store_failure_policies_set_outcome_source_and_metrics() {
    let (_dir, server) = start(RULES, &nowhere());
    let mut client = server.client().await;
    for dry_run in [false, true] {
        for cost in [None, Some(0), Some(3)] {
            let request =
                |resource| CheckRequest { cost, dry_run, ..request_for(resource, "alice") };
            let passes = client.check(request("/allow")).await.expect("an answer").into_inner();
            assert_eq!(summary(&passes), (true, "FAIL_OPEN", "STORE_UNAVAILABLE"));
            let denied = client.check(request("/deny")).await.expect("an answer").into_inner();
            assert_eq!(summary(&denied), (false, "FAIL_CLOSED", "STORE_UNAVAILABLE"));
            let wait = denied.retry_after.expect("a wait");
            assert!(wait.seconds > 0 || wait.nanos > 0, "{wait:?}");
            let error = client.check(request("/error")).await.expect_err("no decision");
            assert_eq!((error.code(), error.message()), (Code::Unavailable, "store unavailable"));
            assert_eq!(reason(&error), "rlaas STORE_UNAVAILABLE");
            let shadow = client.check(request("/shadow")).await.expect("an answer").into_inner();
            assert_eq!(summary(&shadow), (true, "FAIL_OPEN", "STORE_UNAVAILABLE"));
        }
    }
    // The ban decides, although the other rule needs the store.
    let banned = check_resource(&mut client, "/ban+error", "alice").await;
    assert_eq!(summary(&banned), (false, "STORE", "BANNED"));
    assert_eq!(banned.retry_after, None);

    let rule = |name: &str| format!("rule=\"{name}\"");
    let fail_open = "rate_limiter_fail_open_total";
    assert_eq!(server.metric_sum(fail_open, &[&rule("allow")]).await, 6);
    assert_eq!(server.metric_sum(fail_open, &[&rule("shadow")]).await, 6);
    assert_eq!(server.metric_sum(fail_open, &[&rule("default")]).await, 6);
    assert_eq!(server.metric_sum(fail_open, &[]).await, 18);
    for policy in ["allow", "deny"] {
        let labels = [&*rule(policy), &format!("policy=\"{policy}\"")];
        assert_eq!(server.metric_sum("rlaas_degraded_total", &labels).await, 6, "{policy}");
    }
    let kinds = ["kind=\"unreachable\"", "kind=\"breaker_open\""];
    let mut of_kinds = 0;
    for kind in kinds {
        of_kinds += server.metric_sum("rlaas_degraded_total", &[kind]).await;
    }
    assert_eq!(of_kinds, server.metric_sum("rlaas_degraded_total", &[]).await);
    assert_sound(&server);
}

#[tokio::test]
async fn failures_have_their_reason_in_every_call() {
    let rules = "rules:\n  - {name: bill, endpoint: /bill, algorithm: fixed-window, limit: 3, \
                 window: 1h, reservable: true, on-store-failure: error}\n";
    let (_dir, server) = start(rules, &nowhere());
    let (mut client, expected) = (server.client().await, "rlaas STORE_UNAVAILABLE");
    let request = || request_for("/bill", "alice");
    let batch = CheckBatchRequest { requests: vec![request(); 2], ..Default::default() };
    let batch = client.check_batch(batch).await.expect("items").into_inner().results;
    let stream = client.check_stream(tokio_stream::iter([request()])).await.expect("a stream");
    let item = stream.into_inner().next().await.expect("an item").expect("no error");
    let items: Vec<_> = batch.iter().chain([&item]).map(reason_of_item).collect();
    assert_eq!(items, [expected; 3]);
    let report = ReportRequest { request: Some(request()) };
    let reported = client.report(report).await.expect_err("no store");
    assert_eq!(reason(&reported), expected);
    let mut reservations = ReservationServiceClient::new(connect(server.grpc()).await);
    let reserve = ReserveRequest { request: Some(request()), ..Default::default() };
    let reserved = reservations.reserve(reserve).await.expect_err("no store");
    assert_eq!(reason(&reserved), expected);
}

#[tokio::test]
async fn local_policy_grants_its_share_with_every_algorithm() {
    let rule = |algorithm: &Algorithm| {
        let name = algorithm.name();
        format!(
            "  - {{name: {name}, algorithm: {name}, endpoint: /{name}, limit: 10, window: 366d, \
             on-store-failure: local, local-share: 0.3}}\n"
        )
    };
    let rules: String = Algorithm::RATES.iter().map(rule).collect();
    let (_dir, server) = start(&format!("rules:\n{rules}"), &nowhere());
    let mut client = server.client().await;
    for algorithm in Algorithm::RATES {
        let resource = format!("/{}", algorithm.name());
        // Neither of these takes units.
        for request in [
            CheckRequest { cost: Some(0), ..request_for(&resource, "alice") },
            CheckRequest { cost: Some(3), dry_run: true, ..request_for(&resource, "alice") },
        ] {
            let answer = client.check(request).await.expect("an answer").into_inner();
            assert_eq!(summary(&answer), (true, "LOCAL_FALLBACK", "WITHIN_LIMIT"), "{resource}");
        }
        assert_eq!(allowed(&mut client, &resource, "alice", 10).await, 3, "{resource}");
        assert_eq!(allowed(&mut client, &resource, "bob", 10).await, 3, "{resource}");
        let denied = check_resource(&mut client, &resource, "alice").await;
        assert_eq!(summary(&denied), (false, "LOCAL_FALLBACK", "OVER_LIMIT"), "{resource}");
        assert!(denied.retry_after.is_some_and(|wait| wait.seconds > 0), "{denied:?}");
        let dearer = CheckRequest { cost: Some(4), ..request_for(&resource, "carol") };
        let dearer = client.check(dearer).await.expect("an answer").into_inner();
        assert!(!dearer.allowed, "{resource}");
    }
    let local = ["policy=\"local\""];
    assert_eq!(server.metric_sum("rlaas_degraded_total", &local).await, 6 * 24);
    assert_eq!(server.metric_sum("rate_limiter_fail_open_total", &[]).await, 0);
}

#[tokio::test]
async fn denying_policy_takes_nothing_from_local_rules() {
    let (_dir, server) = start(RULES, &nowhere());
    let mut client = server.client().await;
    for _ in 0..10 {
        let answer = check_resource(&mut client, "/deny+local", "alice").await;
        assert_eq!(summary(&answer), (false, "FAIL_CLOSED", "STORE_UNAVAILABLE"));
        assert_eq!(answer.decisions.len(), 2);
        let error =
            client.check(request_for("/error+local", "alice")).await.expect_err("no decision");
        assert_eq!(error.code(), Code::Unavailable);
    }
    assert_eq!(allowed(&mut client, "/local", "alice", 3).await, 3);
    assert_eq!(
        allowed(&mut client, "/allow+local", "alice", 5).await,
        2,
        "2 of the 5 units are left"
    );
    let denied = check_resource(&mut client, "/allow+local", "alice").await;
    assert_eq!(summary(&denied), (false, "LOCAL_FALLBACK", "OVER_LIMIT"));
    let rules: Vec<_> =
        denied.decisions.iter().map(|decided| (&*decided.rule, decided.allowed)).collect();
    assert_eq!(rules, [("allow", true), ("local", false)]);
}

#[tokio::test]
async fn breaker_opens_rule_setting_fails_calls_until_the_breaker_opens() {
    let (_dir, server) = start(RULES, &nowhere());
    let mut client = server.client().await;
    let mut failed = 0;
    let opens = async || match client.check(request_for("/opens", "alice")).await {
        Ok(answer) => {
            assert_eq!(summary(&answer.into_inner()), (true, "FAIL_OPEN", "STORE_UNAVAILABLE"));
            true
        }
        Err(status) => {
            assert_eq!(status.code(), Code::Unavailable);
            failed += 1;
            false
        }
    };
    eventually("the breaker opens the rule", SOON, opens).await;
    assert_eq!(failed, 4, "the fifth failure opens the breaker");
    assert!(breaker(&server).await > 0);
    let error = client.check(request_for("/error", "alice")).await.expect_err("no decision");
    assert_eq!(error.code(), Code::Unavailable);
    let rule = ["rule=\"opens\"", "policy=\"allow\""];
    assert_eq!(server.metric_sum("rlaas_degraded_total", &rule).await, 1);
}

#[tokio::test]
async fn outage_is_logged_once_and_local_counts_end_with_it() {
    let keeps_all = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut redis = RedisServer::start_with(&keeps_all);
    let (_dir, server) = start(RULES, &redis.url());
    wait_for_store(&server).await;
    let mut client = server.client().await;
    assert_eq!(allowed(&mut client, "/local", "alice", 3).await, 3);
    let (entered, left) = ("store failed: decisions by policy", "store recovered");
    assert!(!server.log().contains(entered));

    redis.kill();
    let away = async || {
        let look = CheckRequest { cost: Some(0), ..request_for("/local", "alice") };
        let answer = client.check(look).await.expect("an answer").into_inner();
        answer.source().as_str_name() == "LOCAL_FALLBACK"
    };
    eventually("the local policy decides", SOON, away).await;
    assert_eq!(allowed(&mut client, "/local", "alice", 30).await, 5);
    assert_eq!(server.log().matches(entered).count(), 1, "{}", server.log());
    assert!(!server.log().contains(left));

    redis.restart();
    let back = async || {
        let look = CheckRequest { cost: Some(0), ..request_for("/local", "alice") };
        let answer = client.check(look).await.expect("an answer").into_inner();
        summary(&answer) == (true, "STORE", "WITHIN_LIMIT")
    };
    eventually("the store decides again", RECOVERY, back).await;
    assert_eq!(
        allowed(&mut client, "/local", "alice", 20).await,
        7,
        "10 units less the 3 before the outage"
    );
    let logged = async || {
        check(&mut client, "bob").await.expect("an answer");
        server.log().contains(left)
    };
    eventually("the end of the outage is logged", SOON, logged).await;
    let log = server.log();
    assert_eq!((log.matches(entered).count(), log.matches(left).count()), (1, 1), "{log}");
    assert_sound(&server);
}
