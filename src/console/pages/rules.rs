//! The rules in force, by project and name.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use rlaas_limiter::Snapshot;
use rlaas_limiter::rules::Unmatched;

use super::rule::{NamedRule, RuleSource};
use crate::api::auth::{Caller, Permission, Roles};
use crate::console::fields::{FormFields, Link};
use crate::console::layout::{Frame, failure};
use crate::console::page_error::{PageError, admitted};
use crate::console::rule_words;
use crate::console::table::{PageColumn, PageTable};
use crate::console::text::{foreign, number, time};
use crate::console::visitor::ConsoleVisitor;
use crate::console::{Console, ConsoleContext};
use crate::projects::ProjectId;
use crate::proto_values::timestamp;
use crate::rules::{Mode, Rule};

/// Rules of a page.
const PAGE_SIZE: usize = 100;
/// The roles, one of which a visitor must have in the project.
const OPERATORS: Roles = Permission::PROJECT_OPERATE_OR_ADMIN.roles();

/// A search for rules: the fields of the form. Empty ones limit nothing.
#[derive(Clone, Debug, Default)]
struct RuleSearch {
    project: String,
    /// Part of the name, in upper or lower case.
    name: String,
    /// Number of the page, from 1.
    page: usize,
}

/// The rules of a project.
#[derive(Debug)]
struct ProjectListing {
    id: ProjectId,
    snapshot: Arc<Snapshot>,
}

/// Shows the rules that a visitor looks for.
pub(in crate::console) async fn show(
    State(console): State<Console>,
    visitor: ConsoleVisitor,
    RawQuery(query): RawQuery,
) -> Response {
    let frame = console.frame(&visitor, "rules");
    let searched = FormFields::parse(query.unwrap_or_default().as_bytes())
        .map_err(PageError::from)
        .and_then(|fields| RuleSearch::parse(&fields));
    let listed = searched
        .as_ref()
        .map_err(Clone::clone)
        .and_then(|search| listings(&console, &visitor.caller, &search.project));
    let status = listed.as_ref().err().map_or(StatusCode::OK, |error| error.status);
    let search = searched.unwrap_or_default();
    let of = Arc::clone(&console);
    // There may be many rules: they are looked through where the page is rendered.
    console.page(status, move || render(&of, &frame, &search, listed)).await
}

/// Returns the projects whose rules a visitor may see: all of them, or the one that they ask for.
fn listings(
    console: &ConsoleContext,
    caller: &Caller,
    project: &str,
) -> Result<Vec<ProjectListing>, PageError> {
    let limiter = console.administrator.limiter();
    let listing = |id: ProjectId| {
        let snapshot = limiter.project_snapshot(id.as_str())?;
        Some(ProjectListing { id, snapshot })
    };
    if !project.is_empty() {
        let id = admitted(caller, project, OPERATORS)?;
        let unknown = || PageError::not_found("project must be that of a project");
        return Ok(vec![listing(id).ok_or_else(unknown)?]);
    }
    let states = console.projects.projects();
    let ids = states.iter().map(|state| state.project.id.clone());
    let mut ids: Vec<_> = ids.filter(|id| caller.roles_in(id).intersects(OPERATORS)).collect();
    ids.sort();
    Ok(ids.into_iter().filter_map(listing).collect())
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

impl ProjectListing {
    /// Returns the rules that can decide: the default rule does where it is the policy.
    fn rules(&self) -> impl Iterator<Item = NamedRule<'_>> {
        let rules = &self.snapshot.rules;
        let has_default = rules.unmatched() == Unmatched::DefaultRule;
        let flat = rules.iter().filter(move |rule| has_default || &*rule.name != Rule::DEFAULT);
        let placed = rules.descriptors().placed();
        flat.map(NamedRule::Flat)
            .chain(placed.into_iter().map(|placed| NamedRule::Descriptor(placed.rule)))
    }
}

fn render(
    console: &ConsoleContext,
    frame: &Frame,
    search: &RuleSearch,
    listed: Result<Vec<ProjectListing>, PageError>,
) -> Markup {
    let content = html! {
        (form(search))
        @match listed {
            Err(error) => (failure(&error.problem)),
            Ok(listings) => (table(console, search, &listings))
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

fn table(console: &ConsoleContext, search: &RuleSearch, listings: &[ProjectListing]) -> Markup {
    let first = (search.page - 1) * PAGE_SIZE;
    let wanted = search.name.to_lowercase();
    let is_wanted = |name: &str| wanted.is_empty() || name.to_lowercase().contains(&wanted);
    let (mut found, mut rows) = (0, Vec::new());
    for listing in listings {
        for rule in listing.rules().filter(|rule| is_wanted(rule.info().name)) {
            if (first..first + PAGE_SIZE).contains(&found) {
                rows.push(row(console, &listing.id, rule));
            }
            found += 1;
        }
    }
    let columns = ["Rule", "Project", "Limit", "Algorithm", "Mode", "From"].map(PageColumn::Text);
    let table = PageTable { of: "rules", caption: "Rules by project and name", columns: &columns };
    html! {
        @if rows.is_empty() {
            p.notice {
                @if found == 0 { "No rule fits." } @else { "There are no more rules." }
            }
        } @else {
            p.hint.as-of {
                (number(first as u64 + 1)) " to " (number((first + rows.len()) as u64)) " of "
                (number(found as u64)) @if found == 1 { " rule" } @else { " rules" }
            }
            (table.with_rows(&html! { @for row in &rows { (row) } }))
        }
        @if search.page > 1 || found > first + PAGE_SIZE {
            nav.pages aria-label="Pages of rules" {
                @if search.page > 1 { a href=(search.link(search.page - 1)) { "Previous rules" } }
                @if found > first + PAGE_SIZE { a href=(search.link(search.page + 1)) { "Next rules" } }
            }
        }
    }
}

fn row(console: &ConsoleContext, project: &ProjectId, rule: NamedRule<'_>) -> Markup {
    let info = rule.info();
    html! {
        tr {
            th scope="row" { (rule_words::rule_link(project.as_str(), info.name)) }
            td { @if project.is_unnamed() { span.muted { "none" } } @else { (foreign(project.as_str())) } }
            td { (rule_words::grant(rule.grant(), info.algorithm)) }
            td { (rule_words::algorithm(info.algorithm)) }
            td {
                @if info.mode == Mode::Enforced { "enforced" }
                @else { span.warn { (rule_words::mode(info.mode)) } }
                @if let Some(set) = info.set_mode {
                    br; span.muted { "set until " (time(Some(&timestamp(set.ends_at)))) }
                }
            }
            td { (RuleSource::new(console, project, rule).render()) }
        }
    }
}
