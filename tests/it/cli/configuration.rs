//! Configuration from files, the environment and the command line, and its problems.

use std::path::Path;

use rlaas::algorithm::Algorithm;

use rlaas_testkit::TempDir;
use rlaas_testkit::process::{finish, rlaas, run};
use rlaas_testkit::tls::{Certificate, Certificates};

/// The configuration of RLaaS Users Service and RLaaS on GoRL, verbatim.
const COMPAT: &str = "rate-limiter:\n  use-algo: sliding-window-algo\n  window-size: 60\n  \
                    max-requests: 5\n  fail-open: false\n";

fn problems(text: &str) -> Vec<String> {
    let dir = TempDir::new();
    let file = dir.write("bad.yaml", text);
    let (code, out, error) = run(&["check-config", &file.display().to_string()]);
    assert_eq!((code, out.as_str()), (64, ""), "{text}\n{error}");
    let prefix = format!("{}: ", file.display());
    let line = |line: &str| {
        let inside = line.strip_prefix(&prefix);
        inside.unwrap_or_else(|| panic!("no file name in {line}")).to_owned()
    };
    error.lines().map(line).collect()
}

fn effective(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let mut command = rlaas(&["config"]);
    command.args(arguments).envs(environment.iter().copied());
    let (code, out, error) = finish(command.output().expect("the program"));
    assert_eq!(code, 0, "{error}");
    out
}

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
fn problems_are_reported_at_once_with_their_keys() {
    let text = "server: {listen: nowhere, worker: 2}\nstore: {backend: disk}\n\
                rate-limiter: {max-requests: -1, window-size: 0, use-algo: unknown}\nextra: 1\n";
    let mut reported = problems(text);
    reported.sort();
    let names: Vec<&str> = Algorithm::ALL.iter().map(|algorithm| algorithm.name()).collect();
    assert_eq!(
        reported,
        [
            "extra: unknown key (line 4)",
            "rate-limiter.max-requests: must be a whole number from 0 to 1000000000 (line 3: found -1)",
            &*format!(
                "rate-limiter.use-algo: must be {} (line 3: found unknown)",
                names.join(", ")
            ),
            "rate-limiter.window-size: must be a window from 1ms to 366d in whole milliseconds \
             (line 3: found 0)",
            "server.listen: must be host:port, such as 127.0.0.1:50051 or [::1]:0, \
             or unix:/path of up to 107 bytes (line 1: found nowhere)",
            "server.worker: unknown key, did you mean server.workers? (line 1)",
            "store.backend: must be memory or redis (line 2: found disk)",
        ]
    );
}

#[test]
fn invalid_values_are_rejected_by_their_key_as_written() {
    let cases = [
        ("rate-limiter: {max-requests: -5}", "rate-limiter.max-requests: must be"),
        ("rate-limiter: {max_requests: 1.5}", "rate-limiter.max_requests: must be"),
        ("rate-limiter: {limit: 1000000001}", "rate-limiter.limit: must be"),
        ("rate-limiter: {max-requests: many}", "rate-limiter.max-requests: must be"),
        ("rate-limiter: {max-requests: [5]}", "rate-limiter.max-requests: must be"),
        ("rate-limiter: {max-requests: }", "rate-limiter.max-requests: must be"),
        ("rate-limiter: {limit: 100001}", "rate-limiter.limit: must be a whole number from 1 to"),
        ("rate-limiter: {window-size: -1}", "rate-limiter.window-size: must be"),
        ("rate-limiter: {window: 500us}", "rate-limiter.window: must be"),
        ("rate-limiter: {window-size: 367d}", "rate-limiter.window-size: must be"),
        ("rate-limiter: {window-size: soon}", "rate-limiter.window-size: must be"),
        ("rate-limiter: {window-size: 1e30}", "rate-limiter.window-size: must be"),
        ("rate-limiter: {burst: 9}", "rate-limiter.burst: sliding-window-log has no burst"),
        ("rate-limiter: {use-algo: gcra, burst: 0}", "rate-limiter.burst: must be"),
        (
            "rate-limiter: {use-algo: gcra, window-size: 366d, limit: 1, burst: 101}",
            "rate-limiter.burst: must be a whole number from 1 to 100 for this",
        ),
        ("rate-limiter: {fail-open: maybe}", "rate-limiter.fail-open: must be true or false"),
        ("rate-limiter: {use-algo: 5}", "rate-limiter.use-algo: must be"),
        ("rate-limiter: {limit: 5, max-requests: 6}", "rate-limiter.max-requests: the same as"),
        ("rate-limiter: 5", "rate-limiter: must be a section"),
        ("server: []", "server: must be a section"),
        ("server: {listen: 5}", "server.listen: must be host:port"),
        ("server: {listen: []}", "server.listen: must be host:port"),
        ("server: {listen: ['h:1', 'unix:relative']}", "server.listen: must be host:port"),
        ("server: {http: 'unix:'}", "server.http: must be host:port"),
        ("server: {max-connection-age: 0}", "server.max-connection-age: must be never or"),
        ("server: {max-connection-age: 31d}", "server.max-connection-age: must be never or"),
        ("server: {max_connection_age_grace: -1}", "server.max_connection_age_grace: must be"),
        ("server: {keepalive: {interval: 0s}}", "server.keepalive.interval: must be a duration"),
        ("server: {limits: {connections: 0}}", "server.limits.connections: must be a whole"),
        ("server: {limits: {streams: 65537}}", "server.limits.streams: must be a whole number"),
        ("server: {limits: {request-time: 0}}", "server.limits.request-time: must be a duration"),
        ("server: {limits: {stream: 1}}", "server.limits.stream: unknown key, did you mean"),
        ("server: {keepalive: {timeout: never}}", "server.keepalive.timeout: must be a duration"),
        ("server: {workers: 0}", "server.workers: must be auto or"),
        ("server: {workers: 1025}", "server.workers: must be auto or"),
        ("server: {drain: {timeout: -1s}}", "server.drain.timeout: must be a duration"),
        ("health: {require-store: 1}", "health.require-store: must be true or false"),
        ("store: {memory: {max-keys: 0}}", "store.memory.max-keys: must be"),
        ("store: {redis: {url: 'http://h'}}", "store.redis.url: must be redis://"),
        ("store: {redis: {timeout: 0}}", "store.redis.timeout: must be a duration"),
        ("store: {redis: {timeout: 61s}}", "store.redis.timeout: must be a duration"),
        ("store: {redis: {key-prefix: 'a b'}}", "store.redis.key-prefix: must be"),
        ("store: {redis: {mode: raft}}", "store.redis.mode: must be"),
        ("Server: {listen: 'h:1'}", "Server: unknown key, did you mean server?"),
        ("5: 6", "5: unknown key"),
    ];
    for (text, expected) in cases {
        let reported = problems(text);
        assert_eq!(reported.len(), 1, "{text}: {reported:?}");
        assert!(reported[0].starts_with(expected), "{text}: {reported:?}");
    }
}

