//! API keys of projects.

use std::collections::BTreeMap;
use std::sync::Arc;

use rlaas_auth::ProjectId;
use rlaas_projects::registry::{Change, ProjectState};
use rlaas_projects::{
    ApiKey, ApiKeyError, ApiKeySecret, Environment, InvalidProject, NewKey, Project,
};
use rlaas_proto::values::micros;
use tonic::{Request, Response, Status};

use super::change::{Made, PlannedChange};
use super::{ADMIN, AdminCall, Projects, admitted, messages, named, proto, refusals};
use crate::caller;
use crate::lists::parsed;
use rlaas_core::clock::Micros;
use rlaas_proto::status::{invalid_field, with_reason};

/// Time that a replaced key stays valid unless the request says otherwise.
const DEFAULT_GRACE: Micros = Micros::from_secs(86_400);

impl Projects {
    /// Answers `CreateKey`.
    pub(super) async fn created_key(
        &self,
        request: &Request<proto::CreateKeyRequest>,
    ) -> Result<proto::CreateKeyResponse, Status> {
        let proto::CreateKeyRequest { project_id, key, request_id, reason } = request.get_ref();
        let call = AdminCall::new(request, "CreateKey", reason, request_id)?;
        let id = admitted(caller(request)?, project_id, ADMIN)?;
        let call = call.with_fingerprint(request.get_ref());
        let new = new_key(key.as_ref())?;
        self.check_keys_are_read()?;
        let secret = generate(&new.environment)?;
        let planned = PlannedChange {
            answer: secret.id().to_owned(),
            ..PlannedChange::new(&id, secret.id(), format!("create API key {}", secret.id()))
        };
        let (made, now) = (Arc::clone(&secret), self.clock.now());
        let made = self.change(&call, planned, move |state| {
            with_project(named(state)?, |project| project.create_key(new.clone(), &made, now))
        });
        let (key, secret) = match made.await? {
            Made::Applied(made) => (made.result, Some(secret)),
            Made::Replayed(key) => (self.stored_key(&id, &key)?, None),
        };
        Ok(proto::CreateKeyResponse {
            key: Some(self.key(&id, &key)),
            replayed: secret.is_none(),
            secret: secret.map(|secret| secret.expose().to_owned()).unwrap_or_default(),
        })
    }

    /// Answers `UpdateKey`.
    pub(super) async fn updated_key(
        &self,
        request: &Request<proto::UpdateKeyRequest>,
    ) -> Result<proto::UpdateKeyResponse, Status> {
        let proto::UpdateKeyRequest { project_id, key, update_mask, reason } = request.get_ref();
        let call = AdminCall::new(request, "UpdateKey", reason, "")?;
        let id = admitted(caller(request)?, project_id, ADMIN)?;
        let key = key.as_ref().ok_or_else(|| invalid_field("key", "must be set"))?;
        if update_mask.iter().flat_map(|mask| &mask.paths).any(|path| path != "attributes") {
            return Err(invalid_field(
                "update_mask",
                "must name attributes, which alone can change",
            ));
        }
        let attributes: BTreeMap<_, _> = key.attributes.clone().into_iter().collect();
        let summary = format!("update API key, attributes {attributes:?}");
        let (now, key_id) = (self.clock.now(), key.id.clone());
        let planned = PlannedChange::new(&id, &key.id, summary);
        let made = self.change(&call, planned, move |state| {
            let attributes = attributes.clone();
            with_project(named(state)?, |project| project.set_attributes(&key_id, attributes, now))
        });
        let key = Some(self.key(&id, &made.await?.applied()?.result));
        Ok(proto::UpdateKeyResponse { key })
    }

