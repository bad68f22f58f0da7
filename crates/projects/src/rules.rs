//! The rules of a project that were made at run time, and writes to them.
//!
//! A write gives all rules after it and the differences, or nothing. It does not decide which rules
//! are in force: rules of files hide those of the same name.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use rlaas_core::clock::Timestamp;
use rlaas_core::rules::RuleSet;
use rlaas_core::rules::spec::{Field, Problem, RuleSpec, RulesSpec};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Etag;

/// Rules by name.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct ProjectRules(BTreeMap<String, RuleRecord>);

/// A rule as it is stored.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct RuleRecord {
    /// Revision of the catalogue that has set the rule. `None` until the store has made the write, and
    /// for rules that an earlier release has written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<NonZeroU64>,
    /// The rule. Fields that were not set stay so.
    pub spec: RuleSpec,
    /// Changes with the rule.
    pub etag: Etag,
    /// Time of its creation.
    pub created_at: Timestamp,
    /// Time of its last change.
    pub updated_at: Timestamp,
}

/// The difference that a write makes to one rule.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct RuleChange {
    /// Name of the rule.
    pub name: String,
    /// The rule before; `None` if it is created.
    pub before: Option<RuleSpec>,
    /// The rule after; `None` if it is deleted.
    pub after: Option<RuleSpec>,
}

/// The time of a write, and the etag of what it writes.
#[derive(Clone, Copy, Debug)]
pub struct WriteStamp {
    /// Time.
    pub at: Timestamp,
    /// Random.
    pub etag: Etag,
}

/// The reason why rules cannot be written. Nothing was written.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RuleWriteError {
    /// Fields of rules are not valid; every problem has the path of its field.
    #[error("{} problems", .0.len())]
    Invalid(Vec<Problem>),
    /// There is a rule of this name.
    #[error("a rule of this name exists")]
    Exists,
    /// There is no rule of this name.
    #[error("no such rule")]
    NotFound,
    /// The rule has changed since the caller read it.
    #[error("the rule has changed: etag is not that of the stored rule")]
    Stale,
}

impl From<BTreeMap<String, RuleRecord>> for ProjectRules {
    fn from(rules: BTreeMap<String, RuleRecord>) -> Self {
        Self(rules)
    }
}

impl ProjectRules {
    /// Builds all rules.
    ///
    /// # Errors
    ///
    /// All [`Problem`]s, each with the path of its field.
    pub fn build(&self) -> Result<RuleSet, Vec<Problem>> {
        self.rules_spec().build()
    }

    /// Builds all rules for a project. Requests that none of them matches are refused.
    ///
    /// # Errors
    ///
    /// As [`ProjectRules::build`].
    pub fn build_in_project(&self, project: &str) -> Result<RuleSet, Vec<Problem>> {
        self.rules_spec().build_in_project(project)
    }

    fn rules_spec(&self) -> RulesSpec {
        let spec =
            |record: &RuleRecord| RuleSpec { revision: record.revision, ..record.spec.clone() };
        let rules = self.0.values().map(spec).collect();
        RulesSpec { rules, ..RulesSpec::default() }
    }

