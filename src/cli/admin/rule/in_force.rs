//! `rlaas rule list --in-force`: the rules that decide requests without an API key.

use std::process::ExitCode;

use rlaas_proto::ratelimit::v1::{GetConfigRequest, GetConfigResponse, Rule};

use super::project_rules::{algorithm, matchers, mode, origin};
use crate::cli::admin::call::{CallArgs, CommandError, CommandOutput, ServiceClient};
use crate::cli::admin::text;
use crate::cli::table::{Column, Table};

/// Rules of a page.
const PAGE: usize = 1_000;

pub(super) fn list(call: &CallArgs, max: usize) -> ExitCode {
    call.run_on_service(async |service| {
        let response = pages(service, max).await?;
        let rest = if response.next_page_token.is_empty() { "" } else { "there are more: --max\n" };
        let text = table(&response.rules) + rest;
        Ok(CommandOutput::of_service("GetConfigResponse", &response, text))
    })
}

/// Reads pages up to the most rules to list. Its token is that of the rest.
async fn pages(service: &mut ServiceClient, max: usize) -> Result<GetConfigResponse, CommandError> {
    let mut rules = Vec::new();
    let mut page_token = String::new();
    loop {
        let left = max.saturating_sub(rules.len()).clamp(1, PAGE);
        let page_size = i32::try_from(left).expect("a page is small");
        let request = GetConfigRequest { page_size, page_token };
        let page = service.get_config(request).await?.into_inner();
        rules.extend(page.rules);
        if page.next_page_token.is_empty() || rules.len() >= max {
            return Ok(GetConfigResponse { rules, ..page });
        }
        page_token = page.next_page_token;
    }
}

fn table(rules: &[Rule]) -> String {
    let mut table = Table::new(&[
        Column::text("RULE"),
        Column::number("LIMIT"),
        Column::word("WINDOW"),
        Column::word("ALGORITHM"),
        Column::word("MODE"),
        Column::word("UNTIL"),
        Column::word("FROM"),
        Column::text("MATCH"),
    ]);
    for rule in rules {
        table.push([
            text::value(&rule.name),
            text::limit(rule.max_requests),
            text::wait(rule.window.as_ref()),
            algorithm(rule),
            mode(rule),
            text::time(rule.mode_ends_at.as_ref()),
            origin(rule).to_owned(),
            matchers(rule),
        ]);
    }
    table.lines()
}
