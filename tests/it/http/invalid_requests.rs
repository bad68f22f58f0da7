//! Invalid requests: the message names the field, nothing is counted, and the server goes on.

use super::client::{HttpResponse, get, post, send, send_raw};
use rlaas_testkit::process::Rlaas;

async fn assert_alive(server: &Rlaas) {
    assert_eq!(server.metric("rlaas_memory_keys").await, Some(0.0));
    assert_eq!(get(server, "/check?userId=alice").await.status, 200);
}

#[tokio::test]
async fn invalid_fields_are_named() {
    // With API keys the one of a body is no attribute.
    let server = Rlaas::start(&["auth.api-keys=off"]);
    let long = "u".repeat(1025);
    let many: Vec<String> = (0..33).map(|i| format!("\"{i}\":\"\"")).collect();
    for (body, expected) in [
        ("", "body: not JSON at line 1, column 0"),
        ("[1,2]", "body must be a JSON object"),
        ("{}", "userId must be 1 to 1024 bytes"),
        (&format!(r#"{{"userId":"{long}"}}"#), "userId must be 1 to 1024 bytes"),
        (r#"{"userId":5}"#, "userId must be a string"),
        (
            &format!(r#"{{"userId":"a","resource":"{long}"}}"#),
            "resource must be at most 1024 bytes",
        ),
        (
            &format!(r#"{{"userId":"a","attributes":{{{}}}}}"#, many.join(",")),
            "attributes must have at most 32 entries",
        ),
        (r#"{"userId":"a","cost":4294967296}"#, "cost must be 0 to 4294967295"),
        (r#"{"userId":"a","user":"b"}"#, "user: unknown field"),
    ] {
        let answer = post(&server, "/v1/check", body).await;
        assert_eq!((answer.status, answer.detail().as_str()), (400, expected), "{body}");
    }
    for (body, expected) in [
        ("nonsense", "body: not JSON at line 1, column 2"),
        (r#"{"key":"a"}"#, "endpoint: missing"),
        (r#"{"endpoint":"/r"}"#, "key: missing"),
        (r#"{"endpoint":"/r","key":""}"#, "key must be 1 to 1024 bytes"),
        (r#"{"endpoint":"/r","key":["a"]}"#, "key must be a string"),
        (&format!(r#"{{"endpoint":"{long}","key":"a"}}"#), "endpoint must be at most 1024 bytes"),
        (
            &format!(r#"{{"endpoint":"/r","key":"a","api_key":"{long}"}}"#),
            "api_key must have at most 1024 bytes per value",
        ),
        (r#"{"endpoint":"/r","key":"a","apiKey":"k"}"#, "apiKey: unknown field"),
        (r#"{"endpoint":"/r","Key":"a"}"#, "Key: unknown field"),
    ] {
        let answer = post(&server, "/check", body).await;
        assert_eq!((answer.status, answer.body.as_str()), (400, expected), "{body}");
    }
    for (query, expected) in [
        ("", "userId: missing"),
        ("?user=alice", "userId: missing"),
        ("?userId", "userId must be 1 to 1024 bytes"),
        ("?userId=", "userId must be 1 to 1024 bytes"),
        ("?userId=a&userId=b", "userId: given twice"),
        ("?userId=%zz", "userId must be a string"),
        ("?userId=%C3%28", "userId must be a string"),
        (&format!("?userId={long}"), "userId must be 1 to 1024 bytes"),
    ] {
        let answer = get(&server, &format!("/check{query}")).await;
        assert_eq!((answer.status, answer.body.as_str()), (400, expected), "{query}");
    }
    assert_alive(&server).await;
}

#[tokio::test]
async fn unknown_field_name_is_truncated_and_escaped() {
    let server = Rlaas::start(&[]);
    let body = format!(r#"{{"\u0000\n{}":1}}"#, "x".repeat(100_000));
    let answer = post(&server, "/check", &body).await;
    assert_eq!(answer.status, 400);
    assert!(answer.body.starts_with("\\0\\nxxx") && answer.body.len() < 100, "{answer:?}");
}

#[tokio::test]
async fn values_at_their_bounds_pass_in_any_encoding() {
    let server = Rlaas::start(&["rate-limiter.max-requests=100000"]);
    let nul = |times: usize| "\\u0000".repeat(times);
    let attribute = |i: usize| format!("\"{i:02}{}\":\"{}\"", nul(62), nul(1024));
    let attributes: Vec<String> = (0..32).map(attribute).collect();
    let body = format!(
        r#"{{"userId":"{0}","resource":"{0}","attributes":{{{1}}},"cost":4294967295}}"#,
        nul(1024),
        attributes.join(",")
    );
    let answer = post(&server, "/v1/check", &body).await;
    assert_eq!(answer.json()["reason"], "COST_ABOVE_LIMIT");
    let longest = "%00".repeat(1024);
    assert_eq!(get(&server, &format!("/check?userId={longest}")).await.status, 200);
}

#[tokio::test]
async fn oversized_body_is_rejected_with_or_without_a_content_length() {
    let server = Rlaas::start(&[]);
    let large = "x".repeat(10_000_000);
    let chunk = format!("{:x}\r\n{large}\r\n0\r\n\r\n", large.len());
    let chunked = "Host: test\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    for path in ["/check", "/v1/check"] {
        let announced = post(&server, path, &large).await;
        let unannounced =
            send_raw(&server, format!("POST {path} HTTP/1.1\r\n{chunked}{chunk}").as_bytes()).await;
        for answer in [announced, unannounced] {
            assert_eq!(answer.status, 413);
            assert!(answer.body.contains("body must be at most 262144 bytes"), "{answer:?}");
        }
    }
    // A body above the limit is rejected without reading it.
    let head = "POST /check HTTP/1.1\r\nHost: test\r\nContent-Length: 99999999999\r\n\r\n";
    assert_eq!(send_raw(&server, head.as_bytes()).await.status, 413);
    assert_alive(&server).await;
    assert_eq!(server.metric("rlaas_rejected_total{reason=\"body\"}").await, Some(5.0));
}

#[tokio::test]
async fn two_host_headers_are_a_bad_request() {
    let server = Rlaas::start(&[]);
    for path in ["/livez", "/check?userId=alice", "/v1/admin/audit", "/unknown"] {
        for host in ["test", "localhost"] {
            let request = format!(
                "GET {path} HTTP/1.1\r\nHost: localhost\r\nHost: {host}\r\nConnection: close\r\n\r\n"
            );
            let answer = send_raw(&server, request.as_bytes()).await;
            assert_eq!(answer.status, 400, "{path} {host}: {answer:?}");
            assert!(answer.body.contains("Host"), "{answer:?}");
        }
    }
    assert_eq!(server.metric("rlaas_memory_keys").await, Some(0.0));
}

#[tokio::test]
async fn missing_body_times_out() {
    let server = Rlaas::start(&["server.limits.request-time=1s"]);
    let head = |path: &str| {
        format!("POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: 20\r\n\r\n{{\"userId\"")
    };
    let (one, other) = (head("/check"), head("/v1/check"));
    let both = tokio::join!(send_raw(&server, one.as_bytes()), send_raw(&server, other.as_bytes()));
    for answer in [both.0, both.1] {
        assert_eq!(answer.status, 408);
        assert!(answer.body.contains("body: took too long to arrive"), "{answer:?}");
    }
    assert_alive(&server).await;
}

#[tokio::test]
async fn unknown_methods_and_paths_get_405_and_404() {
    let server = Rlaas::start(&[]);
    let allowed = |answer: &HttpResponse| answer.header("allow").map(str::to_owned);
    for (path, methods) in [("/check", "GET,HEAD,POST"), ("/v1/check", "POST")] {
        for method in ["PUT", "DELETE", "PATCH", "TRACE", "BREW"] {
            let answer = send(&server, method, path, None).await;
            assert_eq!(answer.status, 405, "{method} {path}");
            assert_eq!(allowed(&answer).as_deref(), Some(methods), "{method} {path}");
            assert_eq!(answer.detail(), "method not allowed: see the header Allow");
        }
        let options = send(&server, "OPTIONS", path, None).await;
        assert_eq!((options.status, options.body.as_str()), (204, ""));
        assert_eq!(allowed(&options).as_deref(), Some(methods));
    }
    for path in ["/", "/v1", "/v1/check/", "//check", "/check/alice", "/%00", "/v2/check"] {
        let answer = get(&server, path).await;
        assert_eq!(answer.status, 404, "{path}");
        assert_eq!(answer.detail(), "unknown path: see /openapi.json");
    }
    assert_alive(&server).await;
}
