//! Counts the decisions of one rule: to look a counter up by its labels would cost more than to
//! decide.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::{RuleDecision, Source};
use crate::rules::Mode;
use crate::telemetry::metrics::{DecisionLabels, Metrics};
use crate::telemetry::sharded::ShardedCounter;

/// Most labels that tell values of requests, and the longest: metrics stay bounded whatever is sent.
const MOST_DETAILED: usize = 1_000;
const LONGEST_DETAILED: usize = 256;

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

/// The counters of one rule for what the store decides. They appear with their first decision.
#[derive(Debug, Default)]
pub(super) struct Meter([OnceLock<ShardedCounter>; 3]);

impl Meter {
    /// Counts a decision of this rule.
    pub(super) fn count(&self, decided: &RuleDecision, metrics: &Metrics) {
        let outcome = match (decided.mode, decided.decision.is_allowed()) {
            (_, true) => Outcome::Allowed,
            (Mode::Enforced | Mode::Quota, false) => Outcome::Denied,
            (Mode::Shadow, false) => Outcome::ShadowDenied,
        };
        let counter = || metrics.decisions.get_or_create_owned(&labels(decided, outcome));
        match decided.source {
            Source::Store => self.0[outcome as usize].get_or_init(counter).inc(),
            _ => counter().inc(),
        };
    }
}

fn labels(decided: &RuleDecision, outcome: Outcome) -> DecisionLabels {
    DecisionLabels {
        rule: decided.rule.to_string(),
        algorithm: decided.algorithm.name(),
        outcome: match outcome {
            Outcome::Allowed => "allowed",
            Outcome::Denied => "denied",
            Outcome::ShadowDenied => "shadow_denied",
        },
        source: decided.source.name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{OnStoreFailure, Share};
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