#[test]
fn invalid_token_settings_are_rejected_by_key() {
    let hash = "5e8848".repeat(11);
    let hash = &hash[..64];
    let nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let one = format!("name: a, sha256: {hash}, roles: [check]");
    let of = |token: &str| format!("auth: {{tokens: [{{{token}}}]}}");
    let cases = [
        ("auth: 1".to_owned(), "auth: must be a section"),
        ("auth: {tokens: s3cret}".to_owned(), "auth.tokens: must be a list of sections"),
        ("auth: {tokens: [s3cret]}".to_owned(), "auth.tokens[0]: must be a list of sections"),
        (format!("auth: {{token: [{{{one}}}]}}"), "auth.token: unknown key, did you mean"),
        (of(&format!("sha256: {hash}, roles: [check]")), "auth.tokens[0].name: missing"),
        (of("name: a, roles: [check]"), "auth.tokens[0].sha256: missing"),
        (of(&format!("name: a, sha256: {hash}")), "auth.tokens[0].roles: missing"),
        (
            of("name: a, sha256: s3cret, roles: [check]"),
            "auth.tokens[0].sha256: must be the SHA-256 of a token: 64 hexadecimal digits",
        ),
        (
            of(&format!("name: a, sha256: {nothing}, roles: [check]")),
            "auth.tokens[0].sha256: must be the SHA-256 of a token, not of an empty",
        ),
        (
            of(&format!("name: a, sha256: {hash}, roles: [root]")),
            "auth.tokens[0].roles: must be a list of check and admin",
        ),
        (of(&format!("name: a, sha256: {hash}, roles: []")), "auth.tokens[0].roles: must be"),
        (of(&format!("{one}, token: s3cret")), "auth.tokens[0].token: unknown key"),
        (of(&format!("{one}}}, {{{one}")), "auth.tokens[1].name: another token has this name"),
    ];
    for (text, expected) in cases {
        let reported = problems(&text);
        assert_eq!(reported.len(), 1, "{text}: {reported:?}");
        assert!(reported[0].starts_with(expected), "{text}: {reported:?}");
        assert!(!reported[0].contains("s3cret") && !reported[0].contains(hash), "{reported:?}");
    }
}

