//! Administration while the service runs: the state of keys is shown and changed, whatever protocol
//! the administrator uses.
//!
//! [`Administrator`] has each operation once, for all protocols. Its answers are messages, because
//! they are also kept for retries; it does not know how they were asked for, nor roles: `api` reads
//! requests, `server` admits callers.

mod audit;
mod change;
mod error;
mod explain;
mod hasher;
mod instances;
mod key_view;
pub(crate) mod messages;
mod modes;
mod note;
pub mod projects;
mod request_ids;
mod running;
mod stats;
mod top_keys;

pub use audit::{
    Audit, AuditError, AuditFilter, AuditKeys, AuditPage, AuditSettings, AuditedProjects, Intent,
    InvalidPageToken, PageToken, PendingChange,
};
pub use change::ChangeRequest;
pub use error::AdminError;
pub use explain::{Outlook, explain, outlook};
pub use hasher::{ConfiguredHasher, SharedHasher, keyed};
pub use instances::{InstanceId, Instances};
pub use key_view::KeyView;
pub(crate) use modes::MAX_TIME_TO_LIVE;
pub use modes::{ModeChange, Modes};
pub use note::Note;
pub use stats::{
    FleetStats, MAX_STATS_WATCHERS, STATS_INTERVAL, StatsReading, StatsScope, StatsWatch,
    StatsWatchError,
};
pub(crate) use stats::{counters, rule_stats};
pub use top_keys::{FleetCounts, FleetTopKeys, TopKeysError};

use std::sync::Arc;
use std::time::Duration;

use self::running::RunningChanges;
use crate::clock::{Clock, Deadline};
use crate::control::{OverrideKind, OverridePage};
use crate::plan::{SelectedKey, Selector};
use crate::telemetry::metrics::Metrics;
use rlaas_limiter::fleet::Fleet;
use rlaas_limiter::{KeyState, Limiter, Snapshot};

/// Longest time that an operation may take before it changes something, whatever deadline its caller has:
/// the store may hang.
const MAX_TIME: Duration = Duration::from_secs(2);
/// Longest time of a change that has begun, which has time of its own.
const MAX_CHANGE_TIME: Duration = Duration::from_secs(10);
/// Topic of the fleet by which instances are told to forget cached denials.
const FORGET: &str = "forget";

/// Shows and changes the state of keys. Clones share everything.
#[derive(Clone, Debug)]
pub struct Administrator {
    limiter: Limiter,
    shared: Arc<Shared>,
}

/// What all clones share.
#[derive(Debug)]
struct Shared {
    fleet: Fleet,
    hasher: SharedHasher,
    audit: Audit,
    instances: Instances,
    changes: RunningChanges,
    modes: Modes,
    top_keys: FleetTopKeys,
    stats: FleetStats,
    metrics: Arc<Metrics>,
    takes_api_keys: bool,
}

/// Settings of the administration.
#[derive(Clone, Debug, Default)]
pub struct AdminSettings {
    /// Settings of the audit.
    pub audit: AuditSettings,
    /// Hasher of ids where they leave the store. Without one: by a secret of the fleet.
    pub hasher: ConfiguredHasher,
    /// Clock of the modes of rules.
    pub clock: Clock,
    /// Id of this instance.
    pub instance: InstanceId,
    /// Whether callers may show API keys.
    pub takes_api_keys: bool,
}

impl Administrator {
    /// Creates an administrator of the keys of `limiter`, which shares `fleet` with other instances.
    pub fn new(
        limiter: Limiter,
        fleet: Fleet,
        metrics: Arc<Metrics>,
        settings: AdminSettings,
    ) -> Self {
        let hasher = SharedHasher::new(fleet.clone(), settings.hasher);
        let instances =
            Instances::new(fleet.clone(), limiter.clone(), Arc::clone(&metrics), settings.instance);
        let audit = Audit::new(fleet.clone(), hasher.clone(), settings.audit);
        let clock = settings.clock.clone();
        let stats = FleetStats::new(fleet.clone(), Arc::clone(&metrics), instances.id(), clock);
        let shared = Shared {
            stats,
            modes: Modes::new(
                limiter.clone(),
                fleet.clone(),
                audit.clone(),
                instances.clone(),
                settings.clock,
            ),
            audit,
            top_keys: FleetTopKeys::new(fleet.clone(), instances.clone(), hasher.clone()),
            instances,
            changes: RunningChanges::new(),
            metrics,
            hasher,
            fleet,
            takes_api_keys: settings.takes_api_keys,
        };
        Self { limiter, shared: Arc::new(shared) }
    }

    /// Returns the fleet that the instances share.
    pub fn fleet(&self) -> &Fleet {
        &self.shared.fleet
    }

    /// Returns the hasher of ids for callers who may not see them.
    pub fn hasher(&self) -> &SharedHasher {
        &self.shared.hasher
    }

