//! API keys that have ended, whatever a catalogue says: a set that only grows, beside the catalogue in the
//! store, in `state-dir` and in the journal of the memory store. A deleted project is in it, too: its id is
//! not given again before [`ID_REST`] is over, also if the store has lost its own list of such ids.
//!
//! A catalogue that comes back from a backup has keys that were revoked since. So each end of a key is also
//! added here, in the same step that writes it to the catalogue, or alone while catalogues conflict.
//! At each contact an instance and the store exchange what either lacks, before it takes or marks a catalogue;
//! a key in it is refused in each project that is put in force.
//!
//! An end is kept until the key would have expired by itself, or for [`LIFE`].

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{MutexGuard, PoisonError};

use rlaas_auth::{CallerScope, ProjectId};
use rlaas_core::clock::{Deadline, Micros, Timestamp};
use rlaas_limiter::fleet::{ChangedWhileRead, LocalCopyChanges};
use rlaas_limiter::store::{Fate, StoreError};
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::change::ID_REST;
use super::sync::{CALL_TIMEOUT, CatalogueUse, Owned, SyncError, Synced};
use super::{ProjectState, Registry};
use crate::{ApiKey, ApiKeyState, Project};

/// Time for which the end of a key that does not expire is kept: no backup is that old.
const LIFE: Micros = Micros::from_secs(366 * 86_400);
/// Most ends that are kept. `lua/catalogue.lua` has the same bound.
const MAX_ENDED: usize = 100_000;
/// Calls by which the ends of a store are read, if all are lacking there, and others add some.
const MAX_CALLS: usize = 3 * MAX_ENDED / 200;

/// The end of a key, stored as JSON.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct EndedKey {
    project: ProjectId,
    /// Empty for a project.
    key: String,
    /// The beginning of the digest of its secret; of a project, its id.
    digest: String,
    end: End,
    /// Time from which the end need not be known.
    until: Timestamp,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum End {
    /// It was revoked, alone or with its project.
    Revoked(Timestamp),
    /// It was replaced, and is valid until then.
    Replaced(Timestamp),
    /// The project was deleted.
    Deleted(Timestamp),
}

/// The ends of keys that this instance knows.
#[derive(Debug, Default)]
pub(super) struct EndedKeys {
    by_digest: HashMap<String, Vec<EndedKey>>,
    len: usize,
}

impl EndedKey {
    fn revoked(project: &ProjectId, key: &ApiKey, at: Timestamp) -> Self {
        Self::new(project, key, End::Revoked(at), at)
    }

    fn new(project: &ProjectId, key: &ApiKey, end: End, at: Timestamp) -> Self {
        Self {
            project: project.clone(),
            key: key.id.clone(),
            digest: key.digest.short(),
            end,
            until: key.expires_at.unwrap_or(at + LIFE),
        }
    }

    /// Returns the keys that a change of a project ends.
    pub(super) fn of_change(
        before: Option<&ProjectState>,
        after: Option<&Project>,
        now: Timestamp,
    ) -> Vec<Self> {
        let Some(before) = before.map(|before| &before.project) else { return Vec::new() };
        let deleted = after.is_none().then(|| Self::deleted(&before.id, now));
        let ended = before.keys.iter().filter_map(|key| {
            let same =
                |after: &Project| after.keys.iter().find(|after| after.id == key.id).cloned();
            let after = after.map(same);
            match after {
                // The project is deleted.
                None if key.state(now) == ApiKeyState::Active => {
                    Some(Self::revoked(&before.id, key, now))
                }
                Some(Some(after)) if after.revoked_at != key.revoked_at => {
                    Some(Self::revoked(&before.id, key, after.revoked_at?))
                }
                Some(Some(after)) if after.replaced_by != key.replaced_by => {
                    let end = after.expires_at?;
                    Some(Self::new(&before.id, key, End::Replaced(end), end))
                }
                _ => None,
            }
        });
        ended.chain(deleted).collect()
    }

    fn deleted(project: &ProjectId, at: Timestamp) -> Self {
        Self {
            project: project.clone(),
            key: String::new(),
            digest: project.to_string(),
            end: End::Deleted(at),
            until: at + ID_REST.into(),
        }
    }

    /// Returns the text that is stored.
    pub(super) fn text(&self) -> String {
        serde_json::to_string(self).expect("the type has no maps")
    }

