//! Publishing: the rules of the text become those of the project, as one revision.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use super::form::ChangeForm;
use super::plan::{ChangePlan, plan};
use super::{ChangeResult, NewerRules, admitted_form, respond};
use crate::admin::projects::{ProjectCall, ProjectError, RulesGiven, RulesWritten};
use crate::clock::Deadline;
use crate::console::Console;
use crate::console::action::{Action, RulesAction};
use crate::console::fields::Link;
use crate::console::page_error::PageError;
use crate::console::project_access::{ADMIN, field_of};
use crate::console::visitor::ConsoleVisitor;
use crate::projects::{History, Others};

/// Longest wait for a write.
const MAX_TIME: Duration = Duration::from_secs(20);
/// Most attempts to write: another one follows if only API keys have changed meanwhile.
const MAX_ATTEMPTS: u32 = 3;

/// Publishes rules, if the visitor has seen the plan.
pub(in crate::console) async fn publish(
    State(console): State<Console>,
    RulesAction(action): RulesAction,
) -> Response {
    let Action { visitor, fields, .. } = action;
    let form = match admitted_form(&visitor, fields, ADMIN).await {
        Ok(form) => form,
        Err(refusal) => return refusal.respond(&console).await,
    };
    let frame = console.frame(&visitor, "projects");
    match try_publish(&console, &visitor, form).await {
        Ok(Published { form, text }) => {
            let link = Link::to("change").with("project", field_of(&form.project));
            console.done(&visitor, link, &text)
        }
        Err(refused) => respond(&console, &visitor, frame, *refused).await,
    }
}

/// What was published, as a sentence.
struct Published {
    form: ChangeForm,
    text: String,
}

/// The form again, what the page shows below it, and its status.
type NotPublished = Box<(ChangeForm, ChangeResult, StatusCode)>;

async fn try_publish(
    console: &Console,
    visitor: &ConsoleVisitor,
    mut form: ChangeForm,
) -> Result<Published, NotPublished> {
    let refused = |form, error: PageError| {
        Err(Box::new((form, ChangeResult::Refused(error.sentence()), error.status)))
    };
    let call = ProjectCall {
        actor: visitor.caller.actor().to_owned(),
        action: "ApplyRules",
        reason: form.reason.clone(),
        // The revision lets a form be published once.
        request_id: String::new(),
        scope: visitor.caller.scope(),
        deadline: Deadline::within(MAX_TIME),
    };
    let mut attempts = 0;
    loop {
        form.revision = seen_revision(console, &form).await;
        let plan = match plan(console, &form).await {
            Ok(plan) => plan,
            Err(error) => return refused(form, error),
        };
        if !plan.problems.is_empty() {
            return Err(Box::new((form, ChangeResult::Plan(plan), StatusCode::BAD_REQUEST)));
        }
        if plan.changes.is_empty() {
            // Perhaps the form was sent twice.
            let text =
                "The rules in force are those of the text: nothing was left to change.".to_owned();
            return Ok(Published { form, text });
        }
        if plan.revision != form.revision {
            return Err(stale(console, form, plan).await);
        }
        if !form.has_seen_plan {
            return Err(Box::new((form, ChangeResult::Plan(plan), StatusCode::CONFLICT)));
        }
        let given = RulesGiven {
            specs: plan.specs,
            others: Others::Deleted,
            expected_revision: Some(form.revision),
        };
        attempts += 1;
        match console.projects.apply_rules(&call, &form.project, given).await {
            Ok(written) => return Ok(Published { form, text: outcome(&written) }),
            // This instance had not heard of a newer revision: the plan was one against older rules.
            Err(ProjectError::StaleRevision) if attempts < MAX_ATTEMPTS => {}
            Err(error) => return refused(form, error.into()),
        }
    }
}

fn outcome(RulesWritten { revision, changes }: &RulesWritten) -> String {
    let number = revision.as_ref().map_or(0, |revision| revision.number);
    let rules = if changes.len() == 1 { "rule" } else { "rules" };
    format!("Published as revision {number}: {} {rules} changed.", changes.len())
}

/// Returns the revision that the visitor has seen, or the one in force if the rules are the same:
/// changes of API keys count as revisions of the project, too.
async fn seen_revision(console: &Console, form: &ChangeForm) -> u64 {
    let Ok(state) = console.projects.project(&form.project) else { return form.revision };
    if state.revision <= form.revision {
        return form.revision;
    }
    let deadline = Deadline::within(MAX_TIME);
    // The newest one is enough.
    let history = console.projects.revisions_until(&form.project, |_| true, deadline).await;
    let newest = history.ok().map(|of| of.iter().next().map_or(0, |revision| revision.number));
    if newest.is_some_and(|newest| newest <= form.revision) {
        state.revision
    } else {
        form.revision
    }
}

/// Returns the form beside the rules that others have published. It can be published over those that
/// its plan starts from.
async fn stale(console: &Console, form: ChangeForm, plan: ChangePlan) -> NotPublished {
    let (id, seen) = (&form.project, form.revision);
    let deadline = Deadline::within(MAX_TIME);
    let history = console.projects.revisions_until(id, |number| number <= seen, deadline).await;
    let history = history.unwrap_or_default();
    // The newest revision of the rules that the visitor has seen.
    let base = history.iter().map(|of| of.number).find(|number| *number <= seen).or_else(|| {
        let is_whole = history.iter().count() < History::MAX_LEN;
        is_whole.then_some(0)
    });
    let diff = match base {
        Some(base) => console.projects.revision(id, 0, Some(base), deadline).await.ok(),
        None => None,
    };
    let newer = NewerRules {
        revision: history.iter().next().filter(|of| of.number > seen).cloned(),
        changes: diff.map(|diff| diff.changes),
    };
    let form = ChangeForm { revision: plan.revision, ..form };
    Box::new((form, ChangeResult::Stale { plan, newer: Box::new(newer) }, StatusCode::CONFLICT))
}
