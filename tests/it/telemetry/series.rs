//! Series exist with the value 0 before their first event: `rate()` misses an increase from nothing
//! to 1.

use std::collections::BTreeSet;
use std::time::Duration;

use rlaas::algorithm::{Algorithm, Limit};
use rlaas::clock::Micros;
use rlaas::rules::{OnStoreFailure, Rule, RuleSet};
use rlaas_telemetry::exposition::Exposition;
use rlaas_telemetry::labels::{REDIS_ERROR_KINDS, STORE_ERROR_KINDS};

use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::Service;
use rlaas_testkit::{TempDir, eventually};

/// The rules: names and policies.
const POLICIES: [(&str, &str); 6] = [
    ("none", "on-store-failure: error"),
    ("open", "on-store-failure: allow"),
    ("closed", "on-store-failure: deny"),
    ("alone", "on-store-failure: local"),
    ("trial", "shadow: true"),
    ("tripped", "breaker-opens-rule: true"),
];

/// A shadow rule for descriptors.
const SHOP: &str = "domain: shop
descriptors:
  - { key: user, shadow_mode: true, rate_limit: { unit: hour, requests_per_unit: 1 } }
";

/// A server on Redis with these rules and a file for descriptors.
struct Served {
    dir: TempDir,
    server: Rlaas,
    _redis: RedisServer,
}

impl Served {
    fn start(rules: &[(&str, &str)]) -> Self {
        let (dir, redis) = (TempDir::new(), RedisServer::start());
        write(&dir, rules, SHOP);
        let url = format!("store.redis.url={}", redis.url());
        let settings = ["store.backend=redis", &url];
        let server = Rlaas::start_from(&dir.path("rlaas.yaml"), &settings);
        Self { dir, server, _redis: redis }
    }

    async fn metrics(&self) -> String {
        self.server.get("/metrics").await.1
    }
}

fn write(dir: &TempDir, rules: &[(&str, &str)], descriptors: &str) {
    let rule = |(name, policy): &(&str, &str)| {
        format!("  - {{name: {name}, endpoint: /{name}, limit: 1, window: 1h, {policy}}}\n")
    };
    let rules: String = rules.iter().map(rule).collect();
    let file = dir.write("shop.yaml", descriptors);
    let text = format!("envoy: {{files: [{}]}}\nrules:\n{rules}", file.display());
    dir.write("rlaas.yaml", &text);
}

/// Returns the series of a metric with this label, as their other labels and their values.
fn series(text: &str, metric: &str, label: &str) -> BTreeSet<(String, String)> {
    let one = |line: &str| {
        let (labels, value) = line.strip_prefix(metric)?.strip_prefix('{')?.rsplit_once("} ")?;
        let (with, others): (Vec<&str>, Vec<&str>) =
            labels.split(',').partition(|one| *one == label);
        (!with.is_empty()).then(|| (others.join(","), value.to_owned()))
    };
    text.lines().filter_map(one).collect()
}

/// Returns series with these labels and the value 0.
fn zero(labels: impl IntoIterator<Item = String>) -> BTreeSet<(String, String)> {
    labels.into_iter().map(|labels| (labels, "0".to_owned())).collect()
}

#[tokio::test]
async fn decision_series_exist_by_outcome_and_source() {
    let served = Served::start(&POLICIES);
    let text = served.metrics().await;
    let always = [("allowed", "store"), ("denied", "store"), ("denied", "deny_cache")];
    let shadow_decisions =
        [("allowed", "store"), ("shadow_denied", "store"), ("allowed", "fail_open")];
    let log = "sliding-window-log";
    for (rule, algorithm, sources, by_policy) in [
        ("default", log, &always, &[][..]),
        ("none", log, &always, &[]),
        ("open", log, &always, &[("allowed", "fail_open")]),
        ("tripped", log, &always, &[("allowed", "fail_open")]),
        ("closed", log, &always, &[("denied", "fail_closed")]),
        ("alone", log, &always, &[("allowed", "local_fallback"), ("denied", "local_fallback")]),
        // A shadow rule never denies: without a store it fails open.
        ("trial", log, &shadow_decisions, &[]),
        ("shop.user", "fixed-window", &shadow_decisions, &[]),
    ] {
        let labels = |(outcome, source): &(&str, &str)| {
            format!("algorithm=\"{algorithm}\",outcome=\"{outcome}\",source=\"{source}\"")
        };
        let seen = series(&text, "rlaas_decisions_total", &format!("rule=\"{rule}\""));
        assert_eq!(seen, zero(sources.iter().chain(by_policy).map(labels)), "{rule}");
    }
}

