//! `rlaas audit`: who changed what, and why.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Args;
use rlaas_proto::ratelimit::admin::v1::audit_entry::State;
use rlaas_proto::ratelimit::admin::v1::{AuditEntry, ListAuditRequest, ListAuditResponse};

use super::call::{Admin, CallArgs, CommandError, CommandOutput};
use super::selection::{EVERY_PROJECT, project_id};
use super::text;
use crate::cli::table::{Column, Table};

#[derive(Args, Debug)]
pub(in crate::cli) struct AuditArgs {
    /// Only changes of this project; _ is the one without a key [default: all]
    #[arg(long, value_name = "ID")]
    project: Option<String>,
    /// Only changes of this rule
    #[arg(long)]
    rule: Option<String>,
    /// Only changes by this caller, such as token:NAME or local
    #[arg(long, value_name = "CALLER")]
    actor: Option<String>,
    /// Only changes of this last time, such as 2h
    #[arg(long, value_name = "D", value_parser = humantime::parse_duration)]
    since: Option<Duration>,
    /// Most entries to list, the newest first
    #[arg(long, value_name = "N", default_value_t = 50)]
    max: usize,
    #[command(flatten)]
    call: CallArgs,
}

pub(in crate::cli) fn run(args: &AuditArgs) -> ExitCode {
    args.call.run(async |admin| {
        let response = entries(admin, args).await?;
        let text = to_text(&response);
        Ok(CommandOutput::new("ListAuditResponse", &response, text))
    })
}

/// Reads pages up to the most entries to list. Its token is that of the rest.
#[expect(clippy::disallowed_methods, reason = "entries are selected by wall time")]
async fn entries(admin: &mut Admin, args: &AuditArgs) -> Result<ListAuditResponse, CommandError> {
    let since = args.since.and_then(|since| SystemTime::now().checked_sub(since));
    let mut all = ListAuditResponse::default();
    loop {
        let left = args.max.saturating_sub(all.entries.len()).max(1);
        let request = ListAuditRequest {
            page_size: i32::try_from(left.min(1_000)).unwrap_or(1_000),
            page_token: all.next_page_token,
            project_id: match args.project.as_deref() {
                None => EVERY_PROJECT.to_owned(),
                id => project_id(id),
            },
            target: args.rule.clone().unwrap_or_default(),
            actor: args.actor.clone().unwrap_or_default(),
            since: since.map(Into::into),
            ..ListAuditRequest::default()
        };
        let page = admin.list_audit(request).await?.into_inner();
        all.entries.extend(page.entries);
        all.next_page_token = page.next_page_token;
        if all.next_page_token.is_empty() || all.entries.len() >= args.max {
            return Ok(all);
        }
    }
}

fn to_text(response: &ListAuditResponse) -> String {
    if response.entries.is_empty() {
        return "no changes\n".to_owned();
    }
    let mut table = Table::new(&[
        Column::word("AT"),
        Column::word("STATE"),
        Column::text("BY"),
        Column::word("ACTION"),
        Column::text("CHANGE"),
        Column::text("REASON"),
    ]);
    for entry in &response.entries {
        let AuditEntry { created_at, actor, action, summary, reason, .. } = entry;
        table.push([
            text::time(created_at.as_ref()),
            state(entry).to_owned(),
            text::value(actor),
            text::value(action),
            text::words(summary),
            text::words(reason),
        ]);
    }
    let rest = if response.next_page_token.is_empty() { "" } else { "there are more: --max\n" };
    table.lines() + rest
}

/// Returns the outcome of a change in a word.
fn state(entry: &AuditEntry) -> &'static str {
    match entry.state() {
        State::Unspecified | State::Unknown => "unknown",
        State::Done => "done",
        State::Failed => "failed",
    }
}
