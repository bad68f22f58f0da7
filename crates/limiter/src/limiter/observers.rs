//! The observers of the rules in force, by their positions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::snapshot::every_rule;
use super::{RuleDecision, Source};
use crate::observer::{
    Decided, Declared, MAX_NAMED_RULES, NoObserver, OTHER_RULES, Observer, RuleObserver,
};
use crate::operation::Action;
use crate::plan::{Hit, RuleIndex};
use crate::rules::{RuleInfo, RuleSet};
use crate::verdict::HitResult;

/// Maximum number of detailed labels (labels that contain values of requests), and their maximum
/// length. The state of observers stays bounded whatever is sent.
const MAX_DETAILED: usize = 1_000;
const MAX_DETAILED_BYTES: usize = 256;

/// The observers of the rules of a snapshot, in the order of [`every_rule`].
#[derive(Debug)]
pub(super) struct RuleObservers {
    all: Box<[Arc<dyn RuleObserver>]>,
    /// Which of them are observed under their own names.
    are_named: Box<[bool]>,
    /// Number of flat rules. The rules for descriptors follow them.
    flat: usize,
}

/// Returns the positions of [`every_rule`] in the order of their names, the default rule first.
fn by_name(rules: &RuleSet) -> Vec<usize> {
    let names: Vec<_> = every_rule(rules).map(|rule| rule.name).collect();
    let mut order: Vec<usize> = (0..names.len()).collect();
    order[1..].sort_by(|left, right| names[*left].cmp(names[*right]));
    order
}

impl RuleObservers {
    pub(super) fn new(rules: &RuleSet, observer: &dyn Observer) -> Self {
        let order = by_name(rules);
        let mut are_named = vec![false; order.len()].into_boxed_slice();
        order.iter().take(MAX_NAMED_RULES).for_each(|position| are_named[*position] = true);
        let all = every_rule(rules).zip(&are_named).map(|(rule, is_named)| {
            if *is_named { observer.rule(rule) } else { observer.other_rule(rule) }
        });
        Self { all: all.collect(), are_named, flat: rules.iter().count() }
    }

    /// Returns the observers of the rules of a project.
    pub(super) fn of_project(rules: &RuleSet, observer: &dyn Observer) -> Self {
        let none: Arc<dyn RuleObserver> = Arc::new(NoObserver);
        let of_rule = |rule| observer.project_rule(rules.project(), rule);
        let all: Box<[_]> = every_rule(rules)
            .map(|rule| of_rule(rule).unwrap_or_else(|| Arc::clone(&none)))
            .collect();
        Self { are_named: vec![false; all.len()].into(), all, flat: rules.iter().count() }
    }

    /// Returns the rules that are observed under their own names.
    pub(super) fn named<'r>(
        &'r self,
        rules: &'r RuleSet,
    ) -> impl Iterator<Item = RuleInfo<'r>> + 'r {
        every_rule(rules).zip(&self.are_named).filter_map(|(rule, named)| named.then_some(rule))
    }

    /// Returns the name under which a rule is observed.
    pub(super) fn name<'r>(&self, index: RuleIndex, rule: &RuleInfo<'r>) -> &'r str {
        if self.are_named[self.position(index)] { rule.name } else { OTHER_RULES }
    }

    /// Reports to each observer that its rule is in force: to that of the default rule first, then
    /// by name.
    pub(super) fn declare(&self, rules: &RuleSet, has_deny_cache: bool) {
        for (position, at) in by_name(rules).into_iter().enumerate() {
            self.all[at].declared(Declared { position, has_deny_cache });
        }
    }

    /// Reports the decision on a hit.
    pub(super) fn decided(&self, decided: &RuleDecision, hit: &Hit, result: &HitResult) {
        report(&**self.get(decided.index), decided, hit, result);
    }

    /// Returns the observer of a rule.
    pub(super) fn get(&self, rule: RuleIndex) -> &Arc<dyn RuleObserver> {
        &self.all[self.position(rule)]
    }

    fn position(&self, rule: RuleIndex) -> usize {
        match rule {
            RuleIndex::Flat(position) => position,
            RuleIndex::Descriptor { position, .. } => self.flat + position,
        }
    }
}

/// Reports a decision to the observer of its rule.
pub(super) fn report(
    observer: &dyn RuleObserver,
    decided: &RuleDecision,
    hit: &Hit,
    result: &HitResult,
) {
    let RuleDecision { ref decision, mode, source, is_near_limit, .. } = *decided;
    let (key, taken) = (&hit.key, result.reply.taken);
    let requested = match hit.action {
        Action::Take(cost) | Action::Report(cost) | Action::Hold(cost) => cost.units(),
        _ => 0,
    };
    observer.decided(Decided { decision, mode, source, is_near_limit, key, taken, requested });
    if let Action::Report(cost) = hit.action
        && matches!(source, Source::Store | Source::LocalFallback)
        && taken < cost.units()
    {
        observer.uncounted(cost.units() - taken);
    }
}

/// The observers of detailed labels, kept for as long as the limiter lives.
#[derive(Debug, Default)]
pub(super) struct DetailedObservers(Mutex<HashMap<Arc<str>, Arc<dyn RuleObserver>>>);

impl DetailedObservers {
    /// Returns the observer of a detailed label of `rule`, and the label; `None` if the label is
    /// too long or there are too many. The observer of the rule is called in that case.
    pub(super) fn observer(
        &self,
        label: &str,
        rule: RuleInfo<'_>,
        observer: &dyn Observer,
    ) -> Option<(Arc<str>, Arc<dyn RuleObserver>)> {
        let mut observers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((label, observer)) = observers.get_key_value(label) {
            return Some((Arc::clone(label), Arc::clone(observer)));
        }
        if observers.len() >= MAX_DETAILED || label.len() > MAX_DETAILED_BYTES {
            return None;
        }
        let label = Arc::<str>::from(label);
        let observer = observer.rule(RuleInfo { name: &label, ..rule });
        observers.insert(Arc::clone(&label), Arc::clone(&observer));
        Some((label, observer))
    }
}
