//! Administration over HTTP: the same messages in JSON, the same errors as problem documents.

use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::free_port;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Calls a method of keys as [`post_to`] does.
pub(super) async fn post(server: &Rlaas, method: &str, body: &str) -> (u16, String, Value) {
    post_to(server, &format!("/v1/admin/keys:{method}"), body).await
}

/// Sends a POST as a local program does, and returns status code, content type and body.
pub(super) async fn post_to(server: &Rlaas, path: &str, body: &str) -> (u16, String, Value) {
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    let mut connection = TcpStream::connect(server.http()).await.expect("a running server");
    connection.write_all(request.as_bytes()).await.expect("a server that reads the request");
    let mut response = String::new();
    connection.read_to_string(&mut response).await.expect("a response");
    let (head, body) = response.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.contains("cache-control: no-store"), "{head}");
    let content_type =
        head.split("content-type: ").nth(1).and_then(|rest| rest.split("\r\n").next());
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let body = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"));
    (status.expect("a status"), content_type.expect("a content type").to_owned(), body)
}

#[tokio::test]
async fn a_key_is_shown_and_changed() {
    let server = Rlaas::start(&[]);
    let user_id = "a:{b}\0\n\"é";
    let check = json!({ "userId": user_id, "cost": 3 });
    assert_eq!(server.post("/v1/check", &check.to_string()).await.0, 200);
    let selector = json!({ "request": { "userId": user_id } });
    let inspect = json!({ "selector": selector }).to_string();
    let (status, content_type, body) = post(&server, "inspect", &inspect).await;
    assert_eq!((status, &*content_type), (200, "application/json"));
    let state = |used: &str, remaining: &str| {
        json!({
            "rule": "default",
            "algorithm": "SLIDING_WINDOW_LOG",
            "key": {
                "parts": [{ "name": "user_id", "value": user_id }],
                "id": "a%3A%7Bb%7D%00%0A\"é",
                "storageKey": ":a%3A%7Bb%7D%00%0A\"é",
            },
            "limit": "5",
            "used": used,
            "remaining": remaining,
            "grantFrom": "GRANT_FROM_RULE",
            "overrides": [],
            "held": "0",
            "holds": 0,
            "limitFrom": "",
            "mode": "RULE_MODE_ENFORCE",
            "window": "60s",
            "zone": "",
        })
    };
    let without_wait = |mut state: Value| {
        for (name, end) in [("resetAfter", 's'), ("resetAt", 'Z')] {
            let wait = state.as_object_mut().expect("an object").remove(name);
            assert!(wait.expect("a wait").as_str().expect("a text").ends_with(end));
        }
        state
    };
    assert_eq!(without_wait(body["keys"][0].clone()), state("3", "2"));
    let refund = json!({ "selector": selector, "units": 1, "reason": "sorry", "request_id": "r1" });
    let (status, _, body) = post(&server, "refund", &refund.to_string()).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(without_wait(body["change"]["before"][0].clone()), state("3", "2"));
    assert_eq!(without_wait(body["change"]["after"][0].clone()), state("2", "3"));
    assert_eq!(body["change"]["replayed"], false);
    assert!(body["change"]["everywhereBy"].as_str().expect("a time").ends_with('Z'));
    // By the id that the answer has, in the other spelling of names.
    let id = json!({ "id": "a%3A%7Bb%7D%00%0A\"é" });
    let reset = json!({ "selector": { "key": id, "rule": "default" }, "reason": "again" });
    let (status, _, body) = post(&server, "reset", &reset.to_string()).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(without_wait(body["change"]["after"][0].clone()), state("0", "5"));
}

#[tokio::test]
async fn errors_name_the_field_and_never_its_value() {
    let server = Rlaas::start(&[]);
    let selector = r#""selector":{"request":{"userId":"alice"}}"#;
    for (method, body, status, detail) in [
        ("inspect", "", 400, "body: not JSON at line 1, column 0"),
        ("inspect", "[]", 400, "body must be a JSON object"),
        ("inspect", "{}", 400, "selector must be set"),
        ("inspect", r#"{"selector":null}"#, 400, "selector must be set"),
        ("inspect", r#"{"selector":"s3cret"}"#, 400, "selector must be an object"),
        ("inspect", r#"{"selector":{"s3":1}}"#, 400, "selector.s3: unknown field"),
        ("inspect", r#"{"selector":{"a\nb":1}}"#, 400, r"selector.a\nb: unknown field"),
        ("inspect", r#"{"selector":{},"selector":{}}"#, 400, "selector: given twice"),
        ("inspect", r#"{"selector":{"rule":"a","rule":"a"}}"#, 400, "selector.rule: given twice"),
        (
            "inspect",
            r#"{"selector":{"request":{"userId":"a","user_id":"a"}}}"#,
            400,
            "selector.request.userId: given twice",
        ),
        (
            "inspect",
            r#"{"selector":{"request":{"userId":7}}}"#,
            400,
            "selector.request.userId must be a string",
        ),
        (
            "inspect",
            r#"{"selector":{"request":{"userId":"a","attributes":{"b":7}}}}"#,
            400,
            "selector.request.attributes must be an object of strings",
        ),
        (
            "inspect",
            r#"{"selector":{"key":{"parts":[{"name":"user_id"},"s3cret"]}}}"#,
            400,
            "selector.key.parts[1] must be an object",
        ),
        (
            "inspect",
            r#"{"selector":{"key":{"id":"a"},"request":{"userId":"a"}}}"#,
            400,
            "selector.request must not be set beside key",
        ),
        (
            "refund",
            &format!(r#"{{{selector},"units":-1,"reason":"r","requestId":"i"}}"#),
            400,
            "units must be a whole number from 0 to 18446744073709551615",
        ),
    ] {
        let (answered, content_type, problem) = post(&server, method, body).await;
        assert_eq!(content_type, "application/problem+json", "{body}: {problem}");
        assert_eq!((answered, &problem["detail"]), (status, &json!(detail)), "{body}");
        assert_eq!(problem["status"], status, "{body}");
    }
    let url = format!("store.redis.url=redis://127.0.0.1:{}", free_port());
    let away = Rlaas::start(&["store.backend=redis", &url]);
    let (status, _, problem) = post(&away, "inspect", &format!("{{{selector}}}")).await;
    assert_eq!((status, &problem["detail"]), (503, &json!("store unavailable")));
}
