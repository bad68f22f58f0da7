//! `ratelimit.admin.v1.ProjectService`: projects, API keys and rules over gRPC. Over HTTP the same
//! methods are called, with messages in JSON (`http/admin`).
//!
//! The middleware admits callers with a role in any project; here it is decided by the project of
//! the call. A project that the caller has no role for does not exist.

mod errors;
mod lists;
mod messages;
mod request;
mod trials;
mod usage;

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::project_service_server::ProjectService;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status};
use tracing::warn;

pub(in crate::api) use self::errors::forbidden;
pub(super) use self::errors::no_project;
pub(in crate::api) use self::errors::project_status;
pub(super) use self::request::{ADMIN, OPERATE};
pub(in crate::api) use self::request::{OPERATE_OR_ADMIN, admitted};

use self::errors::status;
use self::request::{change_call, end, others, project_update, specs, unmatched};
use super::{WARNING, caller};
use crate::admin::projects::{
    NewProject, ProjectAdministrator, ProjectError, RevisionDiff, RuleSelection, RulesGiven,
    RulesWritten,
};
use crate::api::auth::Role;
use crate::api::deadline::deadline;
use crate::api::status::invalid_field;
use crate::clock::Micros;
use crate::projects::registry::{CallerScope, CatalogueSource, ProjectState, run_blocking};
use crate::projects::{
    ApiKey, Environment, Etag, InvalidProject, NewKey, Project, ProjectId, RuleWriteError,
};
use crate::proto_values::micros;
use crate::rule_messages;
use crate::rules::spec::RuleSpec;

/// Warning in the response to a change that ends keys.
const ENDS_NOT_KEPT: &str =
    "there are too many revoked keys: an older backup of redis would bring back those that end now";
/// Warning in the response to a new project whose keys would be ignored.
const KEYS_OFF: &str = "API keys are ignored: set auth.api-keys to accepted or required";
/// Time that a replaced key stays valid unless the request says otherwise.
const DEFAULT_GRACE: Micros = Micros::from_secs(86_400);

/// `ratelimit.admin.v1.ProjectService`. Clones share their state.
#[derive(Clone, Debug)]
pub struct Projects {
    administrator: ProjectAdministrator,
}

impl Projects {
    /// Creates the service.
    pub fn new(administrator: ProjectAdministrator) -> Self {
        Self { administrator }
    }

    fn message(&self, state: &ProjectState) -> proto::Project {
        messages::project(state, self.administrator.unmatched_of_files(&state.project.id))
    }

    fn key(&self, id: &ProjectId, key: &ApiKey) -> proto::ApiKey {
        messages::key(id, key, self.administrator.clock().now())
    }

    /// Returns the response to a change that ends keys, with a warning if their ends may not be kept.
    fn ended<T>(&self, message: T, id: &ProjectId, scope: CallerScope) -> Response<T> {
        let mut response = Response::new(message);
        if !self.administrator.keeps_ends(id, scope) {
            response.metadata_mut().insert(WARNING, MetadataValue::from_static(ENDS_NOT_KEPT));
        }
        response
    }
}

/// Returns the revision that a write has made, and its changes. There may be thousands.
async fn rules_written(
    id: ProjectId,
    written: RulesWritten,
) -> (Option<proto::Revision>, Vec<proto::RuleChange>) {
    run_blocking(move || {
        let revision = written.revision.as_ref().map(|revision| messages::revision(&id, revision));
        (revision, written.changes.iter().map(|change| messages::change(&id, change)).collect())
    })
    .await
}

#[tonic::async_trait]
impl ProjectService for Projects {
    async fn create_project(
        &self,
        request: Request<proto::CreateProjectRequest>,
    ) -> Result<Response<proto::CreateProjectResponse>, Status> {
        let proto::CreateProjectRequest { project, request_id, reason } = request.get_ref();
        let call = change_call(&request, "CreateProject", reason, request_id)?;
        let project = project.as_ref().ok_or_else(|| invalid_field("project", "must be set"))?;
        let failed = |error: &ProjectError| status(error, "project.");
        let id = Some(project.id.as_str()).filter(|id| !id.is_empty());
        let id = id.map(str::parse::<ProjectId>).transpose();
        let new = NewProject {
            id: id.map_err(|invalid| failed(&invalid.into()))?,
            display_name: project.display_name.clone(),
            unmatched: unmatched(project.unmatched)?,
        };
        let state = self.administrator.create(&call, new).await;
        let state = state.map_err(|error| failed(&error))?;
        let project = Some(self.message(&state));
        let mut response = Response::new(proto::CreateProjectResponse { project });
        if !self.administrator.reads_keys() {
            warn!(project = %state.project.id, "{KEYS_OFF}");
            response.metadata_mut().insert(WARNING, MetadataValue::from_static(KEYS_OFF));
        }
        Ok(response)
    }

