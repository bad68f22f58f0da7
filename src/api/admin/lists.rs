//! Lists: the audit and the instances, in pages.

use prost_types::Timestamp as ProtoTimestamp;
use rlaas_proto::ratelimit::admin::v1 as proto;
use tonic::Status;

use super::page_count;
use super::projects::{ADMIN, admitted, no_project};
use super::selector::ParsedSelector;
use crate::admin::projects::ProjectAdministrator;
use crate::admin::{AdminError, Administrator, AuditFilter, AuditedProjects, PageToken};
use crate::api::auth::{Caller, Role};
use crate::api::status::{admin, invalid_field};
use crate::clock::{Deadline, Timestamp};

/// Longest time that a list may take, whatever deadline its caller has.
const MAX_TIME: std::time::Duration = std::time::Duration::from_secs(10);
/// Stands for every project.
pub(super) const EVERY_PROJECT: &str = "-";
/// Most bytes of a token for a page of instances: host name and suffix.
const MAX_TOKEN_LEN: usize = 512;

/// Returns a page of the audit.
pub(super) async fn audit(
    projects: &ProjectAdministrator,
    caller: &Caller,
    request: &proto::ListAuditRequest,
    deadline: Deadline,
) -> Result<proto::ListAuditResponse, Status> {
    let administrator = projects.administrator();
    let projects = audited(projects, caller, &request.project_id)?;
    let page_size = page_count(request.page_size)?;
    let page = match request.page_token.as_str() {
        "" => None,
        token => Some(token.parse::<PageToken>().map_err(|_| invalid_token())?),
    };
    let selector = request.selector.as_ref();
    let selector = selector.map(|selector| ParsedSelector::new(Some(selector))).transpose()?;
    let keys = match &selector {
        None => None,
        Some(selector) => {
            let project = Some(&*request.project_id).filter(|id| *id != EVERY_PROJECT);
            let keys = administrator.select(project.unwrap_or_default(), &selector.selector());
            Some(keys.map_err(|error| admin(&error))?)
        }
    };
    let filter = AuditFilter {
        projects: projects.as_ref(),
        keys: keys.as_deref(),
        target: &request.target,
        actor: &request.actor,
        since: request.since.as_ref().map(|time| parsed("since", time)).transpose()?,
        until: request.until.as_ref().map(|time| parsed("until", time)).transpose()?,
    };
    if filter.since.zip(filter.until).is_some_and(|(since, until)| since > until) {
        return Err(invalid_field("since", "must not be after until"));
    }
    let deadline = deadline.or_within(MAX_TIME);
    let page = administrator.audit().list(&filter, page_size, page, deadline).await;
    let page = page.map_err(|error| admin(&AdminError::Store(error)))?;
    let next_page_token = page.next.map(|next| next.to_string()).unwrap_or_default();
    Ok(proto::ListAuditResponse { entries: page.entries, next_page_token })
}

/// Returns the projects whose changes a caller may list; `None` if they are all. Those of a project
/// that was deleted are for callers with the role for all projects, also if another one has its id.
fn audited(
    projects: &ProjectAdministrator,
    caller: &Caller,
    id: &str,
) -> Result<Option<AuditedProjects>, Status> {
    let is_for_all = caller.has(Role::Admin);
    if id == EVERY_PROJECT {
        let own = caller.projects_with(ADMIN).filter_map(|id| projects.audited(id));
        return Ok((!is_for_all).then(|| own.collect()));
    }
    let id = admitted(caller, id, ADMIN)?;
    let audited =
        if is_for_all { Some((id.into(), Timestamp::EPOCH)) } else { projects.audited(&id) };
    let audited = audited.ok_or_else(no_project)?;
    Ok(Some(AuditedProjects::from([audited])))
}

/// Returns a page of the instances. The token is the id of the last instance of the page before.
pub(super) async fn instances(
    administrator: &Administrator,
    request: &proto::ListInstancesRequest,
    deadline: Deadline,
) -> Result<proto::ListInstancesResponse, Status> {
    let page_size = page_count(request.page_size)?;
    if request.page_token.len() > MAX_TOKEN_LEN {
        return Err(invalid_token());
    }
    let all = administrator.instances().list(deadline.or_within(MAX_TIME)).await;
    let mut instances = all.map_err(|error| admin(&AdminError::Store(error)))?;
    if !request.page_token.is_empty() {
        instances.retain(|instance| instance.id > request.page_token);
    }
    let has_more = instances.len() > page_size;
    instances.truncate(page_size);
    let last = instances.last().filter(|_| has_more);
    let next_page_token = last.map(|last| last.id.clone()).unwrap_or_default();
    Ok(proto::ListInstancesResponse { instances, next_page_token })
}

fn invalid_token() -> Status {
    invalid_field("page_token", "must be the next_page_token of the response before")
}

/// Parses a time; fractions of a microsecond are cut off.
pub(super) fn parsed(field: &str, time: &ProtoTimestamp) -> Result<Timestamp, Status> {
    let invalid = || invalid_field(field, "must be a time from 1970 to 9999");
    let seconds = u64::try_from(time.seconds).map_err(|_| invalid())?;
    let nanos = u64::try_from(time.nanos).map_err(|_| invalid())?;
    if seconds > 253_402_300_799 || nanos > 999_999_999 {
        return Err(invalid());
    }
    Ok(Timestamp::from_micros(seconds * 1_000_000 + nanos / 1_000))
}
