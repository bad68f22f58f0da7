//! Configuration. Precedence: defaults < files in order < environment < command line.
//!
//! figment merges the sources, `section.rs` reads the result into validated settings. All problems
//! are reported together, each with its origin and key. This module only produces settings; it starts
//! nothing.

#[cfg_attr(not(feature = "admin"), path = "no_audit.rs")]
mod audit;
mod auth;
mod envoy;
mod idempotency;
mod joined_rules;
mod key_lines;
mod oidc;
mod oidc_console;
mod privacy;
mod problem;
mod ratelimit_environment;
mod reference;
mod removed;
mod rules;
mod rules_file;
mod section;
mod server;
mod setting;
mod sources;
mod store;
mod telemetry;
mod tree;
mod values;
mod watch;
mod yaml;

pub use envoy::{EnvoyResource, XdsSettings, XdsTls};
pub use idempotency::IdempotencySettings;
pub use privacy::PrivacySettings;
pub use problem::{Notice, Problem, ProblemKind, Problems};
pub use reference::{SettingReference, envoy_file_reference, reference};
pub use removed::{REMOVED, RemovedKind, RemovedName, instead_of};
pub use rlaas_core::rules::warnings::{Warning, warnings};
#[cfg(feature = "admin")]
pub use rules_file::FORMAT as RULES_FORMAT;
pub use rules_file::RulesFile;
pub use setting::{Effective, Kind, Takes};
pub use sources::{COMMAND_LINE, Sources};
pub use store::StoreSettings;
pub use watch::{FileSnapshot, Watch};

use std::path::PathBuf;
use std::time::Duration;

use rlaas_auth::{ApiKeyMode, ApiKeySettings, AuthSettings, FileProjects, ProjectId};
use rlaas_telemetry::TelemetrySettings;

use self::rules_file::ConfiguredProject;
use self::section::Section;
use self::setting::Setting;
use crate::api::envoy::EnvoySettings;
use crate::rules::RuleSet;
use crate::server::ServerSettings;
use rlaas_limiter::DenyCacheSettings;

/// A whole, valid configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Settings of the server.
    pub server: ServerSettings,
    /// Settings of Envoy's service.
    pub envoy: EnvoySettings,
    /// Management server of the rules for Envoy.
    pub xds: Option<XdsSettings>,
    /// Authorization.
    pub auth: AuthSettings,
    /// API keys.
    pub api_keys: ApiKeySettings,
    /// Settings of the store.
    pub store: StoreSettings,
    /// Settings of the cache of denials in front of Redis; `None` if it is disabled.
    pub deny_cache: Option<DenyCacheSettings>,
    /// Settings of request ids.
    pub idempotency: IdempotencySettings,
    /// Most rules of a project that are made at run time.
    pub max_project_rules: u32,
    /// Folder in which the last catalogue of Redis is kept.
    pub state_dir: Option<PathBuf>,
    /// Settings of the audit.
    pub audit: audit::AuditSettings,
    /// Logs and traces.
    pub telemetry: TelemetrySettings,
    /// The rules.
    pub rules: RuleSet,
    /// Rules of files that name a project.
    pub projects: FileProjects,
    /// Hashed parts of keys. The rules have them already.
    pub privacy: PrivacySettings,
    /// Every value in force with its origin, in the order of the documentation. Secrets are masked.
    pub effective: Vec<Effective>,
    /// The same of the files of each project.
    pub effective_in_projects: Vec<(ProjectId, Vec<Effective>)>,
    /// Values in the files that are valid but have less effect than written.
    pub notices: Vec<Notice>,
}

impl Config {
    /// Reads all sources.
    ///
    /// # Errors
    ///
    /// [`Problems`]: all problems of all sources.
    pub fn load(sources: &Sources) -> Result<Self, Problems> {
        Self::load_with_files(sources).0
    }

    /// Reads all sources, and also returns the files that the settings name (`envoy.files`,
    /// `auth.oidc.ca` and `auth.oidc.console.client-secret-file`, `privacy.key-file`), valid or not. They must be watched as well.
    pub fn load_with_files(sources: &Sources) -> (Result<Self, Problems>, Vec<FileSnapshot>) {
        let (tree, projects) = sources.read();
        let mut root = tree.root();
        rules_file::no_project(&mut root);
        let (config, files) = Self::read(&mut root, sources);
        root.close();
        let config = Self { notices: tree.notices(), ..config };
        let mut config = tree.finish().map(|effective| Self { effective, ..config });
        for project in projects {
            config = with_project(config, rules_file::configured(project));
        }
        (config, files)
    }

