//! The rules in force, by project, each with its traffic.

use std::cmp::Reverse;
use std::collections::HashMap;

use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{RuleStats, WatchStatsResponse};
use rlaas_proto::ratelimit::v1::rule_origin::Kind;
use rlaas_proto::ratelimit::v1::{GetConfigRequest, Rule, RuleMode, RuleOrigin, UnmatchedPolicy};

use super::key::choices::{self, Choices};
use super::now::share_refused;
use super::projects;
use crate::assets::RULES;
use crate::calls::{EVERY_PROJECT, configuration, field_of, id_of};
use crate::chart::{per_second, rate_text};
use crate::decisions::{Interval, SPAN, SPAN_NAME, history, interval, range};
use crate::fields::{FormFields, Link, search_input};
use crate::layout::{Frame, empty, failure};
use crate::page_error::PageError;
use crate::rule_words::{self, project_name};
use crate::table::Table;
use crate::text::{foreign, number, time};
use crate::visit::{Visit, Visitor};

/// Rules of a page, and on the page of their project.
const PAGE_SIZE: usize = 100;
const MAX_OF_PROJECT: usize = 10;
/// Bars of a spark line.
const BARS: usize = 30;
/// Time of a bar.
const BAR_SECONDS: i64 = SPAN / 30;

/// The fields of orders, with their names.
const ORDERS: [(&str, &str); 3] =
    [("", "By project and name"), ("refused", "Most refused first"), ("rate", "Busiest first")];

/// A rule with its project and its traffic.
type ListedRule = (String, Rule, RuleTraffic);

/// The rules of a search on one page.
#[derive(Debug)]
pub(super) struct ListedRules {
    rules: Vec<ListedRule>,
    /// Number of rules that fit.
    found: usize,
    /// Number of the page, from 1.
    page: usize,
    /// Field of the order.
    order: &'static str,
    /// Time that was counted.
    counted: Interval,
    /// Why the traffic is not known, if so.
    problem: Option<PageError>,
}

/// The decisions of a rule in the last 15 minutes.
#[derive(Clone, Debug, Default)]
struct RuleTraffic {
    total: RuleStats,
    /// Decisions, and those that refused, of each bar.
    bars: [(u64, u64); BARS],
}

/// Shows the rules that a visitor looks for.
pub(crate) async fn show(visit: Visit) -> Response {
    let frame = visit.frame("rules");
    let (choices, listed) = tokio::join!(choices::read(&visit, ""), gather(&visit));
    let Visit { console, fields, .. } = visit;
    let status = listed.as_ref().err().map_or(StatusCode::OK, |error| error.status);
    console.page(status, move || render(&frame, &choices, &fields, &listed)).await
}

/// Returns the rules that a visitor may see, with their traffic. Without it they are listed, too.
async fn gather(visit: &Visit) -> Result<ListedRules, PageError> {
    let Visit { console, visitor, fields } = visit;
    fields.check()?;
    let (project, page, field) = (fields.get("project"), fields.page()?, fields.get("sort"));
    let order = ORDERS.into_iter().find(|(known, _)| *known == field);
    let (order, _) =
        order.ok_or_else(|| PageError::invalid("sort must be empty, refused or rate"))?;
    let project = if project.is_empty() { EVERY_PROJECT } else { id_of(project) };
    let rules = console.in_background(list(visitor.clone(), fields.clone()));
    let (rules, points) = tokio::join!(rules, history(console, visitor, project, ""));
    let (points, problem) =
        points.map_or_else(|error| (Vec::new(), Some(error)), |all| (all, None));
    let rules = rules?;
    let listed =
        async move { Ok(ListedRules { problem, ..ListedRules::new(rules, &points, page, order) }) };
    console.in_background(listed).await
}

/// Returns the rules of all projects of a visitor, or of the one that they ask for, with a part of the name
/// in upper or lower case.
pub(super) async fn list(
    visitor: Visitor,
    search: FormFields,
) -> Result<Vec<(String, Rule)>, PageError> {
    let project = search.get("project");
    let ids: Vec<String> = if project.is_empty() {
        projects::list(&visitor).await?.into_iter().map(|project| project.id).collect()
    } else {
        vec![id_of(project).to_owned()]
    };
    let wanted = search.get("name").to_lowercase();
    let mut rules = Vec::new();
    for id in ids {
        let config = match configuration(&visitor, &id, GetConfigRequest::default()).await {
            // It was deleted meanwhile.
            Err(error) if error.is_of_access() && project.is_empty() => continue,
            config => config?,
        };
        // The default rule does not decide unless it is the policy.
        let skipped = usize::from(config.unmatched() != UnmatchedPolicy::DefaultRule);
        let found = config.rules.into_iter().skip(skipped);
        let found = found.filter(|rule| rule.name.to_lowercase().contains(&wanted));
        rules.extend(found.map(|rule| (id.clone(), rule)));
    }
    Ok(rules)
}

