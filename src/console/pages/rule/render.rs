//! The page of a rule.

use std::sync::Arc;

use maud::{Markup, html};
use rlaas_limiter::Snapshot;

use super::mode::ModeDraft;
use super::named::NamedRule;
use super::numbers::RuleNumbers;
use super::query::RuleQuery;
use super::top::TopTable;
use crate::console::ConsoleContext;
use crate::console::chart;
use crate::console::fields::Link;
use crate::console::layout::{Frame, failure};
use crate::console::page_error::PageError;
use crate::console::pages::now::{SPAN_NAME, Shown};
use crate::console::request_fields::TypedRequest;
use crate::console::rule_words;
use crate::console::text::{foreign, time, visible};
use crate::projects::ProjectId;
use crate::proto_values::timestamp;
use crate::rules::Mode;

/// The content of the page.
#[derive(Debug)]
pub(super) struct RulePage {
    pub(super) frame: Frame,
    pub(super) project: ProjectId,
    /// The rules in force of the project.
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) query: RuleQuery,
    pub(super) numbers: RuleNumbers,
    pub(super) top: Result<TopTable, String>,
    /// The mode that was refused.
    pub(super) draft: Option<ModeDraft>,
    /// Whether the visitor may try requests.
    pub(super) is_operator: bool,
    /// Whether the visitor may set a mode.
    pub(super) is_admin: bool,
}

/// Returns the page in place of a rule that can't be shown.
pub(super) fn render_problem(frame: &Frame, error: &PageError) -> Markup {
    let content = html! {
        (failure(&error.problem))
        p { a href="rules" { "All rules" } }
    };
    frame.page("Rule", &content)
}

impl RulePage {
    pub(super) fn render(&self, console: &ConsoleContext) -> Markup {
        let Some(rule) = NamedRule::find(&self.snapshot.rules, &self.query.name) else {
            return render_problem(
                &self.frame,
                &PageError::not_found("name must be that of a rule"),
            );
        };
        let shown = Shown {
            scope: self.query.scope,
            until: self.numbers.points.last().map(|(_, until)| *until),
            coverage: &self.numbers.coverage,
            has_instances: self.frame.has_instances,
            store: self.frame.store,
        };
        let content = html! {
            div #live data-events="now-events" {
                (self.summary(rule))
                (shown.scopes(|scope| RuleQuery { scope, ..self.query.clone() }.link()))
                (shown.as_of(&self.query.link()))
                (self.numbers.tiles())
                @if self.numbers.is_empty() { (empty()) }
                @else { (self.numbers.charts(rule.candidates())) }
                (self.top())
            }
            (chart::script())
            (self.facts(console, rule))
            (self.mode(rule))
            @if let NamedRule::Flat(_) = rule { (self.request_form()) }
        };
        self.frame.page(&format!("Rule {}", visible(&self.query.name)), &content)
    }

    /// Shows the rule in one line, with what is unusual about it.
    fn summary(&self, rule: NamedRule<'_>) -> Markup {
        let info = rule.info();
        let of_rule = Link::to("audit").with("project", &self.query.project);
        html! {
            p.summary {
                strong { (rule_words::grant(rule.grant(), info.algorithm)) }
                @if info.mode != Mode::Enforced { ", " strong.warn { (rule_words::mode(info.mode)) } }
                @if let Some(set) = info.set_mode { " (set until " (time(Some(&timestamp(set.ends_at)))) ")" }
            }
            p {
                @if self.project.is_unnamed() { a href="rules?project=_" { "Rules of files" } }
                @else {
                    "Project " (foreign(self.project.as_str())) ": "
                    a href=(Link::to("rules").with("project", self.project.as_str())) { "its rules" }
                }
                " · " a href="#mode" { "Mode" }
                " · " a href="#try" { "Try a request" }
                @if self.is_admin { " · " a href=(of_rule.with("rule", &self.query.name)) { "Changes of the rule" } }
            }
        }
    }

    /// Shows the form of a request that is tried: the page of its key says what the rule decides.
    fn request_form(&self) -> Markup {
        html! {
            h2 id="try" { "Try a request" }
            @if !self.is_operator { p.notice { "The role operate is required to try requests." } }
            @else {
                form.row method="get" action="key" {
                    input type="hidden" name="project" value=(self.query.project);
                    input type="hidden" name="rule" value=(self.query.name);
                    (TypedRequest::default().inputs())
                    button.primary { "Try" }
                }
                p.hint { "Says whether the rule applies, and what it would decide. Nothing is counted." }
            }
        }
    }
}

fn empty() -> Markup {
    html! {
        p.notice {
            "No decision of this rule in the last " (SPAN_NAME)
            ", or it is none of the 1,000 busiest rules."
        }
    }
}