#[test]
fn invalid_tls_files_are_reported_by_key_and_path() {
    let certificates = Certificates::make();
    let dir = TempDir::new();
    let cert = |of| certificates.certificate(of).display().to_string();
    let key = |of| certificates.key(of).display().to_string();
    let (cert, key) = (cert(Certificate::Server), key(Certificate::Server));
    let other_key = certificates.key(Certificate::Client).display().to_string();
    let write = |name: &str, text: &str| dir.write(name, text).display().to_string();
    let empty = write("empty.pem", "");
    let begin = "-----BEGIN CERTIFICATE-----\n";
    let cut_off = write("cut-off.pem", &format!("{begin}TUlJ\n"));
    let garbage =
        write("garbage.pem", &format!("{begin}s3cret==\n{}", begin.replace("BEGIN", "END")));
    let not_der = write("not-der.pem", &format!("{begin}TUlJ\n{}", begin.replace("BEGIN", "END")));
    let label = "ENCRYPTED PRIVATE KEY-----\n";
    let encrypted = write("key.pem", &format!("-----BEGIN {label}TUlJ\n-----END {label}"));
    let missing = dir.path("missing.pem").display().to_string();
    let belong = "missing: a certificate and its key belong together";
    let cases = [
        (format!("cert: {cert}"), format!("key: {belong}")),
        (format!("key: {key}"), format!("cert: {belong}")),
        (
            format!("cert: {missing}, key: {key}"),
            format!("cert: {missing}: can't be read: No such"),
        ),
        (format!("cert: {empty}, key: {key}"), format!("cert: {empty}: must be PEM with a cert")),
        (
            format!("cert: {key}, key: {key}"),
            format!("cert: {key}: must be PEM with a certificate"),
        ),
        (format!("cert: {cut_off}, key: {key}"), format!("cert: {cut_off}: certificate number 1")),
        (format!("cert: {garbage}, key: {key}"), format!("cert: {garbage}: certificate number 1")),
        (format!("cert: {not_der}, key: {key}"), format!("cert: {not_der}: certificate number 1")),
        (format!("cert: {cert}, key: {cert}"), format!("key: {cert}: must be PEM with a private")),
        (
            format!("cert: {cert}, key: {missing}"),
            format!("key: {missing}: can't be read: No such"),
        ),
        (
            format!("cert: {cert}, key: {encrypted}"),
            format!("key: {encrypted}: the private key must not be"),
        ),
        (
            format!("cert: {cert}, key: {other_key}"),
            format!("key: {other_key}: the private key does not belong to the certificate"),
        ),
        (
            format!("cert: {cert}, key: {key}, client-ca: {empty}"),
            format!("client-ca: {empty}: must be PEM with a certificate"),
        ),
        (
            format!("cert: {cert}, key: {key}, client-ca: {not_der}"),
            format!("client-ca: {not_der}: certificate number 1 can't be parsed"),
        ),
        (format!("cert: 7, key: {key}"), "cert: must be the path of a PEM file".to_owned()),
        (
            format!("cert: {cert}, key: '-----BEGIN PRIVATE KEY-----\n\n  s3cret'"),
            "key: must be the path of a PEM file".to_owned(),
        ),
    ];
    for (text, expected) in cases {
        let reported = problems(&format!("server: {{tls: {{{text}}}}}"));
        assert_eq!(reported.len(), 1, "{text}: {reported:?}");
        assert!(reported[0].starts_with(&format!("server.tls.{expected}")), "{text}: {reported:?}");
        assert!(!reported[0].contains("s3cret"), "{reported:?}");
    }
    let valid = format!("server: {{tls: {{cert: {cert}, key: {key}}}}}");
    let file = dir.write("tls.yaml", &valid).display().to_string();
    let out = effective(&["--config", &file], &[]);
    assert!(out.contains(&format!("key: '{key}'  # {file}")), "{out}");

    let client = "clients: [{name: shop, roles: [check]}]";
    let reported = problems(&format!("{valid}\nauth: {{{client}}}"));
    assert_eq!(reported, ["auth.clients: requires server.tls.client-ca (line 2)"]);
    let ca = format!("cert: {cert}, key: {key}, client-ca: {cert}");
    let reported = problems(&format!("server: {{tls: {{{ca}}}}}\nauth: {{{client}, clents: []}}"));
    assert_eq!(reported, ["auth.clents: unknown key, did you mean auth.clients? (line 2)"]);
    let twice = client.replace("}]", "}, {name: shop, roles: [admin]}]");
    let reported = problems(&format!("server: {{tls: {{{ca}}}}}\nauth: {{{twice}}}"));
    assert_eq!(reported, ["auth.clients[1].name: another client has this name (line 2)"]);
}

