//! The page of a rule.

use std::sync::Arc;

use maud::{Markup, html};
use rlaas_limiter::Snapshot;

use super::mode::ModeDraft;
use super::named::NamedRule;
use super::numbers::RuleNumbers;
use super::query::RuleQuery;
use super::top::TopTable;
use super::tried::TriedRequest;
use crate::admin::StatsScope;
use crate::console::ConsoleContext;
use crate::console::chart;
use crate::console::fields::Link;
use crate::console::layout::{Frame, failure};
use crate::console::page_error::PageError;
use crate::console::pages::now::Range;
use crate::console::rule_words;
use crate::console::text::{foreign, number, time, visible};
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
    /// The outcome of the request that the visitor tries.
    pub(super) tried: Option<Result<TriedRequest, PageError>>,
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
        let content = html! {
            div #live data-events="now-events" {
                (self.summary(rule))
                (self.tabs())
                (self.as_of())
                (self.numbers.tiles(&self.query))
                @if self.numbers.is_empty() { (self.empty()) }
                @else { (self.numbers.charts(&self.query, rule.candidates())) }
                (self.top())
            }
            (chart::script())
            (self.facts(console, rule))
            (self.mode(rule))
            @if let NamedRule::Flat(_) = rule { (self.tried()) }
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

    fn tabs(&self) -> Markup {
        let tab = |name: &str, of: RuleQuery, is_chosen: bool| {
            html! { li { a href=(of.link()) aria-current=[is_chosen.then_some("true")] { (name) } } }
        };
        let scopes =
            [(StatsScope::Fleet, "All instances"), (StatsScope::Instance, "This instance")];
        html! {
            nav.tabs aria-label=(if self.frame.has_instances { "Time and instances" } else { "Time" }) {
                ul {
                    @for range in Range::ALL {
                        (tab(range.name(), RuleQuery { range, ..self.query.clone() }, range == self.query.range))
                    }
                }
                @if self.frame.has_instances && self.frame.store != "memory" {
                    ul {
                        @for (scope, name) in scopes {
                            (tab(name, RuleQuery { scope, ..self.query.clone() }, scope == self.query.scope))
                        }
                    }
                }
            }
        }
    }

    /// Says of when and of which instances the numbers are.
    fn as_of(&self) -> Markup {
        let coverage = &self.numbers.coverage;
        let (counted, missing) = (coverage.instances.len() as u64, coverage.missing.len() as u64);
        html! {
            p.hint.as-of {
                @match self.numbers.points.last() {
                    Some((_, until)) => { "As of " (time(Some(&timestamp(*until)))) },
                    None => "The first numbers come within 10 s",
                }
                @if !self.frame.has_instances {
                } @else if self.frame.store == "memory" || self.query.scope == StatsScope::Instance {
                    ", of this instance only"
                } @else if counted > 0 {
                    ", of " (number(counted)) @if counted == 1 { " instance" } @else { " instances" }
                    @if missing > 0 { "; " strong.bad { (number(missing)) " missing" } }
                }
                ". Rates are of " (self.query.range.step()) ". "
                a href=(self.query.link()) { "Reload" }
            }
        }
    }

    fn empty(&self) -> Markup {
        html! {
            p.notice {
                "No decision of this rule in the last " (self.query.range.name())
                ", or it is none of the 1,000 busiest rules."
            }
        }
    }
}
