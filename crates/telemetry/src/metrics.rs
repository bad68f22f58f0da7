//! All metrics of the service. Their labels are in `labels.rs`.

use std::sync::{Arc, OnceLock};

use prometheus_client::encoding::prometheus_protobuf;
use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::MetricFamily;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

use super::decisions::DecisionWatchers;
use super::envoy_names::{EnvoyCounts, EnvoyNames};
use super::exposition::{Exposition, as_text};
use super::labels::{APIS, LISTENERS};
pub use super::labels::{
    ApiLabels, CertificateLabels, EventLabels, KindLabels, OperationLabels, OutcomeLabels,
    ReasonLabels,
};
use super::process::ProcessCollector;
use super::projects::ProjectMetrics;
use super::rule_counters::{RuleTable, RuleTotals};
use super::rule_metrics::RuleMetrics;
use super::sharded::{
    DurationCounts, RequestCounters, RequestCounts, ShardedCounter, ShardedHistogram,
};
use super::thresholds::Thresholds;
use super::top_keys::TopKeys;

/// The metrics of one server.
#[derive(Debug)]
pub struct Metrics {
    /// All metrics but those of projects.
    registry: Registry,
    projects: Registry,
    unnamed_projects: Registry,
    /// Requests that no rule decides, by outcome and reason.
    pub unmatched: Family<OutcomeLabels, Counter>,
    /// Seconds from request to verdict, by API.
    pub check_duration: Family<ApiLabels, ShardedHistogram>,
    /// Seconds of calls to the store, by operation.
    pub(super) store_duration: Family<OperationLabels, ShardedHistogram>,
    /// Histograms of `store_duration` by operation, looked up once.
    pub(super) store_histograms: [OnceLock<ShardedHistogram>; 2],
    /// Failures of the store, by kind.
    pub store_errors: Family<KindLabels, Counter>,
    /// Metrics of each rule.
    pub(super) by_rule: Arc<RuleMetrics>,
    /// Metrics of each project.
    pub(super) by_project: ProjectMetrics,
    /// Counts that are shown under the names of envoyproxy/ratelimit alone.
    pub envoy: EnvoyCounts,
    /// Those who watch decisions.
    pub decisions: Arc<DecisionWatchers>,
    /// Counts of keys, which are in no metric.
    pub(super) top_keys: Option<TopKeys>,
    /// Thresholds of rules that keys have reached.
    pub thresholds: Thresholds,
    /// Requests that were shed because too many waited for the store.
    pub shed: Counter,
    /// Requests whose deadline passed before the call to the store.
    pub expired: Counter,
    /// Denied requests whose units could not be refunded.
    pub refund_errors: Counter,
    /// Requests that were answered by the remembered replies of their request ids.
    pub replays: Counter,
    /// Costs for rules that do not apply.
    pub costs_ignored: Counter,
    /// Calls of `ReservationService` by what became of them.
    pub reservations: Family<EventLabels, Counter>,
    /// Replies that the memory store forgot before their time because it was full.
    pub request_id_evictions: Counter,
    /// Reservations that the memory store denied because their project had its share of all holds.
    pub hold_denials: Counter,
    /// Settlements that the memory store forgot before their time because it was full.
    pub settlement_evictions: Counter,
    /// Circuit breakers: 0 if all are closed, 1 if one is half-open, 2 if one is open.
    pub breaker_state: Gauge,
    /// 1 if a Redis server may evict keys when its memory is full, else 0.
    pub redis_may_evict: Gauge,
    /// Jumps of the clock of a Redis server by more than a second.
    pub redis_clock_jumps: Counter,
    /// Denials from the deny cache.
    pub deny_cache_hits: ShardedCounter,
    /// Requests that were rejected as invalid, by field.
    pub rejected: Family<ReasonLabels, Counter>,
    /// Calls that were not authorised, by reason.
    pub refused: Family<ReasonLabels, Counter>,
    /// TLS handshakes that failed or timed out.
    pub tls_handshake_errors: Counter,
    /// 1 if the last reload of certificates succeeded, 0 if it failed.
    pub tls_last_reload_successful: Gauge,
    /// Unix time at which the first of the loaded certificates expires.
    pub tls_certificate_expiry: Family<CertificateLabels, Gauge>,
    /// Store calls that were sent and received no reply.
    pub ambiguous: Counter,
    /// Open connections, by protocol.
    pub open_connections: Family<ApiLabels, Gauge>,
    /// Connections that were rejected, by reason.
    pub refused_connections: Family<ReasonLabels, Counter>,
    /// Panics of request handlers.
    pub panics: Counter,
    /// Connections since the start, by protocol.
    pub connections: Family<ApiLabels, Counter>,
    /// Keys in the memory store.
    pub memory_keys: Gauge,
    /// Live keys that the memory store evicted because it was full.
    pub memory_evictions: Counter,
    /// 1 while the journal of the memory store can't be written, else 0.
    pub journal_failing: Gauge,
    /// Bytes of the journal's files.
    pub journal_size: Gauge,
    /// 1 while snapshots of the memory store can't be written, else 0.
    pub snapshot_failing: Gauge,
    /// Unix time at which the last snapshot that is on disk began.
    pub snapshot_time: Gauge,
    /// Seconds since the catalogue in force was last known to be that of the store.
    pub catalogue_age: Gauge,
    /// 1 while the catalogue of the store conflicts with that of an instance.
    pub catalogue_conflict: Gauge,
    /// 1 if the store may lose the catalogue by its settings, else 0.
    pub catalogue_at_risk: Gauge,
    /// Revision of the active configuration.
    pub config_revision: Gauge,
    /// 1 if the last reload of the configuration succeeded, 0 if it failed.
    pub config_last_reload_successful: Gauge,
    /// 1 while a management server has a stream open, else 0.
    pub xds_connected: Gauge,
    /// Rules of a management server, by what became of them.
    pub xds_responses: Family<EventLabels, Counter>,
}

