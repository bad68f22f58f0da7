//! What administers: projects, their usage, the console, and the services and routes for them.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use anyhow::anyhow;
use axum::Router;
use futures_util::future::BoxFuture;
use rlaas_admin::{AdminSettings, Administrator, ConfiguredHasher, Projects, Service};
use rlaas_auth::{
    ApiKeyMode, ApiKeySettings, ApiKeys, Auth, ConfiguredProjects, FileProjects, FileRules,
};
use rlaas_console::Console;
use rlaas_limiter::Limiter;
use rlaas_limiter::fleet::Fleet;
use rlaas_projects::registry::Registry;
use rlaas_proto::ratelimit::admin::v1::admin_service_server::AdminServiceServer;
use rlaas_proto::ratelimit::admin::v1::project_service_server::ProjectServiceServer;
use rlaas_telemetry::InstanceId;
use rlaas_telemetry::metrics::Metrics;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tonic::service::RoutesBuilder;

use crate::api::console::{self, ConsoleContext, Sessions};
use crate::api::{self, http};
use crate::config::{Config, RULES_FORMAT};
use crate::rules::KeyHasher;
use crate::store::Store;

/// Settings of what administers.
pub(super) struct AdministrationSettings {
    admin: AdminSettings,
    cluster: String,
    projects: FileProjects,
    max_project_rules: u64,
    state_dir: Option<PathBuf>,
}

impl AdministrationSettings {
    pub(super) fn new(config: &Config, instance: InstanceId) -> Self {
        let admin = AdminSettings {
            instance,
            audit: config.audit,
            hasher: ConfiguredHasher::from(config.privacy.hasher.clone()),
            takes_api_keys: config.api_keys.mode != ApiKeyMode::Off,
            ..AdminSettings::default()
        };
        Self {
            admin,
            cluster: config.server.name.clone(),
            projects: config.projects.clone(),
            max_project_rules: config.max_project_rules.into(),
            state_dir: config.state_dir.clone(),
        }
    }
}

/// What administers. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Administration(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    administrator: Administrator,
    projects: Projects,
    registry: Registry,
    metrics: Arc<Metrics>,
    hasher: ConfiguredHasher,
    cluster: String,
    sessions: Arc<Sessions>,
    console: OnceLock<Console>,
    /// Runtime for connections to an issuer.
    outbound: Handle,
}

impl Administration {
    /// Opens the projects, with those of the last catalogue that was kept on this machine.
    pub(super) async fn open(
        settings: AdministrationSettings,
        limiter: &Limiter,
        fleet: Fleet,
        metrics: &Arc<Metrics>,
    ) -> anyhow::Result<Self> {
        let AdministrationSettings { admin, cluster, projects, max_project_rules, state_dir } =
            settings;
        let registry = Registry::new(limiter.clone(), fleet.clone(), Arc::clone(metrics));
        registry.set_file_projects(projects);
        registry.set_max_rules(max_project_rules);
        if let (Some(path), Store::Redis(_)) = (&state_dir, limiter.store()) {
            registry.open_state_dir(path).await.map_err(|error| anyhow!("{error}"))?;
        }
        let hasher = admin.hasher.clone();
        let administrator = Administrator::new(limiter.clone(), fleet, Arc::clone(metrics), admin);
        Ok(Self(Arc::new(Parts {
            projects: Projects::new(administrator.clone(), registry.clone()),
            administrator,
            registry,
            metrics: Arc::clone(metrics),
            hasher,
            cluster,
            sessions: Arc::default(),
            console: OnceLock::new(),
            outbound: Handle::current(),
        })))
    }

    /// Returns what finds projects by API keys.
    pub(super) fn api_keys(&self, settings: ApiKeySettings) -> ApiKeys {
        ApiKeys::new(settings, self.0.registry.keyring().clone())
    }

    /// Returns the projects for those who show the configuration.
    #[expect(clippy::unnecessary_wraps, reason = "as in `no_administration`")]
    pub(super) fn projects(&self) -> Option<Arc<dyn ConfiguredProjects>> {
        Some(Arc::new(self.0.registry.clone()))
    }

    /// Returns what the server serves.
    #[expect(clippy::unnecessary_wraps, reason = "as in `no_administration`")]
    pub(super) fn served(&self) -> Option<Arc<dyn api::ServedAdministration>> {
        Some(Arc::clone(&self.0) as Arc<dyn api::ServedAdministration>)
    }

    /// Puts rules of files and the hasher of ids in force. Returns the revision of the rules.
    pub(super) fn reload(&self, rules: FileRules, hasher: Option<KeyHasher>) -> u64 {
        self.0.hasher.replace(hasher);
        self.0.registry.replace_file_rules(rules)
    }
}

impl api::ServedAdministration for Parts {
    fn add_services(&self, limiter: &Limiter, routes: &mut RoutesBuilder) {
        let administrator = self.administrator.with_limiter(limiter.clone());
        let (projects, metrics) = (self.projects.clone(), Arc::clone(&self.metrics));
        let keys = AdminServiceServer::new(Service::new(administrator, projects.clone(), metrics));
        let projects = ProjectServiceServer::new(projects);
        routes
            .add_service(keys.max_decoding_message_size(api::MAX_MESSAGE))
            .add_service(projects.max_decoding_message_size(api::MAX_RULES_MESSAGE));
    }

    fn http_routes(&self, limiter: &Limiter) -> Router {
        let administrator = self.administrator.with_limiter(limiter.clone());
        let metrics = Arc::clone(&self.metrics);
        http::administration_router(administrator, self.projects.clone(), metrics)
    }

    fn pages(
        &self,
        limiter: &Limiter,
        services: Router,
        auth: Arc<Auth>,
        background: Handle,
    ) -> Router {
        console::router(ConsoleContext {
            services,
            administrator: self.administrator.with_limiter(limiter.clone()),
            cluster: self.cluster.clone(),
            auth,
            sessions: Arc::clone(&self.sessions),
            console: self.console.get_or_init(|| Console::new(background, RULES_FORMAT)).clone(),
            outbound: self.outbound.clone(),
        })
    }

    fn start(&self, tasks: &mut JoinSet<()>) {
        let reporting = self.administrator.clone();
        tasks.spawn(async move { reporting.run().await });
        let (registry, admin) = (self.registry.clone(), self.administrator.clone());
        tasks.spawn(async move { registry.run(admin.modes().changed()).await });
        let recording = self.projects.usage().clone();
        tasks.spawn(async move { recording.run().await });
    }

    fn first_look(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.registry.first_look())
    }

    fn drain(&self) {
        self.administrator.stats().drain();
    }

    fn finish_changes(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.administrator.finish_changes())
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            tokio::join!(self.projects.usage().stop(), self.administrator.stats().stop());
        })
    }
}
