//! The server: bind → serve → drain.
//!
//! Accept loops hand connections to worker threads, which serve all protocols, each on a runtime
//! of its own. Long tasks, such as rendering metrics and pages, run on one background thread, so that
//! no call and no probe waits for them. The server knows services, health and shutdown; it does not know
//! rules.

mod accept;
mod address;
mod calls;
mod connection;
mod connection_limit;
mod goaway;
mod health;
mod lifecycle;
mod listener;
mod middleware;
mod protocol;
mod read_budget;
mod settings;
mod tls;
mod workers;

pub use address::{AddressError, ListenAddress};
pub use settings::{ConnectionSettings, ServerSettings, StoreHealth};
pub use tls::{Tls, TlsError, TlsFiles, Validity};

use std::io;
use std::sync::Arc;

use axum::Router;
use futures_util::future::select_all;
use rlaas_auth::{Auth, ClientCertificate};
use rlaas_telemetry::metrics::Metrics;
use thiserror::Error;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::HealthService;
use tracing::{error, info, warn};

use self::accept::{AcceptLoops, Acceptor};
use self::connection::ConnectionHandler;
use self::connection_limit::{ConnectionBudget, ConnectionLimiter, ListenerCounts};
use self::health::{HealthReports, ReadinessPolicy};
use self::listener::Listener;
use self::middleware::{DirectServices, Middleware};
use self::protocol::Protocol;
use self::workers::{BackgroundThread, WorkerQueues};
use crate::api::http::{HttpState, Scrapes};
use crate::api::{self, ApiSettings, Decisions, ServedAdministration};
use rlaas_limiter::Limiter;
use rlaas_limiter::fleet::Fleet;

/// A server that is bound to its addresses. [`Server::serve`] starts it.
#[derive(Debug)]
pub struct Server {
    settings: ServerSettings,
    limiter: Limiter,
    metrics: Arc<Metrics>,
    fleet: Fleet,
    administration: Option<Arc<dyn ServedAdministration>>,
    api_settings: ApiSettings,
    /// In the order of [`Protocol::ALL`].
    listeners: [Vec<Listener>; 4],
}

/// The error for an address that can't be bound.
#[derive(Debug, Error)]
#[error("can't listen on {address} ({setting})")]
pub struct BindError {
    setting: &'static str,
    address: ListenAddress,
    #[source]
    source: io::Error,
}

impl Server {
    /// Binds the addresses. Connections wait to be accepted until [`Server::serve`].
    ///
    /// # Errors
    ///
    /// [`BindError`] names the address that can't be bound, and its setting.
    pub async fn bind(
        settings: ServerSettings,
        limiter: Limiter,
        metrics: Arc<Metrics>,
    ) -> Result<Self, BindError> {
        // `bind_all` replaces the addresses by the bound ones, which differ for port 0.
        let mut settings = settings;
        let listeners = [
            bind_all("server.listen", &mut settings.listen).await?,
            bind_all("server.http", &mut settings.http).await?,
            bind_all("server.console", &mut settings.console).await?,
            bind_all("server.metrics", &mut settings.metrics).await?,
        ];
        let api_settings = ApiSettings { headers: settings.grpc_headers, ..ApiSettings::default() };
        let fleet = Fleet::new(limiter.store());
        let administration = None;
        Ok(Self { settings, limiter, metrics, fleet, administration, api_settings, listeners })
    }

    /// Returns the fleet of the store. Another one of the memory store would not share its state.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Adds the administration.
    #[must_use]
    pub fn with_administration(
        self,
        administration: Option<Arc<dyn ServedAdministration>>,
    ) -> Self {
        Self { administration, ..self }
    }

    /// Sets the API settings, except for the headers, which are those of the server's settings.
    /// Health, reflection, metrics and probes need no authorisation whatever `auth` says.
    #[must_use]
    pub fn with_api(self, api_settings: ApiSettings) -> Self {
        Self {
            api_settings: ApiSettings { headers: self.settings.grpc_headers, ..api_settings },
            ..self
        }
    }

    /// Returns the bound addresses of gRPC.
    pub fn grpc_addresses(&self) -> &[ListenAddress] {
        &self.settings.listen
    }

    /// Returns the bound addresses of HTTP.
    pub fn http_addresses(&self) -> &[ListenAddress] {
        &self.settings.http
    }

    /// Returns the bound addresses of the console.
    pub fn console_addresses(&self) -> &[ListenAddress] {
        &self.settings.console
    }

    /// Returns the bound addresses of metrics.
    pub fn metrics_addresses(&self) -> &[ListenAddress] {
        &self.settings.metrics
    }

