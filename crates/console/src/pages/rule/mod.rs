//! One rule: what it says, what it decides, the keys hit hardest, and its mode.
//!
//! | file | subject |
//! | --- | --- |
//! | `description` | the rule in words |
//! | `numbers` | its decisions |
//! | `top` | the keys with the highest counts |
//! | `events` | the thresholds that keys have reached |
//! | `edit` | the form that changes it |
//! | `mode` | its mode, and the form that sets it |

mod description;
mod edit;
mod events;
mod mode;
mod numbers;
mod top;

pub(crate) use edit::update;
pub(crate) use mode::set_mode;
pub(crate) use top::download;

use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{
    AuditEntry, GetRuleRequest, ProjectRule, ThresholdEvent, TopKeysResponse,
};
use rlaas_proto::ratelimit::v1::{GetConfigRequest, GetConfigResponse, Rule, RuleMode};

use self::numbers::RuleNumbers;
use crate::calls::{READ_TIME, configuration, field_of, id_of, within};
use crate::changes::{changes, changes_line};
use crate::chart;
use crate::decisions::{SPAN_NAME, as_of, history, range};
use crate::fields::{FormFields, Link};
use crate::form::RefusedForm;
use crate::layout::{Frame, failure};
use crate::page_error::PageError;
use crate::pages::undo::Undo;
use crate::rule_words::{self, EVERY_KEY};
use crate::text::{foreign, time, visible};
use crate::visit::{Visit, Visitor};

/// The content of the page.
#[derive(Debug)]
struct RulePage {
    frame: Frame,
    query: FormFields,
    /// The configuration in force in its project, without its rules.
    config: GetConfigResponse,
    /// The rule in force.
    rule: Rule,
    /// The rule as it is written, unless no project has it.
    written: Option<ProjectRule>,
    numbers: RuleNumbers,
    /// The changes in the time of the chart.
    changes: Vec<AuditEntry>,
    /// The keys that the visitor looks at.
    shown_top: &'static top::Kind,
    top: Result<TopKeysResponse, PageError>,
    /// The newest events of thresholds.
    events: Vec<ThresholdEvent>,
    /// The way back from the change that led to the page.
    undo: Option<Undo>,
    /// The form that was refused.
    refused: Option<RefusedForm>,
    /// Whether the visitor may try requests.
    is_operator: bool,
    /// Whether the visitor may change the rule and its mode.
    is_admin: bool,
}

/// The fields of a query: a rule, and how a visitor looks at it.
const QUERY: [&str; 3] = ["project", "name", "top"];
/// Returns the link to the page as a query looks at it, but for one field.
fn link_with(query: &FormFields, name: &str, value: &str) -> Link {
    let others: Vec<_> = QUERY.into_iter().filter(|other| *other != name).collect();
    Link::like("rule", query, &others).with(name, value)
}

/// Shows a rule.
pub(crate) async fn show(visit: Visit) -> Response {
    let query = visit.fields.check().map(|()| visit.fields.clone());
    page(&visit, query.map_err(PageError::from), None).await
}

/// Responds with the page, and with the form that was refused.
async fn page(
    visit: &Visit,
    query: Result<FormFields, PageError>,
    refused: Option<RefusedForm>,
) -> Response {
    let shown = match query {
        Ok(query) => gather(visit, query).await,
        Err(error) => Err(error),
    };
    let of_form = refused.as_ref().map(|refused| refused.error.clone());
    // The problem of the form says more than that of the page.
    let problem = of_form.or_else(|| shown.as_ref().err().cloned());
    let status = problem.as_ref().map_or(StatusCode::OK, |error| error.status);
    let frame = visit.frame("rules");
    let render = move || match (shown, problem) {
        (Ok(page), _) => RulePage { refused, ..page }.render(),
        (Err(error), problem) => {
            let content = html! {
                (failure(&problem.unwrap_or(error).problem))
                p { a href="rules" { "All rules" } }
            };
            frame.page("Rule", &content)
        }
    };
    visit.console.page(status, render).await
}

