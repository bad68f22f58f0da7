//! `Check`, `GetConfig`, health, reflection, probes.

use rlaas::api::SERVICE;
use rlaas_proto::ratelimit::v1::check_response::{Reason, Source};
use rlaas_proto::ratelimit::v1::{Algorithm, GetConfigRequest};
use tokio_stream::StreamExt;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use rlaas_testkit::process::{Rlaas, check};
use rlaas_testkit::redis::RedisServer;

const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;

#[tokio::test]
async fn check_allows_five_requests_and_denies_the_sixth() {
    let server = Rlaas::start(&[]);
    let mut client = server.client().await;
    for count in 0..5 {
        let response = check(&mut client, "alice").await.expect("an answer");
        assert!(response.allowed);
        assert_eq!(response.current_count, count);
        assert_eq!(response.remaining, 4 - count);
        assert_eq!((response.ttl, response.limit), (60, 5));
        assert_eq!(response.retry_after, None);
        assert_eq!(response.reason(), Reason::WithinLimit);
    }
    let denied = check(&mut client, "alice").await.expect("an answer, not an error");
    assert!(!denied.allowed);
    assert_eq!((denied.current_count, denied.remaining, denied.ttl), (5, 0, 60));
    assert_eq!((denied.rule.as_str(), denied.reason()), ("default", Reason::OverLimit));
    assert_eq!((denied.algorithm(), denied.source()), (Algorithm::SlidingWindowLog, Source::Store));
    let wait = denied.retry_after.expect("a wait");
    assert!((0..60).contains(&wait.seconds), "{wait:?}");
    assert_eq!(denied.decisions.len(), 1);
    assert_eq!(denied.decisions[0].retry_after, denied.retry_after);
}

#[tokio::test]
async fn get_config_reports_the_defaults() {
    let server = Rlaas::start(&[]);
    let response = server.client().await.get_config(GetConfigRequest::default()).await;
    let config = response.expect("an answer").into_inner();
    let rule = config.default_rule.expect("a default rule");
    assert_eq!((rule.algorithm(), rule.max_requests), (Algorithm::SlidingWindowLog, 5));
    assert_eq!(rule.window.map(|window| (window.seconds, window.nanos)), Some((60, 0)));
    assert_eq!((config.revision, config.store.as_str()), (1, "memory"));
    assert_eq!(config.version, env!("CARGO_PKG_VERSION"));
}

#[tokio::test]
async fn health_and_probes_report_the_status() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &[]);
    let mut client = server.client().await;
    check(&mut client, "alice").await.expect("an answer");
    let mut health = HealthClient::new(server.channel().await);
    for service in ["", SERVICE, "store"] {
        // The status changes with the first reply of Redis, which Check has waited for.
        let mut reports = watch(&mut health, service).await;
        let mut status = NOT_SERVING;
        while status != SERVING {
            status = reports.next().await.expect("a report").expect("a report").status;
        }
    }
    let unknown = health.check(HealthCheckRequest { service: "nobody".to_owned() }).await;
    assert_eq!(unknown.expect_err("not found").code(), tonic::Code::NotFound);
    assert_eq!(server.get("/livez").await.0, 200);
    assert_eq!(server.get("/readyz").await.0, 200);
    assert_eq!(server.get("/nothing").await.0, 404);
}

#[tokio::test]
async fn reflection_describes_the_service() {
    let server = Rlaas::start(&[]);
    let mut client = ServerReflectionClient::new(server.channel().await);
    let listed = reflect(&mut client, MessageRequest::ListServices(String::new())).await;
    let MessageResponse::ListServicesResponse(services) = listed else { panic!("{listed:?}") };
    let names: Vec<String> = services.service.into_iter().map(|service| service.name).collect();
    for name in [SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"] {
        assert!(names.iter().any(|found| found == name), "{name} not in {names:?}");
    }
    let symbol = MessageRequest::FileContainingSymbol(SERVICE.to_owned());
    let described = reflect(&mut client, symbol).await;
    assert!(matches!(described, MessageResponse::FileDescriptorResponse(_)), "{described:?}");
}

#[tokio::test]
async fn reflection_v1alpha_is_served() {
    use tonic_reflection::pb::v1alpha::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1alpha::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1alpha::{ServerReflectionRequest, server_reflection_response};
    let server = Rlaas::start(&[]);
    let mut client = ServerReflectionClient::new(server.channel().await);
    let message_request = Some(MessageRequest::FileContainingSymbol(SERVICE.to_owned()));
    let request = ServerReflectionRequest { host: String::new(), message_request };
    let stream = client.server_reflection_info(tokio_stream::once(request)).await;
    let answer = stream.expect("a stream").into_inner().next().await.expect("an answer");
    let message = answer.expect("an answer").message_response.expect("a message");
    let described = server_reflection_response::MessageResponse::FileDescriptorResponse(
        tonic_reflection::pb::v1alpha::FileDescriptorResponse::default(),
    );
    assert_eq!(std::mem::discriminant(&message), std::mem::discriminant(&described));
}

async fn watch(
    health: &mut HealthClient<tonic::transport::Channel>,
    service: &str,
) -> tonic::Streaming<tonic_health::pb::HealthCheckResponse> {
    let request = HealthCheckRequest { service: service.to_owned() };
    health.watch(request).await.expect("a stream").into_inner()
}

async fn reflect(
    client: &mut ServerReflectionClient<tonic::transport::Channel>,
    message: MessageRequest,
) -> MessageResponse {
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(message) };
    let stream = client.server_reflection_info(tokio_stream::once(request)).await;
    let answer = stream.expect("a stream").into_inner().next().await.expect("an answer");
    answer.expect("an answer").message_response.expect("a message")
}
