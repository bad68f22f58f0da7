//! Every metric, declared once.
//!
//! Their labels are in `labels.rs`: rule names and enums only.

use std::sync::{Arc, OnceLock};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

use super::exposition::{Exposition, as_text};
use super::labels::DecisionLabels;
pub use super::labels::{
    ApiLabels, CertificateLabels, KindLabels, OperationLabels, OutcomeLabels, ReasonLabels,
};
use super::observer::RuleMetrics;
use super::process::ProcessCollector;
use super::sharded::{ShardedCounter, ShardedHistogram};

/// The metrics of one server.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Requests that no enforced rule matched, by what the policy for them says.
    pub unmatched: Family<OutcomeLabels, Counter>,
    /// Seconds from request to verdict, by API.
    pub check_duration: Family<ApiLabels, ShardedHistogram>,
    /// Seconds that the store took, by operation.
    pub(super) store_duration: Family<OperationLabels, ShardedHistogram>,
    /// The same by the position of the operation, looked up once.
    pub(super) store_histograms: [OnceLock<ShardedHistogram>; 2],
    /// Failures of the store, by kind.
    pub store_errors: Family<KindLabels, Counter>,
    /// What is counted for each rule.
    pub(super) by_rule: Arc<RuleMetrics>,
    /// Requests that were shed: too many waited for the store.
    pub shed: Counter,
    /// Requests whose deadline was over before anything was sent to the store.
    pub expired: Counter,
    /// Units that a denied request could not give back.
    pub refund_errors: Counter,
    /// Breakers: 0 all closed, 1 one is half-open, 2 one is open.
    pub breaker_state: Gauge,
    /// Times that the clock of a Redis server has jumped against ours.
    pub redis_clock_jumps: Counter,
    /// Denials that were answered without the store.
    pub deny_cache_hits: ShardedCounter,
    /// Requests that were rejected as invalid, by the field that was.
    pub rejected: Family<ReasonLabels, Counter>,
    /// Calls that were refused, by reason: their caller is unknown, or has not the role.
    pub refused: Family<ReasonLabels, Counter>,
    /// Handshakes that failed: no TLS, no certificate, a foreign one, or too slow.
    pub tls_handshake_errors: Counter,
    /// 1 if the certificates that were read last are in force, 0 if they were refused.
    pub tls_last_reload_successful: Gauge,
    /// Unix time at which a certificate in force ends.
    pub tls_certificate_expiry: Family<CertificateLabels, Gauge>,
    /// Store calls whose fate is unknown: sent, and never answered.
    pub ambiguous: Counter,
    /// Connections that are served at this moment, by API.
    pub open_connections: Family<ApiLabels, Gauge>,
    /// Connections that were not served, by reason.
    pub refused_connections: Family<ReasonLabels, Counter>,
    /// Calls that ended in a panic.
    pub panics: Counter,
    /// Connections that were served so far, by API.
    pub connections: Family<ApiLabels, Counter>,
    /// Keys in the memory store.
    pub memory_keys: Gauge,
    /// Live keys that the memory store dropped because it was full.
    pub memory_evictions: Counter,
    /// Revision of the configuration in force.
    pub config_revision: Gauge,
    /// 1 if the last configuration that was read is in force, 0 if it was refused.
    pub config_last_reload_successful: Gauge,
}

