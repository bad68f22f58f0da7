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
//! | `restore` | the end of a conflict of catalogues |
//! | `revisions` | the history of rules |
//! | `trial` | what a write would do, without the write |
//! | `validations` | the queue of trials |

mod change;
mod error;
mod keys;
mod restore;
mod revisions;
mod rules;
mod trial;
mod validations;

pub use change::ProjectCall;
pub use error::{ProjectError, WriteError};
pub use keys::{CreatedKey, RotatedKey};
pub use revisions::{RevisionDiff, RulesWritten};
pub use rules::{RuleEdit, RuleSelection, RulesGiven, WrittenRule};
pub use trial::{RuleWarning, Trial, TriedRules, ValidatedRules};
pub use validations::ValidationError;

use std::sync::Arc;

use tracing::debug;

use super::{Administrator, MAX_TIME};
use crate::clock::{Clock, Micros, Timestamp};
use crate::projects::registry::{CallerScope, Change, ProjectState, Registry};
use crate::projects::{ApiKeySecret, Etag, NewKey, Project, ProjectId, ProjectRules};
use crate::rules::Unmatched;
use crate::usage::UsageRecorder;

use self::change::{Made, PlannedChange};
use self::validations::ValidationQueue;

/// Time for which changes of a project may lie before its creation: the audit has another clock, and
/// records a creation before it is made. Far less than an id rests between two projects.
const BEFORE_CREATION: Micros = Micros::from_secs(24 * 60 * 60);

/// Shows and changes projects. Clones share everything.
#[derive(Clone, Debug)]
pub struct ProjectAdministrator {
    administrator: Administrator,
    registry: Registry,
    clock: Clock,
    usage: UsageRecorder,
    validations: ValidationQueue,
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
    /// Creates an administrator of the projects of a registry. Their usage is written when its
    /// recorder runs.
    pub fn new(administrator: Administrator, registry: Registry) -> Self {
        administrator.instances().report_projects(registry.clone());
        registry.set_instance(administrator.instances().id());
        let usage = UsageRecorder::new(
            administrator.fleet().clone(),
            Arc::clone(&administrator.shared.metrics),
            registry.keyring().clone(),
            administrator.instances().id(),
            Clock::default(),
        );
        let (clock, validations) = (Clock::default(), ValidationQueue::default());
        Self { administrator, registry, clock, usage, validations }
    }

    /// Returns the usage of the projects.
    pub fn usage(&self) -> &UsageRecorder {
        &self.usage
    }

    /// Returns the policy of files for requests of a project that no rule matches, if they have it.
    pub fn unmatched_of_files(&self, id: &ProjectId) -> Option<Unmatched> {
        self.registry.files().unmatched(id)
    }

    /// Returns the administrator of keys.
    pub fn administrator(&self) -> &Administrator {
        &self.administrator
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

    /// Returns a project as [`AuditFilter`](crate::admin::AuditFilter) selects its changes, with the
    /// time from which changes of its id are its own: a deleted project may have had it before. The
    /// project "" and those that files name were always the same. `None` if there is no such project.
    pub fn audited(&self, id: &ProjectId) -> Option<(String, Timestamp)> {
        self.administrator.limiter().project_snapshot(id.as_str())?;
        let since = if *id == ProjectId::UNNAMED || self.files_beside(id).is_some() {
            Timestamp::EPOCH
        } else {
            self.registry.project(id)?.project.created_at - BEFORE_CREATION
        };
        Some((id.to_string(), since))
    }

    /// Returns all projects, newest first, the unnamed one last.
    pub fn projects(&self) -> Vec<Arc<ProjectState>> {
        self.registry.projects()
    }

    /// Returns the revision of the catalogue in force; 0 if there is none.
    pub fn catalogue_revision(&self) -> u64 {
        self.registry.revision()
    }

    /// Returns `true` if the end of a key by a caller of this scope is known whatever comes back from a
    /// backup.
    pub fn keeps_ends(&self, id: &ProjectId, scope: CallerScope) -> bool {
        self.registry.keeps_ends(id, scope)
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
        self.create_with(call, new, None).await
    }

    /// Creates a project with an API key, in one write, and returns the secret. The call has no
    /// request id: a secret can't be shown again.
    ///
    /// # Errors
    ///
    /// [`ProjectError`].
    pub async fn create_with_key(
        &self,
        call: &ProjectCall,
        new: NewProject,
        key: NewKey,
    ) -> Result<(Arc<ProjectState>, Arc<ApiKeySecret>), ProjectError> {
        self.check_keys_are_read()?;
        let secret = keys::generate(&key.environment)?;
        let state = self.create_with(call, new, Some((key, Arc::clone(&secret)))).await?;
        Ok((state, secret))
    }

    async fn create_with(
        &self,
        call: &ProjectCall,
        new: NewProject,
        key: Option<(NewKey, Arc<ApiKeySecret>)>,
    ) -> Result<Arc<ProjectState>, ProjectError> {
        let NewProject { id, display_name, unmatched } = new;
        let given = id.as_ref().map_or("", ProjectId::as_str).to_owned();
        let fields = vec![given, display_name.clone(), unmatched.name().to_owned()];
        let id = match id {
            Some(id) => id,
            None => ProjectId::random().map_err(|_| ProjectError::NoRandomNumbers)?,
        };
        let with_key = key.as_ref().map(|(_, secret)| format!(" with API key {}", secret.id()));
        let planned = PlannedChange {
            id: id.clone(),
            target: String::new(),
            summary: format!("create project {id}{}", with_key.unwrap_or_default()),
            answer: id.to_string(),
            fields,
        };
        let (etag, now) = (Etag::random().map_err(|_| ProjectError::NoRandomNumbers)?, self.now());
        let made = self.change(call, planned, move |state| {
            if state.is_some() {
                return Err(ProjectError::ProjectExists);
            }
            let project = Project::new(id.clone(), &display_name, now)?;
            let mut project = Project { unmatched: unmatched.into(), etag, ..project };
            if let Some((key, secret)) = &key {
                project.create_key(key.clone(), secret, now)?;
            }
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
        let of_files = self.unmatched_of_files(id);
        let (new, now) = (Etag::random().map_err(|_| ProjectError::NoRandomNumbers)?, self.now());
        self.change(call, planned, move |state| {
            let state = named(state)?;
            check_etag(&state.project, etag)?;
            let mut project = state.project.clone();
            if of_files.is_some_and(|of| update.unmatched.is_some_and(|given| given != of)) {
                return Err(ProjectError::FileUnmatched);
            }
            if let Some(unmatched) = update.unmatched.filter(|_| of_files.is_none()) {
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

    /// Deletes a project with its keys, rules and usage. With `etag`, only the project that has it.
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
        let is_of_file = self.files_beside(id).is_some();
        let made = self.change(call, planned, move |state| {
            check_etag(&named(state)?.project, etag)?;
            if is_of_file {
                return Err(ProjectError::FileProject);
            }
            Ok(Change { after: None, revision: None, result: () })
        });
        made.await?;
        // Each instance removes it, too, when it writes no more of the project.
        if let Err(error) = self.usage.remove(id.as_str(), call.deadline.or_within(MAX_TIME)).await
        {
            debug!(%error, "usage is removed later");
        }
        Ok(())
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
        // One that was never written has the default.
        Some(etag) if etag != project.etag => Err(ProjectError::StaleProject),
        _ => Ok(()),
    }
}
