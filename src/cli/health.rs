//! `rlaas health`: queries the gRPC health service, for container health checks.

use std::process::ExitCode;

use clap::Args;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::client::{ServerArgs, runtime};
use super::{EXIT_NO, EXIT_NO_RESPONSE};
use crate::api::SERVICE;

const SERVICE_HELP: &str =
    "Name of a service: \"\" (liveness), store, or the gRPC service (readiness)
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
    match runtime().and_then(|runtime| runtime.block_on(query(args))) {
        Ok(status) => {
            println!("{}", status.as_str_name());
            if status == ServingStatus::Serving {
                ExitCode::SUCCESS
            } else {
                ExitCode::from(EXIT_NO)
            }
        }
        Err(error) => {
            eprintln!("rlaas: {error:#}");
            ExitCode::from(EXIT_NO_RESPONSE)
        }
    }
}

async fn query(args: &HealthArgs) -> anyhow::Result<ServingStatus> {
    let server = args.server.endpoint()?;
    let mut client = HealthClient::new(server.connect().await?.channel());
    let request = HealthCheckRequest { service: args.service.clone() };
    match client.check(request).await {
        Ok(response) => Ok(response.into_inner().status()),
        Err(status) => Err(server.explain(&status)),
    }
}
