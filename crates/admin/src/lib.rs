//! Administration while the service runs: `ratelimit.admin.v1.AdminService` and `ProjectService`. Over
//! HTTP the same methods are called, with messages in JSON, and so do the pages of the console and the
//! command line.
//!
//! A method reads its message, checks the role of its caller, and acts on the limiter, the fleet and the
//! catalogue of projects. A change is recorded in the audit before and after.

mod administrator;
mod audit;
mod ban_key;
mod change;
mod decisions;
mod explain;
mod fleet_top_keys;
mod hasher;
mod instances;
mod key_view;
mod lists;
mod look_up;
mod messages;
mod modes;
mod note;
mod origins;
mod overrides;
mod projects;
mod refusals;
mod request_ids;
pub mod routes;
mod running;
mod selector;
mod stats;
mod thresholds;
mod top_keys;

pub use administrator::{AdminSettings, Administrator};
pub use audit::{
    Audit, AuditFilter, AuditKeys, AuditPage, AuditSettings, AuditedProjects, Intent, PageToken,
    PendingChange,
};
pub use change::AdminCall;
pub use explain::{explain, explain_descriptors};
pub use hasher::{ConfiguredHasher, SharedHasher};
pub use instances::Instances;
pub use key_view::KeyView;
pub use modes::Modes;
pub use note::Note;
pub use projects::PlannedChange;
pub use projects::Projects;
pub use projects::refusals::{no_random_numbers, rules as rule_refusal};
pub use projects::{OPERATE_OR_ADMIN, admitted};
pub use refusals::forbidden;
pub use stats::{
    FleetStats, MAX_STATS_WATCHERS, STATS_INTERVAL, StatsReading, StatsScope, StatsWatch,
};

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rlaas_auth::{Caller, EVERY_PROJECT, ProjectId, Role, Roles, StreamAccess, deadline};
use rlaas_proto::WARNING;
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::admin_service_server::AdminService;
use rlaas_telemetry::metrics::Metrics;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status};

use self::decisions::WatchedProjects;
use self::projects::{ADMIN, OPERATE};
use self::selector::ParsedSelector;
use self::stats::responses as stats_responses;
use rlaas_core::algorithm::Cost;
use rlaas_limiter::KeyChange;
use rlaas_proto::status::invalid_field;

/// Longest time that an operation may take before it changes something, whatever deadline its caller has:
/// the store may hang. So each is answered within 2 s.
const MAX_TIME: Duration = Duration::from_millis(1_600);
/// Longest time of a change that has begun, which has time of its own.
const MAX_CHANGE_TIME: Duration = Duration::from_secs(10);
/// Topic of the fleet by which instances are told to forget cached denials.
const FORGET: &str = "forget";

/// `ratelimit.admin.v1.AdminService`. Clones share their state.
#[derive(Clone, Debug)]
pub struct Service {
    administrator: Administrator,
    projects: Projects,
    metrics: Arc<Metrics>,
}

impl Service {
    /// Creates the service.
    pub fn new(administrator: Administrator, projects: Projects, metrics: Arc<Metrics>) -> Self {
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
        KeyView::hashed(self.administrator.hasher(), deadline(request.metadata())).await
    }

    /// Returns the projects of a request in which its caller has one of the roles, in the order of their ids.
    fn projects_of(
        &self,
        caller: &Caller,
        id: &str,
        required: Roles,
    ) -> Result<Vec<ProjectId>, Status> {
        let watched = WatchedProjects::new(self.administrator.limiter(), caller, id, required)?;
        let every =
            || self.projects.projects().iter().map(|state| state.project.id.clone()).collect();
        let ids: BTreeSet<ProjectId> = watched.ids().cloned().unwrap_or_else(every);
        if ids.is_empty() { Err(forbidden(required)) } else { Ok(Vec::from_iter(ids)) }
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

    /// Returns the response to a change of overrides, with a warning if the store may lose it.
    fn overridden<T>(&self, message: T) -> Response<T> {
        let mut response = self.changed(message);
        let store = self.administrator.limiter().store();
        let warning = match (store.may_evict(), store.is_lost_at_restart()) {
            (true, _) => Some(MAY_EVICT),
            (false, true) => Some(NOT_PERSISTENT),
            (false, false) => None,
        };
        if let Some(warning) = warning {
            response.metadata_mut().insert(WARNING, MetadataValue::from_static(warning));
        }
        response
    }
}

const LOST_AT_RESTART: &str = "a restart loses this change: set store.memory.journal.path";

#[tonic::async_trait]
impl AdminService for Service {
    async fn inspect(
        &self,
        request: Request<proto::InspectRequest>,
    ) -> Result<Response<proto::InspectResponse>, Status> {
        let deadline = deadline(request.metadata()).or_within(MAX_TIME);
        let selector = request.get_ref().selector.as_ref();
        let project = admitted_selector(caller(&request)?, selector, OPERATE)?;
        let selector = ParsedSelector::new(selector)?;
        let keys = self.administrator.select(project.as_str(), &selector.selector())?;
        let states = self.administrator.limiter().inspect(&keys, deadline).await;
        let states = states.map_err(|error| refusals::store(&error))?;
        let keys = states.into_iter().map(messages::key_state).collect();
        Ok(Response::new(proto::InspectResponse { keys }))
    }

