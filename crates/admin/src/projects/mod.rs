//! `ratelimit.admin.v1.ProjectService`: projects, their API keys and their rules.
//!
//! The middleware admits callers with a role in any project; here it is decided by the project of
//! the call. A project that the caller has no role for does not exist.
//!
//! | file | subject |
//! | --- | --- |
//! | `change` | what all changes have in common, and the end of a conflict of catalogues |
//! | `keys` | API keys |
//! | `rules` | rules that were made at run time |
//! | `revisions` | the history of rules, and writes of many rules |
//! | `validate`, `validations` | what a write would do, and the queue of those who ask |
//! | `lists`, `messages`, `refusals` | responses |

mod change;
mod keys;
mod lists;
mod messages;
pub(super) mod refusals;
mod revisions;
mod rules;
mod usage;
mod validate;
mod validations;

use std::collections::HashMap;
use std::sync::Arc;

use rlaas_auth::{Caller, CallerScope, Permission, ProjectId, Role, Roles, deadline};
use rlaas_projects::registry::{Change, ProjectState, Registry};
use rlaas_projects::usage::UsageRecorder;
use rlaas_projects::{
    ApiKeySecret, Etag, InvalidProject, NewKey, Others, Project, ProjectRules, RuleWriteError,
};
use rlaas_proto::WARNING;
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::project_service_server::ProjectService;
use rlaas_proto::ratelimit::v1::UnmatchedPolicy;
use rlaas_proto::rule_messages;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Response, Status};
use tracing::{debug, warn};

pub use self::change::PlannedChange;

use self::change::Made;
use self::validations::ValidationQueue;
use super::change::AdminCall;
use super::refusals::{forbidden, no_project};
use super::{Administrator, EVERY_PROJECT, MAX_TIME, caller};
use rlaas_core::clock::{Clock, Micros, Timestamp};
use rlaas_core::rules::Unmatched;
use rlaas_proto::status::{invalid_field, with_reason};

/// The role for changes of a project.
pub(crate) const ADMIN: Roles = Permission::PROJECT_ADMIN.roles();
/// The role for calls that see or repair the state of keys.
pub(crate) const OPERATE: Roles = Permission::PROJECT_OPERATE.roles();
/// The roles for calls that show a project.
pub const OPERATE_OR_ADMIN: Roles = Permission::PROJECT_OPERATE_OR_ADMIN.roles();
/// Warning in the response to a change that ends keys.
const ENDS_NOT_KEPT: &str =
    "there are too many revoked keys: an older backup of redis would bring back those that end now";
/// Warning in the response to a new project whose keys would be ignored.
const KEYS_OFF: &str = "API keys are ignored: set auth.api-keys to accepted or required";
/// Time for which changes of a project may lie before its creation: the audit has another clock, and
/// records a creation before it is made. Far less than an id rests between two projects.
const BEFORE_CREATION: Micros = Micros::from_secs(24 * 60 * 60);

/// `ratelimit.admin.v1.ProjectService`. Clones share their state.
#[derive(Clone, Debug)]
pub struct Projects {
    administrator: Administrator,
    registry: Registry,
    clock: Clock,
    usage: UsageRecorder,
    validations: ValidationQueue,
}

/// A project to create.
struct NewProject {
    /// Its id. `None`: a random one.
    id: Option<ProjectId>,
    /// Name for people.
    display_name: String,
    /// Policy for requests that no rule matches.
    unmatched: Unmatched,
    /// An API key that is created in the same write, with its secret.
    key: Option<(NewKey, Arc<ApiKeySecret>)>,
}

impl Projects {
    /// Creates the service of the projects of a registry. Their usage is written when its recorder runs.
    pub fn new(administrator: Administrator, registry: Registry) -> Self {
        administrator.instances().report_projects(registry.clone());
        registry.set_instance(administrator.instances().id());
        let usage = UsageRecorder::new(
            administrator.fleet().clone(),
            Arc::clone(&administrator.shared.metrics),
            registry.keyring().clone(),
            administrator.instances().id(),
            Clock::default(),
        );
        let (clock, validations) = (Clock::default(), ValidationQueue::default());
        Self { administrator, registry, clock, usage, validations }
    }

