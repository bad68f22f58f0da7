//! Changes of a project: read, changed by a pure function, written with the revision that was read.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rlaas_auth::{CallerScope, ProjectId, run_blocking};
use rlaas_core::clock::{Deadline, Timestamp};
use rlaas_limiter::fleet::{
    COUNTED_PREFIX, CatalogueBounds, CatalogueWrite, MAX_ENTRY_LEN, MAX_FIELD_LEN, WriteOutcome,
};
use rlaas_limiter::store::StoreError;
use thiserror::Error;
use tracing::warn;

use super::change_queues::ChangeRank;
use super::conflict::is_conflict;
use super::document::{document_name, encode, encode_revision};
use super::ended_keys::EndedKey;
use super::sync::SyncError;
use super::{ProjectState, Registry};
use crate::{Project, ProjectRules, Revision};

/// Times that a change is tried while others write the same project.
const MAX_TRIES: u32 = 8;
/// Time for which the id of a deleted project is not given again: the longest life of what may be stored
/// of it.
pub const ID_REST: Duration = Duration::from_hours(366 * 24);

/// What a change makes of a project.
#[derive(Clone, Debug)]
pub struct Change<T> {
    /// The project afterwards; `None`: it is deleted.
    pub after: Option<(Project, ProjectRules)>,
    /// The entry for the history. Its number is set when it is written.
    pub revision: Option<Revision>,
    /// Passed on to the caller.
    pub result: T,
}

impl<T> Change<T> {
    /// Returns `true` if the change does nothing but end keys.
    pub fn only_ends_keys(&self, before: Option<&ProjectState>) -> bool {
        let (Some(before), Some((project, rules))) = (before, &self.after) else { return false };
        let ended = EndedKey::of_change(Some(before), Some(project), Timestamp::EPOCH);
        let mut expected = before.project.clone();
        for key in &mut expected.keys {
            for ended in &ended {
                ended.apply(key);
            }
        }
        expected == *project && before.rules == *rules
    }
}

/// A change that was made.
#[derive(Clone, Debug)]
pub struct Changed<T> {
    /// The revision of the project: the one before if nothing changed.
    pub revision: u64,
    /// That of the [`Change`].
    pub result: T,
}

/// The reason why a change was not made.
#[derive(Clone, Debug, Error)]
pub enum ChangeError<E> {
    /// The function refused it.
    #[error("{0}")]
    Refused(E),
    /// The store did not answer. The change was possibly made if [`StoreError::is_ambiguous`].
    #[error(transparent)]
    Unavailable(StoreError),
    /// Others wrote the same project each time, or other changes are made on this instance.
    #[error("too many changes are being made")]
    Raced,
    /// There would be more than [`Registry::MAX_PROJECTS`].
    #[error("there must be at most {} projects", Registry::MAX_PROJECTS)]
    TooManyProjects,
    /// There would be more than [`Registry::MAX_RULES`].
    #[error("there must be at most {} rules in all projects", Registry::MAX_RULES)]
    TooManyRules,
    /// The project would have more than it may: see [`Registry::set_max_rules`].
    #[error("a project must have at most {0} rules (projects.max-rules)")]
    TooManyRulesOfProject(u64),
    /// The differences are too long for the history.
    #[error("the differences must be at most {MAX_ENTRY_LEN} bytes: make several changes")]
    TooLarge,
    /// A rule, or the project with its keys, is too long.
    #[error(
        "a rule, and a project with its API keys, must be at most {MAX_FIELD_LEN} bytes in JSON"
    )]
    LongField,
    /// There is no room for the ends of more keys.
    #[error("there are too many revoked API keys")]
    TooManyEnded,
    /// A project of this id was deleted.
    #[error("a project with this id was deleted within the last 366 days")]
    Deleted,
    /// The catalogue of the store conflicts with that of an instance.
    #[error("the catalogue of the store conflicts with that of an instance")]
    Conflict,
    /// A later release has written the project, so that this one cannot read it.
    #[error("this release cannot read the project")]
    Unreadable,
}

impl<E> From<SyncError> for ChangeError<E> {
    fn from(error: SyncError) -> Self {
        match error {
            SyncError::Store(error) => Self::Unavailable(error),
            SyncError::Conflict => Self::Conflict,
            SyncError::Busy => Self::Raced,
        }
    }
}

/// A write that leads to a state.
struct Prepared {
    write: CatalogueWrite,
    after: Option<ProjectState>,
    ended: Vec<EndedKey>,
}

