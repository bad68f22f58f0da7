//! Batches and streams: one result per request, in order, each with its own error.

use rlaas_proto::ratelimit::v1::check_result::Result as ItemResult;
use rlaas_proto::ratelimit::v1::{CheckBatchRequest, CheckRequest, CheckResponse, CheckResult};
use tokio_stream::StreamExt;
use tonic::Code;

use rlaas_testkit::process::{Rlaas, request};
use rlaas_testkit::redis::RedisServer;

/// Returns the remaining units, -1 for a denial, or the code of an error.
fn outcome(result: &CheckResult) -> Result<i64, i32> {
    match result.result.as_ref().expect("a result") {
        ItemResult::Response(response) if response.allowed => Ok(response.remaining),
        ItemResult::Response(_) => Ok(-1),
        ItemResult::Error(error) => Err(error.code),
    }
}

#[tokio::test]
async fn batch_of_a_thousand_is_answered_in_order() {
    let redis = RedisServer::start();
    for server in [Rlaas::start(&[]), Rlaas::on_redis(&redis, &[])] {
        let requests: Vec<CheckRequest> = (0..1_000)
            .map(|item| match item % 10 {
                0 => request(""),
                // Each user is checked once.
                cost => CheckRequest { cost: Some(cost), ..request(&item.to_string()) },
            })
            .collect();
        let mut client = server.client().await;
        let response =
            client.check_batch(CheckBatchRequest { requests, ..Default::default() }).await;
        let results = response.expect("an answer").into_inner().results;
        assert_eq!(results.len(), 1_000);
        for (item, result) in (0_i64..).zip(&results) {
            let expected = match item % 10 {
                0 => Err(Code::InvalidArgument.into()),
                cost @ 1..=5 => Ok(5 - cost),
                _ => Ok(-1),
            };
            assert_eq!(outcome(result), expected, "item {item}");
        }
    }
}

#[tokio::test]
async fn decisions_are_left_out_of_a_batch_that_does_not_want_them() {
    let server = Rlaas::start(&["rate-limiter.max-requests=5"]);
    let mut client = server.client().await;
    let requests = vec![CheckRequest { cost: Some(0), ..request("alice") }, request("")];
    let mut answers = Vec::new();
    for decisions_wanted in [None, Some(true), Some(false)] {
        let batch = CheckBatchRequest { requests: requests.clone(), decisions_wanted };
        let results = client.check_batch(batch).await.expect("an answer").into_inner().results;
        let ItemResult::Response(response) = results[0].result.clone().expect("a result") else {
            panic!("{results:?}")
        };
        assert_eq!(response.decisions.len(), usize::from(decisions_wanted != Some(false)));
        // The times differ from call to call.
        let rest = CheckResponse { decisions: vec![], reset_after: None, ttl: 0, ..response };
        answers.push((rest, results[1].clone()));
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
}

#[tokio::test]
async fn batch_above_the_limit_is_rejected() {
    let server = Rlaas::start(&[]);
    let mut client = server.client().await;
    let requests = vec![request("alice"); 1_001];
    let status = client
        .check_batch(CheckBatchRequest { requests, ..Default::default() })
        .await
        .expect_err("too many");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.message(), "requests must have at most 1000 entries");
    assert_eq!(server.metric("rlaas_memory_keys").await, Some(0.0));
    let empty = client.check_batch(CheckBatchRequest::default()).await.expect("an answer");
    assert!(empty.into_inner().results.is_empty());
}

#[tokio::test]
async fn stream_of_a_hundred_thousand_is_answered_in_order() {
    const ITEMS: usize = 100_000;
    let redis = RedisServer::start();
    for (server, items) in [(Rlaas::start(&[]), ITEMS), (Rlaas::on_redis(&redis, &[]), ITEMS / 10)]
    {
        let requests = (0..items).map(|item| match item % 1_000 {
            999 => request(""),
            _ => CheckRequest { cost: Some((item % 5) as u64 + 1), ..request(&item.to_string()) },
        });
        let mut client = server.client().await;
        let response = client.check_stream(tokio_stream::iter(requests)).await;
        let mut results = response.expect("a stream").into_inner();
        for item in 0..items {
            let result = results.next().await.expect("an answer").expect("an answer");
            let expected = match item % 1_000 {
                999 => Err(Code::InvalidArgument.into()),
                _ => Ok(4 - i64::try_from(item % 5).expect("a small number")),
            };
            assert_eq!(outcome(&result), expected, "item {item}");
        }
        assert!(results.next().await.is_none(), "one result per request");
    }
}

#[tokio::test]
async fn stream_applies_backpressure_to_a_client_that_does_not_read() {
    let server = Rlaas::start(&[]);
    let (sender, requests) = tokio::sync::mpsc::channel(1);
    let mut client = server.client().await;
    let requests = tokio_stream::wrappers::ReceiverStream::new(requests);
    let response = client.check_stream(requests).await.expect("a stream");
    // No response is read, so the flow control of the connection bounds what can be sent.
    let mut sent = 0;
    let pause = std::time::Duration::from_millis(500);
    while sent < 1_000_000 {
        let item = CheckRequest { resource: "r".repeat(1_000), ..request("alice") };
        match tokio::time::timeout(pause, sender.send(item)).await {
            Ok(Ok(())) => sent += 1,
            Ok(Err(_)) | Err(_) => break,
        }
    }
    assert!(sent < 1_000_000, "every request was accepted");
    drop(response);
    let mut client = server.client().await;
    assert!(client.check(request("bob")).await.expect("an answer").into_inner().allowed);
}