/// Returns the traffic of each rule, by project and name.
fn traffic(points: &[WatchStatsResponse]) -> HashMap<(&str, &str), RuleTraffic> {
    let intervals: Vec<_> = points.iter().map(interval).collect();
    let (from, _) = range(&intervals);
    let mut rules = HashMap::<_, RuleTraffic>::new();
    for (point, (since, _)) in points.iter().zip(&intervals) {
        let bar = usize::try_from((since.seconds - from.seconds) / BAR_SECONDS);
        let bar = bar.unwrap_or_default().min(BARS - 1);
        for stats in &point.rules {
            let traffic = rules.entry((&*stats.project_id, &*stats.rule)).or_default();
            traffic.total.add(stats);
            let (all, refused) = &mut traffic.bars[bar];
            *all = all.saturating_add(stats.decisions());
            *refused = refused.saturating_add(stats.denied);
        }
    }
    rules
}

fn render(
    frame: &Frame,
    choices: &Choices,
    search: &FormFields,
    listed: &Result<ListedRules, PageError>,
) -> Markup {
    let content = html! {
        form #search.row method="get" action="rules" {
            (search_input("name", "Part of the name", "search", search.get("name")))
            (choices.project(search.get("project")))
            input type="hidden" name="sort" value=(search.get("sort"));
            button.primary { "Show" }
        }
        div #found aria-live="polite" {
            @match listed {
                Err(error) => (failure(&error.problem)),
                Ok(listed) => (listed.render(&frame.visitor, search))
            }
        }
        script type="module" src=(RULES.path()) {}
    };
    frame.page("Rules", &content)
}

impl ListedRules {
    /// Sorts all rules, and takes those of a page.
    fn new(
        rules: Vec<(String, Rule)>,
        points: &[WatchStatsResponse],
        page: usize,
        order: &'static str,
    ) -> Self {
        let traffic = traffic(points);
        let traffic_of = |project: &str, rule: &Rule| {
            traffic.get(&(project, &*rule.name)).cloned().unwrap_or_default()
        };
        let mut rules = rules;
        rules.sort_by_cached_key(|(project, rule)| {
            let total = traffic_of(project, rule).total;
            let rank = match order {
                "refused" => (total.denied, total.decisions()),
                "rate" => (total.decisions(), total.denied),
                _ => (0, 0),
            };
            (Reverse(rank), project.clone(), rule.name.clone())
        });
        let found = rules.len();
        let shown = rules.into_iter().skip((page - 1) * PAGE_SIZE).take(PAGE_SIZE);
        let rules = shown.map(|(project, rule)| {
            let traffic = traffic_of(&project, &rule);
            (project, rule, traffic)
        });
        let ends = (points.first().map(interval), points.last().map(interval));
        let counted = match ends {
            (Some((since, _)), Some((_, until))) => (since, until),
            _ => Interval::default(),
        };
        Self { rules: rules.collect(), found, page, order, counted, problem: None }
    }

    /// Returns the rules of a project, those that refuse most first.
    pub(super) async fn of_project(
        Visit { console, visitor, .. }: &Visit,
        id: &str,
        points: Vec<WatchStatsResponse>,
    ) -> Result<Self, PageError> {
        let rules = list(visitor.clone(), FormFields::default().with("project", field_of(id)));
        let listed = async move { Ok(Self::new(rules.await?, &points, 1, "refused")) };
        console.in_background(listed).await
    }

    /// Shows the first rules of a project.
    pub(super) fn first(&self, visitor: &Visitor) -> Markup {
        html! {
            @if self.rules.is_empty() { p.notice { "The project has no rule." } }
            @else { (self.table(visitor, "rules", &self.rules[..self.rules.len().min(MAX_OF_PROJECT)])) }
        }
    }

