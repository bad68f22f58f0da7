//! The page of a project.

use maud::{Markup, html};

use super::{ProjectForm, ProjectPage};
use crate::console::change_form::{Input, hidden, reason};
use crate::console::fields::Link;
use crate::console::layout::failure;
use crate::console::pages::projects::{created, policy_input, policy_text, rule_count};
use crate::console::project_access::field_of;
use crate::console::table::{PageColumn, PageTable};
use crate::console::text::{foreign, number, time};
use crate::projects::Project;
use crate::proto_values::timestamp;
use crate::rules::Unmatched;

impl ProjectPage {
    fn project(&self) -> &Project {
        &self.state.project
    }

    fn policy(&self) -> Unmatched {
        self.of_files.unwrap_or_else(|| self.project().unmatched.into())
    }

    /// Returns the page.
    pub(super) fn render(&self) -> Markup {
        let is_unnamed = self.project().id.is_unnamed();
        let content = html! {
            @if let Some(refused) = &self.refused { (failure(&refused.error.sentence())) }
            @if self.refused.as_ref().is_some_and(|refused| refused.is_stale) { (self.comparison()) }
            (self.summary())
            @if is_unnamed {
                p.notice {
                    "Requests without an API key are in this project. It has no keys and no name, it can't \
                     be deleted, and the configuration has its policy (unmatched)."
                }
            } @else { (self.keys()) }
            (self.usage.render(&self.project().id))
            @if !is_unnamed && self.is_admin { (self.settings()) }
            @if !is_unnamed && self.is_admin_of_all { (self.deletion()) }
        };
        let id = &self.project().id;
        let title = if is_unnamed { "Requests without an API key" } else { id.as_str() };
        self.frame.page(&format!("Project: {title}"), &content)
    }

    fn summary(&self) -> Markup {
        let (of, id) = (self.project(), field_of(&self.project().id));
        let rules = rule_count(&self.state, &self.projects);
        html! {
            dl.card {
                @if !of.id.is_unnamed() {
                    dt { "Name" }
                    dd { @if of.display_name.is_empty() { span.muted { "none" } } @else { (foreign(&of.display_name)) } }
                }
                dt { "Id" } dd { (foreign(id)) }
                dt { "Requests without a rule" }
                dd {
                    "are " (policy_text(self.policy()))
                    @if self.of_files.is_some() { " " span.muted { "(by a file)" } }
                }
                dt { "Rules" }
                dd {
                    a href=(Link::to("rules").with("project", id)) {
                        (number(rules as u64)) @if rules == 1 { " rule" } @else { " rules" }
                    }
                    ", " a href=(Link::to("change").with("project", id)) { "change them" }
                }
                dt { "Created" } dd { (created(&self.state)) }
                @if of.updated_at != of.created_at {
                    dt { "Changed" } dd { (time(Some(&timestamp(of.updated_at)))) }
                }
                @if self.is_admin {
                    dt { "Audit" }
                    dd { a href=(Link::to("audit").with("project", id)) { "changes of this project" } }
                }
            }
        }
    }

    /// Returns what was typed beside what somebody else has saved meanwhile.
    fn comparison(&self) -> Markup {
        let typed = |name| self.value(ProjectForm::Settings, name, "");
        let policy = self.policy();
        let typed_policy = super::super::projects::policy_named(typed("unmatched"));
        let table = PageTable {
            of: "values",
            caption: "The project now, and what you typed",
            columns: &["Property", "Now", "You typed"].map(PageColumn::Text),
        };
        table.with_rows(&html! {
            tr {
                th scope="row" { "Name" }
                td { (foreign(&self.project().display_name)) }
                td { (foreign(typed("name"))) }
            }
            tr {
                th scope="row" { "Requests without a rule" }
                td { (policy_text(policy)) }
                td { (policy_text(typed_policy.unwrap_or(policy))) }
            }
        })
    }

    fn settings(&self) -> Markup {
        let of = self.project();
        let value = |name, first| self.value(ProjectForm::Settings, name, first);
        let name = Input {
            id: "name",
            name: "name",
            label: "Name",
            value: value("name", &of.display_name),
            hint: "For people; may be empty.",
            max: Some(128),
            ..Input::default()
        };
        html! {
            h2 #settings { "Name and policy" }
            form.card.stack.narrow-form method="post" action="project-update" {
                (hidden(&self.frame, ""))
                input type="hidden" name="project" value=(field_of(&of.id));
                // A refused form may be sent again: its visitor has seen the project as it is.
                input type="hidden" name="etag" value=(of.etag);
                (name.render())
                @if self.of_files.is_some() {
                    p.hint { "A file has the policy for requests that no rule matches: change it there." }
                } @else {
                    (policy_input("unmatched", value("unmatched", self.policy().name())))
                }
                (reason("settings-reason", value("reason", "")))
                button.primary { "Save" }
            }
        }
    }

    fn deletion(&self) -> Markup {
        let (id, value) =
            (field_of(&self.project().id), |name| self.value(ProjectForm::Delete, name, ""));
        let is_refused = self.refused.as_ref().is_some_and(|of| of.form == ProjectForm::Delete);
        let confirm = Input {
            id: "confirm",
            name: "confirm",
            label: "Id to confirm",
            value: value("confirm"),
            hint: "Type the id of the project.",
            max: Some(63),
            ..Input::default()
        };
        html! {
            h2 #deletion { "Delete" }
            @if self.is_of_file {
                p.notice { "A file names the project, so it can't be deleted here." }
            } @else {
                details #delete open[is_refused] {
                    summary { "Delete the project" }
                    form.card.stack.narrow-form method="post" action="project-delete" {
                        (hidden(&self.frame, self.request_id(ProjectForm::Delete)))
                        input type="hidden" name="project" value=(id);
                        p.hint {
                            "Its keys end within 2 s, its rules and its usage are lost. The id is not given \
                             again for 366 days."
                        }
                        (confirm.render())
                        (reason("delete-reason", value("reason")))
                        button.danger { "Delete project" }
                    }
                }
            }
        }
    }
}