impl Registry {
    /// Most projects, without the unnamed one.
    pub const MAX_PROJECTS: u64 = 10_000;
    /// Most rules of all projects.
    pub const MAX_RULES: u64 = 100_000;

    /// Changes a project: gives the newest state to `change`, and writes what it returns. If others
    /// write the same project meanwhile, it is called again. When this returns, the change is in
    /// force on this instance; on the others within 2 s. `change` runs on a thread of its own.
    ///
    /// # Errors
    ///
    /// [`ChangeError`].
    pub async fn change<T, E, F>(
        &self,
        id: &ProjectId,
        deadline: Deadline,
        change: F,
    ) -> Result<Changed<T>, ChangeError<E>>
    where
        F: FnMut(Option<&ProjectState>) -> Result<Change<T>, E> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        self.change_as(ChangeRank::default(), id, deadline, change).await
    }

    /// Changes a project when it is the turn of a caller. A revocation does not depend on what others
    /// write: if they are in its way, the end of the key is written beside the catalogue.
    ///
    /// # Errors
    ///
    /// As [`Registry::change`].
    pub async fn change_as<T, E, F>(
        &self,
        rank: ChangeRank,
        id: &ProjectId,
        deadline: Deadline,
        change: F,
    ) -> Result<Changed<T>, ChangeError<E>>
    where
        F: FnMut(Option<&ProjectState>) -> Result<Change<T>, E> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        let (mut change, scope) = (change, rank.scope);
        for _ in 0..MAX_TRIES {
            let turn = self.0.queues.wait(rank, deadline).await?;
            let synced = self.locked(deadline).await?;
            let synced = match self.sync_locked(synced, deadline).await {
                Err(error) if rank.ends_keys_after(&error) => {
                    return self.end_keys_alone(rank, id, deadline, change).await;
                }
                synced => synced?,
            };
            // All changes may wait together for a new catalogue.
            let _turn = synced.head.is_some().then_some(turn);
            let synced = self.await_new_catalogue(synced, deadline).await?;
            if synced.unreadable.contains(id) {
                return Err(ChangeError::Unreadable);
            }
            let before = self.project(id);
            let owned = id.clone();
            let now = self.0.clock.now();
            let is_new = before.is_none();
            let (synced, returned, outcome) = run_blocking(move || {
                let outcome = change(before.as_deref());
                let outcome = outcome.map(|made| prepare(&owned, before.as_deref(), made, now));
                (synced, change, outcome)
            })
            .await;
            change = returned;
            let (prepared, revision, result) = outcome.map_err(ChangeError::Refused)?;
            let Some(mut prepared) = prepared else { return Ok(Changed { revision, result }) };
            if !self.ended().admits(id, prepared.ended.len(), scope)
                && !std::mem::take(&mut prepared.ended).is_empty()
            {
                warn!(project = %id, "no room for more ends of API keys: an older backup \
                    would bring them back");
            }
            prepared.write.ended = prepared.ended.iter().map(EndedKey::text).collect();
            if prepared.write.history.len() > MAX_ENTRY_LEN {
                return Err(ChangeError::TooLarge);
            }
            if prepared.write.has_long_field() {
                return Err(ChangeError::LongField);
            }
            let rules =
                |state: Option<&ProjectState>| state.map_or(0, |state| state.rules.len() as u64);
            let most = self.0.max_rules.load(Ordering::Relaxed);
            if rules(prepared.after.as_ref()) > most.max(rules(self.project(id).as_deref())) {
                return Err(ChangeError::TooManyRulesOfProject(most));
            }
            if is_new && self.ended().rests(id, now) {
                return Err(ChangeError::Deleted);
            }
            prepared.write.bounds = self.bounds(&prepared.write.document, scope);
            let written = self.0.catalogue.write(synced.head, &prepared.write, deadline).await;
            match written.map_err(ChangeError::Unavailable)? {
                WriteOutcome::Written { head } => {
                    let Prepared { write, after, ended } = prepared;
                    let after = after.map(|after| as_stored(after, &write, head.revision));
                    self.written(synced, &write.document, after, ended, head).await;
                    return Ok(Changed { revision: head.revision, result });
                }
                WriteOutcome::Raced { .. }
                    if rank.is_revocation
                        && self.0.fleet.is_shared()
                        && self.ended().admits(id, 1, scope) =>
                {
                    drop(synced);
                    return self.end_keys_alone(rank, id, deadline, change).await;
                }
                // The next look finds out what it is.
                WriteOutcome::Raced { .. } | WriteOutcome::Conflict => {}
                WriteOutcome::TooManyDocuments => return Err(ChangeError::TooManyProjects),
                WriteOutcome::TooManyFields => return Err(ChangeError::TooManyRules),
                WriteOutcome::Removed => return Err(ChangeError::Deleted),
            }
        }
        Err(ChangeError::Raced)
    }

    /// Ends keys beside the catalogue: while catalogues conflict, if the change does nothing else; and
    /// for a revocation.
    async fn end_keys_alone<T, E, F>(
        &self,
        rank: ChangeRank,
        id: &ProjectId,
        deadline: Deadline,
        change: F,
    ) -> Result<Changed<T>, ChangeError<E>>
    where
        F: FnMut(Option<&ProjectState>) -> Result<Change<T>, E> + Send + 'static,
    {
        let mut change = change;
        let synced = self.locked(deadline).await?;
        let (synced, status) = self.united_status(synced, deadline).await?;
        let before = self.project(id);
        let made = change(before.as_deref()).map_err(ChangeError::Refused)?;
        let is_possible = rank.is_revocation || is_conflict(&synced, &status);
        let shared = self.0.catalogue.shared().filter(|_| is_possible);
        let only_ends_keys = made.only_ends_keys(before.as_deref());
        let shared = shared.filter(|_| only_ends_keys).ok_or(ChangeError::Conflict)?;
        let after = made.after.as_ref().map(|(project, _)| project);
        let ended = EndedKey::of_change(before.as_deref(), after, self.0.clock.now());
        let texts: Vec<String> = ended.iter().map(EndedKey::text).collect();
        if !self.ended().admits(id, ended.len(), rank.scope)
            || !shared.add_ended(&texts, deadline).await.map_err(ChangeError::Unavailable)?
        {
            return Err(ChangeError::TooManyEnded);
        }
        let (registry, mut synced) = (self.clone(), synced);
        let mut synced = run_blocking(move || {
            registry.end_keys(&mut synced, ended);
            synced
        })
        .await;
        synced.flush().await;
        Ok(Changed { revision: before.map_or(0, |before| before.revision), result: made.result })
    }

    fn bounds(&self, document: &str, scope: CallerScope) -> CatalogueBounds {
        let is_unnamed = document == document_name(&ProjectId::UNNAMED);
        let has_unnamed = self.stored(&ProjectId::UNNAMED).is_some();
        let documents = match (is_unnamed, has_unnamed) {
            (true, _) => u64::MAX,
            (false, has_unnamed) => Self::MAX_PROJECTS + u64::from(has_unnamed),
        };
        let fields = match scope {
            CallerScope::AllProjects => Self::MAX_RULES,
            CallerScope::SomeProjects => Self::MAX_RULES - Self::MAX_RULES / 8,
        };
        CatalogueBounds { documents, fields }
    }
}

