//! `rlaas ban`, `unban` and `override`: other grants to single keys, for a time.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use rlaas_proto::ratelimit::admin::v1::{
    ClearOverrideRequest, KeyOverride, ListOverridesRequest, ListOverridesResponse, OverrideKind,
    SetOverrideRequest,
};
use rlaas_proto::ratelimit::v1::Grant;
use rlaas_proto::ratelimit::v1::grant::Kind;

use super::call::{Admin, CallArgs, CommandError, CommandOutput};
use super::change::{ChangeArgs, output, span, time_to_live};
use super::selection::{EVERY_PROJECT, SelectionArgs, project_id};
use super::text;
use crate::cli::table::{Column, Table};

#[derive(Args, Debug)]
#[command(override_usage = "rlaas ban <USER> --for <D> --reason <TEXT> [OPTIONS]")]
pub(in crate::cli) struct BanArgs {
    #[command(flatten)]
    target: SetArgs,
}

#[derive(Args, Debug)]
#[command(override_usage = "rlaas unban <USER> --reason <TEXT> [OPTIONS]")]
pub(in crate::cli) struct UnbanArgs {
    #[command(flatten)]
    target: ClearArgs,
}

#[derive(Args, Debug)]
pub(in crate::cli) struct OverrideArgs {
    #[command(subcommand)]
    command: OverrideCommand,
}

#[derive(Debug, Subcommand)]
enum OverrideCommand {
    /// Grant another limit, or everything, to keys for a time
    Set(SetOverrideArgs),
    /// End an override before its time; bans stay unless --kind says so
    Clear(ClearOverrideArgs),
    /// List the overrides and bans in force
    List(ListArgs),
}

/// Which keys, for how long and why.
#[derive(Args, Debug)]
struct SetArgs {
    #[command(flatten)]
    selection: SelectionArgs,
    /// Time until it ends by itself: 1s to 366d, such as 2h
    #[arg(long = "for", value_name = "D", value_parser = time_to_live)]
    ttl: Duration,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    call: CallArgs,
}

/// Which keys, and why.
#[derive(Args, Debug)]
struct ClearArgs {
    #[command(flatten)]
    selection: SelectionArgs,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    call: CallArgs,
}

#[derive(Args, Debug)]
#[command(
    override_usage = "rlaas override set <USER> --limit <N> --for <D> --reason <TEXT> [OPTIONS]"
)]
struct SetOverrideArgs {
    #[command(flatten)]
    granted: GrantArgs,
    /// Units at once, for buckets and GCRA [default: the limit]
    #[arg(long, value_name = "N", requires = "limit")]
    burst: Option<i64>,
    #[command(flatten)]
    target: SetArgs,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct GrantArgs {
    /// Units per window of the rule
    #[arg(long, value_name = "N")]
    limit: Option<i64>,
    /// Allow everything
    #[arg(long)]
    unlimited: bool,
}

#[derive(Args, Debug)]
#[command(override_usage = "rlaas override clear <USER> --reason <TEXT> [OPTIONS]")]
struct ClearOverrideArgs {
    /// Kind to end
    #[arg(long, value_enum, default_value = "grant")]
    kind: KindArg,
    #[command(flatten)]
    target: ClearArgs,
}

#[derive(Args, Debug)]
struct ListArgs {
    /// Project of the rules; - is all [default: that of requests without API key]
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    project: Option<String>,
    /// Only those of this rule
    #[arg(long)]
    rule: Option<String>,
    /// Only this kind
    #[arg(long, value_enum, default_value = "both")]
    kind: KindArg,
    /// Most overrides to list
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    max: usize,
    #[command(flatten)]
    call: CallArgs,
}

/// A kind of override.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KindArg {
    /// Bans
    Ban,
    /// Other limits, and unlimited grants
    Grant,
    /// Both
    Both,
}

impl From<KindArg> for OverrideKind {
    fn from(kind: KindArg) -> Self {
        match kind {
            KindArg::Ban => Self::Ban,
            KindArg::Grant => Self::Grant,
            KindArg::Both => Self::Unspecified,
        }
    }
}

