//! The API keys of all projects in force: who holds the key of a call.
//!
//! A key is found by its id and then compared by digest in constant time; the next time by a keyed
//! hash of 128 bits, which costs a fraction of it. No failure locks anything: a valid key is accepted
//! whatever other callers tried before. An edit of a project costs what its own keys cost, and no
//! look-up sees a key that stays missing in between. This module does not know where keys are stored
//! or when they change.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use rlaas_auth::{ApiKeyText, KeyHolder, KeyRefusal, KnownApiKeys, ProjectId};
use rlaas_core::clock::{Clock, Micros, Timestamp};
use rlaas_core::rules::Attributes;
use rlaas_telemetry::sharded::RequestCounters;
use tokio::sync::watch;

use super::{ApiKey, ApiKeyState, KeyDigest};

/// Number of locks, so that workers which look up different keys do not meet.
const SHARDS: usize = 64;
/// Precision of the last use.
const HOUR: Micros = Micros::from_secs(3_600);

/// All API keys in force. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Keyring(Arc<SharedKeys>);

/// What counts the requests with a key.
#[derive(Clone, Debug)]
pub(crate) struct KeyRequests {
    pub(crate) project: ProjectId,
    pub(crate) key: Box<str>,
    pub(crate) counters: Arc<RequestCounters>,
}

#[derive(Debug)]
struct SharedKeys {
    shards: [RwLock<Shard>; SHARDS],
    /// Secret of the hashes of keys that were found.
    tags: RandomState,
    /// The ids of the keys of each project. Its lock serializes changes.
    projects: Mutex<HashMap<ProjectId, Vec<Box<str>>>>,
    /// Counts the age of the keys: it does not follow wall time, which can be set.
    clock: Clock,
    /// Time by `clock` as of which the keys are known to be in force, in microseconds; 0 is never.
    confirmed_us: AtomicU64,
    /// Whether the store may not know the catalogue that the keys are of.
    is_barred: AtomicBool,
    /// Whether the store has no catalogue, and nobody has said yet that it has lost one.
    is_awaited: AtomicBool,
    /// Told of each change of whether a caller may be sent here.
    changes: watch::Sender<()>,
}

/// Keys by id. Keys of different projects may have the same id.
type Shard = HashMap<Box<str>, Vec<HeldKey>>;

#[derive(Debug)]
struct HeldKey {
    holder: Arc<KeyHolder>,
    digest: KeyDigest,
    /// Hash of the key by [`SharedKeys::tags`], once a call has shown it.
    tag: OnceLock<u128>,
    expires_at: Option<Timestamp>,
    is_revoked: bool,
    /// Hours since the Unix epoch; 0 is never.
    last_used_hour: AtomicU64,
    /// The last use that was reported.
    reported_hour: AtomicU64,
}

/// The last use of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUse {
    /// The project that the key belongs to.
    pub project: ProjectId,
    /// Id of the key.
    pub key: String,
    /// Hours since the Unix epoch.
    pub hour: u64,
}

impl KeyUse {
    /// Returns the time at which an hour begins.
    pub fn time(hour: u64) -> Timestamp {
        Timestamp::from_micros(hour.saturating_mul(HOUR.as_micros()))
    }
}

impl Keyring {
    /// Replaces the keys of a project, from the next look-up on. No keys remove the project.
    pub fn replace(&self, project: &ProjectId, keys: &[ApiKey]) {
        let mut projects = self.0.lock_projects();
        for key in keys {
            let mut shard = self.0.write(&key.id);
            let of_id = shard.entry(key.id.as_str().into()).or_default();
            match of_id.iter_mut().find(|held| held.holder.project == *project) {
                Some(held) => held.update(key),
                None => of_id.push(HeldKey::new(project.clone(), key, Arc::default())),
            }
        }
        let ids: Vec<Box<str>> = keys.iter().map(|key| key.id.as_str().into()).collect();
        let before = projects.get(project).into_iter().flatten();
        for id in before.filter(|id| !ids.contains(id)) {
            let mut shard = self.0.write(id);
            if let Some(of_id) = shard.get_mut(id) {
                of_id.retain(|held| held.holder.project != *project);
                if of_id.is_empty() {
                    shard.remove(id);
                }
            }
        }
        if ids.is_empty() {
            projects.remove(project);
        } else {
            projects.insert(project.clone(), ids);
        }
    }

