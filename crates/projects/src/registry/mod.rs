//! The projects of all instances: kept in the catalogue of the store, in force in this process.
//!
//! [`Registry::run`] follows the catalogue: it is told of each write, and asks each second, so that a
//! write is in force on every instance within 2 s. While the store is away, the last state stays in
//! force. Rules are built on threads of their own: no decision waits for them.
//!
//! A request sees a project as one write has left it. This module does not know who may change a
//! project, and what a change means.

mod change;
mod change_queues;
mod conflict;
mod document;
mod ended_keys;
mod restore;
mod risks;
mod state_dir;
mod sync;

pub use change::{Change, ChangeError, ChangeRequest, Changed, ID_REST};
pub use change_queues::ChangeRank;
pub use restore::{CatalogueSource, RestoreError};
pub use sync::{MODES_SET, SyncError};

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use arc_swap::ArcSwap;
use rlaas_auth::{
    ConfiguredProjects, FileProjects, FileRules, KnownApiKeys, ProjectId, run_blocking,
};
use rlaas_core::clock::{Clock, Deadline, Micros, Timestamp};
use rlaas_core::rules::spec::Problem;
use rlaas_core::rules::{RuleSet, Unmatched};
use rlaas_limiter::Limiter;
use rlaas_limiter::fleet::{Catalogue, Fleet, LocalCopyChanges};
use rlaas_limiter::journal::{Journal, JournalError};
use rlaas_limiter::store::{Store, StoreError};
use rlaas_telemetry::metrics::Metrics;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{error, info};

use self::change_queues::ChangeQueues;
use self::document::{decode_history, document_name, kept_changes};
use self::ended_keys::EndedKeys;
use self::state_dir::StateDir;
use self::sync::Synced;
use crate::{History, Keyring, Project, ProjectRules, RevisionNumber};

/// The projects. Clones share them.
#[derive(Clone, Debug)]
pub struct Registry(Arc<RegistryState>);

#[derive(Debug)]
struct RegistryState {
    /// Name of this process in marks of a conflict.
    instance: OnceLock<String>,
    fleet: Fleet,
    catalogue: Catalogue,
    limiter: Limiter,
    metrics: Arc<Metrics>,
    clock: Clock,
    keyring: Keyring,
    /// Those that are stored, the unnamed one too.
    projects: RwLock<HashMap<ProjectId, Arc<ProjectState>>>,
    /// Locked for a moment, without other locks.
    ended: Mutex<EndedKeys>,
    files: ArcSwap<FileRules>,
    /// Locked while rules are put in force.
    apply_lock: Mutex<()>,
    synced: Arc<tokio::sync::Mutex<Synced>>,
    queues: ChangeQueues,
    /// Revision of the catalogue in force.
    revision: AtomicU64,
    new_catalogue_delay_us: AtomicU64,
    /// Most rules of one project.
    max_rules: AtomicU64,
    /// Whether the store was looked at, with an answer or without.
    first_sync_done: watch::Sender<bool>,
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
    /// Returns a project that is there without being stored: the unnamed one, or one of a file.
    fn unwritten(id: ProjectId) -> Self {
        let project = Project::new(id, "", Timestamp::EPOCH).expect("a short name is valid");
        Self { project, rules: ProjectRules::default(), revision: 0 }
    }
}

impl Registry {
    /// Creates a registry without projects. The rules in force are those of files.
    pub fn new(limiter: Limiter, fleet: Fleet, metrics: Arc<Metrics>) -> Self {
        let clock = Clock::default();
        let synced = Synced::new(clock.now());
        let files = FileRules::from(limiter.snapshot().rules.clone());
        let registry = Self(Arc::new(RegistryState {
            instance: OnceLock::new(),
            catalogue: fleet.catalogue(),
            fleet,
            limiter,
            metrics,
            clock,
            keyring: Keyring::default(),
            projects: RwLock::default(),
            ended: Mutex::default(),
            files: ArcSwap::from_pointee(files),
            apply_lock: Mutex::default(),
            synced: Arc::new(tokio::sync::Mutex::new(synced)),
            queues: ChangeQueues::default(),
            revision: AtomicU64::new(0),
            new_catalogue_delay_us: AtomicU64::new(conflict::NEW_CATALOGUE_DELAY.as_micros()),
            max_rules: AtomicU64::new(Self::MAX_RULES),
            first_sync_done: watch::Sender::new(false),
        }));
        registry.ended().add_texts(&registry.0.catalogue.journaled_ended());
        if let Some(path) = registry.damaged_journal() {
            error!(
                "journal damaged: not ready, and API keys unavailable, until `rlaas journal accept \
                 {path}` and a restart, or a backup takes its place",
                path = path.display()
            );
        }
        registry.set_barred(false);
        registry
    }

    /// Returns the folder of the journal of the store if it was damaged, and nobody has accepted that.
    fn damaged_journal(&self) -> Option<&Path> {
        let Store::Memory(store) = self.0.limiter.store() else { return None };
        store.journal().filter(|journal| journal.is_damaged()).map(Journal::path)
    }

