//! A Redis that hangs: every method of the administration is answered within 2 s, without a deadline of its
//! caller.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MethodDescriptor};
use rlaas::clock::{Clock, ManualClock, Micros, Timestamp};
use rlaas_admin::FleetStats;
use rlaas_telemetry::metrics::Metrics;
use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, signal};
use rlaas_testkit::redis::RedisServer;
use serde_json::{Value, json};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::fleet::instance::{Instance, standalone};
use crate::hostile::wire::open;

/// Longest time of a method.
const ANSWERED: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_secs(20);

#[expect(clippy::disallowed_methods, reason = "measures how long callers wait")]
fn now() -> Instant {
    Instant::now()
}

/// Time that other instances have for their reports.
const GRACE: Duration = Duration::from_secs(1);

/// Returns a request that reaches the store, if the method uses it.
fn request(name: &str) -> Value {
    let key = json!({"id": "alice"});
    let selector = json!({"rule": "pay", "key": key});
    let rule = json!({"name": "more", "maxRequests": "9", "window": "60s"});
    match name {
        "Inspect" => json!({"selector": selector}),
        "Reset" => json!({"selector": selector, "reason": "a test", "requestId": "1"}),
        "Refund" => {
            json!({"selector": selector, "units": "1", "reason": "a test", "requestId": "2"})
        }
        "SetOverride" => {
            json!({"selector": selector, "grant": {"limit": "5"}, "ttl": "60s", "reason": "a test"})
        }
        "ClearOverride" => json!({"selector": selector, "reason": "a test"}),
        "Explain" => json!({"request": {"userId": "alice", "resource": "/pay"}}),
        "ExplainDescriptors" => {
            json!({"domain": "edge", "descriptors": [{"entries": [{"key": "a", "value": "b"}]}]})
        }
        "TopKeys" => json!({"rule": "pay", "withState": true}),
        "SetMode" => json!({"rule": "pay", "mode": "RULE_MODE_SHADOW", "ttl": "60s",
                            "reason": "a test", "requestId": "3"}),
        "LookUp" => json!({"userId": "alice", "projectId": "-"}),
        "BanKey" => json!({"parts": [{"name": "user_id", "value": "alice"}], "ttl": "60s",
                           "reason": "a test"}),
        "CreateProject" => json!({"project": {"id": "new"}, "requestId": "4"}),
        "UpdateProject" => json!({"project": {"id": "shop", "displayName": "Shop"}}),
        "CreateKey" => json!({"projectId": "shop", "requestId": "5"}),
        "UpdateKey" => json!({"projectId": "shop", "key": {"id": "KEY", "attributes": {"a": "b"}}}),
        "RotateKey" | "RevokeKey" => json!({"projectId": "shop", "keyId": "KEY"}),
        "CreateRule" => json!({"projectId": "shop", "rule": rule}),
        "GetRule" | "DeleteRule" => json!({"projectId": "shop", "ruleName": "login"}),
        "UpdateRule" => {
            json!({"projectId": "shop", "rule": {"name": "login", "maxRequests": "5", "window": "60s"}})
        }
        "ApplyRules" | "Validate" => json!({"projectId": "shop", "rules": [rule]}),
        "Rollback" => json!({"projectId": "shop", "revision": "1"}),
        "RestoreCatalogue" => json!({"from": "CATALOGUE_SOURCE_INSTANCE", "reason": "a test"}),
        "ListAudit" | "ListOverrides" | "WatchStats" | "WatchDecisions" | "ListUsage" => {
            json!({"projectId": "-"})
        }
        "ListInstances" | "ListProjects" => json!({}),
        "GetProject"
        | "DeleteProject"
        | "ListKeys"
        | "ListRules"
        | "ListRevisions"
        | "ListThresholdEvents"
        | "GetRevision" => json!({"projectId": "shop"}),
        name => panic!("no request for {name}"),
    }
}

fn methods() -> Vec<MethodDescriptor> {
    let pool = DescriptorPool::decode(rlaas_proto::FILE_DESCRIPTOR_SET).expect("descriptors");
    let services = pool.services().filter(|one| one.package_name() == "ratelimit.admin.v1");
    services.flat_map(|service| service.methods().collect::<Vec<_>>()).collect()
}

