//! The projects of all instances: kept in the catalogue of the store, in force in this process.
//!
//! [`Registry::run`] follows the catalogue: it is told of each write, and asks each second, so that a
//! write is in force on every instance within 2 s. While the store is away, the last state stays in
//! force. Rules are built on threads of their own: no decision waits for them.
//!
//! A request sees a project as one write has left it. This module does not know who may change a
//! project, and what a change means.

mod change;
mod document;
mod state_dir;
mod sync;

pub use change::{Change, ChangeError, Changed};
pub use sync::SyncError;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use rlaas_limiter::Limiter;
use rlaas_limiter::fleet::{Catalogue, Fleet, KeptChanges};
use rlaas_limiter::journal::JournalError;
use tokio::task::spawn_blocking;
use tracing::{error, info};

use self::document::{decode_history, document_name, kept_changes};
use self::state_dir::StateDir;
use self::sync::Synced;
use crate::clock::{Clock, Deadline, Timestamp};
use crate::projects::{History, Keyring, Project, ProjectId, ProjectRules};
use crate::rules::RuleSet;
use crate::rules::spec::Problem;
use crate::store::StoreError;
use crate::telemetry::metrics::Metrics;

/// The projects. Clones share them.
#[derive(Clone, Debug)]
pub struct Registry(Arc<RegistryState>);

#[derive(Debug)]
struct RegistryState {
    fleet: Fleet,
    catalogue: Catalogue,
    limiter: Limiter,
    metrics: Arc<Metrics>,
    clock: Clock,
    keyring: Keyring,
    /// Those that are stored, the unnamed one too.
    projects: RwLock<HashMap<ProjectId, Arc<ProjectState>>>,
    /// The rules of files. Locked while rules are put in force.
    files: Mutex<Arc<RuleSet>>,
    synced: Arc<tokio::sync::Mutex<Synced>>,
}

/// A project as one write has left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectState {
    /// The project with its API keys.
    pub project: Project,
    /// Its rules that were made at run time.
    pub rules: ProjectRules,
    /// Revision of the catalogue that changed it last; 0: it was never written.
    pub revision: u64,
}

impl ProjectState {
    /// Returns the unnamed project, which is not stored before it has rules.
    fn unnamed() -> Self {
        let project =
            Project::new(ProjectId::UNNAMED, "", Timestamp::EPOCH).expect("a short name is valid");
        Self { project, rules: ProjectRules::default(), revision: 0 }
    }
}

impl Registry {
    /// Creates a registry without projects. The rules in force are those of files.
    pub fn new(limiter: Limiter, fleet: Fleet, metrics: Arc<Metrics>) -> Self {
        let clock = Clock::default();
        let synced = Synced::new(clock.now());
        let files = Arc::new(limiter.snapshot().rules.clone());
        Self(Arc::new(RegistryState {
            catalogue: fleet.catalogue(),
            fleet,
            limiter,
            metrics,
            clock,
            keyring: Keyring::default(),
            projects: RwLock::default(),
            files: Mutex::new(files),
            synced: Arc::new(tokio::sync::Mutex::new(synced)),
        }))
    }

    /// Puts the catalogue of a folder in force, and from now on keeps there what is in force. To be
    /// called before [`Registry::run`].
    ///
    /// # Errors
    ///
    /// [`JournalError`] if another process uses the folder, or it can't be used.
    pub async fn open_state_dir(&self, path: &Path) -> Result<(), JournalError> {
        let (registry, path) = (self.clone(), path.to_owned());
        let mut synced = Arc::clone(&self.0.synced).lock_owned().await;
        run_blocking(move || {
            let (state_dir, kept) = StateDir::open(&path)?;
            if let Some(kept) = kept {
                info!(path = %path.display(), projects = kept.documents.len(), "last catalogue in force");
                registry.restore(&mut synced, kept);
            }
            synced.state_dir = Some(state_dir);
            Ok(())
        })
        .await
    }

    /// Returns the fleet that shares the projects.
    pub fn fleet(&self) -> &Fleet {
        &self.0.fleet
    }

    /// Returns the API keys of all projects.
    pub fn keyring(&self) -> &Keyring {
        &self.0.keyring
    }

    /// Returns the limiter in which rules are put in force.
    pub fn limiter(&self) -> &Limiter {
        &self.0.limiter
    }

    /// Returns a project. There is always the unnamed one.
    pub fn project(&self, id: &ProjectId) -> Option<Arc<ProjectState>> {
        let stored = self.stored(id);
        stored.or_else(|| id.is_unnamed().then(|| Arc::new(ProjectState::unnamed())))
    }

