//! The mode of a rule, and the forms that set it for a time.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use rlaas_limiter::rules::{ModeScope, RuleMode};
use rlaas_proto::ratelimit::admin::v1::SetModeResponse;

use super::named::NamedRule;
use super::query::RuleQuery;
use super::render::RulePage;
use super::{ADMIN, page};
use crate::admin::{MAX_TIME_TO_LIVE, ModeChange};
use crate::clock::Deadline;
use crate::console::action::Action;
use crate::console::change_form::{Input, REQUEST_ID, everywhere, hidden, refused, replayed, ttl};
use crate::console::fields::FormFields;
use crate::console::page_error::{PageError, admitted};
use crate::console::rule_words;
use crate::console::text::{time, time_text};
use crate::console::visitor::ConsoleVisitor;
use crate::console::{Console, ConsoleContext};
use crate::proto_values::timestamp;

/// Longest wait for a change.
const MAX_TIME: Duration = Duration::from_secs(10);
/// The fields that name the rule, and the mode.
const QUERY: &str = "query";
const MODE: &str = "mode";
/// The value of [`MODE`] that ends a mode.
const CONFIGURED: &str = "configured";

/// A mode that was refused, as its visitor typed it.
#[derive(Clone, Debug)]
pub(super) struct ModeDraft {
    fields: FormFields,
    pub(super) error: PageError,
}

/// Sets or ends a mode, and leads back to the rule. A mode that is refused is shown again.
pub(in crate::console) async fn set_mode(
    State(console): State<Console>,
    action: Action,
) -> Response {
    let Action { visitor, fields, .. } = action;
    let frame = console.frame(&visitor, "rules");
    let query = match queried(&fields) {
        Ok(query) => query,
        Err(error) => return page(&console, &visitor, frame, Err(error), None).await,
    };
    match set(&console, &visitor, &fields, &query).await {
        Ok(outcome) => console.done(&visitor, query.link(), &outcome),
        Err(error) => {
            let draft = Some(ModeDraft { fields, error });
            page(&console, &visitor, frame, Ok(query), draft).await
        }
    }
}

/// Returns the query that a form was shown for.
fn queried(fields: &FormFields) -> Result<RuleQuery, PageError> {
    RuleQuery::parse(&FormFields::parse(fields.one(QUERY)?.as_bytes())?)
}

/// Sets the mode of a form, and returns what was done.
async fn set(
    console: &ConsoleContext,
    visitor: &ConsoleVisitor,
    fields: &FormFields,
    query: &RuleQuery,
) -> Result<String, PageError> {
    let project = admitted(&visitor.caller, &query.project, ADMIN)?;
    let mode = match fields.one(MODE)? {
        CONFIGURED => None,
        name => {
            let mode = RuleMode::ALL.into_iter().find(|mode| mode.name() == name);
            let mode = mode.ok_or_else(|| PageError::invalid("mode must be one of the page's"))?;
            Some((mode, ttl(fields.one("ttl")?, MAX_TIME_TO_LIVE)?))
        }
    };
    let request_id = fields.one(REQUEST_ID)?.to_owned();
    if request_id.is_empty() {
        return Err(PageError::invalid("the form must be that of a rule: load the page again"));
    }
    let change = ModeChange {
        actor: visitor.caller.actor().to_owned(),
        holder: visitor.caller.holder(project.as_str()),
        scope: ModeScope { project: Some(project.to_string()), rule: Some(query.name.clone()) },
        mode,
        reason: fields.one("reason")?.to_owned(),
        request_id,
    };
    let set = console.administrator.set_mode(change, Deadline::within(MAX_TIME)).await?;
    let mode = mode.map(|(mode, _)| mode);
    let sees_instances = visitor.sees_instances();
    Ok(outcome(&query.name, mode, &set, sees_instances) + console.loss(visitor, false))
}

