//! An axum service with two limited routes: one by API key, one by the address of the peer.
//!
//! ```sh
//! cargo run -p rlaas-limiter --features tower --example axum
//! curl -i -H 'x-api-key: alice' http://127.0.0.1:3000/reports/7
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, MatchedPath};
use axum::routing::get;
use rlaas_limiter::tower::{KeyExtractor, LimitHeaders, OnNoAnswer, RateLimitLayer, local};
use rlaas_limiter::{Limiter, Rule};
use tokio::net::TcpListener;

/// Returns the service. Its limits are in memory.
pub(crate) fn app() -> Result<Router, Box<dyn Error>> {
    let minute = Duration::from_secs(60);
    let limiter = Limiter::builder()
        .rule(Rule::gcra("reports").resource("/reports/{id}").limit(3).per(minute))
        .rule(Rule::fixed_window("login").resource("/login").limit(2).per(minute))
        .build()?;
    let matched_path = |parts: &http::request::Parts| {
        Some(parts.extensions.get::<MatchedPath>()?.as_str().to_owned())
    };
    let by_key = RateLimitLayer::builder(
        local(limiter.clone()),
        KeyExtractor::header("x-api-key").resource(matched_path),
    );
    // Behind one proxy, the address that this proxy appends is that of the client.
    let address = |extensions: &http::Extensions| {
        extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip())
    };
    let by_peer = RateLimitLayer::builder(
        local(limiter),
        KeyExtractor::peer(address).trusted_proxies(1, "x-forwarded-for").resource(matched_path),
    );
    let by_peer = by_peer
        .headers(LimitHeaders::Both)
        .on_no_answer(OnNoAnswer::Allow)
        .timeout(Duration::from_millis(50));
    Ok(Router::new()
        .route("/reports/{id}", get(async || "a report\n").route_layer(by_key.build()?))
        .route("/login", get(async || "welcome\n").route_layer(by_peer.build()?)))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on {}", listener.local_addr()?);
    let service = app()?.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
