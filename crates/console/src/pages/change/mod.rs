//! The rules of a project as a text: edited, checked, and published.
//!
//! | file | subject |
//! | --- | --- |
//! | `form` | the fields of the form |
//! | `plan` | what publishing would do |
//! | `publish` | the write |
//! | `view` | the page |
//!
//! A text is published as the page has shown its plan: who edits it afterwards sees another plan first. It
//! has all rules of a project, or one of them: then the others stay as they are.

mod form;
mod plan;
mod publish;
mod view;

pub(crate) use self::publish::publish;

use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::Response;
use rlaas_proto::ratelimit::admin::v1::{
    ListRulesRequest, Project, ProjectRule, Revision, RuleChange,
};
use rlaas_proto::ratelimit::v1::Rule;
use rlaas_proto::ratelimit::v1::rule_origin::Kind;
use tokio::task::spawn_blocking;
use tonic::Status;

use self::form::ChangeForm;
use self::plan::ChangePlan;
use super::undo::Undo;
use crate::Console;
use crate::calls::{READ_TIME, every, field_of, id_of_page, project, within};
use crate::fields::FormFields;
use crate::layout::{Frame, notice};
use crate::page_error::PageError;
use crate::rules_text::RulesFormat;
use crate::visit::{Visit, Visitor};

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
    Refused(PageError),
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
    project: Project,
    rules: Vec<ProjectRule>,
    form: ChangeForm,
    result: ChangeResult,
    /// The way back from what was just published.
    undo: Option<Undo>,
}

/// Shows the rules of a project that were made at run time.
pub(crate) async fn show(visit: Visit) -> Response {
    let frame = visit.frame("projects");
    let Visit { console, visitor, fields } = visit;
    let id = id_of_page(fields.get("project")).to_owned();
    let (project, rules) = match load(&visitor, &id).await {
        Ok(loaded) => loaded,
        Err(error) => return console.refuse(error).await,
    };
    let undo = Undo::of_made(&visitor, &id, &fields).await;
    let (format, revision) = (console.rules_format, project.revision);
    let name = fields.get("name").to_owned();
    let page = run_blocking(move || {
        let text = text_of(format, &id, &name, &rules);
        let form = ChangeForm::new(id, name, text, revision);
        ChangePage { frame, format, form, project, rules, result: ChangeResult::None, undo }
    });
    match page.await {
        Ok(page) => console.page(StatusCode::OK, move || page.render()).await,
        Err(error) => console.refuse(error).await,
    }
}

/// Shows what publishing would do.
pub(crate) async fn check(headers: HeaderMap, visit: Visit) -> Response {
    let frame = visit.frame("projects");
    let Visit { console, visitor, fields } = visit;
    let form = match read(fields).await {
        Ok(form) => form,
        Err(error) => return unreadable(&console, error).await,
    };
    let (project, rules) = match load(&visitor, &form.project).await {
        Ok(loaded) => loaded,
        Err(error) => return console.refuse(error).await,
    };
    let (result, status) = match plan::plan(&console, &visitor, &form, &project).await {
        Ok(plan) => (ChangeResult::Plan(plan), StatusCode::OK),
        Err(error) if error.is_of_access() => return console.refuse(error).await,
        Err(error) => {
            let status = error.status;
            (ChangeResult::Refused(error), status)
        }
    };
    let is_by_script = headers.contains_key(BY_SCRIPT);
    let format = console.rules_format;
    let page = ChangePage { frame, format, project, rules, form, result, undo: None };
    console.page(status, move || if is_by_script { page.result() } else { page.render() }).await
}

/// Reads a form. No decision waits for a long text.
async fn read(fields: FormFields) -> Result<ChangeForm, PageError> {
    Ok(run_blocking(move || ChangeForm::read(&fields)).await??)
}

async fn unreadable(console: &Console, error: PageError) -> Response {
    let detail = error.sentence();
    console.page(StatusCode::BAD_REQUEST, move || notice("Nothing was changed", &detail)).await
}

/// Returns a project and its rules.
async fn load(visitor: &Visitor, id: &str) -> Result<(Project, Vec<ProjectRule>), PageError> {
    Ok((project(visitor, id).await?, list_rules(visitor, id).await?))
}

/// Returns the rules of a project, those of files included.
async fn list_rules(visitor: &Visitor, id: &str) -> Result<Vec<ProjectRule>, PageError> {
    let listed = every(|page_size, page_token| {
        let mut client = visitor.projects();
        let request = ListRulesRequest { project_id: id.to_owned(), page_size, page_token };
        async move {
            let page = client.list_rules(within(READ_TIME, request)).await?.into_inner();
            Ok((page.rules, page.next_page_token))
        }
    });
    Ok(listed.await?)
}

/// Returns `true` for rules that were made at run time.
fn is_of_run_time(rule: &ProjectRule) -> bool {
    let origin = rule.rule.as_ref().and_then(|rule| rule.origin.as_ref());
    origin.is_some_and(|origin| origin.kind() == Kind::RunTime)
}

/// Returns the rules of a project as a text, but for those that a file hides; or that of one name.
fn text_of(format: RulesFormat, id: &str, name: &str, rules: &[ProjectRule]) -> String {
    let shown = rules.iter().filter(|rule| is_of_run_time(rule) && !rule.hidden);
    let rules = shown.filter_map(|rule| rule.rule.clone());
    let rules: Vec<Rule> = rules.filter(|rule| name.is_empty() || rule.name == name).collect();
    (format.print)(field_of(id), &rules)
}

/// Runs long work on a thread of its own: no decision, and no page, waits for a long text.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, PageError> {
    spawn_blocking(work).await.map_err(|_| Status::unavailable("the server stops").into())
}
