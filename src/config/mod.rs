//! Configuration. Precedence: defaults < files in order < environment < command line.
//!
//! figment merges the sources, `section.rs` reads the result into validated settings. All problems
//! are reported together, each with its origin and key. This module only produces settings; it starts
//! nothing.

mod auth;
mod envoy;
mod key_lines;
mod notice;
mod problem;
mod rules;
mod secrets;
mod section;
mod server;
mod sources;
mod store;
mod telemetry;
mod tls;
mod values;
mod warnings;
mod watch;
mod yaml;

pub use notice::Notice;
pub use problem::{Problem, Problems};
pub use section::Effective;
pub use sources::Sources;
pub use store::StoreSettings;
pub use warnings::{Warning, warnings};
pub use watch::{FileSnapshot, Watch};

use std::time::Duration;

use self::section::Section;
use crate::api::auth::AuthSettings;
use crate::api::envoy::EnvoySettings;
use crate::rules::RuleSet;
use crate::server::ServerSettings;
use crate::telemetry::TelemetrySettings;
use rlaas_limiter::DenyCacheSettings;

/// A whole, valid configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Settings of the server.
    pub server: ServerSettings,
    /// Settings of Envoy's service.
    pub envoy: EnvoySettings,
    /// Authorization.
    pub auth: AuthSettings,
    /// Settings of the store.
    pub store: StoreSettings,
    /// Settings of the cache of denials in front of Redis; `None` if it is disabled.
    pub deny_cache: Option<DenyCacheSettings>,
    /// Logs and traces.
    pub telemetry: TelemetrySettings,
    /// The rules.
    pub rules: RuleSet,
    /// Every value in force with its origin, in the order of the documentation. Secrets are masked.
    pub effective: Vec<Effective>,
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

    /// Reads all sources, and also returns the files that the settings name (`envoy.files`), valid or
    /// not. They must be watched as well.
    pub fn load_with_files(sources: &Sources) -> (Result<Self, Problems>, Vec<FileSnapshot>) {
        let tree = sources.read();
        let mut root = tree.root();
        let server = server::read(&mut root);
        let envoy = envoy::read(&mut root);
        let config = Self {
            auth: auth::read(&mut root, &server),
            server,
            envoy: envoy.settings,
            store: store::read(&mut root),
            deny_cache: deny_cache(&mut root),
            telemetry: telemetry::read(&mut root),
            rules: rules::read(&mut root).with_descriptors(envoy.descriptors),
            effective: Vec::new(),
            notices: Vec::new(),
        };
        root.close();
        let config = Self { notices: tree.notices(), ..config };
        (tree.finish().map(|effective| Self { effective, ..config }), envoy.files)
    }
}

fn deny_cache(root: &mut Section<'_>) -> Option<DenyCacheSettings> {
    const VALID_AGE: &str = "must be a duration from 1ms to 1h, such as 1s";
    let mut section = root.section("deny-cache");
    let enabled = section.read("enabled", "true", values::boolean);
    let max_age = section.read("max-age", "1s", |value| {
        let range = Duration::from_millis(1)..=Duration::from_hours(1);
        values::duration(value, range, VALID_AGE)
    });
    let max_keys = section.read("max-keys", "100000", values::count(100_000_000));
    section.close();
    enabled.then_some(DenyCacheSettings { max_age, max_keys })
}
