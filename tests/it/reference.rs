//! The generated references: the pages equal the output of the program, and their claims are true.
//!
//! `UPDATE_REFERENCE=1 cargo test --test it reference::` writes the pages anew.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rlaas::config::{Config, Kind, SettingReference, Sources, reference};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::run;
use rlaas_testkit::tls::{Certificate, Certificates};
use serde_json::Value;

/// A value other than the default for each setting that a variable can set.
const VALUES: &[(&str, &str)] = &[
    ("server.name", "production"),
    ("server.listen", "127.0.0.1:1"),
    ("server.http", "[127.0.0.1:2, 127.0.0.1:3]"),
    ("server.console", "127.0.0.1:8081"),
    ("server.metrics", "127.0.0.1:9090"),
    ("server.workers", "3"),
    ("server.tls.cert", "CERT"),
    ("server.tls.key", "KEY"),
    ("server.tls.client-ca", "CA"),
    ("server.tls.http", "false"),
    ("server.max-connection-age", "1h"),
    ("server.max-connection-age-grace", "1s"),
    ("server.keepalive.interval", "1s"),
    ("server.keepalive.timeout", "1s"),
    ("server.limits.connections", "1"),
    ("server.limits.connections-per-address", "1"),
    ("server.limits.streams", "1"),
    ("server.limits.request-time", "1s"),
    ("server.drain.delay", "1s"),
    ("server.drain.timeout", "1s"),
    ("http.headers", "both"),
    ("http.hosts", "[rlaas.internal]"),
    ("http.cors", "['https://app.example']"),
    ("privacy.hash", "[user_id, attributes.api_key]"),
    ("privacy.key-file", "KEY"),
    ("grpc.headers", "both"),
    ("health.require-store", "true"),
    ("envoy.files", "[config/envoy/rules.yaml]"),
    ("envoy.deadline", "1s"),
    ("envoy.count-refused", "true"),
    ("envoy.calendar-month", "true"),
    ("envoy.headers", "both"),
    ("envoy.metadata", "true"),
    ("envoy.near-limit", "0.5"),
    ("envoy.xds.address", "https://127.0.0.1:1"),
    ("envoy.xds.node", "ratelimit"),
    ("envoy.xds.node-metadata", "{zone: a}"),
    ("envoy.xds.headers", "{x-key: a}"),
    ("envoy.xds.wait", "false"),
    ("envoy.xds.max-descriptors", "7"),
    ("envoy.xds.tls.ca", "CA"),
    ("envoy.xds.tls.cert", "CERT"),
    ("envoy.xds.tls.key", "KEY"),
    ("envoy.xds.tls.server-name", "envoy-gateway"),
    ("envoy.projects.domain", "shop"),
    ("envoy.project-entry", "tenant"),
    ("envoy.missing-entry", "allow"),
    ("auth.tokens", "[{name: a, sha256: HASH, roles: [check]}]"),
    ("auth.clients", "[{name: a, roles: [check]}]"),
    ("auth.api-keys", "accepted"),
    ("auth.api-keys-max-age", "1h"),
    ("auth.oidc.issuer", "http://127.0.0.1:1"),
    ("auth.oidc.audience", "[a, b]"),
    ("auth.oidc.algorithms", "[ES256]"),
    ("auth.oidc.ca", "CA"),
    ("auth.oidc.roles-claim", "realm_access.roles"),
    ("auth.oidc.projects-claim", "projects"),
    ("auth.oidc.console.client-id", "console"),
    ("auth.oidc.console.client-secret-file", "SECRET"),
    ("auth.oidc.console.redirect-uri", "https://a.example/console/oidc-callback"),
    ("auth.oidc.console.scopes", "[openid, groups]"),
    ("store.backend", "redis"),
    ("store.memory.max-keys", "1"),
    ("store.memory.journal.path", "a"),
    ("store.memory.snapshot", "2s"),
    ("store.redis.mode", "sentinel"),
    ("store.redis.url", "redis://127.0.0.1:1"),
    ("store.redis.urls", "[redis://127.0.0.1:1, redis://127.0.0.1:2]"),
    ("store.redis.master-name", "a"),
    ("store.redis.username", "a"),
    ("store.redis.password", "a"),
    ("store.redis.database", "1"),
    ("store.redis.tls.ca", "CA"),
    ("store.redis.tls.cert", "CERT"),
    ("store.redis.tls.key", "KEY"),
    ("store.redis.key-prefix", "a"),
    ("store.redis.timeout", "1s"),
    ("store.redis.max-in-flight", "1"),
    ("deny-cache.enabled", "false"),
    ("deny-cache.max-age", "2s"),
    ("deny-cache.max-keys", "1"),
    ("state-dir", "a"),
    ("audit.keys", "clear"),
    ("audit.max-entries", "2"),
    ("idempotency.ttl", "2s"),
    ("idempotency.max-keys", "1"),
    ("projects.max-rules", "1"),
    ("telemetry.log", "debug"),
    ("telemetry.format", "json"),
    ("telemetry.projects", "7"),
    ("telemetry.envoy-names", "true"),
    ("telemetry.top-keys", "true"),
    ("telemetry.otlp.endpoint", "http://127.0.0.1:1"),
    ("telemetry.otlp.headers", "{authorization: a}"),
    ("telemetry.otlp.ca", "CA"),
    ("telemetry.otlp.traces", "false"),
    ("telemetry.otlp.sample-ratio", "0.5"),
    ("telemetry.otlp.metrics", "true"),
    ("telemetry.otlp.metrics-interval", "5s"),
    ("rate-limiter.use-algo", "gcra"),
    ("rate-limiter.window-size", "1s"),
    ("rate-limiter.max-requests", "1"),
    ("rate-limiter.burst", "2"),
    ("rate-limiter.key-by", "[resource]"),
    ("rate-limiter.cost", "2"),
    ("rate-limiter.post-paid", "true"),
    ("rate-limiter.max-debt", "7"),
    ("rate-limiter.near-limit", "0.8"),
    ("rate-limiter.overridable", "true"),
    ("rate-limiter.fail-open", "true"),
    ("rate-limiter.on-change", "scale"),
    ("rules", "[{name: a, limit: 1, window: 1s}]"),
    ("unmatched", "deny"),
];
/// The same for settings that stand in place of another one.
const ALTERNATIVES: [(&str, &str); 3] = [
    ("rate-limiter.local-share", "0.25"),
    ("rate-limiter.on-store-failure", "local"),
    ("rate-limiter.breaker-opens-rule", "true"),
];

