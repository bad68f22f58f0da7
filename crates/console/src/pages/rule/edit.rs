//! The form of a rule that was made at run time. It is saved by the rule's own etag: two people who change
//! different rules do not collide.

use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use prost_types::FieldMask;
use rlaas_proto::ratelimit::admin::v1::{GetRuleRequest, ProjectRule, UpdateRuleRequest};
use rlaas_proto::ratelimit::v1::rule_origin::Kind;
use rlaas_proto::ratelimit::v1::{Rule, RuleMode};

use super::mode::MODES;
use super::{RulePage, page};
use crate::calls::{CHANGE_TIME, READ_TIME, field_of, warning, within};
use crate::fields::{FormFields, Link};
use crate::form::{Field, FieldKind, Form, FormPlace, RefusedForm};
use crate::page_error::PageError;
use crate::pages::rules::source;
use crate::pages::undo::MADE;
use crate::rule_words::{self, EVERY_KEY, share};
use crate::table::Table;
use crate::text::{exact_span_text, foreign};
use crate::visit::{Visit, Visitor};

/// Most units of a rule, of whatever algorithm.
const MAX_UNITS: u64 = 999_999_999_999_999;
/// The reason of the service if others have changed a rule.
const STALE: &str = "STALE";
/// The reason of a form that must be sent again, since it may refuse more.
const STRICTER: &str = "STRICTER";
/// The field with the values of which a visitor has seen that.
const SEEN: Field = Field::new("seen", "", FieldKind::Hidden);
const PROJECT: Field = Field::PROJECT;
const NAME: Field = Field::new("name", "rule.name", FieldKind::Hidden);
const ETAG: Field = Field::new("etag", "etag", FieldKind::Hidden);
const LIMIT: Field = Field::new("limit", "rule.max_requests", FieldKind::Units(MAX_UNITS))
    .labelled("Limit, in units");
const WINDOW: Field =
    Field::new("length", "rule.window", FieldKind::Window).labelled("Window").example("1 h 30 min");
const BURST: Field = Field::new("burst", "rule.burst", FieldKind::OptionalUnits(MAX_UNITS))
    .labelled("Burst, units at once")
    .hint("Empty: as many as the limit.");
const MODE: Field =
    Field::new("rule_mode", "rule.mode", FieldKind::Choice(&MODES)).labelled("Mode");
const SHARE: Field = Field::new("share", "rule.enforce_ppm", FieldKind::Share)
    .labelled("Share of the keys, in per cent")
    .hint("The others are in shadow. Empty: all. While it grows, no key falls out.");
const REASON: Field = Field::REASON;
/// The fields of rules with a burst of their own; without one; and without a window, too.
static WITH_BURST: Form =
    form(&[PROJECT, NAME, ETAG, SEEN, LIMIT, WINDOW, BURST, MODE, SHARE, REASON]);
static WITH_WINDOW: Form = form(&[PROJECT, NAME, ETAG, SEEN, LIMIT, WINDOW, MODE, SHARE, REASON]);
static WITHOUT_WINDOW: Form = form(&[PROJECT, NAME, ETAG, SEEN, LIMIT, MODE, SHARE, REASON]);

const fn form(fields: &'static [Field]) -> Form {
    Form::new("rule-update", "UpdateRuleRequest", fields, "Save the rule").tone("primary")
}

/// Returns the form for a rule as it is written.
fn form_of(rule: &Rule) -> &'static Form {
    match rule.window {
        None => &WITHOUT_WINDOW,
        Some(_) if rule.algorithm().has_burst() => &WITH_BURST,
        Some(_) => &WITH_WINDOW,
    }
}

/// Saves a rule, and leads back to it. A form that is refused is shown again.
pub(crate) async fn update(visit: Visit) -> Response {
    let Visit { visitor, fields, console } = &visit;
    let link = Link::like("rule", fields, &["project", "name"]);
    match save(visitor, fields).await {
        Ok((revision, text)) => visitor.done(link.with(MADE, &revision.to_string()), &text),
        Err(error) if error.is_of_access() => console.refuse(error).await,
        Err(error) => {
            let refused = WITH_BURST.refused(fields.clone(), error);
            let query = FormFields::parse(link.query().as_bytes()).map_err(PageError::from);
            page(&visit, query, Some(refused)).await
        }
    }
}

