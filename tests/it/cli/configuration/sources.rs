//! Sources of the configuration: files, the environment and the command line.

use std::path::Path;

use super::{effective, problems};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{finish, rlaas, run};

/// The configuration of RLaaS Users Service and RLaaS on GoRL, verbatim.
const COMPAT: &str = "rate-limiter:\n  use-algo: sliding-window-algo\n  window-size: 60\n  \
                    max-requests: 5\n  fail-open: false\n";

#[test]
fn default_file_has_every_key_with_its_default() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/rlaas.yaml");
    let file = file.display().to_string();
    assert_eq!(run(&["check-config", &file]).0, 0);
    let from_file = effective(&["--config", &file], &[]);
    let defaults = effective(&[], &[]);
    let origin = format!("  # {file}");
    assert_eq!(from_file.replace(&origin, "  # default"), defaults);
}

#[test]
fn files_in_config_are_valid() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let files: Vec<_> = std::fs::read_dir(dir)
        .expect("config")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    assert!(!files.is_empty());
    for file in files {
        let (code, _, error) = run(&["check-config", &file.display().to_string()]);
        assert_eq!(code, 0, "{error}");
    }
}

#[test]
fn compat_configuration_is_accepted_unchanged() {
    let dir = TempDir::new();
    for (name, algorithm) in [
        ("sliding-window-algo", "sliding-window-log"),
        ("fixed-window-algo", "fixed-window"),
        ("fixed_window", "fixed-window"),
        ("fixed", "fixed-window"),
        ("sliding", "sliding-window-counter"),
        ("sliding_window", "sliding-window-counter"),
        ("token", "token-bucket"),
        ("token_bucket", "token-bucket"),
        ("leaky", "leaky-bucket"),
        ("leaky-bucket-algo", "leaky-bucket"),
        ("GCRA", "gcra"),
    ] {
        let file = dir.write("seed.yaml", &COMPAT.replace("sliding-window-algo", name));
        let out = effective(&["--config", &file.display().to_string()], &[]);
        assert!(out.contains(&format!("use-algo: {algorithm}  #")), "{out}");
    }
    let other = "rate_limiter: {strategy: fixed, window_seconds: 5m, limit_count: 7}\n";
    let file = dir.write("other.yaml", other);
    let out = effective(&["--config", &file.display().to_string()], &[]);
    assert!(out.contains("window-size: 300s") && out.contains("max-requests: 7"), "{out}");
}

#[test]
fn later_sources_win_and_values_report_their_origin() {
    let dir = TempDir::new();
    let one = dir.write("one.yaml", "rate-limiter: {max-requests: 1, window-size: 1}\n");
    let two = dir.write("two.yaml", "rate_limiter: {limit: 2}\n");
    let (one, two) = (one.display().to_string(), two.display().to_string());
    let files = ["--config", &*one, "--config", &*two];
    let out = effective(&files, &[]);
    assert!(out.contains(&format!("window-size: 1s  # {one}")), "{out}");
    assert!(out.contains(&format!("max-requests: 2  # {two}")), "{out}");
    let variable = ("RLAAS_RATE_LIMITER__MAX_REQUESTS", "3");
    let out = effective(&files, &[variable]);
    let origin = "environment variable RLAAS_RATE_LIMITER__MAX_REQUESTS";
    assert!(out.contains(&format!("max-requests: 3  # {origin}")), "{out}");
    let set = [&files[..], &["--set", "rate-limiter.max-requests=4"]].concat();
    let out = effective(&set, &[variable]);
    assert!(out.contains("max-requests: 4  # command line"), "{out}");
}

#[test]
fn kubernetes_service_variables_are_ignored() {
    let out = effective(
        &[],
        &[
            ("RLAAS_SERVICE_HOST", "10.0.0.1"),
            ("RLAAS_PORT", "tcp://10.0.0.1:50051"),
            ("RLAAS_PORT_50051_TCP_ADDR", "10.0.0.1"),
            ("RLAAS_REDIS_SERVICE_HOST", "10.0.0.2"),
            ("RLAAS_REDIS_SERVICE_PORT_TCP", "6379"),
            ("RLAAS_REDIS_PORT", "tcp://10.0.0.2:6379"),
            ("RLAAS_REDIS_PORT_6379_TCP_PROTO", "tcp"),
        ],
    );
    assert_eq!(out, effective(&[], &[]));
    let output = rlaas(&["config"]).env("RLAAS_STORE__BACKEN", "redis").output();
    let (code, _, error) = finish(output.expect("the program"));
    assert_eq!(code, 64);
    let expected = "environment variable RLAAS_STORE__BACKEN: store.backen: unknown key, \
                    did you mean store.backend?\n";
    assert_eq!(error, expected);
}

