//! `rlaas rule history`, `diff` and `rollback`: the revisions of a project's rules.

use std::process::ExitCode;

use clap::Args;
use rlaas_proto::ratelimit::admin::v1::{
    GetRevisionRequest, GetRevisionResponse, ListRevisionsRequest, ListRevisionsResponse, Revision,
    RollbackRequest, RollbackResponse,
};

use super::changes;
use super::project_rules::OfProjectArgs;
use crate::cli::admin::call::{CallArgs, CommandOutput};
use crate::cli::admin::change::ConfirmArgs;
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
pub(super) struct DiffArgs {
    /// Number of the revision, of `rlaas rule history` [default: the newest]
    revision: Option<u64>,
    /// Number of the revision to compare with; 0 has no rules [default: the one before]
    #[arg(long, value_name = "N")]
    base: Option<u64>,
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
    confirm: ConfirmArgs,
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

pub(super) fn diff(args: &DiffArgs) -> ExitCode {
    args.call.run_on_projects(async |projects| {
        let request = GetRevisionRequest {
            project_id: args.of.id(),
            revision: args.revision.unwrap_or_default(),
            base_revision: args.base,
        };
        let response = projects.get_revision(request).await?.into_inner();
        let text = difference(&response, args.base);
        Ok(CommandOutput::new("GetRevisionResponse", &response, text))
    })
}

pub(super) fn rollback(args: &RollbackArgs) -> ExitCode {
    args.call.run_on_projects(async |projects| {
        args.confirm.confirm_write(&format!("Roll back to revision {}?", args.revision))?;
        let request = RollbackRequest {
            project_id: args.of.id(),
            revision: args.revision,
            expected_revision: args.expected_revision,
            reason: args.reason.reason.clone(),
        };
        let response = projects.rollback(request).await?.into_inner();
        let text = written(&response);
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

/// Returns the new revision, and the differences of rules.
fn written(RollbackResponse { revision, changes }: &RollbackResponse) -> String {
    let number = revision.as_ref().map_or(0, |revision| revision.revision);
    if changes.is_empty() {
        return format!("revision {number}: nothing was changed\n");
    }
    format!("revision {number}\n{}", changes::lines(changes))
}

/// Returns a revision, and the differences of rules.
fn difference(response: &GetRevisionResponse, base: Option<u64>) -> String {
    let Revision { revision, created_at, actor, action, reason, .. } =
        response.revision.clone().unwrap_or_default();
    let base = base.map_or_else(|| "the one before".to_owned(), |base| format!("revision {base}"));
    let (at, actor) = (text::time(created_at.as_ref()), text::value(&actor));
    let (action, reason) = (text::value(&action), text::words(&reason));
    let head = format!("revision {revision} against {base}: {at}, {actor}, {action}, {reason}\n");
    if response.changes.is_empty() {
        return head + "  no differences\n";
    }
    head + &changes::lines(&response.changes)
}
