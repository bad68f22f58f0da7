//! `ratelimit.admin.v1.AdminService`: administration over gRPC. Over HTTP the same methods are
//! called, with messages in JSON (`http/admin`).

mod decisions;
mod explain;
mod lists;
mod modes;
mod origins;
mod overrides;
mod projects;
pub(super) mod routes;
mod selector;
mod stats;
mod top_keys;

use std::sync::Arc;

pub(crate) use explain::{explain, explain_descriptors};
pub use projects::Projects;
pub(super) use projects::project_status;

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::admin_service_server::AdminService;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status};

use self::decisions::WatchedProjects;
use self::projects::{ADMIN, OPERATE, no_project};
pub(super) use self::projects::{OPERATE_OR_ADMIN, admitted, forbidden};
use self::selector::ParsedSelector;
use self::top_keys::TopKeysQuery;
use super::auth::{Caller, Role, Roles, StreamAccess};
use super::deadline::deadline;
use super::status::{admin, invalid_field};
use crate::admin::projects::ProjectAdministrator;
use crate::admin::{Administrator, ChangeRequest, KeyView, Note, messages};
use crate::algorithm::Cost;
use crate::projects::ProjectId;
use crate::telemetry::metrics::Metrics;
use rlaas_limiter::KeyChange;

/// `ratelimit.admin.v1.AdminService`. Clones share their state.
#[derive(Clone, Debug)]
pub struct Service {
    administrator: Administrator,
    projects: ProjectAdministrator,
    metrics: Arc<Metrics>,
}

impl Service {
    /// Creates the service.
    pub fn new(
        administrator: Administrator,
        projects: ProjectAdministrator,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { administrator, projects, metrics }
    }

    /// Returns how the caller of a request sees keys.
    async fn key_view<T>(
        &self,
        request: &Request<T>,
        is_in_clear: bool,
    ) -> Result<KeyView, Status> {
        if is_in_clear {
            return Ok(KeyView::Clear);
        }
        let (hasher, deadline) = (self.administrator.hasher(), deadline(request.metadata()));
        KeyView::hashed(hasher, deadline).await.map_err(|error| admin(&error))
    }

    /// Makes a change of the keys that a message selects.
    async fn change<T>(
        &self,
        request: &Request<T>,
        fields: ChangeFields<'_>,
    ) -> Result<proto::Change, Status> {
        let ChangeFields { action, required, selector, change, reason, request_id } = fields;
        let caller = caller(request)?;
        let project = admitted_selector(caller, selector, required)?;
        let selector = ParsedSelector::new(selector)?;
        let request_of = ChangeRequest {
            actor: caller.actor(),
            action,
            holder: caller.holder(project.as_str()),
            project: project.as_str(),
            selector: selector.selector(),
            change,
            reason,
            request_id,
        };
        let deadline = deadline(request.metadata());
        let change = self.administrator.change(&request_of, deadline).await;
        change.map_err(|error| admin(&error))
    }

    /// Returns the response to a change, with a warning if a restart loses it.
    fn changed<T>(&self, message: T) -> Response<T> {
        let mut response = Response::new(message);
        if !self.administrator.limiter().store().outlives_process() {
            let warning = MetadataValue::from_static(LOST_AT_RESTART);
            response.metadata_mut().insert(WARNING, warning);
        }
        response
    }
}

/// Metadata of a response to a change, over HTTP a header: a warning for the administrator.
pub(crate) const WARNING: &str = "rlaas-warning";
const LOST_AT_RESTART: &str = "a restart loses this change: set store.memory.journal.path";

/// The fields that messages of changes have in common.
struct ChangeFields<'a> {
    action: &'static str,
    /// One of these roles in the project.
    required: Roles,
    selector: Option<&'a proto::Selector>,
    change: KeyChange<'a>,
    reason: &'a str,
    request_id: &'a str,
}

#[tonic::async_trait]
impl AdminService for Service {
    async fn inspect(
        &self,
        request: Request<proto::InspectRequest>,
    ) -> Result<Response<proto::InspectResponse>, Status> {
        let deadline = deadline(request.metadata());
        let selector = request.get_ref().selector.as_ref();
        let project = admitted_selector(caller(&request)?, selector, OPERATE)?;
        let selector = ParsedSelector::new(selector)?;
        let states =
            self.administrator.inspect(project.as_str(), &selector.selector(), deadline).await;
        let states = states.map_err(|error| admin(&error))?;
        let keys = states.into_iter().map(messages::key_state).collect();
        Ok(Response::new(proto::InspectResponse { keys }))
    }

    async fn reset(
        &self,
        request: Request<proto::ResetRequest>,
    ) -> Result<Response<proto::ResetResponse>, Status> {
        let proto::ResetRequest { selector, reason, request_id } = request.get_ref();
        let fields = ChangeFields {
            action: "Reset",
            required: OPERATE,
            selector: selector.as_ref(),
            change: KeyChange::Reset,
            reason,
            request_id,
        };
        let change = Some(self.change(&request, fields).await?);
        Ok(self.changed(proto::ResetResponse { change }))
    }