    /// Returns the rules by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &RuleRecord)> {
        self.0.iter().map(|(name, record)| (name.as_str(), record))
    }

    /// Returns the rule of this name.
    pub fn rule(&self, name: &str) -> Option<&RuleRecord> {
        self.0.get(name)
    }

    /// Sets the revision of a rule, if there is such a rule.
    pub fn set_revision(&mut self, name: &str, revision: u64) {
        if let Some(record) = self.0.get_mut(name) {
            record.revision = NonZeroU64::new(revision);
        }
    }

    /// Sets the revision of the rules in which `other` differs.
    pub fn set_revision_beside(&mut self, other: &Self, revision: u64) {
        let differs = |(name, record): &(&String, &mut RuleRecord)| {
            other.rule(name).is_none_or(|other| *other != **record)
        };
        for (_, record) in self.0.iter_mut().filter(differs) {
            record.revision = NonZeroU64::new(revision);
        }
    }

    /// Returns how many rules there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if there are no rules.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Creates a rule.
    ///
    /// # Errors
    ///
    /// [`RuleWriteError::Invalid`], [`RuleWriteError::Exists`].
    pub fn create(&mut self, spec: RuleSpec, by: WriteStamp) -> Result<RuleChange, RuleWriteError> {
        let name = valid_name(&spec)?;
        if self.0.contains_key(&name) {
            return Err(RuleWriteError::Exists);
        }
        let change = RuleChange { name: name.clone(), before: None, after: Some(spec.clone()) };
        self.write(|rules| rules.put(name, spec, by))?;
        Ok(change)
    }

    /// Replaces a rule; returns `None` if nothing changes. With `etag`, only the rule that has it.
    ///
    /// # Errors
    ///
    /// [`RuleWriteError::Invalid`], [`RuleWriteError::NotFound`], [`RuleWriteError::Stale`].
    pub fn replace(
        &mut self,
        spec: RuleSpec,
        etag: Option<Etag>,
        by: WriteStamp,
    ) -> Result<Option<RuleChange>, RuleWriteError> {
        let name = valid_name(&spec)?;
        self.check_etag(&name, etag)?;
        self.write(|rules| rules.put(name, spec, by))
    }

    /// Deletes a rule. With `etag`, only the rule that has it.
    ///
    /// # Errors
    ///
    /// [`RuleWriteError::NotFound`], [`RuleWriteError::Stale`].
    pub fn delete(&mut self, name: &str, etag: Option<Etag>) -> Result<RuleChange, RuleWriteError> {
        self.check_etag(name, etag)?;
        self.remove(name).ok_or(RuleWriteError::NotFound)
    }

    /// Creates or replaces many rules, all or none, and returns the differences by name. Rules that
    /// are the same keep their etags. With [`Others::Deleted`] no other rules are left.
    ///
    /// # Errors
    ///
    /// [`RuleWriteError::Invalid`]: every problem of every rule.
    pub fn apply(
        &mut self,
        specs: Vec<RuleSpec>,
        others: Others,
        by: WriteStamp,
    ) -> Result<Vec<RuleChange>, RuleWriteError> {
        let (rules, changes) = self.applied(specs, others, by)?;
        *self = rules;
        Ok(changes)
    }

    /// Returns the rules as [`ProjectRules::apply`] would make them, and the differences.
    ///
    /// # Errors
    ///
    /// As [`ProjectRules::apply`].
    pub fn applied(
        &self,
        specs: Vec<RuleSpec>,
        others: Others,
        by: WriteStamp,
    ) -> Result<(Self, Vec<RuleChange>), RuleWriteError> {
        let given = RulesSpec { rules: specs, ..RulesSpec::default() };
        given.build().map_err(RuleWriteError::Invalid)?;
        // Valid rules have names.
        let named =
            given.rules.into_iter().filter_map(|spec| Some((spec.name.value()?.clone(), spec)));
        let mut named: BTreeMap<String, RuleSpec> = named.collect();
        let (mut after, mut changes) = (Self::default(), Vec::new());
        for (name, record) in &self.0 {
            if others == Others::Kept || named.contains_key(name) {
                after.0.insert(name.clone(), record.clone());
            } else {
                let before = Some(record.spec.clone());
                changes.push(RuleChange { name: name.clone(), before, after: None });
            }
        }
        while let Some((name, spec)) = named.pop_first() {
            changes.extend(after.put(name, spec, by));
        }
        changes.sort_by(|left, right| left.name.cmp(&right.name));
        after.build().map_err(RuleWriteError::Invalid)?;
        Ok((after, changes))
    }

    /// Returns the specifications by name.
    pub fn specs(&self) -> BTreeMap<String, RuleSpec> {
        self.iter().map(|(name, record)| (name.to_owned(), record.spec.clone())).collect()
    }

    /// Makes changes if all rules are valid together afterwards, else none.
    fn write<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> Result<T, RuleWriteError> {
        let mut after = self.clone();
        let changed = change(&mut after);
        after.build().map_err(RuleWriteError::Invalid)?;
        *self = after;
        Ok(changed)
    }

    fn put(&mut self, name: String, spec: RuleSpec, by: WriteStamp) -> Option<RuleChange> {
        let before = self.0.get(&name);
        if before.is_some_and(|before| is_same(&before.spec, &spec)) {
            return None;
        }
        let created_at = before.map_or(by.at, |before| before.created_at);
        let (spec_after, etag, updated_at) = (spec.clone(), by.etag, by.at);
        let record = RuleRecord { revision: None, spec: spec_after, etag, created_at, updated_at };
        let before = self.0.insert(name.clone(), record);
        Some(RuleChange { name, before: before.map(|before| before.spec), after: Some(spec) })
    }

    fn remove(&mut self, name: &str) -> Option<RuleChange> {
        let (name, record) = self.0.remove_entry(name)?;
        Some(RuleChange { name, before: Some(record.spec), after: None })
    }

    fn check_etag(&self, name: &str, etag: Option<Etag>) -> Result<(), RuleWriteError> {
        let record = self.rule(name).ok_or(RuleWriteError::NotFound)?;
        match etag {
            Some(etag) if etag != record.etag => Err(RuleWriteError::Stale),
            _ => Ok(()),
        }
    }
}

/// The fate of rules that a write does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// They stay.
    Kept,
    /// They are deleted.
    Deleted,
}

/// Returns `true` if two specifications make the same rule: one may set what the other leaves at its
/// default.
fn is_same(left: &RuleSpec, right: &RuleSpec) -> bool {
    left == right || matches!((left.build(), right.build()), (Ok(left), Ok(right)) if left == right)
}

