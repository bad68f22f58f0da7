//! Builds the store and the server from the configuration, and runs until a signal.

use std::fmt::Display;
use std::fs;
use std::io::{self, IsTerminal};
use std::os::unix::fs::PermissionsExt;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use futures_util::future::OptionFuture;
use rlaas_auth::Auth;
use rlaas_telemetry::log::{self, LogFormat, Logs};
use rlaas_telemetry::metrics::Metrics;
use rlaas_telemetry::metrics_push::MetricsPush;
use rlaas_telemetry::otlp::OtlpSettings;
use rlaas_telemetry::top_keys::TopKeys;
use rlaas_telemetry::traces::Traces;
use rlaas_telemetry::{InstanceId, TelemetrySettings};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::spawn_blocking;
use tracing::field::display;
use tracing::{error, info, warn};

use super::administration::{Administration, AdministrationSettings};
use super::certificates::CertificateReloader;
use super::reload::{ConfigReloader, warn_about_rules};
use super::xds::{MAX_REASON, XdsClient, XdsRules, cut, kept_rules};
use crate::api::ApiSettings;
use crate::api::envoy::EnvoySettings;
use crate::clock::Clock;
use crate::config::{Config, Problems, Sources, StoreSettings, Watch};
use crate::server::{ListenAddress, Server, ServerSettings, Tls};
use crate::store::{MemoryStore, RedisStore, Store};
use rlaas_cli::{EXIT_NO, Signals, loopback};
use rlaas_limiter::{DenyCache, Limiter};

const EXIT_INTERRUPTED: u8 = 130;

/// Runs the service by a configuration, and returns the exit code. `ignored` are arguments that were left out.
///
/// # Errors
///
/// [`Problems`] of the configuration.
pub(crate) fn serve(sources: Sources, ignored: &[String]) -> Result<ExitCode, Problems> {
    // Installed first: without a handler an early SIGHUP would terminate the process.
    let (runtime, hangups) = match runtime_and_hangups() {
        Ok(both) => both,
        Err(error) => {
            eprintln!("rlaas: can't install the SIGHUP handler: {error}");
            return Ok(ExitCode::from(EXIT_NO));
        }
    };
    // The snapshot is taken before the files are read, so no change in between is missed.
    let mut watch = Watch::new(sources.files.clone());
    let (config, named) = Config::load_with_files(&sources);
    let config = config?;
    watch.follow(named);
    let logs = log::start(&config.telemetry.log);
    if !ignored.is_empty() {
        warn!(arguments = ignored.join(" "), "arguments of envoyproxy/ratelimit are ignored");
    }
    let inputs = Inputs { sources: Arc::new(sources), watch, hangups, logs };
    Ok(until_signal(runtime, config, inputs).unwrap_or_else(|error| {
        error!(error = format!("{error:#}"), "can't serve");
        ExitCode::from(EXIT_NO)
    }))
}

fn runtime_and_hangups() -> io::Result<(Runtime, Signal)> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let hangups = {
        let _entered = runtime.enter();
        signal(SignalKind::hangup())?
    };
    Ok((runtime, hangups))
}

/// What follows the configuration from before the server is built.
struct Inputs {
    sources: Arc<Sources>,
    watch: Watch,
    hangups: Signal,
    logs: Logs,
}

