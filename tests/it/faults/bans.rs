//! Bans of single keys while the store is away: those that an instance has seen last deny, whatever
//! the policies of the rules say.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rlaas::algorithm::{Algorithm, Limit};
use rlaas::clock::{Deadline, Micros};
use rlaas::control::{KeyGrant, OverrideChange, OverrideKind};
use rlaas::plan::{SelectedKey, Selector, SelectorTarget};
use rlaas::rules::{Grant, OnStoreFailure, Request, Rule, RuleSet};
use rlaas_limiter::KeyChange;
use rlaas_proto::ratelimit::v1::{CheckRequest, CheckResponse};
use rlaas_testkit::process::{Client, Rlaas, request, signal};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::Service;
use rlaas_testkit::{TempDir, eventually};
use tonic::{Code, Status};

use super::load::{RECOVERY, SOON, assert_sound, wait_for_store};

const RULES: &str = "\
deny-cache: {enabled: false}
rules:
  - {name: allow, endpoint: /allow, limit: 10, window: 1h, overridable: true, on-store-failure: allow}
  - {name: deny, endpoint: /deny, limit: 10, window: 1h, overridable: true, on-store-failure: deny}
  - {name: local, endpoint: /local, limit: 10, window: 1h, overridable: true,
     on-store-failure: local, local-share: 0.5}
  - {name: error, endpoint: /error, limit: 10, window: 1h, overridable: true}
";
const RESOURCES: [&str; 4] = ["/allow", "/deny", "/local", "/error"];

fn serve(dir: &TempDir, redis: &RedisServer) -> Rlaas {
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &url, "store.redis.timeout=200ms"];
    Rlaas::start_from(&dir.write("rlaas.yaml", RULES), &settings)
}

async fn check_rule(
    client: &mut Client,
    resource: &str,
    user: &str,
) -> Result<CheckResponse, Status> {
    let request = CheckRequest { resource: resource.to_owned(), ..request(user) };
    client.check(request).await.map(tonic::Response::into_inner)
}

