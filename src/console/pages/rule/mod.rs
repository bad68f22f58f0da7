//! One rule: what it says, what it decides, the keys hit hardest, and its mode.
//!
//! | file | subject |
//! | --- | --- |
//! | `query` | the rule, and how a visitor looks at it |
//! | `named` | a rule of either kind, and where it comes from |
//! | `render` | the page |
//! | `description` | the rule in words |
//! | `numbers` | its decisions, and those of its candidates |
//! | `top` | the keys with the highest counts |
//! | `mode` | its mode, and the form that sets it |

mod description;
mod mode;
mod named;
mod numbers;
mod query;
mod render;
mod top;

pub(in crate::console) use mode::set_mode;
pub(super) use named::{NamedRule, RuleSource};

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;

use self::mode::ModeDraft;
use self::numbers::RuleNumbers;
use self::query::RuleQuery;
use self::render::{RulePage, render_problem};
use crate::admin::{AdminError, StatsScope};
use crate::api::auth::{Permission, Roles};
use crate::console::fields::FormFields;
use crate::console::layout::Frame;
use crate::console::page_error::{PageError, admitted};
use crate::console::visitor::ConsoleVisitor;
use crate::console::{Console, ConsoleContext};
use crate::projects::ProjectId;
use crate::telemetry::stats::StatsPoint;

/// The roles, one of which a visitor must have in the project.
const OPERATORS: Roles = Permission::PROJECT_OPERATE_OR_ADMIN.roles();
/// The role for trying a request, and for seeing keys in clear.
const OPERATE: Roles = Permission::PROJECT_OPERATE.roles();
/// The role for setting a mode.
const ADMIN: Roles = Permission::PROJECT_ADMIN.roles();

/// Shows a rule.
pub(in crate::console) async fn show(
    State(console): State<Console>,
    visitor: ConsoleVisitor,
    RawQuery(query): RawQuery,
) -> Response {
    let fields = FormFields::parse(query.unwrap_or_default().as_bytes());
    let frame = match &fields {
        Ok(fields) => console.frame_after_change(&visitor, "rules", fields),
        Err(_) => console.frame(&visitor, "rules"),
    };
    let query = fields.map_err(PageError::from).and_then(|fields| RuleQuery::parse(&fields));
    page(&console, &visitor, frame, query, None).await
}

/// Responds with the page, and with the form of a mode that was refused.
async fn page(
    console: &Console,
    visitor: &ConsoleVisitor,
    frame: Frame,
    query: Result<RuleQuery, PageError>,
    draft: Option<ModeDraft>,
) -> Response {
    let shown = match query {
        Ok(query) => gather(console, visitor, frame.clone(), query).await,
        Err(error) => Err(error),
    };
    match shown {
        Ok((page, counted)) => {
            let status = draft.as_ref().map_or(StatusCode::OK, |draft| draft.error.status);
            let of = Console::clone(console);
            // There are 90 points, each with up to 1,000 rules: not on a worker that decides.
            let render = move || {
                let numbers = counted.numbers(&page.project, &page.query.name);
                RulePage { numbers, draft, ..page }.render(&of)
            };
            console.page(status, render).await
        }
        Err(error) => {
            // The problem of the form says more than that of the page.
            let error = draft.map_or(error, |draft| draft.error);
            console.page(error.status, move || render_problem(&frame, &error)).await
        }
    }
}

async fn gather(
    console: &ConsoleContext,
    visitor: &ConsoleVisitor,
    frame: Frame,
    mut query: RuleQuery,
) -> Result<(RulePage, CountedPoints), PageError> {
    let caller = &visitor.caller;
    let project = admitted(caller, &query.project, OPERATORS)?;
    if !visitor.sees_instances() {
        query.scope = StatsScope::Fleet;
    }
    let snapshot = console.administrator.limiter().project_snapshot(project.as_str());
    let snapshot = snapshot.ok_or(AdminError::UnknownProject("project_id"))?;
    let candidates = match NamedRule::find(&snapshot.rules, &query.name) {
        None => return Err(AdminError::UnknownRule.into()),
        Some(rule) => rule.candidates().len(),
    };
    let roles = caller.roles_in(&project);
    let is_operator = roles.intersects(OPERATE);
    let top = top::read(console, &project, &snapshot, &query, is_operator).await;
    let points = console.administrator.stats().recent(query.scope, 0);
    let page = RulePage {
        frame,
        is_operator,
        is_admin: roles.intersects(ADMIN),
        project,
        snapshot,
        query,
        numbers: RuleNumbers::default(),
        top,
        draft: None,
    };
    Ok((page, CountedPoints { points, candidates }))
}

/// The points that the decisions of a rule are taken out of.
#[derive(Debug)]
struct CountedPoints {
    points: Vec<Arc<StatsPoint>>,
    /// Number of candidates of the rule.
    candidates: usize,
}

impl CountedPoints {
    fn numbers(&self, project: &ProjectId, rule: &str) -> RuleNumbers {
        RuleNumbers::new(&self.points, project.as_str(), rule, self.candidates)
    }
}
