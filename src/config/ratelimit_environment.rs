//! The environment of envoyproxy/ratelimit, so that this program can stand where that one stood, such as in
//! a Deployment of Envoy Gateway.
//!
//! It is read if `CONFIG_TYPE` is set, and every name of ours counts more. A name is understood, or changes
//! nothing here and the log says why, or asks for what there is not and is refused.
//!
//! **Source:** envoyproxy/ratelimit, `src/settings/settings.go`.

use std::path::Path;

use figment::value::{Dict, Value};

use super::problem::{Notice, Problem};
use super::sources::{Layers, nest};

/// What becomes of a name.
#[derive(Clone, Copy, Debug)]
enum Meaning {
    /// A part of settings, which [`RatelimitEnvironment::settings`] puts together.
    Understood,
    /// The same, and one of the words for on and off.
    Switch,
    /// It changes nothing, for this reason.
    Ignored(&'static str),
    /// It must have one of these values, for this reason.
    Only(&'static [&'static str], &'static str),
}

use Meaning::{Ignored, Only, Switch, Understood};

/// Values that switch something off.
const OFF: &[&str] = &["false", "0", "f", "F", "FALSE", "False"];
const ON: &[&str] = &["1", "t", "T", "true", "TRUE", "True"];
const ONE_REDIS: &str = "one Redis has all counters";
const NO_STATSD: &str = "there is no statsd: metrics are at /metrics";
const NO_MEMCACHED: &str = "there is no Memcached";
const OWN_POOL: &str = "connections are counted by the store itself";
const PROBED: &str = "the store is asked again by itself, in at most 10 s";
const BACKOFF: &str = "pauses are 1 s to 30 s";

/// Every name, with what becomes of it.
const NAMES: &[(&str, Meaning)] = &[
    ("CONFIG_TYPE", Understood),
    ("HOST", Understood),
    ("PORT", Understood),
    ("DEBUG_HOST", Ignored("there is no debug port")),
    ("DEBUG_PORT", Ignored("there is no debug port")),
    ("GRPC_UDS", Understood),
    ("GRPC_HOST", Understood),
    ("GRPC_PORT", Understood),
    ("GRPC_MAX_CONNECTION_AGE", Understood),
    ("GRPC_MAX_CONNECTION_AGE_GRACE", Understood),
    ("GRPC_SERVER_USE_TLS", Switch),
    ("GRPC_SERVER_TLS_CERT", Understood),
    ("GRPC_SERVER_TLS_KEY", Understood),
    ("GRPC_CLIENT_TLS_CACERT", Understood),
    (
        "GRPC_SERVER_TLS_CA_CERT",
        Ignored("as in envoyproxy/ratelimit, whose name is GRPC_CLIENT_TLS_CACERT"),
    ),
    ("GRPC_CLIENT_TLS_SAN", Understood),
    ("LOG_LEVEL", Understood),
    ("LOG_FORMAT", Understood),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", Switch),
    ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", Switch),
    ("CONFIG_GRPC_XDS_NODE_ID", Understood),
    ("CONFIG_GRPC_XDS_NODE_METADATA", Understood),
    ("CONFIG_GRPC_XDS_SERVER_URL", Understood),
    ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", Understood),
    ("CONFIG_GRPC_XDS_SERVER_USE_TLS", Switch),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", Understood),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", Understood),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", Understood),
    ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", Understood),
    ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", Ignored(BACKOFF)),
    ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", Ignored(BACKOFF)),
    ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", Ignored(BACKOFF)),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", Ignored(BACKOFF)),
    ("XDS_CLIENT_BACKOFF_JITTER", Ignored(BACKOFF)),
    ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", Ignored("messages have up to 16 MiB")),
    ("USE_DOG_STATSD", Ignored(NO_STATSD)),
    ("USE_DOG_STATSD_MOGRIFIERS", Ignored(NO_STATSD)),
    ("USE_STATSD", Ignored(NO_STATSD)),
    ("STATSD_HOST", Ignored(NO_STATSD)),
    ("STATSD_PORT", Ignored(NO_STATSD)),
    ("STATS_FLUSH_INTERVAL", Ignored(NO_STATSD)),
    ("EXTRA_TAGS", Ignored("add labels where metrics are scraped")),
    ("DISABLE_STATS", Ignored("metrics are always counted")),
    ("USE_PROMETHEUS", Switch),
    ("PROMETHEUS_ADDR", Understood),
    ("PROMETHEUS_PATH", Only(&["/metrics"], "metrics are at /metrics")),
    (
        "PROMETHEUS_MAPPER_YAML",
        Ignored("names and labels of metrics are those of Envoy Gateway's mapping"),
    ),
    ("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", Ignored("times are in seconds")),
    ("RUNTIME_ROOT", Understood),
    ("RUNTIME_SUBDIRECTORY", Understood),
    ("RUNTIME_APPDIRECTORY", Understood),
    ("RUNTIME_IGNOREDOTFILES", Ignored("hidden files are never read")),
    ("RUNTIME_WATCH_ROOT", Ignored("every file and folder is watched")),
    ("EXPIRATION_JITTER_MAX_SECONDS", Ignored("keys expire when they no longer matter")),
    ("LOCAL_CACHE_SIZE_IN_BYTES", Ignored("deny-cache has its own size")),
    ("NEAR_LIMIT_RATIO", Understood),
    ("CACHE_KEY_PREFIX", Understood),
    ("BACKEND_TYPE", Only(&["redis"], "stores are Redis, and memory without REDIS_URL")),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", Switch),
    ("LIMIT_RESPONSE_HEADERS_ENABLED", Switch),
    (
        "LIMIT_LIMIT_HEADER",
        Only(&["RateLimit-Limit", "ratelimit-limit"], "headers have fixed names"),
    ),
    (
        "LIMIT_REMAINING_HEADER",
        Only(&["RateLimit-Remaining", "ratelimit-remaining"], "headers have fixed names"),
    ),
    (
        "LIMIT_RESET_HEADER",
        Only(&["RateLimit-Reset", "ratelimit-reset"], "headers have fixed names"),
    ),
    ("REDIS_SOCKET_TYPE", Understood),
    ("REDIS_TYPE", Understood),
    ("REDIS_URL", Understood),
    ("REDIS_AUTH", Understood),
    ("REDIS_SENTINEL_AUTH", Only(&[], "sentinels have the password of their servers")),
    ("REDIS_TLS", Switch),
    ("REDIS_TLS_CLIENT_CERT", Understood),
    ("REDIS_TLS_CLIENT_KEY", Understood),
    ("REDIS_TLS_CACERT", Understood),
    ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", Only(OFF, "names are always verified")),
    ("REDIS_POOL_SIZE", Ignored(OWN_POOL)),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", Ignored(OWN_POOL)),
    ("REDIS_PIPELINE_WINDOW", Ignored(OWN_POOL)),
    ("REDIS_PIPELINE_LIMIT", Ignored(OWN_POOL)),
    ("REDIS_CLUSTER_PIPELINE_PARALLELISM", Ignored(OWN_POOL)),
    ("REDIS_TIMEOUT", Ignored("envoy.deadline bounds a call")),
    ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", Switch),
    ("REDIS_STARTUP_INITIAL_INTERVAL", Ignored(PROBED)),
    ("REDIS_STARTUP_MAX_INTERVAL", Ignored(PROBED)),
    ("REDIS_STARTUP_MAX_ELAPSED_TIME", Ignored(PROBED)),
    ("REDIS_PERSECOND", Only(OFF, ONE_REDIS)),
    ("REDIS_PERSECOND_SOCKET_TYPE", Ignored(ONE_REDIS)),
    ("REDIS_PERSECOND_TYPE", Ignored(ONE_REDIS)),
    ("REDIS_PERSECOND_URL", Ignored(ONE_REDIS)),
    ("REDIS_PERSECOND_POOL_SIZE", Ignored(ONE_REDIS)),
    ("REDIS_PERSECOND_AUTH", Ignored(ONE_REDIS)),
    ("REDIS_PERSECOND_TLS", Ignored(ONE_REDIS)),
    ("REDIS_PERSECOND_SENTINEL_AUTH", Ignored(ONE_REDIS)),
    ("REDIS_PERSECOND_PIPELINE_WINDOW", Ignored(ONE_REDIS)),
    ("REDIS_PERSECOND_PIPELINE_LIMIT", Ignored(ONE_REDIS)),
    ("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", Ignored(ONE_REDIS)),
    ("REDIS_PERSECOND_TIMEOUT", Ignored(ONE_REDIS)),
    ("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", Ignored(ONE_REDIS)),
    ("MEMCACHE_HOST_PORT", Ignored(NO_MEMCACHED)),
    ("MEMCACHE_MAX_IDLE_CONNS", Ignored(NO_MEMCACHED)),
    ("MEMCACHE_SRV", Ignored(NO_MEMCACHED)),
    ("MEMCACHE_SRV_REFRESH", Ignored(NO_MEMCACHED)),
    ("MEMCACHE_TLS", Ignored(NO_MEMCACHED)),
    ("MEMCACHE_TLS_CLIENT_CERT", Ignored(NO_MEMCACHED)),
    ("MEMCACHE_TLS_CLIENT_KEY", Ignored(NO_MEMCACHED)),
    ("MEMCACHE_TLS_CACERT", Ignored(NO_MEMCACHED)),
    ("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", Ignored(NO_MEMCACHED)),
    ("SHADOW_MODE", Only(OFF, "SetMode of the rule * switches all rules to shadow")),
    ("QUOTA_MODE", Only(OFF, "descriptors have quota_mode")),
    ("RESPONSE_DYNAMIC_METADATA", Switch),
    ("MERGE_DOMAIN_CONFIG", Ignored("files and resources with one domain are one tree")),
    ("USE_CALENDAR_MONTH_RATE_LIMIT", Switch),
    ("TRACING_ENABLED", Switch),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", Understood),
    ("TRACING_SERVICE_NAME", Ignored("the service is rlaas")),
    ("TRACING_SERVICE_NAMESPACE", Ignored("the service is rlaas")),
    ("TRACING_SERVICE_INSTANCE_ID", Ignored("instances name themselves")),
    ("TRACING_EXPORTER_PROTOCOL", Ignored("traces are sent over gRPC")),
    ("TRACING_SAMPLING_RATE", Understood),
];