impl Metrics {
    /// Registers every metric, and creates every series whose labels are known, all at 0.
    #[expect(clippy::too_many_lines, reason = "an entry for each metric")]
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let r = &mut registry;
        // prometheus-client adds `_total` to the names of counters.
        let table = RuleTable::default();
        r.register("rlaas_decisions", "Decisions of rules", table.series());
        let metrics = Self {
            unmatched: add(r, "rlaas_unmatched", "Requests that no rule decides as they ask"),
            check_duration: add(
                r,
                "rlaas_check_duration_seconds",
                "Seconds from request to verdict",
            ),
            store_duration: add(r, "rlaas_store_duration_seconds", "Seconds of calls to the store"),
            store_histograms: Default::default(),
            store_errors: add(r, "rlaas_store_errors", "Failed calls to the store"),
            by_rule: by_rule(r, table),
            by_project: ProjectMetrics::new(),
            envoy: EnvoyCounts::default(),
            decisions: Arc::default(),
            top_keys: None,
            thresholds: Thresholds::register(r),
            shed: add(r, "rlaas_shed", "Requests shed because too many waited for the store"),
            expired: add(
                r,
                "rlaas_expired",
                "Requests whose deadline passed before the call to the store",
            ),
            refund_errors: add(
                r,
                "rlaas_give_back_errors",
                "Denied requests whose units could not be refunded",
            ),
            reservations: add(r, "rlaas_reservations", "Reservations by what became of them"),
            costs_ignored: add(
                r,
                "rlaas_costs_ignored",
                "Costs that requests name for rules that do not apply to them",
            ),
            replays: add(
                r,
                "rlaas_replays",
                "Requests answered by the remembered reply of their request id",
            ),
            request_id_evictions: add(
                r,
                "rlaas_request_id_evictions",
                "Replies of request ids forgotten early because the memory store was full",
            ),
            hold_denials: add(
                r,
                "rlaas_hold_denials",
                "Reservations denied because their project had its share of all holds in memory",
            ),
            settlement_evictions: add(
                r,
                "rlaas_settlement_evictions",
                "Settlements of reservations forgotten early because the memory store was full",
            ),
            breaker_state: add(
                r,
                "rlaas_breaker_state",
                "Circuit breakers of Redis: 0 all closed, 1 one is half-open, 2 one is open",
            ),
            redis_may_evict: add(
                r,
                "rlaas_redis_may_evict",
                "1 if a Redis server may evict keys, counts and bans among them, else 0",
            ),
            redis_clock_jumps: add(
                r,
                "rlaas_redis_clock_jumps",
                "Jumps of the clock of a Redis server by more than a second",
            ),
            deny_cache_hits: add(r, "rlaas_deny_cache_hits", "Denials from the deny cache"),
            rejected: add(r, "rlaas_rejected", "Requests rejected as invalid"),
            refused: add(r, "rlaas_refused", "Calls that were not authorised"),
            tls_handshake_errors: add(
                r,
                "rlaas_tls_handshake_errors",
                "TLS handshakes that failed or timed out",
            ),
            tls_last_reload_successful: add(
                r,
                "rlaas_tls_last_reload_successful",
                "1 if the last reload of certificates succeeded, 0 if it failed",
            ),
            tls_certificate_expiry: add(
                r,
                "rlaas_tls_certificate_expiry_timestamp_seconds",
                "Unix time at which the first of the loaded certificates expires",
            ),
            ambiguous: add(
                r,
                "rlaas_ambiguous",
                "Calls to the store that were sent and received no reply",
            ),
            open_connections: add(r, "rlaas_open_connections", "Open connections"),
            connections: add(r, "rlaas_connections", "Connections since the start"),
            refused_connections: add(
                r,
                "rlaas_refused_connections",
                "Connections that were rejected",
            ),
            panics: add(r, "rlaas_panics", "Panics of request handlers"),
            memory_keys: add(r, "rlaas_memory_keys", "Keys in the memory store"),
            memory_evictions: add(
                r,
                "rlaas_memory_evictions",
                "Live keys evicted because the memory store was full",
            ),
            journal_failing: add(
                r,
                "rlaas_journal_failing",
                "1 while the journal of the memory store can't be written, else 0",
            ),
            journal_size: add(
                r,
                "rlaas_journal_size_bytes",
                "Size of the files of the memory store's journal",
            ),
            snapshot_failing: add(
                r,
                "rlaas_snapshot_failing",
                "1 while snapshots of the memory store can't be written, else 0",
            ),
            snapshot_time: add(
                r,
                "rlaas_snapshot_timestamp_seconds",
                "Unix time of the last snapshot of the memory store: a crash loses later counts",
            ),
            catalogue_age: add(
                r,
                "rlaas_catalogue_age_seconds",
                "Seconds since the projects in force were last known to be those of the store",
            ),
            catalogue_conflict: add(
                r,
                "rlaas_catalogue_conflict",
                "1 while the projects of the store are not those that an instance knows, and nobody writes them",
            ),
            catalogue_at_risk: add(
                r,
                "rlaas_catalogue_at_risk",
                "1 if Redis may evict projects, or loses them when it restarts, by its settings, else 0",
            ),
            config_revision: add(
                r,
                "rlaas_config_revision",
                "Revision of the active configuration",
            ),
            config_last_reload_successful: add(
                r,
                "rlaas_config_last_reload_successful",
                "1 if the last reload of the configuration succeeded, 0 if it failed",
            ),
            xds_connected: add(
                r,
                "rlaas_xds_connected",
                "1 while a management server has a stream open, else 0",
            ),
            xds_responses: add(
                r,
                "rlaas_xds_responses",
                "Rules that a management server has sent, by what became of them",
            ),
            registry: Registry::default(),
            projects: Registry::default(),
            unnamed_projects: Registry::default(),
        };
        r.register(
            "rlaas_build",
            "Version of the service",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        registry.register_collector(Box::new(ProcessCollector));
        metrics.declare();
        // No reload has failed yet. Without TLS it stays 1.
        metrics.tls_last_reload_successful.set(1);
        let (mut projects, mut unnamed_projects) = (Registry::default(), Registry::default());
        projects.register_collector(Box::new(metrics.by_project.clone()));
        unnamed_projects.register_collector(Box::new(metrics.by_project.unnamed()));
        Self { registry, projects, unnamed_projects, ..metrics }
    }

