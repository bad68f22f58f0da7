//! Rules files of projects: `project`, `unmatched` and `rules`. The rules have the format of the
//! configuration, and the same problems with the lines of their fields.

#[cfg(feature = "admin")]
mod pages;
#[cfg(test)]
mod tests;

#[cfg(feature = "admin")]
pub use pages::FORMAT;

use std::sync::Arc;

use figment::value::Value;
use rlaas_auth::{FileProject, ProjectId};
use rlaas_proto::rule_messages;
use serde::Serialize;
use serde::ser::SerializeMap;

use super::rules::{named_rules, unmatched};
use super::section::Section;
use super::setting::Setting;
use super::sources::tree_of_text;
use super::tree::Tree;
use super::values::{Invalid, Read};
use super::{Effective, Notice, Problems, removed};
use crate::rules::spec::{Field, Problem as SpecProblem, RuleSpec, RulesSpec};
use crate::rules::{RuleSet, Unmatched};

const PROJECT: Setting = Setting::new("project", "Project of the rules of a file.");

/// The rules of files for one project, as they are configured.
pub(super) struct ConfiguredProject {
    pub(super) id: ProjectId,
    pub(super) rules: FileProject,
    pub(super) effective: Vec<Effective>,
    pub(super) notices: Vec<Notice>,
}

impl RulesFile {
    /// Reads rules that are to be made at run time. `origin` names the text in problems.
    ///
    /// # Errors
    ///
    /// [`Problems`]: all of them, with the lines of their fields.
    pub fn parse(origin: String, text: String) -> Result<Self, Problems> {
        let (file, problems) = read(origin, text);
        if problems.0.is_empty() { Ok(file) } else { Err(problems) }
    }

    /// Returns the file as YAML, which [`RulesFile::parse`] and the service read.
    ///
    /// # Panics
    ///
    /// Never: all keys of rules are texts.
    pub fn to_yaml(&self) -> String {
        serde_saphyr::to_string(self).expect("all keys of rules are texts")
    }
}

/// Reads rules as far as they can be read, and their problems.
fn read(origin: String, text: String) -> (RulesFile, Problems) {
    let tree = tree_of_text(origin, text);
    let mut root = tree.root();
    let project = root.optional(PROJECT, project_id).flatten();
    let spec = rules_spec(&mut root);
    build(&root, &spec);
    root.refuse_fields(problems_at_run_time(&spec.rules));
    root.close();
    let problems = tree.finish().err().unwrap_or(Problems(Vec::new()));
    let unmatched = spec.unmatched.value().copied();
    (RulesFile { project, unmatched, rules: spec.rules }, problems)
}

impl Serialize for RulesFile {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(project) = &self.project {
            map.serialize_entry(PROJECT.key, project.as_str())?;
        }
        if let Some(unmatched) = self.unmatched {
            map.serialize_entry(RulesSpec::UNMATCHED.key, &Field::Set(unmatched))?;
        }
        map.serialize_entry("rules", &self.rules)?;
        map.end()
    }
}

/// Reads the project of files that are for the whole service: there is none.
pub(super) fn no_project(root: &mut Section<'_>) {
    let project = root.optional(PROJECT, project_id).flatten();
    if project.is_some() {
        root.refuse(PROJECT.key, Invalid::new("must be at the top of a rules file"));
    }
}

/// Reads the files of one project.
pub(super) fn configured(tree: Tree) -> Result<ConfiguredProject, Problems> {
    let mut root = tree.root();
    let id = root.optional(PROJECT, project_id).flatten();
    let spec = rules_spec(&mut root);
    let built = build(&root, &spec);
    removed::refuse(&root, &[(PROJECT.key, "projects")]);
    root.close();
    let notices = tree.notices();
    let effective = tree.finish()?;
    // Without an id or rules there was a problem.
    let (Some(id), Some(rules)) = (id, built) else { return Err(Problems(Vec::new())) };
    let rules = rules.in_project(id.as_str());
    let rules = FileProject { rules: Arc::new(rules), unmatched: spec.unmatched.value().copied() };
    Ok(ConfiguredProject { id, rules, effective, notices })
}

fn rules_spec(root: &mut Section<'_>) -> RulesSpec {
    let unmatched = unmatched(root, None);
    RulesSpec { rules: named_rules(root), unmatched, ..RulesSpec::default() }
}

fn build(root: &Section<'_>, spec: &RulesSpec) -> Option<RuleSet> {
    spec.build().map_err(|problems| root.refuse_fields(problems)).ok()
}

fn problems_at_run_time(rules: &[RuleSpec]) -> Vec<SpecProblem> {
    let of_rule = |(index, rule): (usize, &RuleSpec)| {
        let found = rule_messages::problems(rule).into_iter();
        found.map(move |SpecProblem { field, text }| SpecProblem {
            field: format!("rules[{index}].{field}"),
            text,
        })
    };
    rules.iter().enumerate().flat_map(of_rule).collect()
}

fn project_id(value: &Value) -> Read<Option<ProjectId>> {
    const VALID: &str =
        "must be 1 to 63 lower case letters, digits or '-', and begin with a letter";
    let invalid = |_| Invalid::new(VALID);
    let text = value.as_str().unwrap_or("_");
    let id = if text.is_empty() { None } else { Some(text.parse().map_err(invalid)?) };
    Ok((id, text.to_owned()))
}

/// The rules of one project.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RulesFile {
    /// The project that the file names.
    pub project: Option<ProjectId>,
    /// Policy for requests that no rule matches.
    pub unmatched: Option<Unmatched>,
    /// The rules. Those of a file that was read without problems are valid, and none says more than
    /// a rule that is made at run time can.
    pub rules: Vec<RuleSpec>,
}
