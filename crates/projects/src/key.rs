//! The API keys of a project: created, rotated, revoked, expired.

use std::collections::BTreeMap;
use std::fmt;

use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use rlaas_auth::ApiKeyText;
use rlaas_core::clock::{Micros, Timestamp};
use rlaas_core::rules::Request;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use thiserror::Error;

use super::{ApiKeySecret, Environment, InvalidProject, Project};

/// The SHA-256 of an API key. Never shown by `Debug`.
#[derive(Clone, Copy, Deserialize, PartialEq, Eq, Serialize)]
pub struct KeyDigest([u8; SHA256_OUTPUT_LEN]);

/// An API key as it is stored.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct ApiKey {
    /// First characters of the random part of the secret.
    pub id: String,
    /// Id of the first key of its line: the same after rotations.
    pub line: String,
    /// Name for people.
    pub display_name: String,
    /// Part of the secret's prefix.
    pub environment: String,
    /// Digest of the secret.
    pub digest: KeyDigest,
    /// Time of its creation.
    pub created_at: Timestamp,
    /// Time from which it is refused; `None`: never.
    pub expires_at: Option<Timestamp>,
    /// Time at which it was revoked.
    pub revoked_at: Option<Timestamp>,
    /// Id of the key that replaces it.
    pub replaced_by: Option<String>,
    /// What requests with it have as attributes, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
}

/// State of an API key at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiKeyState {
    /// It is accepted.
    Active,
    /// It has expired.
    Expired,
    /// It was revoked.
    Revoked,
}

/// Properties of a new key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewKey {
    /// Name for people.
    pub display_name: String,
    /// Part of the secret's prefix.
    pub environment: Environment,
    /// Time from which it is refused; `None`: never.
    pub expires_at: Option<Timestamp>,
    /// What requests with it have as attributes, by name.
    pub attributes: BTreeMap<String, String>,
}

/// The reason why the keys of a project cannot be changed as requested.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ApiKeyError {
    /// There is no key with this id.
    #[error("no such API key")]
    NotFound,
    /// The key is revoked, expired or replaced already.
    #[error("the API key is revoked, expired or replaced already")]
    Ended,
    /// The project has as many keys as it may have.
    #[error("a project must have at most {} active API keys", Project::MAX_KEYS)]
    TooMany,
    /// Another key of the project has this id: generate another one.
    #[error("the id of the API key is taken")]
    IdTaken,
    /// A field is not valid.
    #[error(transparent)]
    Invalid(#[from] InvalidProject),
}

impl KeyDigest {
    /// Computes the digest of a key.
    pub fn from_key(key: &ApiKeyText<'_>) -> Self {
        let mut bytes = [0; SHA256_OUTPUT_LEN];
        bytes.copy_from_slice(digest(&SHA256, key.as_str().as_bytes()).as_ref());
        Self(bytes)
    }

    /// Returns the first 16 bytes in hexadecimal digits: they name the key.
    pub fn short(&self) -> String {
        let number = self.0.iter().take(16).fold(0_u128, |all, byte| all << 8 | u128::from(*byte));
        format!("{number:032x}")
    }

    /// Returns `true` if this is the digest of `key`. Takes the same time for every key.
    pub fn matches(&self, key: &ApiKeyText<'_>) -> bool {
        self.0.ct_eq(&Self::from_key(key).0).into()
    }
}

impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl ApiKey {
    /// Most bytes of the value of an attribute.
    pub const MAX_ATTRIBUTE_VALUE: usize = 256;
    /// Time for which a key that has ended is still listed.
    const LISTED_AFTER_END: Micros = Micros::from_secs(40 * 86_400);

    /// Returns the state at `now`.
    pub fn state(&self, now: Timestamp) -> ApiKeyState {
        if self.revoked_at.is_some() {
            ApiKeyState::Revoked
        } else if self.expires_at.is_some_and(|end| end <= now) {
            ApiKeyState::Expired
        } else {
            ApiKeyState::Active
        }
    }

    /// Returns `true` if the key is still listed at `now`.
    pub fn is_listed(&self, now: Timestamp) -> bool {
        self.end().is_none_or(|end| end > now || now.since(end) < Self::LISTED_AFTER_END)
    }

    /// Returns the time at which the key has ended, or will.
    pub fn end(&self) -> Option<Timestamp> {
        self.revoked_at.into_iter().chain(self.expires_at).min()
    }

    fn new(secret: &ApiKeySecret, key: NewKey, now: Timestamp) -> Self {
        Self {
            id: secret.id().to_owned(),
            line: secret.id().to_owned(),
            display_name: key.display_name,
            environment: key.environment.as_str().to_owned(),
            digest: secret.digest(),
            created_at: now,
            expires_at: key.expires_at,
            revoked_at: None,
            replaced_by: None,
            attributes: key.attributes,
        }
    }
}

impl Project {
    /// Most active keys, without those that were replaced and live out their grace.
    pub const MAX_KEYS: usize = 10;
    /// Most keys that are listed after their end.
    pub const MAX_ENDED_KEYS: usize = 100;
    /// Most bytes of the attributes of all keys, in JSON: the end of a key must always fit beside them.
    pub const MAX_ATTRIBUTES_LEN: usize = 64 * 1024;
    /// Longest time for which a replaced key stays valid.
    pub const MAX_GRACE: Micros = Micros::from_secs(30 * 86_400);

    /// Adds a key. Forgets those that ended long ago.
    ///
    /// # Errors
    ///
    /// [`InvalidProject::ExpiresAt`], [`InvalidProject::Attributes`], [`ApiKeyError::TooMany`],
    /// [`ApiKeyError::IdTaken`]. The project must then not be used.
    pub fn create_key(
        &mut self,
        key: NewKey,
        secret: &ApiKeySecret,
        now: Timestamp,
    ) -> Result<ApiKey, ApiKeyError> {
        if key.expires_at.is_some_and(|end| end <= now) {
            return Err(InvalidProject::ExpiresAt.into());
        }
        self.forget_ended_keys(now);
        let is_counted =
            |key: &&ApiKey| key.state(now) == ApiKeyState::Active && key.replaced_by.is_none();
        if self.keys.iter().filter(is_counted).count() >= Self::MAX_KEYS {
            return Err(ApiKeyError::TooMany);
        }
        self.check_id(secret)?;
        let key = ApiKey::new(secret, key, now);
        self.keys.push(key.clone());
        self.check_attributes()?;
        Ok(key)
    }

    /// Replaces a key by a new one of the same line, and returns the new one and the replaced one,
    /// which stays valid for `grace`, but not beyond its own end.
    ///
    /// # Errors
    ///
    /// [`InvalidProject::Grace`], [`ApiKeyError::NotFound`], [`ApiKeyError::Ended`],
    /// [`ApiKeyError::IdTaken`].
    pub fn rotate_key(
        &mut self,
        id: &str,
        grace: Micros,
        secret: &ApiKeySecret,
        now: Timestamp,
    ) -> Result<(ApiKey, ApiKey), ApiKeyError> {
        if grace > Self::MAX_GRACE {
            return Err(InvalidProject::Grace.into());
        }
        self.check_id(secret)?;
        self.forget_ended_keys(now);
        let position = self.position(id)?;
        let previous = &mut self.keys[position];
        if previous.state(now) != ApiKeyState::Active || previous.replaced_by.is_some() {
            return Err(ApiKeyError::Ended);
        }
        let digest = secret.digest();
        let new_id = secret.id().to_owned();
        let new = ApiKey { id: new_id.clone(), digest, created_at: now, ..previous.clone() };
        previous.replaced_by = Some(new_id);
        let end = now + grace;
        previous.expires_at = Some(previous.expires_at.map_or(end, |own| own.min(end)));
        let previous = previous.clone();
        self.keys.push(new.clone());
        self.check_attributes()?;
        Ok((new, previous))
    }