fn until_signal(runtime: Runtime, config: Config, inputs: Inputs) -> anyhow::Result<ExitCode> {
    disable_huge_pages();
    let code = runtime.block_on(async {
        let signals = Signals::listen()?;
        let (config, sources, has_rules) = with_kept_rules(config, inputs.sources);
        warn_about(&config);
        let metrics = Arc::new(metrics(&config.telemetry)?);
        metrics.config_revision.set(1);
        let store = store(&config, &metrics)?;
        let xds = XdsRules::new(&config, has_rules, &metrics);
        let deny_cache = config.deny_cache.filter(|_| matches!(store, Store::Redis(_)));
        let instance = InstanceId::default();
        let otlp = Otlp::start(config.telemetry.otlp.as_ref(), &instance, &metrics)?;
        let administration = AdministrationSettings::new(&config, instance);
        let limiter = match deny_cache {
            Some(settings) => {
                let cache = DenyCache::new(settings, Clock::default());
                Limiter::with_deny_cache(config.rules, store, cache, metrics.clone())
            }
            None => Limiter::new(config.rules, store, metrics.clone()),
        };
        limiter.set_idempotency_ttl(config.idempotency.ttl);
        let has_tokens = !config.auth.tokens.is_empty() || config.auth.oidc.is_some();
        let tls = config.server.tls.clone();
        let server = Server::bind(config.server, limiter.clone(), Arc::clone(&metrics)).await?;
        let fleet = server.fleet().clone();
        let administration = Administration::open(administration, &limiter, fleet, &metrics).await?;
        let api_keys = administration.api_keys(config.api_keys);
        let api_keys = api_keys.with_named_projects(config.envoy.names_projects());
        let auth = config.auth.is_enabled().then(|| {
            let auth = Auth::new(config.auth, Arc::clone(&metrics));
            Arc::new(auth.with_api_keys(api_keys.clone()))
        });
        let certificates =
            tls.clone().map(|tls| CertificateReloader::new(tls, Arc::clone(&metrics)));
        let certificates = certificates.transpose()?;
        log_projects(&config.envoy);
        let api_settings = ApiSettings {
            auth: auth.clone(),
            api_keys,
            envoy: config.envoy,
            projects: administration.projects(),
            traces: otlp.traces.clone(),
            rules_known: xds.known,
            ..ApiSettings::default()
        };
        let server = server.with_api(api_settings).with_administration(administration.served());
        let reload = ConfigReloader {
            sources: Arc::new(Sources { api_keys: Some(config.api_keys.mode), ..(*sources).clone() }),
            started_with: config.effective,
            administration,
            limiter: limiter.clone(),
            metrics,
            logs: inputs.logs,
            auth: auth.clone(),
            privacy: config.privacy,
            hangups: inputs.hangups,
            notices: config.notices,
            watch: inputs.watch,
            updates: xds.updates,
            has_rules: xds.has_rules,
            reloads: xds.reloads,
        };
        log_serving(&server, &limiter);
        if config.telemetry.log.format == LogFormat::Text && io::stdout().is_terminal() {
            let (address, tls) = (&server.grpc_addresses()[0], tls.as_ref());
            println!("try: rlaas check alice {}", check_options(address, tls, has_tokens));
        }
        let certificates = certificates.map(CertificateReloader::run);
        let fetch_keys = auth.as_deref().map(Auth::run);
        let mut metrics_push = otlp.metrics;
        let code = tokio::select! {
            () = reload.run() => Ok(ExitCode::from(EXIT_NO)),
            Some(()) = OptionFuture::from(certificates) => Ok(ExitCode::from(EXIT_NO)),
            Some(()) = OptionFuture::from(fetch_keys) => Ok(ExitCode::from(EXIT_NO)),
            Some(()) = OptionFuture::from(xds.client.map(XdsClient::run)) => Ok(ExitCode::from(EXIT_NO)),
            Some(()) = OptionFuture::from(metrics_push.as_mut().map(MetricsPush::run)) => {
                Ok(ExitCode::from(EXIT_NO))
            }
            drained = server.serve(signals.nth(1)) => drained.map(|()| ExitCode::SUCCESS),
            () = signals.nth(2) => Ok(ExitCode::from(EXIT_INTERRUPTED)),
        };
        // A second signal ends the wait for what is still to be written.
        tokio::select! {
            () = finish(otlp.traces, metrics_push, limiter.store()) => {}
            () = signals.nth(2) => {}
        }
        code.context("no worker threads or signals")
    });
    // Tasks that still run after the drain are not waited for.
    runtime.shutdown_background();
    code
}

