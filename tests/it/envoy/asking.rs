//! Asks a running program, in the notation of the table.

use super::notation;
use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use rlaas_testkit::process::Rlaas;
use tonic::transport::Channel;

pub(crate) type Client = RateLimitServiceClient<Channel>;

pub(crate) async fn client(server: &Rlaas) -> Client {
    RateLimitServiceClient::new(server.channel().await)
}

/// Asks once.
pub(crate) async fn ask(client: &mut Client, request: &str) -> String {
    let answer = client.should_rate_limit(notation::request(request)).await;
    notation::answer(&answer.map(tonic::Response::into_inner))
}