/// A setting: the name that it is from, its key and its value.
type FromName = (&'static str, &'static str, Value);

/// The environment of a process.
pub(super) struct RatelimitEnvironment<'a>(&'a [(String, String)]);

impl<'a> RatelimitEnvironment<'a> {
    /// Returns the environment if it is that of envoyproxy/ratelimit.
    pub(super) fn detect(environment: &'a [(String, String)]) -> Option<Self> {
        let environment = Self(environment);
        environment.value("CONFIG_TYPE").is_some().then_some(environment)
    }

    /// Adds its settings, with the problems and notices of names.
    pub(super) fn add_to(&self, layers: &mut Layers) {
        let origin = |name: &str| format!("environment variable {name}");
        for (name, meaning) in NAMES {
            let Some(value) = self.value(name) else { continue };
            let (origin, key) = (origin(name), (*name).to_owned());
            match meaning {
                Only(valid, why) if !valid.contains(&value) => {
                    let problem = match valid {
                        [] => format!("must not be set: {why}"),
                        [first, ..] => format!("must be {first}: {why}"),
                    };
                    layers.problems.push(Problem::invalid(origin, key, problem));
                }
                Ignored(why) => {
                    let text = format!("ignored: {why}").into();
                    Notice { origin, key, others: 0, text }.add_to(&mut layers.notices);
                }
                Switch if !ON.contains(&value) && !OFF.contains(&value) => {
                    let problem = "must be true or false".to_owned();
                    layers.problems.push(Problem::invalid(origin, key, problem));
                }
                Understood | Switch | Only(..) => {}
            }
        }
        for (name, key, value) in self.settings() {
            layers.add(origin(name), nest(key, value));
        }
    }