    /// Returns the usage of the projects.
    pub fn usage(&self) -> &UsageRecorder {
        &self.usage
    }

    /// Returns a project.
    ///
    /// # Errors
    ///
    /// `NOT_FOUND` if there is no such project.
    pub fn project(&self, id: &ProjectId) -> Result<Arc<ProjectState>, Status> {
        self.registry.project(id).ok_or_else(no_project)
    }

    /// Returns all projects, newest first, the unnamed one last.
    pub fn projects(&self) -> Vec<Arc<ProjectState>> {
        self.registry.projects()
    }

    /// Returns the revision of the catalogue in force; 0 if there is none.
    pub fn catalogue_revision(&self) -> u64 {
        self.registry.revision()
    }

    /// Returns a project as [`AuditFilter`](super::AuditFilter) selects its changes, with the time from
    /// which changes of its id are its own: a deleted project may have had it before. The project "" and
    /// those that files name were always the same. `None` if there is no such project.
    pub(super) fn audited(&self, id: &ProjectId) -> Option<(String, Timestamp)> {
        self.administrator.limiter().project_snapshot(id.as_str())?;
        let since = if *id == ProjectId::UNNAMED || self.files_beside(id).is_some() {
            Timestamp::EPOCH
        } else {
            self.registry.project(id)?.project.created_at - BEFORE_CREATION
        };
        Some((id.to_string(), since))
    }

    /// Creates a project.
    async fn create(&self, call: &AdminCall, new: NewProject) -> Result<Arc<ProjectState>, Status> {
        let NewProject { id, display_name, unmatched, key } = new;
        let id = match id {
            Some(id) => id,
            None => ProjectId::random().map_err(refusals::no_random_numbers)?,
        };
        let with_key = key.as_ref().map(|(_, secret)| format!(" with API key {}", secret.id()));
        let planned = PlannedChange {
            answer: id.to_string(),
            ..PlannedChange::new(
                &id,
                "",
                format!("create project {id}{}", with_key.unwrap_or_default()),
            )
        };
        let etag = Etag::random().map_err(refusals::no_random_numbers)?;
        let now = self.clock.now();
        let made = self.change(call, planned, move |state| {
            if state.is_some() {
                let text = "a project with this id exists";
                return Err(with_reason(Code::AlreadyExists, "PROJECT_EXISTS", text.to_owned()));
            }
            let project = Project::new(id.clone(), &display_name, now);
            let project = project.map_err(|error| refusals::invalid(error, "project."))?;
            let mut project = Project { unmatched: unmatched.into(), etag, ..project };
            if let Some((key, secret)) = &key {
                project.create_key(key.clone(), secret, now).map_err(refusals::key)?;
            }
            let after = Some((project, ProjectRules::default()));
            Ok(Change { after, revision: None, result: () })
        });
        let id = match made.await? {
            Made::Applied(changed) => changed.id,
            Made::Replayed(id) => id.parse().map_err(|_| no_project())?,
        };
        self.project(&id)
    }

    /// Creates a project with an API key, in one write, and returns the secret. The call has no
    /// request id: a secret can't be shown again.
    ///
    /// # Errors
    ///
    /// The status of the refusal.
    pub async fn create_with_key(
        &self,
        call: &AdminCall,
        display_name: String,
    ) -> Result<(Arc<ProjectState>, Arc<ApiKeySecret>), Status> {
        self.check_keys_are_read()?;
        let key = NewKey::default();
        let secret = keys::generate(&key.environment)?;
        let key = Some((key, Arc::clone(&secret)));
        let new = NewProject { id: None, display_name, unmatched: Unmatched::Deny, key };
        Ok((self.create(call, new).await?, secret))
    }