#[test]
fn empty_file_changes_nothing() {
    let dir = TempDir::new();
    for text in ["", "# nothing\n", "{}", "server:\n"] {
        let file = dir.write("empty.yaml", text);
        assert_eq!(effective(&["--config", &file.display().to_string()], &[]), effective(&[], &[]));
    }
}

#[test]
fn text_settings_keep_leading_zeros() {
    let reported = problems("store: {redis: {key-prefix: 007}}");
    assert!(reported[0].starts_with("store.redis.key-prefix: must be"), "{reported:?}");
    let out = effective(&["--set", "store.redis.key-prefix=007"], &[]);
    assert!(out.contains("key-prefix: '007'  #"), "{out}");
}

#[test]
fn environment_and_command_line_accept_yaml_lists_and_sections() {
    let dir = TempDir::new();
    let rules = |name: &str| {
        let text = format!("domain: {name}\ndescriptors: [{{key: k}}]\n");
        dir.write(&format!("{name}.yaml"), &text).display().to_string()
    };
    let (a, b) = (rules("a"), rules("b"));
    for files in [format!("[{a},{b}]"), format!(" [ '{a}', \"{b}\" ] "), format!("- {a}\n- {b}\n")]
    {
        let name = "RLAAS_ENVOY__FILES";
        let out = effective(&[], &[(name, &files)]);
        let line = format!("files: [{a}, {b}]  # environment variable {name}");
        assert!(out.contains(&line), "{files}: {out}");
        let out = effective(&["--set", &format!("envoy.files={files}")], &[]);
        assert!(out.contains(&format!("files: [{a}, {b}]  # command line")), "{files}: {out}");
    }
    let rules = "rules=[{name: a, limit_count: 5, window: 1s, match: {attributes: {a_b: x}}}]";
    let out = effective(
        &[
            "--set",
            rules,
            "--set",
            "store={memory: {max_keys: 7}}",
            "--set",
            "server.listen=[::1]:0",
        ],
        &[
            ("RLAAS_RATE_LIMITER__KEY_BY", "[user_id, tenant]"),
            ("RLAAS_STORE__REDIS__PASSWORD", "[s3cret]"),
            ("RLAAS_STORE__REDIS__MASTER_NAME", "{m}"),
            ("RLAAS_STORE__REDIS__MODE", "sentinel"),
            ("RLAAS_STORE__REDIS__URLS", "[redis://h:1, 'redis://h:2']"),
        ],
    );
    for line in [
        "max-keys: 7  # command line",
        "limit: 5  # command line",
        "a_b: x  # command line",
        "'[::1]:0'  # command line",
        "key-by: [user_id, tenant]  # environment variable RLAAS_RATE_LIMITER__KEY_BY",
        "password: '***'  # environment variable RLAAS_STORE__REDIS__PASSWORD",
        "redis://h:1 redis://h:2",
    ] {
        assert!(out.contains(line), "{line}\n{out}");
    }
    let broken = rlaas(&["config", "--set", "envoy.files=[a, {s3cret]"]).output();
    let (code, _, error) = finish(broken.expect("the program"));
    assert_eq!(code, 64);
    let expected = "command line: envoy.files: must be a list or section in YAML: ";
    assert!(error.starts_with(expected) && !error.contains("s3cret"), "{error}");
}

#[test]
fn attribute_names_are_not_normalized() {
    let dir = TempDir::new();
    let text = "rules: [{name: a, limit: 5, window: 1, match: {attributes: {api_key: one, api-key: other}}}]";
    let file = dir.write("rules.yaml", text).display().to_string();
    let (code, _, error) = run(&["check-config", &file]);
    assert_eq!(code, 0, "{error}");
    let out = effective(&["--config", &file], &[]);
    assert!(out.contains("name: a  #"), "{out}");
}