    /// Replaces the attributes of a key.
    ///
    /// # Errors
    ///
    /// [`InvalidProject::Attributes`], [`ApiKeyError::NotFound`], [`ApiKeyError::Ended`]. The project must then not be
    /// used.
    pub fn set_attributes(
        &mut self,
        id: &str,
        attributes: BTreeMap<String, String>,
        now: Timestamp,
    ) -> Result<ApiKey, ApiKeyError> {
        let position = self.position(id)?;
        let key = &mut self.keys[position];
        if key.state(now) != ApiKeyState::Active {
            return Err(ApiKeyError::Ended);
        }
        key.attributes = attributes;
        let key = key.clone();
        self.check_attributes()?;
        Ok(key)
    }

    /// Revokes a key. Does nothing if it has ended already.
    ///
    /// # Errors
    ///
    /// [`ApiKeyError::NotFound`].
    pub fn revoke_key(&mut self, id: &str, now: Timestamp) -> Result<&ApiKey, ApiKeyError> {
        let position = self.position(id)?;
        let key = &mut self.keys[position];
        if key.state(now) == ApiKeyState::Active {
            key.revoked_at = Some(now);
        }
        Ok(key)
    }

    /// Returns the key of a text, if it is one of this project and active at `now`. Takes the same
    /// time whether the digest matches or not.
    pub fn find_key(&self, text: &ApiKeyText<'_>, now: Timestamp) -> Option<&ApiKey> {
        let key = self.keys.iter().find(|key| key.id == text.id())?;
        let is_same = key.digest.matches(text);
        (is_same && key.state(now) == ApiKeyState::Active).then_some(key)
    }

    /// Forgets the keys that ended long ago, the first ones that ended if there are too many, and the attributes of
    /// all that have ended.
    fn forget_ended_keys(&mut self, now: Timestamp) {
        self.keys.retain(|key| key.is_listed(now));
        let has_ended = |key: &&mut ApiKey| key.state(now) != ApiKeyState::Active;
        self.keys.iter_mut().filter(has_ended).for_each(|key| key.attributes.clear());
        let end = |key: &ApiKey| key.end().filter(|_| key.state(now) != ApiKeyState::Active);
        let mut ends: Vec<_> = self.keys.iter().filter_map(end).collect();
        if let Some(excess) = ends.len().checked_sub(Self::MAX_ENDED_KEYS + 1) {
            ends.sort_unstable();
            let last = ends[excess];
            self.keys.retain(|key| end(key).is_none_or(|end| end > last));
        }
    }

    fn check_attributes(&self) -> Result<(), InvalidProject> {
        let is_valid = |(name, value): (&String, &String)| {
            (1..=Request::MAX_ATTRIBUTE_NAME).contains(&name.len())
                && value.len() <= ApiKey::MAX_ATTRIBUTE_VALUE
        };
        let mut len = 0;
        for ApiKey { attributes, .. } in self.keys.iter().filter(|key| !key.attributes.is_empty()) {
            len += serde_json::to_string(attributes).map_or(usize::MAX, |text| text.len());
            let are_few = attributes.len() <= Request::MAX_KEY_ATTRIBUTES;
            if !are_few || !attributes.iter().all(is_valid) || len > Self::MAX_ATTRIBUTES_LEN {
                return Err(InvalidProject::Attributes);
            }
        }
        Ok(())
    }

    fn position(&self, id: &str) -> Result<usize, ApiKeyError> {
        self.keys.iter().position(|key| key.id == id).ok_or(ApiKeyError::NotFound)
    }

