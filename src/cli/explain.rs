//! `rlaas explain --config`: why a request is decided as it is, by files alone.

use std::process::ExitCode;
use std::sync::Arc;

use rlaas_cli::{
    CommandError, CommandOutput, ExplainArgs, ExplainedRequest, WITHOUT_SERVER, report, runtime,
};
use rlaas_limiter::Limiter;
use rlaas_limiter::observer::NoObserver;

use super::{check_config, load};
use crate::clock::{Clock, Deadline};
use crate::config::Sources;
use crate::store::{MemorySettings, MemoryStore, Store};
use rlaas_admin as service;

/// Explains by the rules of files, with an empty store. Not by the environment: that of this shell is
/// not the server's.
pub(super) fn run(args: &ExplainArgs) -> ExitCode {
    let request = match args.request() {
        Ok(request) => request,
        Err(error) => return report(&CommandError::Other(error)),
    };
    let config = match load(&Sources { files: args.config.clone(), ..Sources::default() }) {
        Ok(config) => config,
        Err(code) => return code,
    };
    check_config::warn_left_out(&config, "");
    let observer = Arc::new(NoObserver);
    let store = MemoryStore::new(MemorySettings::default(), Clock::default(), observer.clone());
    let limiter = Limiter::new(config.rules, Store::Memory(store), observer);
    let explained = runtime()
        .map_err(CommandError::from)
        .and_then(|runtime| runtime.block_on(explain(&limiter, request)));
    match explained {
        Ok(answer) => args.call.print(&answer.with_note(WITHOUT_SERVER)),
        Err(error) => report(&error),
    }
}

async fn explain(
    limiter: &Limiter,
    request: ExplainedRequest,
) -> Result<CommandOutput, CommandError> {
    Ok(match request {
        ExplainedRequest::Check(request) => {
            let response = service::explain(limiter, request.clone(), Deadline::NEVER).await?;
            CommandOutput::of_check(&response, &request)
        }
        ExplainedRequest::Descriptors(request) => {
            let explained = service::explain_descriptors(limiter, request.clone(), Deadline::NEVER);
            CommandOutput::of_descriptors(&explained.await?, &request)
        }
    })
}