    /// Returns how long decisions took so far, over all APIs.
    pub fn check_counts(&self) -> DurationCounts {
        APIS.iter().fold(DurationCounts::default(), |counts, api| {
            counts.with(&self.check_duration.get_or_create(&ApiLabels { api }).counts())
        })
    }

    /// Returns the number of open connections, over all protocols.
    pub fn count_connections(&self) -> u64 {
        let open = |listener: &&'static str| {
            self.open_connections.get_or_create(&ApiLabels { api: listener }).get()
        };
        LISTENERS.iter().map(open).map(i64::unsigned_abs).sum()
    }

    /// Sets how many projects have series of their own.
    #[must_use]
    pub fn with_max_projects(self, max: usize) -> Self {
        self.by_project.set_max(max);
        self
    }

    /// Returns the counters of the requests of each project; the empty one is that of requests
    /// without a project.
    pub fn project_counters(&self) -> Vec<(Arc<str>, Arc<RequestCounters>)> {
        self.by_project.counters()
    }

    /// Returns the requests so far, of all projects and of none.
    pub fn request_counts(&self) -> RequestCounts {
        self.by_project.total()
    }

    /// Returns what each rule that has counted anything has counted so far. Rules that are in force no
    /// more are in the totals for the last time.
    pub fn last_rule_totals(&self) -> Vec<RuleTotals> {
        self.by_rule.table.last_totals()
    }

    /// Returns what each rule that has counted anything has counted so far, and for the last time that of
    /// rules that are in the totals no more.
    pub fn all_rule_totals(&self) -> Vec<RuleTotals> {
        self.by_rule.table.totals_and_dropped()
    }

    /// Returns what each rule has counted so far.
    pub fn rule_totals(&self) -> Vec<RuleTotals> {
        self.by_rule.table.totals()
    }

    /// Shows decisions of descriptors under the names of envoyproxy/ratelimit too.
    #[must_use]
    pub fn with_envoy_names(mut self) -> Self {
        let calls = self.check_duration.get_or_create_owned(&ApiLabels { api: "envoy" });
        let names = EnvoyNames { table: self.by_rule.table.clone(), calls };
        self.envoy.register(&mut self.registry);
        self.registry.register_collector(Box::new(names));
        self
    }

    /// Counts the keys of each rule too.
    #[must_use]
    pub fn with_top_keys(self, top_keys: TopKeys) -> Self {
        Self { top_keys: Some(top_keys), ..self }
    }

    /// Returns the counts of keys; `None` if they are not recorded.
    pub fn top_keys(&self) -> Option<&TopKeys> {
        self.top_keys.as_ref()
    }

    /// Returns all metrics.
    ///
    /// # Panics
    ///
    /// Never: collecting in memory does not fail.
    pub(super) fn collect(&self) -> Vec<MetricFamily> {
        let all = [&self.registry, &self.projects].map(|registry| {
            prometheus_protobuf::encode(registry).expect("collecting in memory does not fail")
        });
        all.concat()
    }

    /// Renders all metrics.
    ///
    /// # Panics
    ///
    /// Never: writing to a string does not fail.
    pub fn render(&self, exposition: Exposition) -> String {
        self.render_with(&self.projects, exposition)
    }

    /// Renders all metrics, with all projects as others.
    ///
    /// # Panics
    ///
    /// Never: writing to a string does not fail.
    pub fn render_without_projects(&self, exposition: Exposition) -> String {
        self.render_with(&self.unnamed_projects, exposition)
    }

    fn render_with(&self, projects: &Registry, exposition: Exposition) -> String {
        let mut text = String::new();
        let written = encode_registry(&mut text, &self.registry)
            .and_then(|()| encode_registry(&mut text, projects))
            .and_then(|()| encode_eof(&mut text));
        written.expect("writing to a string does not fail");
        match exposition {
            Exposition::OpenMetrics => text,
            Exposition::Text => as_text(&text),
        }
    }
}

/// Registers the metrics of rules, except that of their decisions, which is already registered.
fn by_rule(r: &mut Registry, table: RuleTable) -> Arc<RuleMetrics> {
    Arc::new(RuleMetrics {
        table,
        fail_open: add(r, "rate_limiter_fail_open", "Requests allowed because of a store failure"),
        uncounted: add(
            r,
            "rlaas_uncounted_units",
            "Units of reports that a ceiling of the debt left uncounted",
        ),
        limits_ignored: add(
            r,
            "rlaas_limit_from_ignored",
            "Decisions for which the own limit of a request was none that the rule can use (limit-from)",
        ),
        degraded: add(r, "rlaas_degraded", "Decisions by policy because of a store failure"),
    })
}

/// Registers a metric, at 0.
pub(super) fn add<M>(registry: &mut Registry, name: &str, help: &str) -> M
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
