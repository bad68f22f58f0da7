//! `rlaas health`: queries the gRPC health service, for container health checks.

use std::process::ExitCode;

use clap::Args;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::client::{ServerArgs, runtime};
use crate::{EXIT_NO, exit_code};

/// The service whose status is that of the server.
const SERVICE: &str = "ratelimit.v1.RateLimitService";
const SERVICE_HELP: &str =
    "Name of a service: \"\" (liveness), store, or the gRPC service (readiness)
[default: ratelimit.v1.RateLimitService]";

/// The options of `rlaas health`.
#[derive(Args, Debug)]
pub struct HealthArgs {
    /// Name of a service
    #[arg(long, value_name = "NAME", default_value = SERVICE, help = SERVICE_HELP,
          hide_default_value = true)]
    service: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// Prints the health of a server. Returns the exit code.
pub fn run(args: &HealthArgs) -> ExitCode {
    let status = runtime().and_then(|runtime| runtime.block_on(query(args)));
    let printed = status.map(|status| {
        println!("{}", status.as_str_name());
        status == ServingStatus::Serving
    });
    exit_code(printed, EXIT_NO)
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
