//! A client of a running program that uses the notation of the case files.

use super::notation;
use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use rlaas_testkit::process::Rlaas;
use tonic::transport::Channel;

pub(crate) type EnvoyClient = RateLimitServiceClient<Channel>;

pub(crate) async fn client(server: &Rlaas) -> EnvoyClient {
    RateLimitServiceClient::new(server.channel().await)
}

/// Sends a request and returns the response, both in the notation.
pub(crate) async fn check(client: &mut EnvoyClient, request: &str) -> String {
    let answer = client.should_rate_limit(notation::request(request)).await;
    notation::answer(&answer.map(tonic::Response::into_inner))
}