    /// Records that the keys here are those in force now. Before the first call each key of the right
    /// form is [`KeyRefusal::Unavailable`].
    pub fn confirm(&self) {
        self.confirm_as_of(Micros::ZERO);
    }

    /// Records that the keys here were those in force this long ago.
    pub fn confirm_as_of(&self, age: Micros) {
        let confirmed_us = self.0.clock.now().as_micros().saturating_sub(age.as_micros());
        if self.0.confirmed_us.fetch_max(confirmed_us.max(1), Ordering::Relaxed) == 0 {
            self.0.changes.send_replace(());
        }
    }

    /// Sets whether the keys are of a catalogue that the store may not know. Then each key is
    /// [`KeyRefusal::Unavailable`] unless it is known to have ended.
    pub fn set_barred(&self, is_barred: bool) {
        if self.0.is_barred.swap(is_barred, Ordering::Relaxed) != is_barred {
            self.0.changes.send_replace(());
        }
    }

    /// Sets whether the store has no catalogue: then the keys are known soon, to be none.
    pub fn set_awaited(&self, is_awaited: bool) {
        if self.0.is_awaited.swap(is_awaited, Ordering::Relaxed) != is_awaited {
            self.0.changes.send_replace(());
        }
    }

    fn confirmed_us(&self) -> u64 {
        self.0.confirmed_us.load(Ordering::Relaxed)
    }

    /// Returns the counters of the keys with which this instance has had requests.
    pub(crate) fn requests(&self) -> Vec<KeyRequests> {
        self.of_each(|id, held| {
            let counters = Arc::clone(held.holder.requests.get()?);
            let project = held.holder.project.clone();
            Some(KeyRequests { project, key: id.into(), counters })
        })
    }

    /// Returns the last uses of the keys of a project by this instance.
    pub fn uses(&self, project: &ProjectId) -> Vec<KeyUse> {
        let ids = self.0.lock_projects().get(project).cloned().unwrap_or_default();
        let of_id = |id: &str| {
            let shard = self.0.shard(id).read().unwrap_or_else(PoisonError::into_inner);
            let held = shard.get(id)?.iter().find(|held| held.holder.project == *project)?;
            held.last_use(id)
        };
        ids.iter().map(AsRef::as_ref).filter_map(of_id).collect()
    }

    /// Returns the last uses by this instance that were not reported.
    pub fn unreported_uses(&self) -> Vec<KeyUse> {
        self.of_each(|id, held| {
            let last = held.last_use(id)?;
            (last.hour > held.reported_hour.load(Ordering::Relaxed)).then_some(last)
        })
    }

    /// Returns what `read` finds of each key, given its id.
    fn of_each<T>(&self, read: impl Fn(&str, &HeldKey) -> Option<T>) -> Vec<T> {
        let mut found = Vec::new();
        for shard in &self.0.shards {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            for (id, of_id) in shard.iter() {
                found.extend(of_id.iter().filter_map(|held| read(id, held)));
            }
        }
        found
    }

    /// Records that a use was reported.
    pub fn reported(&self, reported: &KeyUse) {
        let shard = self.0.shard(&reported.key).read();
        let shard = shard.unwrap_or_else(PoisonError::into_inner);
        let of_id = shard.get(reported.key.as_str()).into_iter().flatten();
        for held in of_id.filter(|held| held.holder.project == reported.project) {
            held.reported_hour.fetch_max(reported.hour, Ordering::Relaxed);
        }
    }

    /// Records that all reports were lost.
    pub fn forget_reports(&self) {
        for shard in &self.0.shards {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            let held = shard.values().flatten();
            held.for_each(|held| held.reported_hour.store(0, Ordering::Relaxed));
        }
    }
}

impl KnownApiKeys for Keyring {
    fn find(&self, text: &str, now: Timestamp) -> Result<Arc<KeyHolder>, KeyRefusal> {
        let text = ApiKeyText::parse(text)?;
        if !self.is_known() {
            return Err(KeyRefusal::Unavailable);
        }
        let shard = self.0.shard(text.id()).read().unwrap_or_else(PoisonError::into_inner);
        let of_id = shard.get(text.id()).map_or(&[][..], Vec::as_slice);
        let tag = self.0.tag_of(&text);
        let held = of_id.iter().find(|held| held.is_of(&text, tag));
        // Others may know that the key was made, or has ended.
        let is_barred = self.is_barred();
        let unknown = if is_barred { KeyRefusal::Unavailable } else { KeyRefusal::Unknown };
        let held = held.ok_or(unknown)?;
        match held.state(now) {
            ApiKeyState::Active if is_barred => return Err(KeyRefusal::Unavailable),
            ApiKeyState::Active => {}
            ApiKeyState::Expired => return Err(KeyRefusal::Expired),
            ApiKeyState::Revoked => return Err(KeyRefusal::Revoked),
        }
        let hour = now.as_micros() / HOUR.as_micros();
        // Read first: a write for each call would move the cache line between the workers.
        if held.last_used_hour.load(Ordering::Relaxed) < hour {
            held.last_used_hour.fetch_max(hour, Ordering::Relaxed);
        }
        Ok(Arc::clone(&held.holder))
    }

