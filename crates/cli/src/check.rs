//! `rlaas check` and `rlaas report`: each sends one request to a running server.

use std::collections::HashMap;
use std::process::ExitCode;

use anyhow::{anyhow, ensure};
use clap::Args;
use rlaas_client::Client;
use rlaas_proto::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
use rlaas_proto::ratelimit::v1::{CheckRequest, CheckResponse, ReportRequest, ReportResponse};
use rlaas_proto::values::check_request;

use crate::call::to_json;
use crate::client::{ProjectKeyArgs, ServerArgs, ServerEndpoint, runtime};
use crate::text::printable;
use crate::{EXIT_NO, exit_code, key_value, response};

/// The options of a request, and of the server that is asked.
#[derive(Args, Debug)]
pub(crate) struct RequestArgs {
    /// User id
    pub(crate) user: String,
    /// Resource of the request, such as a path
    #[arg(long, visible_alias = "endpoint", default_value = "", hide_default_value = true)]
    resource: String,
    /// Attribute for the rules to match; may be given several times
    #[arg(long = "attribute", value_name = "NAME=VALUE", value_parser = key_value)]
    attributes: Vec<(String, String)>,
    /// Units, or those of one rule; may be given several times [default: 1]
    #[arg(long = "cost", value_name = "N|RULE=N", value_parser = cost, allow_hyphen_values = true)]
    costs: Vec<(Option<String>, u64)>,
    /// Idempotency key: a repeated request is counted once
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    request_id: String,
    #[command(flatten)]
    api_key: ProjectKeyArgs,
    #[command(flatten)]
    server: ServerArgs,
}

/// The options of `rlaas check`.
#[derive(Args, Debug)]
pub struct CheckArgs {
    #[command(flatten)]
    request: RequestArgs,
    /// Decide for this cost without taking units
    #[arg(long)]
    dry_run: bool,
    /// Take what is there: any number of units from this one to the cost
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    at_least: u64,
    /// Print the whole response in the JSON mapping of protobuf
    #[arg(long)]
    json: bool,
}

/// The options of `rlaas report`.
#[derive(Args, Debug)]
pub struct ReportArgs {
    #[command(flatten)]
    request: RequestArgs,
    /// Print the whole response in the JSON mapping of protobuf
    #[arg(long)]
    json: bool,
}

/// Sends a request, and prints the decision. Returns the exit code.
pub fn run(args: CheckArgs) -> ExitCode {
    let CheckArgs { request, dry_run, at_least, json } = args;
    let cost = if at_least > 0 { at_least } else { request.cost().unwrap_or(1) };
    let message = request.message().map(|message| CheckRequest { dry_run, at_least, ..message });
    let send = |message| runtime()?.block_on(send_check(&request, message));
    let response = message.and_then(send);
    let printed = response.map(|response| {
        let text = if json {
            to_json("v1.CheckResponse", &response)
        } else {
            response::to_text(&response, &request.user, cost)
        };
        println!("{text}");
        response.allowed
    });
    exit_code(printed, EXIT_NO)
}

/// Sends a report, and prints what is left. Returns the exit code.
pub fn report(args: ReportArgs) -> ExitCode {
    let ReportArgs { request, json } = args;
    let response = runtime().and_then(|runtime| runtime.block_on(send_report(&request)));
    let printed = response.map(|response| {
        let text = if json {
            to_json("v1.ReportResponse", &response)
        } else {
            let verdict = response.verdict.unwrap_or_default();
            let verb = if response.uncounted == 0 { "counted " } else { "cut off " };
            response::with_verb(verb, &verdict, &request.user, request.cost().unwrap_or(1))
        };
        println!("{text}");
        response.uncounted == 0
    });
    exit_code(printed, EXIT_NO)
}

async fn send_check(args: &RequestArgs, message: CheckRequest) -> anyhow::Result<CheckResponse> {
    let (server, client) = args.connect().await?;
    // Validated here with the same text that the server would send.
    let request = check_request(&message).map_err(|error| anyhow!("INVALID_ARGUMENT: {error}"))?;
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

async fn send_report(args: &RequestArgs) -> anyhow::Result<ReportResponse> {
    let request = ReportRequest { request: Some(args.message()?) };
    let (server, client) = args.connect().await?;
    let reported = RateLimitServiceClient::new(client.channel()).report(request).await;
    Ok(reported.map_err(|status| server.explain(&status))?.into_inner())
}

impl RequestArgs {
    pub(crate) async fn connect(&self) -> anyhow::Result<(ServerEndpoint, Client)> {
        let server = self.server.endpoint()?.with_api_key(&self.api_key);
        let client = server.connect().await?;
        Ok((server, client))
    }

    /// Returns the units that are of no single rule.
    pub(crate) fn cost(&self) -> Option<u64> {
        self.costs.iter().find_map(|(rule, units)| rule.is_none().then_some(*units))
    }

    pub(crate) fn message(&self) -> anyhow::Result<CheckRequest> {
        let costs = self.costs.iter().filter_map(|(rule, units)| Some((rule.clone()?, *units)));
        let costs: HashMap<_, _> = costs.collect();
        let once = costs.len() + usize::from(self.cost().is_some());
        ensure!(self.costs.len() == once, "--cost must be given once, and once for each rule");
        Ok(CheckRequest {
            user_id: self.user.clone(),
            resource: self.resource.clone(),
            attributes: self.attributes.iter().cloned().collect::<HashMap<_, _>>(),
            cost: self.cost(),
            request_id: self.request_id.clone(),
            costs,
            ..CheckRequest::default()
        })
    }
}

/// Parses units, or those of one rule.
fn cost(text: &str) -> Result<(Option<String>, u64), &'static str> {
    let (rule, units) = match text.split_once('=') {
        Some((rule, units)) => (Some(rule.to_owned()), units),
        None => (None, text),
    };
    units
        .parse()
        .map(|units| (rule, units))
        .map_err(|_| "must be N or RULE=N, such as tokens=500: a whole number from 0")
}