    async fn refund(
        &self,
        request: Request<proto::RefundRequest>,
    ) -> Result<Response<proto::RefundResponse>, Status> {
        let proto::RefundRequest { selector, units, reason, request_id } = request.get_ref();
        let units = u32::try_from(*units).ok().filter(|units| *units > 0);
        let units = units.ok_or_else(|| invalid_field("units", "must be 1 to 4294967295"))?;
        if request_id.is_empty() {
            return Err(invalid_field("request_id", "must be 1 to 64 bytes"));
        }
        let fields = ChangeFields {
            action: "Refund",
            required: OPERATE,
            selector: selector.as_ref(),
            change: KeyChange::Refund(Cost::new(units)),
            reason,
            request_id,
        };
        let change = Some(self.change(&request, fields).await?);
        Ok(self.changed(proto::RefundResponse { change }))
    }

    async fn set_override(
        &self,
        request: Request<proto::SetOverrideRequest>,
    ) -> Result<Response<proto::SetOverrideResponse>, Status> {
        let message = request.get_ref();
        let proto::SetOverrideRequest { selector, grant, ttl, reason, request_id } = message;
        let note = Note::of_new_override(caller(&request)?.actor(), reason);
        let change = overrides::change(grant.as_ref(), ttl.as_ref(), &note)?;
        let fields = ChangeFields {
            action: "SetOverride",
            required: ADMIN,
            selector: selector.as_ref(),
            change: KeyChange::SetOverride(&change),
            reason,
            request_id,
        };
        let change = Some(self.change(&request, fields).await?);
        let mut response = self.changed(proto::SetOverrideResponse { change });
        let store = self.administrator.limiter().store();
        let warning = match (store.may_evict(), store.is_lost_at_restart()) {
            (true, _) => Some(MAY_EVICT),
            (false, true) => Some(NOT_PERSISTENT),
            (false, false) => None,
        };
        if let Some(warning) = warning {
            response.metadata_mut().insert(WARNING, MetadataValue::from_static(warning));
        }
        Ok(response)
    }

    async fn clear_override(
        &self,
        request: Request<proto::ClearOverrideRequest>,
    ) -> Result<Response<proto::ClearOverrideResponse>, Status> {
        let proto::ClearOverrideRequest { selector, kind, reason, request_id } = request.get_ref();
        let fields = ChangeFields {
            action: "ClearOverride",
            required: ADMIN,
            selector: selector.as_ref(),
            change: KeyChange::ClearOverride(overrides::kind(*kind)?),
            reason,
            request_id,
        };
        let change = Some(self.change(&request, fields).await?);
        Ok(self.changed(proto::ClearOverrideResponse { change }))
    }

    async fn list_overrides(
        &self,
        request: Request<proto::ListOverridesRequest>,
    ) -> Result<Response<proto::ListOverridesResponse>, Status> {
        let deadline = deadline(request.metadata());
        let message = request.get_ref();
        let proto::ListOverridesRequest { project_id, page_size, page_token, rule, kind } = message;
        let caller = caller(&request)?;
        let rule = Some(rule.as_str()).filter(|rule| !rule.is_empty());
        let (kind, count) = (overrides::kind(*kind)?, page_count(*page_size)?);
        let of = &self.administrator;
        let every = project_id == lists::EVERY_PROJECT;
        if !every {
            let project = admitted(caller, project_id, ADMIN)?;
            of.check_known(project.as_str(), rule).map_err(|error| admin(&error))?;
        }
        let is_listed = |id: &str| {
            if every { admitted(caller, id, ADMIN).is_ok() } else { id == project_id }
        };
        let page = of.list_overrides(is_listed, rule, kind, page_token, count, deadline).await;
        let page = page.map_err(|error| admin(&error))?;
        Ok(Response::new(overrides::page(page, self.administrator.limiter())))
    }

    async fn explain(
        &self,
        request: Request<proto::ExplainRequest>,
    ) -> Result<Response<proto::ExplainResponse>, Status> {
        let deadline = deadline(request.metadata());
        let caller = caller(&request)?;
        let project = admitted(caller, &request.get_ref().project_id, OPERATE_OR_ADMIN)?;
        let is_operator = caller.roles_in(&project).contains(Role::Operate);
        let limiter = self.administrator.limiter();
        let mut response = explain(limiter, request.into_inner(), deadline).await?;
        origins::add(&mut response, &self.projects, &project);
        if !is_operator {
            response.result = None;
            for rule in &mut response.rules {
                (rule.state, rule.decision, rule.deny_cached_for) = (None, None, None);
            }
        }
        Ok(Response::new(response))
    }

    async fn explain_descriptors(
        &self,
        request: Request<proto::ExplainDescriptorsRequest>,
    ) -> Result<Response<proto::ExplainDescriptorsResponse>, Status> {
        caller(&request)?;
        let deadline = deadline(request.metadata());
        let limiter = self.administrator.limiter();
        let mut response = explain_descriptors(limiter, request.into_inner(), deadline).await?;
        let snapshot = limiter.snapshot();
        origins::add_to_descriptors(&mut response, snapshot.rules.descriptors());
        Ok(Response::new(response))
    }

