//! Publishing: the rules of the text become those of the project, as one revision.

use axum::http::StatusCode;
use axum::response::Response;
use rlaas_proto::ratelimit::admin::v1::{ApplyRulesRequest, ApplyRulesResponse};

use super::form::ChangeForm;
use super::plan::{ChangePlan, plan};
use super::{ChangePage, ChangeResult, NewerRules, load, read, unreadable};
use crate::Console;
use crate::calls::{CHANGE_TIME, field_of, project, within};
use crate::fields::Link;
use crate::form::{Field, named};
use crate::page_error::PageError;
use crate::pages::history::{revision, revisions};
use crate::pages::undo::MADE;
use crate::visit::{Visit, Visitor};

/// Most attempts to write: another one follows if only API keys have changed meanwhile.
const MAX_ATTEMPTS: u32 = 3;
/// Most revisions that are kept.
const MAX_REVISIONS: usize = 100;

/// Publishes rules, if the visitor has seen the plan.
pub(crate) async fn publish(visit: Visit) -> Response {
    let frame = visit.frame("projects");
    let Visit { console, visitor, fields } = visit;
    if let Err(error) = visitor.admin_in(&fields) {
        return console.refuse(error).await;
    }
    let form = match read(fields).await {
        Ok(form) => form,
        Err(error) => return unreadable(&console, error).await,
    };
    let NotPublished { form, result, status } = match try_publish(&console, &visitor, form).await {
        Ok(Published { form, text, made }) => {
            let page = Link::to("change").with("project", field_of(&form.project));
            return visitor.done(page.with("name", &form.rule).with(MADE, &made), &text);
        }
        Err(refused) => *refused,
    };
    let (project, rules) = match load(&visitor, &form.project).await {
        Ok(loaded) => loaded,
        Err(error) => return console.refuse(error).await,
    };
    let format = console.rules_format;
    let page = ChangePage { frame, format, project, rules, form, result, undo: None };
    console.page(status, move || page.render()).await
}

/// What was published, as a sentence.
struct Published {
    form: ChangeForm,
    text: String,
    /// Number of the revision; 0 if nothing was left to change.
    made: String,
}

/// A form that is shown again, what the page shows below it, and its status.
struct NotPublished {
    form: ChangeForm,
    result: ChangeResult,
    status: StatusCode,
}

async fn try_publish(
    console: &Console,
    visitor: &Visitor,
    mut form: ChangeForm,
) -> Result<Published, Box<NotPublished>> {
    let refused = |form, error: PageError| {
        let status = error.status;
        Err(Box::new(NotPublished { form, result: ChangeResult::Refused(error), status }))
    };
    let planned = |form, plan, status| {
        Err(Box::new(NotPublished { form, result: ChangeResult::Plan(plan), status }))
    };
    let mut attempts = 0;
    loop {
        let planning = async {
            let now = project(visitor, &form.project).await?;
            let seen = seen_revision(visitor, &form, now.revision).await;
            Ok((seen, plan(console, visitor, &form, &now).await?))
        };
        let plan = match planning.await {
            Ok((seen, plan)) => {
                form.revision = seen;
                plan
            }
            Err(error) => return refused(form, error),
        };
        if !plan.problems.is_empty() {
            return planned(form, plan, StatusCode::BAD_REQUEST);
        }
        if plan.changes.is_empty() {
            // Perhaps the form was sent twice.
            let text =
                "The rules in force are those of the text: nothing was left to change.".to_owned();
            return Ok(Published { form, text, made: "0".to_owned() });
        }
        if plan.revision != form.revision {
            return Err(Box::new(stale(visitor, form, plan).await));
        }
        if !form.has_seen_plan {
            return planned(form, plan, StatusCode::CONFLICT);
        }
        let request = ApplyRulesRequest {
            project_id: form.project.clone(),
            rules: plan.rules,
            prune: form.rule.is_empty(),
            // It lets a form be published once.
            expected_revision: Some(form.revision),
            reason: form.reason.clone(),
        };
        attempts += 1;
        match visitor.projects().apply_rules(within(CHANGE_TIME, request)).await {
            Ok(written) => {
                let written = written.into_inner();
                let made =
                    written.revision.as_ref().map_or(0, |revision| revision.revision).to_string();
                return Ok(Published { form, text: outcome(&written), made });
            }
            Err(status) => {
                let error = named(&[Field::REASON], status.into());
                // This instance had not heard of a newer revision: the plan was one against older
                // rules.
                if error.reason != "STALE" || attempts == MAX_ATTEMPTS {
                    return refused(form, error);
                }
            }
        }
    }
}

fn outcome(ApplyRulesResponse { revision, changes }: &ApplyRulesResponse) -> String {
    let number = revision.as_ref().map_or(0, |revision| revision.revision);
    let rules = if changes.len() == 1 { "rule" } else { "rules" };
    format!("Published as revision {number}: {} {rules} changed.", changes.len())
}

/// Returns the revision that the visitor has seen, or the one in force if the rules are the same:
/// changes of API keys count as revisions of the project, too.
async fn seen_revision(visitor: &Visitor, form: &ChangeForm, now: u64) -> u64 {
    if now <= form.revision {
        return form.revision;
    }
    let history = revisions(visitor, &form.project).await.ok();
    let newest = history.map(|history| history.first().map_or(0, |revision| revision.revision));
    if newest.is_some_and(|newest| newest <= form.revision) { now } else { form.revision }
}

/// Returns the form beside the rules that others have published. It can be published over those that
/// its plan starts from.
async fn stale(visitor: &Visitor, form: ChangeForm, plan: ChangePlan) -> NotPublished {
    let seen = form.revision;
    let history = revisions(visitor, &form.project).await.unwrap_or_default();
    // The newest revision of the rules that the visitor has seen.
    let base = history.iter().map(|revision| revision.revision).find(|number| *number <= seen);
    let base = base.or_else(|| (history.len() < MAX_REVISIONS).then_some(0));
    let diff = match base {
        Some(base) => revision(visitor, &form.project, 0, Some(base)).await.ok(),
        None => None,
    };
    let newer = NewerRules {
        revision: history.first().filter(|newest| newest.revision > seen).cloned(),
        changes: diff.map(|diff| diff.changes),
    };
    let form = ChangeForm { revision: plan.revision, ..form };
    let result = ChangeResult::Stale { plan, newer: Box::new(newer) };
    NotPublished { form, result, status: StatusCode::CONFLICT }
}
