//! The usage of a project by day, API key or rule: the part of the page, and the same as a file.

use std::cmp::Reverse;
use std::collections::HashMap;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{DailyUsage, ListUsageRequest, UsageBy};

use crate::calls::{every, id_of, within};
use crate::chart;
use crate::fields::{FormFields, Link};
use crate::layout::{failure, notice};
use crate::page_error::PageError;
use crate::table::table_with_rows;
use crate::text::{foreign, number};
use crate::visit::{Visit, Visitor};
use rlaas_proto::csv;

/// Longest wait for the store: the page shows something without it as well.
const MAX_TIME: std::time::Duration = std::time::Duration::from_secs(2);
const DAY_SECONDS: i64 = 86_400;
/// Days that are kept.
const KEPT_DAYS: i64 = 40;

/// Most keys or rules in a table.
const MAX_ROWS: usize = 100;

/// Returns what the rows are of, as a visitor asks.
pub(super) fn by(fields: &FormFields) -> UsageBy {
    match fields.get("by") {
        "key" => UsageBy::Key,
        "rule" => UsageBy::Rule,
        _ => UsageBy::Day,
    }
}

/// Returns rows of usage of a project, oldest first.
pub(super) async fn list(
    visitor: &Visitor,
    id: &str,
    by: UsageBy,
) -> Result<Vec<DailyUsage>, PageError> {
    let listed = every(|page_size, page_token| {
        let (mut client, project_id) = (visitor.projects(), id.to_owned());
        let by = by.into();
        let request =
            ListUsageRequest { project_id, page_size, page_token, by, ..Default::default() };
        async move {
            let page = client.list_usage(within(MAX_TIME, request)).await?.into_inner();
            Ok((page.usage, page.next_page_token))
        }
    });
    Ok(listed.await?)
}

/// Returns the part of the page.
pub(super) fn render(
    project: &str,
    by: UsageBy,
    usage: &Result<Vec<DailyUsage>, PageError>,
) -> Markup {
    let name = word(by);
    html! {
        h2 #usage { "Usage by " (name) }
        p {
            @for other in [UsageBy::Day, UsageBy::Key, UsageBy::Rule].into_iter().filter(|other| *other != by) {
                a href={ (Link::to("project").with("id", project).with("by", word(other))) "#usage" } {
                    "By " (word(other))
                }
                " "
            }
        }
        @match usage {
            Err(error) => {
                (failure(&format!("The usage can't be read: {} Load the page again.", error.sentence())))
            }
            Ok(days) if days.is_empty() => {
                p.notice { "No request was decided for the project in the last " (KEPT_DAYS) " days." }
            }
            Ok(rows) => {
                @if by == UsageBy::Day { (usage_chart(rows)) } @else { (sums(by, rows)) }
                p {
                    a href=(Link::to("usage.csv").with("project", project).with("by", name)) download {
                        "Download as CSV"
                    }
                }
            }
        }
    }
}

/// Returns the chart, which is drawn from the table.
fn usage_chart(days: &[DailyUsage]) -> Markup {
    let last = days.last().map_or(0, start);
    html! {
        figure.chart id="usage-chart" data-chart="bars" data-series="1 allowed,2 refused"
            data-range={ (last - (KEPT_DAYS - 1) * DAY_SECONDS) " " (last + DAY_SECONDS) } data-zone="UTC" {
            figcaption { span.title { "Requests" } " " span.muted { "per day (UTC)" } }
            details #usage-table {
                summary { "Table of usage by day" }
                (table(days))
            }
        }
        (chart::script())
    }
}

fn word(by: UsageBy) -> &'static str {
    match by {
        UsageBy::Unspecified | UsageBy::Day => "day",
        UsageBy::Key => "key",
        UsageBy::Rule => "rule",
    }
}

/// Returns the sums of keys or rules over all days, those with the most units first.
fn sums(by: UsageBy, rows: &[DailyUsage]) -> Markup {
    let mut sums = HashMap::<&str, [u64; 3]>::new();
    for row in rows {
        let name = if by == UsageBy::Key { &row.key_id } else { &row.rule };
        let sum = sums.entry(name).or_default();
        for (sum, more) in sum.iter_mut().zip([row.allowed, row.denied, row.units]) {
            *sum = sum.saturating_add(more);
        }
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(name, [allowed, denied, units])| {
        (Reverse((*units, allowed.saturating_add(*denied))), *name)
    });
    let rest = if by == UsageBy::Key { "without a key" } else { "other rules" };
    let title = if by == UsageBy::Key { "Key" } else { "Rule" };
    let all = format!("Last {KEPT_DAYS} days. The file has each day");
    let note = if sums.len() > MAX_ROWS { format!("{all}, and all {}", sums.len()) } else { all };
    let columns = [(title, false), ("Allowed", true), ("Refused", true), ("Units", true)];
    table_with_rows(
        &format!("usage by {}", word(by)),
        &note,
        &columns,
        &html! {
            @for (name, numbers) in sums.iter().take(MAX_ROWS) {
                tr {
                    th scope="row" { @if name.is_empty() { span.muted { (rest) } } @else { (foreign(name)) } }
                    @for count in numbers { td.right { (number(*count)) } }
                }
            }
        },
    )
}

/// Returns when a day begins, in seconds since the Unix epoch.
fn start(usage: &DailyUsage) -> i64 {
    let start = format!("{}T00:00:00Z", usage.day).parse::<prost_types::Timestamp>();
    start.map_or(0, |start| start.seconds)
}

fn table(days: &[DailyUsage]) -> Markup {
    let columns =
        [("Day", false), ("Allowed", true), ("Refused", true), ("Units", true), ("State", false)];
    table_with_rows(
        "usage by day",
        "Newest first, days by UTC. Days without requests are left out",
        &columns,
        &html! {
            @for usage in days.iter().rev() {
                tr data-at=(start(usage)) data-seconds=(DAY_SECONDS) {
                    th scope="row" { (usage.day) }
                    td.right { (number(usage.allowed)) }
                    td.right { (number(usage.denied)) }
                    td.right { (number(usage.units)) }
                    td { @if usage.preliminary { span.warn { "more may come" } } @else { "complete" } }
                }
            }
        },
    )
}

/// Responds with the usage of a project as comma-separated values.
pub(crate) async fn download(visit: Visit) -> Response {
    let project = visit.fields.get("project");
    let days = list(&visit.visitor, id_of(project), by(&visit.fields)).await;
    let lines = days.map(|days| csv::header().to_owned() + &csv::lines(&days));
    // An id has letters, digits and hyphens only.
    file(&visit, &format!("usage-{project}"), lines).await
}

/// Responds with comma-separated values of usage, or says why they can't be read.
pub(in crate::pages) async fn file(
    visit: &Visit,
    name: &str,
    lines: Result<String, PageError>,
) -> Response {
    let body = match lines {
        Ok(body) => body,
        Err(error) if error.is_of_access() => return visit.console.refuse(error).await,
        Err(error) => {
            let detail = format!("The usage can't be read: {} Try again.", error.sentence());
            return visit.console.page(error.status, move || notice("Usage", &detail)).await;
        }
    };
    let content_type = HeaderValue::from_static("text/csv; charset=utf-8; header=present");
    let disposition = HeaderValue::try_from(format!("attachment; filename=\"{name}.csv\""));
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (
            header::CONTENT_DISPOSITION,
            disposition.unwrap_or(HeaderValue::from_static("attachment")),
        ),
    ];
    (headers, body).into_response()
}