#[tokio::test]
async fn degradation_series_exist_by_policy_and_kind() {
    let served = Served::start(&POLICIES);
    let text = served.metrics().await;
    let no_other_labels = zero([String::new()]);
    for (rule, policy) in [
        ("open", "allow"),
        ("closed", "deny"),
        ("alone", "local"),
        ("trial", "allow"),
        ("tripped", "allow"),
        ("shop.user", "allow"),
    ] {
        let label = format!("rule=\"{rule}\"");
        let kinds = STORE_ERROR_KINDS.iter().chain(&REDIS_ERROR_KINDS);
        let kinds = kinds.map(|kind| format!("policy=\"{policy}\",kind=\"{kind}\""));
        assert_eq!(series(&text, "rlaas_degraded_total", &label), zero(kinds), "{rule}");
        let fail_open = series(&text, "rate_limiter_fail_open_total", &label);
        assert_eq!(fail_open == no_other_labels, policy == "allow", "{rule}: {fail_open:?}");
    }
    for rule in ["default", "none"] {
        let label = format!("rule=\"{rule}\"");
        for metric in ["rlaas_degraded_total", "rate_limiter_fail_open_total"] {
            assert_eq!(series(&text, metric, &label), BTreeSet::new(), "{metric}: {rule}");
        }
    }
}

#[tokio::test]
async fn series_exist_for_every_known_reason_and_kind() {
    let text = Rlaas::start(&[]).get("/metrics").await.1;
    let request_fields =
        ["user_id", "resource", "attributes", "cost", "dry_run", "requests", "body"];
    let descriptor_fields = ["domain", "descriptors", "hits_addend", "limit"];
    for (metric, label, values) in [
        ("rlaas_rejected_total", "reason", &request_fields[..]),
        ("rlaas_rejected_total", "reason", &descriptor_fields),
        ("rlaas_refused_total", "reason", &["unauthenticated", "forbidden"]),
        ("rlaas_refused_connections_total", "reason", &["full", "address_full", "silent"]),
        ("rlaas_connections_total", "api", &["grpc"]),
        ("rlaas_check_duration_seconds_count", "api", &["grpc", "http", "envoy"]),
        ("rlaas_store_errors_total", "kind", &["timeout", "oom"]),
    ] {
        for value in values {
            let seen = series(&text, metric, &format!("{label}=\"{value}\""));
            assert_eq!(seen, zero([String::new()]), "{metric}: {value}");
        }
    }
}

#[tokio::test]
async fn reload_adds_series_of_new_rules_and_drops_those_of_old_ones() {
    let served = Served::start(&POLICIES);
    write(&served.dir, &[("new", "on-store-failure: allow")], &SHOP.replace("user", "path"));
    served.server.signal("HUP");
    let are_replaced = async || {
        let text = served.metrics().await;
        let new = "rule=\"new\"";
        let dropped = POLICIES.iter().map(|(name, _)| *name).chain(["shop.user"]);
        series(&text, "rate_limiter_fail_open_total", new) == zero([String::new()])
            && series(&text, "rlaas_decisions_total", new).len() == 4
            && series(&text, "rlaas_decisions_total", "rule=\"shop.path\"").len() == 3
            && dropped.into_iter().all(|name| !text.contains(&format!("{{rule=\"{name}\"")))
    };
    eventually("the series are replaced", Duration::from_secs(20), are_replaced).await;
}

#[tokio::test]
async fn initial_series_are_limited_to_the_first_rules_by_name() {
    const MAX: usize = 1_000;
    let limit = Limit::new(1, Micros::from_secs(60)).expect("a valid limit");
    let rule = |name: String| Rule {
        name: name.into(),
        on_store_failure: OnStoreFailure::Allow,
        ..Rule::new_default(Algorithm::Gcra, limit)
    };
    let named = (0..MAX + 500).rev().map(|number| rule(format!("r{number:04}"))).collect();
    let default = Rule::new_default(Algorithm::Gcra, limit);
    let service = Service::on_memory(RuleSet::new(default, named));
    let count = |start: &str| {
        let text = service.metrics.render(Exposition::Text);
        text.lines().filter(|line| line.starts_with(start)).count()
    };
    // The default rule comes first, and has no policy.
    assert_eq!(count("rate_limiter_fail_open_total{"), MAX - 1);
    assert_eq!(count("rlaas_decisions_total{"), 2 + 3 * (MAX - 1));
    let late = "rlaas_decisions_total{rule=\"r0999\"";
    assert_eq!([count(&late.replace("0999", "0998")), count(late)], [3, 0]);
    service.check("alice").await;
    assert_eq!(count(late), 0, "rules beyond the first have no series");
    assert_eq!(count("rlaas_decisions_total{rule=\"other\""), 1, "they are counted together");
}
