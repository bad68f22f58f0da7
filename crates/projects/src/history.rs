//! The last revisions of the rules of a project: what each of them changed.
//!
//! A revision is stored as its differences, because a project has up to 100,000 rules and most
//! writes change one. The rules of an older revision are those of now with the differences undone.

use std::collections::{BTreeMap, VecDeque};

use rlaas_core::clock::Timestamp;
use rlaas_core::rules::spec::RuleSpec;
use serde::{Deserialize, Serialize};

use super::RuleChange;

/// Number of a revision: it grows over all projects, so that those of one project have gaps.
pub type RevisionNumber = u64;

/// A revision of the rules of a project.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Revision {
    /// Its number.
    pub number: RevisionNumber,
    /// Time at which it was made.
    pub at: Timestamp,
    /// Caller who made it.
    pub actor: String,
    /// Name of the call that made it.
    pub action: String,
    /// Reason that the caller gave.
    pub reason: String,
    /// Differences from the revision before, by name.
    pub changes: Vec<RuleChange>,
}

/// The last revisions of a project, oldest first.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct History(VecDeque<Revision>);

impl History {
    /// Most revisions that are kept.
    pub const MAX_LEN: usize = 100;

    /// Adds a revision; beyond [`History::MAX_LEN`] the oldest is forgotten.
    pub fn push(&mut self, revision: Revision) {
        self.0.push_back(revision);
        while self.0.len() > Self::MAX_LEN {
            self.0.pop_front();
        }
    }

    /// Returns the revisions, newest first.
    pub fn iter(&self) -> impl Iterator<Item = &Revision> {
        self.0.iter().rev()
    }

    /// Returns a revision; `None` if it is forgotten, or never was.
    pub fn revision(&self, number: RevisionNumber) -> Option<&Revision> {
        self.iter().find(|revision| revision.number == number)
    }

    /// Returns the rules of a revision by name, if those of now are `current`. `None` if it is
    /// forgotten, or never was.
    pub fn rules_at(
        &self,
        number: RevisionNumber,
        current: &BTreeMap<String, RuleSpec>,
    ) -> Option<BTreeMap<String, RuleSpec>> {
        self.revision(number)?;
        let mut rules = current.clone();
        let newer = self.iter().take_while(|revision| revision.number != number);
        for change in newer.flat_map(|revision| &revision.changes) {
            match &change.before {
                Some(before) => _ = rules.insert(change.name.clone(), before.clone()),
                None => _ = rules.remove(&change.name),
            }
        }
        Some(rules)
    }
}

/// Returns the differences from one set of rules to another, by name.
pub fn differences(
    from: &BTreeMap<String, RuleSpec>,
    to: &BTreeMap<String, RuleSpec>,
) -> Vec<RuleChange> {
    let change = |name: &String| RuleChange {
        name: name.clone(),
        before: from.get(name).cloned(),
        after: to.get(name).cloned(),
    };
    let mut names: Vec<&String> =
        from.keys().chain(to.keys().filter(|name| !from.contains_key(*name))).collect();
    names.sort_unstable();
    names.into_iter().map(change).filter(|change| change.before != change.after).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rlaas_core::rules::Rule;

    use super::*;
    use crate::{Etag, Others, ProjectRules, WriteStamp};

    fn spec(name: u8, units: u64) -> RuleSpec {
        let name = format!("rule-{name}");
        Rule::gcra(name).limit(units).per(std::time::Duration::from_mins(1))
    }

    fn revision(number: RevisionNumber, changes: Vec<RuleChange>) -> Revision {
        Revision {
            number,
            at: Timestamp::EPOCH,
            actor: "token:ci".to_owned(),
            action: "ApplyRules".to_owned(),
            reason: String::new(),
            changes,
        }
    }

    proptest! {
        #[test]
        fn rules_of_each_kept_revision_are_known(
            writes in prop::collection::vec(
                (prop::collection::btree_map(0..6_u8, 1..4_u64, 0..4), any::<bool>()), 1..130,
            ),
        ) {
            let (mut rules, mut history) = (ProjectRules::default(), History::default());
            let mut by_revision = Vec::new();
            for (number, (written, prune)) in (1_u64..).map(|number| number * 3).zip(writes) {
                let specs = written.into_iter().map(|(name, units)| spec(name, units)).collect();
                let others = if prune { Others::Deleted } else { Others::Kept };
                let by = WriteStamp { at: Timestamp::EPOCH, etag: Etag(number) };
                let before = rules.specs();
                let changes = rules.apply(specs, others, by).expect("valid rules");
                prop_assert_eq!(&changes, &differences(&before, &rules.specs()));
                history.push(revision(number, changes));
                by_revision.push((number, rules.specs()));
            }
            let forgotten = by_revision.len().saturating_sub(History::MAX_LEN);
            for (position, (number, expected)) in by_revision.into_iter().enumerate() {
                let found = history.rules_at(number, &rules.specs());
                prop_assert_eq!(found, (position >= forgotten).then_some(expected));
                prop_assert_eq!(history.rules_at(number + 1, &rules.specs()), None);
            }
        }
    }
}