    /// Deletes a project with its keys, rules and usage. With `etag`, only the project that has it.
    ///
    /// # Errors
    ///
    /// The status of the refusal.
    pub async fn delete(
        &self,
        call: &AdminCall,
        id: &ProjectId,
        etag: Option<Etag>,
    ) -> Result<(), Status> {
        let planned = PlannedChange::new(id, "", format!("delete project {id}"));
        let is_of_file = self.files_beside(id).is_some();
        let made = self.change(call, planned, move |state| {
            check_etag(&named(state)?.project, etag)?;
            if is_of_file {
                let text = "a file names the project, so it can't be deleted here";
                return Err(refusals::of_file("PROJECT_OF_FILE", text.to_owned()));
            }
            Ok(Change { after: None, revision: None, result: () })
        });
        made.await?;
        // Each instance removes it, too, when it writes no more of the project.
        if let Err(error) = self.usage.remove(id.as_str(), call.deadline.or_within(MAX_TIME)).await
        {
            debug!(%error, "usage is removed later");
        }
        Ok(())
    }

    fn message(&self, state: &ProjectState) -> proto::Project {
        let id = &state.project.id;
        let in_force = self.administrator.limiter().project_snapshot(id.as_str());
        let rules = in_force.map_or(0, |snapshot| snapshot.rules.iter().skip(1).count());
        messages::project(state, self.registry.files().unmatched(id), rules, self.clock.now())
    }

    /// Returns the response to a change that ends keys, with a warning if their ends may not be kept.
    fn ended<T>(&self, message: T, id: &ProjectId, scope: CallerScope) -> Response<T> {
        let mut response = Response::new(message);
        if !self.registry.keeps_ends(id, scope) {
            response.metadata_mut().insert(WARNING, MetadataValue::from_static(ENDS_NOT_KEPT));
        }
        response
    }
}