/// Adds the rules that a management server has sent before, if they are valid with the configuration. Returns
/// whether there were some.
fn with_kept_rules(config: Config, sources: Arc<Sources>) -> (Config, Arc<Sources>, bool) {
    let kept = config.state_dir.as_deref().zip(config.xds.as_ref());
    let kept = kept.and_then(|(folder, xds)| kept_rules(folder, xds.max_descriptors));
    let Some(resources) = kept else { return (config, sources, false) };
    let with_them = Sources { resources, ..(*sources).clone() };
    match Config::load(&with_them) {
        Ok(config) => (config, Arc::new(with_them), true),
        Err(problems) => {
            let problems = cut(&problems.to_string(), MAX_REASON);
            error!(problems, "the last rules of the management server are not used");
            (config, sources, false)
        }
    }
}

/// What is exported to a collector.
struct Otlp {
    traces: Option<Traces>,
    metrics: Option<MetricsPush>,
}

impl Otlp {
    fn start(
        settings: Option<&OtlpSettings>,
        instance: &InstanceId,
        counted: &Arc<Metrics>,
    ) -> anyhow::Result<Self> {
        let Some(OtlpSettings { collector, traces, metrics }) = settings else {
            return Ok(Self { traces: None, metrics: None });
        };
        let traces = traces.map(|ratio| Traces::start(collector, ratio, instance.as_str()));
        let metrics = metrics.map(|interval| {
            MetricsPush::new(collector, interval, instance.as_str(), Arc::clone(counted))
        });
        let metrics = metrics.transpose().context("telemetry.otlp.endpoint")?;
        Ok(Self { traces: traces.transpose()?, metrics })
    }
}

/// Logs what has less effect than written, and likely mistakes.
fn warn_about(config: &Config) {
    for warning in &config.notices {
        warn!(%warning, "configuration");
    }
    if let Some(reason) = config.api_keys.default {
        info!(mode = config.api_keys.mode.name(), reason, "auth.api-keys is not set");
    }
    warn_about_rules(config);
    warn_about_open_addresses(config);
    if let Some(path) = &config.state_dir
        && fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o002 != 0)
    {
        warn!(path = %path.display(), "every user of this machine can write to state-dir");
    }
}

/// Disables transparent huge pages, as Redis does. The first access to a huge page clears two
/// megabytes, which takes as long as a thousand decisions. In addition, many connections with little
/// data each waste most of such a page.
fn disable_huge_pages() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "can't disable transparent huge pages");
    }
}

/// Sends the last spans and metrics, and writes what the journal still lacks.
async fn finish(traces: Option<Traces>, metrics_push: Option<MetricsPush>, store: &Store) {
    if let Some(traces) = traces {
        // The exporter's connection runs on this runtime, so it must not block.
        let _finished = spawn_blocking(move || traces.shutdown()).await;
    }
    if let Some(push) = metrics_push {
        push.finish().await;
    }
    if let Store::Memory(store) = store.clone() {
        let _closed = spawn_blocking(move || store.close_journal()).await;
    }
}

fn metrics(settings: &TelemetrySettings) -> anyhow::Result<Metrics> {
    let mut metrics = Metrics::new().with_max_projects(settings.max_projects);
    if settings.has_envoy_names {
        metrics = metrics.with_envoy_names();
    }
    if settings.has_top_keys {
        metrics = metrics.with_top_keys(TopKeys::start().context("telemetry.top-keys")?);
    }
    Ok(metrics)
}

/// Returns an error whose text has that of its cause.
fn in_one_text(error: impl Display) -> anyhow::Error {
    anyhow!("{error}")
}