/// Settings without which another one is not valid.
const COMPANIONS: &[(&str, &[(&str, &str)])] = &[
    ("rate-limiter.post-paid", &[("rate-limiter.use-algo", "gcra")]),
    (
        "rate-limiter.max-debt",
        &[("rate-limiter.use-algo", "gcra"), ("rate-limiter.post-paid", "true")],
    ),
    ("privacy.hash", &[("privacy.key-file", "KEY")]),
    ("store.memory.snapshot", &[("state-dir", "a")]),
    ("server.tls.cert", &[("server.tls.key", "KEY")]),
    ("server.tls.key", &[("server.tls.cert", "CERT")]),
    ("server.tls.client-ca", &[("server.tls.cert", "CERT"), ("server.tls.key", "KEY")]),
    ("server.tls.http", &[("server.tls.cert", "CERT"), ("server.tls.key", "KEY")]),
    (
        "envoy.xds.tls.cert",
        &[("envoy.xds.address", "https://127.0.0.1:1"), ("envoy.xds.tls.key", "KEY")],
    ),
    (
        "envoy.xds.tls.key",
        &[("envoy.xds.address", "https://127.0.0.1:1"), ("envoy.xds.tls.cert", "CERT")],
    ),
    (
        "auth.clients",
        &[("server.tls.cert", "CERT"), ("server.tls.key", "KEY"), ("server.tls.client-ca", "CA")],
    ),
    ("auth.oidc.issuer", &[("auth.oidc.audience", "a")]),
    ("auth.oidc.audience", &[("auth.oidc.issuer", "http://127.0.0.1:1")]),
    ("auth.oidc.algorithms", OIDC),
    ("auth.oidc.roles-claim", OIDC),
    ("auth.oidc.projects-claim", OIDC),
    (
        "auth.oidc.console.client-id",
        &[OIDC[0], OIDC[1], ("auth.oidc.console.redirect-uri", REDIRECT_URI)],
    ),
    (
        "auth.oidc.console.redirect-uri",
        &[OIDC[0], OIDC[1], ("auth.oidc.console.client-id", "console")],
    ),
    ("auth.oidc.console.client-secret-file", CONSOLE_CLIENT),
    ("auth.oidc.console.scopes", CONSOLE_CLIENT),
    ("telemetry.otlp.ca", &[("telemetry.otlp.endpoint", "https://127.0.0.1:1")]),
    ("telemetry.otlp.metrics", &[("telemetry.otlp.endpoint", "http://127.0.0.1:1")]),
    ("auth.oidc.ca", &[("auth.oidc.issuer", "https://127.0.0.1:1"), ("auth.oidc.audience", "a")]),
    ("store.redis.mode", &[("store.redis.urls", "redis://127.0.0.1:1")]),
    ("store.redis.tls.ca", &[("store.redis.url", "rediss://127.0.0.1:1")]),
    (
        "store.redis.tls.cert",
        &[("store.redis.url", "rediss://127.0.0.1:1"), ("store.redis.tls.key", "KEY")],
    ),
    (
        "store.redis.tls.key",
        &[("store.redis.url", "rediss://127.0.0.1:1"), ("store.redis.tls.cert", "CERT")],
    ),
    ("rate-limiter.burst", &[("rate-limiter.use-algo", "gcra")]),
    ("rate-limiter.local-share", &[("rate-limiter.on-store-failure", "local")]),
];

