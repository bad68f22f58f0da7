//! Many calls at once, of one user.

use rlaas_client::{Client, OnNoAnswer};
use rlaas_testkit::process::Rlaas;
use tokio::task::JoinSet;

use super::{TIMEOUT, check, fields};

#[tokio::test]
async fn calls_at_once_pass_as_often_as_the_rule_allows() {
    let server = Rlaas::start(&["rate-limiter.max-requests=3", "rate-limiter.window-size=366d"]);
    let client = Client::builder(server.grpc()).on_no_answer(OnNoAnswer::Allow);
    let client = client.timeout(TIMEOUT).connect().await.expect("a server");
    let mut calls = JoinSet::new();
    for _ in 0..20_000 {
        let client = client.clone();
        calls.spawn(async move { check(&client, fields("alice")).await.expect("a verdict") });
    }
    let verdicts = calls.join_all().await;
    assert_eq!(verdicts.iter().filter(|verdict| verdict.is_allowed()).count(), 3);
    // Those that waited have shared the refusal; the others found no place.
    let refused = verdicts.iter().filter(|verdict| verdict.reason() == "OVER_LIMIT").count();
    assert!(refused > 0, "nobody was refused by the server");
    assert_eq!(client.unanswered(), 0);
}
