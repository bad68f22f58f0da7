//! Reloads the configuration when a file changes, and on SIGHUP: the whole configuration if it is
//! valid, else nothing.
//!
//! Rules, log levels and authorization take effect at once; the state of keys is kept. Credentials
//! and certificates for Redis take effect with the next connection. Other changed settings are
//! logged: they need a restart.

use std::sync::Arc;
use std::time::Duration;

use rlaas_auth::{Auth, AuthSettings, FileRules};
use rlaas_limiter::Limiter;
use rlaas_telemetry::log::Logs;
use rlaas_telemetry::metrics::Metrics;
use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::interval;
use tracing::{error, info, warn};

use super::administration::Administration;
use super::xds::{MAX_REASON, RulesUpdate, cut};
use crate::config::{
    Config, Effective, Notice, PrivacySettings, Problem, Problems, Sources, StoreSettings, Watch,
    warnings,
};
use crate::store::Store;

/// Time between two checks of the files.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Prefixes of the settings that take effect without a restart.
const RELOADABLE: &[&str] = &[
    "auth.",
    "rules[",
    "envoy.files",
    "idempotency.ttl",
    "envoy.calendar-month",
    "envoy.count-refused",
    "privacy.",
    "rate-limiter.",
    "store.redis.username",
    "store.redis.password",
    "store.redis.tls.",
    "telemetry.log",
    "unmatched",
];

/// Follows the sources of the configuration.
pub(super) struct ConfigReloader {
    pub(super) sources: Arc<Sources>,
    /// The configuration at the start of the process: settings that need a restart keep these values.
    pub(super) started_with: Vec<Effective>,
    pub(super) administration: Administration,
    pub(super) limiter: Limiter,
    pub(super) metrics: Arc<Metrics>,
    /// Their level follows the configuration.
    pub(super) logs: Logs,
    pub(super) auth: Option<Arc<Auth>>,
    /// The settings by which the keys in force are made.
    pub(super) privacy: PrivacySettings,
    /// SIGHUP signals.
    pub(super) hangups: Signal,
    pub(super) watch: Watch,
    /// The notices of the configuration in force, which are logged once.
    pub(super) notices: Vec<Notice>,
    /// Rules of a management server, and whether there are some.
    pub(super) updates: mpsc::Receiver<RulesUpdate>,
    pub(super) has_rules: watch::Sender<bool>,
    /// Is told of each reload: what was refused before may be valid now.
    pub(super) reloads: watch::Sender<()>,
}

impl ConfigReloader {
    /// Reloads on each change or SIGHUP. Never returns.
    pub(super) async fn run(mut self) {
        self.metrics.config_last_reload_successful.set(1);
        self.metrics.envoy.loads.inc();
        let mut ticks = interval(POLL_INTERVAL);
        loop {
            let is_due = tokio::select! {
                _ = self.hangups.recv() => true,
                _ = ticks.tick() => self.watch.has_settled(),
                // A file that is being written can be valid but incomplete.
                Some(update) = self.updates.recv(), if self.watch.is_still() => {
                    self.take(update).await;
                    false
                }
            };
            if is_due {
                let _logged = self.reload(&Arc::clone(&self.sources)).await;
                self.reloads.send_replace(());
            }
        }
    }

    /// Takes the rules of a management server, if the configuration is valid with them.
    async fn take(&mut self, RulesUpdate { resources, reply }: RulesUpdate) {
        let sources = Arc::new(Sources { resources, ..(*self.sources).clone() });
        let taken = self.reload(&sources).await;
        if taken.is_ok() {
            self.sources = sources;
            self.has_rules.send_replace(true);
        }
        // The stream may have ended meanwhile.
        let _told = reply.send(taken);
    }

    /// Reads all sources, and puts them into force.
    ///
    /// # Errors
    ///
    /// The problems. Nothing is changed then.
    async fn reload(&mut self, sources: &Arc<Sources>) -> Result<(), Problems> {
        // Many rules take long to parse, so not on the main thread.
        let sources = Arc::clone(sources);
        let loaded = match spawn_blocking(move || Config::load_with_files(&sources)).await {
            Ok((loaded, named)) => {
                self.watch.follow(named);
                loaded
            }
            // A panic of the parser is a failed reload.
            Err(panic) => Err(Problems(vec![Problem::unreadable("configuration".as_ref(), panic)])),
        };
        match loaded {
            Ok(config) => {
                self.warn_about_restart(&config.effective);
                for warning in config.notices.iter().filter(|notice| !self.notices.contains(notice))
                {
                    warn!(%warning, "configuration");
                }
                self.notices.clone_from(&config.notices);
                warn_about_rules(&config);
                let limiter = &self.limiter;
                if let (Store::Redis(store), StoreSettings::Redis(settings)) =
                    (limiter.store(), &config.store)
                {
                    // Loading the configuration validated them already.
                    let _valid = store.update_credentials(settings);
                }
                self.logs.set_filter(&config.telemetry.log.filter);
                self.replace_auth(config.auth);
                if config.privacy.makes_other_keys(&self.privacy) {
                    warn!(key = "privacy", "hashed keys changed: their state starts afresh");
                }
                limiter.set_idempotency_ttl(config.idempotency.ttl);
                let files =
                    FileRules { unnamed: Arc::new(config.rules), projects: config.projects };
                let revision = self.administration.reload(files, config.privacy.hasher.clone());
                self.privacy = config.privacy;
                self.metrics.config_revision.set(revision.cast_signed());
                self.metrics.config_last_reload_successful.set(1);
                self.metrics.envoy.loads.inc();
                info!(revision, "configuration reloaded");
                Ok(())
            }
            Err(problems) => {
                self.metrics.config_last_reload_successful.set(0);
                self.metrics.envoy.load_errors.inc();
                error!(
                    problems = cut(&problems.to_string(), MAX_REASON),
                    "configuration reload failed: the old configuration stays in force"
                );
                Err(problems)
            }
        }
    }

    /// Replaces the authorization. After `auth` was emptied all callers are refused, until a restart;
    /// if it was empty at the start, a restart is needed too.
    fn replace_auth(&self, settings: AuthSettings) {
        match &self.auth {
            Some(auth) => {
                if !settings.is_enabled() {
                    warn!(
                        key = "auth",
                        "auth is empty now: all callers are refused until a restart"
                    );
                }
                auth.replace(settings);
            }
            None if settings.is_enabled() => {
                warn!(key = "auth", "setting changed: takes effect after a restart");
            }
            None => {}
        }
    }

    fn warn_about_restart(&self, now: &[Effective]) {
        let is_reloadable = |setting: &Effective| {
            !setting.key.starts_with("auth.api-keys")
                && RELOADABLE.iter().any(|key| setting.key.starts_with(key))
        };
        let needs_restart = |setting: &Effective| !is_reloadable(setting);
        for before in self.started_with.iter().filter(|before| needs_restart(before)) {
            let changed = now.iter().any(|now| now.key == before.key && now.value != before.value);
            if changed {
                warn!(key = before.key, "setting changed: takes effect after a restart");
            }
        }
    }
}

/// Logs likely mistakes in the rules of files.
pub(super) fn warn_about_rules(config: &Config) {
    for warning in warnings(&config.rules) {
        warn!(%warning, "configuration");
    }
    for (project, files) in &config.projects {
        for warning in warnings(&files.rules) {
            warn!(%project, %warning, "configuration");
        }
    }
}
