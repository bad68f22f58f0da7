//! Asks a running program, in the notation of the table.

use super::notation;
use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use rlaas_testkit::process::Rlaas;
use tonic::transport::Channel;

pub(crate) type EnvoyClient = RateLimitServiceClient<Channel>;

pub(crate) async fn client(server: &Rlaas) -> EnvoyClient {
    RateLimitServiceClient::new(server.channel().await)
}

/// Asks once.
pub(crate) async fn check(client: &mut EnvoyClient, request: &str) -> String {
    let answer = client.should_rate_limit(notation::request(request)).await;
    notation::answer(&answer.map(tonic::Response::into_inner))
}