    /// Reads a text; `None` if a later release has written it.
    pub(super) fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Ends the key in a version of its project.
    pub(super) fn apply(&self, key: &mut ApiKey) {
        if key.digest.short() != self.digest {
            return;
        }
        match self.end {
            End::Revoked(at) => key.revoked_at = key.revoked_at.into_iter().chain([at]).min(),
            End::Replaced(at) => key.expires_at = key.expires_at.into_iter().chain([at]).min(),
            End::Deleted(_) => {}
        }
    }
}

impl EndedKeys {
    /// Adds an end. Returns `true` if it was not known.
    pub(super) fn add(&mut self, ended: EndedKey) -> bool {
        let of_digest = self.by_digest.entry(ended.digest.clone()).or_default();
        let is_new = !of_digest.contains(&ended);
        if is_new {
            of_digest.push(ended);
            self.len += 1;
        }
        is_new
    }

    /// Returns `true` if there is room for ends of keys of a project that a caller ends: an eighth of the
    /// set is for callers of all projects alone.
    pub(super) fn admits(&self, project: &ProjectId, more: usize, scope: CallerScope) -> bool {
        let most = match scope {
            CallerScope::SomeProjects => MAX_ENDED - MAX_ENDED / 8,
            CallerScope::AllProjects => MAX_ENDED,
        };
        let of_project = || self.iter().filter(|ended| ended.project == *project).count();
        self.len + more <= most
            && (self.len + more <= MAX_ENDED / 2 || of_project() + more <= MAX_ENDED / 2)
    }

    /// Returns `true` if the id of a project rests, because one was deleted.
    pub(super) fn rests(&self, project: &ProjectId, now: Timestamp) -> bool {
        let ended = self.by_digest.get(project.as_str()).into_iter().flatten();
        ended.filter(|end| end.key.is_empty() && end.project == *project).any(|end| now < end.until)
    }

    /// Ends the keys of a project that are known to have ended.
    pub(super) fn apply(&self, project: &mut Project) {
        if self.len > 0 {
            for key in &mut project.keys {
                let ended = self.by_digest.get(&key.digest.short());
                ended.into_iter().flatten().for_each(|ended| ended.apply(key));
            }
        }
    }

    /// Adds those that were kept as texts.
    pub(super) fn add_texts(&mut self, texts: &BTreeSet<String>) {
        let ended = texts.iter().filter_map(|text| EndedKey::parse(text));
        ended.for_each(|ended| _ = self.add(ended));
    }

    fn iter(&self) -> impl Iterator<Item = &EndedKey> {
        self.by_digest.values().flatten()
    }

    /// Forgets ends.
    fn forget(&mut self, over: &[EndedKey]) {
        for ended in over {
            if let Some(of_digest) = self.by_digest.get_mut(&ended.digest) {
                self.len -= of_digest.extract_if(.., |known| known == ended).count();
            }
        }
        self.by_digest.retain(|_, ended| !ended.is_empty());
    }
}

impl Registry {
    pub(super) fn ended(&self) -> MutexGuard<'_, EndedKeys> {
        self.0.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds ends of keys on this instance, and puts their projects in force that still have them.
    pub(super) fn end_keys(&self, synced: &mut Synced, ended: impl IntoIterator<Item = EndedKey>) {
        let (mut projects, mut changes) = (HashSet::new(), LocalCopyChanges::default());
        let mut all = self.ended();
        for ended in ended {
            let (project, text) = (ended.project.clone(), ended.text());
            if all.add(ended) {
                changes.set_ended(&text, true);
                projects.insert(project);
            }
        }
        drop(all);
        if !projects.is_empty() {
            // If they are new to the store, it may lose them before the next look.
            synced.shared_ended_keys = None;
        }
        synced.keep(changes);
        for id in projects {
            let Some(state) = self.stored(&id) else { continue };
            let mut after = ProjectState::clone(&state);
            self.ended().apply(&mut after.project);
            if after != *state {
                let changes = self.put_in_force(&id, Some(after));
                synced.keep(changes);
            }
        }
    }

    /// Returns `true` if there is room for the end of a key by a caller of this scope.
    pub fn keeps_ends(&self, id: &ProjectId, scope: CallerScope) -> bool {
        self.ended().admits(id, 1, scope)
    }

