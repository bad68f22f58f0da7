//! Secrets, which neither the printed configuration nor problems show.

use super::{effective, problems};
use rlaas_testkit::TempDir;

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
fn url_used_as_a_key_is_not_shown() {
    for text in ["'redis://:s3cret@h': 1", "a: {'redis://:s3cret@h': 1, 'redis://:s3cret@h': 2}"] {
        let reported = problems(text);
        assert!(reported.iter().all(|line| !line.contains("s3cret")), "{reported:?}");
    }
}
