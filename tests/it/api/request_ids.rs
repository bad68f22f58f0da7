//! Request ids over gRPC and HTTP: bounds, replays and errors.

use rlaas_proto::ratelimit::v1::{CheckBatchRequest, CheckRequest, CheckResult, check_result};
use rlaas_testkit::process::{Rlaas, request};
use tonic::Code;

fn with_id(cost: u64, id: &str) -> CheckRequest {
    CheckRequest { cost: Some(cost), request_id: id.to_owned(), ..request("alice") }
}

/// Returns (allowed, replayed, remaining) of a result, or the code and text of its error.
fn summary(result: CheckResult) -> Result<(bool, bool, i64), (Code, String)> {
    match result.result.expect("a result") {
        check_result::Result::Response(one) => Ok((one.allowed, one.replayed, one.remaining)),
        check_result::Result::Error(error) => Err((Code::from(error.code), error.message)),
    }
}

fn other_request() -> (Code, String) {
    (Code::InvalidArgument, "request_id was used for another request".to_owned())
}

#[tokio::test]
async fn items_of_a_batch_and_a_stream_fail_alone() {
    let server = Rlaas::start(&[]);
    let mut client = server.client().await;
    let requests = vec![
        with_id(2, "x"),
        with_id(2, "x"),
        with_id(1, "x"),
        with_id(1, &"y".repeat(65)),
        with_id(1, "y"),
    ];
    let expected = |replayed: bool| {
        [
            Ok((true, replayed, 3)),
            Ok((true, true, 3)),
            Err(other_request()),
            Err((Code::InvalidArgument, "request_id must be at most 64 bytes".to_owned())),
            Ok((true, replayed, 2)),
        ]
    };
    let batch = client
        .check_batch(CheckBatchRequest { requests: requests.clone(), ..Default::default() })
        .await;
    let results = batch.expect("an answer").into_inner().results;
    let results: Vec<_> = results.into_iter().map(summary).collect();
    assert_eq!(results, expected(false));
    let stream = client.check_stream(tokio_stream::iter(requests)).await;
    let mut stream = stream.expect("a stream").into_inner();
    let mut results = Vec::new();
    while let Some(result) = stream.message().await.expect("a result") {
        results.push(summary(result));
    }
    assert_eq!(results, expected(true));
    let rejected = server.metric_sum("rlaas_rejected_total", &["reason=\"request_id\""]).await;
    assert_eq!(rejected, 2, "the id of 65 bytes, twice");
}

#[tokio::test]
async fn tenth_call_fails_and_counts_nothing() {
    let server = Rlaas::start(&[]);
    let mut client = server.client().await;
    for replayed in [false].into_iter().chain([true; 8]) {
        let answer = client.check(with_id(1, "x")).await.expect("an answer").into_inner();
        assert_eq!((answer.allowed, answer.replayed, answer.remaining), (true, replayed, 4));
    }
    let status = client.check(with_id(1, "x")).await.expect_err("too many replays");
    assert_eq!(status.code(), Code::FailedPrecondition);
    let text = "request_id was used too often: a reply is repeated at most 8 times";
    assert_eq!(status.message(), text);
    let look = client.check(with_id(0, "x")).await.expect("an answer").into_inner();
    assert_eq!((look.replayed, look.remaining), (false, 4));
    assert_eq!(server.metric("rlaas_replays_total").await, Some(8.0));
    let decided = server.metric_sum("rlaas_decisions_total", &["rule=\"default\""]).await;
    assert_eq!(decided, 1, "the first call: a look is no request");
}

#[tokio::test]
async fn http_has_request_ids() {
    let server = Rlaas::start(&[]);
    let check = async |body: &str| {
        let (status, body) = server.post("/v1/check", body).await;
        let json: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        (status, json)
    };
    for replayed in [false, true] {
        let (status, json) = check(r#"{"userId":"alice","requestId":"x"}"#).await;
        assert_eq!((status, &json["replayed"]), (200, &replayed.into()), "{json}");
        assert_eq!(json["remaining"], "4");
    }
    let (status, json) = check(r#"{"userId":"alice","requestId":"x","cost":2}"#).await;
    assert_eq!((status, &json["detail"]), (400, &other_request().1.into()), "{json}");
    let long = format!(r#"{{"userId":"alice","requestId":"{}"}}"#, "x".repeat(65));
    let (status, json) = check(&long).await;
    let detail = "requestId must be at most 64 bytes".into();
    assert_eq!((status, &json["detail"]), (400, &detail), "{json}");
}

#[tokio::test]
async fn memory_forgets_the_oldest_first() {
    let settings = ["idempotency.max-keys=3", "rate-limiter.max-requests=100"];
    let server = Rlaas::start(&settings);
    let mut client = server.client().await;
    let mut replayed = Vec::new();
    for id in ["a", "b", "c", "d", "b", "c", "d", "a"] {
        let answer = client.check(with_id(1, id)).await.expect("an answer").into_inner();
        replayed.push(answer.replayed);
    }
    assert_eq!(replayed, [false, false, false, false, true, true, true, false]);
    assert_eq!(server.metric("rlaas_request_id_evictions_total").await, Some(2.0));
}