    /// Adds ends of keys that were read. Forgets and returns those that are over.
    fn end_read_keys(
        &self,
        synced: &mut Synced,
        read: &HashSet<String>,
        now: Timestamp,
    ) -> Vec<String> {
        let known: Vec<EndedKey> = self.ended().iter().cloned().collect();
        let read = read.iter().filter_map(|text| EndedKey::parse(text));
        // Before that, the projects that may have the key are not known.
        let decides = synced.catalogue_use == CatalogueUse::Serving;
        let is_over = |ended: &EndedKey| decides && ended.until <= now && !self.has_key(ended);
        let (over, ended): (Vec<_>, Vec<_>) = read.chain(known).partition(is_over);
        self.ended().forget(&over);
        let over: Vec<String> = over.iter().map(EndedKey::text).collect();
        let mut changes = LocalCopyChanges::default();
        for text in &over {
            changes.set_ended(text, false);
        }
        synced.keep(changes);
        self.end_keys(synced, ended);
        over
    }

    /// Returns `true` if a project in force has the key of an end. The catalogue may have it as not ended.
    fn has_key(&self, ended: &EndedKey) -> bool {
        let state = self.stored(&ended.project);
        let is_of = |key: &ApiKey| key.digest.short() == ended.digest;
        state.is_some_and(|state| state.project.keys.iter().any(is_of))
    }

