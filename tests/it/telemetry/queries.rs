//! In a real Prometheus, every query of the dashboard returns data, and so does every metric
//! that an alert selects. Metrics of certificates and snapshots are exempt: the server has none.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rlaas_proto::ratelimit::v1::CheckRequest;
use tokio::task::JoinSet;
use tonic::Request;
use tonic::metadata::MetadataValue;

use super::dashboard::{dashboard, queries};
use rlaas_testkit::process::{Rlaas, request, rlaas};
use rlaas_testkit::prometheus::Prometheus;
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};

const TIMEOUT: Duration = Duration::from_mins(1);

/// Metrics that only servers with certificates have, or with a state folder.
const ABSENT_METRICS: [&str; 2] =
    ["rlaas_tls_certificate_expiry_timestamp_seconds", "rlaas_snapshot_timestamp_seconds"];

/// A rule for each policy, a shadow rule, and an authorized caller.
const RULES: &str = "
auth:
  tokens:
    - name: shop
      sha256: 3c469e9d6c5875d37a43f353d4f88e61fcf812c66eee3457465a40b0da4153e0
      roles: [check]
rules:
  - {name: open, endpoint: /open, limit: 5, window: 1s, on-store-failure: allow}
  - {name: closed, endpoint: /closed, limit: 5, window: 1s, on-store-failure: deny}
  - {name: alone, endpoint: /alone, limit: 5, window: 1s, on-store-failure: local}
  - {name: trial, endpoint: /trial, limit: 1, window: 1h, shadow: true}
";

/// A project, which has its own series.
const PROJECT: &str = "{project: shop, rules: [{name: cart, limit: 5, window: 1s}]}";

/// A client that sends requests for every rule, invalid requests and unauthorized requests.
struct MixedLoad(Arc<AtomicBool>, JoinSet<()>);

impl MixedLoad {
    async fn start(server: &Rlaas) -> Self {
        let (stop, mut client) = (Arc::new(AtomicBool::new(false)), server.client().await);
        let (stopped, mut tasks) = (Arc::clone(&stop), JoinSet::new());
        tasks.spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                for (user, endpoint) in [
                    ("alice", "/open"),
                    ("bob", "/closed"),
                    ("carol", "/alone"),
                    ("dave", "/trial"),
                    ("erin", "/"),
                    ("", "/"),
                ] {
                    let resource = endpoint.to_owned();
                    let mut call = Request::new(CheckRequest { resource, ..request(user) });
                    let token = MetadataValue::from_static("Bearer token");
                    call.metadata_mut().insert("authorization", token);
                    let _answer = client.check(call).await;
                }
                let _refused = client.check(request("mallory")).await;
            }
        });
        Self(stop, tasks)
    }

    async fn finish(mut self) {
        self.0.store(true, Ordering::Relaxed);
        while self.1.join_next().await.is_some() {}
    }
}

/// Fills in the variables of a query, as Grafana does if "All" is selected for each of them.
fn filled_in(query: &str) -> String {
    let query = query.replace("$__rate_interval", "30s");
    ["$job", "$instance", "$rule"].iter().fold(query, |query, name| query.replace(name, ".+"))
}

/// Returns the metric selectors of a query.
fn selectors(query: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut selectors = BTreeSet::new();
    let mut rest = query;
    while let Some(start) = rest.find(is_name) {
        let end = rest[start..].find(|c| !is_name(c)).map_or(rest.len(), |end| start + end);
        let (name, after) = (&rest[start..end], &rest[end..]);
        let labels = match after.strip_prefix('{') {
            Some(labels) => &after[..=labels.find('}').expect("a closing brace") + 1],
            None => "",
        };
        if ["rlaas_", "rate_limiter_", "process_", "up"].iter().any(|of| name.starts_with(of)) {
            selectors.insert(format!("{name}{labels}"));
        }
        rest = &after[labels.len()..];
    }
    selectors
}

#[test]
fn selector_parser_finds_metrics_with_their_labels() {
    let query = "sum by (job) (rate(rlaas_a_total{b=\"c\", rule=\"x\"}[5m])) / up > process_z + 1";
    let seen: Vec<String> = selectors(query).into_iter().collect();
    assert_eq!(seen, ["process_z", "rlaas_a_total{b=\"c\", rule=\"x\"}", "up"]);
}

#[tokio::test]
async fn queries_return_data_under_load_and_after_an_outage() {
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", RULES);
    let mut redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &url, "store.redis.timeout=100ms"];
    let project = dir.write("shop.yaml", PROJECT);
    let mut command = rlaas(&["serve"]);
    command.arg("--config").arg(&file).arg("--config").arg(&project);
    let server = Rlaas::start_with(command, &settings);
    let load = MixedLoad::start(&server).await;
    let prometheus = Prometheus::start(server.http());
    let sees = async |query: &str, wanted: f64| {
        let what = format!("{query} = {wanted}");
        let seen = async || prometheus.query(query).await.is_ok_and(|all| all.contains(&wanted));
        eventually(&what, TIMEOUT, seen).await;
    };
    sees(
        "count(rlaas_decisions_total{rule=\"open\",outcome=\"denied\",source=\"store\"} > 0)",
        1.0,
    )
    .await;
    redis.kill();
    sees("rlaas_breaker_state", 2.0).await;
    sees("ALERTS{alertname=\"RlaasBreakerOpen\",alertstate=\"pending\"}", 1.0).await;
    sees("count(count by (policy) (rlaas_degraded_total > 0))", 3.0).await;
    redis.restart();
    sees("rlaas_breaker_state", 0.0).await;
    dir.write("rlaas.yaml", &RULES.replace("limit: 5", "limit: 6"));
    sees("rlaas_config_revision", 2.0).await;

    let has_answer = async |what: &str, query: &str| {
        let answers = async || match prometheus.query(query).await {
            Ok(values) => values.iter().any(|value| value.is_finite()),
            Err(error) => panic!("{what}: {query}: {error}"),
        };
        eventually(&format!("an answer to {what}: {query}"), TIMEOUT, answers).await;
    };
    for (title, query) in queries(&dashboard()) {
        if ABSENT_METRICS.iter().any(|metric| query.contains(metric)) {
            prometheus.query(&filled_in(&query)).await.expect("a query");
        } else {
            has_answer(&title, &filled_in(&query)).await;
        }
    }
    let rules = prometheus.get("/api/v1/rules").await;
    let rules = rules["data"]["groups"][0]["rules"].as_array().expect("rules").clone();
    assert!(rules.len() > 10, "{rules:?}");
    for rule in rules {
        assert_eq!(rule["lastError"].as_str().unwrap_or_default(), "", "{rule}");
        // Most alerts are inactive, but the metrics that they select must exist.
        let looked_at = selectors(rule["query"].as_str().expect("a query"));
        for selector in looked_at.into_iter().filter(|at| !ABSENT_METRICS.contains(&&**at)) {
            has_answer(&rule["name"].to_string(), &selector).await;
        }
    }
    load.finish().await;
}