/// Saves the fields of a form, unless others have changed the rule since it was shown. Returns its revision,
/// and what is said of it.
async fn save(visitor: &Visitor, fields: &FormFields) -> Result<(u64, String), PageError> {
    let id = visitor.admin_in(fields)?;
    let name = fields.get(NAME.name);
    let request = GetRuleRequest { project_id: id.to_owned(), rule_name: name.to_owned() };
    let found = visitor.projects().get_rule(within(READ_TIME, request)).await?.into_inner();
    let ProjectRule { rule, etag, .. } = found.rule.unwrap_or_default();
    let before = rule.unwrap_or_default();
    let form = form_of(&before);
    let mut request: UpdateRuleRequest = form.message(fields)?;
    let rule = request.rule.take().unwrap_or_default();
    // The name selects the rule.
    let paths = form.paths("rule.").into_iter().filter(|path| path != "name").collect();
    let is_stale = request.etag.is_empty() || request.etag != etag;
    if is_stale && is_saved(&before, &rule) {
        let text = format!("Rule {name} has these values already: nothing was left to change.");
        return Ok((0, text));
    }
    if is_stale {
        return Err(stale());
    }
    if can_refuse_more(&before, &rule) && fields.get(SEEN.name) != values_in(fields) {
        let problem = "it can refuse more than the rule in force. Save it again if you want that";
        let (status, reason) = (StatusCode::CONFLICT, STRICTER.to_owned());
        return Err(PageError { status, reason, ..PageError::invalid(problem) });
    }
    let request =
        UpdateRuleRequest { rule: Some(rule), update_mask: Some(FieldMask { paths }), ..request };
    match visitor.projects().update_rule(within(CHANGE_TIME, request)).await {
        Ok(saved) => {
            let warning = warning(visitor, saved.metadata());
            let rule = saved.into_inner().rule.unwrap_or_default().rule.unwrap_or_default();
            let revision = rule.origin.as_ref().map_or(0, |origin| origin.revision);
            let grant = rule_words::rule_grant(&rule);
            let text = format!("Rule {name} was saved as revision {revision}: {grant}.{warning}");
            Ok((revision, text))
        }
        Err(status) => {
            let error = PageError::from(status);
            Err(if error.reason == STALE { stale() } else { error })
        }
    }
}

/// Returns the error of a rule that somebody else has changed.
fn stale() -> PageError {
    let problem = "Somebody else has changed the rule since you loaded this page: nothing was saved. \
                   Compare, and save again if you want your values";
    let (status, reason) = (StatusCode::CONFLICT, STALE.to_owned());
    PageError { status, reason, ..PageError::invalid(problem) }
}

/// Returns the part of the keys for which a rule can refuse.
fn enforced(rule: &Rule) -> u32 {
    match rule.mode() {
        RuleMode::Enforce | RuleMode::Unspecified => rule.enforce_ppm.unwrap_or(EVERY_KEY),
        RuleMode::Shadow | RuleMode::Off => 0,
    }
}

/// Returns `true` if a rule has the values of a form already.
fn is_saved(now: &Rule, typed: &Rule) -> bool {
    let values = |rule: &Rule| {
        let share = rule.enforce_ppm.unwrap_or(EVERY_KEY);
        (rule.max_requests, rule.window, rule.grant().own_burst(), rule.mode(), share)
    };
    values(now) == values(typed)
}

/// Returns what a form says of what a rule can refuse.
fn values_in(fields: &FormFields) -> String {
    [LIMIT, WINDOW, BURST, MODE, SHARE].map(|field| fields.get(field.name)).join("; ")
}

/// Returns `true` if a rule can refuse requests that the one before it allows.
fn can_refuse_more(before: &Rule, after: &Rule) -> bool {
    let window = |rule: &Rule| rule.window.map(|window| (window.seconds, window.nanos));
    let burst = |rule: &Rule| rule.grant().own_burst().unwrap_or(rule.max_requests);
    after.max_requests < before.max_requests
        || burst(after) < burst(before)
        || window(after) > window(before)
        || enforced(after) > enforced(before)
}