/// Returns a change of mode in one sentence.
fn outcome(
    rule: &str,
    mode: Option<RuleMode>,
    set: &SetModeResponse,
    sees_instances: bool,
) -> String {
    let until = set.ends_at.as_ref().map(|at| format!(" until {}", time_text(at)));
    let text = match mode {
        Some(mode) => {
            format!("The mode of rule {rule} is {}{}.", mode.name(), until.unwrap_or_default())
        }
        None => format!("The mode of rule {rule} is that of its configuration again."),
    };
    let everywhere = match &set.everywhere_by {
        Some(by) => everywhere(Some(by)),
        None if sees_instances => {
            " On this instance alone: the store is away. The others follow when it is back."
                .to_owned()
        }
        None => " Not in force everywhere yet: it will be as soon as possible.".to_owned(),
    };
    format!("{}{text}{everywhere}", replayed(set.replayed))
}

impl RulePage {
    /// Shows the mode in force, and the forms that set it.
    pub(super) fn mode(&self, rule: NamedRule<'_>) -> Markup {
        let info = rule.info();
        html! {
            h2 id="mode" { "Mode" }
            p {
                "The rule is " strong { (rule_words::mode(info.mode)) } "."
                @if let Some(set) = info.set_mode {
                    " That was set until " (time(Some(&timestamp(set.ends_at))))
                    ". By its configuration it is " (rule_words::mode(set.configured)) "."
                }
            }
            @if let Some(draft) = &self.draft {
                (refused(&draft.error))
            }
            @if self.is_admin {
                div.cards.few {
                    (self.set_form())
                    @if info.set_mode.is_some() || self.is_typed(true) { (self.end_form()) }
                }
            } @else { p.hint { "The role admin is required to set it." } }
        }
    }

    /// Returns `true` if a form was refused: that which ends a mode, or the other one.
    fn is_typed(&self, ends: bool) -> bool {
        let mode = self.draft.as_ref().and_then(|draft| draft.fields.one(MODE).ok());
        mode.is_some_and(|mode| (mode == CONFIGURED) == ends)
    }

    fn typed(&self, ends: bool, name: &'static str) -> &str {
        let draft = self.draft.as_ref().filter(|_| self.is_typed(ends));
        draft.and_then(|draft| draft.fields.one(name).ok()).unwrap_or_default()
    }

    fn hidden(&self, ends: bool) -> Markup {
        let draft = self.draft.as_ref().filter(|_| self.is_typed(ends));
        let request_id = draft.map_or("", |draft| draft.error.request_id(&draft.fields));
        html! {
            (hidden(&self.frame, request_id))
            input type="hidden" name=(QUERY) value=(self.query.encoded());
        }
    }

    fn set_form(&self) -> Markup {
        let chosen = match self.typed(false, MODE) {
            "" => RuleMode::Shadow.name(),
            typed => typed,
        };
        let input = |id, name, label, example| {
            let value = self.typed(false, name);
            Input { id, name, label, value, example, ..Input::default() }.render()
        };
        let meaning = |mode| match mode {
            RuleMode::Enforce => "Enforce: can refuse",
            RuleMode::Shadow => "Shadow: refuses nothing",
            RuleMode::Off => "Off: ignored",
        };
        html! {
            section.card aria-labelledby="set-mode" {
                h3 id="set-mode" { "Set another mode for a time" }
                form.stack method="post" action="rule" {
                    (self.hidden(false))
                    div {
                        label for="mode-field" { "Mode" }
                        select id="mode-field" name=(MODE) {
                            @for mode in RuleMode::ALL {
                                option value=(mode.name()) selected[mode.name() == chosen] { (meaning(mode)) }
                            }
                        }
                    }
                    (input("mode-ttl", "ttl", "Ends after", "30m"))
                    (input("mode-reason", "reason", "Reason, for the audit", "ticket 4711"))
                    button.primary { "Set the mode" }
                }
            }
        }
    }

    fn end_form(&self) -> Markup {
        let reason = Input {
            id: "end-reason",
            name: "reason",
            label: "Reason, for the audit",
            value: self.typed(true, "reason"),
            example: "ticket 4711",
            ..Input::default()
        };
        html! {
            section.card aria-labelledby="end-mode" {
                h3 id="end-mode" { "End the mode that was set" }
                form.stack method="post" action="rule" {
                    (self.hidden(true))
                    (reason.render())
                    button name=(MODE) value=(CONFIGURED) { "End it now" }
                }
            }
        }
    }
}