    /// Sets whether the API keys are of a catalogue that the store may not know. They are if its journal
    /// is damaged.
    fn set_barred(&self, is_barred: bool) {
        self.0.keyring.set_barred(is_barred || self.damaged_journal().is_some());
    }

    /// Puts the catalogue of a folder in force, and from now on keeps there what is in force. To be
    /// called before [`Registry::run`].
    ///
    /// # Errors
    ///
    /// [`JournalError`] if another process uses the folder, or it can't be used.
    pub async fn open_state_dir(&self, path: &Path) -> Result<(), JournalError> {
        let path = path.to_owned();
        let open = move |registry: &Self, synced: &mut Synced| {
            let (state_dir, kept) = StateDir::open(&path)?;
            if kept.head.is_some() {
                info!(path = %path.display(), projects = kept.documents.len(), "last catalogue in force");
            }
            let age = StateDir::age_of(&kept);
            registry.restore(synced, kept, age);
            synced.state_dir = Some(state_dir);
            Ok(())
        };
        self.own_at_last().await.run_blocking(self, open).await
    }

    /// Waits until the store was looked at, for 2 s at most, if a folder has a catalogue.
    pub async fn first_look(&self) {
        let mut first_sync_done = self.0.first_sync_done.subscribe();
        if self.0.keyring.is_barred() {
            let looked = first_sync_done.wait_for(|first_sync_done| *first_sync_done);
            _ = timeout(sync::CALL_TIMEOUT, looked).await;
        }
    }

    /// Sets the most rules of a project that are made at run time: [`Registry::MAX_RULES`] by default.
    pub fn set_max_rules(&self, max_rules: u64) {
        self.0.max_rules.store(max_rules, Ordering::Relaxed);
    }

    /// Sets the name of this process in marks of a conflict, unless it has one.
    pub fn set_instance(&self, name: &str) {
        self.0.instance.get_or_init(|| name.replace(char::is_whitespace, "-"));
    }

    fn instance(&self) -> &str {
        self.0.instance.get().map_or("unnamed", String::as_str)
    }

