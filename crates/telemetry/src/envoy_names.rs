//! Decisions of rules in files and of a management server that have metrics of their own, under the names that dashboards for envoyproxy/ratelimit read, as the mapping of
//! Envoy Gateway makes them: `ratelimit_service_rate_limit_over_limit{domain="shop",key1="user"}`. So are calls of
//! Envoy and reloads.
//!
//! **Source:** envoyproxy/gateway, `internal/infrastructure/kubernetes/ratelimit/statsd_conf.yaml`.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;
use tonic::Code;

use super::rule_counters::{RuleTable, RuleTotals};
use super::sharded::ShardedHistogram;

/// Domain, and the first two keys: deeper ones are counted with them.
type DescriptorLabels = Vec<(&'static str, String)>;
type Statistic = (&'static str, &'static str, fn(&RuleTotals) -> u64);

/// All but the first count decisions, where envoyproxy/ratelimit counts units.
const STATISTICS: [Statistic; 5] = [
    ("total_hits", "Units requested", |rule| rule.requested),
    ("over_limit", "Decisions that deny", |rule| rule.counts.denied + rule.counts.shadow_denied),
    ("near_limit", "Decisions that allow near the limit", |rule| rule.counts.near_limit),
    ("within_limit", "Decisions that allow", |rule| rule.counts.allowed + rule.counts.near_limit),
    ("shadow_mode", "Decisions that would deny", |rule| rule.counts.shadow_denied),
];
const METHOD: [(&str, &str); 1] = [("grpc_method", "ShouldRateLimit")];

/// What is counted under no other name.
#[derive(Debug, Default)]
pub struct EnvoyCounts {
    errors: Family<[(&'static str, &'static str); 1], Gauge>,
    /// Configurations that came into force.
    pub loads: Gauge,
    /// Configurations that were refused.
    pub load_errors: Gauge,
}

impl EnvoyCounts {
    /// Counts a call that failed with this code.
    pub fn count_error(&self, code: Code) {
        let is_of_call = matches!(code, Code::InvalidArgument | Code::NotFound);
        let kind = if is_of_call { "service_error" } else { "redis_error" };
        self.errors.get_or_create(&[("err_type", kind)]).inc();
    }

    /// Registers the metrics. A counter's name would end with `_total`.
    pub(super) fn register(&self, registry: &mut Registry) {
        for kind in ["service_error", "redis_error"] {
            drop(self.errors.get_or_create(&[("err_type", kind)]));
        }
        let r = registry.sub_registry_with_prefix("ratelimit_service");
        r.register("should_rate_limit_error", "Calls that failed", self.errors.clone());
        r.register("config_load_success", "Configurations in force", self.loads.clone());
        r.register("config_load_error", "Refused configurations", self.load_errors.clone());
    }
}

/// The metrics of a table, and of calls.
#[derive(Debug)]
pub(super) struct EnvoyNames {
    pub(super) table: RuleTable,
    pub(super) calls: ShardedHistogram,
}

impl Collector for EnvoyNames {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut rules = BTreeMap::<DescriptorLabels, Vec<RuleTotals>>::new();
        for totals in self.table.named_totals() {
            if let Some(names) = names(&totals.key.rule) {
                rules.entry(names).or_default().push(totals);
            }
        }
        for (name, help, count) in STATISTICS {
            let name = format!("ratelimit_service_rate_limit_{name}");
            // A counter's name would end with `_total`.
            let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
            for (labels, counts) in &rules {
                let sum = counts.iter().map(count).sum::<u64>();
                let sum = i64::try_from(sum).unwrap_or(i64::MAX);
                ConstGauge::new(sum).encode(family.encode_family(labels)?)?;
            }
        }
        let (name, help) = ("ratelimit_service_total_requests", "Calls");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        let total = i64::try_from(self.calls.counts().total()).unwrap_or(i64::MAX);
        ConstGauge::new(total).encode(family.encode_family(&METHOD)?)?;
        let (name, help) = ("ratelimit_service_response_time_seconds", "Seconds to a verdict");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        self.calls.encode(family.encode_family(&METHOD)?)
    }
}

/// Returns the labels of the rule of a descriptor; `None` if it is none.
fn names(rule: &str) -> Option<DescriptorLabels> {
    let mut parts = rule.split('.').map(str::to_owned);
    let (domain, first) = (parts.next()?, parts.next()?);
    let second = parts.next().map(|part| ("key2", part));
    Some([("domain", domain), ("key1", first)].into_iter().chain(second).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_the_domain_and_the_first_keys() {
        for (rule, expected) in [
            ("default", None),
            ("shop.user", Some(vec![("domain", "shop"), ("key1", "user")])),
            ("shop.a_b.c.d", Some(vec![("domain", "shop"), ("key1", "a_b"), ("key2", "c")])),
        ] {
            let expected = expected.map(|all: Vec<_>| {
                all.into_iter().map(|(name, value): (_, &str)| (name, value.to_owned())).collect()
            });
            assert_eq!(names(rule), expected, "{rule}");
        }
    }
}
