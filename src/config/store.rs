//! The section `store`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use figment::value::Value;

use super::section::Section;
use super::setting::Setting;
use super::values::{self, Invalid, Read};
use rlaas_limiter::journal::{JournalSettings, SnapshotSettings};

use crate::store::{
    Credentials, Identity, MemorySettings, RedisSettings, RedisUrl, Secret, Servers, Tls,
};

/// Maximum number of addresses of servers or sentinels.
const MAX_URLS: usize = 64;

/// Settings of the store.
#[derive(Clone, Debug)]
pub enum StoreSettings {
    /// State in the memory of this process.
    Memory {
        /// Bounds of the memory.
        memory: MemorySettings,
        /// Where a restart finds what it must not lose.
        journal: Option<JournalSettings>,
        /// Where a restart finds counters.
        snapshot: Option<SnapshotSettings>,
    },
    /// State in Redis.
    Redis(Box<RedisSettings>),
}

const STORE: Setting = Setting::new("store", "The store of the counters.");
const BACKEND: Setting = Setting::new(
    "backend",
    "memory: state in this process. redis: state shared by any number of instances.",
);
const MEMORY: Setting = Setting::new("memory", "The store in this process.");
const MAX_KEYS: Setting = Setting::new(
    "max-keys",
    "Maximum number of keys. Beyond it keys are evicted, those that expire first before \
     others.",
);
const JOURNAL: Setting = Setting::new(
    "journal",
    "Keeps overrides, bans, projects and the audit of the store in this process over restarts.",
);
const PATH: Setting = Setting::new(
    "path",
    "Folder of the journal, used by one process at a time. Created, for its owner alone, if it \
     does not exist. By default state-dir. With neither, and with off, nothing is kept.",
)
.example("/var/lib/rlaas");
const SNAPSHOT: Setting = Setting::new(
    "snapshot",
    "Interval at which the counters of the store in this process are written, to state-dir if it \
     is set, else to the folder of the journal. After a crash they are those of the last snapshot. \
     By default 10s with state-dir; without it, and with off, a restart begins with none.",
)
.example("10s");
/// Interval of snapshots where there is a folder for them.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(10);
const REDIS: Setting = Setting::new("redis", "The store in Redis or Valkey.");
const USERNAME: Setting = Setting::new(
    "username",
    "ACL user; overrides that of the url. Changes apply to new connections, without a \
     restart.",
)
.example("rlaas");
const PASSWORD: Setting = Setting::new(
    "password",
    "Password; overrides that of the url. Changes apply to new connections, without a \
     restart.",
)
.example("secret");
const DATABASE: Setting = Setting::new(
    "database",
    "Number of the database; overrides that of the url. A cluster has only 0.",
)
.example("0");
const KEY_PREFIX: Setting = Setting::new("key-prefix", "Prefix of all keys.");
const TIMEOUT: Setting =
    Setting::new("timeout", "Maximum time for a decision, including the connection.");
const MAX_IN_FLIGHT: Setting = Setting::new(
    "max-in-flight",
    "Maximum number of decisions that wait for Redis. Further ones are rejected \
     (RESOURCE_EXHAUSTED).",
);
const MODE: Setting = Setting::new("mode", "Topology. sentinel and cluster require urls.");
const URL: Setting = Setting::new(
    "url",
    "Address of a standalone server; rediss:// is TLS. REDIS_URL sets it, and selects the \
     redis backend.",
);
const URLS: Setting =
    Setting::new("urls", "Addresses of sentinels, or of servers of a cluster, to contact first.")
        .example("[redis://10.0.0.1:26379, redis://10.0.0.2:26379]");
const MASTER_NAME: Setting =
    Setting::new("master-name", "Name of the master at the sentinels; default mymaster.")
        .example("mymaster");
const TLS: Setting = Setting::new("tls", "Certificates for rediss:// addresses.");
const CA: Setting = Setting::new(
    "ca",
    "PEM file of the authorities to trust instead of the system's, or of the server's own \
     certificate.",
)
.example("/etc/rlaas/redis-ca.crt");
const CERT: Setting = Setting::new("cert", "PEM file of the client certificate; requires key.")
    .example("/etc/rlaas/redis.crt");
