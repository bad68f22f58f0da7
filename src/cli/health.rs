//! `rlaas health`: asks the health service, for container health checks.

use std::process::ExitCode;

use clap::Args;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::client::{ServerArgs, runtime};
use super::{NO, NO_ANSWER};
use crate::api::SERVICE;

const SERVICE_HELP: &str =
    "Name of a service: \"\" (alive), store, or that of the gRPC service (ready)
[default: ratelimit.v1.RateLimitService]";

#[derive(Args, Debug)]
pub(super) struct HealthArgs {
    /// Name of a service
    #[arg(long, value_name = "NAME", default_value = SERVICE, help = SERVICE_HELP,
          hide_default_value = true)]
    service: String,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) fn run(args: &HealthArgs) -> ExitCode {
    match runtime().and_then(|runtime| runtime.block_on(ask(args))) {
        Ok(status) => {
            println!("{}", status.as_str_name());
            if status == ServingStatus::Serving { ExitCode::SUCCESS } else { ExitCode::from(NO) }
        }
        Err(error) => {
            eprintln!("rlaas: {error:#}");
            ExitCode::from(NO_ANSWER)
        }
    }
}

async fn ask(args: &HealthArgs) -> anyhow::Result<ServingStatus> {
    let server = args.server.server()?;
    let mut client = HealthClient::new(server.connect().await?.channel());
    let request = HealthCheckRequest { service: args.service.clone() };
    match client.check(request).await {
        Ok(response) => Ok(response.into_inner().status()),
        Err(status) => Err(server.explain(&status).await),
    }
}
