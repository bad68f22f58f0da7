//! The server: bind → serve → drain.
//!
//! One accept loop hands connections in turn to worker threads, each with a runtime of its own.
//! The server knows services, health and signals, not what rules mean.

mod accept;
mod health;
mod settings;
mod workers;

pub use settings::{AddressError, ListenAddress, ServerSettings, StoreHealth};

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{error, info, warn};

use self::health::HealthReports;
use self::workers::Workers;
use crate::api;
use crate::api::auth::Auth;
use crate::limiter::Limiter;
use crate::telemetry::metrics::Metrics;

/// A server that has its addresses and serves nobody yet.
#[derive(Debug)]
pub struct Server {
    settings: ServerSettings,
    limiter: Arc<Limiter>,
    metrics: Arc<Metrics>,
    auth: Option<Arc<Auth>>,
    grpc: TcpListener,
    http: TcpListener,
    grpc_address: SocketAddr,
    http_address: SocketAddr,
}

/// An address that can't be had.
#[derive(Debug, Error)]
#[error("can't listen on {address} ({setting})")]
pub struct BindError {
    setting: &'static str,
    address: ListenAddress,
    #[source]
    source: io::Error,
}

impl Server {
    /// Takes the addresses. Nothing is answered before [`Server::serve`].
    ///
    /// # Errors
    ///
    /// [`BindError`] names the address that can't be had and its setting.
    pub async fn bind(
        settings: ServerSettings,
        limiter: Arc<Limiter>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, BindError> {
        let (grpc, grpc_address) = listen("server.listen", &settings.listen).await?;
        let (http, http_address) = listen("server.http", &settings.http).await?;
        Ok(Self { settings, limiter, metrics, auth: None, grpc, http, grpc_address, http_address })
    }

    /// The same for those alone whom `auth` admits; health, reflection, metrics and probes stay
    /// open.
    #[must_use]
    pub fn with_auth(self, auth: Option<Arc<Auth>>) -> Self {
        Self { auth, ..self }
    }

    /// Where gRPC is answered.
    pub fn grpc_address(&self) -> SocketAddr {
        self.grpc_address
    }

    /// Where metrics and probes are answered.
    pub fn http_address(&self) -> SocketAddr {
        self.http_address
    }

    /// Serves until `stop` completes, then drains: health says so first, nothing new is accepted,
    /// what is in flight finishes within `server.drain.timeout`.
    ///
    /// # Errors
    ///
    /// If a worker thread can't be started.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> io::Result<()> {
        let (health, health_service) = HealthReports::new().await;
        let routes = api::routes(&self.limiter, &self.metrics, self.auth.as_ref());
        let routes = routes.add_service(health_service);
        let workers = Workers::spawn(&self.settings, &routes)?;

        // Dropped at the end of this function, and aborted by that.
        let mut background = JoinSet::new();
        let limiter = Arc::clone(&self.limiter);
        background.spawn(async move { limiter.tend().await });
        let ready = health.ready();
        background.spawn(serve_http(self.http, api::http::router(&self.metrics, ready)));
        let (closing, close) = watch::channel(false);
        let accepting = tokio::spawn(accept::run(self.grpc, workers.intake(), Flag(close)));
        let mut following = health.follow(&self.limiter, self.settings.store_health).await;

        tokio::select! {
            () = stop => {}
            // None of them ends by itself: without it the server would be half dead.
            Some(ended) = background.join_next() => error!(?ended, "a background task ended"),
        }
        info!("draining");
        following.shutdown().await;
        health.drain().await;
        pause(&self.settings).await;
        closing.send_replace(true);
        health.end_watches().await;
        let finished = async {
            if let Err(error) = accepting.await {
                error!(%error, "accept loop ended");
            }
            workers.finish().await;
        };
        match timeout(self.settings.drain_timeout, finished).await {
            Ok(()) => info!("drained"),
            Err(_elapsed) => warn!(
                timeout_seconds = self.settings.drain_timeout.as_secs_f64(),
                "not drained in time (server.drain.timeout)"
            ),
        }
        Ok(())
    }
}

/// Gives those who route to this server the time to notice.
#[expect(clippy::disallowed_methods, reason = "server.drain.delay is a pause by definition")]
async fn pause(settings: &ServerSettings) {
    tokio::time::sleep(settings.drain_delay).await;
}

async fn serve_http(listener: TcpListener, router: axum::Router) {
    if let Err(error) = axum::serve(listener, router).await {
        warn!(%error, "http listener ended");
    }
}

async fn listen(
    setting: &'static str,
    address: &ListenAddress,
) -> Result<(TcpListener, SocketAddr), BindError> {
    let failed = |source| BindError { setting, address: address.clone(), source };
    let listener = TcpListener::bind(address.as_str()).await.map_err(failed)?;
    let local = listener.local_addr().map_err(failed)?;
    Ok((listener, local))
}

/// A flag that is raised once; clones wait for it.
#[derive(Clone, Debug)]
struct Flag(watch::Receiver<bool>);

impl Flag {
    /// Completes when the flag is raised, or can't be raised any more.
    async fn raised(mut self) {
        let _gone = self.0.wait_for(|raised| *raised).await;
    }
}
