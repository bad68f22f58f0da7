//! Denials that the client remembers: only they are answered without a call.

use std::time::Duration;

use rlaas::algorithm::Outcome;
use rlaas::clock::{Clock, ManualClock, Micros};
use rlaas::rules::{Request, RequestFields};
use rlaas_client::{AnsweredBy, Client, Verdict};

use super::{check, fields};
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::service::T0;

/// A client with a manual clock, and a server with a limit of 5 for a year.
struct ClockedClient {
    server: Rlaas,
    client: Client,
    clock: ManualClock,
}

impl ClockedClient {
    async fn new(max_age: Option<Duration>) -> Self {
        let algorithm = "rate-limiter.use-algo=fixed-window";
        let server = Rlaas::start(&[algorithm, "rate-limiter.window-size=366d"]);
        let clock = ManualClock::new(T0);
        let mut client = Client::builder(server.grpc()).timeout(super::TIMEOUT);
        if let Some(max_age) = max_age {
            client = client.max_age(max_age);
        }
        let client = client.clock(Clock::Manual(clock.clone())).connect().await;
        Self { server, client: client.expect("a server"), clock }
    }

    async fn check(&self, fields: RequestFields<'_>) -> Verdict {
        check(&self.client, fields).await.expect("an answer")
    }

    /// Takes all units of a user.
    async fn exhaust(&self, user: &str) {
        let verdict = self.check(RequestFields { cost: Some(5), ..fields(user) }).await;
        assert!(verdict.is_allowed());
    }

    async fn decisions(&self) -> u64 {
        self.server.metric_sum("rlaas_decisions_total", &[]).await
    }
}

fn retry_after(verdict: &Verdict) -> Micros {
    match verdict.decision().outcome {
        Outcome::Denied { retry_after } => retry_after,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn denial_is_answered_locally_until_its_retry_after() {
    let fixture = ClockedClient::new(Some(Duration::from_hours(24 * 400))).await;
    fixture.exhaust("mallory").await;
    let refused = fixture.check(fields("mallory")).await;
    assert_eq!(refused.answered_by(), AnsweredBy::Server);
    let wait = retry_after(&refused);
    let before = fixture.decisions().await;
    for elapsed in [Micros::ZERO, Micros::from_secs(1), wait - Micros::from_micros(1)] {
        fixture.clock.set(T0 + elapsed);
        // Clones share remembered denials.
        let again = check(&fixture.client.clone(), fields("mallory")).await.expect("an answer");
        assert_eq!((again.is_allowed(), again.answered_by()), (false, AnsweredBy::Cache));
        assert_eq!(retry_after(&again), wait - elapsed);
        assert_eq!(again.rule(), refused.rule());
        assert!(again.response().ttl <= refused.response().ttl && again.response().ttl > 0);
    }
    assert_eq!(fixture.decisions().await, before);
    fixture.clock.set(T0 + wait);
    assert_eq!(fixture.check(fields("mallory")).await.answered_by(), AnsweredBy::Server);
    assert_eq!(fixture.decisions().await, before + 1);
}

#[tokio::test]
async fn denial_is_remembered_for_a_second_by_default() {
    for (set, expected) in [(None, 1_000), (Some(Duration::from_millis(20)), 20)] {
        let fixture = ClockedClient::new(set).await;
        fixture.exhaust("mallory").await;
        assert_eq!(fixture.check(fields("mallory")).await.answered_by(), AnsweredBy::Server);
        fixture.clock.set(T0 + Micros::from_micros(expected * 1_000 - 1));
        assert_eq!(fixture.check(fields("mallory")).await.answered_by(), AnsweredBy::Cache);
        fixture.clock.set(T0 + Micros::from_millis(expected));
        assert_eq!(fixture.check(fields("mallory")).await.answered_by(), AnsweredBy::Server);
    }
    let fixture = ClockedClient::new(Some(Duration::ZERO)).await;
    fixture.exhaust("mallory").await;
    for _ in 0..2 {
        assert_eq!(fixture.check(fields("mallory")).await.answered_by(), AnsweredBy::Server);
    }
}

#[tokio::test]
async fn only_identical_requests_are_answered_locally() {
    let fixture = ClockedClient::new(None).await;
    for user in ["mallory", "alice"] {
        fixture.exhaust(user).await;
    }
    assert_eq!(fixture.check(fields("mallory")).await.answered_by(), AnsweredBy::Server);
    let free = [("plan".to_owned(), "free".to_owned())].into();
    let others = [
        fields("alice"),
        RequestFields { resource: "/", ..fields("mallory") },
        RequestFields { attributes: &free, ..fields("mallory") },
        RequestFields { cost: Some(2), ..fields("mallory") },
    ];
    for other in others {
        assert_eq!(fixture.check(other).await.answered_by(), AnsweredBy::Server, "{other:?}");
        assert_eq!(fixture.check(other).await.answered_by(), AnsweredBy::Cache, "{other:?}");
    }
    // These have no wait to remember: they only peek, or can never pass.
    for other in [
        RequestFields { cost: Some(0), ..fields("mallory") },
        RequestFields { dry_run: true, ..fields("mallory") },
        RequestFields { cost: Some(6), ..fields("mallory") },
    ] {
        for _ in 0..2 {
            assert_eq!(fixture.check(other).await.answered_by(), AnsweredBy::Server, "{other:?}");
        }
    }
}

#[tokio::test]
async fn long_requests_are_not_remembered() {
    let fixture = ClockedClient::new(None).await;
    let long = "m".repeat(1_000);
    fixture.exhaust(&long).await;
    for _ in 0..2 {
        assert_eq!(fixture.check(fields(&long)).await.answered_by(), AnsweredBy::Server);
    }
}

#[tokio::test]
async fn request_with_an_id_is_not_answered_from_the_cache() {
    let fixture = ClockedClient::new(None).await;
    let request = Request::user("mallory").cost(5).build().expect("a valid request");
    let with_id = request.with_request_id("x").expect("a valid id");
    let first = fixture.client.check(&with_id).await.expect("an answer");
    assert!(first.is_allowed());
    for answered_by in [AnsweredBy::Server, AnsweredBy::Cache] {
        let refused = fixture.client.check(&request).await.expect("an answer");
        assert_eq!((refused.is_allowed(), refused.answered_by()), (false, answered_by));
    }
    let retry = fixture.client.check(&with_id).await.expect("an answer");
    assert_eq!((retry.is_allowed(), retry.response().replayed), (true, true));
}