    /// Makes this instance and the store know the same ends of keys: those that either knows.
    pub(super) async fn sync_ended_keys(
        &self,
        synced: &mut Owned,
        deadline: Deadline,
    ) -> Result<(), SyncError> {
        let Some(shared) = self.0.catalogue.shared() else { return Ok(()) };
        let call_deadline = || deadline.or_within(CALL_TIMEOUT);
        let mut id = synced.shared_ended_keys.take().unwrap_or_default();
        let mut after = String::new();
        let (mut read, mut is_whole, mut is_full) = (HashSet::new(), false, false);
        for _ in 0..MAX_CALLS {
            let page = shared.ended(&id, &after, call_deadline()).await?;
            if page.begins_anew {
                read.clear();
                is_whole = true;
            }
            read.extend(page.ended);
            (id, after) = (page.id, page.last);
            // A clock that is ahead on one of the instances must not forget for all.
            let now = page.now.min(self.0.clock.now());
            if !after.is_empty() {
                continue;
            }
            if is_whole && !is_full {
                let texts = self.ended().iter().map(EndedKey::text).collect::<Vec<_>>();
                let lacking: Vec<String> =
                    texts.into_iter().filter(|text| !read.contains(text)).collect();
                if !lacking.is_empty() {
                    is_full = !shared.add_ended(&lacking, call_deadline()).await?;
                    if is_full {
                        warn!("the store has no room for more ends of API keys");
                    }
                    // The store may have been replaced meanwhile: all begins anew.
                    id.clear();
                    continue;
                }
            }
            let end = move |registry: &Self, synced: &mut Synced| {
                registry.end_read_keys(synced, &read, now)
            };
            let over = synced.run_blocking(self, end).await;
            shared.forget_ended(&over, call_deadline()).await?;
            synced.shared_ended_keys = Some(id);
            return Ok(());
        }
        Err(StoreError::custom(Fate::NotExecuted, ChangedWhileRead).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ApiKeySecret, Environment, NewKey, ProjectRules};

    const START: Timestamp = Timestamp::from_millis(1_700_000_000_000);

    fn secret() -> ApiKeySecret {
        ApiKeySecret::generate(&Environment::default()).expect("random numbers")
    }

    fn at(seconds: u64) -> Timestamp {
        START + Micros::from_secs(seconds)
    }

    fn shop(keys: usize) -> Project {
        let mut shop = Project::new("shop".parse().expect("an id"), "", START).expect("a project");
        for _ in 0..keys {
            shop.create_key(NewKey::default(), &secret(), START).expect("a key");
        }
        shop
    }

    /// Returns the ends by a change.
    fn ends(before: &Project, after: Option<&Project>, now: Timestamp) -> Vec<EndedKey> {
        let (project, rules) = (before.clone(), ProjectRules::default());
        EndedKey::of_change(Some(&ProjectState { project, rules, revision: 1 }), after, now)
    }

    #[test]
    fn keys_end_when_they_are_revoked_or_replaced_or_their_project_is_deleted() {
        let before = shop(4);
        let ids: Vec<String> = before.keys.iter().map(|key| key.id.clone()).collect();
        let mut after = before.clone();
        after.revoke_key(&ids[0], at(1)).expect("a key");
        after.rotate_key(&ids[1], Micros::ZERO, &secret(), at(2)).expect("keys");
        after.rotate_key(&ids[2], Micros::from_secs(9), &secret(), at(2)).expect("keys");
        let found = ends(&before, Some(&after), at(3));
        let found: Vec<_> = found.into_iter().map(|end| (end.key, end.end, end.until)).collect();
        let expected = [
            (ids[0].clone(), End::Revoked(at(1)), at(1) + LIFE),
            (ids[1].clone(), End::Replaced(at(2)), at(2) + LIFE),
            (ids[2].clone(), End::Replaced(at(11)), at(11) + LIFE),
        ];
        assert_eq!(found, expected);
        // Of the others the end is known already.
        let deleted: Vec<_> = ends(&after, None, at(3)).into_iter().map(|end| end.key).collect();
        let replacing: Vec<_> = after.keys[4..].iter().map(|key| key.id.clone()).collect();
        // The last one is that of the project.
        assert_eq!(deleted, [&ids[2..], &replacing[..], &[String::new()]].concat());
        assert_eq!(ends(&after, Some(&after), at(3)), []);
    }

    #[test]
    fn id_of_a_deleted_project_rests_for_366_days() {
        let (shop, mut known) = (shop(0), EndedKeys::default());
        for ended in ends(&shop, None, at(5)) {
            let read = EndedKey::parse(&ended.text()).expect("an end");
            assert!(known.add(read) && !known.add(ended));
        }
        let days = |days: u64| at(5) + Micros::from_secs(days * 86_400);
        let rests = |id: &str, now| known.rests(&id.parse().expect("an id"), now);
        assert!(rests("shop", at(5)) && rests("shop", days(366) - Micros::from_micros(1)));
        assert!(!rests("shop", days(366)) && !rests("blog", at(5)));
    }

    #[test]
    fn ended_keys_end_in_an_older_version_of_the_project() {
        use ApiKeyState::{Active, Expired, Revoked};

        let (before, mut known) = (shop(3), EndedKeys::default());
        let mut after = before.clone();
        after.revoke_key(&before.keys[0].id, at(1)).expect("a key");
        after.rotate_key(&before.keys[1].id, Micros::from_secs(9), &secret(), at(1)).expect("keys");
        for ended in ends(&before, Some(&after), at(1)) {
            assert_eq!(EndedKey::parse(&ended.text()), Some(ended.clone()));
            assert!(known.add(ended.clone()) && !known.add(ended));
        }
        let mut older = before.clone();
        known.apply(&mut older);
        let states = |now| older.keys.iter().map(|key| key.state(now)).collect::<Vec<_>>();
        assert_eq!(states(at(9)), [Revoked, Active, Active]);
        assert_eq!(states(at(10)), [Revoked, Expired, Active]);
        known.apply(&mut after);
        assert_eq!(
            after.keys[..3],
            older
                .keys
                .iter()
                .zip(&after.keys)
                .map(|(older, after)| ApiKey {
                    replaced_by: after.replaced_by.clone(),
                    ..older.clone()
                })
                .collect::<Vec<_>>()
        );
        let all: Vec<_> = known.iter().cloned().collect();
        known.forget(&all[..1]);
        assert_eq!((known.len, known.iter().count()), (1, 1));
        known.forget(&all);
        assert_eq!((known.len, known.by_digest.len()), (0, 0));
        assert_eq!(EndedKey::parse("{}"), None);
    }

    #[test]
    fn no_project_has_more_than_half_and_an_eighth_is_for_those_of_all_projects() {
        let (shop, other) = (shop(1), "other".parse::<ProjectId>().expect("an id"));
        let mut known = EndedKeys::default();
        let mut fill = |project: &ProjectId, count: usize| {
            for number in 0..count {
                let ended = EndedKey::revoked(project, &shop.keys[0], at(known.len as u64));
                let digest = format!("{project}{number}");
                assert!(known.add(EndedKey { digest, ..ended }));
            }
            let admits = |project, scope| known.admits(project, 1, scope);
            [&shop.id, &other].map(|project| {
                [CallerScope::SomeProjects, CallerScope::AllProjects]
                    .map(|scope| admits(project, scope))
            })
        };
        assert_eq!(fill(&shop.id, MAX_ENDED / 2 - 1), [[true; 2]; 2]);
        assert_eq!(fill(&"a".parse().expect("an id"), 1), [[true; 2]; 2]);
        let mut more = |project: &str, count| fill(&project.parse().expect("an id"), count);
        assert_eq!(more("b", MAX_ENDED * 3 / 8 - 1), [[true; 2]; 2]);
        assert_eq!(more("c", 1), [[false, true]; 2]);
        assert_eq!(more("d", MAX_ENDED / 8), [[false; 2]; 2]);
    }
}
