//! Requests without an answer, and the policy that then decides.

use rlaas::algorithm::Outcome;
use rlaas::clock::Micros;
use rlaas_client::{AnsweredBy, CheckError, Client, ConnectError, OnNoAnswer};
use rlaas_proto::ratelimit::v1::check_response::Source;
use tokio::runtime::Builder;

use super::{TIMEOUT, check, fields};
use rlaas_testkit::eventually;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::free_port;

#[tokio::test]
async fn no_answer_policy_decides() {
    let unreachable = format!("127.0.0.1:{}", free_port());
    let client = |policy| Client::builder(&unreachable).on_no_answer(policy).connect_lazy();
    for (policy, outcome, source) in [
        (OnNoAnswer::Allow, Outcome::Allowed, Source::FailOpen),
        (
            OnNoAnswer::Deny,
            Outcome::Denied { retry_after: Micros::from_secs(1) },
            Source::FailClosed,
        ),
    ] {
        let client = client(policy).expect("a client");
        // A decision by policy is not remembered: the second one is the same.
        for _ in 0..2 {
            let verdict = check(&client, fields("alice")).await.expect("a policy");
            assert_eq!(verdict.decision().outcome, outcome);
            assert_eq!(verdict.is_allowed(), policy == OnNoAnswer::Allow);
            assert_eq!((verdict.answered_by(), verdict.rule()), (AnsweredBy::Policy, ""));
            assert_eq!(verdict.response().source(), source);
        }
    }
    let client = Client::builder(&unreachable).connect_lazy().expect("a client");
    let error = check(&client, fields("alice")).await;
    assert!(matches!(error, Err(CheckError::NoAnswer(_))), "{error:?}");
    let error = Client::builder(&unreachable).connect().await.expect_err("nobody");
    assert!(matches!(error, ConnectError::Unreachable(_)), "{error}");
}

#[tokio::test]
async fn client_connects_to_a_server_that_starts_later() {
    let address = format!("127.0.0.1:{}", free_port());
    let client = Client::builder(&address).on_no_answer(OnNoAnswer::Deny).connect_lazy();
    let client = client.expect("a client");
    assert!(!check(&client, fields("alice")).await.expect("a policy").is_allowed());
    let _server = Rlaas::start(&[&format!("server.listen={address}")]);
    let is_answered = async || {
        let verdict = check(&client, fields("alice")).await.expect("a policy");
        verdict.answered_by() == AnsweredBy::Server
    };
    eventually("the server answers", TIMEOUT, is_answered).await;
}

#[test]
fn client_lives_as_long_as_its_runtime() {
    let server = Rlaas::start(&[]);
    let home = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let home = home.expect("a runtime");
    let client = Client::builder(server.grpc()).timeout(TIMEOUT);
    let client = home.block_on(client.connect()).expect("a server");
    let elsewhere = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let check = || elsewhere.block_on(check(&client, fields("alice")));
    assert!(check().expect("an answer").is_allowed());
    drop(home);
    let error = check().expect_err("no runtime drives the connection");
    assert!(matches!(error, CheckError::NoAnswer(_)), "{error}");
}

#[test]
fn client_without_a_runtime_is_an_error() {
    let client = Client::builder("127.0.0.1:50051").connect_lazy();
    assert!(matches!(client, Err(ConnectError::NoRuntime)), "{client:?}");
}