    fn render(&self, visitor: &Visitor, search: &FormFields) -> Markup {
        let Self { rules, found, page, .. } = self;
        let first = (page - 1) * PAGE_SIZE;
        let last = first + rules.len();
        let link = |page: usize| {
            let page = if page == 1 { String::new() } else { page.to_string() };
            Link::like("rules", search, &["project", "name", "sort"]).with("page", &page)
        };
        html! {
            (self.orders(search))
            @if rules.is_empty() {
                (empty(&html! { @if *found == 0 { "No rule fits." } @else { "There are no more rules." } }))
            } @else {
                p.hint."as-of" {
                    (number(first as u64 + 1)) " to " (number(last as u64)) " of "
                    (number(*found as u64)) @if *found == 1 { " rule" } @else { " rules" }
                    @if let Some(problem) = &self.problem { ". Traffic is not known: " (foreign(&problem.problem)) }
                }
                @if self.order.is_empty() {
                    @for group in rules.chunk_by(|(left, ..), (right, ..)| left == right) { (self.group(visitor, group)) }
                } @else { (self.table(visitor, "rules", rules)) }
            }
            @if *page > 1 || *found > last {
                nav.pages aria-label="Pages of rules" {
                    @if *page > 1 { a href=(link(page - 1)) { "Previous rules" } }
                    @if *found > last { a href=(link(page + 1)) { "Next rules" } }
                }
            }
        }
    }

    fn orders(&self, search: &FormFields) -> Markup {
        let link =
            |order: &str| Link::like("rules", search, &["project", "name"]).with("sort", order);
        html! {
            nav.tabs aria-label="Order" {
                ul {
                    @for (order, name) in ORDERS {
                        li { a href=(link(order)) aria-current=[(order == self.order).then_some("true")] { (name) } }
                    }
                }
            }
        }
    }

    /// Shows the rules of one project.
    fn group(&self, visitor: &Visitor, rules: &[ListedRule]) -> Markup {
        let id = rules.first().map(|(project, ..)| &**project).unwrap_or_default();
        let of_project = |page: &str, field: &str| Link::to(page).with(field, field_of(id));
        let name =
            if id.is_empty() { "rules of no project".to_owned() } else { format!("rules of {id}") };
        html! {
            div.group {
                h2 {
                    @if id.is_empty() { "No project" }
                    @else { a href=(of_project("project", "id")) { (foreign(id)) } }
                }
                @if !id.is_empty() { a href=(of_project("change", "project")) { "Edit all as YAML" } }
            }
            (self.table(visitor, &name, rules))
        }
    }

    fn table(&self, visitor: &Visitor, name: &str, rules: &[ListedRule]) -> Markup {
        let rate = |count| rate_text(per_second(count, self.counted));
        let caption = format!("Rules, with their decisions of the last {SPAN_NAME}");
        let mut table = Table::<ListedRule>::new(name, &caption)
            .cards()
            .text("Rule", |(project, rule, _)| rule_words::rule_link(project, &rule.name));
        if rules.iter().any(|(project, ..)| *project != rules[0].0) {
            table = table.text("Project", |(project, ..)| project_name(project));
        }
        table = table
            .right("Refused", |(_, _, traffic)| number(traffic.total.denied))
            .right("Share refused", |(_, _, traffic)| share_refused(&traffic.total));
        if rules.iter().any(|(_, _, traffic)| traffic.total.shadow_denied > 0) {
            table =
                table.right("Would refuse", |(_, _, traffic)| number(traffic.total.shadow_denied));
        }
        let table = table
            .right(
                "Per second, mean",
                |(_, _, traffic)| html! { (rate(traffic.total.decisions())) },
            )
            .text("Limit", |(_, rule, _)| html! { (rule_words::rule_grant(rule)) })
            .text("In time", |(_, _, traffic)| traffic.spark())
            .text("Mode", |(_, rule, _)| mode(rule))
            .text("From", |(project, rule, _)| from(visitor, project, rule));
        table.rows(rules)
    }
}