const OIDC: &[(&str, &str)] =
    &[("auth.oidc.issuer", "http://127.0.0.1:1"), ("auth.oidc.audience", "a")];

const REDIRECT_URI: &str = "http://127.0.0.1:1/console/oidc-callback";
const CONSOLE_CLIENT: &[(&str, &str)] = &[
    OIDC[0],
    OIDC[1],
    ("auth.oidc.console.client-id", "console"),
    ("auth.oidc.console.redirect-uri", REDIRECT_URI),
];

/// Compares a file with what the program prints, and writes it anew where that is asked for.
fn assert_printed(file: &str, arguments: &[&str]) {
    let (code, printed, error) = run(arguments);
    assert_eq!((code, error.as_str()), (0, ""), "{arguments:?}");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::write(&file, &printed).expect("a file that can be written");
    }
    let kept = fs::read_to_string(&file).unwrap_or_default();
    let differs = kept.lines().zip(printed.lines()).find(|(kept, printed)| kept != printed);
    assert!(
        kept == printed,
        "{}: UPDATE_REFERENCE=1 writes it anew; first difference: {differs:?}",
        file.display()
    );
}

#[test]
fn settings_page_equals_the_output() {
    assert_printed("docs/reference/settings.md", &["config", "--reference"]);
}

#[test]
fn metrics_page_equals_the_output() {
    assert_printed("docs/reference/metrics.md", &["metrics", "--reference"]);
}

#[test]
fn default_configuration_file_equals_the_example() {
    assert_printed("config/rlaas.yaml", &["config", "--example"]);
}

#[test]
fn schemas_equal_the_output() {
    for of in ["config", "rules"] {
        assert_printed(&format!("docs/reference/{of}.schema.json"), &["schema", of]);
    }
}

#[test]
fn chart_has_the_schema_of_rules_and_settings() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/rlaas/values.schema.json");
    let text = fs::read_to_string(&file).expect("the schema of the chart");
    let mut chart: Value = serde_json::from_str(&text).expect("JSON");
    let (_, printed, _) = run(&["schema", "config"]);
    let mut config: Value = serde_json::from_str(&printed).expect("JSON");
    for member in ["$schema", "title"] {
        config.as_object_mut().expect("an object").remove(member);
    }
    for name in ["rules", "rate-limiter"] {
        chart["properties"][name] = config["properties"][name].take();
        // They have values of their own.
        config["properties"].as_object_mut().expect("an object").remove(name);
    }
    let spellings = config["patternProperties"].as_object_mut().expect("an object");
    spellings.remove("^(rate_limiter)$").expect("another spelling");
    chart["properties"]["settings"] = config;
    let expected = format!("{chart:#}\n");
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::write(&file, &expected).expect("a file that can be written");
    }
    let kept = fs::read_to_string(&file).expect("the schema of the chart");
    assert!(kept == expected, "UPDATE_REFERENCE=1 writes {} anew", file.display());
}

/// Certificates, and a secret, in place of the names of files in values.
struct Files {
    certificates: Certificates,
    secret: PathBuf,
    _dir: TempDir,
}

impl Files {
    fn make() -> Self {
        let dir = TempDir::new();
        let secret = dir.write("secret", "s3cret\n");
        Self { certificates: Certificates::make(), secret, _dir: dir }
    }

    fn fill_in(&self, value: &str) -> String {
        let path = |path: PathBuf| path.display().to_string();
        let hash = "0123456789abcdef".repeat(4);
        match value {
            "CERT" => path(self.certificates.certificate(Certificate::Server)),
            "KEY" => path(self.certificates.key(Certificate::Server)),
            "SECRET" => path(self.secret.clone()),
            "CA" => path(self.certificates.authority()),
            _ => value.replace("HASH", &hash),
        }
    }
}

