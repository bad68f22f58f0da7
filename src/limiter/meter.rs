//! Counts the decisions of one rule: to look a counter up by its labels would cost more than to
//! decide.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::taking::policy;
use super::{DenyCache, RuleDecision, Source, every_rule};
use crate::algorithm::Algorithm;
use crate::rules::{Mode, OnStoreFailure, Rule, RuleSet};
use crate::telemetry::metrics::{DecisionLabels, Metrics};
use crate::telemetry::sharded::ShardedCounter;

/// Most labels that tell values of requests, and the longest: metrics stay bounded whatever is sent.
const MOST_DETAILED: usize = 1_000;
const LONGEST_DETAILED: usize = 256;

/// Most rules whose series exist from the start; those of others appear with their first event.
const MAX_DECLARED: usize = 1_000;

/// The counters of labels that tell values of requests, for as long as this process lives.
#[derive(Debug, Default)]
pub(super) struct DetailedMeters(Mutex<HashMap<Arc<str>, Arc<Meter>>>);

impl DetailedMeters {
    /// The counters of a label, and the label; none once there are too many: the rule counts then.
    pub(super) fn meter(&self, label: &str) -> Option<(Arc<str>, Arc<Meter>)> {
        let mut meters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((label, meter)) = meters.get_key_value(label) {
            return Some((Arc::clone(label), Arc::clone(meter)));
        }
        if meters.len() >= MOST_DETAILED || label.len() > LONGEST_DETAILED {
            return None;
        }
        let (label, meter): (Arc<str>, Arc<Meter>) = (label.into(), Arc::default());
        meters.insert(Arc::clone(&label), Arc::clone(&meter));
        Some((label, meter))
    }
}

/// What a decision of a rule comes to.
#[derive(Clone, Copy)]
enum Outcome {
    Allowed,
    Denied,
    ShadowDenied,
}

/// The counters of one rule for what the store decides. They are looked up with their first decision.
#[derive(Debug, Default)]
pub(super) struct Meter([OnceLock<ShardedCounter>; 3]);

impl Meter {
    /// Counts a decision of this rule.
    pub(super) fn count(&self, decided: &RuleDecision, metrics: &Metrics) {
        let outcome = Outcome::of(decided.mode, decided.decision.is_allowed());
        let (rule, algorithm) = (&decided.rule, decided.algorithm);
        let counter = || {
            let labels = labels(rule, algorithm, outcome, decided.source);
            metrics.decisions.get_or_create_owned(&labels)
        };
        match decided.source {
            Source::Store => self.0[outcome as usize].get_or_init(counter).inc(),
            _ => counter().inc(),
        };
    }
}

impl Outcome {
    fn of(mode: Mode, is_allowed: bool) -> Self {
        match (mode, is_allowed) {
            (_, true) => Self::Allowed,
            (Mode::Enforced | Mode::Quota, false) => Self::Denied,
            (Mode::Shadow | Mode::ShadowQuota, false) => Self::ShadowDenied,
        }
    }
}

/// Creates the series of the default rule and of the first others by name, at 0.
pub(super) fn declare(rules: &RuleSet, deny_cache: Option<&DenyCache>, metrics: &Metrics) {
    let default = rules.default_rule();
    let mut others: Vec<&Rule> = every_rule(rules).skip(1).collect();
    others.sort_by(|one, other| one.name.cmp(&other.name));
    for rule in std::iter::once(default).chain(others).take(MAX_DECLARED) {
        declare_rule(rule, deny_cache, metrics);
    }
}

/// Creates the series that the mode and the policies of a rule can lead to.
fn declare_rule(rule: &Rule, deny_cache: Option<&DenyCache>, metrics: &Metrics) {
    let [allowed, denied] = [true, false].map(|is_allowed| Outcome::of(rule.mode, is_allowed));
    let declare = |outcome, source| {
        metrics.declare_decisions(&labels(&rule.name, rule.algorithm, outcome, source));
    };
    declare(allowed, Source::Store);
    declare(denied, Source::Store);
    if deny_cache.is_some() && rule.mode == Mode::Enforced {
        declare(denied, Source::DenyCache);
    }
    for policy in [false, true].map(|is_tripped| policy(rule, is_tripped)) {
        match policy {
            OnStoreFailure::Error => continue,
            OnStoreFailure::Allow => {
                metrics.declare_fail_open(&rule.name);
                declare(allowed, Source::FailOpen);
            }
            OnStoreFailure::Deny => declare(denied, Source::FailClosed),
            OnStoreFailure::Local(_) => {
                declare(allowed, Source::LocalFallback);
                declare(denied, Source::LocalFallback);
            }
        }
        metrics.declare_degraded(&rule.name, policy.name());
    }
}

fn labels(rule: &str, algorithm: Algorithm, outcome: Outcome, source: Source) -> DecisionLabels {
    DecisionLabels {
        rule: rule.to_owned(),
        algorithm: algorithm.name(),
        outcome: match outcome {
            Outcome::Allowed => "allowed",
            Outcome::Denied => "denied",
            Outcome::ShadowDenied => "shadow_denied",
        },
        source: source.name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Share;
    use crate::telemetry::labels::{POLICIES, SOURCES};

    #[test]
    fn metrics_know_every_source_and_policy() {
        let sources = [
            Source::Store,
            Source::DenyCache,
            Source::FailOpen,
            Source::FailClosed,
            Source::LocalFallback,
        ];
        assert_eq!(sources.map(Source::name), SOURCES);
        let share = Share::new(Share::WHOLE).expect("a share");
        let policies = [
            OnStoreFailure::Error,
            OnStoreFailure::Allow,
            OnStoreFailure::Deny,
            OnStoreFailure::Local(share),
        ];
        assert_eq!(policies.map(OnStoreFailure::name), POLICIES);
    }
}