    fn is_ready(&self) -> bool {
        !self.is_barred() && (self.is_known() || self.0.is_awaited.load(Ordering::Relaxed))
    }

    fn changes(&self) -> watch::Receiver<()> {
        self.0.changes.subscribe()
    }

    fn is_barred(&self) -> bool {
        self.0.is_barred.load(Ordering::Relaxed)
    }

    fn age(&self) -> Option<Micros> {
        let confirmed_at = Timestamp::from_micros(self.confirmed_us());
        self.is_known().then(|| self.0.clock.now().since(confirmed_at))
    }

    fn is_known(&self) -> bool {
        self.confirmed_us() > 0
    }
}

impl Default for SharedKeys {
    fn default() -> Self {
        let shards = std::array::from_fn(|_| RwLock::default());
        Self {
            shards,
            tags: RandomState::new(),
            projects: Mutex::default(),
            clock: Clock::default(),
            confirmed_us: AtomicU64::new(0),
            is_barred: AtomicBool::new(false),
            is_awaited: AtomicBool::new(false),
            changes: watch::Sender::default(),
        }
    }
}

impl SharedKeys {
    /// Returns the shard of an id. Its characters are random.
    fn shard(&self, id: &str) -> &RwLock<Shard> {
        let sum = id.bytes().fold(0, |sum, byte| 31 * sum % 65_521 + usize::from(byte));
        &self.shards[sum % SHARDS]
    }

    fn tag_of(&self, text: &ApiKeyText<'_>) -> u128 {
        let half = |number: u8| u128::from(self.tags.hash_one((number, text.as_str())));
        let (high, low) = (half(0), half(1));
        high << 64 | low
    }

