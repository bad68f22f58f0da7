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
use super::conflict::{is_conflict, wait_for_marks};
use super::document::{document_name, encode, encode_revision};
use super::ended_keys::EndedKey;
use super::sync::{Owned, SyncError, Synced};
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

/// A change that a caller asks for.
#[derive(Clone, Copy, Debug)]
pub struct ChangeRequest<'a> {
    /// The project.
    pub id: &'a ProjectId,
    /// When it is the turn of the change among others.
    pub rank: ChangeRank,
    /// Time until which it must be made.
    pub deadline: Deadline,
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

    /// Changes a project when it is the turn of a caller: gives the newest state to `change`, and writes
    /// what it returns. If others write the same project meanwhile, it is called again. When this
    /// returns, the change is in force on this instance; on the others within 2 s. `change` runs on a
    /// thread of its own.
    ///
    /// A revocation does not depend on what others write: if they are in its way, the end of the key is
    /// written beside the catalogue.
    ///
    /// # Errors
    ///
    /// [`ChangeError`].
    pub async fn change<T, E, F>(
        &self,
        request: ChangeRequest<'_>,
        mut change: F,
    ) -> Result<Changed<T>, ChangeError<E>>
    where
        F: FnMut(Option<&ProjectState>) -> Result<Change<T>, E> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        let (ChangeRequest { id, rank, deadline }, mut tries) = (request, 0);
        while tries < MAX_TRIES {
            let turn = self.0.queues.wait(rank, deadline).await?;
            let mut synced = self.own(deadline).await?;
            match self.sync_owned(&mut synced, deadline).await {
                Err(error) if rank.ends_keys_after(&error) => {
                    return self.end_keys_alone(&mut synced, request, change).await;
                }
                synced => synced?,
            }
            let left = self.new_catalogue_delay_left(&synced);
            if !left.is_zero() {
                // All changes may wait together for a new catalogue.
                drop((turn, synced));
                wait_for_marks(left, deadline).await.map_err(SyncError::from)?;
                continue;
            }
            tries += 1;
            if synced.unreadable.contains(id) {
                return Err(ChangeError::Unreadable);
            }
            let before = self.project(id);
            let now = self.0.clock.now();
            let (is_new, owned_id) = (before.is_none(), id.clone());
            let (returned, made) = run_blocking(move || {
                let made = change(before.as_deref());
                let made = made.map(|made| prepare(&owned_id, before.as_deref(), made, now));
                (change, made)
            })
            .await;
            change = returned;
            let (prepared, revision, result) = made.map_err(ChangeError::Refused)?;
            let Some(mut prepared) = prepared else { return Ok(Changed { revision, result }) };
            if !self.ended().admits(id, prepared.ended.len(), rank.scope)
                && !std::mem::take(&mut prepared.ended).is_empty()
            {
                warn!(project = %id, "no room for more ends of API keys: an older backup \
                    would bring them back");
            }
            prepared.write.ended = prepared.ended.iter().map(EndedKey::text).collect();
            prepared.write.bounds = self.bounds(&prepared.write.document, rank.scope);
            self.check_bounds(&prepared)?;
            if is_new && self.ended().rests(id, now) {
                return Err(ChangeError::Deleted);
            }
            let catalogue = &self.0.catalogue;
            let written = catalogue.write(synced.head, &prepared.write, deadline).await;
            match written.map_err(ChangeError::Unavailable)? {
                WriteOutcome::Written { head } => {
                    let Prepared { write, after, ended } = prepared;
                    let written = move |registry: &Self, synced: &mut Synced| {
                        let after = after.map(|after| as_stored(after, &write, head.revision));
                        registry.written(synced, &write.document, after, ended, head);
                    };
                    synced.run_blocking(self, written).await;
                    synced.flush().await;
                    return Ok(Changed { revision: head.revision, result });
                }
                WriteOutcome::Raced { .. }
                    if rank.is_revocation
                        && self.0.fleet.is_shared()
                        && self.ended().admits(id, 1, rank.scope) =>
                {
                    return self.end_keys_alone(&mut synced, request, change).await;
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
        synced: &mut Owned,
        request: ChangeRequest<'_>,
        mut change: F,
    ) -> Result<Changed<T>, ChangeError<E>>
    where
        F: FnMut(Option<&ProjectState>) -> Result<Change<T>, E> + Send + 'static,
    {
        let ChangeRequest { id, rank, deadline } = request;
        let status = self.status_with_ended_keys(synced, deadline).await?;
        let before = self.project(id);
        let made = change(before.as_deref()).map_err(ChangeError::Refused)?;
        let is_possible = rank.is_revocation || is_conflict(synced, &status);
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
        let end = move |registry: &Self, synced: &mut Synced| registry.end_keys(synced, ended);
        synced.run_blocking(self, end).await;
        synced.flush().await;
        Ok(Changed { revision: before.map_or(0, |before| before.revision), result: made.result })
    }

    /// Refuses a write that is too long, or leads to too many rules.
    fn check_bounds<E>(&self, prepared: &Prepared) -> Result<(), ChangeError<E>> {
        if prepared.write.history.len() > MAX_ENTRY_LEN {
            return Err(ChangeError::TooLarge);
        }
        if prepared.write.has_long_field() {
            return Err(ChangeError::LongField);
        }
        let Some(after) = &prepared.after else { return Ok(()) };
        let before = self.project(&after.project.id).map_or(0, |before| before.rules.len());
        let most = self.0.max_rules.load(Ordering::Relaxed);
        if after.rules.len() as u64 > most.max(before as u64) {
            return Err(ChangeError::TooManyRulesOfProject(most));
        }
        Ok(())
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
    after.revision = revision;
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
    let ended = EndedKey::of_change(before, change.after.as_ref().map(|(project, _)| project), now);
    let after = match change.after {
        Some((project, rules)) => {
            if before.is_some_and(|before| before.project == project && before.rules == rules) {
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
