//! Invalid input: the error names the field, nothing is counted, and the server goes on.

use std::collections::HashMap;

use rlaas_proto::ratelimit::v1::CheckRequest;
use tonic::{Code, Status};

use rlaas_testkit::process::{Rlaas, check, request};
use rlaas_testkit::redis::RedisServer;

use crate::hostile::wire::call;

#[tokio::test]
async fn out_of_bounds_fields_are_named_and_nothing_is_counted() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &[]);
    let mut client = server.client().await;
    let many = |count: usize| (0..count).map(|i| (i.to_string(), String::new())).collect();
    let one = |name: usize, value: usize| HashMap::from([("n".repeat(name), "v".repeat(value))]);
    let cases: [(&str, CheckRequest); 9] = [
        ("user_id", request("")),
        ("user_id", request(&"u".repeat(1025))),
        ("resource", CheckRequest { resource: "r".repeat(1025), ..request("a") }),
        ("attributes", CheckRequest { attributes: many(33), ..request("a") }),
        ("attributes", CheckRequest { attributes: one(0, 1), ..request("a") }),
        ("attributes", CheckRequest { attributes: one(65, 1), ..request("a") }),
        ("attributes", CheckRequest { attributes: one(1, 1025), ..request("a") }),
        ("cost", CheckRequest { cost: Some(1 << 32), ..request("a") }),
        ("cost", CheckRequest { cost: Some(u64::MAX), ..request("a") }),
    ];
    for (field, bad) in cases {
        let status = client.check(bad).await.expect_err(field);
        assert_eq!(status.code(), Code::InvalidArgument, "{field}");
        assert!(status.message().starts_with(&format!("{field} must ")), "{status:?}");
    }
    assert!(redis.keys().is_empty());
    assert_eq!(server.metric("rlaas_rejected_total{reason=\"attributes\"}").await, Some(4.0));

    // Probes are never limited.
    for _ in 0..100 {
        assert_eq!(server.get("/livez").await.0, 200);
        assert_eq!(server.get("/metrics").await.0, 200);
    }
    assert!(redis.keys().is_empty());
}

#[tokio::test]
async fn values_at_their_bounds_pass() {
    let server = Rlaas::start(&[]);
    let mut client = server.client().await;
    let attributes =
        (0..32).map(|i| (format!("{i:02}{}", "n".repeat(62)), "v".repeat(1024))).collect();
    let largest = CheckRequest {
        resource: "r".repeat(1024),
        attributes,
        cost: Some(u64::from(u32::MAX)),
        ..request(&"u".repeat(1024))
    };
    let response = client.check(largest).await.expect("an answer").into_inner();
    assert!(!response.allowed);
}

#[tokio::test]
async fn malformed_messages_are_invalid_arguments() {
    let server = Rlaas::start(&[]);
    for path in [
        "/ratelimit.v1.RateLimitService/Check",
        "/ratelimit.v1.RateLimitService/CheckStream",
        "/ratelimit.admin.v1.AdminService/WatchStats",
        "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
    ] {
        // A field longer than its message, and garbage.
        for malformed in [b"\x0a\xff".to_vec(), vec![0xff; 100]] {
            let status = send(&server, path, malformed).await.expect_err("malformed");
            assert_eq!(status.code(), Code::InvalidArgument, "{path}: {status:?}");
            assert!(status.message().contains("failed to decode Protobuf"), "{status:?}");
        }
    }
}

#[tokio::test]
async fn malformed_oversized_and_misdirected_calls_do_no_harm() {
    let server = Rlaas::start(&[]);
    let check_path = "/ratelimit.v1.RateLimitService/Check";
    let mut client = server.client().await;

    // An id that is not UTF-8.
    let malformed = send(&server, check_path, b"\x0a\x02\xc3\x28".to_vec()).await;
    assert_eq!(malformed.expect_err("malformed").code(), Code::InvalidArgument);
    let megabyte = client.check(request(&"u".repeat(1 << 20))).await.expect_err("too large");
    assert_eq!(megabyte.code(), Code::OutOfRange);
    let nowhere = send(&server, "/ratelimit.v1.RateLimitService/Nothing", Vec::new()).await;
    assert_eq!(nowhere.expect_err("no such method").code(), Code::Unimplemented);
    let nobody = send(&server, "/nobody/Check", Vec::new()).await;
    assert_eq!(nobody.expect_err("no such service").code(), Code::Unimplemented);

    assert_eq!(server.metric("rlaas_memory_keys").await, Some(0.0));
    assert!(check(&mut client, "alice").await.expect("an answer").allowed);
}

#[tokio::test]
async fn removed_rpcs_are_unimplemented_and_removed_routes_not_found() {
    let server = Rlaas::start(&[]);
    let preview = "/ratelimit.admin.v1.ProjectService/Preview";
    for (rpc, route) in [(preview, "/v1/projects/_/rules:preview")] {
        let refused = send(&server, rpc, Vec::new()).await;
        assert_eq!(refused.expect_err("no such RPC").code(), Code::Unimplemented, "{rpc}");
        let (status, body) = server.post(route, "{}").await;
        assert_eq!(status, 404, "{route}: {body}");
    }
}

#[tokio::test]
async fn ids_may_contain_any_character() {
    let server = Rlaas::start(&[]);
    let mut client = server.client().await;
    for id in ["a\0b", "a:b", "a%3Ab", "{a}", "a\r\nb", "💡"] {
        let response = check(&mut client, id).await.expect(id);
        assert_eq!((response.allowed, response.current_count), (true, 0), "{id:?}");
    }
}

/// Sends raw bytes as the message.
async fn send(server: &Rlaas, path: &str, message: Vec<u8>) -> Result<(), Status> {
    call(&server.channel().await, path, &[], message).await.map(drop)
}
