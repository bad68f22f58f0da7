//! A tonic service that is limited by peer and method. It serves the health service, which many
//! clients can call.
//!
//! ```sh
//! cargo run -p rlaas-limiter --features tower --example tonic
//! grpcurl -plaintext 127.0.0.1:3001 grpc.health.v1.Health/Check
//! ```

use std::error::Error;
use std::time::Duration;

use rlaas_limiter::tower::{KeyExtractor, RateLimitLayer, local};
use rlaas_limiter::{Limiter, Rule};
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};

/// Serves for ever. The limits are in memory.
pub(crate) async fn serve(listener: TcpListener) -> Result<(), Box<dyn Error + Send + Sync>> {
    let rule = Rule::gcra("health").resource("/grpc.health.v1.Health/Check").limit(3);
    let limiter = Limiter::builder().rule(rule.per(Duration::from_secs(60))).build()?;
    let address = |extensions: &http::Extensions| {
        Some(extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip())
    };
    let layer = RateLimitLayer::builder(local(limiter), KeyExtractor::peer(address).path());
    let (_reporter, service) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(layer.grpc().build()?).add_service(service);
    Ok(server.serve_with_incoming(TcpIncoming::from(listener)).await?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let listener = TcpListener::bind("127.0.0.1:3001").await?;
    println!("listening on {}", listener.local_addr()?);
    serve(listener).await
}
