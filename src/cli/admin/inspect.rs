//! `rlaas inspect`: the state of keys.

use std::process::ExitCode;

use clap::Args;
use rlaas_proto::ratelimit::admin::v1::{InspectRequest, InspectResponse};

use super::call::{CallArgs, CommandOutput};
use super::keys;
use super::selection::SelectionArgs;
use super::text;

#[derive(Args, Debug)]
#[command(override_usage = "rlaas inspect <USER> [OPTIONS]")]
pub(in crate::cli) struct InspectArgs {
    #[command(flatten)]
    selection: SelectionArgs,
    #[command(flatten)]
    call: CallArgs,
}

pub(in crate::cli) fn run(args: &InspectArgs) -> ExitCode {
    args.call.run(async |admin| {
        let selector = Some(args.selection.selector()?);
        let response = admin.inspect(InspectRequest { selector }).await?.into_inner();
        Ok(CommandOutput::new("InspectResponse", &response, to_text(&response)))
    })
}

fn to_text(response: &InspectResponse) -> String {
    let stored = response.keys.iter().filter_map(|state| {
        let key = state.key.as_ref()?;
        let (rule, id, name) =
            (text::value(&state.rule), text::value(&key.id), text::value(&key.storage_key));
        Some(format!("{rule}: id {id}, in the store {name}\n"))
    });
    keys::states(&response.keys) + &stored.collect::<String>()
}
