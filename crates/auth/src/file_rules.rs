//! The rules of files, in force beside those that were made at run time, and their problems.
//!
//! While API keys are taken, only the service sets the attribute `api_key`, and only in requests of a
//! project: all callers of a rule without a project that uses it would share one state. The attributes of keys,
//! `key.NAME`, are the service's in any case.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use rlaas_core::rules::spec::{MatcherSpec, Problem, RuleSpec};
use rlaas_core::rules::{Attributes, LimitFrom, Part, RuleSet, Unmatched};

use super::project_id::ProjectId;

/// What files say of projects with an id. A project that only a file names exists as well.
pub type FileProjects = BTreeMap<ProjectId, FileProject>;

/// What files say of one project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileProject {
    /// Its rules. They win over rules of the same name that were made at run time.
    pub rules: Arc<RuleSet>,
    /// Policy for requests that no rule matches; `None`: that of the stored project.
    pub unmatched: Option<Unmatched>,
}

/// What files say of all projects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRules {
    /// Rules of requests without an API key.
    pub unnamed: Arc<RuleSet>,
    /// Those of the projects that files name.
    pub projects: FileProjects,
}

impl From<RuleSet> for FileRules {
    fn from(rules: RuleSet) -> Self {
        Self { unnamed: Arc::new(rules), projects: FileProjects::new() }
    }
}

impl FileRules {
    /// Returns the rules of a project; `None` if no file names it.
    pub fn rules(&self, id: &ProjectId) -> Option<&Arc<RuleSet>> {
        if id.is_unnamed() {
            return Some(&self.unnamed);
        }
        self.projects.get(id).map(|project| &project.rules)
    }

    /// Returns the policy for requests of a project that no rule matches, if a file has it.
    pub fn unmatched(&self, id: &ProjectId) -> Option<Unmatched> {
        if id.is_unnamed() {
            return Some(self.unnamed.unmatched());
        }
        self.projects.get(id).and_then(|project| project.unmatched)
    }
}

const ATTRIBUTE: &str = "api_key";
const TEXT: &str = "must not use api_key unless auth.api-keys is off since the start: requests of these \
                    rules show no API key, so that all callers would share one state; use it in the \
                    rules of projects";

const KEY_TEXT: &str = "must not use key.NAME, an attribute of API keys, whatever auth.api-keys is: only rules of \
                        projects may";
const REQUEST_TEXT: &str = "must be attributes.NAME: requests of these rules are no descriptors";

/// Returns the problems of a rule without a project, for the time in which API keys are taken. `path` is
/// that of the rule; empty if fields are named without one.
pub fn api_key_problems(rule: &RuleSpec, path: &str) -> Vec<Problem> {
    let mut problems = key_attribute_problems(rule, path);
    problems.extend(uses(rule, path, |name| name == ATTRIBUTE, TEXT));
    problems
}

/// Returns the problems of a rule without a project, for the time in which API keys are ignored.
pub fn key_attribute_problems(rule: &RuleSpec, path: &str) -> Vec<Problem> {
    let mut problems = uses(rule, path, Attributes::is_of_key, KEY_TEXT);
    let place = rule.limit_from.value().and_then(|text| LimitFrom::from_text(text));
    if place == Some(LimitFrom::Request) {
        problems.push(problem(path, "limit-from", REQUEST_TEXT));
    }
    problems
}

/// Returns a problem for each field of a rule that names such an attribute.
fn uses(
    rule: &RuleSpec,
    path: &str,
    is_refused: impl Fn(&str) -> bool,
    text: &str,
) -> Vec<Problem> {
    let is_part =
        |part: &String| is_refused(part.strip_suffix(Part::OR_USER_ID).unwrap_or(part.as_str()));
    let is_place =
        |place: &String| place.strip_prefix(LimitFrom::ATTRIBUTE).is_some_and(&is_refused);
    let matched = |place: String, matcher: &MatcherSpec| -> Vec<String> {
        let names = matcher.attributes.keys().filter(|name| is_refused(name));
        names.map(|name| format!("{place}match.attributes.{name}")).collect()
    };
    let mut fields = Vec::new();
    if rule.key_by.value().is_some_and(|parts| parts.iter().any(is_part)) {
        fields.push("key-by".to_owned());
    }
    fields.extend(matched(String::new(), &rule.matcher));
    for (at, other) in rule.overrides.iter().enumerate() {
        fields.extend(matched(format!("overrides[{at}]."), &other.matcher));
    }
    if rule.limit_from.value().is_some_and(is_place) {
        fields.push("limit-from".to_owned());
    }
    if rule.calendar.anchor_from.value().is_some_and(|name| is_refused(name)) {
        fields.push("calendar.anchor-from".to_owned());
    }
    fields.iter().map(|own| problem(path, own, text)).collect()
}

fn problem(path: &str, own: &str, text: &str) -> Problem {
    let dot = if path.is_empty() { "" } else { "." };
    Problem { field: format!("{path}{dot}{own}"), text: text.to_owned() }
}

/// The projects, as the configuration in force shows them.
pub trait ConfiguredProjects: Debug + Send + Sync {
    /// Returns the rules of files of a project, if a file names it.
    fn files_beside(&self, id: &ProjectId) -> Option<Arc<RuleSet>>;

    /// Returns the revision of the catalogue in force; 0 if there is none.
    fn catalogue_revision(&self) -> u64;
}