    /// Answers `RotateKey`: replaces a key by a new one. The replaced one stays valid for the grace.
    pub(super) async fn rotated_key(
        &self,
        request: &Request<proto::RotateKeyRequest>,
    ) -> Result<Response<proto::RotateKeyResponse>, Status> {
        let proto::RotateKeyRequest { project_id, key_id, grace, request_id, reason } =
            request.get_ref();
        let call = AdminCall::new(request, "RotateKey", reason, request_id)?;
        let id = admitted(caller(request)?, project_id, ADMIN)?;
        let call = call.with_fingerprint(request.get_ref());
        let grace = match grace.as_ref().map(micros) {
            None => DEFAULT_GRACE,
            Some(Some(grace)) => grace,
            Some(None) => return Err(invalid_field("grace", "must be 0 s to 30 d")),
        };
        let state = self.project(&id)?;
        named(Some(&state))?;
        let before = state.project.keys.iter().find(|key| key.id == *key_id);
        let environment = before.map(|key| key.environment.parse::<Environment>()).transpose();
        let environment = environment.map_err(|error| refusals::invalid(error, ""))?;
        let secret = generate(&environment.unwrap_or_default())?;
        let planned = PlannedChange {
            answer: format!("{} {key_id}", secret.id()),
            ..PlannedChange::new(&id, key_id, format!("replace API key by {}", secret.id()))
        };
        let (made, now, replaced) = (Arc::clone(&secret), self.clock.now(), key_id.clone());
        let made = self.change(&call, planned, move |state| {
            with_project(named(state)?, |project| project.rotate_key(&replaced, grace, &made, now))
        });
        let (key, previous, secret) = match made.await? {
            Made::Applied(made) => (made.result.0, made.result.1, Some(secret)),
            Made::Replayed(answer) => {
                let (new, previous) = answer.split_once(' ').unwrap_or_default();
                (self.stored_key(&id, new)?, self.stored_key(&id, previous)?, None)
            }
        };
        let response = proto::RotateKeyResponse {
            key: Some(self.key(&id, &key)),
            replayed: secret.is_none(),
            secret: secret.map(|secret| secret.expose().to_owned()).unwrap_or_default(),
            previous: Some(self.key(&id, &previous)),
        };
        Ok(self.ended(response, &id, call.scope))
    }

    /// Answers `RevokeKey`, also while catalogues conflict. Does nothing if the key has ended already.
    pub(super) async fn revoked_key(
        &self,
        request: &Request<proto::RevokeKeyRequest>,
    ) -> Result<Response<proto::RevokeKeyResponse>, Status> {
        let proto::RevokeKeyRequest { project_id, key_id, reason } = request.get_ref();
        let call = AdminCall::new(request, "RevokeKey", reason, "")?;
        let id = admitted(caller(request)?, project_id, ADMIN)?;
        let planned = PlannedChange::new(&id, key_id, "revoke API key".to_owned());
        let (now, revoked) = (self.clock.now(), key_id.clone());
        let made = self.change(&call, planned, move |state| {
            with_project(named(state)?, |project| project.revoke_key(&revoked, now).cloned())
        });
        let key = Some(self.key(&id, &made.await?.applied()?.result));
        Ok(self.ended(proto::RevokeKeyResponse { key }, &id, call.scope))
    }

    /// Returns `true` unless `auth.api-keys` is `off`: then keys are ignored.
    pub(super) fn reads_keys(&self) -> bool {
        self.administrator.shared.takes_api_keys
    }

    pub(super) fn check_keys_are_read(&self) -> Result<(), Status> {
        if self.reads_keys() {
            return Ok(());
        }
        Err(with_reason(
            tonic::Code::FailedPrecondition,
            "API_KEYS_OFF",
            super::KEYS_OFF.to_owned(),
        ))
    }

    pub(super) fn key(&self, id: &ProjectId, key: &ApiKey) -> proto::ApiKey {
        messages::key(id, key, self.clock.now())
    }

    fn stored_key(&self, id: &ProjectId, key: &str) -> Result<ApiKey, Status> {
        let state = self.project(id)?;
        let found = state.project.keys.iter().find(|stored| stored.id == key);
        found.cloned().ok_or_else(|| refusals::key(ApiKeyError::NotFound))
    }
}

/// Returns a change of the keys of a project.
pub(super) fn with_project<T>(
    state: &ProjectState,
    edit: impl FnOnce(&mut Project) -> Result<T, ApiKeyError>,
) -> Result<Change<T>, Status> {
    let mut project = state.project.clone();
    let result = edit(&mut project).map_err(refusals::key)?;
    Ok(Change { after: Some((project, state.rules.clone())), revision: None, result })
}

pub(super) fn generate(environment: &Environment) -> Result<Arc<ApiKeySecret>, Status> {
    ApiKeySecret::generate(environment).map(Arc::new).map_err(refusals::no_random_numbers)
}

fn new_key(given: Option<&proto::ApiKey>) -> Result<NewKey, Status> {
    let invalid = |error| refusals::invalid(error, "key.");
    let given = given.cloned().unwrap_or_default();
    let environment = match given.environment.as_str() {
        "" => Ok(Environment::default()),
        text => text.parse(),
    };
    if given.display_name.len() > Project::MAX_NAME_LEN {
        return Err(invalid(InvalidProject::DisplayName));
    }
    let ends = given.expires_at.as_ref().map(|time| parsed("key.expires_at", time));
    Ok(NewKey {
        display_name: given.display_name,
        attributes: given.attributes.into_iter().collect(),
        environment: environment.map_err(invalid)?,
        expires_at: ends.transpose()?,
    })
}