    async fn get_project(
        &self,
        request: Request<proto::GetProjectRequest>,
    ) -> Result<Response<proto::GetProjectResponse>, Status> {
        let id = &request.get_ref().project_id;
        let id = admitted(caller(&request)?, id, OPERATE_OR_ADMIN)?;
        let state = self.administrator.project(&id).map_err(|error| status(&error, ""))?;
        let project = Some(self.message(&state));
        Ok(Response::new(proto::GetProjectResponse { project }))
    }

    async fn list_projects(
        &self,
        request: Request<proto::ListProjectsRequest>,
    ) -> Result<Response<proto::ListProjectsResponse>, Status> {
        let of = caller(&request)?;
        let mut states = self.administrator.projects();
        states.retain(|state| of.roles_in(&state.project.id).intersects(OPERATE_OR_ADMIN));
        let message = request.get_ref();
        let (states, next_page_token) =
            lists::projects(states, message.page_size, &message.page_token)?;
        let projects = states.iter().map(|state| self.message(state)).collect();
        Ok(Response::new(proto::ListProjectsResponse { projects, next_page_token }))
    }

    async fn update_project(
        &self,
        request: Request<proto::UpdateProjectRequest>,
    ) -> Result<Response<proto::UpdateProjectResponse>, Status> {
        let proto::UpdateProjectRequest { project, update_mask, etag, reason } = request.get_ref();
        let call = change_call(&request, "UpdateProject", reason, "")?;
        let project = project.as_ref().ok_or_else(|| invalid_field("project", "must be set"))?;
        let id = admitted(caller(&request)?, &project.id, ADMIN)?;
        let update = project_update(project, update_mask.as_ref())?;
        let state = self.administrator.update(&call, &id, update, Etag::quoted(etag)).await;
        let state = state.map_err(|error| status(&error, "project."))?;
        let project = Some(self.message(&state));
        Ok(Response::new(proto::UpdateProjectResponse { project }))
    }

    async fn delete_project(
        &self,
        request: Request<proto::DeleteProjectRequest>,
    ) -> Result<Response<proto::DeleteProjectResponse>, Status> {
        let proto::DeleteProjectRequest { project_id, etag, reason } = request.get_ref();
        let call = change_call(&request, "DeleteProject", reason, "")?;
        let caller = caller(&request)?;
        let id = admitted(caller, project_id, ADMIN)?;
        if !caller.has(Role::Admin) {
            return Err(forbidden(ADMIN));
        }
        let deleted = self.administrator.delete(&call, &id, Etag::quoted(etag)).await;
        deleted.map_err(|error| status(&error, ""))?;
        Ok(self.ended(proto::DeleteProjectResponse {}, &id, call.scope))
    }

    async fn create_key(
        &self,
        request: Request<proto::CreateKeyRequest>,
    ) -> Result<Response<proto::CreateKeyResponse>, Status> {
        let proto::CreateKeyRequest { project_id, key, request_id, reason } = request.get_ref();
        let call = change_call(&request, "CreateKey", reason, request_id)?;
        let id = admitted(caller(&request)?, project_id, ADMIN)?;
        let failed = |error: &ProjectError| status(error, "key.");
        let given = key.clone().unwrap_or_default();
        let environment = match given.environment.as_str() {
            "" => Ok(Environment::default()),
            text => text.parse(),
        };
        if given.display_name.len() > Project::MAX_NAME_LEN {
            return Err(failed(&InvalidProject::DisplayName.into()));
        }
        let key = NewKey {
            display_name: given.display_name,
            environment: environment.map_err(|invalid| failed(&invalid.into()))?,
            expires_at: given.expires_at.as_ref().map(end).transpose()?,
        };
        let created = self.administrator.create_key(&call, &id, key).await;
        let created = created.map_err(|error| failed(&error))?;
        let replayed = created.secret.is_none();
        let secret = created.secret.map(|secret| secret.expose().to_owned()).unwrap_or_default();
        let key = Some(self.key(&id, &created.key));
        Ok(Response::new(proto::CreateKeyResponse { key, secret, replayed }))
    }

