//! The rules in force, by project and name.

use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use rlaas_proto::ratelimit::v1::rule_origin::Kind;
use rlaas_proto::ratelimit::v1::{GetConfigRequest, Rule, RuleMode, RuleOrigin, UnmatchedPolicy};

use super::projects;
use crate::calls::{configuration, field_of, id_of};
use crate::fields::{FormFields, Link, search_form};
use crate::layout::{Frame, failure};
use crate::page_error::PageError;
use crate::rule_words;
use crate::table::Table;
use crate::text::{foreign, number, time};
use crate::visit::{Visit, Visitor};

/// Rules of a page.
const PAGE_SIZE: usize = 100;

/// The rules of a search on one page, each with its project.
#[derive(Debug, Default)]
struct ListedRules {
    rules: Vec<(String, Rule)>,
    /// Number of rules that fit.
    found: usize,
    /// Number of the page, from 1.
    page: usize,
}

/// Shows the rules that a visitor looks for.
pub(crate) async fn show(visit: Visit) -> Response {
    let frame = visit.frame("rules");
    let Visit { console, visitor, fields } = visit;
    let listed = console.in_background(list(visitor, fields.clone())).await;
    let status = listed.as_ref().err().map_or(StatusCode::OK, |error| error.status);
    console.page(status, move || render(&frame, &fields, &listed)).await
}

/// Returns the rules that a visitor may see: of all projects, or of the one that they ask for, with a part
/// of the name in upper or lower case.
async fn list(visitor: Visitor, search: FormFields) -> Result<ListedRules, PageError> {
    search.check()?;
    let (project, page) = (search.get("project"), search.page()?);
    let mut ids: Vec<String> = if project.is_empty() {
        projects::list(&visitor).await?.into_iter().map(|project| project.id).collect()
    } else {
        vec![id_of(project).to_owned()]
    };
    ids.sort_unstable();
    let shown = (page - 1) * PAGE_SIZE..page * PAGE_SIZE;
    let wanted = search.get("name").to_lowercase();
    let mut listed = ListedRules { page, ..ListedRules::default() };
    for id in ids {
        let config = match configuration(&visitor, &id, GetConfigRequest::default()).await {
            // It was deleted meanwhile.
            Err(error) if error.is_of_access() && project.is_empty() => continue,
            config => config?,
        };
        // The default rule does not decide unless it is the policy.
        let skipped = usize::from(config.unmatched() != UnmatchedPolicy::DefaultRule);
        for rule in config.rules.into_iter().skip(skipped) {
            if !rule.name.to_lowercase().contains(&wanted) {
                continue;
            }
            if shown.contains(&listed.found) {
                listed.rules.push((id.clone(), rule));
            }
            listed.found += 1;
        }
    }
    Ok(listed)
}

fn render(frame: &Frame, search: &FormFields, listed: &Result<ListedRules, PageError>) -> Markup {
    let inputs = [
        ("name", "Part of the name", "text", search.get("name")),
        ("project", "Project (_ for none)", "text", search.get("project")),
    ];
    let content = html! {
        (search_form("rules", &inputs, &html! {}))
        @match listed {
            Err(error) => (failure(&error.problem)),
            Ok(listed) => (listed.render(search))
        }
    };
    frame.page("Rules", &content)
}

impl ListedRules {
    fn render(&self, search: &FormFields) -> Markup {
        let Self { rules, found, page } = self;
        let first = (page - 1) * PAGE_SIZE;
        let last = first + rules.len();
        let link = |page: usize| {
            let page = if page == 1 { String::new() } else { page.to_string() };
            Link::like("rules", search, &["project", "name"]).with("page", &page)
        };
        html! {
            @if rules.is_empty() {
                p.notice {
                    @if *found == 0 { "No rule fits." } @else { "There are no more rules." }
                }
            } @else {
                p.hint.as-of {
                    (number(first as u64 + 1)) " to " (number(last as u64)) " of "
                    (number(*found as u64)) @if *found == 1 { " rule" } @else { " rules" }
                }
                (table(rules))
            }
            @if *page > 1 || *found > last {
                nav.pages aria-label="Pages of rules" {
                    @if *page > 1 { a href=(link(page - 1)) { "Previous rules" } }
                    @if *found > last { a href=(link(page + 1)) { "Next rules" } }
                }
            }
        }
    }
}

fn table(rules: &[(String, Rule)]) -> Markup {
    let table = Table::<(String, Rule)>::new("rules", "Rules by project and name")
        .text("Rule", |(project, rule)| rule_words::rule_link(project, &rule.name))
        .text("Project", |(project, _)| {
            html! { @if project.is_empty() { span.muted { "none" } } @else { (foreign(project)) } }
        })
        .text("Limit", |(_, rule)| html! { (rule_words::rule_grant(rule)) })
        .text("Algorithm", |(_, rule)| html! { (rule_words::algorithm(rule.algorithm())) })
        .text("Mode", |(_, rule)| mode(rule))
        .text("From", |(project, rule)| source(project, rule.origin.as_ref()));
    table.rows(rules)
}

fn mode(rule: &Rule) -> Markup {
    let mode = rule_words::rule_mode(rule);
    html! {
        @if mode == rule_words::mode(RuleMode::Enforce) { (mode) } @else { span.warn { (mode) } }
        @if rule.mode_ends_at.is_some() {
            br; span.muted { "set until " (time(rule.mode_ends_at.as_ref())) }
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