    /// Returns the audit.
    pub fn audit(&self) -> &Audit {
        &self.shared.audit
    }

    /// Returns this instance among those of the fleet.
    pub fn instances(&self) -> &Instances {
        &self.shared.instances
    }

    /// Returns the statistics of decisions in time.
    pub fn stats(&self) -> &FleetStats {
        &self.shared.stats
    }

    /// Returns the modes of rules that are set at run time.
    pub fn modes(&self) -> &Modes {
        &self.shared.modes
    }

    /// Runs the background work, for ever: reports this instance and its statistics to the fleet,
    /// obeys modes that are set, and answers other instances that ask for top keys.
    pub async fn run(&self) {
        let Shared { instances, modes, top_keys, stats, metrics, .. } = &*self.shared;
        let answer = async {
            match metrics.top_keys() {
                Some(counts) => top_keys.answer(counts).await,
                None => std::future::pending().await,
            }
        };
        // Boxed because they are large.
        tokio::join!(
            Box::pin(instances.run()),
            Box::pin(modes.run()),
            Box::pin(stats.run()),
            Box::pin(answer)
        );
    }

    /// Completes when no change runs: also those whose callers have gone have ended. To be called
    /// when no more changes come.
    pub async fn finish_changes(&self) {
        self.shared.changes.finished().await;
    }

    /// Returns an administrator that uses the connections of this handle.
    #[must_use]
    pub fn with_limiter(&self, limiter: Limiter) -> Self {
        Self { limiter, ..self.clone() }
    }

    /// Returns the limiter.
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// Returns the state of keys of a project, by the name of their rule. Counts nothing.
    ///
    /// # Errors
    ///
    /// [`AdminError::UnknownProject`], [`AdminError::Selector`], [`AdminError::Store`].
    pub async fn inspect(
        &self,
        project: &str,
        selector: &Selector<'_>,
        deadline: Deadline,
    ) -> Result<Vec<KeyState>, AdminError> {
        let keys = self.select(project, selector)?;
        Ok(self.limiter.inspect(&keys, deadline.or_within(MAX_TIME)).await?)
    }

    /// Returns overrides in force in some projects, of one rule or of all: at most `count`, and of a page of one
    /// key both. `cursor` is empty for the first page, else where the page before ended.
    ///
    /// # Errors
    ///
    /// [`AdminError::PageToken`], [`AdminError::ServersChanged`], [`AdminError::Store`].
    pub async fn list_overrides(
        &self,
        is_listed: impl Fn(&str) -> bool,
        rule: Option<&str>,
        kind: OverrideKind,
        cursor: &str,
        count: usize,
        deadline: Deadline,
    ) -> Result<OverridePage, AdminError> {
        let deadline = deadline.or_within(MAX_TIME);
        // A key has up to two.
        let keys = (count / 2).max(1);
        let mut page = self.limiter.store().list_overrides(cursor, keys, deadline).await?;
        page.keys.retain_mut(|key| {
            if kind == OverrideKind::Ban {
                key.record.clear(OverrideKind::Grant);
            } else if kind == OverrideKind::Grant {
                key.record.clear(OverrideKind::Ban);
            }
            let is_of = |name| {
                let snapshot = self.limiter.snapshot_of_key(&key.key);
                snapshot.is_some_and(|of| of.rules.describe(&key.key).0.as_deref() == Some(name))
            };
            let is_listed = key.key.project_name().is_some_and(|project| is_listed(&project));
            is_listed && !key.record.is_empty() && rule.is_none_or(is_of)
        });
        Ok(page)
    }

    /// Checks that a project exists, and that it has the rule if one is named.
    ///
    /// # Errors
    ///
    /// [`AdminError::UnknownProject`], [`AdminError::UnknownRule`].
    pub fn check_known(&self, project: &str, rule: Option<&str>) -> Result<(), AdminError> {
        let snapshot = self.snapshot_of(project, "project_id")?;
        let is_known = rule.is_none_or(|name| snapshot.rules.has_rule(name));
        if is_known { Ok(()) } else { Err(AdminError::UnknownRule) }
    }

    /// Returns the keys that a selector names, by the rules in force of a project.
    ///
    /// # Errors
    ///
    /// [`AdminError::UnknownProject`], [`AdminError::Selector`].
    pub fn select(
        &self,
        project: &str,
        selector: &Selector<'_>,
    ) -> Result<Vec<SelectedKey>, AdminError> {
        Ok(self.snapshot_of(project, "selector.project_id")?.rules.select(selector)?)
    }

    fn snapshot_of(&self, project: &str, field: &'static str) -> Result<Arc<Snapshot>, AdminError> {
        self.limiter.project_snapshot(project).ok_or(AdminError::UnknownProject(field))
    }
}
