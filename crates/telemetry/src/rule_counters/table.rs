//! All rules that are counted, and the metrics of those that have a label.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use rlaas_core::algorithm::Algorithm;
use rlaas_limiter::observer::OTHER_RULES;

use super::{CountedOutcome, CountedRule, Label, RuleTotals};
use crate::labels::DecisionLabels;
use crate::stats::StatsKey;

/// All rules that are counted. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleTable(Arc<Mutex<Rules>>);

#[derive(Debug, Default)]
struct Rules {
    /// Rules in force, by what tells their counters apart.
    by_identity: HashMap<Identity, Arc<CountedRule>>,
    /// Rules that have left the metrics, and of which the last decisions are not read yet.
    retired: Vec<Arc<CountedRule>>,
    /// Decisions of rules that were shown together with others, and are no longer in force.
    left_decisions: BTreeMap<OtherSeries, u64>,
    /// Totals of rules that were dropped since they were last asked for: at most [`RuleTable::MAX_DROPPED`].
    dropped: Vec<RuleTotals>,
    last_id: u64,
}

type Identity = (StatsKey, Algorithm, Label);
/// Algorithm, outcome and source.
type OtherSeries = (&'static str, &'static str, &'static str);

/// The metric of decisions by rule.
#[derive(Clone, Debug, Default)]
pub(crate) struct DecisionSeries(RuleTable);

impl RuleTable {
    /// Most retired rules that are kept while nobody reads the totals.
    const MAX_RETIRED: usize = 1_000;
    /// Most dropped rules whose totals are kept until they are read.
    const MAX_DROPPED: usize = 100_000;

    /// Returns the counters of a rule: those that it has, if it is in force.
    pub(crate) fn rule(
        &self,
        key: StatsKey,
        algorithm: Algorithm,
        label: Label,
    ) -> Arc<CountedRule> {
        let mut rules = self.lock();
        let identity = (key, algorithm, label);
        if let Some(rule) = rules.by_identity.get(&identity) {
            return Arc::clone(rule);
        }
        rules.last_id += 1;
        let rule = CountedRule::new(rules.last_id, identity.0.clone(), algorithm, label);
        let rule = Arc::new(rule);
        rules.by_identity.insert(identity, Arc::clone(&rule));
        rule
    }

    /// Removes the series of a rule that has some under its name.
    pub(crate) fn forget(&self, name: &str, algorithm: Algorithm) {
        let mut rules = self.lock();
        let identity = (StatsKey::of_rule("", name), algorithm, Label::Named);
        if let Some(rule) = rules.by_identity.remove(&identity)
            && rules.retired.len() < Self::MAX_RETIRED
        {
            rules.retired.push(rule);
        }
    }

    /// Returns what each rule that has counted anything has counted so far. Rules that are in force
    /// no more are in the totals for the last time.
    pub(crate) fn last_totals(&self) -> Vec<RuleTotals> {
        let mut rules = self.lock();
        let totals = rules.totals();
        let rules = &mut *rules;
        let (decisions, dropped) = (&mut rules.left_decisions, &mut rules.dropped);
        let mut drop = |rule: &CountedRule| {
            if dropped.len() < Self::MAX_DROPPED {
                rule.add_totals(dropped);
            }
        };
        rules.retired.retain(|rule| {
            let is_held = Arc::strong_count(rule) > 1;
            if !is_held {
                drop(rule);
            }
            is_held
        });
        rules.by_identity.retain(|(.., label), rule| {
            // Observers of rules in force hold their counters. Detailed labels stay.
            let is_left = *label != Label::Named && Arc::strong_count(rule) == 1;
            if is_left && *label == Label::Other {
                add_decisions(decisions, rule);
            }
            if is_left {
                drop(rule);
            }
            !is_left
        });
        totals
    }

    /// Returns what each rule that has counted anything has counted so far, and for the last time that of
    /// rules that [`Self::last_totals`] has dropped.
    pub(crate) fn totals_and_dropped(&self) -> Vec<RuleTotals> {
        let mut rules = self.lock();
        let mut totals = std::mem::take(&mut rules.dropped);
        totals.extend(rules.totals());
        totals
    }

    /// Returns what each rule that has counted anything has counted so far.
    pub(crate) fn totals(&self) -> Vec<RuleTotals> {
        self.lock().totals()
    }

    /// Returns what each rule that is shown under its name has counted so far.
    pub(crate) fn named_totals(&self) -> Vec<RuleTotals> {
        let mut totals = Vec::new();
        self.lock().labelled(Label::Named).for_each(|rule| rule.add_totals(&mut totals));
        totals
    }

    /// Returns the metric of the table.
    pub(crate) fn series(&self) -> DecisionSeries {
        DecisionSeries(self.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Rules> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rules {
    fn totals(&self) -> Vec<RuleTotals> {
        let mut totals = Vec::new();
        for rule in self.by_identity.values().chain(&self.retired) {
            rule.add_totals(&mut totals);
        }
        totals
    }

    fn labelled(&self, label: Label) -> impl Iterator<Item = &Arc<CountedRule>> {
        self.by_identity.values().filter(move |rule| rule.label == label)
    }
}

fn add_decisions(sums: &mut BTreeMap<OtherSeries, u64>, rule: &CountedRule) {
    for (outcome, source, count) in rule.series().filter(|(.., count)| *count > 0) {
        *sums.entry((rule.algorithm.name(), outcome.name(), source.name())).or_default() += count;
    }
}

impl EncodeMetric for DecisionSeries {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let rules = self.0.lock();
        let mut encode = |labels: DecisionLabels, count: u64| {
            ConstCounter::new(count).encode(encoder.encode_family(&labels)?)
        };
        for rule in rules.labelled(Label::Named) {
            for (outcome, source, count) in rule.series() {
                let (name, algorithm) = (rule.key.rule.to_string(), rule.algorithm.name());
                let (outcome, source) = (outcome.name(), source.name());
                encode(DecisionLabels { rule: name, algorithm, outcome, source }, count)?;
            }
        }
        let mut others = rules.left_decisions.clone();
        rules.labelled(Label::Other).for_each(|rule| add_decisions(&mut others, rule));
        for ((algorithm, outcome, source), count) in others {
            let rule = OTHER_RULES.to_owned();
            encode(DecisionLabels { rule, algorithm, outcome, source }, count)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }

    fn is_empty(&self) -> bool {
        self.0.lock().by_identity.is_empty()
    }
}

impl CountedRule {
    /// Shows every series, for the reference of metrics.
    pub(crate) fn declare_everything(&self) {
        for outcome in CountedOutcome::ALL {
            for source in super::SOURCES {
                self.declare(outcome, source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rlaas_limiter::observer::Source;

    use super::*;
    use crate::stats::DecisionCounts;

    #[test]
    fn each_decision_counts_once_in_every_view() {
        let table = RuleTable::default();
        let key = StatsKey::of_rule("shop", "pay");
        let rule = table.rule(key, Algorithm::Gcra, Label::Hidden);
        assert!(table.totals().is_empty() && rule.decisions.get().is_none(), "no memory");
        rule.count(CountedOutcome::Allowed, Source::Store, 1);
        rule.count(CountedOutcome::Allowed, Source::Store, 0);
        rule.count(CountedOutcome::NearLimit, Source::Store, 7);
        rule.count(CountedOutcome::Denied, Source::Store, 0);
        rule.count(CountedOutcome::Denied, Source::DenyCache, 0);
        rule.count(CountedOutcome::ShadowDenied, Source::DenyCache, 0);
        rule.count(CountedOutcome::Allowed, Source::FailOpen, 0);
        rule.count(CountedOutcome::Denied, Source::FailClosed, 0);
        rule.count(CountedOutcome::Allowed, Source::LocalFallback, 2);
        rule.count_not_asked();
        let live = DecisionCounts {
            allowed: 4,
            near_limit: 1,
            denied: 3,
            shadow_denied: 1,
            units: 10,
            degraded: 3,
            fail_open: 1,
            not_asked: 1,
        };
        let counts: Vec<_> = table.totals().iter().map(|one| one.counts).collect();
        assert_eq!(counts, [live]);
        assert_eq!(rule.series().map(|(.., count)| count).sum::<u64>(), 9);
    }

    #[test]
    fn rules_that_left_are_read_once_more() {
        let table = RuleTable::default();
        let of = |name: &str, label| {
            let rule = table.rule(StatsKey::of_rule("", name), Algorithm::Gcra, label);
            rule.count(CountedOutcome::Allowed, Source::Store, 1);
        };
        of("named", Label::Named);
        of("other", Label::Other);
        of("hidden", Label::Hidden);
        table.forget("named", Algorithm::Gcra);
        assert_eq!(table.totals().len(), 3);
        assert_eq!(table.last_totals().len(), 3);
        assert_eq!(table.last_totals().len(), 0);
        // Who reads all totals finds those that were dropped, once.
        let read = || table.totals_and_dropped().iter().map(|one| one.counts.allowed).sum::<u64>();
        assert_eq!((read(), read()), (3, 0));
        let left = ("gcra", "allowed", "store");
        assert_eq!(table.lock().left_decisions, BTreeMap::from([(left, 1)]));
        of("other", Label::Other);
        assert_eq!(table.last_totals().len(), 1);
        assert_eq!(table.lock().left_decisions, BTreeMap::from([(left, 2)]));
        // In force again: with the counters that it has.
        let rule = table.rule(StatsKey::of_rule("", "pay"), Algorithm::Gcra, Label::Other);
        assert_eq!(table.last_totals().len(), 0);
        let again = table.rule(StatsKey::of_rule("", "pay"), Algorithm::Gcra, Label::Other);
        assert!(Arc::ptr_eq(&rule, &again));
    }
}
