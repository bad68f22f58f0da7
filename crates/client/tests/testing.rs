//! Clients for tests of programs: the four services, and a layer that names its rule.

use std::time::Duration;

use rlaas_client::rlaas_core::clock::Deadline;
use rlaas_client::rlaas_core::decide::{Decide, NoVerdict};
use rlaas_client::rlaas_core::rules::Request;
use rlaas_client::testing::{TestLimit, TestService};
use rlaas_client::tower::remote;
use rlaas_client::{Client, OnNoAnswer, Verdict};

const MINUTE: Duration = Duration::from_secs(60);

fn limit(rule: &str, units: u32, resource: Option<&str>) -> TestLimit {
    let (rule, resource) = (rule.to_owned(), resource.map(str::to_owned));
    TestLimit { rule, units, window: MINUTE, resource }
}

fn client(service: &TestService) -> Client {
    service.client().on_no_answer(OnNoAnswer::Deny).connect_lazy().expect("a client")
}

async fn check(client: &Client, user: &str, resource: &str) -> Verdict {
    let request = Request::user(user).resource(resource).build().expect("a valid request");
    client.check(&request).await.expect("a verdict")
}

#[tokio::test]
async fn counts_by_its_limits_until_time_moves() {
    let service = TestService::count([limit("search", 2, Some("/search")), limit("all", 3, None)]);
    let client = client(&service);
    for left in [1, 0] {
        assert_eq!(check(&client, "alice", "/search").await.decision().remaining, left);
    }
    service.advance(MINUTE / 4);
    let refused = check(&client, "alice", "/search").await;
    assert_eq!((refused.is_allowed(), refused.rule()), (false, "search"));
    let wait = refused.response().retry_after.expect("a wait").seconds;
    assert_eq!(wait, 45);
    assert!(check(&client, "bob", "/search").await.is_allowed());
    assert!(
        check(&client, "alice", "/other").await.is_allowed(),
        "a refusal takes units of no limit"
    );
    assert!(!check(&client, "alice", "/other").await.is_allowed());
    service.advance(MINUTE);
    assert!(check(&client, "alice", "/search").await.is_allowed());
    assert_eq!(service.requests().len(), 7);
    assert_eq!(service.requests()[0].user_id, "alice");
}

#[tokio::test]
async fn what_is_there_is_taken() {
    let service = TestService::count([limit("all", 10, None), limit("few", 4, None)]);
    let client = client(&service);
    let request = Request::user("alice").cost(6).build().expect("a valid request");
    let request = request.with_at_least(2).expect("not more than the cost");
    for (allowed, taken) in [(true, 4), (false, 0)] {
        let verdict = client.check(&request).await.expect("a verdict");
        assert_eq!((verdict.is_allowed(), verdict.taken()), (allowed, Some(taken)));
    }
    assert_eq!(check(&client, "alice", "").await.taken(), None);
}

#[tokio::test]
async fn others_allow_refuse_or_are_away() {
    let allowing = client(&TestService::allow());
    let refusing = client(&TestService::refuse("search", MINUTE));
    let service = TestService::away();
    let away = client(&service);
    for _ in 0..3 {
        assert!(check(&allowing, "alice", "").await.is_allowed());
        let refused = check(&refusing, "alice", "").await;
        assert_eq!((refused.rule(), refused.reason()), ("search", "OVER_LIMIT"));
        assert_eq!(check(&away, "alice", "").await.reason(), "NO_ANSWER");
    }
    service.set_away(false);
    let mut tries = 0;
    // While many calls fail some are decided without a call.
    while !check(&away, "alice", "").await.is_allowed() {
        tries += 1;
        assert!(tries < 1000, "the service is back");
    }
    let request = Request::user("alice").build().expect("a valid request");
    let reserved = refusing.reserve(&request, None, Deadline::NEVER).await.expect("a verdict");
    assert!(!reserved.0.is_allowed() && reserved.1.is_none());
}

#[tokio::test]
async fn route_without_its_rule_is_refused() {
    let request = Request::user("alice").build().expect("a valid request");
    let client = client(&TestService::count([limit("search", 9, None)]));
    let found = remote(client.clone()).rule("search").decide(&request, Deadline::NEVER).await;
    assert!(found.is_ok_and(|verdict| verdict.is_allowed()));
    let missing = remote(client).rule("pay").decide(&request, Deadline::NEVER).await;
    assert!(matches!(missing, Err(NoVerdict::Undecided(_))), "{missing:?}");
    let service = TestService::allow();
    let allowing = service.client().connect_lazy().expect("a client");
    assert!(remote(allowing).rule("pay").decide(&request, Deadline::NEVER).await.is_ok());
}
