//! Refusals that still hold are answered without a call, and nothing else is.

use std::time::Duration;

use rlaas::algorithm::Outcome;
use rlaas::clock::{Clock, ManualClock, Span};
use rlaas::rules::Draft;
use rlaas_client::{AnsweredBy, Client, Verdict};

use super::{ask, draft};
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::service::T0;

/// A client whose time is moved, and a limit of 5 for a year.
struct Case {
    server: Rlaas,
    client: Client,
    clock: ManualClock,
}

impl Case {
    async fn new(max_age: Option<Duration>) -> Self {
        let algorithm = "rate-limiter.use-algo=fixed-window";
        let server = Rlaas::start(&[algorithm, "rate-limiter.window-size=366d"]);
        let clock = ManualClock::new(T0);
        let mut client = Client::builder(server.grpc()).timeout(super::PATIENCE);
        if let Some(max_age) = max_age {
            client = client.max_age(max_age);
        }
        let client = client.clock(Clock::Manual(clock.clone())).connect().await;
        Self { server, client: client.expect("a server"), clock }
    }

    async fn ask(&self, draft: Draft<'_>) -> Verdict {
        ask(&self.client, draft).await.expect("an answer")
    }

    /// Takes all that a user has.
    async fn exhaust(&self, user: &str) {
        let verdict = self.ask(Draft { cost: Some(5), ..draft(user) }).await;
        assert!(verdict.is_allowed());
    }

    async fn decisions(&self) -> u64 {
        self.server.metric_sum("rlaas_decisions_total", &[]).await
    }
}

fn retry_after(verdict: &Verdict) -> Span {
    match verdict.decision().outcome {
        Outcome::Denied { retry_after } => retry_after,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_refusal_sends_no_second_request_until_its_retry_after() {
    let case = Case::new(Some(Duration::from_hours(24 * 400))).await;
    case.exhaust("mallory").await;
    let refused = case.ask(draft("mallory")).await;
    assert_eq!(refused.answered_by(), AnsweredBy::Server);
    let wait = retry_after(&refused);
    let before = case.decisions().await;
    for elapsed in [Span::ZERO, Span::from_secs(1), wait - Span::from_micros(1)] {
        case.clock.set(T0 + elapsed);
        // A clone shares what is remembered.
        let again = ask(&case.client.clone(), draft("mallory")).await.expect("an answer");
        assert_eq!((again.is_allowed(), again.answered_by()), (false, AnsweredBy::Remembered));
        assert_eq!(retry_after(&again), wait - elapsed);
        assert_eq!(again.rule(), refused.rule());
        assert!(again.response().ttl <= refused.response().ttl && again.response().ttl > 0);
    }
    assert_eq!(case.decisions().await, before);
    case.clock.set(T0 + wait);
    assert_eq!(case.ask(draft("mallory")).await.answered_by(), AnsweredBy::Server);
    assert_eq!(case.decisions().await, before + 1);
}

#[tokio::test]
async fn a_refusal_is_remembered_for_a_second_at_most_unless_set() {
    for (set, expected) in [(None, 1_000), (Some(Duration::from_millis(20)), 20)] {
        let case = Case::new(set).await;
        case.exhaust("mallory").await;
        assert_eq!(case.ask(draft("mallory")).await.answered_by(), AnsweredBy::Server);
        case.clock.set(T0 + Span::from_micros(expected * 1_000 - 1));
        assert_eq!(case.ask(draft("mallory")).await.answered_by(), AnsweredBy::Remembered);
        case.clock.set(T0 + Span::from_millis(expected));
        assert_eq!(case.ask(draft("mallory")).await.answered_by(), AnsweredBy::Server);
    }
    let case = Case::new(Some(Duration::ZERO)).await;
    case.exhaust("mallory").await;
    for _ in 0..2 {
        assert_eq!(case.ask(draft("mallory")).await.answered_by(), AnsweredBy::Server);
    }
}

#[tokio::test]
async fn only_the_same_request_is_answered_from_memory() {
    let case = Case::new(None).await;
    for user in ["mallory", "alice"] {
        case.exhaust(user).await;
    }
    assert_eq!(case.ask(draft("mallory")).await.answered_by(), AnsweredBy::Server);
    let free = [("plan".to_owned(), "free".to_owned())].into();
    let others = [
        draft("alice"),
        Draft { resource: "/", ..draft("mallory") },
        Draft { attributes: &free, ..draft("mallory") },
        Draft { cost: Some(2), ..draft("mallory") },
    ];
    for other in others {
        assert_eq!(case.ask(other).await.answered_by(), AnsweredBy::Server, "{other:?}");
        assert_eq!(case.ask(other).await.answered_by(), AnsweredBy::Remembered, "{other:?}");
    }
    // Nothing to wait for: these look at the state, or can never pass.
    for other in [
        Draft { cost: Some(0), ..draft("mallory") },
        Draft { dry_run: true, ..draft("mallory") },
        Draft { cost: Some(6), ..draft("mallory") },
    ] {
        for _ in 0..2 {
            assert_eq!(case.ask(other).await.answered_by(), AnsweredBy::Server, "{other:?}");
        }
    }
}

#[tokio::test]
async fn a_long_request_is_not_remembered() {
    let case = Case::new(None).await;
    let long = "m".repeat(1_000);
    case.exhaust(&long).await;
    for _ in 0..2 {
        assert_eq!(case.ask(draft(&long)).await.answered_by(), AnsweredBy::Server);
    }
}
