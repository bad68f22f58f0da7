//! What the services of administration share: the fleet, the audit, the instances, the modes and the
//! statistics, with the work that they do in the background.

use std::sync::Arc;

use rlaas_limiter::Limiter;
use rlaas_limiter::fleet::Fleet;
use rlaas_proto::status::unknown_project;
use rlaas_telemetry::InstanceId;
use rlaas_telemetry::metrics::Metrics;
use tonic::Status;

use super::fleet_top_keys::FleetTopKeys;
use super::running::RunningChanges;
use super::{
    Audit, AuditSettings, ConfiguredHasher, FleetStats, Instances, Modes, SharedHasher, refusals,
};
use rlaas_core::clock::Clock;
use rlaas_core::plan::{SelectedKey, Selector, SelectorTarget};
use rlaas_core::rules::KeyHasher;

/// What the services of administration share. Clones share everything.
#[derive(Clone, Debug)]
pub struct Administrator {
    pub(super) limiter: Limiter,
    pub(super) shared: Arc<Shared>,
}

/// What all clones share.
#[derive(Debug)]
pub(super) struct Shared {
    fleet: Fleet,
    hasher: SharedHasher,
    audit: Audit,
    instances: Instances,
    pub(super) changes: RunningChanges,
    pub(super) modes: Modes,
    pub(super) top_keys: FleetTopKeys,
    stats: FleetStats,
    pub(super) metrics: Arc<Metrics>,
    pub(super) takes_api_keys: bool,
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

    /// Returns `true` while the catalogue of the store conflicts with that of an instance.
    pub fn has_catalogue_conflict(&self) -> bool {
        self.shared.metrics.catalogue_conflict.get() != 0
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
    /// obeys modes that are set, answers other instances that ask for top keys, and tells events of thresholds.
    pub async fn run(&self) {
        let Shared { instances, modes, top_keys, stats, metrics, .. } = &*self.shared;
        let answer = async {
            match metrics.top_keys() {
                Some(counts) => top_keys.answer(counts, || self.key_hasher()).await,
                None => std::future::pending().await,
            }
        };
        // Boxed because they are large.
        tokio::join!(
            Box::pin(instances.run()),
            Box::pin(modes.run()),
            Box::pin(stats.run()),
            Box::pin(self.record_thresholds()),
            Box::pin(answer)
        );
    }

    /// Completes when no change runs, those whose callers have gone too, and no event of a threshold waits for
    /// the log. To be called when no more changes and decisions come.
    pub async fn finish_changes(&self) {
        self.shared.changes.finished().await;
        self.shared.metrics.thresholds.none_waits().await;
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

    /// Returns the hasher of the parts of keys; `None` if none are hashed.
    pub(super) fn key_hasher(&self) -> Option<KeyHasher> {
        let snapshot = self.limiter.snapshot();
        snapshot.rules.hashed_parts().map(|parts| parts.hasher().clone())
    }

    /// Returns the keys that a selector names, by the rules in force of a project.
    ///
    /// # Errors
    ///
    /// `NOT_FOUND` if there is no such project, and refusals of the selector.
    pub(super) fn select(
        &self,
        project: &str,
        selector: &Selector<'_>,
    ) -> Result<Vec<SelectedKey>, Status> {
        // Top keys show long keys by their hashes.
        let long = match (selector.target, self.shared.metrics.top_keys()) {
            (SelectorTarget::Id(id), Some(top_keys)) => top_keys.long_key(project, id),
            _ => None,
        };
        let target = long.as_deref().map_or(selector.target, SelectorTarget::Id);
        let snapshot = self.limiter.project_snapshot(project);
        let unknown = || unknown_project("selector.project_id");
        let keys = snapshot.ok_or_else(unknown)?.rules.select(&Selector { target, ..*selector });
        keys.map_err(refusals::selector)
    }
}
