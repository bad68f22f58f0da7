//! Projects, their API keys and their rules: each operation once, for all protocols.
//!
//! A change is tried on the project as it is, recorded in the audit, and made. A change that is
//! refused is not recorded. This module does not know roles: `api` admits callers.
//!
//! | file | subject |
//! | --- | --- |
//! | `change` | what all changes have in common |
//! | `keys` | API keys |
//! | `rules` | rules that were made at run time |
//! | `revisions` | the history of rules, and validation |

mod change;
mod error;
mod keys;
mod revisions;
mod rules;

pub use change::ProjectCall;
pub use error::{ProjectError, WriteError};
pub use keys::{CreatedKey, RotatedKey};
pub use revisions::{RevisionDiff, RulesWritten, ValidatedRules};
pub use rules::{RuleEdit, RuleSelection, RulesGiven, WrittenRule};

use std::sync::Arc;

use super::Administrator;
use crate::clock::Clock;
use crate::projects::registry::{Change, ProjectState, Registry};
use crate::projects::{Etag, Project, ProjectId, ProjectRules};
use crate::rules::{RuleSet, Unmatched};

use self::change::{Made, PlannedChange};
use self::revisions::Validations;

/// Shows and changes projects. Clones share everything.
#[derive(Clone, Debug)]
pub struct ProjectAdministrator {
    administrator: Administrator,
    registry: Registry,
    clock: Clock,
    validations: Arc<Validations>,
}

/// A project to create.
#[derive(Clone, Debug)]
pub struct NewProject {
    /// Its id. `None`: a random one.
    pub id: Option<ProjectId>,
    /// Name for people.
    pub display_name: String,
    /// Policy for requests that no rule matches.
    pub unmatched: Unmatched,
}

/// Changes of a project; `None` leaves a property as it is.
#[derive(Clone, Debug)]
pub struct ProjectUpdate {
    /// Name for people.
    pub display_name: Option<String>,
    /// Policy for requests that no rule matches.
    pub unmatched: Option<Unmatched>,
}

impl ProjectAdministrator {
    /// Creates an administrator of the projects of a registry.
    pub fn new(administrator: Administrator, registry: Registry) -> Self {
        let validations = Arc::default();
        Self { administrator, registry, clock: Clock::default(), validations }
    }

    /// Returns the rules of files.
    pub fn file_rules(&self) -> Arc<RuleSet> {
        self.registry.file_rules()
    }

    /// Returns the clock by which API keys expire.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns a project.
    ///
    /// # Errors
    ///
    /// [`ProjectError::NoProject`].
    pub fn project(&self, id: &ProjectId) -> Result<Arc<ProjectState>, ProjectError> {
        self.registry.project(id).ok_or(ProjectError::NoProject)
    }

    /// Returns all projects, newest first, the unnamed one last.
    pub fn projects(&self) -> Vec<Arc<ProjectState>> {
        self.registry.projects()
    }

    /// Returns the newest revision of a project; 0 if there was no change.
    pub fn newest_revision(&self) -> u64 {
        self.projects().iter().map(|state| state.revision).max().unwrap_or_default()
    }

    /// Creates a project.
    ///
    /// # Errors
    ///
    /// [`ProjectError`].
    pub async fn create(
        &self,
        call: &ProjectCall,
        new: NewProject,
    ) -> Result<Arc<ProjectState>, ProjectError> {
        let NewProject { id, display_name, unmatched } = new;
        let given = id.as_ref().map_or("", ProjectId::as_str).to_owned();
        let fields = vec![given, display_name.clone(), unmatched.name().to_owned()];
        let id = match id {
            Some(id) => id,
            None => ProjectId::random().map_err(|_| ProjectError::NoRandomNumbers)?,
        };
        let planned = PlannedChange {
            id: id.clone(),
            target: String::new(),
            summary: format!("create project {id}"),
            answer: id.to_string(),
            fields,
        };
        let (etag, now) = (Etag::random().map_err(|_| ProjectError::NoRandomNumbers)?, self.now());
        let made = self.change(call, planned, move |state| {
            if state.is_some() {
                return Err(ProjectError::ProjectExists);
            }
            let project = Project::new(id.clone(), &display_name, now)?;
            let project = Project { unmatched: unmatched.into(), etag, ..project };
            let after = Some((project, ProjectRules::default()));
            Ok(Change { after, revision: None, result: () })
        });
        let id = match made.await? {
            Made::Now(changed) => changed.id,
            Made::Before(id) => id.parse().map_err(|_| ProjectError::NoProject)?,
        };
        self.project(&id)
    }

    /// Changes the properties of a project. With `etag`, only the project that has it.
    ///
    /// # Errors
    ///
    /// [`ProjectError`].
    pub async fn update(
        &self,
        call: &ProjectCall,
        id: &ProjectId,
        update: ProjectUpdate,
        etag: Option<Etag>,
    ) -> Result<Arc<ProjectState>, ProjectError> {
        let planned = PlannedChange::of_project(id, format!("update project {id}"));
        let (new, now) = (Etag::random().map_err(|_| ProjectError::NoRandomNumbers)?, self.now());
        self.change(call, planned, move |state| {
            let state = named(state)?;
            check_etag(&state.project, etag)?;
            let mut project = state.project.clone();
            if let Some(unmatched) = update.unmatched {
                project.unmatched = unmatched.into();
            }
            let name = update.display_name.as_ref().unwrap_or(&state.project.display_name);
            let changes =
                project.unmatched != state.project.unmatched || *name != state.project.display_name;
            if changes {
                project.rename(name, now)?;
                project.etag = new;
            }
            Ok(Change { after: Some((project, state.rules.clone())), revision: None, result: () })
        })
        .await?;
        self.project(id)
    }

    /// Deletes a project with its keys and rules. With `etag`, only the project that has it.
    ///
    /// # Errors
    ///
    /// [`ProjectError`].
    pub async fn delete(
        &self,
        call: &ProjectCall,
        id: &ProjectId,
        etag: Option<Etag>,
    ) -> Result<(), ProjectError> {
        let planned = PlannedChange::of_project(id, format!("delete project {id}"));
        let made = self.change(call, planned, move |state| {
            check_etag(&named(state)?.project, etag)?;
            Ok(Change { after: None, revision: None, result: () })
        });
        made.await.map(drop)
    }

    fn now(&self) -> crate::clock::Timestamp {
        self.clock.now()
    }
}

/// Returns a project that exists.
fn existing(state: Option<&ProjectState>) -> Result<&ProjectState, ProjectError> {
    state.ok_or(ProjectError::NoProject)
}

/// Returns a project that exists and is not the unnamed one.
fn named(state: Option<&ProjectState>) -> Result<&ProjectState, ProjectError> {
    let state = existing(state)?;
    if state.project.id.is_unnamed() { Err(ProjectError::Unnamed) } else { Ok(state) }
}

fn check_etag(project: &Project, etag: Option<Etag>) -> Result<(), ProjectError> {
    match etag {
        Some(etag) if etag != project.etag => Err(ProjectError::StaleProject),
        _ => Ok(()),
    }
}