/// The variables that set a setting and its companions, that of the setting first.
fn variables(path: &str, value: &str, files: &Files) -> Vec<(String, String)> {
    let named: BTreeMap<String, String> = reference()
        .into_iter()
        .filter_map(|setting| Some((setting.path.clone(), setting.variable()?)))
        .collect();
    let companions = COMPANIONS.iter().filter(|(of, _)| *of == path).flat_map(|(_, all)| *all);
    let all = [(path, value)].into_iter().chain(companions.copied());
    all.map(|(path, value)| (named[path].clone(), files.fill_in(value))).collect()
}

#[test]
fn each_setting_is_set_by_its_environment_variable() {
    let files = Files::make();
    let values: BTreeMap<&str, &str> = VALUES.iter().copied().chain(ALTERNATIVES).collect();
    let mut tried = 0;
    for setting in reference() {
        let Some(variable) = setting.variable() else { continue };
        let SettingReference { path, kind, default, .. } = setting;
        let value = values.get(&*path).unwrap_or_else(|| panic!("no value to try {path} with"));
        let environment = variables(&path, value, &files);
        assert_eq!(environment[0].0, variable);
        let config = Config::load(&Sources { environment, ..Sources::default() });
        let config = config.unwrap_or_else(|problems| panic!("{variable}={value}: {problems}"));
        let prefix = format!("{path}[0].");
        let set = config.effective.iter().find(|of| match kind {
            Kind::List => of.key.starts_with(&prefix),
            Kind::Value | Kind::Section => of.key == path,
        });
        let set = set.unwrap_or_else(|| panic!("{variable} sets nothing"));
        assert_eq!(set.origin, format!("environment variable {variable}"));
        assert_ne!(Some(set.to_yaml()), default, "{variable}: the value is the default");
        tried += 1;
    }
    assert_eq!(tried, values.len(), "a value is of no setting");
}

#[test]
fn each_commented_setting_of_the_example_is_valid() {
    let files = Files::make();
    let file_of = |path: &str| match path.rsplit('.').next() {
        Some("cert") => "CERT",
        Some("key") => "KEY",
        Some("client-secret-file") => "SECRET",
        _ => "CA",
    };
    let mut tried = 0;
    for SettingReference { path, kind, default, example, .. } in reference() {
        let is_commented = kind == Kind::Value && default.is_none() && !path.contains("[]");
        let (true, Some(example)) = (is_commented, example) else { continue };
        let value = if example.starts_with("/etc/") { file_of(&path) } else { example };
        let environment = variables(&path, value, &files);
        let config = Config::load(&Sources { environment, ..Sources::default() });
        assert!(config.is_ok(), "{path}: {example}: {config:?}");
        tried += 1;
    }
    assert!(tried > 10, "{tried}");
}

#[test]
fn items_of_the_example_are_valid_when_they_are_uncommented() {
    let files = Files::make();
    let (_, example, _) = run(&["config", "--example"]);
    let dir = TempDir::new();
    for (section, list) in [("", "rules"), ("auth", "tokens"), ("auth", "clients")] {
        let indent = if section.is_empty() { "" } else { "  " };
        let first = format!("{indent}# {list}:");
        let inside = format!("{indent}#   ");
        let mut lines = example.lines().skip_while(|line| *line != first);
        let first = lines.next().unwrap_or_else(|| panic!("no example of {list}"));
        let item: Vec<&str> = lines.take_while(|line| line.starts_with(&inside)).collect();
        assert!(item.len() > 3, "{list}: {item:?}");
        let uncommented = [first].into_iter().chain(item);
        let uncommented = uncommented.map(|line| line.replacen("# ", "", 1) + "\n");
        let section = if section.is_empty() { String::new() } else { format!("{section}:\n") };
        let file =
            dir.write(&format!("{list}.yaml"), &uncommented.fold(section, |all, line| all + &line));
        let path = if indent.is_empty() { list.to_owned() } else { format!("auth.{list}") };
        let environment = variables(&path, "", &files).split_off(1);
        let sources = Sources { files: vec![file], environment, ..Sources::default() };
        let config = Config::load(&sources).unwrap_or_else(|problems| panic!("{problems}"));
        let prefix = format!("{path}[0].");
        assert!(config.effective.iter().any(|of| of.key.starts_with(&prefix)), "{list}");
    }
}

#[test]
fn reference_and_example_take_no_sources() {
    for arguments in [
        ["config", "--reference", "--set", "store.backend=redis"],
        ["config", "--example", "--config", "config/rlaas.yaml"],
    ] {
        let (code, out, error) = run(&arguments);
        assert_eq!((code, out.as_str()), (2, ""), "{arguments:?}");
        assert!(error.contains("cannot be used with"), "{error}");
    }
    let (code, _, error) = run(&["metrics"]);
    assert_eq!(code, 2);
    assert!(error.contains("--reference"), "{error}");
}