#[tonic::async_trait]
impl ProjectService for Projects {
    async fn create_project(
        &self,
        request: Request<proto::CreateProjectRequest>,
    ) -> Result<Response<proto::CreateProjectResponse>, Status> {
        let proto::CreateProjectRequest { project, request_id, reason } = request.get_ref();
        let call = AdminCall::new(&request, "CreateProject", reason, request_id)?;
        let call = call.with_fingerprint(request.get_ref());
        let project = project.as_ref().ok_or_else(|| invalid_field("project", "must be set"))?;
        let id = Some(project.id.as_str()).filter(|id| !id.is_empty());
        let id = id.map(str::parse::<ProjectId>).transpose();
        let new = NewProject {
            id: id.map_err(|error| refusals::invalid(error.into(), "project."))?,
            display_name: project.display_name.clone(),
            unmatched: unmatched(project.unmatched)?,
            key: None,
        };
        let state = self.create(&call, new).await?;
        let project = Some(self.message(&state));
        let mut response = Response::new(proto::CreateProjectResponse { project });
        if !self.reads_keys() {
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
        let project = Some(self.message(&*self.project(&id)?));
        Ok(Response::new(proto::GetProjectResponse { project }))
    }

    async fn list_projects(
        &self,
        request: Request<proto::ListProjectsRequest>,
    ) -> Result<Response<proto::ListProjectsResponse>, Status> {
        let caller = caller(&request)?;
        let mut states = self.projects();
        states.retain(|state| caller.roles_in(&state.project.id).intersects(OPERATE_OR_ADMIN));
        let proto::ListProjectsRequest { page_size, page_token } = request.get_ref();
        let (states, next_page_token) = lists::projects(states, *page_size, page_token)?;
        let projects = states.iter().map(|state| self.message(state)).collect();
        Ok(Response::new(proto::ListProjectsResponse { projects, next_page_token }))
    }

    async fn update_project(
        &self,
        request: Request<proto::UpdateProjectRequest>,
    ) -> Result<Response<proto::UpdateProjectResponse>, Status> {
        let proto::UpdateProjectRequest { project, update_mask, etag, reason } = request.get_ref();
        let call = AdminCall::new(&request, "UpdateProject", reason, "")?;
        let project = project.as_ref().ok_or_else(|| invalid_field("project", "must be set"))?;
        let id = admitted(caller(&request)?, &project.id, ADMIN)?;
        let (name, policy) = (project.display_name.clone(), unmatched(project.unmatched)?);
        let paths = update_mask.iter().flat_map(|mask| &mask.paths).map(String::as_str);
        let paths: Vec<&str> = paths.collect();
        if paths.iter().any(|path| !["display_name", "unmatched"].contains(path)) {
            return Err(invalid_field("update_mask", "must name display_name or unmatched"));
        }
        let is_given = |path| paths.is_empty() || paths.contains(&path);
        let name = is_given("display_name").then_some(name);
        let policy = is_given("unmatched").then_some(policy);
        let (etag, of_files) = (Etag::quoted(etag), self.registry.files().unmatched(&id));
        let new = Etag::random().map_err(refusals::no_random_numbers)?;
        let planned = PlannedChange::new(&id, "", format!("update project {id}"));
        let now = self.clock.now();
        let made = self.change(&call, planned, move |state| {
            let state = named(state)?;
            check_etag(&state.project, etag)?;
            if of_files.is_some_and(|fixed| policy.is_some_and(|given| given != fixed)) {
                let text = "a file has unmatched of the project, so it can't be changed here";
                return Err(refusals::of_file("UNMATCHED_OF_FILE", text.to_owned()));
            }
            let mut project = state.project.clone();
            if let Some(policy) = policy.filter(|_| of_files.is_none()) {
                project.unmatched = policy.into();
            }
            let name = name.as_ref().unwrap_or(&state.project.display_name);
            let changes =
                project.unmatched != state.project.unmatched || *name != state.project.display_name;
            if changes {
                let invalid = |error: InvalidProject| refusals::invalid(error, "project.");
                project.rename(name, now).map_err(invalid)?;
                project.etag = new;
            }
            Ok(Change { after: Some((project, state.rules.clone())), revision: None, result: () })
        });
        made.await?;
        let project = Some(self.message(&*self.project(&id)?));
        Ok(Response::new(proto::UpdateProjectResponse { project }))
    }

    async fn delete_project(
        &self,
        request: Request<proto::DeleteProjectRequest>,
    ) -> Result<Response<proto::DeleteProjectResponse>, Status> {
        let proto::DeleteProjectRequest { project_id, etag, reason } = request.get_ref();
        let call = AdminCall::new(&request, "DeleteProject", reason, "")?;
        let caller = caller(&request)?;
        let id = admitted(caller, project_id, ADMIN)?;
        if !caller.has(Role::Admin) {
            return Err(forbidden(ADMIN));
        }
        self.delete(&call, &id, Etag::quoted(etag)).await?;
        Ok(self.ended(proto::DeleteProjectResponse {}, &id, call.scope))
    }

    async fn create_key(
        &self,
        request: Request<proto::CreateKeyRequest>,
    ) -> Result<Response<proto::CreateKeyResponse>, Status> {
        self.created_key(&request).await.map(Response::new)
    }

    async fn list_keys(
        &self,
        request: Request<proto::ListKeysRequest>,
    ) -> Result<Response<proto::ListKeysResponse>, Status> {
        let message = request.get_ref();
        let proto::ListKeysRequest { project_id, page_size, page_token, key_id } = message;
        let (caller, now) = (caller(&request)?, self.clock.now());
        let states = if project_id != EVERY_PROJECT {
            vec![self.project(&admitted(caller, project_id, OPERATE_OR_ADMIN)?)?]
        } else if key_id.is_empty() {
            return Err(invalid_field("key_id", "must be set with the project_id -"));
        } else {
            let mut states = self.projects();
            states.retain(|state| caller.roles_in(&state.project.id).intersects(OPERATE_OR_ADMIN));
            states
        };
        let found = states.iter().flat_map(|state| {
            let project = &state.project;
            let keys = project.keys.iter().filter(|key| key_id.is_empty() || key.id == *key_id);
            keys.filter(|key| key.is_listed(now)).map(|key| (&project.id, key))
        });
        let (found, next_page_token) = lists::keys(found.collect(), *page_size, page_token)?;
        let mut keys = Vec::new();
        let mut last_uses = HashMap::new();
        for (id, key) in found {
            if !last_uses.contains_key(id) {
                let uses = self.usage.last_uses(id, deadline(request.metadata())).await;
                last_uses.insert(id, uses);
            }
            // The hour of the last use may have begun before the key.
            let used = last_uses[id].get(&key.id).map(|used| key.created_at.max(*used));
            let last_used_at = used.map(rlaas_proto::values::timestamp);
            keys.push(proto::ApiKey { last_used_at, ..self.key(id, key) });
        }
        let mut response = Response::new(proto::ListKeysResponse { keys, next_page_token });
        if !self.reads_keys() {
            response.metadata_mut().insert(WARNING, MetadataValue::from_static(KEYS_OFF));
        }
        Ok(response)
    }

    async fn update_key(
        &self,
        request: Request<proto::UpdateKeyRequest>,
    ) -> Result<Response<proto::UpdateKeyResponse>, Status> {
        self.updated_key(&request).await.map(Response::new)
    }

    async fn rotate_key(
        &self,
        request: Request<proto::RotateKeyRequest>,
    ) -> Result<Response<proto::RotateKeyResponse>, Status> {
        self.rotated_key(&request).await
    }

    async fn revoke_key(
        &self,
        request: Request<proto::RevokeKeyRequest>,
    ) -> Result<Response<proto::RevokeKeyResponse>, Status> {
        self.revoked_key(&request).await
    }

    async fn create_rule(
        &self,
        request: Request<proto::CreateRuleRequest>,
    ) -> Result<Response<proto::CreateRuleResponse>, Status> {
        let proto::CreateRuleRequest { project_id, rule, reason } = request.get_ref();
        let call = AdminCall::new(&request, "CreateRule", reason, "")?;
        let id = admitted(caller(&request)?, project_id, ADMIN)?;
        let rule = rule.as_ref().ok_or_else(|| invalid_field("rule", "must be set"))?;
        let spec = rule_messages::spec(rule);
        let planned = PlannedChange::new(&id, &rule.name, "create rule".to_owned());
        let made = self.write_rule(&call, planned, move |rules, by| {
            rules.create(spec.clone(), by).map(Some).map_err(of_rule)
        });
        let rule = made.await?.map(|written| messages::rule(&id, &written.record, false));
        Ok(Response::new(proto::CreateRuleResponse { rule }))
    }

    async fn get_rule(
        &self,
        request: Request<proto::GetRuleRequest>,
    ) -> Result<Response<proto::GetRuleResponse>, Status> {
        let proto::GetRuleRequest { project_id, rule_name } = request.get_ref();
        let id = admitted(caller(&request)?, project_id, OPERATE_OR_ADMIN)?;
        let (state, files) = (self.project(&id)?, self.files_beside(&id));
        let mut of_files = files.iter().flat_map(|files| files.iter().skip(1));
        let of_file = of_files.find(|rule| *rule.name == **rule_name);
        let rule = match (of_file, state.rules.rule(rule_name)) {
            (Some(rule), _) => messages::file_rule(&id, rule),
            (None, Some(record)) => messages::rule(&id, record, false),
            (None, None) => return Err(refusals::rules(RuleWriteError::NotFound, "")),
        };
        Ok(Response::new(proto::GetRuleResponse { rule: Some(rule) }))
    }

    async fn list_rules(
        &self,
        request: Request<proto::ListRulesRequest>,
    ) -> Result<Response<proto::ListRulesResponse>, Status> {
        let proto::ListRulesRequest { project_id, page_size, page_token } = request.get_ref();
        let id = admitted(caller(&request)?, project_id, OPERATE_OR_ADMIN)?;
        let (state, files) = (self.project(&id)?, self.files_beside(&id));
        let (rules, next_page_token) =
            lists::rules(&state, files.as_deref(), *page_size, page_token)?;
        Ok(Response::new(proto::ListRulesResponse { rules, next_page_token }))
    }

    async fn update_rule(
        &self,
        request: Request<proto::UpdateRuleRequest>,
    ) -> Result<Response<proto::UpdateRuleResponse>, Status> {
        let message = request.get_ref();
        let call = AdminCall::new(&request, "UpdateRule", &message.reason, "")?;
        let id = admitted(caller(&request)?, &message.project_id, ADMIN)?;
        let given = message.rule.as_ref().ok_or_else(|| invalid_field("rule", "must be set"))?;
        let (name, given) = (given.name.clone(), rule_messages::spec(given));
        let mask = message.update_mask.as_ref().map_or(&[][..], |mask| &mask.paths).to_vec();
        if let Err(path) = rule_messages::merge(&given, &given, &mask) {
            // Statuses are sent in headers.
            let shown: String = path.chars().take(64).collect();
            let problem = format!("must name fields of a rule, not {shown:?}");
            return Err(invalid_field("update_mask", &problem));
        }
        let (etag, allow_missing) = (Etag::quoted(&message.etag), message.allow_missing);
        let planned = PlannedChange::new(&id, &name, "update rule".to_owned());
        let made = self.write_rule(&call, planned, move |rules, by| {
            let written = match rules.rule(&name).map(|record| &record.spec) {
                None if !allow_missing => Err(RuleWriteError::NotFound),
                None if etag.is_some() => Err(RuleWriteError::Stale),
                None => rules.create(given.clone(), by).map(Some),
                Some(before) if !mask.is_empty() => {
                    let merged = rule_messages::merge(before, &given, &mask);
                    let merged = merged.unwrap_or_else(|_| before.clone());
                    rules.replace(merged, etag, by)
                }
                Some(_) => rules.replace(given.clone(), etag, by),
            };
            written.map_err(of_rule)
        });
        let written = made.await?;
        let created = written.as_ref().is_some_and(|written| written.created);
        let rule = written.map(|written| messages::rule(&id, &written.record, false));
        Ok(Response::new(proto::UpdateRuleResponse { rule, created }))
    }

    async fn delete_rule(
        &self,
        request: Request<proto::DeleteRuleRequest>,
    ) -> Result<Response<proto::DeleteRuleResponse>, Status> {
        let proto::DeleteRuleRequest { project_id, rule_name, etag, reason } = request.get_ref();
        let call = AdminCall::new(&request, "DeleteRule", reason, "")?;
        let id = admitted(caller(&request)?, project_id, ADMIN)?;
        let (etag, name) = (Etag::quoted(etag), rule_name.clone());
        let planned = PlannedChange::new(&id, rule_name, "delete rule".to_owned());
        let made = self.write_rule(&call, planned, move |rules, _| {
            rules.delete(&name, etag).map(Some).map_err(of_rule)
        });
        made.await?;
        Ok(Response::new(proto::DeleteRuleResponse {}))
    }

    async fn apply_rules(
        &self,
        request: Request<proto::ApplyRulesRequest>,
    ) -> Result<Response<proto::ApplyRulesResponse>, Status> {
        self.apply(request).await
    }

    async fn validate(
        &self,
        request: Request<proto::ValidateRequest>,
    ) -> Result<Response<proto::ValidateResponse>, Status> {
        self.validated(request).await.map(Response::new)
    }

    async fn list_revisions(
        &self,
        request: Request<proto::ListRevisionsRequest>,
    ) -> Result<Response<proto::ListRevisionsResponse>, Status> {
        let proto::ListRevisionsRequest { project_id, page_size, page_token } = request.get_ref();
        let id = admitted(caller(&request)?, project_id, OPERATE_OR_ADMIN)?;
        let deadline = deadline(request.metadata());
        let is_last = lists::is_last_of_revisions(*page_size, page_token)?;
        let history = self.revisions_until(&id, is_last, deadline).await?;
        let (revisions, next_page_token) = lists::revisions(&history, *page_size, page_token)?;
        let revisions = revisions.iter().map(|entry| messages::revision(&id, entry)).collect();
        Ok(Response::new(proto::ListRevisionsResponse { revisions, next_page_token }))
    }

    async fn get_revision(
        &self,
        request: Request<proto::GetRevisionRequest>,
    ) -> Result<Response<proto::GetRevisionResponse>, Status> {
        self.revision(&request).await.map(Response::new)
    }

    async fn rollback(
        &self,
        request: Request<proto::RollbackRequest>,
    ) -> Result<Response<proto::RollbackResponse>, Status> {
        self.roll_back(&request).await.map(Response::new)
    }

    async fn restore_catalogue(
        &self,
        request: Request<proto::RestoreCatalogueRequest>,
    ) -> Result<Response<proto::RestoreCatalogueResponse>, Status> {
        self.restored(&request).await.map(Response::new)
    }

    async fn list_usage(
        &self,
        request: Request<proto::ListUsageRequest>,
    ) -> Result<Response<proto::ListUsageResponse>, Status> {
        self.usage_page(&request).await.map(Response::new)
    }
}

/// Returns the project of a call whose caller has one of the roles in it.
///
/// # Errors
///
/// `INVALID_ARGUMENT` for an id that is none, `PERMISSION_DENIED` without such a role.
pub fn admitted(caller: &Caller, id: &str, required: Roles) -> Result<ProjectId, Status> {
    // What is no id is the id of no project.
    let id = if id.is_empty() { Ok(ProjectId::UNNAMED) } else { id.parse() };
    let id: ProjectId = id.map_err(|_| no_project())?;
    let held = caller.roles_in(&id);
    if held.intersects(required) {
        Ok(id)
    } else if held.intersects(OPERATE_OR_ADMIN) {
        Err(forbidden(required))
    } else {
        Err(no_project())
    }
}

fn unmatched(value: i32) -> Result<Unmatched, Status> {
    match UnmatchedPolicy::try_from(value) {
        Ok(UnmatchedPolicy::Unspecified | UnmatchedPolicy::Deny) => Ok(Unmatched::Deny),
        Ok(UnmatchedPolicy::DefaultRule) => Ok(Unmatched::DefaultRule),
        Ok(UnmatchedPolicy::Allow) => Ok(Unmatched::Allow),
        Err(_) => Err(invalid_field(
            "project.unmatched",
            "must be UNMATCHED_POLICY_DEFAULT_RULE, UNMATCHED_POLICY_ALLOW or \
             UNMATCHED_POLICY_DENY",
        )),
    }
}

/// Returns the status of the rule of a request that can't be written.
fn of_rule(error: RuleWriteError) -> Status {
    refusals::rules(error, "rule")
}

/// Returns a project that exists.
fn existing(state: Option<&ProjectState>) -> Result<&ProjectState, Status> {
    state.ok_or_else(no_project)
}

/// Returns a project that exists and is not the unnamed one.
fn named(state: Option<&ProjectState>) -> Result<&ProjectState, Status> {
    let state = existing(state)?;
    if !state.project.id.is_unnamed() {
        return Ok(state);
    }
    let text = "not possible for the project \"\", which every service has";
    Err(with_reason(Code::FailedPrecondition, "UNNAMED_PROJECT", text.to_owned()))
}

fn check_etag(project: &Project, etag: Option<Etag>) -> Result<(), Status> {
    match etag {
        // One that was never written has the default.
        Some(etag) if etag != project.etag => {
            Err(refusals::stale("etag is not that of the stored project"))
        }
        _ => Ok(()),
    }
}

const fn others(prune: bool) -> Others {
    if prune { Others::Deleted } else { Others::Kept }
}