    fn check_id(&self, secret: &ApiKeySecret) -> Result<(), ApiKeyError> {
        let is_taken = self.keys.iter().any(|key| key.id == secret.id());
        if is_taken { Err(ApiKeyError::IdTaken) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Micros = Micros::from_secs(86_400);

    fn at(days: u64) -> Timestamp {
        Timestamp::from_millis(1_700_000_000_000) + Micros::from_secs(days * 86_400)
    }

    fn project() -> Project {
        Project::new("shop".parse().expect("an id"), "Shop", at(0)).expect("a project")
    }

    fn secret() -> ApiKeySecret {
        ApiKeySecret::generate(&Environment::default()).expect("random numbers")
    }

    fn text(secret: &ApiKeySecret) -> ApiKeyText<'_> {
        ApiKeyText::parse(secret.expose()).expect("a key")
    }

    #[test]
    fn key_is_found_by_its_text_until_it_ends() {
        let (mut project, secret, other) = (project(), secret(), secret());
        let ends = NewKey { expires_at: Some(at(2)), ..NewKey::default() };
        let id = project.create_key(ends, &secret, at(0)).expect("a key").id;
        assert_eq!(project.find_key(&text(&secret), at(1)).map(|key| &*key.id), Some(&*id));
        assert_eq!(project.find_key(&text(&other), at(1)), None);
        assert_eq!(project.find_key(&text(&secret), at(2)), None);
        assert_eq!(project.keys[0].state(at(2)), ApiKeyState::Expired);
    }

    #[test]
    fn digest_alone_is_stored() {
        let (mut project, secret) = (project(), secret());
        project.create_key(NewKey::default(), &secret, at(0)).expect("a key");
        let stored = serde_json::to_string(&project).expect("JSON");
        assert!(!stored.contains(&secret.expose()[11..]), "{stored}");
        assert!(!format!("{project:?}").contains(&secret.expose()[19..]));
        let read: Project = serde_json::from_str(&stored).expect("a project");
        assert_eq!(read, project);
    }

    #[test]
    fn replaced_key_lives_out_its_grace_and_its_line_goes_on() {
        let (mut project, first, second) = (project(), secret(), secret());
        project.create_key(NewKey::default(), &first, at(0)).expect("a key");
        let (new, previous) = project.rotate_key(first.id(), DAY, &second, at(1)).expect("keys");
        assert_eq!((&*new.line, &*previous.line), (first.id(), first.id()));
        assert_eq!(previous.replaced_by.as_deref(), Some(second.id()));
        for (time, is_active) in [(1, true), (2, false)] {
            assert_eq!(project.find_key(&text(&first), at(time)).is_some(), is_active, "{time}");
            assert!(project.find_key(&text(&second), at(time)).is_some());
        }
        let again = project.rotate_key(first.id(), DAY, &secret(), at(1));
        assert_eq!(again.err(), Some(ApiKeyError::Ended));
        let long = Project::MAX_GRACE + Micros::from_micros(1);
        let again = project.rotate_key(second.id(), long, &secret(), at(1));
        assert_eq!(again.err(), Some(InvalidProject::Grace.into()));
    }

    #[test]
    fn grace_is_not_longer_than_the_key() {
        let (mut project, first, second) = (project(), secret(), secret());
        let ends = NewKey { expires_at: Some(at(1)), ..NewKey::default() };
        project.create_key(ends, &first, at(0)).expect("a key");
        let (new, previous) =
            project.rotate_key(first.id(), Project::MAX_GRACE, &second, at(0)).expect("keys");
        assert_eq!((new.expires_at, previous.expires_at), (Some(at(1)), Some(at(1))));
    }

    #[test]
    fn revoked_key_stays_revoked() {
        let (mut project, secret) = (project(), secret());
        project.create_key(NewKey::default(), &secret, at(0)).expect("a key");
        for time in [1, 3] {
            let revoked = project.revoke_key(secret.id(), at(time)).expect("a key");
            assert_eq!(revoked.revoked_at, Some(at(1)));
        }
        assert_eq!(project.find_key(&text(&secret), at(1)), None);
        let rotated = project.rotate_key(secret.id(), DAY, &self::secret(), at(2));
        assert_eq!(rotated.err(), Some(ApiKeyError::Ended));
        assert_eq!(project.revoke_key("other", at(2)).err(), Some(ApiKeyError::NotFound));
    }

    #[test]
    fn active_keys_are_bounded_and_ended_ones_are_forgotten() {
        let mut project = project();
        let secrets: Vec<_> = (0..Project::MAX_KEYS).map(|_| secret()).collect();
        for secret in &secrets {
            project.create_key(NewKey::default(), secret, at(0)).expect("a key");
        }
        let more = project.create_key(NewKey::default(), &secret(), at(0));
        assert_eq!(more.err(), Some(ApiKeyError::TooMany));
        // A replaced key does not count.
        project.rotate_key(secrets[0].id(), DAY, &secret(), at(0)).expect("keys");
        project.revoke_key(secrets[1].id(), at(1)).expect("a key");
        project.create_key(NewKey::default(), &secret(), at(1)).expect("a key");
        assert_eq!(project.keys.len(), Project::MAX_KEYS + 2);
        project.revoke_key(secrets[2].id(), at(41)).expect("a key");
        project.create_key(NewKey::default(), &secret(), at(41)).expect("a key");
        let ids: Vec<&str> = project.keys.iter().map(|key| &*key.id).collect();
        assert!(!ids.contains(&secrets[0].id()) && !ids.contains(&secrets[1].id()));
        let mut newest = ids[ids.len() - 1].to_owned();
        for second in 0..300 {
            let (next, now) = (secret(), at(42) + Micros::from_secs(second));
            project.rotate_key(&newest, Micros::ZERO, &next, now).expect("keys");
            newest = next.id().to_owned();
        }
        assert_eq!(project.keys.len(), Project::MAX_KEYS + Project::MAX_ENDED_KEYS + 1);
    }

    #[test]
    fn attributes_are_bounded_and_end_with_their_key() {
        let (mut project, first, second) = (project(), secret(), secret());
        let attributes = |value: &str| -> BTreeMap<String, String> {
            (0..16).map(|number| (format!("{number:0>64}"), value.repeat(256))).collect()
        };
        let new = |value| NewKey { attributes: attributes(value), ..NewKey::default() };
        project.create_key(new("x"), &first, at(0)).expect("a key");
        // As JSON each of these bytes takes six.
        let long = project.clone().create_key(new("\u{1}"), &second, at(0)).map(|_| ());
        assert_eq!(long, Ok(()));
        let mut full = project.clone();
        full.set_attributes(first.id(), attributes("\u{1}"), at(0)).expect("a key");
        full.create_key(new("\u{1}"), &second, at(0)).expect("a key");
        let more = full.clone().rotate_key(first.id(), DAY, &secret(), at(0));
        assert_eq!(more.err(), Some(InvalidProject::Attributes.into()));
        full.revoke_key(first.id(), at(0)).expect("a key");
        full.rotate_key(second.id(), DAY, &secret(), at(1)).expect("space for the attributes");
        let ended = full.clone().set_attributes(first.id(), BTreeMap::new(), at(1));
        assert_eq!(ended.err(), Some(ApiKeyError::Ended));
        let stored = serde_json::to_string(&full).expect("JSON");
        assert_eq!(serde_json::from_str::<Project>(&stored).expect("a project"), full);
    }

    #[test]
    fn id_is_unique_and_the_end_is_in_the_future() {
        let (mut project, secret) = (project(), secret());
        project.create_key(NewKey::default(), &secret, at(0)).expect("a key");
        let again = project.create_key(NewKey::default(), &secret, at(0));
        assert_eq!(again.err(), Some(ApiKeyError::IdTaken));
        let past = NewKey { expires_at: Some(at(0)), ..NewKey::default() };
        let past = project.create_key(past, &self::secret(), at(0));
        assert_eq!(past.err(), Some(InvalidProject::ExpiresAt.into()));
    }
}
