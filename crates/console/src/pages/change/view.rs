//! The page with the rules of a project as a text.

use maud::{Markup, html};

use super::form::ChangeForm;
use super::plan::ChangePlan;
use super::{ChangePage, ChangeResult, NewerRules, is_of_run_time};
use crate::assets::CHANGE;
use crate::calls::field_of;
use crate::fields::{Link, search_input};
use crate::form::{Field, FormPlace, hidden};
use crate::layout::failure;
use crate::rule_diff::RuleDiff;
use crate::rules_text::{FieldHelp, RulesFormat};
use crate::text::{foreign, hidden_characters, number, time, visible};

/// Most rules of files that are named.
const MAX_NAMED: usize = 20;
/// Most rules that are edited as one text.
const MAX_RULES: usize = 500;
/// Most problems, and most warnings, that are shown.
const MAX_FINDINGS: usize = 500;
impl ChangePage {
    /// Returns the page.
    pub(super) fn render(&self) -> Markup {
        let id = field_of(&self.form.project);
        let content = html! {
            @if let Some(undo) = &self.undo { (undo.render()) }
            p {
                a href=(Link::to("project").with("id", id)) { "Project " (foreign(id)) }
                " · " a href=(Link::to("rules").with("project", id)) { "Rules, to change one of them" }
                " · " a href=(Link::to("history").with("project", id)) { "History and roll back" }
                " · revision " (number(self.project.revision))
            }
            @if !matches!(self.result, ChangeResult::None) {
                p.notice { "Nothing was published. " a href="#result" { "See the result below the text" } }
            }
            @if self.is_too_long() { (self.choose_rule()) } @else {
                @if self.form.rule.is_empty() { (self.file_rules()) }
                (self.editor())
            }
        };
        let project = if self.form.project.is_empty() { "requests without an API key" } else { id };
        let what = match &*self.form.rule {
            "" => "the rules".to_owned(),
            rule => format!("rule {}", visible(rule)),
        };
        self.frame.page(&format!("Change {what}: {project}"), &content)
    }

    /// Returns `true` if the project has more rules than are edited as one text.
    fn is_too_long(&self) -> bool {
        let of_run_time = self.rules.iter().filter(|rule| is_of_run_time(rule));
        let is_new = matches!(self.result, ChangeResult::None);
        is_new && self.form.rule.is_empty() && of_run_time.count() > MAX_RULES
    }

    fn choose_rule(&self) -> Markup {
        html! {
            p.notice {
                "The project has more than " (MAX_RULES) " rules: edit one of them, or make a new one. All are \
                 edited by " code { "rlaas rule export" } " and " code { "rlaas rule apply" } "."
            }
            form.row method="get" action="change" {
                input type="hidden" name="project" value=(field_of(&self.form.project));
                (search_input("name", "Name of the rule", "text", ""))
                button.primary { "Edit" }
            }
        }
    }

    fn editor(&self) -> Markup {
        let ChangeForm { project, rule, revision, text, .. } = &self.form;
        html! {
            form #change method="post" action="change-check" data-keep={ "rules " (project) " " (rule) } {
                (hidden(&self.frame, None))
                input type="hidden" name="project" value=(field_of(project));
                input type="hidden" name="name" value=(rule);
                input type="hidden" name="revision" value=(revision);
                div.editor {
                    div {
                        label for="rules" { @if rule.is_empty() { "Rules of the project, as YAML" } @else { "The rule, as YAML" } }
                        // The first line feed of the element is not part of its text.
                        textarea #rules name="rules" rows="24" spellcheck="false" autocomplete="off"
                            autocapitalize="off" aria-describedby="rules-hint" { "\n" (text) }
                        p.hint #rules-hint {
                            @if rule.is_empty() {
                                "All rules that were made at run time, as " code { "rlaas rule export" }
                                " prints them. A rule that is left out is deleted."
                            } @else { "The other rules of the project stay as they are." }
                        }
                    }
                    (help(&(self.format.help)()))
                }
                div.buttons { button formaction="change-check#result" { "Validate" } }
                (self.result())
                (self.publishing())
            }
            script type="module" src=(CHANGE.path()) {}
        }
    }

    /// Returns what is said of rules that can't be changed here.
    fn file_rules(&self) -> Markup {
        let of_files = self.rules.iter().filter(|rule| !is_of_run_time(rule));
        let of_files: Vec<_> = of_files.filter_map(|rule| rule.rule.as_ref()).collect();
        let hidden: Vec<_> = self.rules.iter().filter(|rule| rule.hidden).collect();
        let hidden: Vec<_> = hidden.iter().filter_map(|rule| rule.rule.as_ref()).collect();
        html! {
            @if !of_files.is_empty() {
                div.notice {
                    "Rules of files are read-only: change them in the file, and they are reloaded."
                    details #file-rules {
                        summary { (number(of_files.len() as u64)) @if of_files.len() == 1 { " rule" } @else { " rules" } " of files" }
                        ul {
                            @for rule in of_files.iter().take(MAX_NAMED) {
                                li { (foreign(&rule.name)) " in " (foreign(rule.origin.as_ref().map_or("", |origin| &origin.source))) }
                            }
                            @if of_files.len() > MAX_NAMED { li { "and more" } }
                        }
                    }
                }
            }
            @if !hidden.is_empty() {
                p.problem {
                    "Files hide " (number(hidden.len() as u64)) " rules of the same names, which are not in the \
                     text: publishing deletes them. They are "
                    @for (at, rule) in hidden.iter().take(MAX_NAMED).enumerate() {
                        @if at > 0 { ", " } (foreign(&rule.name))
                    }
                    @if hidden.len() > MAX_NAMED { " and more" } "."
                }
            }
        }
    }

    fn may_publish(&self) -> bool {
        self.frame.visitor.is_admin(&self.form.project)
    }

    fn publishing(&self) -> Markup {
        let values = [("reason", &*self.form.reason)];
        let place = FormPlace { frame: &self.frame, prefix: "", values: &values, refused: None };
        html! {
            @if self.may_publish() {
                div.card.publish {
                    (Field::REASON.render(&place))
                    button.primary formaction="change-publish" { "Publish" }
                }
            } @else {
                p.hint { "To publish the rules, the role admin is required." }
            }
        }
    }

    /// Returns the plan that the page shows, if there is something to publish: without one the form is hidden.
    fn plan(&self) -> Option<&ChangePlan> {
        let plan = match &self.result {
            ChangeResult::Plan(plan) | ChangeResult::Stale { plan, .. } => Some(plan),
            ChangeResult::None | ChangeResult::Refused(_) => None,
        };
        plan.filter(|plan| plan.problems.is_empty() && !plan.changes.is_empty())
    }

    /// Returns what was asked for, with the name of the plan that it shows.
    pub(super) fn result(&self) -> Markup {
        let planned = self.plan().map(|_| self.form.plan_name());
        html! {
            div #result role="status" {
                input type="hidden" name="planned" value=(planned.unwrap_or_default());
                (hidden_in(&self.form.text))
                @match &self.result {
                    ChangeResult::None => {}
                    ChangeResult::Refused(error) => (failure(&error.sentence())),
                    ChangeResult::Plan(plan) => (plan.render(self.may_publish(), self.format)),
                    ChangeResult::Stale { plan, newer } => {
                        (newer.render(self.format)) (plan.render(self.may_publish(), self.format))
                    }
                }
            }
        }
    }
}