const KEY: Setting = Setting::new("key", "PEM file of the private key; requires cert.")
    .example("/etc/rlaas/redis.key");

pub(super) fn read(root: &mut Section<'_>, state_dir: Option<&Path>) -> StoreSettings {
    #[derive(Clone, Copy)]
    enum Backend {
        Memory,
        Redis,
    }
    let mut section = root.section(STORE);
    let backend = section.read(BACKEND, "memory", |value| {
        values::word(value, &[("memory", Backend::Memory), ("redis", Backend::Redis)])
    });
    let memory = memory(&mut section, state_dir);
    let redis = redis(&mut section);
    section.close();
    match backend {
        Backend::Memory => memory,
        Backend::Redis => StoreSettings::Redis(Box::new(redis)),
    }
}

fn memory(store: &mut Section<'_>, state_dir: Option<&Path>) -> StoreSettings {
    let mut section = store.section(MEMORY);
    let max_keys = section.read(MAX_KEYS, "1000000", values::count(1_000_000_000));
    let journal = journal(&mut section, state_dir);
    let interval = section.optional(SNAPSHOT, interval_or_off);
    let folder = state_dir.or(journal.as_ref().map(|journal| &*journal.path));
    let by_default = state_dir.is_some().then_some(DEFAULT_INTERVAL);
    let interval = interval.unwrap_or(by_default);
    if interval.is_some() && folder.is_none() {
        section.refuse("snapshot", Invalid::new("requires state-dir or store.memory.journal.path"));
    }
    section.close();
    let snapshot = interval.zip(folder);
    let snapshot =
        snapshot.map(|(interval, folder)| SnapshotSettings { path: folder.to_owned(), interval });
    StoreSettings::Memory { memory: MemorySettings { max_keys }, journal, snapshot }
}

fn interval_or_off(value: &Value) -> Read<Option<Duration>> {
    const VALID: &str = "must be off, or a duration from 1s to 1h, such as 10s";
    match value {
        _ if is_off(value) => Ok((None, "off".to_owned())),
        _ => {
            let range = Duration::from_secs(1)..=Duration::from_hours(1);
            let (interval, shown) = values::duration(value, range, VALID)?;
            Ok((Some(interval), shown))
        }
    }
}

fn journal(memory: &mut Section<'_>, state_dir: Option<&Path>) -> Option<JournalSettings> {
    let mut section = memory.section(JOURNAL);
    let path = section.optional(PATH, folder_or_off);
    section.close();
    path.unwrap_or_else(|| state_dir.map(Path::to_owned)).map(JournalSettings::new)
}

fn folder_or_off(value: &Value) -> Read<Option<PathBuf>> {
    if is_off(value) {
        return Ok((None, "off".to_owned()));
    }
    let (path, shown) = values::text(value)?;
    Ok((Some(path.into()), shown))
}

fn is_off(value: &Value) -> bool {
    // YAML reads off as false.
    matches!(value, Value::Bool(_, false)) || value.as_str() == Some("off")
}

fn redis(store: &mut Section<'_>) -> RedisSettings {
    const VALID_TIMEOUT: &str = "must be a duration from 1ms to 60s, such as 50ms";
    let mut section = store.section(REDIS);
    let servers = servers(&mut section);
    let username = section.optional(USERNAME, values::text);
    let password = section.optional(PASSWORD, secret);
    let database = section.optional(DATABASE, |value| {
        values::whole(value, 0..=MAX_DATABASE, Invalid::new("must be 0 to 1000000"))
    });
    let tls = tls(&mut section);
    let key_prefix = section.read(KEY_PREFIX, "rlaas", values::parsed);
    let timeout = section.read(TIMEOUT, "50ms", |value| {
        let shortest = Duration::from_millis(1);
        values::duration(value, shortest..=Duration::from_mins(1), VALID_TIMEOUT)
    });
    let max_in_flight = section.read(MAX_IN_FLIGHT, "4096", values::count(1_000_000));
    let settings = RedisSettings {
        servers,
        credentials: Credentials { username, password },
        database: database.and_then(|database| u32::try_from(database).ok()),
        tls,
        key_prefix,
        timeout,
        max_in_flight,
    };
    check(&section, &settings);
    section.close();
    settings
}