#[test]
fn invalid_redis_settings_are_rejected_by_key() {
    let cases = [
        ("mode: raft", "mode: must be standalone, sentinel or cluster"),
        ("mode: 1", "mode: must be standalone, sentinel"),
        ("mode: sentinel", "urls: missing: the addresses to contact first"),
        ("mode: cluster", "urls: missing: the addresses to contact first"),
        ("mode: cluster, urls: []", "urls: must be"),
        ("mode: cluster, urls: ''", "urls: must be 1 to 64 addresses"),
        ("mode: cluster, urls: [7]", "urls: must be"),
        ("mode: cluster, urls: {a: 1}", "urls: must be"),
        ("mode: cluster, urls: ['redis://h:1', 'http://h:2']", "urls: must be redis://"),
        ("mode: cluster, urls: ['redis://h:1', 'rediss://h:2']", "urls: must be rediss:// for all"),
        ("mode: cluster, urls: ['redis://h:1/3']", "database: must be 0"),
        ("mode: cluster, urls: ['redis://h:1'], database: 3", "database: must be 0"),
        ("mode: sentinel, urls: ['redis://h:1'], master-name: ''", "master-name: must be a string"),
        ("mode: sentinel, urls: ['redis://h:1'], master-name: 7", "master-name: must be a string"),
        ("username: ''", "username: must be a string; quote numbers"),
        ("username: [s3cret]", "username: must be a string"),
        ("password: ''", "password: must be a string; quote numbers"),
        ("password: 12345678", "password: must be a string; quote numbers"),
        ("password: [s3cret]", "password: must be a string"),
        ("password: {s3cret: 1}", "password: must be a string"),
        ("database: -1", "database: must be 0 to 1000000"),
        ("database: 1.5", "database: must be 0 to 1000000"),
        ("database: 1000001", "database: must be 0 to 1000000"),
        ("database: s3cret", "database: must be 0 to 1000000"),
        ("max-in-flight: 0", "max-in-flight: must be a whole number from 1 to 1000000"),
        ("max-in-flight: 1000001", "max-in-flight: must be a whole number from 1 to 1000000"),
        ("max_in_flight: many", "max_in_flight: must be a whole number from 1 to 1000000"),
        ("tls: 1", "tls: must be a section"),
        ("tls: {ca: /nowhere/s3cret.pem}", "tls.ca: must be the path of a file that can be read"),
        ("tls: {ca: 1}", "tls.ca: must be the path of a file that can be read"),
        ("tls: {cert: /dev/null}", "tls.cert: a certificate and its key belong together"),
        ("tls: {key: /dev/null}", "tls.cert: a certificate and its key belong together"),
        ("tls: {ca: /dev/null}", "tls: requires rediss:// addresses"),
        ("url: 'rediss://h', tls: {ca: /dev/null}", "tls: "),
        ("url: 'rediss://h', tls: {cert: /dev/null, key: /dev/null}", "tls: "),
        ("url: 'rediss://:s3cret@h/#insecure'", "url: must not contain #insecure"),
        ("tsl: {}", "tsl: unknown key"),
        ("passwort: s3cret", "passwort: unknown key, did you mean store.redis.password?"),
    ];
    for (text, expected) in cases {
        let reported = problems(&format!("store: {{redis: {{{text}}}}}"));
        assert_eq!(reported.len(), 1, "{text}: {reported:?}");
        assert!(
            reported[0].starts_with(&format!("store.redis.{expected}")),
            "{text}: {reported:?}"
        );
        assert!(
            !reported[0].contains("s3cret") && !reported[0].contains("12345678"),
            "{reported:?}"
        );
    }
}

#[test]
fn invalid_failure_and_deny_cache_settings_are_rejected_by_key() {
    let share = "must be a number above 0 and at most 1";
    let cases = [
        ("deny-cache: 5", "deny-cache: must be a section".to_owned()),
        ("deny-cache: {enabled: 1}", "deny-cache.enabled: must be true or false".to_owned()),
        ("deny-cache: {max-age: 0}", "deny-cache.max-age: must be a duration from".to_owned()),
        ("deny-cache: {max-age: 61m}", "deny-cache.max-age: must be a duration from".to_owned()),
        ("deny_cache: {max_age: soon}", "deny_cache.max_age: must be a duration from".to_owned()),
        ("deny-cache: {max-keys: 0}", "deny-cache.max-keys: must be a whole number".to_owned()),
        ("deny-cache: {max-keys: 1e9}", "deny-cache.max-keys: must be a whole number".to_owned()),
        ("deny-cache: {ttl: 1s}", "deny-cache.ttl: unknown key".to_owned()),
        (
            "rate-limiter: {on-store-failure: maybe}",
            "rate-limiter.on-store-failure: must be error, allow, deny or local".to_owned(),
        ),
        (
            "rate-limiter: {on-store-failure: true}",
            "rate-limiter.on-store-failure: must be error, allow".to_owned(),
        ),
        (
            "rate-limiter: {on-store-failure: allow, fail-open: true}",
            "rate-limiter.fail-open: the same as".to_owned(),
        ),
        (
            "rate-limiter: {local-share: 0.5}",
            "rate-limiter.local-share: requires on-store-failure: local".to_owned(),
        ),
        (
            "rate-limiter: {breaker-opens-rule: 1}",
            "rate-limiter.breaker-opens-rule: must be true or false".to_owned(),
        ),
    ];
    let shares = ["0", "0.0", "1.1", "2", "-0.5", "half", "0.0000001", "[0.5]", ".5.5", ""];
    let shares = shares.map(|given| {
        let text = format!("rate-limiter: {{on-store-failure: local, local-share: {given}}}");
        (text, format!("rate-limiter.local-share: {share}"))
    });
    let cases = cases.into_iter().map(|(text, expected)| (text.to_owned(), expected));
    for (text, expected) in cases.chain(shares) {
        let reported = problems(&text);
        assert_eq!(reported.len(), 1, "{text}: {reported:?}");
        assert!(reported[0].starts_with(&expected), "{text}: {reported:?}");
    }
    for share in ["0.000001", "0.5", "1", "1.0", "1.000000"] {
        let dir = TempDir::new();
        let text = format!("rate-limiter: {{on-store-failure: local, local-share: {share}}}");
        let file = dir.write("share.yaml", &text).display().to_string();
        assert_eq!(run(&["check-config", &file]).0, 0, "{share}");
    }
}