impl Metrics {
    /// Registers every metric, all at 0, with every series whose labels the code knows.
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let r = &mut registry;
        // The client adds `_total` to counters.
        let decisions = add(r, "rlaas_decisions", "Decisions");
        let metrics = Self {
            unmatched: add(r, "rlaas_unmatched", "Requests refused or passed for want of a rule"),
            check_duration: add(
                r,
                "rlaas_check_duration_seconds",
                "Seconds from request to verdict",
            ),
            store_duration: add(r, "rlaas_store_duration_seconds", "Seconds that the store took"),
            store_histograms: Default::default(),
            store_errors: add(r, "rlaas_store_errors", "Failures of the store"),
            by_rule: by_rule(r, decisions),
            shed: add(r, "rlaas_shed", "Requests shed: too many waited for the store"),
            expired: add(
                r,
                "rlaas_expired",
                "Requests whose deadline was over before the store was asked",
            ),
            refund_errors: add(
                r,
                "rlaas_give_back_errors",
                "Requests that were denied and could not give back what they had taken",
            ),
            breaker_state: add(
                r,
                "rlaas_breaker_state",
                "Breakers before Redis: 0 all closed, 1 one is half-open, 2 one is open",
            ),
            redis_clock_jumps: add(
                r,
                "rlaas_redis_clock_jumps",
                "Times that the clock of a Redis server jumped by more than a second",
            ),
            deny_cache_hits: add(r, "rlaas_deny_cache_hits", "Denials answered without the store"),
            rejected: add(r, "rlaas_rejected", "Requests rejected as invalid"),
            refused: add(r, "rlaas_refused", "Calls refused: unknown caller, or without the role"),
            tls_handshake_errors: add(
                r,
                "rlaas_tls_handshake_errors",
                "TLS handshakes that failed",
            ),
            tls_last_reload_successful: add(
                r,
                "rlaas_tls_last_reload_successful",
                "1 if the certificates that were read last are in force",
            ),
            tls_certificate_expiry: add(
                r,
                "rlaas_tls_certificate_expiry_timestamp_seconds",
                "Unix time at which a certificate in force ends",
            ),
            ambiguous: add(r, "rlaas_ambiguous", "Store calls that were sent and never answered"),
            open_connections: add(r, "rlaas_open_connections", "Connections at this moment"),
            connections: add(r, "rlaas_connections", "Connections so far"),
            refused_connections: add(
                r,
                "rlaas_refused_connections",
                "Connections that were not served",
            ),
            panics: add(r, "rlaas_panics", "Calls that ended in a panic"),
            memory_keys: add(r, "rlaas_memory_keys", "Keys in the memory store"),
            memory_evictions: add(
                r,
                "rlaas_memory_evictions",
                "Live keys dropped because the memory store was full",
            ),
            config_revision: add(
                r,
                "rlaas_config_revision",
                "Revision of the configuration in force",
            ),
            config_last_reload_successful: add(
                r,
                "rlaas_config_last_reload_successful",
                "1 if the last configuration that was read is in force",
            ),
            registry: Registry::default(),
        };
        r.register(
            "rlaas_build",
            "What is running",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        registry.register_collector(Box::new(ProcessCollector));
        metrics.declare();
        // Nothing has been refused yet, and nothing ever is where there are none.
        metrics.tls_last_reload_successful.set(1);
        Self { registry, ..metrics }
    }

    /// All metrics.
    ///
    /// # Panics
    ///
    /// Never: writing to a string does not fail.
    pub fn render(&self, exposition: Exposition) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string does not fail");
        match exposition {
            Exposition::OpenMetrics => text,
            Exposition::Text => as_text(&text),
        }
    }
}

/// The metrics of each rule; those of decisions are registered already.
fn by_rule(
    r: &mut Registry,
    decisions: Family<DecisionLabels, ShardedCounter>,
) -> Arc<RuleMetrics> {
    Arc::new(RuleMetrics {
        decisions,
        fail_open: add(
            r,
            "rate_limiter_fail_open",
            "Requests that passed because the store did not answer",
        ),
        degraded: add(r, "rlaas_degraded", "Decisions by policy because the store did not answer"),
    })
}

/// A metric at zero, registered.
fn add<M>(registry: &mut Registry, name: &str, help: &str) -> M
where
    M: Metric + Clone + Default,
{
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_info_get_the_documented_names() {
        let metrics = Metrics::new();
        metrics.memory_evictions.inc();
        let text = metrics.render(Exposition::OpenMetrics);
        assert!(text.contains("\nrlaas_memory_evictions_total 1\n"), "{text}");
        assert!(text.contains("\nrlaas_build_info{version="), "{text}");
    }
}