    /// Returns all projects, newest first, the unnamed one last.
    pub fn projects(&self) -> Vec<Arc<ProjectState>> {
        let projects = self.0.projects.read().unwrap_or_else(PoisonError::into_inner);
        let mut listed: Vec<_> =
            projects.values().filter(|state| !state.project.id.is_unnamed()).cloned().collect();
        drop(projects);
        listed.sort_by(|one, other| {
            let key = |state: &ProjectState| Reverse(state.project.created_at);
            key(one).cmp(&key(other)).then_with(|| one.project.id.cmp(&other.project.id))
        });
        listed.extend(self.project(&ProjectId::UNNAMED));
        listed
    }

    /// Returns the last revisions of the rules of a project.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store does not answer before the deadline.
    pub async fn history(&self, id: &ProjectId, deadline: Deadline) -> Result<History, StoreError> {
        let entries = self.0.catalogue.history(document_name(id), deadline).await?;
        Ok(run_blocking(move || decode_history(entries)).await)
    }

    /// Returns the rules of files.
    pub fn file_rules(&self) -> Arc<RuleSet> {
        Arc::clone(&self.files())
    }

    /// Replaces the rules of files, and returns the revision of the limiter. They win over rules of
    /// the unnamed project that have the same names.
    pub fn replace_file_rules(&self, rules: RuleSet) -> u64 {
        let mut files = self.files();
        let before = std::mem::replace(&mut *files, Arc::new(rules));
        if before.hashed_parts() != files.hashed_parts() {
            let projects = self.projects();
            for state in projects.iter().filter(|state| !state.project.id.is_unnamed()) {
                if let Ok(rules) = build_rules(state, &files) {
                    self.0.limiter.replace_project_rules(state.project.id.as_str(), rules);
                }
            }
        }
        self.put_unnamed_in_force(&files)
    }

    fn stored(&self, id: &ProjectId) -> Option<Arc<ProjectState>> {
        self.0.projects.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    fn files(&self) -> MutexGuard<'_, Arc<RuleSet>> {
        self.0.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces a project, or removes it. Returns what that changes in the folder.
    fn put_in_force(&self, id: &ProjectId, state: Option<ProjectState>) -> KeptChanges {
        let files = self.files();
        let before = self.stored(id);
        let changes = kept_changes(id, before.as_deref(), state.as_ref());
        let rules =
            state.as_ref().filter(|_| !id.is_unnamed()).map(|state| build_rules(state, &files));
        let limiter = &self.0.limiter;
        match rules {
            Some(Ok(rules)) => _ = limiter.replace_project_rules(id.as_str(), rules),
            Some(Err(problems)) => {
                error!(project = %id, ?problems, "rules are not valid: they stay as they were");
            }
            None => {}
        }
        self.0.keyring.replace(id, state.as_ref().map_or(&[], |state| &state.project.keys));
        let is_removed = state.is_none() && before.is_some();
        let mut projects = self.0.projects.write().unwrap_or_else(PoisonError::into_inner);
        match state {
            Some(state) => _ = projects.insert(id.clone(), Arc::new(state)),
            None => _ = projects.remove(id),
        }
        drop(projects);
        if id.is_unnamed() {
            self.put_unnamed_in_force(&files);
        } else if is_removed {
            limiter.remove_project(id.as_str());
        }
        changes
    }

    /// Puts the rules of files and those of the unnamed project in force.
    fn put_unnamed_in_force(&self, files: &RuleSet) -> u64 {
        let rules = match self.stored(&ProjectId::UNNAMED).map(|state| state.rules.build()) {
            Some(Ok(rules)) => {
                let together = files.clone().with_more(rules.iter().skip(1).cloned());
                let is_valid = together.max_matches() <= RuleSet::MAX_MATCHES;
                if !is_valid {
                    error!("a request can match too many rules: those made at run time are off");
                }
                if is_valid { together } else { files.clone() }
            }
            Some(Err(problems)) => {
                error!(?problems, "rules made at run time are not valid: they are off");
                files.clone()
            }
            None => files.clone(),
        };
        self.0.limiter.replace_rules(rules)
    }
}

/// Builds the rules of a named project. Keys are hashed as those of files.
fn build_rules(state: &ProjectState, files: &RuleSet) -> Result<RuleSet, Vec<Problem>> {
    let rules = state.rules.build_in_project(state.project.id.as_str())?;
    let rules = rules.with_unmatched(state.project.unmatched.into());
    Ok(match files.hashed_parts() {
        Some(hashed) => rules.with_hashed_parts(hashed.clone()),
        None => rules,
    })
}

/// Runs long work on a thread of its own.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        // The runtime ends.
        Err(_) => std::future::pending().await,
    }
}