    /// Returns the revision of the catalogue in force; 0 if there is none.
    pub fn revision(&self) -> u64 {
        self.0.revision.load(Ordering::Relaxed)
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

    /// Returns a project. There is always the unnamed one, and those that files name.
    pub fn project(&self, id: &ProjectId) -> Option<Arc<ProjectState>> {
        let unwritten = || Arc::new(ProjectState::unwritten(id.clone()));
        let stored = self.stored(id);
        stored.or_else(|| self.0.files.load().rules(id).is_some().then(unwritten))
    }

    /// Returns all projects, newest first, the unnamed one last.
    pub fn projects(&self) -> Vec<Arc<ProjectState>> {
        let files = self.0.files.load_full();
        let projects = self.0.projects.read().unwrap_or_else(PoisonError::into_inner);
        let mut listed: Vec<_> =
            projects.values().filter(|state| !state.project.id.is_unnamed()).cloned().collect();
        let unwritten = files.projects.keys().filter(|id| !projects.contains_key(id));
        listed.extend(unwritten.map(|id| Arc::new(ProjectState::unwritten(id.clone()))));
        drop(projects);
        listed.sort_by(|left, right| {
            let key = |state: &ProjectState| Reverse(state.project.created_at);
            key(left).cmp(&key(right)).then_with(|| left.project.id.cmp(&right.project.id))
        });
        listed.extend(self.project(&ProjectId::UNNAMED));
        listed
    }

    /// Returns the time since the projects in force were last known to be those of the store, in
    /// whole seconds.
    pub fn age(&self) -> Micros {
        Micros::from_secs(self.0.metrics.catalogue_age.get().cast_unsigned())
    }

    /// Returns the last revisions of the rules of a project, newest first up to the first one for whose
    /// number `is_last` returns `true`.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store does not answer before the deadline.
    pub async fn history_until(
        &self,
        id: &ProjectId,
        is_last: impl FnMut(RevisionNumber) -> bool + Send,
        deadline: Deadline,
    ) -> Result<History, StoreError> {
        let (mut is_last, mut entries) = (is_last, Vec::new());
        let mut reader = self.0.catalogue.history(document_name(id))?;
        while let Some(entry) = reader.next(deadline).await? {
            let is_over = is_last(entry.revision);
            entries.push(entry);
            if is_over {
                break;
            }
        }
        Ok(run_blocking(move || decode_history(entries)).await)
    }

    /// Returns the rules of files of the unnamed project.
    pub fn file_rules(&self) -> Arc<RuleSet> {
        Arc::clone(&self.0.files.load().unnamed)
    }

    /// Returns the rules of files of all projects.
    pub fn files(&self) -> Arc<FileRules> {
        self.0.files.load_full()
    }

    /// Replaces the rules of files, and returns the revision of the limiter. They win over rules of
    /// the same names that were made at run time.
    pub fn replace_file_rules(&self, rules: FileRules) -> u64 {
        let _applying = self.lock_apply();
        let files = Arc::new(rules);
        self.put_projects_in_force(&files);
        self.put_unnamed_in_force(&files.unnamed)
    }

    /// Puts the rules of files of named projects in force, beside those of the unnamed one.
    pub fn set_file_projects(&self, projects: FileProjects) {
        let _applying = self.lock_apply();
        let unnamed = self.file_rules();
        self.put_projects_in_force(&Arc::new(FileRules { unnamed, projects }));
    }

    /// Puts the rules of files of named projects in force where they differ.
    fn put_projects_in_force(&self, files: &Arc<FileRules>) {
        let before = self.0.files.swap(Arc::clone(files));
        let named = before.projects.keys().chain(files.projects.keys());
        let differs = |id: &&ProjectId| before.projects.get(id) != files.projects.get(id);
        let mut changed: BTreeSet<ProjectId> = named.filter(differs).cloned().collect();
        if before.unnamed.hashed_parts() != files.unnamed.hashed_parts() {
            let all = self.projects();
            changed.extend(all.iter().map(|state| state.project.id.clone()));
        }
        for id in changed.iter().filter(|id| !id.is_unnamed()) {
            self.put_named_in_force(id, self.stored(id).as_deref(), files);
        }
    }

    fn stored(&self, id: &ProjectId) -> Option<Arc<ProjectState>> {
        self.0.projects.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    fn lock_apply(&self) -> MutexGuard<'_, ()> {
        self.0.apply_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces a project, or removes it. Returns what that changes in the folder.
    fn put_in_force(&self, id: &ProjectId, state: Option<ProjectState>) -> LocalCopyChanges {
        let _applying = self.lock_apply();
        let files = self.0.files.load_full();
        let mut state = state;
        if let Some(state) = &mut state {
            self.ended().apply(&mut state.project);
        }
        let changes = kept_changes(id, self.stored(id).as_deref(), state.as_ref());
        let is_removed = state.is_none();
        // Nobody has a key of a project before its rules, or after them.
        if !is_removed && !id.is_unnamed() {
            self.put_named_in_force(id, state.as_ref(), &files);
        }
        self.0.keyring.replace(id, state.as_ref().map_or(&[], |state| &state.project.keys));
        let mut projects = self.0.projects.write().unwrap_or_else(PoisonError::into_inner);
        match state {
            Some(state) => _ = projects.insert(id.clone(), Arc::new(state)),
            None => _ = projects.remove(id),
        }
        drop(projects);
        if id.is_unnamed() {
            self.put_unnamed_in_force(&files.unnamed);
        } else if is_removed {
            self.put_named_in_force(id, None, &files);
        }
        changes
    }

    /// Puts the rules of files and those of the unnamed project in force.
    fn put_unnamed_in_force(&self, files: &RuleSet) -> u64 {
        let stored = self.stored(&ProjectId::UNNAMED).map(|state| state.rules.build());
        self.0.limiter.replace_rules(together(&ProjectId::UNNAMED, files, stored))
    }

    /// Puts the rules of files and those of a named project in force. One that is neither stored nor
    /// in a file has none.
    fn put_named_in_force(&self, id: &ProjectId, state: Option<&ProjectState>, files: &FileRules) {
        let stored = state.map(|state| state.rules.build_in_project(id.as_str()));
        let rules = match (files.projects.get(id), stored) {
            (Some(file), stored) => together(id, &file.rules, stored),
            (None, Some(Ok(rules))) => rules,
            (None, Some(Err(problems))) => {
                error!(project = %id, ?problems, "rules are not valid: they stay as they were");
                return;
            }
            (None, None) => {
                self.0.limiter.remove_project(id.as_str());
                return;
            }
        };
        let stored = state.map(|state| state.project.unmatched.into());
        let unmatched = files.unmatched(id).or(stored).unwrap_or(Unmatched::Deny);
        let rules = rules.with_unmatched(unmatched);
        // Keys are hashed as those of files.
        let rules = match files.unnamed.hashed_parts() {
            Some(hashed) => rules.with_hashed_parts(hashed.clone()),
            None => rules,
        };
        self.0.limiter.replace_project_rules(id.as_str(), rules);
    }
}

impl ConfiguredProjects for Registry {
    fn files_beside(&self, id: &ProjectId) -> Option<Arc<RuleSet>> {
        self.files().rules(id).cloned()
    }

    fn catalogue_revision(&self) -> u64 {
        self.revision()
    }
}

/// Returns the rules of files with those that were made at run time; without these if they are not
/// valid, alone or together.
fn together(
    id: &ProjectId,
    files: &RuleSet,
    stored: Option<Result<RuleSet, Vec<Problem>>>,
) -> RuleSet {
    match stored {
        Some(Ok(rules)) => {
            let together = files.clone().with_more(rules.iter().skip(1).cloned());
            if together.max_matches() <= RuleSet::MAX_MATCHES {
                return together;
            }
            error!(project = %id, "a request can match too many rules: those made at run time are off");
            files.clone()
        }
        Some(Err(problems)) => {
            error!(project = %id, ?problems, "rules made at run time are not valid: they are off");
            files.clone()
        }
        None => files.clone(),
    }
}