    fn write(&self, id: &str) -> std::sync::RwLockWriteGuard<'_, Shard> {
        self.shard(id).write().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_projects(&self) -> MutexGuard<'_, HashMap<ProjectId, Vec<Box<str>>>> {
        self.projects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldKey {
    fn new(
        project: ProjectId,
        key: &ApiKey,
        requests: Arc<OnceLock<Arc<RequestCounters>>>,
    ) -> Self {
        let name = |name: &String| format!("{}{name}", Attributes::OF_KEY);
        let attributes = key.attributes.iter().map(|(own, value)| (name(own), value.clone()));
        let attributes = attributes.collect();
        Self {
            holder: Arc::new(KeyHolder { project, line: key.line.clone(), attributes, requests }),
            digest: key.digest,
            tag: OnceLock::new(),
            expires_at: key.expires_at,
            is_revoked: key.revoked_at.is_some(),
            last_used_hour: AtomicU64::new(0),
            reported_hour: AtomicU64::new(0),
        }
    }

    /// Takes over what a key says now. Its last use and its requests stay.
    fn update(&mut self, key: &ApiKey) {
        let last_used_hour = std::mem::take(&mut self.last_used_hour);
        let reported_hour = std::mem::take(&mut self.reported_hour);
        let (project, requests) = (self.holder.project.clone(), Arc::clone(&self.holder.requests));
        *self = Self { last_used_hour, reported_hour, ..Self::new(project, key, requests) };
    }

    /// Returns `true` if this is the key with the text and its tag.
    fn is_of(&self, text: &ApiKeyText<'_>, tag: u128) -> bool {
        if self.tag.get() == Some(&tag) {
            return true;
        }
        let is_of = self.digest.matches(text);
        if is_of {
            let _is_known = self.tag.set(tag);
        }
        is_of
    }

    fn last_use(&self, id: &str) -> Option<KeyUse> {
        let hour = self.last_used_hour.load(Ordering::Relaxed);
        let (project, key) = (self.holder.project.clone(), id.to_owned());
        (hour > 0).then_some(KeyUse { project, key, hour })
    }

    fn state(&self, now: Timestamp) -> ApiKeyState {
        if self.is_revoked {
            return ApiKeyState::Revoked;
        }
        let has_expired = self.expires_at.is_some_and(|end| end <= now);
        if has_expired { ApiKeyState::Expired } else { ApiKeyState::Active }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rlaas_auth::MalformedApiKey;

    use super::*;
    use crate::{ApiKeySecret, Environment, NewKey, Project};

    const DAY: Micros = Micros::from_secs(86_400);
    const START: Timestamp = Timestamp::from_millis(1_700_000_000_000);

    fn project(id: &str) -> Project {
        Project::new(id.parse().expect("an id"), "", START).expect("a project")
    }

    fn secret() -> ApiKeySecret {
        ApiKeySecret::generate(&Environment::default()).expect("random numbers")
    }

    fn keyring() -> Keyring {
        let keyring = Keyring::default();
        keyring.confirm();
        keyring
    }

    fn project_of(keyring: &Keyring, secret: &ApiKeySecret) -> Result<String, KeyRefusal> {
        keyring.find(secret.expose(), START + HOUR).map(|holder| holder.project.to_string())
    }

    #[test]
    fn key_names_its_project_until_it_ends() {
        let (keyring, mut shop, first, second) = (keyring(), project("shop"), secret(), secret());
        let ends = NewKey { expires_at: Some(START + DAY), ..NewKey::default() };
        shop.create_key(ends, &first, START).expect("a key");
        keyring.replace(&shop.id, &shop.keys);
        assert_eq!(project_of(&keyring, &first), Ok("shop".to_owned()));
        assert_eq!(project_of(&keyring, &second), Err(KeyRefusal::Unknown));
        let expired = keyring.find(first.expose(), START + DAY);
        assert_eq!(expired.err(), Some(KeyRefusal::Expired));
        shop.revoke_key(first.id(), START).expect("a key");
        keyring.replace(&shop.id, &shop.keys);
        assert_eq!(project_of(&keyring, &first), Err(KeyRefusal::Revoked));
        keyring.replace(&shop.id, &[]);
        assert_eq!(project_of(&keyring, &first), Err(KeyRefusal::Unknown));
        assert!(keyring.0.lock_projects().is_empty());
        assert!(keyring.0.shards.iter().all(|shard| shard.read().expect("a shard").is_empty()));
    }

    #[test]
    fn barred_keys_are_unavailable_unless_they_have_ended() {
        let (keyring, mut shop, first, second) = (keyring(), project("shop"), secret(), secret());
        shop.create_key(NewKey::default(), &first, START).expect("a key");
        shop.create_key(NewKey::default(), &second, START).expect("a key");
        shop.revoke_key(second.id(), START).expect("a key");
        keyring.replace(&shop.id, &shop.keys);
        keyring.set_barred(true);
        for unknown in [&first, &secret()] {
            assert_eq!(project_of(&keyring, unknown), Err(KeyRefusal::Unavailable));
        }
        assert_eq!(project_of(&keyring, &second), Err(KeyRefusal::Revoked));
        keyring.set_barred(false);
        assert_eq!(project_of(&keyring, &first), Ok("shop".to_owned()));
    }

    #[test]
    fn rotation_keeps_the_line() {
        let (keyring, mut shop, first, second) = (keyring(), project("shop"), secret(), secret());
        shop.create_key(NewKey::default(), &first, START).expect("a key");
        shop.rotate_key(first.id(), DAY, &second, START).expect("keys");
        keyring.replace(&shop.id, &shop.keys);
        for secret in [&first, &second] {
            let holder = keyring.find(secret.expose(), START).expect("a holder");
            assert_eq!(holder.line, first.id());
        }
    }

    #[test]
    fn only_a_text_with_the_form_and_checksum_of_a_key_is_looked_up() {
        // Nothing can be looked up yet, which a text that is looked up would tell.
        let (keyring, secret) = (Keyring::default(), secret());
        assert_eq!(project_of(&keyring, &secret), Err(KeyRefusal::Unavailable));
        let text = secret.expose();
        let last = if text.ends_with('0') { "1" } else { "0" };
        let mistyped = text[..text.len() - 1].to_owned() + last;
        for (text, error) in [
            ("", MalformedApiKey::Form),
            ("sk_live_1", MalformedApiKey::Form),
            (&mistyped, MalformedApiKey::Checksum),
        ] {
            let refusal = keyring.find(text, START).err();
            assert_eq!(refusal, Some(KeyRefusal::Malformed(error)), "{text}");
        }
        keyring.confirm();
        assert_eq!(project_of(&keyring, &secret), Err(KeyRefusal::Unknown));
    }

    #[test]
    fn age_is_counted_from_the_newest_confirmation() {
        let keyring = Keyring::default();
        assert_eq!(keyring.age(), None);
        keyring.confirm_as_of(Micros::from_micros(u64::MAX));
        assert!(keyring.age().is_some_and(|age| age > Micros::from_secs(40 * 365 * 86_400)));
        for age in [HOUR, DAY] {
            keyring.confirm_as_of(age);
            let found = keyring.age().expect("an age");
            assert!((HOUR..HOUR + HOUR).contains(&found), "{found}");
        }
        keyring.confirm();
        assert!(keyring.age().is_some_and(|age| age < HOUR));
    }

    #[test]
    fn keys_with_the_same_id_are_told_apart() {
        let (keyring, first, second) = (keyring(), secret(), secret());
        let (mut shop, mut bank) = (project("shop"), project("bank"));
        shop.create_key(NewKey::default(), &first, START).expect("a key");
        bank.create_key(NewKey::default(), &second, START).expect("a key");
        // As if the random numbers had met: the digest is that of a key with another id.
        bank.keys[0].digest = second.digest();
        shop.keys[0].id = second.id().to_owned();
        keyring.replace(&shop.id, &shop.keys);
        keyring.replace(&bank.id, &bank.keys);
        assert_eq!(project_of(&keyring, &second), Ok("bank".to_owned()));
        keyring.replace(&shop.id, &[]);
        assert_eq!(project_of(&keyring, &second), Ok("bank".to_owned()));
    }

    #[test]
    fn last_use_is_known_to_the_hour_and_outlives_changes() {
        let (keyring, mut shop, secret) = (keyring(), project("shop"), secret());
        shop.create_key(NewKey::default(), &secret, START).expect("a key");
        keyring.replace(&shop.id, &shop.keys);
        assert_eq!(keyring.uses(&shop.id), []);
        let (late, early) = (START + DAY, START);
        for time in [late, early] {
            keyring.find(secret.expose(), time).expect("a holder");
        }
        keyring.replace(&shop.id, &shop.keys);
        let [last] = &keyring.uses(&shop.id)[..] else { panic!("one use") };
        let last_used = KeyUse::time(last.hour);
        assert!(last_used <= late && late.since(last_used) < HOUR, "{last_used:?}");
        assert_eq!((last.key.as_str(), &last.project), (secret.id(), &shop.id));
        assert_eq!(keyring.uses(&"bank".parse().expect("an id")), []);
        assert_eq!(keyring.unreported_uses(), std::slice::from_ref(last));
        keyring.reported(last);
        keyring.replace(&shop.id, &shop.keys);
        assert_eq!(keyring.unreported_uses(), []);
        keyring.forget_reports();
        assert_eq!(keyring.unreported_uses().len(), 1);
    }

    #[test]
    fn key_that_stays_is_found_while_its_project_changes() {
        let (keyring, mut shop, stays) = (keyring(), project("shop"), secret());
        shop.create_key(NewKey::default(), &stays, START).expect("a key");
        keyring.replace(&shop.id, &shop.keys);
        let with_another = {
            let mut shop = shop.clone();
            shop.create_key(NewKey::default(), &secret(), START).expect("a key");
            shop.keys
        };
        thread::scope(|scope| {
            let editor = scope.spawn(|| {
                for _ in 0..2_000 {
                    keyring.replace(&shop.id, &with_another);
                    keyring.replace(&shop.id, &shop.keys);
                }
            });
            while !editor.is_finished() {
                assert_eq!(project_of(&keyring, &stays), Ok("shop".to_owned()));
            }
        });
    }

    #[test]
    fn no_secret_is_shown() {
        let (keyring, mut shop, secret) = (keyring(), project("shop"), secret());
        shop.create_key(NewKey::default(), &secret, START).expect("a key");
        keyring.replace(&shop.id, &shop.keys);
        let shown = format!("{keyring:?} {:?}", keyring.find(secret.expose(), START));
        assert!(shown.contains(secret.id()), "{shown}");
        assert!(!shown.contains(&secret.expose()[.."rlaas_live_".len() + 9]), "{shown}");
    }
}
