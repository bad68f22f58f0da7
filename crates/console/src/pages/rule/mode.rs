//! The mode of a rule, and the forms that set it for a time.

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{SetModeRequest, SetModeResponse};
use rlaas_proto::ratelimit::v1::RuleMode;

use super::query::RuleQuery;
use super::{RulePage, page};
use crate::Console;
use crate::calls::{CHANGE_TIME, id_of, within};
use crate::change_form::{Input, REQUEST_ID, everywhere, hidden, refused, replayed, ttl, warning};
use crate::fields::FormFields;
use crate::page_error::PageError;
use crate::rule_words;
use crate::text::{time, time_text};
use crate::visit::Visitor;

/// Longest time until a mode ends, in days.
const MAX_DAYS: u64 = 30;
/// The modes, with their values in the form and their meaning.
const MODES: [(RuleMode, &str, &str); 3] = [
    (RuleMode::Enforce, "enforce", "Enforce: can refuse"),
    (RuleMode::Shadow, "shadow", "Shadow: refuses nothing"),
    (RuleMode::Off, "off", "Off: ignored"),
];
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
pub(crate) async fn set_mode(
    State(console): State<Console>,
    visitor: Visitor,
    fields: FormFields,
) -> Response {
    let frame = visitor.frame("rules");
    let query = match queried(&fields) {
        Ok(query) => query,
        Err(error) => return page(&console, &visitor, frame, Err(error), None).await,
    };
    match set(&visitor, &fields, &query).await {
        Ok(outcome) => visitor.done(query.link(), &outcome),
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
    visitor: &Visitor,
    fields: &FormFields,
    query: &RuleQuery,
) -> Result<String, PageError> {
    let chosen = match fields.one(MODE)? {
        CONFIGURED => None,
        name => {
            let chosen = MODES.iter().find(|(_, value, _)| *value == name);
            Some(chosen.ok_or_else(|| PageError::invalid("mode must be one of the page's"))?)
        }
    };
    let ttl = chosen.map(|_| ttl(fields.one("ttl")?, MAX_DAYS)).transpose()?;
    let request = SetModeRequest {
        project_id: id_of(&query.project).to_owned(),
        rule: query.name.clone(),
        mode: chosen.map_or(RuleMode::Unspecified, |(mode, ..)| *mode).into(),
        ttl,
        reason: fields.one("reason")?.to_owned(),
        request_id: fields.one(REQUEST_ID)?.to_owned(),
    };
    if request.request_id.is_empty() {
        return Err(PageError::invalid("the form must be that of a rule: load the page again"));
    }
    let set = visitor.admin().set_mode(within(CHANGE_TIME, request)).await?;
    let warning = warning(visitor, set.metadata());
    let name = chosen.map(|(_, value, _)| *value);
    Ok(outcome(&query.name, name, set.get_ref(), visitor.sees_instances()) + &warning)
}

/// Returns a change of mode in one sentence.
fn outcome(rule: &str, mode: Option<&str>, set: &SetModeResponse, sees_instances: bool) -> String {
    let until = set.ends_at.as_ref().map(|at| format!(" until {}", time_text(at)));
    let text = match mode {
        Some(mode) => {
            format!("The mode of rule {rule} is {mode}{}.", until.unwrap_or_default())
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
    pub(super) fn mode(&self) -> Markup {
        let written = self.written.as_ref().and_then(|written| written.rule.as_ref());
        let ends_at = self.rule.mode_ends_at.as_ref();
        html! {
            h2 id="mode" { "Mode" }
            p {
                "The rule is " strong { (rule_words::rule_mode(&self.rule)) } "."
                @if ends_at.is_some() {
                    " That was set until " (time(ends_at)) "."
                    @if let Some(rule) = written { " By its configuration it is " (rule_words::rule_mode(rule)) "." }
                }
            }
            @if let Some(draft) = &self.draft {
                (refused(&draft.error))
            }
            @if self.is_admin {
                div.cards.few {
                    (self.set_form())
                    @if ends_at.is_some() || self.is_typed(true) { (self.end_form()) }
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
            "" => "shadow",
            typed => typed,
        };
        let input = |id, name, label, example| {
            let value = self.typed(false, name);
            Input { id, name, label, value, example, ..Input::default() }.render()
        };
        html! {
            section.card aria-labelledby="set-mode" {
                h3 id="set-mode" { "Set another mode for a time" }
                form.stack method="post" action="rule" {
                    (self.hidden(false))
                    div {
                        label for="mode-field" { "Mode" }
                        select id="mode-field" name=(MODE) {
                            @for (_, value, meaning) in MODES {
                                option value=(value) selected[value == chosen] { (meaning) }
                            }
                        }
                    }
                    (input("mode-ttl", "ttl", "Ends after", "30m"))
                    (input("mode-reason", "reason", "Why, for the audit", "ticket 4711"))
                    button.primary { "Set the mode" }
                }
            }
        }
    }

    fn end_form(&self) -> Markup {
        let reason = Input {
            id: "end-reason",
            name: "reason",
            label: "Why, for the audit",
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