/// Sets or clears an override of a user's key of each rule.
async fn change(server: &Rlaas, operation: &str, user: &str, more: &str) {
    for resource in RESOURCES {
        let selector = format!(r#"{{"request":{{"userId":"{user}","resource":"{resource}"}}}}"#);
        let body = format!(r#"{{"selector":{selector},"reason":"a test"{more}}}"#);
        let (status, answer) = server.post(&format!("/v1/admin/keys:{operation}"), &body).await;
        assert_eq!(status, 200, "{answer}");
    }
}

async fn ban(server: &Rlaas, user: &str, ttl: &str) {
    let ban = format!(r#","grant":{{"banned":true}},"ttl":"{ttl}""#);
    change(server, "override", user, &ban).await;
}

#[expect(clippy::disallowed_methods, reason = "the ban ends by the clock of the machine")]
fn now() -> Instant {
    Instant::now()
}

fn is_banned(answer: &CheckResponse) -> bool {
    !answer.allowed && answer.reason().as_str_name() == "BANNED"
}

/// Asserts that a user is banned by all rules, with a wait of up to an hour.
async fn assert_banned(client: &mut Client, user: &str) {
    for resource in RESOURCES {
        let answer = check_rule(client, resource, user).await;
        let answer = answer.unwrap_or_else(|status| panic!("{user} {resource}: {status:?}"));
        assert!(is_banned(&answer), "{user} {resource}: {answer:?}");
        let wait = answer.retry_after.expect("the end of the ban");
        assert!((1..=3600).contains(&(wait.seconds + 1)), "{wait:?}");
    }
}

/// Asserts that the policies decide, without the store.
async fn assert_by_policy(client: &mut Client, user: &str) {
    for (resource, expected) in [("/allow", (true, "FAIL_OPEN")), ("/deny", (false, "FAIL_CLOSED"))]
    {
        let answer = check_rule(client, resource, user).await.expect("an answer");
        assert_eq!((answer.allowed, answer.source().as_str_name()), expected, "{user}");
    }
    let local = check_rule(client, "/local", user).await.expect("an answer");
    assert_eq!(local.source().as_str_name(), "LOCAL_FALLBACK", "{user}");
    let status = check_rule(client, "/error", user).await.expect_err("no policy");
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "store unavailable"));
}

#[tokio::test]
async fn bans_seen_last_deny_whatever_the_policy_while_the_store_is_away() {
    let (dir, mut redis) = (TempDir::new(), RedisServer::start());
    let [one, other] = [serve(&dir, &redis), serve(&dir, &redis)];
    let (mut at_one, mut at_other) = (one.client().await, other.client().await);
    for server in [&one, &other] {
        wait_for_store(server).await;
    }
    // Mallory is banned. Oscar was, until a moment ago: the other instance has not decided since.
    for user in ["mallory", "oscar", "trudy"] {
        ban(&one, user, "3600s").await;
        assert_banned(&mut at_other, user).await;
    }
    // A reply from before the ban, which is repeated, does not lift it.
    let checked = CheckRequest { resource: "/deny".into(), ..request("craig") };
    let checked = CheckRequest { request_id: "before-the-ban".into(), ..checked };
    assert!(at_one.check(checked.clone()).await.expect("a decision").into_inner().allowed);
    ban(&one, "craig", "3600s").await;
    assert_banned(&mut at_one, "craig").await;
    let repeated = at_one.check(checked).await.expect("the reply of before").into_inner();
    assert!(repeated.allowed && repeated.replayed, "{repeated:?}");
    // Amy has more than the rules grant.
    change(&one, "override", "amy", r#","grant":{"limit":100},"ttl":"3600s""#).await;
    assert_eq!(check_rule(&mut at_one, "/local", "amy").await.expect("a decision").limit, 100);
    change(&one, "clear-override", "oscar", "").await;
    change(&one, "clear-override", "trudy", "").await;
    for resource in RESOURCES {
        assert!(check_rule(&mut at_other, resource, "trudy").await.expect("a decision").allowed);
    }
    let (begun, ttl) = (now(), Duration::from_secs(2));
    ban(&one, "eve", "2s").await;

    for is_killed in [false, true] {
        if is_killed {
            redis.kill();
        } else {
            signal(redis.pid(), "STOP");
        }
        for client in [&mut at_one, &mut at_other] {
            assert_banned(client, "mallory").await;
            assert_by_policy(client, "alice").await;
            assert_by_policy(client, "trudy").await;
        }
        assert_banned(&mut at_one, "craig").await;
        assert_by_policy(&mut at_one, "oscar").await;
        assert_banned(&mut at_other, "oscar").await;
    }
    // The share is that of the rule's own limit.
    let mut allowed = 0;
    for _ in 0..10 {
        let answer = check_rule(&mut at_one, "/local", "amy").await.expect("a decision");
        assert_eq!((answer.limit, answer.source().as_str_name()), (10, "LOCAL_FALLBACK"));
        allowed += usize::from(answer.allowed);
    }
    assert_eq!(allowed, 5);
    // The other instance has never decided about Eve. At the first one the ban ends by the clock.
    assert_by_policy(&mut at_other, "eve").await;
    // The bans end in the order in which they were set: that of the last rule last.
    let ends = async || {
        let answer = check_rule(&mut at_one.clone(), "/error", "eve").await;
        let is_banned = answer.is_ok_and(|answer| is_banned(&answer));
        assert!(is_banned || begun.elapsed() >= ttl, "ended after {:?}", begun.elapsed());
        !is_banned
    };
    eventually("the ban ends", SOON, ends).await;
    assert_by_policy(&mut at_one, "eve").await;

    // What comes back is empty: nothing is banned any more.
    redis.restart();
    let decides = async || {
        check_rule(&mut at_one.clone(), "/error", "mallory")
            .await
            .is_ok_and(|answer| answer.allowed)
    };
    eventually("the store decides", RECOVERY, decides).await;
    assert_sound(&one);
}

/// A limiter whose only rule lets everything pass without the store.
fn fail_open() -> RuleSet {
    let limit = Limit::new(10, Micros::from_secs(3600)).expect("a valid limit");
    let rule = Rule::new_default(Algorithm::Gcra, limit);
    let on_store_failure = OnStoreFailure::Allow;
    RuleSet::new(Rule { overridable: true, on_store_failure, ..rule }, Vec::new())
}

fn key(service: &Service, user: &str) -> SelectedKey {
    let request = Request::user(user).build().expect("a valid request");
    let selector = Selector { target: SelectorTarget::Request(&request), rule: None };
    service.limiter.snapshot().rules.select(&selector).expect("a key").remove(0)
}

#[tokio::test]
async fn of_more_than_ten_thousand_bans_those_that_end_first_are_dropped() {
    const MAX_BANS: usize = 10_000;
    let redis = Arc::new(RedisServer::start());
    let service = Service::on_redis(fail_open(), Arc::clone(&redis));
    let limiter = &service.limiter;
    let user = |number: usize| format!("user-{number}");
    let ban = async |numbers: std::ops::Range<usize>, seconds: u64| {
        let ban = OverrideChange::new(KeyGrant::Banned, Micros::from_secs(seconds), b"");
        let ban = ban.expect("a valid ban");
        let keys: Vec<_> = numbers.map(|number| key(&service, &user(number))).collect();
        let change = KeyChange::SetOverride(ban);
        limiter.change(&keys, &change, Deadline::NEVER).await.expect("bans");
    };
    // The first hundred end first, but for one more that comes last.
    for hundred in 0..MAX_BANS / 100 {
        ban(hundred * 100..(hundred + 1) * 100, 1_000 + hundred as u64).await;
    }
    ban(MAX_BANS..MAX_BANS + 1, 2_000).await;
    ban(MAX_BANS + 1..MAX_BANS + 2, 10).await;
    // One of the others is lifted.
    let lifted = [key(&service, &user(500))];
    let clear = KeyChange::ClearOverride(OverrideKind::Both);
    limiter.change(&lifted, &clear, Deadline::NEVER).await.expect("a lifted ban");

    signal(redis.pid(), "KILL");
    let is_banned = async |number: usize| {
        let verdict = service.verdict(&user(number), Some(1), false).await.expect("a verdict");
        assert_eq!(verdict.deciding().grant == Grant::Banned, !verdict.is_allowed());
        !verdict.is_allowed()
    };
    let mut kept = 0;
    for number in 0..MAX_BANS + 2 {
        kept += usize::from(is_banned(number).await);
    }
    assert_eq!(kept, MAX_BANS - 1, "all but the lifted one");
    assert!(is_banned(MAX_BANS).await && !is_banned(MAX_BANS + 1).await);
    assert!(!is_banned(500).await);
    for number in 100..MAX_BANS {
        assert!(number == 500 || is_banned(number).await, "{number}");
    }
}