pub(in crate::cli) fn ban(args: &BanArgs) -> ExitCode {
    set(&args.target, Grant { kind: Some(Kind::Banned(true)), burst: 0 })
}

pub(in crate::cli) fn unban(args: &UnbanArgs) -> ExitCode {
    clear(&args.target, OverrideKind::Ban)
}

pub(in crate::cli) fn run(args: &OverrideArgs) -> ExitCode {
    match &args.command {
        OverrideCommand::Set(args) => {
            let kind = match args.granted.limit {
                Some(units) => Kind::Limit(units),
                None => Kind::Unlimited(true),
            };
            set(&args.target, Grant { kind: Some(kind), burst: args.burst.unwrap_or_default() })
        }
        OverrideCommand::Clear(args) => clear(&args.target, args.kind.into()),
        OverrideCommand::List(args) => list(args),
    }
}

fn set(args: &SetArgs, grant: Grant) -> ExitCode {
    args.call.run(async |admin| {
        let request = SetOverrideRequest {
            selector: Some(args.selection.selector()?),
            grant: Some(grant),
            ttl: Some(span(args.ttl)),
            reason: args.change.reason.clone(),
            request_id: args.change.request_id()?,
        };
        let response = admin.set_override(request).await?;
        Ok(output("SetOverrideResponse", &response, response.get_ref().change.as_ref()))
    })
}

fn clear(args: &ClearArgs, kind: OverrideKind) -> ExitCode {
    args.call.run(async |admin| {
        let request = ClearOverrideRequest {
            selector: Some(args.selection.selector()?),
            kind: kind.into(),
            reason: args.change.reason.clone(),
            request_id: args.change.request_id()?,
        };
        let response = admin.clear_override(request).await?;
        Ok(output("ClearOverrideResponse", &response, response.get_ref().change.as_ref()))
    })
}

fn list(args: &ListArgs) -> ExitCode {
    args.call.run(async |admin| {
        let response = overrides(admin, args).await?;
        let text = to_text(&response, args.project.as_deref() == Some(EVERY_PROJECT));
        Ok(CommandOutput::new("ListOverridesResponse", &response, text))
    })
}

/// Reads pages up to the most overrides to list. Its token is that of the rest.
async fn overrides(
    admin: &mut Admin,
    args: &ListArgs,
) -> Result<ListOverridesResponse, CommandError> {
    let mut all = ListOverridesResponse::default();
    loop {
        let left = args.max.saturating_sub(all.overrides.len());
        let request = ListOverridesRequest {
            page_size: i32::try_from(left.min(1_000)).unwrap_or(1_000),
            page_token: all.next_page_token,
            project_id: project_id(args.project.as_deref()),
            rule: args.rule.clone().unwrap_or_default(),
            kind: OverrideKind::from(args.kind).into(),
        };
        let page = admin.list_overrides(request).await?.into_inner();
        all.overrides.extend(page.overrides);
        all.next_page_token = page.next_page_token;
        if all.next_page_token.is_empty() || all.overrides.len() >= args.max {
            return Ok(all);
        }
    }
}

fn to_text(response: &ListOverridesResponse, with_project: bool) -> String {
    if response.overrides.is_empty() {
        return "no overrides\n".to_owned();
    }
    let mut table = Table::new(&[
        Column::text("RULE"),
        Column::word("GRANT"),
        Column::word("UNTIL"),
        Column::text("SET BY"),
        Column::text("KEY"),
        Column::text("REASON"),
    ]);
    for other in &response.overrides {
        let KeyOverride { project_id, rule, key, grant, expires_at, actor, reason, .. } = other;
        let is_named = with_project && !project_id.is_empty();
        let place = if is_named { format!("{project_id}/") } else { String::new() };
        table.push([
            text::value(&format!("{place}{rule}")),
            text::grant(grant.as_ref()),
            text::time(expires_at.as_ref()),
            text::value(actor),
            text::key(key.as_ref()),
            text::words(reason),
        ]);
    }
    let rest = if response.next_page_token.is_empty() { "" } else { "there are more: --max\n" };
    table.lines() + rest
}
