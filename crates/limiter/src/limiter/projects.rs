//! The rules of projects, beside those of no project.
//!
//! Each project has a snapshot of its own, so that a request meets no rule of another, and a change
//! of a project costs what this project has. The snapshots are in many small tables, each of which
//! is replaced as a whole: reading takes no lock.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, PoisonError};

use arc_swap::ArcSwap;

use super::{Limiter, Snapshot};
use crate::rules::{Key, RuleSet};

/// Number of tables. With 10,000 projects each has 40.
const TABLES: usize = 256;

/// Snapshots by project.
#[derive(Debug)]
pub(super) struct ProjectSnapshots {
    tables: Box<[ArcSwap<Table>]>,
    hasher: RandomState,
}

type Table = HashMap<Arc<str>, Arc<Snapshot>>;

impl Default for ProjectSnapshots {
    fn default() -> Self {
        Self {
            tables: (0..TABLES).map(|_| ArcSwap::default()).collect(),
            hasher: RandomState::new(),
        }
    }
}

impl ProjectSnapshots {
    /// Returns the snapshot of a project.
    pub(super) fn get(&self, project: &str) -> Option<Arc<Snapshot>> {
        self.table(project).load().get(project).map(Arc::clone)
    }

    /// Returns every project with its snapshot.
    pub(super) fn all(&self) -> Vec<(Arc<str>, Arc<Snapshot>)> {
        let tables = self.tables.iter().map(|table| Table::clone(&table.load()));
        tables.flatten().collect()
    }

    /// Sets or removes the snapshot of a project. To be called by one thread at a time.
    pub(super) fn set(&self, project: &str, snapshot: Option<Arc<Snapshot>>) {
        let table = self.table(project);
        let mut changed = Table::clone(&table.load());
        match snapshot {
            Some(snapshot) => _ = changed.insert(project.into(), snapshot),
            None => _ = changed.remove(project),
        }
        table.store(Arc::new(changed));
    }

    fn table(&self, project: &str) -> &ArcSwap<Table> {
        let hash = self.hasher.hash_one(project);
        &self.tables[usize::try_from(hash % TABLES as u64).unwrap_or_default()]
    }
}

impl Limiter {
    /// Replaces all rules of a project at once, and returns the new revision. The rules become
    /// those of the project ([`RuleSet::in_project`]); if they are the same, the revision stays.
    /// States are kept. Other projects are not touched. The empty project is that of
    /// [`Limiter::replace_rules`].
    ///
    /// ```
    /// use rlaas_limiter::rules::Unmatched;
    /// use rlaas_limiter::{CheckError, Limiter, Request};
    ///
    /// let limiter = Limiter::builder().build()?;
    /// let rules = limiter.snapshot().rules.clone();
    /// let check = |project| {
    ///     let request = Request::user("alice").in_project(project).build().expect("valid");
    ///     limiter.check_now(&request).expect("decided in memory").map(|one| one.is_allowed())
    /// };
    /// assert!(matches!(check("shop"), Err(CheckError::UnknownProject)));
    /// limiter.replace_project_rules("shop", rules.with_unmatched(Unmatched::Deny));
    /// assert!(matches!(check("shop"), Err(CheckError::NoRule)));
    /// assert!(limiter.remove_project("shop"));
    /// # Ok::<(), rlaas_limiter::BuildError>(())
    /// ```
    pub fn replace_project_rules(&self, project: &str, rules: RuleSet) -> u64 {
        let rules = rules.in_project(project);
        if project.is_empty() {
            return self.replace_rules(rules);
        }
        let mut last =
            self.shared.last_project_revision.lock().unwrap_or_else(PoisonError::into_inner);
        let rules = self.shared.modes.load().apply(rules);
        if let Some(before) =
            self.shared.projects.get(project).filter(|before| before.rules == rules)
        {
            return before.revision;
        }
        // Each revision of any project is another number, so that nothing is left in caches of a
        // project that was removed.
        *last += 1;
        self.store.prepare(&rules);
        let snapshot = Snapshot::of_project(rules, *last, &*self.shared.observer);
        self.shared.projects.set(project, Some(Arc::new(snapshot)));
        *last
    }

    /// Removes a project and its rules. Returns `false` if there is none. States are kept. The empty
    /// project stays.
    pub fn remove_project(&self, project: &str) -> bool {
        let _turn =
            self.shared.last_project_revision.lock().unwrap_or_else(PoisonError::into_inner);
        let is_there = self.shared.projects.get(project).is_some();
        if is_there {
            self.shared.projects.set(project, None);
            self.shared.observer.forget_project(project);
        }
        is_there
    }

    /// Returns the rules in force of a project; of the empty one those of [`Limiter::snapshot`].
    pub fn project_snapshot(&self, project: &str) -> Option<Arc<Snapshot>> {
        if project.is_empty() { Some(self.snapshot()) } else { self.shared.projects.get(project) }
    }

    /// Returns the rules in force of the project that a key is of.
    pub fn snapshot_of_key(&self, key: &Key) -> Option<Arc<Snapshot>> {
        self.project_snapshot(&key.project_name()?)
    }
}