    async fn list_keys(
        &self,
        request: Request<proto::ListKeysRequest>,
    ) -> Result<Response<proto::ListKeysResponse>, Status> {
        let proto::ListKeysRequest { project_id, page_size, page_token } = request.get_ref();
        let id = admitted(caller(&request)?, project_id, OPERATE_OR_ADMIN)?;
        let state = self.administrator.project(&id).map_err(|error| status(&error, ""))?;
        let now = self.administrator.clock().now();
        let (keys, next_page_token) = lists::keys(&state.project, *page_size, page_token, now)?;
        let mut keys: Vec<_> = keys.into_iter().map(|key| self.key(&id, key)).collect();
        self.set_last_uses(&id, &mut keys, deadline(request.metadata())).await;
        let mut response = Response::new(proto::ListKeysResponse { keys, next_page_token });
        if !self.administrator.reads_keys() {
            response.metadata_mut().insert(WARNING, MetadataValue::from_static(KEYS_OFF));
        }
        Ok(response)
    }

    async fn rotate_key(
        &self,
        request: Request<proto::RotateKeyRequest>,
    ) -> Result<Response<proto::RotateKeyResponse>, Status> {
        let message = request.get_ref();
        let proto::RotateKeyRequest { project_id, key_id, grace, request_id, reason } = message;
        let call = change_call(&request, "RotateKey", reason, request_id)?;
        let id = admitted(caller(&request)?, project_id, ADMIN)?;
        let grace = match grace.as_ref().map(micros) {
            None => DEFAULT_GRACE,
            Some(Some(grace)) => grace,
            Some(None) => return Err(invalid_field("grace", "must be 0 s to 30 d")),
        };
        let rotated = self.administrator.rotate_key(&call, &id, key_id, grace).await;
        let rotated = rotated.map_err(|error| status(&error, ""))?;
        let replayed = rotated.created.secret.is_none();
        let secret = rotated.created.secret.map(|secret| secret.expose().to_owned());
        let response = proto::RotateKeyResponse {
            key: Some(self.key(&id, &rotated.created.key)),
            secret: secret.unwrap_or_default(),
            replayed,
            previous: Some(self.key(&id, &rotated.previous)),
        };
        Ok(self.ended(response, &id, call.scope))
    }

    async fn revoke_key(
        &self,
        request: Request<proto::RevokeKeyRequest>,
    ) -> Result<Response<proto::RevokeKeyResponse>, Status> {
        let proto::RevokeKeyRequest { project_id, key_id, reason } = request.get_ref();
        let call = change_call(&request, "RevokeKey", reason, "")?;
        let id = admitted(caller(&request)?, project_id, ADMIN)?;
        let key = self.administrator.revoke_key(&call, &id, key_id).await;
        let key = key.map_err(|error| status(&error, ""))?;
        let key = Some(self.key(&id, &key));
        Ok(self.ended(proto::RevokeKeyResponse { key }, &id, call.scope))
    }

    async fn create_rule(
        &self,
        request: Request<proto::CreateRuleRequest>,
    ) -> Result<Response<proto::CreateRuleResponse>, Status> {
        let proto::CreateRuleRequest { project_id, rule, reason } = request.get_ref();
        let call = change_call(&request, "CreateRule", reason, "")?;
        let id = admitted(caller(&request)?, project_id, ADMIN)?;
        let rule = rule.as_ref().ok_or_else(|| invalid_field("rule", "must be set"))?;
        let written = self.administrator.create_rule(&call, &id, rule_messages::spec(rule)).await;
        let written = written.map_err(|error| status(&error, "rule"))?;
        let rule = Some(messages::rule(&id, &written.record, false));
        Ok(Response::new(proto::CreateRuleResponse { rule }))
    }