    fn value(&self, name: &str) -> Option<&'a str> {
        let found = self.0.iter().find(|(given, _)| given == name);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// Returns `true` for a name that is set to one of the words for it.
    fn is_on(&self, name: &str) -> bool {
        self.value(name).is_some_and(|value| ON.contains(&value))
    }

    fn settings(&self) -> Vec<FromName> {
        let mut settings = self.server();
        settings.extend(self.rules());
        settings.extend(self.redis());
        settings
    }

    /// Listeners, logs and metrics.
    fn server(&self) -> Vec<FromName> {
        let mut settings = Vec::new();
        let mut set = |name, key, value: String| settings.push((name, key, Value::from(value)));
        let address = |host: &str, port: &str| {
            let is_bare = host.contains(':') && !host.starts_with('[');
            if is_bare { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
        };
        let host = |name| self.value(name).unwrap_or("0.0.0.0");
        // For a service of this name Kubernetes sets tcp://….
        let port = |name, default| {
            self.value(name).filter(|port| !port.contains("://")).unwrap_or(default)
        };
        if let Some(path) = self.value("GRPC_UDS") {
            set("GRPC_UDS", "server.listen", format!("unix:{path}"));
        } else {
            let port = port("GRPC_PORT", "8081");
            set("GRPC_PORT", "server.listen", address(host("GRPC_HOST"), port));
        }
        set("PORT", "server.http", address(host("HOST"), port("PORT", "8080")));
        if self.is_on("USE_PROMETHEUS") {
            let listen = self.value("PROMETHEUS_ADDR").unwrap_or(":9090");
            let (host, port) = listen.rsplit_once(':').unwrap_or(("", listen));
            let host = if host.is_empty() { "0.0.0.0" } else { host };
            set("PROMETHEUS_ADDR", "server.metrics", format!("{host}:{port}"));
            set("USE_PROMETHEUS", "telemetry.envoy-names", "true".to_owned());
        }
        if self.is_on("GRPC_SERVER_USE_TLS") {
            set("GRPC_SERVER_USE_TLS", "server.tls.http", "false".to_owned());
            for (name, key) in [
                ("GRPC_SERVER_TLS_CERT", "server.tls.cert"),
                ("GRPC_SERVER_TLS_KEY", "server.tls.key"),
                ("GRPC_CLIENT_TLS_CACERT", "server.tls.client-ca"),
            ] {
                self.value(name).into_iter().for_each(|path| set(name, key, path.to_owned()));
            }
        }
        for (name, key) in [
            ("GRPC_MAX_CONNECTION_AGE", "server.max-connection-age"),
            ("GRPC_MAX_CONNECTION_AGE_GRACE", "server.max-connection-age-grace"),
        ] {
            let Some(value) = self.value(name) else { continue };
            // What is no duration is refused where it is read.
            let seconds = humantime::parse_duration(value).map(|age| age.as_secs_f64().ceil());
            let age = match seconds {
                Ok(0.0) if key.ends_with("-age") => "never".to_owned(),
                Ok(seconds) => format!("{seconds}s"),
                Err(_) => value.to_owned(),
            };
            set(name, key, age);
        }
        if let Some(level) = self.value("LOG_LEVEL") {
            let level = match &*level.to_ascii_lowercase() {
                "panic" | "fatal" => "error".to_owned(),
                "warning" => "warn".to_owned(),
                level => level.to_owned(),
            };
            set("LOG_LEVEL", "telemetry.log", level);
        }
        if let Some(format) = self.value("LOG_FORMAT") {
            set("LOG_FORMAT", "telemetry.format", format.to_ascii_lowercase());
        }
        if self.is_on("TRACING_ENABLED") {
            const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
            // Without one, that of OpenTelemetry's specification.
            let endpoint = self.value(ENDPOINT).unwrap_or("http://localhost:4317");
            set(ENDPOINT, "telemetry.otlp.endpoint", endpoint.to_owned());
            let rate = self.value("TRACING_SAMPLING_RATE").unwrap_or("1").to_owned();
            set("TRACING_SAMPLING_RATE", "telemetry.otlp.sample-ratio", rate);
        }
        let client =
            self.value("GRPC_CLIENT_TLS_SAN").filter(|_| self.is_on("GRPC_SERVER_USE_TLS"));
        if let Some(name) = client {
            let roles = vec![Value::from("check")];
            let client = [("name".to_owned(), name.into()), ("roles".to_owned(), roles.into())];
            let clients = vec![Value::from(Dict::from(client))];
            settings.push(("GRPC_CLIENT_TLS_SAN", "auth.clients", clients.into()));
        }
        settings
    }

    /// The rules and what becomes of requests.
    fn rules(&self) -> Vec<FromName> {
        let counts_refused = !self.is_on("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT");
        let mut settings =
            vec![("CONFIG_TYPE", "envoy.count-refused", counts_refused.to_string().into())];
        for (name, key) in [
            ("USE_CALENDAR_MONTH_RATE_LIMIT", "envoy.calendar-month"),
            ("RESPONSE_DYNAMIC_METADATA", "envoy.metadata"),
            ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "health.require-store"),
        ] {
            if self.value(name).is_some() {
                settings.push((name, key, self.is_on(name).to_string().into()));
            }
        }
        let near_limit = self.value("NEAR_LIMIT_RATIO").unwrap_or("0.8");
        settings.push(("NEAR_LIMIT_RATIO", "envoy.near-limit", near_limit.into()));
        if self.is_on("LIMIT_RESPONSE_HEADERS_ENABLED") {
            settings.push(("LIMIT_RESPONSE_HEADERS_ENABLED", "envoy.headers", "legacy".into()));
        }
        match self.value("CONFIG_TYPE") {
            Some("GRPC_XDS_SOTW") => settings.extend(self.xds()),
            Some("FILE") => {
                let part = |name, default| self.value(name).unwrap_or(default);
                let folder = Path::new(part("RUNTIME_ROOT", "/srv/runtime_data/current"))
                    .join(part("RUNTIME_SUBDIRECTORY", ""))
                    .join(part("RUNTIME_APPDIRECTORY", "config"));
                settings.push(("RUNTIME_ROOT", "envoy.files", folder.display().to_string().into()));
            }
            _ => {
                settings.push(("CONFIG_TYPE", "envoy.xds.address", "FILE or GRPC_XDS_SOTW".into()));
            }
        }
        settings
    }

