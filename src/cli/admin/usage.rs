//! `rlaas project usage`: requests and units of projects by day.

use std::process::ExitCode;

use clap::Args;
use rlaas_proto::ratelimit::admin::v1::{DailyUsage, ListUsageRequest, ListUsageResponse};

use super::call::{CallArgs, CommandError, CommandOutput, ProjectClient};
use super::project::{project_id, shown_id};
use super::text;
use crate::cli::table::{Column, Table};
use crate::usage::csv;

#[derive(Args, Debug)]
pub(super) struct UsageArgs {
    /// Id of the project; '_' is that of requests without an API key, '-' is every project
    #[arg(default_value = "-", hide_default_value = true, allow_hyphen_values = true)]
    id: String,
    /// First UTC day, such as 2026-11-22 [default: 39 days ago]
    #[arg(long, value_name = "DAY")]
    first_day: Option<String>,
    /// Last UTC day [default: today]
    #[arg(long, value_name = "DAY")]
    last_day: Option<String>,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    #[command(flatten)]
    call: CallArgs,
}

pub(super) fn run(args: &UsageArgs) -> ExitCode {
    args.call.run_on_projects(async |projects| {
        let response = all_usage(projects, args).await?;
        let text = if args.csv {
            csv::header().to_owned() + &csv::lines(&response.usage)
        } else if response.usage.is_empty() {
            "no usage\n".to_owned()
        } else {
            table(&response.usage)
        };
        Ok(CommandOutput::new("ListUsageResponse", &response, text))
    })
}

async fn all_usage(
    projects: &mut ProjectClient,
    args: &UsageArgs,
) -> Result<ListUsageResponse, CommandError> {
    let mut all = ListUsageResponse::default();
    loop {
        let request = ListUsageRequest {
            project_id: project_id(&args.id),
            page_size: 1_000,
            page_token: all.next_page_token,
            first_day: args.first_day.clone().unwrap_or_default(),
            last_day: args.last_day.clone().unwrap_or_default(),
        };
        let page = projects.list_usage(request).await?.into_inner();
        all.usage.extend(page.usage);
        all.next_page_token = page.next_page_token;
        if all.next_page_token.is_empty() {
            return Ok(all);
        }
    }
}

fn table(usage: &[DailyUsage]) -> String {
    let mut table = Table::new(&[
        Column::word("PROJECT"),
        Column::word("DAY"),
        Column::number("ALLOWED"),
        Column::number("DENIED"),
        Column::number("UNITS"),
        Column::word("PRELIMINARY"),
    ]);
    for row in usage {
        table.push([
            shown_id(&row.project_id),
            text::value(&row.day),
            row.allowed.to_string(),
            row.denied.to_string(),
            row.units.to_string(),
            if row.preliminary { "yes" } else { "no" }.to_owned(),
        ]);
    }
    table.lines()
}