#[test]
fn passwords_are_never_shown() {
    let dir = TempDir::new();
    let text = "store: {backend: redis, redis: {mode: cluster, username: app, password: s3cret, \
                urls: ['redis://:s3cret@127.0.0.1:1', 'redis://u:s3cret@127.0.0.1:2']}}";
    let file = dir.write("rlaas.yaml", text).display().to_string();
    let out = effective(&["--config", &file], &[("RLAAS_STORE__REDIS__PASSWORD", "s3cret-too")]);
    assert!(!out.contains("s3cret"), "{out}");
    assert!(out.contains("password: '***'  # environment variable"), "{out}");
    assert!(out.contains("redis://:***@127.0.0.1:1"), "{out}");
}

#[test]
fn invalid_yaml_and_unreadable_files_are_reported() {
    for text in ["a: [", "\ta: 1", "a: 1\na: 2", "- 1", "just text", "a: &x [*x]", "%", "{\"a\""] {
        let reported = problems(text);
        assert!(!reported.is_empty(), "{text}");
    }
    let (code, _, error) = run(&["check-config", "/nowhere/rlaas.yaml"]);
    assert_eq!(code, 64);
    assert!(error.starts_with("/nowhere/rlaas.yaml: can't be read: "), "{error}");
    let dir = TempDir::new();
    let file = dir.path("latin1.yaml");
    std::fs::write(&file, b"a: \xff").expect("a file");
    assert_eq!(run(&["check-config", &file.display().to_string()]).0, 64);
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
fn problems_report_their_line_and_the_value_found() {
    let text = "\
rules:
  - name: login
    endpoint: /login
    limit: many
    window: 1s
  - name: pay
    endpoint: /pay
    limit: 5
    match:
      attributes:
        api_key: 12345678
    overrides:
      - { match: { user_id: ops }, limit: [5] }
server:
  drain:
    timeout: forever and ever, and a while after that time
    delay:
  worker_s: 2
";
    let reported = problems(text);
    let expected = [
        "rules[0].limit: must be a whole number from 0 to 1000000000 (line 4: found many)",
        "rules[1].window: missing (line 6)",
        "(line 11)",
        "(line 13: found a list)",
        "server.worker_s: unknown key, did you mean server.workers? (line 18)",
        "(line 16: found \"forever and ever, and a while after that…\")",
        "(line 17: found nothing)",
    ];
    for expected in expected {
        assert!(reported.iter().any(|line| line.ends_with(expected)), "{expected}: {reported:#?}");
    }
    assert!(!reported.concat().contains("12345678"), "{reported:?}");
    let output = rlaas(&["config", "--set", "server.workers=no"]).output();
    let (_, _, error) = finish(output.expect("the program"));
    assert!(error.ends_with("from 1 to 1024 (found no)\n"), "{error}");
}

#[test]
fn problems_show_no_secrets() {
    for text in [
        "store: {redis: {url: 'http://:s3cret@h'}}",
        "store: {redis: {url: {s3cret: 1}}}",
        "store: {redis: {url: [s3cret]}}",
        "store: {redis: {url: 'redis://:s3cret@h:port'}}",
        "auth: s3cret",
        "store: s3cret",
        "store: {redis: s3cret}",
        "store: {redis: {key-prefix: 's3 cret'}}",
        "server: {tls: s3cret}",
        "telemetry: {otlp: {endpoint: s3cret}}",
        "rate-limiter: {max-requests: 'redis://:s3cret@h'}",
        "rate-limiter: {max-requests: [s3cret]}",
        "rules: [{name: a, match: s3cret, limit: 5, window: 1s}]",
        "rules: [{name: a, match: {attributes: {api_key: {s3cret: 1}}}, limit: 5, window: 1s}]",
    ] {
        let reported = problems(text);
        assert!(!reported.is_empty(), "{text}");
        assert!(reported.iter().all(|line| !line.contains("s3cret")), "{reported:?}");
    }
}

#[test]
fn problems_of_every_file_are_reported() {
    let dir = TempDir::new();
    let syntax = dir.write("syntax.yaml", "a: [").display().to_string();
    let unknown = dir.write("unknown.yaml", "sever: {}").display().to_string();
    let (code, _, error) = run(&["check-config", &syntax, "/missing.yaml", &unknown]);
    assert_eq!(code, 64);
    assert_eq!(error.lines().count(), 3, "{error}");
    assert!(error.contains("did you mean server?"), "{error}");
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
fn url_used_as_a_key_is_not_shown() {
    for text in ["'redis://:s3cret@h': 1", "a: {'redis://:s3cret@h': 1, 'redis://:s3cret@h': 2}"] {
        let reported = problems(text);
        assert!(reported.iter().all(|line| !line.contains("s3cret")), "{reported:?}");
    }
}

#[test]
fn invalid_rules_are_rejected_by_key() {
    let with = |more: &str| format!("rules: [{{name: a, limit: 5, window: 1s{more}}}]");
    let cases = [
        ("rules: 5".to_owned(), "rules: must be a list of sections"),
        ("rules: [5]".to_owned(), "rules[0]: must be a list of sections"),
        ("rules: [{limit: 5, window: 1s}]".to_owned(), "rules[0].name: missing"),
        ("rules: [{name: a, window: 1s}]".to_owned(), "rules[0].limit: missing"),
        ("rules: [{name: a, limit: 5}]".to_owned(), "rules[0].window: missing"),
        ("rules: [{name: a, limit: -1, window: 1}]".to_owned(), "rules[0].limit: must be"),
        ("rules: [{name: a, limit: 5, window: 0}]".to_owned(), "rules[0].window: must be"),
        ("rules: [{name: default, limit: 5, window: 1}]".to_owned(), "rules[0].name: must be"),
        ("rules: [{name: 'a b', limit: 5, window: 1}]".to_owned(), "rules[0].name: must be"),
        (
            "rules: [{name: a, limit: 5, window: 1}, {name: a, limit: 5, window: 1}]".to_owned(),
            "rules[1].name: another rule has this name",
        ),
        (with(", windw: 1"), "rules[0].windw: unknown key, did you mean rules[0].window?"),
        (with(", limit_count: 6"), "rules[0].limit_count: the same as rules[0].limit"),
        (with(", strategy: magic"), "rules[0].strategy: must be fixed-window"),
        (with(", burst: 9"), "rules[0].burst: sliding-window-log has no burst"),
        (with(", key-by: []"), "rules[0].key-by: must be"),
        (with(", match: {user_id: 007}"), "rules[0].match.user_id: must be a string or a list"),
        (with(", key_by: [user_id, user_id]"), "rules[0].key_by: each part"),
        (with(", match: {resourc: a}"), "rules[0].match.resourc: unknown key"),
        (with(", match: {resource: {a: 1}}"), "rules[0].match.resource: must be a string or"),
        (with(", match: {attributes: {plan: []}}"), "rules[0].match.attributes.plan: must be"),
        (with(", endpoint: /a, match: {resource: /b}"), "rules[0].endpoint: the same as"),
        (with(", fail-open: false, on-store-failure: allow"), "rules[0].fail-open: the same as"),
        (with(", on-store-failure: maybe"), "rules[0].on-store-failure: must be"),
        (with(", overrides: [{limit: 5}]"), "rules[0].overrides[0].match: missing"),
        (
            with(", overrides: [{match: {user_id: a}}]"),
            "rules[0].overrides[0].limit: give either limit or unlimited: true",
        ),
        (
            with(", overrides: [{match: {user_id: a}, limit: 5, unlimited: true}]"),
            "rules[0].overrides[0].limit: give either",
        ),
        (
            with(", overrides: [{match: {user_id: a}, limit: 100001}]"),
            "rules[0].overrides[0].limit: must be a whole number from 1 to 100000",
        ),
    ];
    for (text, expected) in cases {
        let reported = problems(&text);
        assert_eq!(reported.len(), 1, "{text}: {reported:?}");
        assert!(reported[0].starts_with(expected), "{text}: {reported:?}");
    }
}

#[test]
fn problems_of_every_rule_are_reported_once() {
    let mut reported = problems(
        "rules:\n  - 5\n  - {name: a, limit: many, burst: 0, window: 1s, shadow: 2}\n  \
         - {name: a, window: 1s, overrides: [6, {match: 7, limit: 1}, {match: {user: a}, limit: -1}]}\n  \
         - {name: b, limit: 1, window: 1s, match: {resource: {}}, version: 2}\n",
    );
    let line = |reported: &String| reported.split("(line ").nth(1).map(|line| line[..1].to_owned());
    assert!(reported.is_sorted_by_key(line), "{reported:#?}");
    reported.sort();
    assert_eq!(
        reported,
        [
            "rules[0]: must be a list of sections (line 2: found 5)",
            "rules[1].burst: must be a whole number from 1 to 1000000000 (line 3: found 0)",
            "rules[1].limit: must be a whole number from 0 to 1000000000 (line 3: found many)",
            "rules[1].shadow: must be true or false (line 3: found 2)",
            "rules[2].limit: missing (line 4)",
            "rules[2].name: another rule has this name (line 4: found a)",
            "rules[2].overrides[0]: must be a list of sections (line 4: found 6)",
            "rules[2].overrides[1].match: must be a section with keys of its own (line 4)",
            "rules[2].overrides[2].limit: must be a whole number from 0 to 1000000000 (line 4: found -1)",
            "rules[2].overrides[2].match.user: unknown key, did you mean \
             rules[2].overrides[2].match.user-id? (line 4)",
            "rules[3].match.resource: must be a string or a list of strings; quote numbers and \
             booleans (line 5: found a section)",
            "rules[3].version: must be 1 (line 5: found 2)",
        ]
    );
}

#[test]
fn problems_name_their_file() {
    let dir = TempDir::new();
    for text in ["rules: [{}]", "rules: [{name: a, limit: 1, window: 1s, overrides: [{}]}]"] {
        let file = dir.write("rules.yaml", text).display().to_string();
        let (code, _, error) = run(&["check-config", &file]);
        assert_eq!(code, 64);
        for line in error.lines() {
            assert!(line.starts_with(&format!("{file}: rules[0]")), "{text}: {line}");
        }
    }
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

#[test]
fn printed_configuration_reads_back() {
    let dir = TempDir::new();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/rules.yaml");
    let out = effective(&["--config", &example.display().to_string()], &[]);
    let file = dir.write("printed.yaml", &out).display().to_string();
    let again = effective(&["--config", &file], &[]);
    let without_origin = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split("  #").next().unwrap_or(line).to_owned()).collect()
    };
    assert_eq!(without_origin(&again), without_origin(&out));
}

#[test]
fn key_by_attribute_without_a_matcher_is_warned_of() {
    let dir = TempDir::new();
    let text = "rules:\n  \
        - {name: login, match: {resource: /login}, key_by: ip, limit: 5, window: 1m}\n  \
        - {name: everybody, key_by: [user_id, tenant, api_key], limit: 5, window: 1m}\n  \
        - {name: matched, match: {attributes: {tenant: '*'}}, key_by: tenant, limit: 5, window: 1m}\n  \
        - {name: seed, endpoint: /login, strategy: sliding, key_by: ip, limit: 5, window: 1m}\n  \
        - {name: pay, endpoint: /pay, key_by: api_key, limit: 5, window: 1m}\n\
        rate-limiter: {key-by: plan}\n";
    let file = dir.write("rules.yaml", text).display().to_string();
    let (code, out, error) = run(&["check-config", &file]);
    assert_eq!((code, out.as_str()), (0, "valid\n"));
    let warned = |rule: &str, attribute: &str| {
        format!(
            "warning: {file}: rule {rule}: key-by: no matcher requires the attribute {attribute}: \
             requests without it share one bucket"
        )
    };
    assert_eq!(
        error.lines().collect::<Vec<_>>(),
        [
            warned("default", "plan"),
            warned("everybody", "tenant"),
            warned("everybody", "api_key"),
            warned("login", "ip"),
        ]
    );
}

#[test]
fn foreign_pattern_syntax_is_warned_of() {
    let dir = TempDir::new();
    let descriptors = "domain: shop\ndescriptors:\n  - key: path\n    value: /x/**\n    \
        descriptors: [{key: id, value: '{id}', rate_limit: {unit: day, \
        requests_per_unit: 1}}, {key: id, value: '\\*\\*'}]\n  \
        - {key: path, value: /x/*/y}\n";
    let envoy = dir.write("envoy.yaml", descriptors).display().to_string();
    let text = format!(
        r#"
envoy: {{ files: [{envoy}] }}
rules:
  - {{ name: braces, endpoint: "/users/{{id}}", limit: 1, window: 1s }}
  - {{ name: caret, match: {{ user_id: "^a" }}, limit: 1, window: 1s }}
  - {{ name: mark, match: {{ attributes: {{ "p	a": [a, "b?"] }} }}, limit: 1, window: 1s }}
  - name: stars
    endpoint: /search/**
    limit: 1
    window: 1s
    overrides: [{{ match: {{ user_id: "a/{{*}}" }}, limit: 2 }}]
  - {{ name: plain, endpoint: ["*.png", '/\*\*/\*', "/x/*/y", "/a}}{{b"], limit: 1, window: 1s }}
"#
    );
    let file = dir.write("rules.yaml", &text).display().to_string();
    let (code, out, error) = run(&["check-config", &file]);
    assert_eq!((code, out.as_str()), (0, "valid\n"), "{error}");
    let warned = |(file, rule, what): (&str, &str, &str)| {
        format!("warning: {file}: rule {rule}: {what}; `*` matches any text, `\\*` a star")
    };
    let expected = [
        (&*file, "braces", "resource: `{…}` is literal text"),
        (&*file, "caret", "user_id: `^` is a literal character"),
        (&*file, "mark", r"attributes.p\ta: `?` is a literal character"),
        (&*file, "stars", "resource: `**` is the same as `*`"),
        (&*file, "stars", "an override's user_id: `{…}` is literal text"),
        (&*envoy, "shop.path_/x/**", "value: `**` is the same as `*`"),
        (&*envoy, "shop.path_/x/**.id_{id}", "value: `{…}` is literal text"),
    ];
    assert_eq!(error.lines().collect::<Vec<_>>(), expected.map(warned));
}

#[test]
fn printed_text_of_any_kind_reads_back() {
    let dir = TempDir::new();
    let texts = [
        "#1",
        "a #1",
        "a: b",
        "a:",
        "it's",
        "\"q\"",
        "[x]",
        "[x, y]",
        "{x}",
        "*",
        "a*",
        "&a",
        "!t",
        "%",
        "@",
        "`",
        "|",
        ">",
        "007",
        "1e3",
        "0x1F",
        "60s",
        "true",
        "No",
        "~",
        "null",
        "",
        " a ",
        "- a",
        "? x",
        "a,b",
        "a\nb\tc",
        "\u{85}\u{2028}\u{feff}x",
        "é",
        "\\*",
        "\\n",
        "[",
        "]",
        "---",
    ];
    let json = |value: &str| serde_json::to_string(value).expect("JSON");
    let rule = |(number, text): (usize, &&str)| {
        let (one, list) = (json(text), json(&format!("{text},")));
        format!(
            "  - {{name: r{number}, endpoint: {one}, limit: 1, window: 1s, match: {{user_id: [{one}, \
             {list}], attributes: {{{one}: {one}, a.b: x, 'c[0]': z}}}}}}\n"
        )
    };
    let rules: String = texts.iter().enumerate().map(rule).collect();
    let file = dir.write("rules.yaml", &format!("rules:\n{rules}")).display().to_string();
    let settings = ["store.redis.key-prefix=007", "server.listen=[::1]:0"];
    let settings: Vec<&str> = settings.iter().flat_map(|of| ["--set", of]).collect();
    let out = effective(&[&["--config", &*file], &settings[..]].concat(), &[]);
    let printed = dir.write("printed.yaml", &out).display().to_string();
    let again = effective(&["--config", &printed], &[]);
    let without_origin = |text: &str, origins: &[&str]| -> Vec<String> {
        let strip = |line: &str| {
            let cut = origins.iter().find_map(|of| line.strip_suffix(&format!("  # {of}")));
            cut.unwrap_or(line).to_owned()
        };
        text.lines().map(strip).collect()
    };
    assert_eq!(
        without_origin(&again, &[&printed]),
        without_origin(&out, &[&file, "default", "command line"]),
    );
    assert!(out.contains("endpoint: 'a #1'  #"), "{out}");
}

#[test]
fn probable_mistakes_are_warned_of() {
    let dir = TempDir::new();
    let long = "x".repeat(1025);
    let text = format!(
        "rules:\n  - {{name: long, endpoint: {long}, limit: 1, window: 1s}}\n  \
         - {{name: nobody, match: {{user_id: ''}}, limit: 1, window: 1s}}\n  \
         - {{name: wide, endpoint: /a, limit: 9, window: 1s}}\n  \
         - {{name: strict, endpoint: /a, limit: 5, window: 1s}}\n  \
         - {{name: other, endpoint: /b, limit: 5, window: 1s}}\n  \
         - {{name: log, endpoint: /c, limit: 20000, window: 1s}}\n"
    );
    let file = dir.write("rules.yaml", &text).display().to_string();
    let (code, out, error) = run(&["check-config", &file]);
    assert_eq!((code, out.as_str()), (0, "valid\n"));
    let error = error.replace(&file, "FILE");
    let warned: Vec<&str> = error.lines().collect();
    assert_eq!(
        warned,
        [
            "warning: FILE: rule log: its log may have 20000 entries for one id; other algorithms need a few numbers",
            "warning: FILE: rule long: it never matches: no value can match",
            "warning: FILE: rule nobody: it never matches: no value can match",
            "warning: FILE: rule wide: it never decides: rule strict has the same scope and is stricter",
        ]
    );
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/rules.yaml");
    assert_eq!(run(&["check-config", &example.display().to_string()]).2, "");
}
