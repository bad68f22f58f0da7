//! Stands for `administration` in a build without it: rules come from files and a management server alone.

use std::sync::Arc;

use rlaas_auth::{ApiKeySettings, ApiKeys, ConfiguredProjects, FileRules};
use rlaas_limiter::Limiter;
use rlaas_limiter::fleet::Fleet;
use rlaas_telemetry::InstanceId;
use rlaas_telemetry::metrics::Metrics;

use crate::api;
use crate::config::Config;
use crate::rules::KeyHasher;

/// There is nothing to set.
pub(super) struct AdministrationSettings;

impl AdministrationSettings {
    pub(super) fn new(_config: &Config, _instance: InstanceId) -> Self {
        Self
    }
}

/// No administration: it puts rules of files in force.
#[derive(Clone, Debug)]
pub(super) struct Administration(Limiter);

#[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "as in `administration`")]
impl Administration {
    #[expect(clippy::unused_async, reason = "as in `administration`")]
    pub(super) async fn open(
        _settings: AdministrationSettings,
        limiter: &Limiter,
        _fleet: Fleet,
        _metrics: &Arc<Metrics>,
    ) -> anyhow::Result<Self> {
        Ok(Self(limiter.clone()))
    }

    pub(super) fn api_keys(&self, settings: ApiKeySettings) -> ApiKeys {
        ApiKeys::without_projects(settings)
    }

    pub(super) fn projects(&self) -> Option<Arc<dyn ConfiguredProjects>> {
        None
    }

    pub(super) fn served(&self) -> Option<Arc<dyn api::ServedAdministration>> {
        None
    }

    pub(super) fn reload(&self, rules: FileRules, _hasher: Option<KeyHasher>) -> u64 {
        self.0.replace_rules(Arc::unwrap_or_clone(rules.unnamed))
    }
}