    /// The management server.
    fn xds(&self) -> Vec<FromName> {
        let is_encrypted = self.is_on("CONFIG_GRPC_XDS_SERVER_USE_TLS");
        let scheme = if is_encrypted { "https" } else { "http" };
        let server = self.value("CONFIG_GRPC_XDS_SERVER_URL").unwrap_or("localhost:18000");
        let node = self.value("CONFIG_GRPC_XDS_NODE_ID").unwrap_or("default");
        let waits = !self.is_on("FORCE_START_WITHOUT_INITIAL_CONFIG")
            || self.is_on("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED");
        let address = format!("{scheme}://{server}");
        let mut settings = vec![
            ("CONFIG_GRPC_XDS_SERVER_URL", "envoy.xds.address", Value::from(address)),
            ("CONFIG_GRPC_XDS_NODE_ID", "envoy.xds.node", node.into()),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", "envoy.xds.wait", waits.to_string().into()),
        ];
        for (name, key, between) in [
            ("CONFIG_GRPC_XDS_NODE_METADATA", "envoy.xds.node-metadata", '='),
            ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "envoy.xds.headers", ':'),
        ] {
            if let Some(text) = self.value(name) {
                settings.push((name, key, pairs(text, between).into()));
            }
        }
        for (name, key) in [
            ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "envoy.xds.tls.cert"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "envoy.xds.tls.key"),
            ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "envoy.xds.tls.ca"),
            ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "envoy.xds.tls.server-name"),
        ] {
            if let Some(value) = self.value(name).filter(|_| is_encrypted) {
                settings.push((name, key, value.into()));
            }
        }
        settings
    }

    /// The store. Without `REDIS_URL` it is memory.
    fn redis(&self) -> Vec<FromName> {
        const URL: &str = "REDIS_URL";
        let Some(given) = self.value(URL) else { return Vec::new() };
        let mut settings = vec![(URL, "store.backend", Value::from("redis"))];
        let mut set = |name, key, value: Value| settings.push((name, key, value));
        let scheme = if self.is_on("REDIS_TLS") { "rediss" } else { "redis" };
        let url = |server: &str| match server.contains("://") {
            true if scheme == "rediss" => server.replacen("redis://", "rediss://", 1),
            true => server.to_owned(),
            false if server.starts_with('/') => format!("unix://{server}"),
            false => format!("{scheme}://{server}"),
        };
        let urls = |servers: &str| -> Value {
            servers.split(',').map(|server| Value::from(url(server))).collect::<Vec<_>>().into()
        };
        match &*self.value("REDIS_TYPE").unwrap_or("SINGLE").to_ascii_uppercase() {
            "SENTINEL" => {
                let (master, sentinels) = given.split_once(',').unwrap_or((given, ""));
                set("REDIS_TYPE", "store.redis.mode", "sentinel".into());
                set(URL, "store.redis.master-name", master.into());
                set(URL, "store.redis.urls", urls(sentinels));
            }
            "CLUSTER" => {
                set("REDIS_TYPE", "store.redis.mode", "cluster".into());
                set(URL, "store.redis.urls", urls(given));
            }
            "SINGLE" => set(URL, "store.redis.url", url(given).into()),
            other => set("REDIS_TYPE", "store.redis.mode", other.to_ascii_lowercase().into()),
        }
        if let Some(auth) = self.value("REDIS_AUTH") {
            let (user, password) = auth.split_once(':').unwrap_or(("", auth));
            if !user.is_empty() {
                set("REDIS_AUTH", "store.redis.username", user.into());
            }
            set("REDIS_AUTH", "store.redis.password", password.into());
        }
        for (name, key) in [
            ("REDIS_TLS_CLIENT_CERT", "store.redis.tls.cert"),
            ("REDIS_TLS_CLIENT_KEY", "store.redis.tls.key"),
            ("REDIS_TLS_CACERT", "store.redis.tls.ca"),
            ("CACHE_KEY_PREFIX", "store.redis.key-prefix"),
        ] {
            if let Some(value) = self.value(name) {
                set(name, key, value.into());
            }
        }
        settings
    }
}

