//! API keys of projects.

use std::collections::HashMap;
use std::sync::Arc;

use super::change::{Made, PlannedChange};
use super::{ProjectAdministrator, ProjectCall, ProjectError, named};
use crate::clock::{Deadline, Micros, Timestamp};
use crate::projects::registry::Change;
use crate::projects::{ApiKey, ApiKeyError, ApiKeySecret, Environment, NewKey, ProjectId};

/// A key that was created.
#[derive(Debug)]
pub struct CreatedKey {
    /// As stored.
    pub key: ApiKey,
    /// The secret. `None`: the key was created under the request id before.
    pub secret: Option<Arc<ApiKeySecret>>,
}

/// A key that replaces another one.
#[derive(Debug)]
pub struct RotatedKey {
    /// The new one.
    pub created: CreatedKey,
    /// The replaced one.
    pub previous: ApiKey,
}

impl ProjectAdministrator {
    /// Creates a key.
    ///
    /// # Errors
    ///
    /// [`ProjectError`].
    pub async fn create_key(
        &self,
        call: &ProjectCall,
        id: &ProjectId,
        key: NewKey,
    ) -> Result<CreatedKey, ProjectError> {
        self.check_keys_are_read()?;
        let secret = generate(&key.environment)?;
        let ends = key.expires_at.map_or(0, Timestamp::as_micros).to_string();
        let environment = key.environment.as_str().to_owned();
        let fields = vec![id.to_string(), key.display_name.clone(), environment, ends];
        let planned = PlannedChange {
            answer: secret.id().to_owned(),
            fields,
            ..PlannedChange::of_target(id, secret.id(), format!("create API key {}", secret.id()))
        };
        let (made, now) = (Arc::clone(&secret), self.now());
        let made = self.change(call, planned, move |state| {
            let state = named(state)?;
            let mut project = state.project.clone();
            let result = project.create_key(key.clone(), &made, now)?;
            Ok(Change { after: Some((project, state.rules.clone())), revision: None, result })
        });
        Ok(match made.await? {
            Made::Now(made) => CreatedKey { key: made.result, secret: Some(secret) },
            Made::Before(key) => CreatedKey { key: self.key(id, &key)?, secret: None },
        })
    }

    /// Replaces a key by a new one. The replaced one stays valid for `grace`.
    ///
    /// # Errors
    ///
    /// [`ProjectError`].
    pub async fn rotate_key(
        &self,
        call: &ProjectCall,
        id: &ProjectId,
        key: &str,
        grace: Micros,
    ) -> Result<RotatedKey, ProjectError> {
        let state = self.project(id)?;
        named(Some(&state))?;
        let before = state.project.keys.iter().find(|one| one.id == key);
        let environment = before.map(|key| key.environment.parse::<Environment>()).transpose()?;
        let secret = generate(&environment.unwrap_or_default())?;
        let grace_us = grace.as_micros();
        let planned = PlannedChange {
            answer: format!("{} {key}", secret.id()),
            fields: vec![id.to_string(), key.to_owned(), grace_us.to_string()],
            ..PlannedChange::of_target(id, key, format!("replace API key by {}", secret.id()))
        };
        let (made, now, replaced) = (Arc::clone(&secret), self.now(), key.to_owned());
        let made = self.change(call, planned, move |state| {
            let state = named(state)?;
            let mut project = state.project.clone();
            let result = project.rotate_key(&replaced, grace, &made, now)?;
            Ok(Change { after: Some((project, state.rules.clone())), revision: None, result })
        });
        match made.await? {
            Made::Now(made) => {
                let (key, previous) = made.result;
                Ok(RotatedKey { created: CreatedKey { key, secret: Some(secret) }, previous })
            }
            Made::Before(answer) => {
                let (new, previous) = answer.split_once(' ').unwrap_or_default();
                let created = CreatedKey { key: self.key(id, new)?, secret: None };
                Ok(RotatedKey { created, previous: self.key(id, previous)? })
            }
        }
    }

    /// Revokes a key, also while catalogues conflict. Does nothing if it has ended already.
    ///
    /// # Errors
    ///
    /// [`ProjectError`].
    pub async fn revoke_key(
        &self,
        call: &ProjectCall,
        id: &ProjectId,
        key: &str,
    ) -> Result<ApiKey, ProjectError> {
        let planned = PlannedChange::of_target(id, key, "revoke API key".to_owned());
        let (now, key_id) = (self.now(), key.to_owned());
        let made = self.change(call, planned, move |state| {
            let state = named(state)?;
            let mut project = state.project.clone();
            let result = project.revoke_key(&key_id, now)?.clone();
            Ok(Change { after: Some((project, state.rules.clone())), revision: None, result })
        });
        Ok(made.await?.now()?.result)
    }

    /// Returns when the keys of a project were last used, by their ids: the hour, or the time of creation
    /// if that is later.
    pub async fn last_uses(&self, id: &ProjectId, by: Deadline) -> HashMap<String, Timestamp> {
        let mut uses = self.usage.last_uses(id, by).await;
        for key in self.registry.project(id).iter().flat_map(|state| &state.project.keys) {
            uses.entry(key.id.clone()).and_modify(|used| *used = key.created_at.max(*used));
        }
        uses
    }

    /// Returns `true` unless `auth.api-keys` is `off`: then keys are ignored.
    pub fn reads_keys(&self) -> bool {
        self.administrator.shared.takes_api_keys
    }

    pub(super) fn check_keys_are_read(&self) -> Result<(), ProjectError> {
        if self.reads_keys() { Ok(()) } else { Err(ProjectError::KeysOff) }
    }

    pub(super) fn key(&self, id: &ProjectId, key: &str) -> Result<ApiKey, ProjectError> {
        let state = self.project(id)?;
        let found = state.project.keys.iter().find(|one| one.id == key);
        found.cloned().ok_or(ProjectError::Key(ApiKeyError::NotFound))
    }
}

pub(super) fn generate(environment: &Environment) -> Result<Arc<ApiKeySecret>, ProjectError> {
    let secret = ApiKeySecret::generate(environment).map_err(|_| ProjectError::NoRandomNumbers)?;
    Ok(Arc::new(secret))
}
