//! The rules of files, in force beside those that were made at run time.

use std::collections::BTreeMap;
use std::sync::Arc;

use rlaas_core::rules::{RuleSet, Unmatched};

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
