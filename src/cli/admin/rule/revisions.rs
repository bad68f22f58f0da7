//! `rlaas rule history` and `rollback`: the revisions of a project's rules.

use std::process::ExitCode;

use clap::Args;
use rlaas_proto::ratelimit::admin::v1::rule_change::Kind;
use rlaas_proto::ratelimit::admin::v1::{
    ListRevisionsRequest, ListRevisionsResponse, Revision, RollbackRequest, RollbackResponse,
    RuleChange,
};

use super::project_rules::OfProjectArgs;
use crate::cli::admin::call::{CallArgs, CommandOutput};
use crate::cli::admin::project::ReasonArgs;
use crate::cli::admin::text;
use crate::cli::table::{Column, Table};

#[derive(Args, Debug)]
pub(super) struct HistoryArgs {
    #[command(flatten)]
    of: OfProjectArgs,
    #[command(flatten)]
    call: CallArgs,
}

#[derive(Args, Debug)]
pub(super) struct RollbackArgs {
    /// Number of the revision, of `rlaas rule history`
    revision: u64,
    #[command(flatten)]
    of: OfProjectArgs,
    /// Refuse the change if the project has another revision by now
    #[arg(long, value_name = "N")]
    expected_revision: Option<u64>,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    call: CallArgs,
}

pub(super) fn history(args: &HistoryArgs) -> ExitCode {
    args.call.run_on_projects(async |projects| {
        // All that are kept.
        let request = ListRevisionsRequest {
            project_id: args.of.id(),
            page_size: 100,
            page_token: String::new(),
        };
        let response = projects.list_revisions(request).await?.into_inner();
        let text = to_text(&response);
        Ok(CommandOutput::new("ListRevisionsResponse", &response, text))
    })
}

pub(super) fn rollback(args: &RollbackArgs) -> ExitCode {
    args.call.run_on_projects(async |projects| {
        let request = RollbackRequest {
            project_id: args.of.id(),
            revision: args.revision,
            expected_revision: args.expected_revision,
            reason: args.reason.reason.clone(),
        };
        let response = projects.rollback(request).await?.into_inner();
        let text = changes(&response);
        Ok(CommandOutput::new("RollbackResponse", &response, text))
    })
}

fn to_text(response: &ListRevisionsResponse) -> String {
    if response.revisions.is_empty() {
        return "no revisions\n".to_owned();
    }
    let mut table = Table::new(&[
        Column::number("REVISION"),
        Column::word("AT"),
        Column::text("BY"),
        Column::word("ACTION"),
        Column::number("RULES"),
        Column::text("REASON"),
    ]);
    for revision in &response.revisions {
        let Revision { created_at, actor, action, reason, changed_rules, .. } = revision;
        table.push([
            revision.revision.to_string(),
            text::time(created_at.as_ref()),
            text::value(actor),
            text::value(action),
            changed_rules.to_string(),
            text::words(reason),
        ]);
    }
    table.lines()
}

/// Returns the new revision, and a line for each rule that differs.
fn changes(RollbackResponse { revision, changes }: &RollbackResponse) -> String {
    let number = revision.as_ref().map_or(0, |revision| revision.revision);
    if changes.is_empty() {
        return format!("revision {number}: nothing was changed\n");
    }
    let line = |change: &RuleChange| {
        let RuleChange { rule_name, changed_fields, .. } = change;
        let name = text::value(rule_name);
        match (change.kind(), changed_fields) {
            (Kind::Unspecified, _) => format!("  {name}\n"),
            (Kind::Created, _) => format!("  {name}: created\n"),
            (Kind::Deleted, _) => format!("  {name}: deleted\n"),
            (Kind::Updated, None) => format!("  {name}: updated\n"),
            (Kind::Updated, Some(fields)) => format!("  {name}: {}\n", fields.paths.join(", ")),
        }
    };
    let lines: String = changes.iter().map(line).collect();
    format!("revision {number}\n{lines}")
}