async fn gather(visit: &Visit, query: FormFields) -> Result<RulePage, PageError> {
    let Visit { console, visitor, .. } = visit;
    let (id, name) = (id_of(query.get("project")).to_owned(), query.get("name").to_owned());
    if name.is_empty() {
        return Err(PageError::invalid("name must be the name of a rule"));
    }
    let shown_top = top::kind(&query)?;
    let (config, rule) =
        console.in_background(in_force(visitor.clone(), id.clone(), name.clone())).await?;
    let written = GetRuleRequest { project_id: id.clone(), rule_name: name.clone() };
    let written = visitor.projects().get_rule(within(READ_TIME, written)).await.ok();
    let numbers = RuleNumbers::new(&history(console, visitor, &id, &name).await?);
    Ok(RulePage {
        changes: changes(visitor, &id, &name, range(&numbers.points)).await,
        frame: visit.frame("rules"),
        top: top::read(visitor, &id, &name).await,
        events: if rule.notify_at_ppm.is_empty() {
            Vec::new()
        } else {
            events::read(visitor, &id, &name).await
        },
        shown_top,
        numbers,
        written: written.and_then(|written| written.into_inner().rule),
        undo: Undo::of_made(visitor, &id, &visit.fields).await,
        is_operator: visitor.is_operator(&id),
        is_admin: visitor.is_admin(&id),
        config,
        rule,
        query,
        refused: None,
    })
}

/// Returns the configuration of a project without its rules, and one rule in force.
async fn in_force(
    visitor: Visitor,
    id: String,
    name: String,
) -> Result<(GetConfigResponse, Rule), PageError> {
    let mut config = configuration(&visitor, &id, GetConfigRequest::default()).await?;
    let rule = std::mem::take(&mut config.rules).into_iter().find(|rule| rule.name == name);
    let unknown = || PageError::not_found("rule must be the name of a rule in force");
    Ok((config, rule.ok_or_else(unknown)?))
}

impl RulePage {
    fn id(&self) -> &str {
        id_of(self.query.get("project"))
    }

    fn audit(&self) -> Link {
        let audit = Link::to("audit").with("project", field_of(self.id()));
        audit.with("rule", &self.rule.name)
    }

    fn render(&self) -> Markup {
        let RuleNumbers { points, coverage, .. } = &self.numbers;
        let content = html! {
            @if let Some(undo) = &self.undo { (undo.render()) }
            @if self.refused.is_some() {
                p.notice {
                    "Nothing was saved yet: "
                    a href=(if self.refused_edit().is_some() { "#change" } else { "#mode" }) { "see the form" } "."
                }
            }
            div #live data-events="now-events" data-page=(Link::like("rule", &self.query, &QUERY)) {
                (self.summary())
                (self.window_use())
                (as_of(&self.frame.visitor, points, coverage, &Link::like("rule", &self.query, &QUERY)))
                (self.numbers.tiles(&self.frame.visitor))
                @if self.numbers.is_empty() {
                    p.notice {
                        "No decision of this rule in the last " (SPAN_NAME)
                        ", or it is none of the 1,000 busiest rules."
                    }
                } @else { (self.numbers.chart()) }
                (changes_line(&self.changes, &self.audit()))
                (self.reached())
                (self.top())
            }
            (chart::script())
            div.cards { section { (self.facts()) } section { (self.edit()) } }
            (self.mode())
        };
        self.frame.page(&format!("Rule {}", visible(&self.rule.name)), &content)
    }

    /// Shows the rule in badges, and what can be done.
    fn summary(&self) -> Markup {
        let (rule, id) = (&self.rule, self.id());
        let is_enforced = matches!(rule.mode(), RuleMode::Enforce | RuleMode::Unspecified);
        let is_for_all = rule.enforce_ppm.is_none_or(|part| part == EVERY_KEY);
        let mode_class = if is_enforced && is_for_all { "badge" } else { "badge warn" };
        let look_up = Link::to("key").with("project", field_of(id));
        html! {
            p.summary.badges {
                strong.badge { (rule_words::rule_grant(rule)) }
                span class=(mode_class) { (rule_words::rule_mode(rule)) }
                @if rule.mode_ends_at.is_some() { span.badge.warn { "mode set until " (time(rule.mode_ends_at.as_ref())) } }
            }
            p.actions {
                a.button href="#change" { "Change" }
                a.button href="#set-mode" { "Mode for a time" }
                @if self.is_operator && rule.descriptor_rule.is_none() {
                    a.button href=(look_up.with("rule", &rule.name)) { "Try a request" }
                }
                a.button href=(Link::to("history").with("project", field_of(id))) { "History" }
                @if self.is_admin { a.button href=(self.audit()) { "Audit" } }
            }
            p {
                @if !id.is_empty() { a href=(Link::to("project").with("id", id)) { "Project " (foreign(id)) } " · " }
                a href=(Link::to("rules").with("project", field_of(id))) { "Rules beside it" }
            }
        }
    }
}