/// Returns the name of a rule that is valid by itself.
fn valid_name(spec: &RuleSpec) -> Result<String, RuleWriteError> {
    spec.build().map_err(RuleWriteError::Invalid)?;
    match &spec.name {
        Field::Set(name) => Ok(name.clone()),
        Field::Unset | Field::Unreadable => Err(RuleWriteError::Invalid(Vec::new())),
    }
}

#[cfg(test)]
mod tests {
    use rlaas_core::rules::Rule;

    use super::*;

    fn spec(name: &str, units: u64) -> RuleSpec {
        Rule::gcra(name).limit(units).per(std::time::Duration::from_mins(1))
    }

    fn at(seconds: u64) -> WriteStamp {
        let at = Timestamp::from_millis(1_700_000_000_000 + seconds * 1_000);
        WriteStamp { at, etag: Etag(seconds) }
    }

    fn with(specs: &[RuleSpec]) -> ProjectRules {
        let mut rules = ProjectRules::default();
        rules.apply(specs.to_vec(), Others::Kept, at(0)).expect("rules");
        rules
    }

    #[test]
    fn lost_update_is_refused_by_its_etag() {
        let mut rules = with(&[spec("a", 1)]);
        let read = rules.rule("a").expect("a rule").etag;
        rules.replace(spec("a", 2), Some(read), at(1)).expect("a change");
        assert_eq!(rules.replace(spec("a", 3), Some(read), at(2)), Err(RuleWriteError::Stale));
        assert_eq!(rules.delete("a", Some(read)), Err(RuleWriteError::Stale));
        let record = rules.rule("a").expect("a rule").clone();
        assert_eq!(
            (record.etag, record.created_at, record.updated_at),
            (Etag(1), at(0).at, at(1).at)
        );
        let deleted = rules.delete("a", Some(record.etag)).expect("a change");
        assert_eq!((deleted.before, deleted.after), (Some(spec("a", 2)), None));
        assert_eq!(rules.delete("a", None), Err(RuleWriteError::NotFound));
        assert_eq!(rules.replace(spec("a", 2), None, at(3)), Err(RuleWriteError::NotFound));
    }

    #[test]
    fn writing_the_same_rule_changes_nothing() {
        let mut rules = with(&[spec("a", 1)]);
        let before = rules.clone();
        assert_eq!(rules.replace(spec("a", 1), None, at(1)), Ok(None));
        assert_eq!(rules.apply(vec![spec("a", 1)], Others::Deleted, at(1)), Ok(Vec::new()));
        let explicit = RuleSpec { burst: Field::Set(1), ..spec("a", 1) };
        assert_eq!(rules.replace(explicit, None, at(1)), Ok(None));
        assert_eq!(rules, before);
    }

    #[test]
    fn rules_are_valid_together() {
        // Each matches every request, and the store decides at most 64 in one step.
        let many: Vec<_> = (0..63).map(|number| spec(&format!("r{number}"), 1)).collect();
        let mut rules = with(&many);
        let before = rules.clone();
        let one_more = rules.create(spec("more", 1), at(1));
        assert!(
            matches!(one_more, Err(RuleWriteError::Invalid(problems)) if problems[0].field == "rules")
        );
        assert_eq!(rules, before);
    }

    #[test]
    fn rules_that_differ_from_others_have_another_revision() {
        let mut rules = with(&[spec("a", 1), spec("b", 1), spec("c", 1)]);
        for name in ["a", "b", "c"] {
            rules.set_revision(name, 4);
        }
        let mut other = rules.clone();
        other.replace(spec("b", 2), None, at(1)).expect("a change");
        other.delete("c", None).expect("a change");
        rules.set_revision_beside(&other, 9);
        let revisions =
            ["a", "b", "c"].map(|name| rules.rule(name).and_then(|record| record.revision));
        assert_eq!(revisions, [4, 9, 9].map(NonZeroU64::new));
    }

    #[test]
    fn stored_rules_keep_what_was_not_set() {
        let rules = with(&[spec("a", 1)]);
        let stored = serde_json::to_string(&rules).expect("JSON");
        assert!(!stored.contains("burst") && !stored.contains("shadow"), "{stored}");
        assert_eq!(serde_json::from_str::<ProjectRules>(&stored).expect("rules"), rules);
        // The store adds the revision, which is not that of the specification.
        let stored = stored.replacen("{\"spec\"", "{\"revision\":7,\"spec\"", 1);
        let mut rules = serde_json::from_str::<ProjectRules>(&stored).expect("rules");
        let revision = |rules: &ProjectRules| rules.rule("a").and_then(|record| record.revision);
        assert_eq!(revision(&rules), NonZeroU64::new(7));
        let built = rules.build().expect("rules");
        assert_eq!(built.iter().nth(1).and_then(|rule| rule.revision), NonZeroU64::new(7));
        assert_eq!(rules.replace(spec("a", 1), None, at(1)), Ok(None));
        assert_eq!(serde_json::to_string(&rules).expect("JSON"), stored);
        rules.replace(spec("a", 2), None, at(1)).expect("a change");
        assert_eq!(revision(&rules), None);
    }
}
