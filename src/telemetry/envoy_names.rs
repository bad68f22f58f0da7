//! Decisions of rules in files and of a management server that have metrics of their own, under the names that dashboards for envoyproxy/ratelimit read, as the mapping of
//! Envoy Gateway makes them: `ratelimit_service_rate_limit_over_limit{domain="shop",key1="user"}`.
//!
//! **Source:** envoyproxy/gateway, `internal/infrastructure/kubernetes/ratelimit/statsd_conf.yaml`.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use super::rule_counters::RuleTable;
use super::stats::DecisionCounts;

/// Domain, and the first two keys: deeper ones are counted with them.
type DescriptorLabels = Vec<(&'static str, String)>;
type Statistic = (&'static str, &'static str, fn(&DecisionCounts) -> u64);

/// Counts decisions, where envoyproxy/ratelimit counts units.
const STATISTICS: [Statistic; 5] = [
    ("total_hits", "Decisions", |of| of.allowed + of.near_limit + of.denied + of.shadow_denied),
    ("over_limit", "Decisions that deny", |of| of.denied + of.shadow_denied),
    ("near_limit", "Decisions that allow near the limit", |of| of.near_limit),
    ("within_limit", "Decisions that allow", |of| of.allowed + of.near_limit),
    ("shadow_mode", "Decisions that would deny", |of| of.shadow_denied),
];

/// The metrics of a table.
#[derive(Debug)]
pub(super) struct EnvoyNames(pub(super) RuleTable);

impl Collector for EnvoyNames {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut rules = BTreeMap::<DescriptorLabels, Vec<DecisionCounts>>::new();
        for totals in self.0.named_totals().iter().filter(|totals| totals.key.candidate == 0) {
            if let Some(names) = names(&totals.key.rule) {
                rules.entry(names).or_default().push(totals.counts);
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
        Ok(())
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
