//! The API keys of a project: a list with a form for each, and a form for a new one.

use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::ApiKey;
use rlaas_proto::ratelimit::admin::v1::api_key::State;

use super::forms::GRACES;
use super::{ProjectForm, ProjectPage};
use crate::change_form::{Input, hidden, reason};
use crate::table::{PageColumn, PageTable};
use crate::text::{foreign, time};

/// Value of the list of graces that a form begins with: a day.
const DEFAULT_GRACE: &str = "86400";

impl ProjectPage {
    /// Returns the part of the page.
    pub(super) fn key_part(&self) -> Markup {
        let keys = &self.keys.keys;
        html! {
            h2 #keys { "API keys" }
            @if let Some(warning) = &self.keys.warning { p.notice { (foreign(warning)) } }
            @else if keys.is_empty() {
                p.notice { "The project has no API key, so that no request is one of its own." }
            } @else { (self.key_table(keys)) }
            @if self.is_admin && self.keys.warning.is_none() { (self.new_key()) }
        }
    }

    fn key_table(&self, keys: &[ApiKey]) -> Markup {
        let table = PageTable {
            of: "API keys",
            caption: "Newest first. Keys that have ended are listed for 40 days",
            columns: &["Key", "Environment", "State", "Created", "End", "Last use", "Change"]
                .map(PageColumn::Text)[..if self.is_admin { 7 } else { 6 }],
        };
        table.with_rows(&html! { @for key in keys { (self.key_row(key)) } })
    }

    fn key_row(&self, key: &ApiKey) -> Markup {
        html! {
            tr {
                th scope="row" {
                    (foreign(&key.id))
                    @if !key.display_name.is_empty() { br; span.muted.remark { (foreign(&key.display_name)) } }
                }
                td { (foreign(&key.environment)) }
                td { (state_text(key)) }
                td { (time(key.created_at.as_ref())) }
                td { @if key.expires_at.is_some() { (time(key.expires_at.as_ref())) } @else { span.muted { "none" } } }
                td {
                    @if key.last_used_at.is_some() { "in the hour from " (time(key.last_used_at.as_ref())) }
                    @else { span.muted { "never, or not known" } }
                }
                @if self.is_admin { td { (self.key_forms(key)) } }
            }
        }
    }

    fn key_forms(&self, key: &ApiKey) -> Markup {
        let is_refused = |form| {
            let of_key = |refused: &super::RefusedForm| refused.fields.one("key") == Ok(&key.id);
            self.is_refused(form) && self.refused.as_ref().is_some_and(of_key)
        };
        let typed = |form, name, first| {
            if is_refused(form) { self.value(form, name, first) } else { first }
        };
        let (rotate, revoke) = (ProjectForm::RotateKey, ProjectForm::RevokeKey);
        let of = |name: &str| format!("{name}-{}", key.id);
        let (grace, label) = (of("grace"), "The replaced key");
        let grace = Input {
            id: &grace,
            name: "grace",
            label,
            value: typed(rotate, "grace", DEFAULT_GRACE),
            ..Input::default()
        };
        let identify = |form| {
            let request_id = if is_refused(form) { self.request_id(form) } else { "" };
            html! {
                (hidden(&self.frame, request_id))
                input type="hidden" name="project" value=(self.id());
                input type="hidden" name="key" value=(key.id);
            }
        };
        html! {
            @if key.state() == State::Active {
                details id=(of("change")) open[is_refused(rotate) || is_refused(revoke)] {
                    summary { "Replace or revoke" span.hidden-text { " " (foreign(&key.id)) } }
                    @if key.replaced_by.is_empty() {
                        form.stack method="post" action="project-key-rotate" {
                            (identify(rotate))
                            (grace.select(&GRACES))
                            (reason(&of("rotate-reason"), typed(rotate, "reason", "")))
                            button { "Replace by a new key" }
                        }
                    }
                    form.stack method="post" action="project-key-revoke" {
                        (identify(revoke))
                        (reason(&of("revoke-reason"), typed(revoke, "reason", "")))
                        button.danger { "Revoke now" }
                    }
                }
            }
        }
    }

    fn new_key(&self) -> Markup {
        let value = |name, first| self.value(ProjectForm::CreateKey, name, first);
        let name = Input {
            id: "key-name",
            name: "name",
            label: "Name",
            value: value("name", ""),
            hint: "For people; may be empty.",
            max: Some(128),
            ..Input::default()
        };
        let environment = Input {
            id: "key-environment",
            name: "environment",
            label: "Environment",
            value: value("environment", "live"),
            hint: "Part of the key: lower case letters and digits, such as live or test.",
            max: Some(16),
            ..Input::default()
        };
        let end = Input {
            id: "key-end",
            name: "end",
            label: "End (UTC)",
            kind: "datetime-local",
            value: value("end", ""),
            hint: "Empty: it has none.",
            ..Input::default()
        };
        html! {
            details #new-key open[self.is_refused(ProjectForm::CreateKey)] {
                summary { "Create an API key" }
                form.card.stack.narrow-form method="post" action="project-key-create" {
                    (hidden(&self.frame, self.request_id(ProjectForm::CreateKey)))
                    input type="hidden" name="project" value=(self.id());
                    (name.render()) (environment.render()) (end.render())
                    (reason("key-reason", value("reason", "")))
                    button.primary { "Create API key" }
                }
            }
        }
    }
}

fn state_text(key: &ApiKey) -> Markup {
    html! {
        @match key.state() {
            State::Active => span.good { "active" },
            State::Expired => span.muted { "expired" },
            State::Revoked => span.bad { "revoked" },
            State::Unspecified => span.muted { "unknown" },
        }
        @if !key.replaced_by.is_empty() { br; span.muted { "replaced by " (foreign(&key.replaced_by)) } }
    }
}