    async fn reset(
        &self,
        request: Request<proto::ResetRequest>,
    ) -> Result<Response<proto::ResetResponse>, Status> {
        let proto::ResetRequest { selector, reason, request_id } = request.get_ref();
        let call = AdminCall::with_reason(&request, "Reset", reason, request_id)?;
        let change =
            self.administrator.change(&request, OPERATE, call, selector.as_ref(), KeyChange::Reset);
        let change = Some(change.await?);
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
        let call = AdminCall::with_reason(&request, "Refund", reason, request_id)?;
        let refund = KeyChange::Refund(Cost::new(units));
        let change = self.administrator.change(&request, OPERATE, call, selector.as_ref(), refund);
        let change = Some(change.await?);
        Ok(self.changed(proto::RefundResponse { change }))
    }

    async fn set_override(
        &self,
        request: Request<proto::SetOverrideRequest>,
    ) -> Result<Response<proto::SetOverrideResponse>, Status> {
        let message = request.get_ref();
        let proto::SetOverrideRequest { selector, grant, ttl, reason, request_id, raise_only } =
            message;
        let call = AdminCall::with_reason(&request, "SetOverride", reason, request_id)?;
        let call = AdminCall { raise_only: *raise_only, ..call };
        let set = overrides::change(grant.as_ref(), ttl.as_ref(), &call)?;
        let set = KeyChange::SetOverride(set);
        let change = self.administrator.change(&request, ADMIN, call, selector.as_ref(), set);
        let change = Some(change.await?);
        Ok(self.overridden(proto::SetOverrideResponse { change }))
    }

    async fn clear_override(
        &self,
        request: Request<proto::ClearOverrideRequest>,
    ) -> Result<Response<proto::ClearOverrideResponse>, Status> {
        let proto::ClearOverrideRequest { selector, kind, reason, request_id } = request.get_ref();
        let call = AdminCall::with_reason(&request, "ClearOverride", reason, request_id)?;
        let clear = KeyChange::ClearOverride(overrides::kind(*kind)?);
        let change = self.administrator.change(&request, ADMIN, call, selector.as_ref(), clear);
        let change = Some(change.await?);
        Ok(self.changed(proto::ClearOverrideResponse { change }))
    }

    async fn list_overrides(
        &self,
        request: Request<proto::ListOverridesRequest>,
    ) -> Result<Response<proto::ListOverridesResponse>, Status> {
        overrides::list(self.administrator.limiter(), &request).await.map(Response::new)
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
        self.audit_page(&request).await.map(Response::new)
    }

    async fn list_threshold_events(
        &self,
        request: Request<proto::ListThresholdEventsRequest>,
    ) -> Result<Response<proto::ListThresholdEventsResponse>, Status> {
        self.threshold_events(&request).await.map(Response::new)
    }

    async fn list_instances(
        &self,
        request: Request<proto::ListInstancesRequest>,
    ) -> Result<Response<proto::ListInstancesResponse>, Status> {
        self.instances_page(&request).await.map(Response::new)
    }

    async fn top_keys(
        &self,
        request: Request<proto::TopKeysRequest>,
    ) -> Result<Response<proto::TopKeysResponse>, Status> {
        self.highest_counts(&request).await
    }

    type WatchDecisionsStream = decisions::Responses;

    async fn watch_decisions(
        &self,
        request: Request<proto::WatchDecisionsRequest>,
    ) -> Result<Response<Self::WatchDecisionsStream>, Status> {
        let (caller, id) = (caller(&request)?, &request.get_ref().project_id);
        let projects =
            WatchedProjects::new(self.administrator.limiter(), caller, id, OPERATE_OR_ADMIN)?;
        let view = self.key_view(&request, projects.are_in_clear(caller)).await?;
        let holder = caller.watch_holder(id);
        let filter = decisions::filter(request.into_inner(), projects)?;
        let watch = self.metrics.decisions.watch(filter, holder).map_err(decisions::refused)?;
        let hasher = self.administrator.hasher().clone();
        Ok(Response::new(decisions::responses(watch, view, hasher)))
    }

    async fn set_mode(
        &self,
        request: Request<proto::SetModeRequest>,
    ) -> Result<Response<proto::SetModeResponse>, Status> {
        Ok(self.changed(self.administrator.set_mode(&request).await?))
    }

    type WatchStatsStream = stats_responses::StatsResponses;

    async fn watch_stats(
        &self,
        request: Request<proto::WatchStatsRequest>,
    ) -> Result<Response<Self::WatchStatsStream>, Status> {
        let access = request.extensions().get::<StreamAccess>().cloned();
        let holder = caller(&request)?.watch_holder(&request.get_ref().project_id);
        let selected =
            stats_responses::selected(&self.administrator, caller(&request)?, request.get_ref())?;
        let query = stats_responses::StatsQuery::new(request.get_ref())?;
        if request.get_ref().past_only {
            return Ok(Response::new(stats_responses::past(&self.administrator, query, &selected)));
        }
        let watch = self.administrator.stats().watch(holder).map_err(decisions::refused)?;
        let reader =
            stats_responses::Reader { administrator: self.administrator.clone(), access, selected };
        Ok(Response::new(stats_responses::responses(watch, query, reader).await))
    }

    async fn ban_key(
        &self,
        request: Request<proto::BanKeyRequest>,
    ) -> Result<Response<proto::BanKeyResponse>, Status> {
        let projects = self.projects_of(caller(&request)?, &request.get_ref().project_id, ADMIN)?;
        let changed = self.administrator.ban_key(&request, projects).await?;
        Ok(if request.get_ref().end { self.changed(changed) } else { self.overridden(changed) })
    }

    async fn look_up(
        &self,
        request: Request<proto::LookUpRequest>,
    ) -> Result<Response<proto::LookUpResponse>, Status> {
        // Boxed because it is large.
        Box::pin(self.looked_up(&request)).await.map(Response::new)
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