fn store(config: &Config, metrics: &Arc<Metrics>) -> anyhow::Result<Store> {
    Ok(match &config.store {
        StoreSettings::Memory { memory, journal, snapshot } => {
            let (clock, observer) = (Clock::default(), metrics.clone());
            let mut store = match journal {
                Some(journal) => {
                    info!(path = %journal.path.display(), "memory store with a journal");
                    MemoryStore::open(*memory, journal, clock, observer).map_err(in_one_text)?
                }
                None => MemoryStore::new(*memory, clock, observer),
            };
            if let Some(snapshot) = snapshot {
                info!(path = %snapshot.path.display(), "memory store with snapshots");
                store = store.with_snapshots(snapshot, metrics.clone()).map_err(in_one_text)?;
            }
            Store::Memory(store.with_max_request_ids(config.idempotency.max_keys))
        }
        StoreSettings::Redis(settings) => {
            let (mode, servers) = (settings.servers.mode(), &settings.servers);
            info!(mode, %servers, "redis store");
            metrics.declare_store_calls();
            let store = RedisStore::new(settings, metrics.clone()).context("store.redis")?;
            Store::Redis(Arc::new(store))
        }
    })
}

fn log_serving(server: &Server, limiter: &Limiter) {
    let (grpc, http) = (server.grpc_addresses(), server.http_addresses());
    let console = server.console_addresses();
    let console = (!console.is_empty()).then(|| display(listed(console)));
    let metrics = server.metrics_addresses();
    let metrics = (!metrics.is_empty()).then(|| display(listed(metrics)));
    let snapshot = limiter.snapshot();
    let rule = snapshot.rules.default_rule();
    info!(
        grpc = %listed(grpc), http = %listed(http), console, metrics,
        version = env!("CARGO_PKG_VERSION"),
        store = limiter.store().name(),
        algorithm = rule.algorithm.name(),
        rules = snapshot.rules.iter().count(),
        descriptors = snapshot.rules.descriptors().iter().count(),
        "serving"
    );
}

fn log_projects(envoy: &EnvoySettings) {
    for (domain, project) in &envoy.projects {
        info!(%domain, %project, "the rules of a project decide the requests of an Envoy domain");
    }
}

fn listed(addresses: &[ListenAddress]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Returns the options with which `check` reaches the server. Capitals are placeholders.
fn check_options(address: &ListenAddress, tls: Option<&Tls>, has_tokens: bool) -> String {
    let mut options = match (address, tls) {
        (ListenAddress::Tcp(address), Some(tls)) => {
            let address = loopback(address);
            let (host, port) = address.rsplit_once(':').unwrap_or((&address, ""));
            let name = tls.server_name(host).unwrap_or_else(|| host.to_owned());
            let client_certificate =
                if tls.requires_client_certificates() { " --cert FILE --key FILE" } else { "" };
            format!("--addr https://{name}:{port} --ca FILE{client_certificate}")
        }
        (ListenAddress::Tcp(address), None) => format!("--addr http://{}", loopback(address)),
        (ListenAddress::Unix(_), _) => format!("--addr {address}"),
    };
    if has_tokens {
        options += " --token TOKEN";
    }
    options
}

/// Warns about addresses at which every host in the network gets decisions and the configuration.
fn warn_about_open_addresses(config: &Config) {
    let requires_certificates =
        config.server.tls.as_ref().is_some_and(Tls::requires_client_certificates);
    let ServerSettings { tls, tls_for_http, http, .. } = &config.server;
    if config.auth.is_enabled()
        && tls.is_some()
        && !requires_certificates
        && !tls_for_http
        && http.iter().any(|address| !address.is_local())
    {
        warn!(key = "server.tls.http", "credentials of callers over HTTP are not encrypted");
    }
    if config.auth.is_enabled() || requires_certificates {
        return;
    }
    for (setting, addresses) in
        [("server.listen", &config.server.listen), ("server.http", &config.server.http)]
    {
        for address in addresses.iter().filter(|address| !address.is_local()) {
            warn!(
                key = setting, %address, administration = "local callers only",
                "reachable from other machines without auth"
            );
        }
    }
}