    async fn list_audit(
        &self,
        request: Request<proto::ListAuditRequest>,
    ) -> Result<Response<proto::ListAuditResponse>, Status> {
        let deadline = deadline(request.metadata());
        let caller = caller(&request)?;
        lists::audit(&self.projects, caller, request.get_ref(), deadline).await.map(Response::new)
    }

    async fn list_instances(
        &self,
        request: Request<proto::ListInstancesRequest>,
    ) -> Result<Response<proto::ListInstancesResponse>, Status> {
        caller(&request)?;
        let deadline = deadline(request.metadata());
        lists::instances(&self.administrator, request.get_ref(), deadline).await.map(Response::new)
    }

    async fn top_keys(
        &self,
        request: Request<proto::TopKeysRequest>,
    ) -> Result<Response<proto::TopKeysResponse>, Status> {
        let (caller, id) = (caller(&request)?, &request.get_ref().project_id);
        let id = admitted(caller, id, OPERATE_OR_ADMIN)?;
        let snapshot = self.administrator.limiter().project_snapshot(id.as_str());
        let snapshot = snapshot.ok_or_else(no_project)?;
        let is_in_clear = caller.roles_in(&id).contains(Role::Operate);
        let view = self.key_view(&request, is_in_clear).await?;
        let query = TopKeysQuery::new(request.get_ref())?;
        let (of, deadline) = (&self.administrator, deadline(request.metadata()));
        let counts = of.top_keys(&snapshot.rules, &query.counts, deadline).await;
        let counts = counts.map_err(top_keys::refused)?;
        Ok(query.response(&snapshot.rules, counts, &view))
    }

    type WatchDecisionsStream = decisions::Responses;

    async fn watch_decisions(
        &self,
        request: Request<proto::WatchDecisionsRequest>,
    ) -> Result<Response<Self::WatchDecisionsStream>, Status> {
        let (caller, id) = (caller(&request)?, &request.get_ref().project_id);
        let projects = WatchedProjects::new(self.administrator.limiter(), caller, id)?;
        let view = self.key_view(&request, projects.are_in_clear(caller)).await?;
        let holder = caller.holder(id);
        let filter = decisions::filter(request.into_inner(), projects)?;
        let watch = self.metrics.decisions.watch(filter, holder).map_err(decisions::refused)?;
        let hasher = self.administrator.hasher().clone();
        Ok(Response::new(decisions::responses(watch, view, hasher)))
    }

    async fn set_mode(
        &self,
        request: Request<proto::SetModeRequest>,
    ) -> Result<Response<proto::SetModeResponse>, Status> {
        let change = modes::change(caller(&request)?, request.get_ref())?;
        let deadline = deadline(request.metadata());
        let answer = self.administrator.set_mode(change, deadline).await;
        Ok(self.changed(answer.map_err(|error| admin(&error))?))
    }

    type WatchStatsStream = stats::StatsResponses;

    async fn watch_stats(
        &self,
        request: Request<proto::WatchStatsRequest>,
    ) -> Result<Response<Self::WatchStatsStream>, Status> {
        let access = request.extensions().get::<StreamAccess>().cloned();
        let holder = caller(&request)?.holder(&request.get_ref().project_id);
        let selected = stats::selected(&self.administrator, caller(&request)?, request.get_ref())?;
        let query = stats::StatsQuery::new(request.get_ref())?;
        if request.get_ref().past_only {
            return Ok(Response::new(stats::past(&self.administrator, query, &selected)));
        }
        let watch = self.administrator.stats().watch(holder).map_err(stats::refused)?;
        let reader = stats::Reader { administrator: self.administrator.clone(), access, selected };
        Ok(Response::new(stats::responses(watch, query, reader).await))
    }
}

/// Warning of an override in a store that may lose it.
const MAY_EVICT: &str = "redis may evict keys when its memory is full: the override may be lost \
                         before it ends (maxmemory-policy)";
const NOT_PERSISTENT: &str = "redis loses the override when it restarts: set appendonly yes";

/// Most items of a page.
const MAX_PAGE: usize = 1_000;
/// Items of a page if its size is not set.
const DEFAULT_PAGE: usize = 50;

/// Returns the number of items of a page.
fn page_count(page_size: i32) -> Result<usize, Status> {
    match usize::try_from(page_size) {
        Ok(0) => Ok(DEFAULT_PAGE),
        Ok(size) => Ok(size.min(MAX_PAGE)),
        Err(_) => Err(invalid_field("page_size", "must be 0, or 1 to 1000")),
    }
}

/// Returns the caller of a request. Without one the middleware has not admitted it.
fn caller<T>(request: &Request<T>) -> Result<&Caller, Status> {
    let caller = Caller::from_extensions(request.extensions());
    caller.ok_or_else(|| Status::permission_denied("the caller was not admitted"))
}

/// Returns the project of a selector, if the caller has one of the roles in it.
fn admitted_selector(
    caller: &Caller,
    selector: Option<&proto::Selector>,
    required: Roles,
) -> Result<ProjectId, Status> {
    admitted(caller, selector.map_or("", |selector| &selector.project_id), required)
}