/// Calls a method without a deadline. Of a stream the beginning is awaited.
async fn call(
    channel: &Channel,
    method: &MethodDescriptor,
    request: &Value,
) -> Result<Vec<u8>, Status> {
    let message = DynamicMessage::deserialize(method.input(), request)
        .unwrap_or_else(|error| panic!("{}: {error}", method.name()));
    let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
    let mut messages = open(channel, &path, &[], message.encode_to_vec()).await?;
    if method.is_server_streaming() {
        return Ok(Vec::new());
    }
    Ok(messages.message().await?.unwrap_or_default())
}

#[tokio::test]
async fn every_method_is_answered_within_2_s_while_redis_hangs() {
    let redis = RedisServer::start();
    let rules = r#"rules=[{"name":"pay","match":{"resource":"/pay"},"algorithm":"gcra","limit":3,"window":"1h","overridable":true}]"#;
    let server =
        Rlaas::on_redis(&redis, &[rules, "telemetry.top-keys=true", "auth.api-keys=accepted"]);
    let channel = server.channel().await;
    let methods = methods();
    let method = |name: &str| methods.iter().find(|of| of.name() == name).expect("a method");
    let project = json!({"project": {"id": "shop"}});
    call(&channel, method("CreateProject"), &project).await.expect("a project");
    let rule = json!({"projectId": "shop",
                      "rule": {"name": "login", "maxRequests": "9", "window": "60s"}});
    call(&channel, method("CreateRule"), &rule).await.expect("a rule");
    let key = call(&channel, method("CreateKey"), &json!({"projectId": "shop"})).await;
    let key = rlaas_proto::ratelimit::admin::v1::CreateKeyResponse::decode(&*key.expect("a key"));
    let key = key.expect("a response").key.expect("a key").id;
    let mut fastest = BTreeMap::new();
    // The machine may be busy.
    for _ in 0..3 {
        signal(redis.pid(), "CONT");
        // Calls then wait on connections that are open.
        let is_back = async || call(&channel, method("ListAudit"), &json!({})).await.is_ok();
        eventually("redis answers", SOON, is_back).await;
        signal(redis.pid(), "STOP");
        let calls = methods.iter().map(async |method| {
            let text = request(method.name()).to_string().replace("KEY", &key);
            let request: Value = serde_json::from_str(&text).expect("JSON");
            let begun = now();
            let answer = call(&channel, method, &request).await;
            (method.name().to_owned(), begun.elapsed(), answer)
        });
        for (name, took, answer) in futures_util::future::join_all(calls).await {
            // Their callers have time: it is the store that does not answer.
            let late = answer.as_ref().is_err_and(|status| status.code() == Code::DeadlineExceeded);
            assert!(!(late && name == "LookUp"), "{answer:?}");
            let told = answer.map_or_else(|status| status.message().to_owned(), |_| "OK".into());
            println!("{name}: {took:?}, {told}");
            let fastest = fastest.entry(name).or_insert(took);
            *fastest = took.min(*fastest);
        }
        if fastest.values().all(|took| *took <= ANSWERED) {
            break;
        }
    }
    signal(redis.pid(), "CONT");
    fastest.retain(|_, took| *took > ANSWERED);
    assert_eq!(fastest, BTreeMap::new());
}

#[tokio::test]
async fn a_point_of_statistics_is_there_within_2_s_of_its_end_while_redis_hangs() {
    const T0: Timestamp = Timestamp::from_millis(1_700_000_100_000);
    let redis = RedisServer::start();
    let instance = Instance::start(standalone(&redis.url())).await;
    let clock = ManualClock::new(T0);
    let metrics = std::sync::Arc::new(Metrics::new());
    let stats =
        FleetStats::new(instance.fleet.clone(), metrics, "one", Clock::Manual(clock.clone()));
    clock.set(clock.now() + Micros::from_secs(10));
    stats.write().await;
    stats.collect().await;
    let mut newest = stats.subscribe();
    assert_eq!(*newest.borrow_and_update(), 1);
    signal(redis.pid(), "STOP");
    let mut fastest = Duration::MAX;
    for number in 2..5 {
        clock.set(clock.now() + Micros::from_secs(10));
        let begun = now();
        // As long as others have for their reports.
        tokio::join!(stats.write(), tokio::time::timeout(GRACE, std::future::pending::<()>()))
            .1
            .expect_err("it has passed");
        stats.collect().await;
        fastest = fastest.min(begun.elapsed());
        assert_eq!(*newest.borrow_and_update(), number);
    }
    signal(redis.pid(), "CONT");
    println!("a point in {fastest:?}");
    assert!(fastest <= ANSWERED, "{fastest:?}");
}