/// Returns the state that a write has left, as the store has it.
fn as_stored(mut after: ProjectState, write: &CatalogueWrite, revision: u64) -> ProjectState {
    for name in write.set.keys().filter_map(|field| field.strip_prefix(COUNTED_PREFIX)) {
        after.rules.set_revision(name, revision);
    }
    after
}

/// Returns the write that a change needs, if it needs one, and the revision before.
fn prepare<T>(
    id: &ProjectId,
    before: Option<&ProjectState>,
    change: Change<T>,
    now: Timestamp,
) -> (Option<Prepared>, u64, T) {
    let revision = before.map_or(0, |before| before.revision);
    let write = CatalogueWrite::new(document_name(id));
    let mut write = CatalogueWrite { expected: revision, rest: ID_REST, ..write };
    let ended = EndedKey::of_change(before, change.after.as_ref().map(|(of, _)| of), now);
    let after = match change.after {
        Some((project, rules)) => {
            if before.is_some_and(|of| of.project == project && of.rules == rules) {
                return (None, revision, change.result);
            }
            encode(&mut write, before, &project, &rules);
            write.history = change.revision.as_ref().map(encode_revision).unwrap_or_default();
            Some(ProjectState { project, rules, revision })
        }
        None if revision == 0 => return (None, revision, change.result),
        None => {
            write.removes = true;
            None
        }
    };
    (Some(Prepared { write, after, ended }), revision, change.result)
}
