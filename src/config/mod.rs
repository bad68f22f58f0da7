//! Configuration: defaults < files in order < environment < command line.
//!
//! figment layers the sources, `section.rs` reads them into settings that are valid, and every
//! problem is reported at once, with its origin and key. This room only produces settings; it
//! runs nothing.

mod problem;
mod rules;
mod section;
mod sources;
mod values;
mod warnings;
mod watch;

pub use problem::{Problem, Problems};
pub use section::Effective;
pub use sources::Sources;
pub use warnings::{Warning, warnings};
pub use watch::Watch;

use std::time::Duration;

use self::section::Section;
use self::values::Invalid;
use crate::rules::RuleSet;
use crate::server::{ServerSettings, StoreHealth};
use crate::store::{MemorySettings, RedisSettings};

/// A whole, valid configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where and how to serve.
    pub server: ServerSettings,
    /// Where state lives.
    pub store: StoreSettings,
    /// The rules.
    pub rules: RuleSet,
    /// Every value in force with its origin, secrets masked, in the order of the documentation.
    pub effective: Vec<Effective>,
}

/// Where state lives.
#[derive(Clone, Debug)]
pub enum StoreSettings {
    /// In this process.
    Memory(MemorySettings),
    /// In Redis.
    Redis(Box<RedisSettings>),
}

impl Config {
    /// Reads all sources.
    ///
    /// # Errors
    ///
    /// [`Problems`]: every one there is.
    pub fn load(sources: &Sources) -> Result<Self, Problems> {
        let tree = sources.read();
        let mut root = tree.root();
        let config = Self {
            server: server(&mut root),
            store: store(&mut root),
            rules: rules::read(&mut root),
            effective: Vec::new(),
        };
        root.close();
        let effective = tree.finish()?;
        Ok(Self { effective, ..config })
    }
}

fn server(root: &mut Section<'_>) -> ServerSettings {
    let mut section = root.section("server");
    let listen = section.read("listen", "127.0.0.1:50051", values::parsed);
    let http = section.read("http", "127.0.0.1:8080", values::parsed);
    let workers = section.read("workers", "auto", values::workers);
    let mut drain = section.section("drain");
    let drain_delay = drain.read("delay", "0s", values::pause);
    let drain_timeout = drain.read("timeout", "30s", values::pause);
    drain.close();
    section.close();
    let mut health = root.section("health");
    let require_store = health.read("require-store", "false", values::boolean);
    health.close();
    let store_health = if require_store { StoreHealth::Required } else { StoreHealth::Reported };
    ServerSettings { listen, http, workers, drain_delay, drain_timeout, store_health }
}

fn store(root: &mut Section<'_>) -> StoreSettings {
    #[derive(Clone, Copy)]
    enum Backend {
        Memory,
        Redis,
    }
    let mut section = root.section("store");
    let backend = section.read("backend", "memory", |value| {
        values::word(value, &[("memory", Backend::Memory), ("redis", Backend::Redis)])
    });
    let memory = memory(&mut section);
    let redis = redis(&mut section);
    section.close();
    match backend {
        Backend::Memory => StoreSettings::Memory(memory),
        Backend::Redis => StoreSettings::Redis(Box::new(redis)),
    }
}

fn memory(store: &mut Section<'_>) -> MemorySettings {
    let mut section = store.section("memory");
    let max_keys = section.read("max-keys", "1000000", |value| {
        let valid = Invalid::new("valid is a whole number from 1 to 1000000000");
        values::whole(value, 1..=1_000_000_000, valid)
    });
    section.close();
    MemorySettings { max_keys: u32::try_from(max_keys).unwrap_or(u32::MAX) }
}

fn redis(store: &mut Section<'_>) -> RedisSettings {
    const VALID_TIMEOUT: &str = "valid is a duration from 1ms to 60s, such as 50ms";
    let mut section = store.section("redis");
    let url = section.read("url", "redis://127.0.0.1:6379", values::parsed);
    section.read("mode", "standalone", |value| values::word(value, &[("standalone", ())]));
    let key_prefix = section.read("key-prefix", "rlaas", values::parsed);
    let timeout = section.read("timeout", "50ms", |value| {
        let shortest = Duration::from_millis(1);
        values::duration(value, shortest..=Duration::from_mins(1), VALID_TIMEOUT)
    });
    section.close();
    RedisSettings { url, key_prefix, timeout }
}
