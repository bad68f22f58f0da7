//! The usage of a project by day: the part of the page, and the same as a file.

use axum::extract::{RawQuery, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1 as proto;

use super::MAX_TIME;
use crate::admin::AdminError;
use crate::clock::Deadline;
use crate::console::Console;
use crate::console::chart;
use crate::console::fields::{FormFields, Link};
use crate::console::layout::{failure, notice};
use crate::console::project_access::{AccessError, OPERATE_OR_ADMIN, field_of};
use crate::console::table::{PageColumn, PageTable};
use crate::console::text::number;
use crate::console::visitor::ConsoleVisitor;
use crate::projects::ProjectId;
use crate::usage::{DailyUsage, Day, KEPT_DAYS, UsageRange, csv};

/// More rows than a project has days.
const MAX_ROWS: usize = 1_000;
const DAY_SECONDS: u64 = 86_400;

/// The usage of the days that are kept.
#[derive(Debug)]
pub(super) struct MonthOfUsage {
    today: Day,
    /// Days with usage, oldest first; or why they can't be read.
    days: Result<Vec<DailyUsage>, String>,
}

impl MonthOfUsage {
    /// Reads the usage of all instances.
    pub(super) async fn read(console: &Console, id: &ProjectId, deadline: Deadline) -> Self {
        let today = Day::at(console.projects.clock().now());
        let (recorder, range) = (console.projects.usage(), UsageRange::default());
        let listed = recorder.list(vec![id.clone()], range, None, MAX_ROWS, deadline).await;
        let days = listed.map(|page| page.rows);
        Self { today, days: days.map_err(|error| AdminError::Store(error).to_string()) }
    }

    /// Returns the part of the page.
    pub(super) fn render(&self, id: &ProjectId) -> Markup {
        html! {
            h2 #usage { "Usage by day" }
            @match &self.days {
                Err(problem) => {
                    (failure(&format!("The usage can't be read: {problem}. Load the page again.")))
                }
                Ok(days) if days.is_empty() => {
                    p.notice { "No request was decided for the project in the last " (KEPT_DAYS) " days." }
                }
                Ok(days) => {
                    (self.chart(days))
                    p {
                        a href=(Link::to("usage.csv").with("project", field_of(id))) download {
                            "Download as CSV"
                        }
                    }
                }
            }
        }
    }

    /// Returns the chart, which is drawn from the table.
    fn chart(&self, days: &[DailyUsage]) -> Markup {
        let from = self.today.minus(KEPT_DAYS - 1).start().as_micros() / 1_000_000;
        let until = self.today.start().as_micros() / 1_000_000 + DAY_SECONDS;
        html! {
            figure.chart id="usage-chart" data-chart="bars" data-series="1 allowed,2 refused"
                data-range={ (from) " " (until) } data-zone="UTC" {
                figcaption { span.title { "Requests" } " " span.muted { "per day (UTC)" } }
                details #usage-table {
                    summary { "Table of usage by day" }
                    (table(days))
                }
            }
            (chart::script())
        }
    }
}

fn table(days: &[DailyUsage]) -> Markup {
    let table = PageTable {
        of: "usage by day",
        caption: "Newest first, days by UTC. Days without requests are left out",
        columns: &[
            PageColumn::Text("Day"),
            PageColumn::Number("Allowed"),
            PageColumn::Number("Refused"),
            PageColumn::Number("Units"),
            PageColumn::Text("State"),
        ],
    };
    table.with_rows(&html! {
        @for DailyUsage { day, usage, is_preliminary, .. } in days.iter().rev() {
            tr data-at=(day.start().as_micros() / 1_000_000) data-seconds=(DAY_SECONDS) {
                th scope="row" { (day) }
                td.right { (number(usage.allowed)) }
                td.right { (number(usage.denied)) }
                td.right { (number(usage.units)) }
                td { @if *is_preliminary { span.warn { "more may come" } } @else { "complete" } }
            }
        }
    })
}

/// Responds with the usage of a project as comma-separated values.
pub(in crate::console) async fn download(
    State(console): State<Console>,
    visitor: ConsoleVisitor,
    RawQuery(query): RawQuery,
) -> Result<Response, Response> {
    let query = FormFields::parse(query.unwrap_or_default().as_bytes()).unwrap_or_default();
    let id = console.admitted(&visitor, query.one("project"), OPERATE_OR_ADMIN).await?;
    if let Err(_none) = console.projects.project(&id) {
        return Err(console.refuse_access(AccessError::NoProject).await);
    }
    Ok(match MonthOfUsage::read(&console, &id, Deadline::within(MAX_TIME)).await.days {
        Ok(days) => file(&id, &days),
        Err(problem) => {
            let detail = format!("The usage can't be read: {problem}. Try again.");
            console.page(StatusCode::SERVICE_UNAVAILABLE, move || notice("Usage", &detail)).await
        }
    })
}

fn file(id: &ProjectId, days: &[DailyUsage]) -> Response {
    let rows: Vec<_> = days.iter().map(message).collect();
    let body = csv::header().to_owned() + &csv::lines(&rows);
    let content_type = HeaderValue::from_static("text/csv; charset=utf-8; header=present");
    // An id has letters, digits and hyphens only.
    let disposition = format!("attachment; filename=\"usage-{}.csv\"", field_of(id));
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (
            header::CONTENT_DISPOSITION,
            HeaderValue::try_from(disposition).unwrap_or(HeaderValue::from_static("attachment")),
        ),
    ];
    (headers, body).into_response()
}

fn message(row: &DailyUsage) -> proto::DailyUsage {
    proto::DailyUsage {
        project_id: row.project.to_string(),
        day: row.day.to_string(),
        allowed: row.usage.allowed,
        denied: row.usage.denied,
        units: row.usage.units,
        preliminary: row.is_preliminary,
    }
}