/// Reads names and texts, separated by commas.
fn pairs(text: &str, between: char) -> Dict {
    let pairs = text.split(',').filter_map(|pair| pair.split_once(between));
    pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().into())).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Sources};
    use super::*;

    fn load(names: &[(&str, &str)]) -> Result<Config, String> {
        let environment =
            names.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let sources = Sources { environment, ..Sources::default() };
        Config::load(&sources).map_err(|problems| problems.to_string())
    }

    /// Returns the value in force of a setting.
    fn effective(config: &Config, key: &str) -> String {
        let found = config.effective.iter().rfind(|of| of.key == key);
        found.map(|of| of.value.clone()).unwrap_or_default()
    }

    const XDS: (&str, &str) = ("CONFIG_TYPE", "GRPC_XDS_SOTW");

    /// Names with values, and a setting with the value that it gets.
    type UnderstoodCase = (&'static [(&'static str, &'static str)], &'static str, &'static str);

    #[test]
    #[expect(clippy::too_many_lines, reason = "a case for each name")]
    fn what_is_understood_sets_its_setting() {
        const REDIS: (&str, &str) = ("REDIS_URL", "redis.svc:6379");
        const CLUSTER: (&str, &str) = ("REDIS_URL", "a:1,b:2");
        const TLS: (&str, &str) = ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true");
        const PROMETHEUS: (&str, &str) = ("USE_PROMETHEUS", "true");
        const TRACING: [(&str, &str); 4] = [
            ("TRACING_ENABLED", "1"),
            XDS,
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317/"),
            ("TRACING_SAMPLING_RATE", "0.6"),
        ];
        let cases: &[UnderstoodCase] = &[
            (&[XDS], "server.listen", "0.0.0.0:8081"),
            (&[XDS], "server.http", "0.0.0.0:8080"),
            (&[XDS], "envoy.count-refused", "true"),
            (&[XDS], "envoy.xds.address", "http://localhost:18000"),
            (&[XDS], "envoy.xds.node", "default"),
            (&[XDS], "envoy.xds.wait", "true"),
            (&[XDS, ("HOST", "127.0.0.1")], "server.http", "127.0.0.1:8080"),
            (&[XDS, ("HOST", "::1"), ("PORT", "1")], "server.http", "[::1]:1"),
            (&[XDS, ("PORT", "tcp://10.0.0.1:80")], "server.http", "0.0.0.0:8080"),
            (&[XDS, ("GRPC_UDS", "/tmp/r.sock")], "server.listen", "unix:/tmp/r.sock"),
            (&[XDS, ("GRPC_HOST", "127.0.0.1")], "server.listen", "127.0.0.1:8081"),
            (&[XDS, ("GRPC_PORT", "9")], "server.listen", "0.0.0.0:9"),
            (&[XDS, ("GRPC_MAX_CONNECTION_AGE", "1h30m")], "server.max-connection-age", "5400s"),
            (
                &[XDS, ("GRPC_MAX_CONNECTION_AGE_GRACE", "5s")],
                "server.max-connection-age-grace",
                "5s",
            ),
            (&[XDS, ("LOG_LEVEL", "WARN")], "telemetry.log", "warn"),
            (&[XDS, ("LOG_FORMAT", "JSON")], "telemetry.format", "json"),
            (&[XDS, ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")], "envoy.xds.wait", "false"),
            (
                &[
                    XDS,
                    ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
                    ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "1"),
                ],
                "envoy.xds.wait",
                "true",
            ),
            (&[XDS, ("CONFIG_GRPC_XDS_NODE_ID", "n")], "envoy.xds.node", "n"),
            (
                &[XDS, ("CONFIG_GRPC_XDS_NODE_METADATA", "a=b,c=d")],
                "envoy.xds.node-metadata",
                "{a: b, c: d}",
            ),
            (
                &[XDS, ("CONFIG_GRPC_XDS_SERVER_URL", "eg:18001")],
                "envoy.xds.address",
                "http://eg:18001",
            ),
            (
                &[XDS, ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "x-a:b")],
                "envoy.xds.headers",
                "{x-a: '***'}",
            ),
            (&[XDS, TLS], "envoy.xds.address", "https://localhost:18000"),
            (
                &[
                    XDS,
                    TLS,
                    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/c"),
                    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/k"),
                ],
                "envoy.xds.tls.key",
                "/k",
            ),
            (&[XDS, TLS, ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/ca")], "envoy.xds.tls.ca", "/ca"),
            (
                &[XDS, TLS, ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "eg")],
                "envoy.xds.tls.server-name",
                "eg",
            ),
            (&TRACING, "telemetry.otlp.endpoint", "http://collector:4317"),
            (&TRACING, "telemetry.otlp.sample-ratio", "0.6"),
            (&TRACING[..2], "telemetry.otlp.endpoint", "http://localhost:4317"),
            (&TRACING[2..], "telemetry.otlp.endpoint", ""),
            (&TRACING[2..], "telemetry.otlp.sample-ratio", "1"),
            (&[XDS, PROMETHEUS], "server.metrics", "0.0.0.0:9090"),
            (&[XDS, PROMETHEUS, ("PROMETHEUS_ADDR", ":19001")], "server.metrics", "0.0.0.0:19001"),
            (
                &[("CONFIG_TYPE", "FILE"), ("RUNTIME_ROOT", "/no"), ("RUNTIME_SUBDIRECTORY", "s")],
                "envoy.files",
                "",
            ),
            (
                &[XDS, ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true")],
                "envoy.count-refused",
                "false",
            ),
            (&[XDS, ("LIMIT_RESPONSE_HEADERS_ENABLED", "true")], "envoy.headers", "legacy"),
            (&[XDS, ("RESPONSE_DYNAMIC_METADATA", "true")], "envoy.metadata", "true"),
            (&[XDS, ("USE_CALENDAR_MONTH_RATE_LIMIT", "t")], "envoy.calendar-month", "true"),
            (
                &[XDS, ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true")],
                "health.require-store",
                "true",
            ),
            (&[XDS], "store.backend", "memory"),
            (&[XDS, REDIS], "store.backend", "redis"),
            (&[XDS, REDIS], "store.redis.url", "redis://redis.svc:6379"),
            (
                &[XDS, ("REDIS_URL", "/r.sock"), ("REDIS_SOCKET_TYPE", "unix")],
                "store.redis.url",
                "unix:///r.sock",
            ),
            (&[XDS, REDIS, ("REDIS_TLS", "true")], "store.redis.url", "rediss://redis.svc:6379"),
            (
                &[XDS, ("REDIS_URL", "redis://r:1"), ("REDIS_TLS", "true")],
                "store.redis.url",
                "rediss://r:1",
            ),
            (&[XDS], "envoy.near-limit", "0.8"),
            (&[XDS, ("NEAR_LIMIT_RATIO", "0.5")], "envoy.near-limit", "0.5"),
            (&[XDS, ("GRPC_MAX_CONNECTION_AGE", "0s")], "server.max-connection-age", "never"),
            (&[XDS, ("GRPC_PORT", "tcp://10.0.0.1:80")], "server.listen", "0.0.0.0:8081"),
            (&[XDS, CLUSTER, ("REDIS_TYPE", "cluster")], "store.redis.mode", "cluster"),
            (
                &[XDS, ("REDIS_URL", "m,a:1"), ("REDIS_TYPE", "SENTINEL")],
                "store.redis.master-name",
                "m",
            ),
            (&[XDS, REDIS, ("REDIS_AUTH", "u:p")], "store.redis.username", "u"),
            (&[XDS, REDIS, ("REDIS_AUTH", "p")], "store.redis.password", "***"),
            (&[XDS, REDIS, ("CACHE_KEY_PREFIX", "p")], "store.redis.key-prefix", "p"),
            (&[XDS, REDIS, ("RLAAS_STORE__BACKEND", "memory")], "store.backend", "memory"),
            (&[XDS, ("GRPC_PORT", "9"), ("RLAAS_SERVER__LISTEN", "h:1")], "server.listen", "h:1"),
        ];
        for (names, key, expected) in cases {
            let config = load(names);
            if *key == "envoy.files" {
                let problem = config.expect_err("a folder that is not there");
                assert!(problem.starts_with("/no/s/config: can't be read"), "{problem}");
                continue;
            }
            let config = config.unwrap_or_else(|problems| panic!("{names:?}: {problems}"));
            assert_eq!(effective(&config, key), *expected, "{names:?}");
        }
    }

    #[test]
    fn every_other_name_is_ignored_with_a_line_or_refused() {
        for (name, meaning) in NAMES {
            match meaning {
                Understood => {}
                Switch => {
                    let problem = load(&[XDS, (name, "yes")]).expect_err(name);
                    assert!(
                        problem.contains(name) && problem.contains("must be true"),
                        "{problem}"
                    );
                }
                Ignored(_) => {
                    let config = load(&[XDS, (name, "x")]).expect("a configuration");
                    let notices: Vec<_> = config.notices.iter().map(ToString::to_string).collect();
                    assert_eq!(notices.len(), 1, "{name}: {notices:?}");
                    assert!(notices[0].contains(name) && notices[0].contains("ignored: "));
                }
                Only(valid, _) => {
                    let problem = load(&[XDS, (name, "other")]).expect_err(name);
                    assert!(problem.contains(name) && problem.contains("must "), "{problem}");
                    if let Some(valid) = valid.first() {
                        assert!(load(&[XDS, (name, valid)]).is_ok(), "{name}");
                    }
                }
            }
            // Without CONFIG_TYPE no name counts, but for our own REDIS_URL.
            if !matches!(*name, "CONFIG_TYPE" | "REDIS_URL") {
                let config = load(&[(name, "x")]).expect("a configuration");
                assert!(config.notices.is_empty() && config.xds.is_none(), "{name}");
            }
        }
    }

    #[test]
    fn the_book_lists_every_name() {
        let page = include_str!("../../docs/envoy-gateway.md");
        for (name, meaning) in NAMES {
            let row = match meaning {
                Understood | Switch => format!("| `{name}` | understood | "),
                Ignored(why) => format!("| `{name}` | ignored | {why} |"),
                Only([], why) => format!("| `{name}` | refused | {why} |"),
                Only([first, ..], why) => format!("| `{name}` | only `{first}` | {why} |"),
            };
            assert!(page.contains(&row), "{row}");
        }
    }

    #[test]
    fn wrong_values_are_refused_by_their_names() {
        for (names, expected) in [
            (&[("CONFIG_TYPE", "xds")][..], "CONFIG_TYPE"),
            (&[XDS, ("GRPC_PORT", "x")], "GRPC_PORT"),
            (&[XDS, ("GRPC_MAX_CONNECTION_AGE", "x")], "GRPC_MAX_CONNECTION_AGE"),
            (&[XDS, ("LOG_FORMAT", "xml")], "LOG_FORMAT"),
            (&[XDS, ("REDIS_URL", "h:1"), ("REDIS_TYPE", "x")], "REDIS_TYPE"),
            (&[XDS, ("GRPC_SERVER_USE_TLS", "true")], "GRPC_SERVER_USE_TLS"),
            (
                &[XDS, ("GRPC_SERVER_USE_TLS", "true"), ("GRPC_CLIENT_TLS_CACERT", "/no")],
                "GRPC_CLIENT_TLS_CACERT",
            ),
            (
                &[XDS, ("TRACING_ENABLED", "1"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector")],
                "OTEL_EXPORTER_OTLP_ENDPOINT",
            ),
            (
                &[XDS, ("TRACING_ENABLED", "1"), ("TRACING_SAMPLING_RATE", "60")],
                "TRACING_SAMPLING_RATE",
            ),
        ] {
            let problem = load(names).expect_err(expected);
            assert!(problem.starts_with(&format!("environment variable {expected}")), "{problem}");
        }
    }
}
