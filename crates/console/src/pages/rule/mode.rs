//! The mode of a rule, and the forms that set it for a time.

use axum::response::Response;
use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{SetModeRequest, SetModeResponse};

use super::{RulePage, page};
use crate::calls::{CHANGE_TIME, everywhere, id_of, replayed, warning, within};
use crate::fields::{FormFields, Link};
use crate::form::{Field, FieldChoice, FieldKind, Form, FormPlace, RefusedForm};
use crate::page_error::PageError;
use crate::rule_words;
use crate::text::{time, time_text};
use crate::visit::{Visit, Visitor};

/// The modes.
pub(super) const MODES: [FieldChoice; 3] = [
    ("enforce", "Enforce: can refuse", "RULE_MODE_ENFORCE"),
    ("shadow", "Shadow: refuses nothing", "RULE_MODE_SHADOW"),
    ("off", "Off: ignored", "RULE_MODE_OFF"),
];
/// The fields that name the rule, and the mode.
const QUERY: Field = Field::new("query", "", FieldKind::Hidden);
const MODE: &str = "mode";
/// The value of [`MODE`] that ends a mode.
const CONFIGURED: &str = "configured";
const SET: Form = Form::new(
    "rule",
    "SetModeRequest",
    &[
        QUERY,
        Field::REQUEST_ID,
        Field::new(MODE, "mode", FieldKind::Choice(&MODES)).labelled("Mode"),
        Field::new("ttl", "ttl", FieldKind::Ttl(30)).labelled("Ends after").example("30m"),
        Field::NEEDED_REASON,
    ],
    "Set the mode",
)
.tone("primary");
const END: Form = Form::new(
    "rule",
    "SetModeRequest",
    &[QUERY, Field::REQUEST_ID, Field::NEEDED_REASON],
    "End it now",
)
.choice(MODE, CONFIGURED);

/// Sets or ends a mode, and leads back to the rule. A mode that is refused is shown again.
pub(crate) async fn set_mode(visit: Visit) -> Response {
    let Visit { visitor, fields, .. } = &visit;
    let query = FormFields::parse(fields.get(QUERY.name).as_bytes());
    let query = match query {
        Ok(query) => query,
        Err(error) => return page(&visit, Err(error.into()), None).await,
    };
    match set(visitor, fields, &query).await {
        Ok(outcome) => visitor.done(Link::like("rule", &query, &super::QUERY), &outcome),
        Err(error) => {
            let form = if fields.get(MODE) == CONFIGURED { &END } else { &SET };
            let refused = form.refused(fields.clone(), error);
            page(&visit, Ok(query), Some(refused)).await
        }
    }
}

/// Sets the mode of a form, and returns what was done.
async fn set(
    visitor: &Visitor,
    fields: &FormFields,
    query: &FormFields,
) -> Result<String, PageError> {
    let mode = Some(fields.get(MODE)).filter(|mode| *mode != CONFIGURED);
    let form = if mode.is_some() { &SET } else { &END };
    let (project_id, rule) = (id_of(query.get("project")).to_owned(), query.get("name").to_owned());
    let request = SetModeRequest { project_id, rule, ..form.message(fields)? };
    if request.request_id.is_empty() {
        return Err(PageError::invalid("the form must be that of a rule: load the page again"));
    }
    let set = visitor.admin().set_mode(within(CHANGE_TIME, request)).await?;
    let warning = warning(visitor, set.metadata());
    Ok(outcome(query.get("name"), mode, set.get_ref(), visitor.sees_instances()) + &warning)
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
            @if let Some(refused) = self.refused_mode() { (refused.notice()) }
            @if self.is_admin {
                (self.form(&SET, "set-mode", "Set another mode for a time"))
                @if ends_at.is_some() || self.refused.as_ref().is_some_and(|refused| refused.of_form(&END).is_some()) {
                    (self.form(&END, "end-mode", "End the mode that was set"))
                }
            } @else { p.hint { "The role admin is required to set it." } }
        }
    }

    /// Returns what was refused of one of these forms.
    fn refused_mode(&self) -> Option<&RefusedForm> {
        let refused = self.refused.as_ref()?;
        refused.of_form(&SET).or_else(|| refused.of_form(&END))
    }

    fn form(&self, form: &Form, id: &str, title: &str) -> Markup {
        let (prefix, query) = (format!("{id}-"), Link::like("rule", &self.query, &super::QUERY));
        let values = [(QUERY.name, query.query()), (MODE, "shadow")];
        let refused = self.refused.as_ref().and_then(|refused| refused.of_form(form));
        let place = FormPlace { frame: &self.frame, prefix: &prefix, values: &values, refused };
        html! {
            details id={ (prefix) "form" } open[refused.is_some()] {
                summary { (title) }
                div id=(id) { (form.render("card narrow-form", &place)) }
            }
        }
    }
}
