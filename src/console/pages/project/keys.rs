//! The API keys of a project: a list with a form for each, and a form for a new one.

use maud::{Markup, html};

use super::key_forms::GRACES;
use super::{ProjectForm, ProjectPage};
use crate::console::change_form::{Input, hidden, reason};
use crate::console::project_access::field_of;
use crate::console::table::{PageColumn, PageTable};
use crate::console::text::{foreign, time};
use crate::projects::{ApiKey, ApiKeyState};
use crate::proto_values::timestamp;

/// Value of the list of graces that a form begins with: a day.
const DEFAULT_GRACE: &str = "86400";

impl ProjectPage {
    /// Returns the part of the page.
    pub(super) fn keys(&self) -> Markup {
        let mut keys: Vec<&ApiKey> =
            self.state.project.keys.iter().filter(|key| key.is_listed(self.now)).collect();
        keys.sort_by(|one, other| (other.created_at, &other.id).cmp(&(one.created_at, &one.id)));
        html! {
            h2 #keys { "API keys" }
            @if !self.projects.reads_keys() {
                p.notice {
                    "API keys are ignored here, and the default rule answers: set "
                    code { "auth.api-keys" } " to accepted or required."
                }
            } @else if keys.is_empty() {
                p.notice { "The project has no API key, so that no request is one of its own." }
            } @else { (self.key_table(&keys)) }
            @if self.is_admin && self.projects.reads_keys() { (self.new_key()) }
        }
    }

    fn key_table(&self, keys: &[&ApiKey]) -> Markup {
        let table = PageTable {
            of: "API keys",
            caption: "Newest first. Keys that have ended are listed for 40 days",
            columns: &["Key", "Environment", "State", "Created", "End", "Last use", "Change"]
                .map(PageColumn::Text)[..if self.is_admin { 7 } else { 6 }],
        };
        table.with_rows(&html! { @for key in keys { (self.key_row(key)) } })
    }

    fn key_row(&self, key: &ApiKey) -> Markup {
        let state = key.state(self.now);
        html! {
            tr {
                th scope="row" {
                    (foreign(&key.id))
                    @if !key.display_name.is_empty() { br; span.muted.remark { (foreign(&key.display_name)) } }
                }
                td { (foreign(&key.environment)) }
                td { (state_text(key, state)) }
                td { (time(Some(&timestamp(key.created_at)))) }
                td {
                    @match key.revoked_at.or(key.expires_at) {
                        Some(end) => (time(Some(&timestamp(end)))),
                        None => span.muted { "none" }
                    }
                }
                td {
                    @match self.uses.get(&key.id) {
                        Some(hour) => { "in the hour from " (time(Some(&timestamp(*hour)))) }
                        None => span.muted { "never, or not known" }
                    }
                }
                @if self.is_admin { td { (self.key_forms(key, state)) } }
            }
        }
    }

    fn key_forms(&self, key: &ApiKey, state: ApiKeyState) -> Markup {
        let is_refused = |form| {
            self.refused.as_ref().is_some_and(|refused| {
                refused.form == form && refused.fields.one("key") == Ok(key.id.as_str())
            })
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
        let request_id = |form| if is_refused(form) { self.request_id(form) } else { "" };
        let identify = |form| {
            html! {
                (hidden(&self.frame, request_id(form)))
                input type="hidden" name="project" value=(field_of(&self.state.project.id));
                input type="hidden" name="key" value=(key.id);
            }
        };
        html! {
            @if state == ApiKeyState::Active {
                details id=(of("change")) open[is_refused(rotate) || is_refused(revoke)] {
                    summary { "Replace or revoke" span.hidden-text { " " (foreign(&key.id)) } }
                    @if key.replaced_by.is_none() {
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
        let is_refused = self.refused.as_ref().is_some_and(|of| of.form == ProjectForm::CreateKey);
        html! {
            details #new-key open[is_refused] {
                summary { "Create an API key" }
                form.card.stack.narrow-form method="post" action="project-key-create" {
                    (hidden(&self.frame, self.request_id(ProjectForm::CreateKey)))
                    input type="hidden" name="project" value=(field_of(&self.state.project.id));
                    (name.render()) (environment.render()) (end.render())
                    (reason("key-reason", value("reason", "")))
                    button.primary { "Create API key" }
                }
            }
        }
    }
}

fn state_text(key: &ApiKey, state: ApiKeyState) -> Markup {
    html! {
        @match state {
            ApiKeyState::Active => span.good { "active" },
            ApiKeyState::Expired => span.muted { "expired" },
            ApiKeyState::Revoked => span.bad { "revoked" },
        }
        @if let Some(by) = &key.replaced_by { br; span.muted { "replaced by " (foreign(by)) } }
    }
}