    async fn get_rule(
        &self,
        request: Request<proto::GetRuleRequest>,
    ) -> Result<Response<proto::GetRuleResponse>, Status> {
        let proto::GetRuleRequest { project_id, rule_name } = request.get_ref();
        let id = admitted(caller(&request)?, project_id, OPERATE_OR_ADMIN)?;
        let state = self.administrator.project(&id).map_err(|error| status(&error, ""))?;
        let files = self.administrator.files_beside(&id);
        let mut of_file = files.iter().flat_map(|files| files.iter().skip(1));
        let of_file = of_file
            .find(|rule| *rule.name == **rule_name)
            .map(|rule| messages::file_rule(&id, rule));
        let stored =
            || state.rules.rule(rule_name).map(|record| messages::rule(&id, record, false));
        let rule = of_file.or_else(stored);
        let unknown = || status(&RuleWriteError::NotFound.into(), "");
        let rule = Some(rule.ok_or_else(unknown)?);
        Ok(Response::new(proto::GetRuleResponse { rule }))
    }

    async fn list_rules(
        &self,
        request: Request<proto::ListRulesRequest>,
    ) -> Result<Response<proto::ListRulesResponse>, Status> {
        let proto::ListRulesRequest { project_id, page_size, page_token } = request.get_ref();
        let id = admitted(caller(&request)?, project_id, OPERATE_OR_ADMIN)?;
        let state = self.administrator.project(&id).map_err(|error| status(&error, ""))?;
        let files = self.administrator.files_beside(&id);
        let (rules, next_page_token) =
            lists::rules(&state, files.as_deref(), *page_size, page_token)?;
        Ok(Response::new(proto::ListRulesResponse { rules, next_page_token }))
    }

    async fn update_rule(
        &self,
        request: Request<proto::UpdateRuleRequest>,
    ) -> Result<Response<proto::UpdateRuleResponse>, Status> {
        let message = request.get_ref();
        let call = change_call(&request, "UpdateRule", &message.reason, "")?;
        let id = admitted(caller(&request)?, &message.project_id, ADMIN)?;
        let given = message.rule.as_ref().ok_or_else(|| invalid_field("rule", "must be set"))?;
        let given = rule_messages::spec(given);
        let mask = message.update_mask.as_ref().map_or(&[][..], |mask| &mask.paths).to_vec();
        if let Err(path) = rule_messages::merge(&given, &given, &mask) {
            // Statuses are sent in headers.
            let shown: String = path.chars().take(64).collect();
            let problem = format!("must name fields of a rule, not {shown:?}");
            return Err(invalid_field("update_mask", &problem));
        }
        let selection = RuleSelection {
            project: id.clone(),
            name: message.rule.as_ref().map(|rule| rule.name.clone()).unwrap_or_default(),
            etag: Etag::quoted(&message.etag),
            allow_missing: message.allow_missing,
        };
        let edit = move |before: Option<&RuleSpec>| match before {
            Some(before) if !mask.is_empty() => {
                let merged = rule_messages::merge(before, &given, &mask);
                Ok(merged.unwrap_or_else(|_| before.clone()))
            }
            _ => Ok(given.clone()),
        };
        let written = self.administrator.update_rule(&call, selection, Box::new(edit)).await;
        let written = written.map_err(|error| status(&error, "rule"))?;
        let (rule, created) = (Some(messages::rule(&id, &written.record, false)), written.created);
        Ok(Response::new(proto::UpdateRuleResponse { rule, created }))
    }

    async fn delete_rule(
        &self,
        request: Request<proto::DeleteRuleRequest>,
    ) -> Result<Response<proto::DeleteRuleResponse>, Status> {
        let proto::DeleteRuleRequest { project_id, rule_name, etag, reason } = request.get_ref();
        let call = change_call(&request, "DeleteRule", reason, "")?;
        let id = admitted(caller(&request)?, project_id, ADMIN)?;
        let etag = Etag::quoted(etag);
        let deleted = self.administrator.delete_rule(&call, &id, rule_name, etag).await;
        deleted.map_err(|error| status(&error, ""))?;
        Ok(Response::new(proto::DeleteRuleResponse {}))
    }