impl ChangePlan {
    fn render(&self, may_publish: bool, format: RulesFormat) -> Markup {
        let diff = RuleDiff {
            subject: "planned changes",
            caption: "The rules in force, and the text",
            changes: &self.changes,
            format,
        };
        html! {
            @if !self.problems.is_empty() {
                div.problem role="alert" {
                    strong { (count(&self.problems, "problem")) ": nothing can be published" }
                    (findings(&self.problems))
                }
            }
            @if !self.warnings.is_empty() {
                div.notice { strong { (count(&self.warnings, "warning")) } (findings(&self.warnings)) }
            }
            @if self.problems.is_empty() {
                h2 { "Plan" }
                @if self.changes.is_empty() {
                    p.done { "The text is valid, and has the rules that are in force: publishing changes nothing." }
                } @else {
                    p.done {
                        "The text is valid. "
                        @if may_publish { "Nothing was changed yet: publish, if this is the change that you want." }
                    }
                    (diff.render())
                }
            }
            @if !self.other_warnings.is_empty() {
                details #other-warnings {
                    summary { (count(&self.other_warnings, "warning")) " of rules that stay as they are" }
                    (findings(&self.other_warnings))
                }
            }
        }
    }
}

/// Returns how many problems or warnings there are, with their name in the singular.
fn count(all: &[String], name: &str) -> Markup {
    html! { (number(all.len() as u64)) " " (name) @if all.len() != 1 { "s" } }
}

/// Returns the first problems or warnings.
fn findings(all: &[String]) -> Markup {
    let left_out = all.len().saturating_sub(MAX_FINDINGS);
    html! {
        ul.problems {
            @for finding in all.iter().take(MAX_FINDINGS) { li { (foreign(finding)) } }
            @if left_out > 0 { li { "and " (number(left_out as u64)) " more" } }
        }
    }
}

impl NewerRules {
    fn render(&self, format: RulesFormat) -> Markup {
        html! {
            div.problem role="alert" {
                strong { "Others have changed the project since you loaded the rules: nothing was published. " }
                @if let Some(revision) = &self.revision {
                    "Revision " (number(revision.revision)) " is by " (foreign(&revision.actor)) ", "
                    (time(revision.created_at.as_ref()))
                    @if !revision.reason.is_empty() { ": " (foreign(&revision.reason)) }
                    ". "
                }
                "Your text is as you left it. Compare, and publish again if you want it in place of theirs."
            }
            @if let Some(changes) = &self.changes {
                h2 { "Changes of the others" }
                (RuleDiff {
                    subject: "changes of others",
                    caption: "The rules that you began with, and those in force",
                    changes,
                    format,
                }.render())
            }
        }
    }
}

/// Returns a warning about characters that nobody sees.
fn hidden_in(text: &str) -> Markup {
    let found = hidden_characters(text);
    html! {
        @if !found.is_empty() {
            div.notice {
                strong { "The text has characters that nobody sees" }
                ul.problems {
                    @for (line, character) in found.iter().take(MAX_NAMED) {
                        li { "line " (number(*line as u64)) ": " (foreign(&character.to_string())) }
                    }
                    @if found.len() > MAX_NAMED { li { "and more" } }
                }
            }
        }
    }
}

/// Returns the fields of rules.
fn help(fields: &[FieldHelp]) -> Markup {
    html! {
        details.help.card open {
            summary { "Fields of a rule" }
            div tabindex="0" role="region" aria-label="Fields of a rule" {
                dl {
                    @for FieldHelp { name, about, must_be } in fields {
                        dt { code { (name) } }
                        dd {
                            (about)
                            @if !must_be.is_empty() { br; span.muted { "Must be " (must_be) "." } }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_findings_are_shown() {
        let all: Vec<_> = (0..MAX_FINDINGS + 7).map(|number| number.to_string()).collect();
        let html = findings(&all).into_string();
        assert_eq!(html.matches("<li>").count(), MAX_FINDINGS + 1, "{html}");
        assert!(html.contains(">7</data> more"), "{html}");
    }
}