    /// Serves until `stop` completes, then drains: health reports `NOT_SERVING`, no connection is
    /// accepted after `server.drain.delay`, and calls in flight finish within
    /// `server.drain.timeout`.
    ///
    /// # Errors
    ///
    /// An error of the system if a worker thread can't be started.
    pub async fn serve(mut self, stop: impl Future<Output = ()>) -> io::Result<()> {
        let (health, health_service) = HealthReports::new().await;
        let background = BackgroundThread::new()?;
        let drains = Protocol::ALL.map(|_| CancellationToken::new());
        let administration = self.administration.clone();
        let workers =
            WorkerQueues::start(self.settings.workers, &self.limiter, &self.metrics, |limiter| {
                let decisions = Decisions::new(limiter, &self.metrics, &self.api_settings);
                let grpc = || self.grpc_services(decisions.clone(), limiter, &health_service);
                Protocol::ALL.map(|protocol| {
                    let http = || self.http_state(limiter, &background);
                    let (direct, services) = match protocol {
                        Protocol::Grpc => {
                            (DirectServices::Grpc(Box::new(decisions.clone())), grpc())
                        }
                        Protocol::Http => self.http_services(http(), &health),
                        Protocol::Console => {
                            let pages = self.console_pages(limiter, grpc, &background);
                            (DirectServices::None, pages)
                        }
                        Protocol::Metrics => {
                            (DirectServices::None, api::http::metrics_router(http()))
                        }
                    };
                    self.handler(protocol, direct, services, &drains[protocol as usize])
                })
            })?;
        let budget = self.connection_budget();
        let mut background_tasks = background_tasks(&self.limiter, self.fleet.clone());
        if let Some(administration) = &administration {
            administration.start(&mut background_tasks);
            // Calls wait: the store may not know the projects of `state-dir`.
            administration.first_look().await;
        }
        let mut listeners = std::mem::take(&mut self.listeners);
        let mut loops = Protocol::ALL.map(|protocol| {
            let (at, connection) = (protocol as usize, self.settings.connection);
            let (max, max_per_address) =
                (budget.connections(protocol), connection.connections_per_address);
            let acceptor = Acceptor {
                protocol,
                workers: workers.clone(),
                limiter: ConnectionLimiter::new(max, max_per_address),
                first_byte_timeout: connection.request_time,
                max_pending: usize::try_from(budget.pending).unwrap_or(usize::MAX),
                metrics: Arc::clone(&self.metrics),
                drain: drains[at].clone(),
                connections: TaskTracker::new(),
            };
            AcceptLoops::start(std::mem::take(&mut listeners[at]), acceptor)
        });
        let policy = ReadinessPolicy::new(self.settings.store_health, &self.api_settings);
        let mut store_watcher = health.watch_store(&self.limiter, policy).await;

        tokio::select! {
            () = stop => {}
            // None of these ends by itself, and the server does not work without one of them.
            Some(ended) = background_tasks.join_next() => error!(?ended, "background task ended"),
            (ended, at, _) = select_all(loops.iter_mut().map(|all| Box::pin(all.ended()))) => {
                error!(?ended, api = Protocol::ALL[at].label(), "accept loop ended");
            }
        }
        info!("draining");
        store_watcher.shutdown().await;
        health.drain().await;
        drain_delay(&self.settings).await;
        health.end_watches().await;
        self.metrics.decisions.drain();
        if let Some(administration) = &administration {
            administration.drain();
        }
        let drained = async {
            let [grpc, http, console, metrics] = loops;
            tokio::join!(grpc.drain(), console.drain());
            // Last, so that probes are answered as long as calls are.
            tokio::join!(http.drain(), metrics.drain());
            if let Some(administration) = &administration {
                // Callers may have left before their changes ended.
                administration.finish_changes().await;
            }
        };
        match timeout(self.settings.drain_timeout, drained).await {
            Ok(()) => info!("drained"),
            Err(_elapsed) => warn!(
                timeout_seconds = self.settings.drain_timeout.as_secs_f64(),
                "drain timed out (server.drain.timeout)"
            ),
        }
        if let Some(administration) = &administration {
            administration.stop().await;
        }
        Ok(())
    }

    /// Returns the numbers of connections that are allowed. Visitors of the console and scrapers
    /// share theirs.
    fn connection_budget(&self) -> ConnectionBudget {
        let [grpc, http, console, metrics] = self.listeners.each_ref().map(Vec::len);
        let listeners = ListenerCounts { api: grpc + http, console: console + metrics };
        let wanted = self.settings.connection.connections;
        let workers = self.settings.workers.get();
        let mut budget = ConnectionBudget::reserve(wanted, listeners, workers);
        if console > 0 && metrics > 0 {
            budget.console = budget.console.div_ceil(2);
        }
        budget
    }

