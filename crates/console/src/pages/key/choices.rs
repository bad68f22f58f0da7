//! The form of a search: the user id first, then projects and rules to choose from.

use maud::{Markup, html};
use rlaas_proto::ratelimit::v1::GetConfigRequest;

use crate::calls::{configuration, field_of, id_of};
use crate::fields::{FormFields, UNNAMED};
use crate::pages::projects;
use crate::request_fields::{REQUEST_FIELDS, further_inputs};
use crate::text::visible;
use crate::visit::{Visit, Visitor};

/// Most projects or rules in a list.
const MAX_LISTED: usize = 200;

/// The projects of a visitor, and the rules of the chosen one.
#[derive(Debug, Default)]
pub(in crate::pages) struct Choices {
    projects: Vec<String>,
    rules: Vec<String>,
}

/// Reads what there is to choose from. The project is empty if none is chosen.
pub(in crate::pages) async fn read(visit: &Visit, project: &str) -> Choices {
    let (visitor, project) = (visit.visitor.clone(), project.to_owned());
    let read = async move {
        let projects = projects::list(&visitor).await?;
        let mut projects: Vec<_> =
            projects.iter().map(|project| field_of(&project.id).to_owned()).collect();
        projects.sort_unstable();
        if project.is_empty() {
            return Ok(Choices { projects, rules: Vec::new() });
        }
        let page_size = i32::try_from(MAX_LISTED + 1).unwrap_or_default();
        let config = GetConfigRequest { page_size, ..GetConfigRequest::default() };
        // A project that does not exist is said below the form.
        let config = configuration(&visitor, id_of(&project), config).await.unwrap_or_default();
        let rules = config.rules.into_iter().map(|rule| rule.name).collect();
        Ok(Choices { projects, rules })
    };
    visit.console.in_background(read).await.unwrap_or_default()
}

impl Choices {
    /// Shows the projects to choose from.
    pub(in crate::pages) fn project(&self, chosen: &str) -> Markup {
        choice("project", "Project", &self.projects, chosen)
    }

    /// Shows the rules of the chosen project to choose from.
    pub(in crate::pages) fn rule(&self, chosen: &str) -> Markup {
        choice("rule", "Rule", &self.rules, chosen)
    }

    /// Returns the projects that the visitor may change.
    pub(super) fn own_projects(&self, visitor: &Visitor) -> Vec<String> {
        let is_own = |project: &&String| visitor.is_admin(id_of(project));
        self.projects.iter().filter(is_own).cloned().collect()
    }

    /// Shows the form of a search, with what was searched for.
    pub(super) fn search_form(&self, search: &FormFields) -> Markup {
        // The form begins another search: a key, its project and its rule are not kept.
        let is_of_key = !search.get("id").is_empty();
        let [project, rule] =
            ["project", "rule"].map(|name| if is_of_key { "" } else { search.get(name) });
        let has_more = REQUEST_FIELDS[1..].iter().any(|name| !search.get(name).is_empty());
        html! {
            form.row method="get" action="key" role="search" {
                div {
                    label for="user_id" { "User id, customer or API key" }
                    input #user_id name="user_id" value=(search.get("user_id")) autocomplete="off" spellcheck="false"
                        autofocus[*search == FormFields::default()];
                }
                (self.project(project))
                @if !project.is_empty() || !rule.is_empty() {
                    (self.rule(rule))
                }
                button.primary { "Look up" }
                details id="more" open[has_more || !rule.is_empty()] {
                    summary { "More of the request" }
                    div.row { (further_inputs(search)) }
                }
            }
        }
    }
}

/// Shows a list box, whose empty option stands for all. Of more than 200 options it has the first 200 and
/// the chosen one: links of other pages lead to the others.
fn choice(name: &str, label: &str, options: &[String], chosen: &str) -> Markup {
    let listed = &options[..options.len().min(MAX_LISTED)];
    let is_alone = !chosen.is_empty() && !listed.iter().any(|option| option == chosen);
    html! {
        div {
            label for=(name) { (label) }
            select id=(name) name=(name) {
                option value="" { "All " (name) "s" }
                @if is_alone { option value=(chosen) selected { (visible(chosen)) } }
                @for option in listed {
                    option value=(option) selected[option == chosen] {
                        (visible(option)) @if option == UNNAMED { " (no project, no API key)" }
                    }
                }
                @if options.len() > MAX_LISTED { option disabled { "The others: by a link of their page" } }
            }
        }
    }
}
