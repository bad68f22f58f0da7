//! The rules of a project as a text: edited, checked, and published.
//!
//! | file | subject |
//! | --- | --- |
//! | `form` | the fields of the form |
//! | `plan` | what publishing would do |
//! | `publish` | the write |
//! | `view` | the page |
//!
//! A text is published as the page has shown its plan: who edits it afterwards sees another plan first.

mod form;
mod plan;
mod publish;
mod view;

pub(in crate::console) use self::publish::publish;

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::{HeaderName, StatusCode};
use axum::response::Response;

use self::form::ChangeForm;
use self::plan::ChangePlan;
use crate::api::auth::Roles;
use crate::console::Console;
use crate::console::action::{Action, RulesAction};
use crate::console::fields::{FieldError, FormFields};
use crate::console::layout::{Frame, notice};
use crate::console::project_access::{ADMIN, AccessError, OPERATE_OR_ADMIN, admitted};
use crate::console::rules_text::RulesFormat;
use crate::console::visitor::ConsoleVisitor;
use crate::projects::registry::{ProjectState, run_blocking};
use crate::projects::{Revision, RuleChange, RulesFile};
use crate::rule_messages;
use crate::rules::RuleSet;

/// The header of checks that the script of the page makes: it needs the result alone.
const BY_SCRIPT: HeaderName = HeaderName::from_static("x-console-check");

/// What the page shows below the text.
#[derive(Debug)]
enum ChangeResult {
    /// Nothing was asked for.
    None,
    Plan(ChangePlan),
    /// Others have published rules since the visitor loaded the page.
    Stale {
        plan: ChangePlan,
        newer: Box<NewerRules>,
    },
    Refused(String),
}

/// Rules that others have published.
#[derive(Debug)]
struct NewerRules {
    revision: Option<Revision>,
    /// Differences of the rules in force from those that the visitor began with; `None`: not known.
    changes: Option<Vec<RuleChange>>,
}

/// All that the page shows.
#[derive(Debug)]
struct ChangePage {
    frame: Frame,
    format: RulesFormat,
    state: Arc<ProjectState>,
    files: Option<Arc<RuleSet>>,
    form: ChangeForm,
    result: ChangeResult,
    may_publish: bool,
}

/// Shows the rules of a project that were made at run time.
pub(in crate::console) async fn show(
    State(console): State<Console>,
    visitor: ConsoleVisitor,
    RawQuery(query): RawQuery,
) -> Response {
    let query = FormFields::parse(query.unwrap_or_default().as_bytes()).unwrap_or_default();
    let project = query.one("project").unwrap_or_default();
    let id = match admitted(&visitor.caller, project, OPERATE_OR_ADMIN) {
        Ok(id) => id,
        Err(error) => return console.refuse_access(error).await,
    };
    let Ok(state) = console.projects.project(&id) else {
        return console.refuse_access(AccessError::NoProject).await;
    };
    let frame = console.frame_after_change(&visitor, "projects", &query);
    let (files, format) = (console.projects.files_beside(&id), console.rules_format);
    let (revision, of) = (state.revision, Arc::clone(&state));
    let text = run_blocking(move || text_of(format, &of, files.as_deref())).await;
    let form = ChangeForm::new(id, text, revision);
    respond(&console, &visitor, frame, (form, ChangeResult::None, StatusCode::OK)).await
}

/// Shows what publishing would do.
pub(in crate::console) async fn check(
    State(console): State<Console>,
    RulesAction(action): RulesAction,
) -> Response {
    let Action { visitor, fields, request } = action;
    let form = match admitted_form(&visitor, fields, OPERATE_OR_ADMIN).await {
        Ok(form) => form,
        Err(refusal) => return refusal.respond(&console).await,
    };
    let frame = console.frame(&visitor, "projects");
    let planned = plan::plan(&console, &form).await;
    let (result, status) = match planned {
        Ok(plan) => (ChangeResult::Plan(plan), StatusCode::OK),
        Err(error) => (ChangeResult::Refused(error.sentence()), error.status),
    };
    match ChangePage::new(&console, &visitor, frame, (form, result)) {
        Ok(page) if request.headers().contains_key(BY_SCRIPT) => {
            console.page(status, move || page.result()).await
        }
        Ok(page) => console.page(status, move || page.render()).await,
        Err(error) => console.refuse_access(error).await,
    }
}

/// Reason why a form is not looked at.
enum FormRefusal {
    Access(AccessError),
    Field(FieldError),
}

impl FormRefusal {
    async fn respond(self, console: &Console) -> Response {
        match self {
            Self::Access(error) => console.refuse_access(error).await,
            Self::Field(error) => {
                let detail = format!("{error}.");
                let render = move || notice("Nothing was changed", &detail);
                console.page(StatusCode::BAD_REQUEST, render).await
            }
        }
    }
}

/// Reads the form of a visitor who has one of the roles in its project.
async fn admitted_form(
    visitor: &ConsoleVisitor,
    fields: FormFields,
    required: Roles,
) -> Result<ChangeForm, FormRefusal> {
    let project = fields.one("project").map_err(FormRefusal::Field)?;
    let id = admitted(&visitor.caller, project, required).map_err(FormRefusal::Access)?;
    // No decision waits for a long text.
    let read = run_blocking(move || ChangeForm::read(id, &fields)).await;
    read.map_err(FormRefusal::Field)
}

async fn respond(
    console: &Console,
    visitor: &ConsoleVisitor,
    frame: Frame,
    (form, result, status): (ChangeForm, ChangeResult, StatusCode),
) -> Response {
    match ChangePage::new(console, visitor, frame, (form, result)) {
        Ok(page) => console.page(status, move || page.render()).await,
        Err(error) => console.refuse_access(error).await,
    }
}

impl ChangePage {
    fn new(
        console: &Console,
        visitor: &ConsoleVisitor,
        frame: Frame,
        (form, result): (ChangeForm, ChangeResult),
    ) -> Result<Self, AccessError> {
        let state = console.projects.project(&form.project).map_err(|_| AccessError::NoProject)?;
        Ok(Self {
            frame,
            format: console.rules_format,
            state,
            files: console.projects.files_beside(&form.project),
            may_publish: visitor.caller.roles_in(&form.project).intersects(ADMIN),
            form,
            result,
        })
    }
}

/// Returns the rules of a project as a text, but for those that a file hides.
fn text_of(format: RulesFormat, state: &ProjectState, files: Option<&RuleSet>) -> String {
    let hidden = hidden_rules(state, files);
    let shown = state.rules.iter().filter(|(name, _)| !hidden.contains(name));
    let rules = shown.map(|(_, record)| {
        let rule = rule_messages::explicit(&rule_messages::at_run_time(&record.spec));
        rule_messages::without_defaults(rule)
    });
    let id = Some(&state.project.id).filter(|id| !id.is_unnamed()).cloned();
    (format.print)(&RulesFile { project: id, unmatched: None, rules: rules.collect() })
}

/// Returns the names of rules that are not in force, because a file has rules of these names.
fn hidden_rules<'a>(state: &'a ProjectState, files: Option<&RuleSet>) -> Vec<&'a str> {
    let of_files: HashSet<&str> =
        files.into_iter().flat_map(RuleSet::iter).map(|rule| &*rule.name).collect();
    let names = state.rules.iter().map(|(name, _)| name);
    names.filter(|name| of_files.contains(name)).collect()
}
