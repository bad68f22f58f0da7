//! Lists: the audit and the instances, in pages.

use prost_types::Timestamp as ProtoTimestamp;
use rlaas_auth::{Caller, Role, deadline};
use rlaas_proto::ratelimit::admin::v1 as proto;
use tonic::{Request, Status};

use super::audit::{AuditFilter, AuditedProjects, PageToken};
use super::projects::{ADMIN, admitted};
use super::refusals::{self, invalid_page_token};
use super::selector::ParsedSelector;
use super::{EVERY_PROJECT, MAX_TIME, Service, caller, page_count};
use rlaas_core::clock::Timestamp;
use rlaas_proto::status::invalid_field;

/// Most bytes of a token for a page of instances: host name and suffix.
const MAX_TOKEN_LEN: usize = 512;

impl Service {
    /// Returns a page of the audit.
    pub(super) async fn audit_page(
        &self,
        request: &Request<proto::ListAuditRequest>,
    ) -> Result<proto::ListAuditResponse, Status> {
        let message = request.get_ref();
        let projects = self.audited(caller(request)?, &message.project_id)?;
        let page_size = page_count(message.page_size)?;
        let page = match message.page_token.as_str() {
            "" => None,
            token => Some(PageToken::parse(token).ok_or_else(invalid_page_token)?),
        };
        let keys = match &message.selector {
            None => None,
            selector => {
                let selector = ParsedSelector::new(selector.as_ref())?;
                let project = Some(&*message.project_id).filter(|id| *id != EVERY_PROJECT);
                let project = project.unwrap_or_default();
                Some(self.administrator.select(project, &selector.selector())?)
            }
        };
        let filter = AuditFilter {
            projects: projects.as_ref(),
            keys: keys.as_deref(),
            target: &message.target,
            rule: &message.rule,
            actor: &message.actor,
            since: message.since.as_ref().map(|time| parsed("since", time)).transpose()?,
            until: message.until.as_ref().map(|time| parsed("until", time)).transpose()?,
        };
        if filter.since.zip(filter.until).is_some_and(|(since, until)| since > until) {
            return Err(invalid_field("since", "must not be after until"));
        }
        let deadline = deadline(request.metadata()).or_within(MAX_TIME);
        let page = self.administrator.audit().list(&filter, page_size, page, deadline).await;
        let page = page.map_err(|error| refusals::store(&error))?;
        let next_page_token = page.next.map(|next| next.to_string()).unwrap_or_default();
        Ok(proto::ListAuditResponse { entries: page.entries, next_page_token })
    }

    /// Returns the projects whose changes a caller may list; `None` if they are all. Those of a project
    /// that was deleted are for callers with the role for all projects, also if another one has its id.
    fn audited(&self, caller: &Caller, id: &str) -> Result<Option<AuditedProjects>, Status> {
        let is_for_all = caller.has(Role::Admin);
        if id == EVERY_PROJECT {
            let own = caller.projects_with(ADMIN).filter_map(|id| self.projects.audited(id));
            return Ok((!is_for_all).then(|| own.collect()));
        }
        let id = admitted(caller, id, ADMIN)?;
        if is_for_all {
            return Ok(Some([(id.into(), Timestamp::EPOCH)].into()));
        }
        let audited = self.projects.audited(&id).ok_or_else(refusals::no_project)?;
        Ok(Some([audited].into()))
    }

    /// Returns a page of the instances. The token is the id of the last instance of the page before.
    pub(super) async fn instances_page(
        &self,
        request: &Request<proto::ListInstancesRequest>,
    ) -> Result<proto::ListInstancesResponse, Status> {
        caller(request)?;
        let proto::ListInstancesRequest { page_size, page_token } = request.get_ref();
        let page_size = page_count(*page_size)?;
        if page_token.len() > MAX_TOKEN_LEN {
            return Err(invalid_page_token());
        }
        let deadline = deadline(request.metadata()).or_within(MAX_TIME);
        let all = self.administrator.instances().list(deadline).await;
        let mut instances = all.map_err(|error| refusals::store(&error))?;
        if !page_token.is_empty() {
            instances.retain(|instance| instance.id > *page_token);
        }
        let has_more = instances.len() > page_size;
        instances.truncate(page_size);
        let last = instances.last().filter(|_| has_more);
        let next_page_token = last.map(|last| last.id.clone()).unwrap_or_default();
        Ok(proto::ListInstancesResponse { instances, next_page_token })
    }
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