    fn grpc_services(
        &self,
        decisions: Decisions,
        limiter: &Limiter,
        health: &HealthServer<HealthService>,
    ) -> Router {
        let services = api::services(decisions, self.administration.as_deref(), limiter);
        services.add_service(health.clone()).prepare().into_axum_router()
    }

    fn http_services(&self, state: HttpState, health: &HealthReports) -> (DirectServices, Router) {
        let state = state
            .with_auth(self.auth())
            .with_settings(&self.api_settings)
            .with_traces(self.api_settings.traces.as_ref())
            .with_scrapes(self.scrapes());
        let direct = DirectServices::Http(Arc::new(state.clone()));
        (direct, api::http::router(state, self.administration.as_deref(), health.ready()))
    }

    /// Returns the pages of the console, which call `services`.
    fn console_pages(
        &self,
        limiter: &Limiter,
        services: impl FnOnce() -> Router,
        background: &BackgroundThread,
    ) -> Router {
        let Some(administration) = &self.administration else { return Router::new() };
        administration.pages(limiter, services(), self.auth(), background.handle())
    }

    fn http_state(&self, limiter: &Limiter, background: &BackgroundThread) -> HttpState {
        let (metrics, headers) = (Arc::clone(&self.metrics), self.settings.http_headers);
        HttpState::new(limiter.clone(), metrics, headers, background.handle())
    }

    /// Returns what `/metrics` of HTTP shows.
    fn scrapes(&self) -> Scrapes {
        if !self.settings.metrics.is_empty() {
            Scrapes::Elsewhere
        } else if self.settings.http.iter().all(ListenAddress::is_local) {
            Scrapes::Everything
        } else {
            Scrapes::ProjectsByRole
        }
    }

    /// Returns the handler for the connections of one protocol on one worker.
    fn handler(
        &self,
        protocol: Protocol,
        direct: DirectServices,
        services: Router,
        drain: &CancellationToken,
    ) -> Arc<ConnectionHandler> {
        let middleware = Arc::new(Middleware {
            protocol,
            direct,
            services,
            auth: self.auth(),
            cors: match protocol {
                Protocol::Grpc | Protocol::Console | Protocol::Metrics => None,
                Protocol::Http => self.settings.http_cors.clone(),
            },
            traces: self.api_settings.traces.clone(),
            request_timeout: self.settings.connection.request_time,
            metrics: Arc::clone(&self.metrics),
        });
        let is_encrypted = match protocol {
            Protocol::Grpc | Protocol::Console => true,
            Protocol::Http | Protocol::Metrics => self.settings.tls_for_http,
        };
        let tls = self.settings.tls.clone().filter(|_| is_encrypted);
        let requires = |tls: &Tls| !is_encrypted && tls.requires_client_certificates();
        let requires_certificate = self.settings.tls.as_ref().is_some_and(requires);
        let without_tls = requires_certificate.then_some(ClientCertificate::Missing);
        let (settings, drain) = (self.settings.connection, drain.clone());
        Arc::new(ConnectionHandler { middleware, settings, tls, without_tls, drain })
    }

    /// Returns the authorisation of requests. Without one in the API settings local callers alone
    /// administer. The HTTP listener accepts clients without a certificate (for probes), so if
    /// clients must present one, it is checked for each request.
    fn auth(&self) -> Arc<Auth> {
        let unlisted = || {
            let hosts = self.settings.http_hosts.clone();
            let auth = Auth::unlisted(hosts, Arc::clone(&self.metrics));
            Arc::new(auth.with_api_keys(self.api_settings.api_keys.clone()))
        };
        self.api_settings.auth.clone().unwrap_or_else(unlisted)
    }
}

/// Starts the work that goes on for ever beside the listeners. Dropping the set ends it.
fn background_tasks(limiter: &Limiter, fleet: Fleet) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let running = limiter.clone();
    tasks.spawn(async move { running.run().await });
    let limiter = limiter.clone();
    tasks.spawn(async move { limiter.follow_forgotten(&fleet).await });
    tasks
}

/// Waits for load balancers to notice that the server is not ready.
#[expect(
    clippy::disallowed_methods,
    reason = "server.drain.delay is a wait for clients that report nothing"
)]
async fn drain_delay(settings: &ServerSettings) {
    tokio::time::sleep(settings.drain_delay).await;
}

/// Binds the addresses, and replaces each by the bound one.
async fn bind_all(
    setting: &'static str,
    addresses: &mut [ListenAddress],
) -> Result<Vec<Listener>, BindError> {
    let mut listeners = Vec::new();
    for address in addresses {
        let bind_error = |source| BindError { setting, address: address.clone(), source };
        let listener = Listener::bind(address).await.map_err(bind_error)?;
        let bound = listener.address().map_err(bind_error)?;
        *address = bound;
        listeners.push(listener);
    }
    Ok(listeners)
}