/// Returns the values of a rule by the names of fields, as a form begins with them.
fn values_of(rule: &Rule) -> [(&'static str, String); 5] {
    let mode = match rule.mode() {
        RuleMode::Shadow => "shadow",
        RuleMode::Off => "off",
        RuleMode::Enforce | RuleMode::Unspecified => "enforce",
    };
    let part = rule.enforce_ppm.filter(|part| *part != EVERY_KEY).map(share);
    [
        (LIMIT.name, rule.max_requests.to_string()),
        (WINDOW.name, rule.window.as_ref().map(exact_span_text).unwrap_or_default()),
        (BURST.name, rule.grant().own_burst().map(|burst| burst.to_string()).unwrap_or_default()),
        (MODE.name, mode.to_owned()),
        (SHARE.name, part.map(|part| part.replace(" %", "")).unwrap_or_default()),
    ]
}

impl RulePage {
    /// Returns the rule as it is written, if it was made at run time and is in force.
    pub(super) fn editable(&self) -> Option<(&ProjectRule, &Rule)> {
        let written = self.written.as_ref().filter(|written| !written.etag.is_empty());
        let rule = written.and_then(|written| written.rule.as_ref())?;
        let is_of_run_time =
            rule.origin.as_ref().is_some_and(|origin| origin.kind() == Kind::RunTime);
        written.zip(Some(rule)).filter(|_| is_of_run_time)
    }

    /// Returns what was refused of the form.
    pub(super) fn refused_edit(&self) -> Option<&RefusedForm> {
        self.refused.as_ref().and_then(|refused| refused.of_form(&WITH_BURST))
    }

    /// Shows the form, or where the rule is changed.
    pub(super) fn edit(&self) -> Markup {
        let id = field_of(self.id());
        let origin = self.rule.origin.as_ref();
        let is_built_in = origin.is_some_and(|origin| origin.kind() == Kind::BuiltIn);
        let yaml = Link::to("change").with("project", id).with("name", &self.rule.name);
        html! {
            h2 id="change" { "Change the rule" }
            @match self.editable() {
                None if is_built_in => p.notice { "It is built in, and can't be changed here." },
                None => p.notice {
                    "It is not one of those made at run time. It is of " (source(origin))
                    ": change it there, and it is loaded again."
                },
                Some(_) if !self.is_admin => p.hint { "The role admin is required to change it." },
                Some((written, rule)) => {
                    (self.edit_form(written, rule))
                    p.hint { "Key parts, overrides and what else a rule has: " a href=(yaml) { "Edit the rule as YAML" } "." }
                }
            }
        }
    }

    fn edit_form(&self, written: &ProjectRule, rule: &Rule) -> Markup {
        let refused = self.refused_edit();
        let all = values_of(rule);
        let mut values: Vec<(&str, &str)> =
            all.iter().map(|(name, value)| (*name, &**value)).collect();
        let reason = refused.map_or("", |refused| &*refused.error.reason);
        let seen = refused.filter(|_| reason == STRICTER);
        let seen = seen.map(|refused| values_in(&refused.fields)).unwrap_or_default();
        let id = field_of(self.id());
        values.extend([
            ("project", id),
            (NAME.name, &rule.name),
            (ETAG.name, &written.etag),
            (SEEN.name, &seen),
        ]);
        let place = FormPlace { frame: &self.frame, prefix: "change-", values: &values, refused };
        html! {
            @if let Some(refused) = refused {
                (refused.notice())
                @if [STALE, STRICTER].contains(&reason) { (comparison(&all, &refused.fields)) }
            }
            @if rule.calendar.is_some() {
                p { "Windows of a calendar: " (rule_words::rule_grant(rule)) ". They are changed as YAML." }
            }
            div data-keep={ "rule " (id) " " (rule.name) } { (form_of(rule).render("card narrow-form", &place)) }
        }
    }
}

/// Returns what was typed beside what somebody else has saved meanwhile.
fn comparison(now: &[(&'static str, String)], typed: &FormFields) -> Markup {
    let labels = ["Limit", "Window", "Burst", "Mode", "Share, in per cent"];
    let rows = labels.into_iter().zip(now).filter(|(_, (name, now))| typed.get(name) != now);
    let rows: Vec<_> = rows.map(|(label, (name, now))| (label, &**now, typed.get(name))).collect();
    let value = |text: &str| html! { @if text.is_empty() { span.muted { "none" } } @else { (foreign(text)) } };
    let table = Table::<(&str, &str, &str)>::new("values", "The rule now, and what you typed")
        .text("Value", |(label, ..)| html! { (label) })
        .text("Now", |(_, now, _)| value(now))
        .text("You typed", |(.., typed)| value(typed));
    table.rows(&rows)
}

#[cfg(test)]
mod tests {
    use prost_types::Duration;

    use super::*;

    fn rule(max_requests: i64) -> Rule {
        let window = Some(Duration { seconds: 60, nanos: 0 });
        Rule { max_requests, window, burst: max_requests, ..Rule::default() }
    }

    #[test]
    fn what_can_refuse_more_is_known() {
        let longer = Rule { window: Some(Duration { seconds: 3_600, nanos: 0 }), ..rule(100) };
        let shadow = || Rule { mode: RuleMode::Shadow.into(), ..rule(100) };
        let half = || Rule { enforce_ppm: Some(500_000), ..rule(100) };
        let token = |burst| Rule { burst, ..rule(100) };
        for (before, after, expected) in [
            (rule(100), rule(100), false),
            (rule(100), Rule { burst: 0, ..rule(200) }, false),
            (rule(2_000), rule(100), true),
            (token(50), Rule { burst: 50, ..rule(99) }, true),
            (rule(100), longer, true),
            (token(50), token(20), true),
            (token(50), token(0), false),
            (shadow(), rule(100), true),
            (half(), rule(100), true),
            (rule(100), shadow(), false),
        ] {
            assert_eq!(can_refuse_more(&before, &after), expected, "{before:?} {after:?}");
        }
    }
}
