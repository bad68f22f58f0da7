//! `rlaas reset` and `rlaas refund`: give units back.

use std::process::ExitCode;

use clap::Args;
use rlaas_proto::ratelimit::admin::v1::{InspectRequest, RefundRequest, ResetRequest, Selector};

use super::call::{Admin, CallArgs, CommandError};
use super::change::{ChangeArgs, ConfirmArgs, output};
use super::keys;
use super::selection::SelectionArgs;
use super::text;

#[derive(Args, Debug)]
#[command(override_usage = "rlaas reset <USER> --reason <TEXT> [OPTIONS]")]
pub(in crate::cli) struct ResetArgs {
    #[command(flatten)]
    selection: SelectionArgs,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    call: CallArgs,
}

#[derive(Args, Debug)]
#[command(override_usage = "rlaas refund <USER> --units <N> --reason <TEXT> [OPTIONS]")]
pub(in crate::cli) struct RefundArgs {
    #[command(flatten)]
    selection: SelectionArgs,
    /// Units for each key, up to full and no further
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX)))]
    units: u64,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    call: CallArgs,
}

pub(in crate::cli) fn reset(args: &ResetArgs) -> ExitCode {
    args.call.run(async |admin| {
        let selector = args.selection.selector()?;
        confirm(&args.confirm, admin, &selector, "Reset").await?;
        let request = ResetRequest {
            selector: Some(selector),
            reason: args.change.reason.clone(),
            request_id: args.change.request_id()?,
        };
        let response = admin.reset(request).await?;
        Ok(output("ResetResponse", &response, response.get_ref().change.as_ref()))
    })
}

pub(in crate::cli) fn refund(args: &RefundArgs) -> ExitCode {
    args.call.run(async |admin| {
        let selector = args.selection.selector()?;
        let verb = format!("Return {} to", text::count(args.units, "unit"));
        confirm(&args.confirm, admin, &selector, &verb).await?;
        let request = RefundRequest {
            selector: Some(selector),
            units: args.units,
            reason: args.change.reason.clone(),
            request_id: args.change.request_id()?,
        };
        let response = admin.refund(request).await?;
        Ok(output("RefundResponse", &response, response.get_ref().change.as_ref()))
    })
}

/// Shows the keys and asks whether to change them, if a person types the command.
async fn confirm(
    confirm: &ConfirmArgs,
    admin: &mut Admin,
    selector: &Selector,
    verb: &str,
) -> Result<(), CommandError> {
    if confirm.is_given() {
        return Ok(());
    }
    let request = InspectRequest { selector: Some(selector.clone()) };
    let found = admin.inspect(request).await?.into_inner().keys;
    eprint!("{}", keys::states(&found));
    let question = format!("{verb} {}?", text::count(found.len() as u64, "key"));
    confirm.confirm(&question)
}
