//! Usage of projects, and the last use of their keys, as messages.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rlaas_auth::{Caller, ProjectId, deadline};
use rlaas_projects::usage::{DailyUsage, Day, UsageBy, UsagePlace, UsageQuery};
use rlaas_proto::ratelimit::admin::v1 as proto;
use tonic::{Request, Status};

use super::{OPERATE_OR_ADMIN, Projects, admitted};
use crate::refusals::{invalid_page_token, store};
use crate::{EVERY_PROJECT, MAX_TIME, caller, page_count};
use rlaas_proto::status::invalid_field;

impl Projects {
    pub(super) async fn usage_page(
        &self,
        request: &Request<proto::ListUsageRequest>,
    ) -> Result<proto::ListUsageResponse, Status> {
        let message = request.get_ref();
        let proto::ListUsageRequest { project_id, page_size, page_token, .. } = message;
        let projects = self.selected(caller(request)?, project_id)?;
        let query = query(message)?;
        let after = place(page_token)?;
        let size = page_count(*page_size)?;
        let deadline = deadline(request.metadata()).or_within(MAX_TIME);
        let page = self.usage.list(projects, query, after.as_ref(), size, deadline).await;
        let page = page.map_err(|error| store(&error))?;
        let next = page.next.as_ref().map(token);
        let usage = page.rows.into_iter().map(|row| row_message(query.by, row)).collect();
        Ok(proto::ListUsageResponse { usage, next_page_token: next.unwrap_or_default() })
    }

    /// Returns the projects of a list that its caller may see.
    fn selected(&self, caller: &Caller, project_id: &str) -> Result<Vec<ProjectId>, Status> {
        if project_id != EVERY_PROJECT {
            let id = admitted(caller, project_id, OPERATE_OR_ADMIN)?;
            self.project(&id)?;
            return Ok(vec![id]);
        }
        let all = self.projects().into_iter().map(|state| state.project.id.clone());
        Ok(all.filter(|id| caller.roles_in(id).intersects(OPERATE_OR_ADMIN)).collect())
    }
}

fn query(message: &proto::ListUsageRequest) -> Result<UsageQuery, Status> {
    let day = |field: &str, text: &str| match text {
        "" => Ok(None),
        text => {
            let day =
                text.parse::<Day>().map_err(|invalid| invalid_field(field, &invalid.to_string()));
            day.map(Some)
        }
    };
    let by = by(message.by)?;
    let first = day("first_day", &message.first_day)?;
    let last = day("last_day", &message.last_day)?;
    if let (Some(first), Some(last)) = (first, last)
        && first > last
    {
        return Err(invalid_field("first_day", "must not be after last_day"));
    }
    Ok(UsageQuery { by, first, last })
}

fn by(number: i32) -> Result<UsageBy, Status> {
    match proto::UsageBy::try_from(number) {
        Ok(proto::UsageBy::Unspecified | proto::UsageBy::Day) => Ok(UsageBy::Day),
        Ok(proto::UsageBy::Key) => Ok(UsageBy::Key),
        Ok(proto::UsageBy::Rule) => Ok(UsageBy::Rule),
        Err(_) => Err(invalid_field("by", "must be USAGE_BY_DAY, USAGE_BY_KEY or USAGE_BY_RULE")),
    }
}

/// Returns the token of the page that begins after a place.
fn token(UsagePlace(project, day, name): &UsagePlace) -> String {
    let name = name.as_ref().map(|name| format!(".{}", URL_SAFE_NO_PAD.encode(name)));
    format!("{project}.{day}{}", name.unwrap_or_default())
}

/// Parses a token: the last place of the page before.
fn place(token: &str) -> Result<Option<UsagePlace>, Status> {
    if token.is_empty() {
        return Ok(None);
    }
    let parse = || {
        let (project, rest) = token.split_once('.')?;
        let (day, name) = match rest.split_once('.') {
            Some((day, name)) => (day, Some(URL_SAFE_NO_PAD.decode(name).ok()?)),
            None => (rest, None),
        };
        let name = name.map(String::from_utf8).transpose().ok()?;
        Some(UsagePlace(ProjectId::try_from(project.to_owned()).ok()?, day.parse().ok()?, name))
    };
    parse().ok_or_else(invalid_page_token).map(Some)
}

fn row_message(by: UsageBy, row: DailyUsage) -> proto::DailyUsage {
    let DailyUsage { project, day, name, usage, is_preliminary } = row;
    let (key_id, rule) = match by {
        UsageBy::Rule => (String::new(), name),
        UsageBy::Day | UsageBy::Key => (name, String::new()),
    };
    proto::DailyUsage {
        key_id,
        rule,
        project_id: project.to_string(),
        day: day.to_string(),
        allowed: usage.allowed,
        denied: usage.denied,
        units: usage.units,
        preliminary: is_preliminary,
    }
}
