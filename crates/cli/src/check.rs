//! `rlaas check`: sends one `Check` to a running server.

use std::collections::HashMap;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::Args;
use rlaas_proto::ratelimit::v1::CheckResponse;

use crate::call::to_json;
use crate::client::{ProjectKeyArgs, ServerArgs, runtime};
use crate::text::printable;
use crate::{EXIT_NO, exit_code, key_value, response};
use rlaas_core::rules::{Request, RequestFields};

/// The options of `rlaas check`.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// User id
    user: String,
    /// Resource of the request, such as a path
    #[arg(long, default_value = "")]
    resource: String,
    /// Attribute for the rules to match; may be given several times
    #[arg(long = "attribute", value_name = "NAME=VALUE", value_parser = key_value)]
    attributes: Vec<(String, String)>,
    /// Units to take; 0 takes none and shows the state [default: 1]
    #[arg(long)]
    cost: Option<u64>,
    /// Decide for this cost without taking units
    #[arg(long)]
    dry_run: bool,
    /// Idempotency key: a repeated request takes its units once
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    request_id: String,
    /// Print the whole response in the JSON mapping of protobuf
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    api_key: ProjectKeyArgs,
    #[command(flatten)]
    server: ServerArgs,
}

/// Sends a request, and prints the decision. Returns the exit code.
pub fn run(args: CheckArgs) -> ExitCode {
    let (json, user, cost) = (args.json, args.user.clone(), args.cost);
    let response = runtime().and_then(|runtime| runtime.block_on(send_check(args)));
    let printed = response.map(|response| {
        let text = if json {
            to_json("v1.CheckResponse", &response)
        } else {
            response::to_text(&response, &user, cost.unwrap_or(1))
        };
        println!("{text}");
        response.allowed
    });
    exit_code(printed, EXIT_NO)
}

async fn send_check(args: CheckArgs) -> anyhow::Result<CheckResponse> {
    let server = args.server.endpoint()?.with_api_key(&args.api_key);
    let client = server.connect().await?;
    let attributes: HashMap<String, String> = args.attributes.into_iter().collect();
    let request = Request::new(RequestFields {
        user_id: &args.user,
        resource: &args.resource,
        attributes: &attributes,
        cost: args.cost,
        dry_run: args.dry_run,
    });
    let request = request.and_then(|request| request.with_request_id(&args.request_id));
    // Validated here with the same text that the server would send.
    let request = request.map_err(|error| anyhow!("INVALID_ARGUMENT: {error}"))?;
    match client.check(&request).await {
        Ok(verdict) => {
            if let Some(warning) = verdict.warning() {
                eprintln!("rlaas: warning: {}", printable(warning));
            }
            Ok(verdict.into_response())
        }
        Err(error) => Err(server.explain(error.status())),
    }
}
