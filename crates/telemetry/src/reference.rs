//! The reference of metrics: names, types, units, labels with their values, help texts.
//!
//! A registry with every possible series is rendered and parsed, so that the reference can't differ
//! from `/metrics`.

use rlaas_core::algorithm::Algorithm;

use super::exposition::Exposition;
use super::labels::{
    CertificateLabels, DegradedLabels, POLICIES, REDIS_ERROR_KINDS, RuleLabels, STORE_ERROR_KINDS,
};
use super::metrics::Metrics;
use super::rule_counters::Label;
use super::stats::StatsKey;

/// Labels whose values are data, with a description of their values.
const DATA: [(&str, &str); 4] = [
    ("rule", "a rule's name, or `other`"),
    ("project", "a project's id, or `other`, or nothing for requests without one"),
    ("version", "the program's version"),
    ("threshold", "a part of a limit, such as `80%`"),
];
/// Units by the last part of a name, without `_total`.
const UNITS: [(&str, &str); 2] = [("_seconds", "seconds"), ("_bytes", "bytes")];

/// One metric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricReference {
    /// Name, as it is served.
    pub name: String,
    /// Type, as Prometheus calls it.
    pub kind: String,
    /// Unit; counts have none.
    pub unit: Option<&'static str>,
    /// Labels, each with its values, or with a description of them.
    pub labels: Vec<(String, Vec<String>)>,
    /// Help text.
    pub help: String,
}

/// Returns every metric, in the order of the exposition.
pub fn metrics() -> Vec<MetricReference> {
    let metrics = Metrics::new();
    metrics.declare_everything();
    read(&metrics.render(Exposition::Text))
}

impl Metrics {
    /// Creates every possible series, for a rule of each algorithm.
    fn declare_everything(&self) {
        self.declare_store_calls();
        let rule = || "rule".to_owned();
        for algorithm in Algorithm::ALL {
            let key = StatsKey::of_rule("", "rule");
            self.by_rule.table.rule(key, *algorithm, Label::Named).declare_everything();
        }
        self.thresholds.declare_everything();
        for project in ["", "project"] {
            drop(self.by_project.observer(project));
        }
        drop(self.by_rule.fail_open.get_or_create(&RuleLabels { rule: rule() }));
        drop(self.by_rule.uncounted.get_or_create(&RuleLabels { rule: rule() }));
        drop(self.by_rule.limits_ignored.get_or_create(&RuleLabels { rule: rule() }));
        for policy in POLICIES {
            for kind in STORE_ERROR_KINDS.into_iter().chain(REDIS_ERROR_KINDS) {
                let labels = DegradedLabels { rule: rule(), policy, kind };
                drop(self.by_rule.degraded.get_or_create(&labels));
            }
        }
        for certificate in ["server", "client-ca"] {
            drop(self.tls_certificate_expiry.get_or_create(&CertificateLabels { certificate }));
        }
    }
}

/// Parses the text format of Prometheus.
fn read(text: &str) -> Vec<MetricReference> {
    let mut metrics: Vec<MetricReference> = Vec::new();
    for line in text.lines() {
        if let Some((name, help)) =
            line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' '))
        {
            let (name, help) = (name.to_owned(), help.to_owned());
            let unit = unit_of(&name);
            metrics.push(MetricReference { name, unit, help, ..MetricReference::default() });
        } else if let Some(metric) = metrics.last_mut() {
            match line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
                Some((_, kind)) => kind.clone_into(&mut metric.kind),
                None => add_labels(&mut metric.labels, line),
            }
        }
    }
    // The order of series in a registry is random.
    for (_, values) in metrics.iter_mut().flat_map(|metric| &mut metric.labels) {
        values.sort_unstable();
    }
    metrics
}

fn unit_of(name: &str) -> Option<&'static str> {
    let name = name.strip_suffix("_total").unwrap_or(name);
    let unit = UNITS.into_iter().find(|(suffix, _)| name.ends_with(suffix));
    unit.map(|(_, unit)| unit)
}

/// Adds the labels of a sample such as `name{a="1",b="2"} 0`. No value has a quote or a comma in it.
fn add_labels(labels: &mut Vec<(String, Vec<String>)>, sample: &str) {
    let inside = sample.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let pairs = inside.into_iter().flat_map(|(inside, _)| inside.split(','));
    for (label, value) in pairs.filter_map(|pair| pair.split_once('=')) {
        if label == "le" {
            continue;
        }
        let data = DATA.into_iter().find(|(name, _)| *name == label);
        let value = data.map_or(value.trim_matches('"'), |(_, named)| named).to_owned();
        match labels.iter_mut().find(|(name, _)| name == label) {
            Some((_, values)) if values.contains(&value) => {}
            Some((_, values)) => values.push(value),
            None => labels.push((label.to_owned(), vec![value])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_names_types_labels_and_units() {
        let text = "# HELP a_seconds_total A and B.\n# TYPE a_seconds_total counter\n\
                    a_seconds_total{rule=\"x\",kind=\"one\"} 1\n\
                    a_seconds_total{rule=\"y\",kind=\"two\"} 1\n\
                    # HELP h H.\n# TYPE h histogram\nh_bucket{le=\"1.0\",api=\"grpc\"} 0\nh_sum 0\n";
        let [counter, histogram] = read(text).try_into().expect("two metrics");
        assert_eq!((&*counter.name, &*counter.kind), ("a_seconds_total", "counter"));
        assert_eq!((counter.unit, &*counter.help), (Some("seconds"), "A and B."));
        let kinds = vec!["one".to_owned(), "two".to_owned()];
        let rules = vec!["a rule's name, or `other`".to_owned()];
        assert_eq!(counter.labels, [("rule".to_owned(), rules), ("kind".to_owned(), kinds)]);
        assert_eq!(histogram.labels, [("api".to_owned(), vec!["grpc".to_owned()])]);
        assert_eq!((&*histogram.kind, histogram.unit), ("histogram", None));
    }

    #[test]
    fn every_metric_is_described() {
        let metrics = metrics();
        assert!(metrics.len() > 25, "{metrics:?}");
        for metric in metrics {
            assert!(metric.help.len() > 5 && !metric.kind.is_empty(), "{metric:?}");
        }
    }
}
