//! Configuration: defaults < files in order < environment < command line.
//!
//! figment layers the sources, `section.rs` reads them into settings that are valid, and every
//! problem is reported at once, with its origin and key. This room only produces settings; it
//! runs nothing.

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
    /// Where and how to serve.
    pub server: ServerSettings,
    /// How Envoy's service answers.
    pub envoy: EnvoySettings,
    /// Who may call what.
    pub auth: AuthSettings,
    /// Where state lives.
    pub store: StoreSettings,
    /// What answers denials that still hold, in front of Redis.
    pub deny_cache: Option<DenyCacheSettings>,
    /// What is told, and how.
    pub telemetry: TelemetrySettings,
    /// The rules.
    pub rules: RuleSet,
    /// Every value in force with its origin, secrets masked, in the order of the documentation.
    pub effective: Vec<Effective>,
    /// What is valid in files and does less than it says.
    pub notices: Vec<Notice>,
}

impl Config {
    /// Reads all sources.
    ///
    /// # Errors
    ///
    /// [`Problems`]: every one there is.
    pub fn load(sources: &Sources) -> Result<Self, Problems> {
        Self::load_with_files(sources).0
    }

    /// The same, and the files that the sources name, valid or not: those that are to be watched
    /// beside the sources.
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