const MAX_DATABASE: u64 = 1_000_000;

fn servers(section: &mut Section<'_>) -> Servers {
    #[derive(Clone, Copy, PartialEq)]
    enum ModeName {
        Standalone,
        Sentinel,
        Cluster,
    }
    use ModeName::{Cluster, Sentinel, Standalone};
    let modes = [("standalone", Standalone), ("sentinel", Sentinel), ("cluster", Cluster)];
    let mode = section.read(MODE, "standalone", |value| values::word(value, &modes));
    // `url` is for standalone, `urls` for the other modes. The one of another mode is ignored.
    let standalone = mode == Standalone;
    let url: RedisUrl = if standalone {
        section.read(URL, "redis://127.0.0.1:6379", values::parsed)
    } else {
        section.optional(URL, values::parsed).unwrap_or_default()
    };
    let urls = section.optional(URLS, urls);
    let master_name = if mode == Sentinel {
        section.read(MASTER_NAME, "mymaster", values::text)
    } else {
        section.optional(MASTER_NAME, values::text).unwrap_or_default()
    };
    let listed = |section: &Section<'_>| {
        urls.clone().unwrap_or_else(|| {
            if !section.has("urls") {
                section.refuse("urls", Invalid::new("missing: the addresses to contact first"));
            }
            Vec::new()
        })
    };
    if !section.has("mode") && section.has("urls") && !section.has("url") {
        section.warn(
            "urls",
            "ignored without mode sentinel or cluster; the address of one server is url",
        );
    }
    match mode {
        Standalone => Servers::Standalone(Box::new(url)),
        Sentinel => Servers::Sentinel { sentinels: listed(section), master_name },
        Cluster => Servers::Cluster { seeds: listed(section) },
    }
}

/// Checks settings that depend on each other.
fn check(section: &Section<'_>, settings: &RedisSettings) {
    let urls = settings.servers.urls();
    let encrypted = urls.iter().filter(|url| url.is_tls()).count();
    if encrypted != 0 && encrypted != urls.len() {
        section.refuse("urls", Invalid::new("must be rediss:// for all addresses or for none"));
    }
    if settings.tls != Tls::default() && encrypted == 0 && section.is_valid() {
        section.refuse("tls", Invalid::new("requires rediss:// addresses"));
    }
    let is_cluster = matches!(settings.servers, Servers::Cluster { .. });
    let named =
        settings.database.unwrap_or_default() != 0 || urls.iter().any(|url| url.database() != 0);
    if is_cluster && named {
        section.refuse("database", Invalid::new("must be 0: a cluster has no other database"));
    }
    if section.is_valid()
        && let Err(error) = settings.check()
    {
        section.refuse("tls", error);
    }
}

fn tls(redis: &mut Section<'_>) -> Tls {
    let mut section = redis.section(TLS);
    let ca = section.optional(CA, file);
    let cert = section.optional(CERT, file);
    let key = section.optional(KEY, file);
    if section.has("cert") != section.has("key") {
        section.refuse("cert", Invalid::new("a certificate and its key belong together"));
    }
    section.close();
    let identity = cert.zip(key).map(|(cert, key)| Identity { cert, key });
    Tls { ca, identity }
}

/// Reads a file. The effective configuration shows its path.
fn file(value: &Value) -> Read<Vec<u8>> {
    let invalid = || Invalid::new("must be the path of a file that can be read");
    let path = value.as_str().ok_or_else(invalid)?;
    let contents = fs::read(path).map_err(|_| invalid())?;
    Ok((contents, path.to_owned()))
}

fn urls(value: &Value) -> Read<Vec<RedisUrl>> {
    let texts = values::listed(value)?;
    if !(1..=MAX_URLS).contains(&texts.len()) {
        return Err(Invalid::new("must be 1 to 64 addresses"));
    }
    let urls: Vec<RedisUrl> =
        texts.iter().map(|text| text.parse()).collect::<Result<_, crate::store::SettingError>>()?;
    let shown: Vec<String> = urls.iter().map(ToString::to_string).collect();
    Ok((urls, shown.join(" ")))
}

fn secret(value: &Value) -> Read<Secret> {
    let (secret, _) = values::text(value)?;
    Ok((Secret(secret), "***".to_owned()))
}