    async fn apply_rules(
        &self,
        request: Request<proto::ApplyRulesRequest>,
    ) -> Result<Response<proto::ApplyRulesResponse>, Status> {
        let message = request.get_ref();
        let call = change_call(&request, "ApplyRules", &message.reason, "")?;
        let id = admitted(caller(&request)?, &message.project_id, ADMIN)?;
        let proto::ApplyRulesRequest { rules, prune, expected_revision, .. } = request.into_inner();
        let (others, specs) = (others(prune), run_blocking(move || specs(&rules)).await);
        let given = RulesGiven { specs, others, expected_revision };
        let written = self.administrator.apply_rules(&call, &id, given).await;
        let written = written.map_err(|error| status(&error, ""))?;
        let (revision, changes) = rules_written(id, written).await;
        Ok(Response::new(proto::ApplyRulesResponse { revision, changes }))
    }

    async fn validate(
        &self,
        request: Request<proto::ValidateRequest>,
    ) -> Result<Response<proto::ValidateResponse>, Status> {
        trials::validate(&self.administrator, request).await
    }

    async fn list_revisions(
        &self,
        request: Request<proto::ListRevisionsRequest>,
    ) -> Result<Response<proto::ListRevisionsResponse>, Status> {
        let proto::ListRevisionsRequest { project_id, page_size, page_token } = request.get_ref();
        let id = admitted(caller(&request)?, project_id, OPERATE_OR_ADMIN)?;
        let deadline = deadline(request.metadata());
        let is_last = lists::is_last_of_revisions(*page_size, page_token)?;
        let history = self.administrator.revisions_until(&id, is_last, deadline).await;
        let history = history.map_err(|error| status(&error, ""))?;
        let (revisions, next_page_token) = lists::revisions(&history, *page_size, page_token)?;
        let revisions = revisions.iter().map(|one| messages::revision(&id, one)).collect();
        Ok(Response::new(proto::ListRevisionsResponse { revisions, next_page_token }))
    }

    async fn get_revision(
        &self,
        request: Request<proto::GetRevisionRequest>,
    ) -> Result<Response<proto::GetRevisionResponse>, Status> {
        let proto::GetRevisionRequest { project_id, revision, base_revision } = request.get_ref();
        let id = admitted(caller(&request)?, project_id, OPERATE_OR_ADMIN)?;
        let deadline = deadline(request.metadata());
        let diff = self.administrator.revision(&id, *revision, *base_revision, deadline).await;
        let diff = diff.map_err(|error| status(&error, ""))?;
        let RevisionDiff { revision, changes } = diff;
        let (revision, changes) =
            rules_written(id, RulesWritten { revision: Some(revision), changes }).await;
        Ok(Response::new(proto::GetRevisionResponse { revision, changes }))
    }

    async fn rollback(
        &self,
        request: Request<proto::RollbackRequest>,
    ) -> Result<Response<proto::RollbackResponse>, Status> {
        let message = request.get_ref();
        let call = change_call(&request, "Rollback", &message.reason, "")?;
        let id = admitted(caller(&request)?, &message.project_id, ADMIN)?;
        let (number, expected) = (message.revision, message.expected_revision);
        let written = self.administrator.roll_back(&call, &id, number, expected).await;
        let written = written.map_err(|error| status(&error, ""))?;
        let (revision, changes) = rules_written(id, written).await;
        Ok(Response::new(proto::RollbackResponse { revision, changes }))
    }

    async fn restore_catalogue(
        &self,
        request: Request<proto::RestoreCatalogueRequest>,
    ) -> Result<Response<proto::RestoreCatalogueResponse>, Status> {
        let message = request.get_ref();
        let call = change_call(&request, "RestoreCatalogue", &message.reason, "")?;
        let from = match message.from() {
            proto::CatalogueSource::Instance => CatalogueSource::Instance,
            proto::CatalogueSource::Store => CatalogueSource::Store,
            proto::CatalogueSource::Unspecified => {
                return Err(status(&ProjectError::RestoreSource, ""));
            }
        };
        let expected = message.expected_revision;
        let restored = self.administrator.restore_catalogue(&call, from, expected).await;
        let catalogue_revision = restored.map_err(|error| status(&error, ""))?;
        Ok(Response::new(proto::RestoreCatalogueResponse { catalogue_revision }))
    }

    async fn list_usage(
        &self,
        request: Request<proto::ListUsageRequest>,
    ) -> Result<Response<proto::ListUsageResponse>, Status> {
        self.usage(&request).await.map(Response::new)
    }
}
