//! The server: bind → serve → drain.
//!
//! Accept loops hand connections in turn to worker threads, each with a runtime of its own; HTTP
//! has threads of its own, so that metrics and probes hold up no call of gRPC. The server knows
//! services, health and signals, not what rules mean.

mod accept;
mod address;
mod calls;
mod connection;
mod connection_limit;
mod front;
mod goaway;
mod health;
mod inline_executor;
mod lifecycle;
mod listener;
mod read_budget;
mod rlimit;
mod services;
mod settings;
mod socket;
mod tls;
mod workers;

pub use address::{AddressError, ListenAddress};
pub use inline_executor::CallsWait;
pub use settings::{ConnectionSettings, ServerSettings, StoreHealth};
pub use tls::{Tls, TlsError, TlsFiles, Validity};

use std::io;
use std::sync::Arc;

use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{error, info, warn};

use self::connection::Host;
use self::front::{Front, Size};
use self::health::HealthReports;
use self::listener::Listener;
use self::rlimit::Room;
use crate::api::auth::Auth;
use crate::api::envoy::EnvoySettings;
use crate::api::http::Checks;
use crate::api::{self, Answering};
use crate::limiter::Limiter;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::Traces;

/// A server that has its addresses and serves nobody yet.
#[derive(Debug)]
pub struct Server {
    settings: ServerSettings,
    limiter: Limiter,
    metrics: Arc<Metrics>,
    answering: Answering,
    calls: CallsWait,
    grpc: Vec<Listener>,
    http: Vec<Listener>,
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
        limiter: Limiter,
        metrics: Arc<Metrics>,
    ) -> Result<Self, BindError> {
        // The settings tell from here on where clients find the server.
        let mut settings = settings;
        let grpc = listen("server.listen", &mut settings.listen).await?;
        let http = listen("server.http", &mut settings.http).await?;
        let answering = Answering { headers: settings.grpc_headers, ..Answering::default() };
        Ok(Self { settings, limiter, metrics, answering, calls: CallsWait::Usually, grpc, http })
    }

    /// The same for those alone whom `auth` admits; health, reflection, metrics and probes stay
    /// open.
    #[must_use]
    pub fn with_auth(self, auth: Option<Arc<Auth>>) -> Self {
        Self { answering: Answering { auth, ..self.answering }, ..self }
    }

    /// Answers Envoy as these settings say.
    #[must_use]
    pub fn with_envoy(self, envoy: EnvoySettings) -> Self {
        Self { answering: Answering { envoy, ..self.answering }, ..self }
    }

    /// Answers calls of this kind; without it most are taken to wait.
    #[must_use]
    pub fn where_calls(self, calls: CallsWait) -> Self {
        Self { calls, ..self }
    }

    /// Tells of each call.
    #[must_use]
    pub fn with_traces(self, traces: Option<Traces>) -> Self {
        Self { answering: Answering { traces, ..self.answering }, ..self }
    }

    /// Where gRPC is answered.
    pub fn grpc_addresses(&self) -> &[ListenAddress] {
        &self.settings.listen
    }

    /// Where HTTP is answered.
    pub fn http_addresses(&self) -> &[ListenAddress] {
        &self.settings.http
    }

    /// Serves until `stop` completes, then drains: health says so first, nothing new is accepted,
    /// what is in flight finishes within `server.drain.timeout`.
    ///
    /// # Errors
    ///
    /// If a worker thread can't be started.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> io::Result<()> {
        let (health, health_service) = HealthReports::new().await;
        let host = Host::new(self.settings.connection, &self.metrics);
        let host = host.encrypted(self.settings.tls.clone()).where_calls(self.calls);
        let grpc = |limiter: &Limiter| {
            let services = api::services(limiter, &self.metrics, &self.answering);
            host.grpc(services.routes.add_service(health_service.clone()), Some(services.direct))
        };
        let auth = self.auth_over_http();
        let http = |limiter: &Limiter| {
            let metrics = Arc::clone(&self.metrics);
            let checks = Checks::new(limiter.clone(), metrics, self.settings.http_headers);
            let checks = checks.with_envoy(self.answering.envoy);
            let checks = checks.with_traces(self.answering.traces.clone());
            host.http(api::http::router(checks, auth.as_ref(), health.ready()))
        };
        let listeners = self.grpc.len() + self.http.len();
        let (wanted, workers) = (self.settings.connection.connections, self.settings.workers);
        let Room { grpc: connections, http: http_connections, silent } =
            Room::make(wanted, listeners, 2 * workers.get());
        let size = Size { workers, connections, silent };
        let mut grpc = Front::open(self.grpc, &self.limiter, grpc, size)?;
        let size = Size { connections: http_connections, ..size };
        let http = Front::open(self.http, &self.limiter, http, size)?;

        // Dropped at the end of this function, and aborted by that.
        let mut background = JoinSet::new();
        let limiter = self.limiter.clone();
        background.spawn(async move { limiter.run().await });
        let mut following = health.follow(&self.limiter, self.settings.store_health).await;

        tokio::select! {
            () = stop => {}
            // None of them ends by itself: without it the server would be half dead.
            Some(ended) = background.join_next() => error!(?ended, "a background task ended"),
            Some(ended) = grpc.ended() => error!(?ended, "an accept loop ended"),
        }
        info!("draining");
        following.shutdown().await;
        health.drain().await;
        pause(&self.settings).await;
        health.end_watches().await;
        let finished = async {
            let _threads = grpc.drain().await;
            // Probes are answered as long as anything else is.
            http.drain().await;
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

    /// Whom decisions over HTTP are for. There a handshake lets those pass who owe a certificate,
    /// for the sake of probes; so they are refused here.
    fn auth_over_http(&self) -> Option<Arc<Auth>> {
        let owed = self.settings.tls.as_ref().is_some_and(Tls::wants_certificates);
        let of_certified = || Arc::new(Auth::of_certified(Arc::clone(&self.metrics)));
        self.answering.auth.clone().or_else(|| owed.then(of_certified))
    }
}

/// Gives those who route to this server the time to notice.
#[expect(clippy::disallowed_methods, reason = "server.drain.delay is a pause by definition")]
async fn pause(settings: &ServerSettings) {
    tokio::time::sleep(settings.drain_delay).await;
}

/// Takes the addresses; each is then that which clients find.
async fn listen(
    setting: &'static str,
    addresses: &mut [ListenAddress],
) -> Result<Vec<Listener>, BindError> {
    let mut listeners = Vec::new();
    for address in addresses {
        let failed = |source| BindError { setting, address: address.clone(), source };
        let listener = Listener::bind(address).await.map_err(failed)?;
        let bound = listener.address().map_err(failed)?;
        *address = bound;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// A flag that is raised once; clones wait for it.
#[derive(Clone, Debug)]
struct Flag(watch::Receiver<bool>);

impl Flag {
    fn is_raised(&self) -> bool {
        *self.0.borrow()
    }

    /// Completes when the flag is raised, or can't be raised any more.
    async fn raised(mut self) {
        let _gone = self.0.wait_for(|raised| *raised).await;
    }
}
