//! The rules of files, in force beside those that were made at run time, and their problems.
//!
//! While API keys are taken, only the service sets the attribute `api_key`, and only in requests of a
//! project: all callers of a rule without a project that uses it would share one state.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use rlaas_core::rules::spec::{Field, MatcherSpec, Problem, RuleSpec};
use rlaas_core::rules::{Part, RuleSet, Unmatched};

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

/// Returns the problems of a rule without a project, for the time in which API keys are taken. `path` is
/// that of the rule; empty if fields are named without one.
pub fn api_key_problems(rule: &RuleSpec, path: &str) -> Vec<Problem> {
    let dot = if path.is_empty() { "" } else { "." };
    let is_used = |matcher: &MatcherSpec| matcher.attributes.contains_key(ATTRIBUTE);
    let is_key = |part: &String| part.strip_suffix(Part::OR_USER_ID).unwrap_or(part) == ATTRIBUTE;
    let key_by = match &rule.key_by {
        Field::Set(parts) if parts.iter().any(is_key) => Some("key-by".to_owned()),
        _ => None,
    };
    let matched = |place: &str| format!("{place}match.attributes.{ATTRIBUTE}");
    let of_rule = is_used(&rule.matcher).then(|| matched(""));
    let overrides = rule.overrides.iter().enumerate();
    let overrides = overrides.filter(|(_, other)| is_used(&other.matcher));
    let overrides = overrides.map(|(at, _)| matched(&format!("overrides[{at}].")));
    let fields = key_by.into_iter().chain(of_rule).chain(overrides);
    fields
        .map(|own| Problem { field: format!("{path}{dot}{own}"), text: TEXT.to_owned() })
        .collect()
}

/// The projects, as the configuration in force shows them.
pub trait ConfiguredProjects: Debug + Send + Sync {
    /// Returns the rules of files of a project, if a file names it.
    fn files_beside(&self, id: &ProjectId) -> Option<Arc<RuleSet>>;

    /// Returns the revision of the catalogue in force; 0 if there is none.
    fn catalogue_revision(&self) -> u64;
}
