//! The rules in force, by project and name.

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use rlaas_proto::ratelimit::v1::rule_origin::Kind;
use rlaas_proto::ratelimit::v1::{
    GetConfigRequest, GetConfigResponse, Rule, RuleMode, RuleOrigin, UnmatchedPolicy,
};

use super::projects;
use crate::Console;
use crate::calls::{configuration, field_of, id_of};
use crate::fields::{FormFields, Link};
use crate::layout::{Frame, failure};
use crate::page_error::PageError;
use crate::rule_words;
use crate::table::{PageColumn, PageTable};
use crate::text::{foreign, number, time};
use crate::visit::Visitor;

/// Rules of a page.
const PAGE_SIZE: usize = 100;

/// A search for rules: the fields of the form. Empty ones limit nothing.
#[derive(Clone, Debug, Default)]
struct RuleSearch {
    project: String,
    /// Part of the name, in upper or lower case.
    name: String,
    /// Number of the page, from 1.
    page: usize,
}

/// The rules of a search on one page, each with its project.
#[derive(Debug, Default)]
struct ListedRules {
    page: Vec<(String, Rule)>,
    /// Number of rules that fit.
    found: usize,
}

/// Shows the rules that a visitor looks for.
pub(crate) async fn show(
    State(console): State<Console>,
    visitor: Visitor,
    RawQuery(query): RawQuery,
) -> Response {
    let frame = visitor.frame("rules");
    let searched = FormFields::parse(query.unwrap_or_default().as_bytes())
        .map_err(PageError::from)
        .and_then(|fields| RuleSearch::parse(&fields));
    let listed = match &searched {
        Ok(search) => console.in_background(list(visitor, search.clone())).await,
        Err(error) => Err(error.clone()),
    };
    let status = listed.as_ref().err().map_or(StatusCode::OK, |error| error.status);
    let search = searched.unwrap_or_default();
    console.page(status, move || render(&frame, &search, &listed)).await
}

/// Returns the configuration that is in force in a project.
pub(super) async fn config(visitor: &Visitor, id: &str) -> Result<GetConfigResponse, PageError> {
    configuration(visitor, id, GetConfigRequest::default()).await
}

/// Returns the rules that a visitor may see: of all projects, or of the one that they ask for.
async fn list(visitor: Visitor, search: RuleSearch) -> Result<ListedRules, PageError> {
    let mut ids: Vec<String> = if search.project.is_empty() {
        projects::list(&visitor).await?.into_iter().map(|project| project.id).collect()
    } else {
        vec![id_of(&search.project).to_owned()]
    };
    ids.sort_unstable();
    let shown = (search.page - 1) * PAGE_SIZE..search.page * PAGE_SIZE;
    let wanted = search.name.to_lowercase();
    let mut listed = ListedRules::default();
    for id in ids {
        let config = match config(&visitor, &id).await {
            // It was deleted meanwhile.
            Err(error) if error.is_of_access() && search.project.is_empty() => continue,
            config => config?,
        };
        // The default rule does not decide unless it is the policy.
        let skipped = usize::from(config.unmatched() != UnmatchedPolicy::DefaultRule);
        for rule in config.rules.into_iter().skip(skipped) {
            if !rule.name.to_lowercase().contains(&wanted) {
                continue;
            }
            if shown.contains(&listed.found) {
                listed.page.push((id.clone(), rule));
            }
            listed.found += 1;
        }
    }
    Ok(listed)
}

impl RuleSearch {
    fn parse(fields: &FormFields) -> Result<Self, PageError> {
        let page = match fields.one("page")? {
            "" => Some(1),
            number => number.parse().ok().filter(|page| (1..=1_000_000).contains(page)),
        };
        Ok(Self {
            project: fields.one("project")?.to_owned(),
            name: fields.one("name")?.to_owned(),
            page: page.ok_or_else(|| PageError::invalid("page must be a number from 1"))?,
        })
    }

    fn link(&self, page: usize) -> Link {
        let page = if page == 1 { String::new() } else { page.to_string() };
        let link = Link::to("rules").with("project", &self.project);
        link.with("name", &self.name).with("page", &page)
    }
}

fn render(frame: &Frame, search: &RuleSearch, listed: &Result<ListedRules, PageError>) -> Markup {
    let content = html! {
        (form(search))
        @match listed {
            Err(error) => (failure(&error.problem)),
            Ok(listed) => (table(search, listed))
        }
    };
    frame.page("Rules", &content)
}

fn form(search: &RuleSearch) -> Markup {
    let fields = [
        ("name", "Part of the name", &search.name),
        ("project", "Project (_ for none)", &search.project),
    ];
    html! {
        form.row method="get" action="rules" {
            @for (name, label, value) in fields {
                div {
                    label for=(name) { (label) }
                    input id=(name) name=(name) value=(value) autocomplete="off" spellcheck="false";
                }
            }
            button.primary { "Show" }
        }
    }
}

fn table(search: &RuleSearch, ListedRules { page, found }: &ListedRules) -> Markup {
    let columns = ["Rule", "Project", "Limit", "Algorithm", "Mode", "From"].map(PageColumn::Text);
    let table = PageTable { of: "rules", caption: "Rules by project and name", columns: &columns };
    let first = (search.page - 1) * PAGE_SIZE;
    let last = first + page.len();
    html! {
        @if page.is_empty() {
            p.notice {
                @if *found == 0 { "No rule fits." } @else { "There are no more rules." }
            }
        } @else {
            p.hint.as-of {
                (number(first as u64 + 1)) " to " (number(last as u64)) " of "
                (number(*found as u64)) @if *found == 1 { " rule" } @else { " rules" }
            }
            (table.with_rows(&html! { @for (project, rule) in page { (row(project, rule)) } }))
        }
        @if search.page > 1 || *found > last {
            nav.pages aria-label="Pages of rules" {
                @if search.page > 1 { a href=(search.link(search.page - 1)) { "Previous rules" } }
                @if *found > last { a href=(search.link(search.page + 1)) { "Next rules" } }
            }
        }
    }
}

fn row(project: &str, rule: &Rule) -> Markup {
    let mode = rule_words::rule_mode(rule);
    html! {
        tr {
            th scope="row" { (rule_words::rule_link(project, &rule.name)) }
            td { @if project.is_empty() { span.muted { "none" } } @else { (foreign(project)) } }
            td { (rule_words::rule_grant(rule)) }
            td { (rule_words::algorithm(rule.algorithm())) }
            td {
                @if mode == rule_words::mode(RuleMode::Enforce) { (mode) } @else { span.warn { (mode) } }
                @if rule.mode_ends_at.is_some() {
                    br; span.muted { "set until " (time(rule.mode_ends_at.as_ref())) }
                }
            }
            td { (source(project, rule.origin.as_ref())) }
        }
    }
}

/// Shows where a rule of a project comes from.
pub(super) fn source(project: &str, origin: Option<&RuleOrigin>) -> Markup {
    let origin = origin.cloned().unwrap_or_default();
    html! {
        @match origin.kind() {
            Kind::BuiltIn => "built in",
            Kind::RunTime => {
                "run time, " a href=(Link::to("change").with("project", field_of(project))) { "change" }
            }
            _ if origin.source.is_empty() => "the configuration",
            _ => (foreign(&origin.source)),
        }
    }
}