    /// Reads every section; the order is that of the documentation.
    fn read(root: &mut Section<'_>, sources: &Sources) -> (Self, Vec<FileSnapshot>) {
        removed::refuse_administration(root);
        let server = server::read(root);
        let envoy = envoy::read(root, &sources.resources);
        let mut files = envoy.files;
        let (auth, mut api_keys, issuer_files) = auth::read(root, &server);
        files.extend(issuer_files);
        let state_dir = root.optional(STATE_DIR, values::text).map(PathBuf::from);
        let store = store::read(root, state_dir.as_deref());
        let deny_cache = deny_cache(root);
        let (privacy, key_file) = privacy::read(root);
        files.extend(key_file);
        let has_console = !server.console.is_empty();
        let idempotency = idempotency::read(root);
        let max_project_rules = max_project_rules(root);
        let audit = audit::read(root);
        let telemetry = telemetry::read(root, has_console);
        let spec = rules::read(root);
        auth::decide_api_keys(root, &mut api_keys, &store, &spec, sources.api_keys);
        // Until a restart the mode in force stays, whatever is written now.
        let in_force = sources.api_keys.filter(|mode| *mode != ApiKeyMode::Off);
        let rules = rules::build(root, &spec, in_force.unwrap_or(api_keys.mode));
        let rules = privacy.apply(rules.with_descriptors(envoy.descriptors));
        let config = Self {
            auth,
            api_keys,
            server,
            envoy: envoy.settings,
            xds: envoy.xds,
            store,
            deny_cache,
            idempotency,
            max_project_rules,
            state_dir,
            audit,
            telemetry,
            rules,
            projects: FileProjects::new(),
            privacy,
            effective: Vec::new(),
            effective_in_projects: Vec::new(),
            notices: Vec::new(),
        };
        (config, files)
    }
}

/// Adds the files of a project, or their problems.
fn with_project(
    config: Result<Config, Problems>,
    project: Result<ConfiguredProject, Problems>,
) -> Result<Config, Problems> {
    match (config, project) {
        (Ok(mut config), Ok(project)) => {
            let ConfiguredProject { id, rules, effective, notices } = project;
            config.projects.insert(id.clone(), rules);
            config.effective_in_projects.push((id, effective));
            config.notices.extend(notices);
            Ok(config)
        }
        (Err(Problems(mut all)), Err(Problems(more))) => {
            all.extend(more);
            Err(Problems(all))
        }
        (Err(problems), Ok(_)) | (Ok(_), Err(problems)) => Err(problems),
    }
}

const STATE_DIR: Setting = Setting::new(
    "state-dir",
    "Folder of what this server keeps on its machine. With Redis these are the projects, so that it \
     starts and decides with them while Redis is away; with the memory store its journal and its \
     snapshots. Used by one process at a time; created, for its owner alone, if it does not exist.",
)
.example("/var/lib/rlaas");

const PROJECTS: Setting =
    Setting::new("projects", "Projects with their rules, which are made while the server runs.");
const MAX_RULES: Setting = Setting::new(
    "max-rules",
    "Most such rules of a project. All projects together have at most 100,000, of which an eighth is \
     for callers with a role for all projects.",
);

fn max_project_rules(root: &mut Section<'_>) -> u32 {
    let mut section = root.section(PROJECTS);
    let max_rules = section.read(MAX_RULES, "5000", values::count(100_000));
    section.close();
    max_rules
}

const DENY_CACHE: Setting = Setting::new(
    "deny-cache",
    "Cache in front of Redis: a denial is repeated from it while it still holds.",
);
const ENABLED: Setting = Setting::new("enabled", "Enables the cache.");
const MAX_AGE: Setting = Setting::new("max-age", "Maximum age of a cached denial.");
const MAX_KEYS: Setting = Setting::new("max-keys", "Maximum number of cached denials.");

fn deny_cache(root: &mut Section<'_>) -> Option<DenyCacheSettings> {
    const VALID_AGE: &str = "must be a duration from 1ms to 1h, such as 1s";
    let mut section = root.section(DENY_CACHE);
    let enabled = section.read(ENABLED, "true", values::boolean);
    let max_age = section.read(MAX_AGE, "1s", |value| {
        let range = Duration::from_millis(1)..=Duration::from_hours(1);
        values::duration(value, range, VALID_AGE)
    });
    let max_keys = section.read(MAX_KEYS, "100000", values::count(100_000_000));
    section.close();
    enabled.then_some(DenyCacheSettings { max_age, max_keys })
}
