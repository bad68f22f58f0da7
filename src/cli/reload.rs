//! Reload: on change of a file and on SIGHUP, a whole valid configuration or nothing.
//!
//! The rules, the level of the logs and those who may call are put in force at once, states stay;
//! credentials and certificates for Redis count from its next connection on. What needs a restart
//! is named.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::task::spawn_blocking;
use tokio::time::interval;
use tracing::{error, info, warn};

use crate::api::auth::{Auth, AuthSettings};
use crate::config::{Config, Effective, Sources, StoreSettings, Watch, warnings};
use crate::store::Store;
use crate::telemetry::log::Logs;
use crate::telemetry::metrics::Metrics;
use rlaas_limiter::Limiter;

/// Time between two looks at the files.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// What begins with these is put in force without a restart.
const RELOADABLE: &[&str] = &[
    "auth.",
    "rules[",
    "envoy.files",
    "envoy.count-refused",
    "rate-limiter.",
    "store.redis.username",
    "store.redis.password",
    "store.redis.tls.",
    "telemetry.log",
    "unmatched",
];

/// Where the configuration comes from, and what tells that it may have changed.
pub(super) struct ReloadInputs {
    pub(super) sources: Sources,
    pub(super) watch: Watch,
    /// SIGHUP.
    pub(super) hangups: Signal,
}

/// Keeps the rules as the sources say.
pub(super) struct ConfigReloader {
    sources: Arc<Sources>,
    /// What is in force beside the rules: from the start of the process.
    started_with: Vec<Effective>,
    limiter: Limiter,
    metrics: Arc<Metrics>,
    logs: Option<Logs>,
    auth: Option<Arc<Auth>>,
    hangups: Signal,
    watch: Watch,
}

impl ConfigReloader {
    pub(super) fn new(
        origin: ReloadInputs,
        started_with: Vec<Effective>,
        limiter: Limiter,
        metrics: Arc<Metrics>,
    ) -> Self {
        metrics.config_last_reload_successful.set(1);
        let ReloadInputs { sources, watch, hangups } = origin;
        let (sources, logs, auth) = (Arc::new(sources), None, None);
        Self { sources, started_with, limiter, metrics, logs, auth, hangups, watch }
    }

    /// Has the logs follow the configuration as well.
    pub(super) fn with_logs(self, logs: Logs) -> Self {
        Self { logs: Some(logs), ..self }
    }

    /// Has those who may call follow the configuration as well.
    pub(super) fn with_auth(self, auth: Option<Arc<Auth>>) -> Self {
        Self { auth, ..self }
    }

    /// Follows the files and SIGHUP, for ever.
    pub(super) async fn run(mut self) {
        let mut ticks = interval(POLL_INTERVAL);
        loop {
            let wanted = tokio::select! {
                _ = self.hangups.recv() => true,
                _ = ticks.tick() => self.watch.has_settled(),
            };
            if wanted {
                self.reload().await;
            }
        }
    }

    async fn reload(&mut self) {
        // Many rules take a while to read: not on the thread that carries requests.
        let sources = Arc::clone(&self.sources);
        let loaded = spawn_blocking(move || {
            let (config, named) = Config::load_with_files(&sources);
            (config.map_err(|all| all.to_string()), Some(named))
        });
        // A panic while reading is a configuration that was not read.
        let (loaded, named) = loaded.await.unwrap_or_else(|panic| (Err(panic.to_string()), None));
        if let Some(named) = named {
            self.watch.follow(named);
        }
        match loaded {
            Ok(config) => {
                self.warn_about_restart(&config.effective);
                for warning in &config.notices {
                    warn!(%warning, "configuration");
                }
                for warning in warnings(&config.rules) {
                    warn!(%warning, "configuration");
                }
                if let (Store::Redis(store), StoreSettings::Redis(settings)) =
                    (self.limiter.store(), &config.store)
                {
                    // They were valid a moment ago, or they would not have been read.
                    let _valid = store.update_credentials(settings);
                }
                if let Some(logs) = &self.logs {
                    logs.set_filter(&config.telemetry.log.filter);
                }
                self.replace_auth(config.auth);
                let revision = self.limiter.replace_rules(config.rules);
                self.metrics.config_revision.set(revision.cast_signed());
                self.metrics.config_last_reload_successful.set(1);
                info!(revision, "configuration reloaded");
            }
            Err(problems) => {
                self.metrics.config_last_reload_successful.set(0);
                error!(problems, "configuration not reloaded: the old one stays in force");
            }
        }
    }

    /// A list that was emptied lets nobody in, and the first one waits for a restart.
    fn replace_auth(&self, settings: AuthSettings) {
        match &self.auth {
            Some(auth) => {
                if !settings.is_enabled() {
                    warn!(key = "auth", "nobody is listed: all are refused until a restart");
                }
                auth.replace(settings);
            }
            None if settings.is_enabled() => {
                warn!(key = "auth", "changed: takes effect after a restart");
            }
            None => {}
        }
    }

    fn warn_about_restart(&self, now: &[Effective]) {
        let is_reloadable = |of: &Effective| RELOADABLE.iter().any(|key| of.key.starts_with(key));
        let needs_restart = |of: &Effective| !is_reloadable(of);
        for before in self.started_with.iter().filter(|before| needs_restart(before)) {
            let changed = now.iter().any(|now| now.key == before.key && now.value != before.value);
            if changed {
                warn!(key = before.key, "changed: takes effect after a restart");
            }
        }
    }
}