impl RuleTraffic {
    /// Draws the decisions in time, and those that refused as a part of them. The highest bar has the full
    /// height.
    fn spark(&self) -> Markup {
        let highest = u128::from(self.bars.iter().map(|(all, _)| *all).max().unwrap_or_default());
        let path = |count: fn(&(u64, u64)) -> u64| {
            let bars = self.bars.iter().enumerate().filter(|(_, bar)| count(bar) > 0);
            let path = bars.map(|(at, bar)| {
                let height = (u128::from(count(bar)) * 20).div_ceil(highest);
                format!("M{} 20v-{height}h3v{height}", at * 4)
            });
            path.collect::<String>()
        };
        html! {
            @if highest > 0 {
                svg.spark viewBox="0 0 120 20" preserveAspectRatio="none" aria-hidden="true" focusable="false" {
                    path.all d=(path(|(all, _)| *all)) {}
                    @if self.total.denied > 0 { path.part d=(path(|(_, refused)| *refused)) {} }
                }
            } @else { span.muted { "none" } }
        }
    }
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

/// Shows where a rule of a list comes from, with a link to its form for those who may change it.
fn from(visitor: &Visitor, project: &str, rule: &Rule) -> Markup {
    let is_changed_here = rule.origin.as_ref().is_some_and(|origin| origin.kind() == Kind::RunTime);
    let page = Link::to("rule").with("project", field_of(project)).with("name", &rule.name);
    html! {
        (source(rule.origin.as_ref()))
        @if is_changed_here && visitor.is_admin(project) { ", " a href={ (page) "#change" } { "change" } }
    }
}

/// Shows where a rule comes from.
pub(super) fn source(origin: Option<&RuleOrigin>) -> Markup {
    let origin = origin.cloned().unwrap_or_default();
    html! {
        @match origin.kind() {
            Kind::BuiltIn => "built in",
            Kind::RunTime => "run time",
            _ if origin.source.is_empty() => "the configuration",
            _ => (foreign(&origin.source)),
        }
    }
}

#[cfg(test)]
mod tests {
    use prost_types::Timestamp;

    use super::*;
    use crate::visit::tests::visitor;

    fn listed(order: &'static str, page: usize) -> ListedRules {
        let at = |seconds: i64| Some(Timestamp { seconds: 9_000 + seconds, nanos: 0 });
        let stats = |rule: &str, allowed, denied| RuleStats {
            project_id: "shop".to_owned(),
            rule: rule.to_owned(),
            allowed,
            denied,
            shadow_denied: allowed / 1_000,
            ..RuleStats::default()
        };
        let point = |seconds, rules| WatchStatsResponse {
            since: at(seconds),
            until: at(seconds + 10),
            rules,
            ..WatchStatsResponse::default()
        };
        let busy = stats("busy", 1_000, 1);
        let points = [point(0, vec![busy]), point(90, vec![stats("strict", 20, 5)])];
        let rule =
            |name: &str| ("shop".to_owned(), Rule { name: name.to_owned(), ..Rule::default() });
        let of_file = (String::new(), Rule { name: "of-file".to_owned(), ..Rule::default() });
        let mut rules = vec![rule("strict"), rule("idle"), rule("busy"), of_file];
        rules.extend((0..PAGE_SIZE).map(|number| rule(&format!("z{number:03}"))));
        ListedRules::new(rules, &points, page, order)
    }

    #[test]
    fn rules_are_in_the_order_that_was_chosen() {
        let names = |order| {
            let listed = listed(order, 1);
            listed.rules.into_iter().take(4).map(|(_, rule, _)| rule.name).collect::<Vec<_>>()
        };
        assert_eq!(names(""), ["of-file", "busy", "idle", "strict"]);
        assert_eq!(names("refused"), ["strict", "busy", "of-file", "idle"]);
        assert_eq!(names("rate"), ["busy", "strict", "of-file", "idle"]);
        let last = listed("", 2);
        assert_eq!((last.rules.len(), last.found), (4, PAGE_SIZE + 4));
        assert!(listed("", 3).rules.is_empty());
    }

    #[test]
    fn traffic_is_a_rate_a_share_and_bars() {
        let shown = listed("", 1);
        let html = shown.render(&visitor(), &FormFields::default()).into_string();
        // 1,001 and 25 decisions in 100 s.
        assert!(
            html.contains(">10<") && html.contains(">0.25<") && html.contains("20 %"),
            "{html}"
        );
        assert_eq!(html.matches("class=\"spark\"").count(), 2, "{html}");
        // Of the project alone that has a refusal in shadow.
        assert_eq!(html.matches("Would refuse</th>").count(), 1, "{html}");
        assert!(html.contains("<path class=\"all\" d=\"M116 20v-20h3v20\""), "{html}");
        assert!(html.contains("<path class=\"part\" d=\"M116 20v-4h3v4\""), "{html}");
        assert!(
            html.contains("Table of rules of shop")
                && html.contains("Table of rules of no project")
        );
        let (empty, search) = (visitor(), FormFields::default());
        let none = ListedRules { rules: Vec::new(), found: 0, ..shown };
        assert!(none.render(&empty, &search).into_string().contains("No rule fits."));
    }
}
