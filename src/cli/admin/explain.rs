//! `rlaas explain`: why a request is decided as it is, by a server or by files alone.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use clap::{ArgGroup, Args};
use rlaas_proto::ratelimit::admin::v1::{Descriptor, ExplainDescriptorsRequest, ExplainRequest};
use rlaas_proto::ratelimit::v1::CheckRequest;

use super::call::{CallArgs, CommandError, CommandOutput, report};
use super::explain_text;
use super::selection::{entries, project_id};
use crate::api::admin as service;
use crate::cli::client::runtime;
use crate::cli::{check_config, key_value, load};
use crate::clock::{Clock, Deadline};
use crate::config::Sources;
use crate::store::{MemorySettings, MemoryStore, Store};
use rlaas_limiter::Limiter;
use rlaas_limiter::observer::NoObserver;

/// Separates the descriptors of one request.
const NEXT_DESCRIPTOR: &str = "+";

#[derive(Args, Debug)]
#[command(group(ArgGroup::new("request").required(true).args(["user", "envoy"])))]
pub(in crate::cli) struct ExplainArgs {
    /// User id
    user: Option<String>,
    /// Resource of the request, such as a path
    #[arg(long, requires = "user", value_name = "R")]
    resource: Option<String>,
    /// Attribute of the request; may be repeated
    #[arg(long = "attribute", requires = "user", value_name = "NAME=VALUE", value_parser = key_value)]
    attributes: Vec<(String, String)>,
    /// Domain and descriptor of Envoy; + begins another descriptor
    #[arg(long, num_args = 2.., value_names = ["DOMAIN", "K=V"])]
    envoy: Vec<String>,
    /// Units to take; 0 looks [default: 1]
    #[arg(long, value_name = "N")]
    cost: Option<u64>,
    /// Project of the rules [default: that of requests without an API key]
    #[arg(long, value_name = "ID", requires = "user", conflicts_with = "config")]
    project: Option<String>,
    /// Explain by these files alone, from empty state
    #[arg(long, value_name = "FILE", conflicts_with_all = ["addr", "token", "ca", "cert", "key"])]
    config: Vec<PathBuf>,
    #[command(flatten)]
    call: CallArgs,
}

/// The request that is explained.
enum Request {
    Check(CheckRequest),
    Descriptors(ExplainDescriptorsRequest),
}

pub(in crate::cli) fn run(args: &ExplainArgs) -> ExitCode {
    let request = match args.request() {
        Ok(request) => request,
        Err(error) => return report(&CommandError::Other(error)),
    };
    if !args.config.is_empty() {
        return explain_by_files(args, request);
    }
    args.call.run(async |admin| {
        Ok(match request {
            Request::Check(request) => {
                let project_id = project_id(args.project.as_deref());
                let call = ExplainRequest {
                    request: Some(request.clone()),
                    project_id,
                    ..ExplainRequest::default()
                };
                let response = admin.explain(call).await?.into_inner();
                let text = explain_text::of_check(&response, &request);
                CommandOutput::new("ExplainResponse", &response, text)
            }
            Request::Descriptors(request) => {
                let response = admin.explain_descriptors(request.clone()).await?.into_inner();
                let text = explain_text::of_descriptors(&response, &request);
                CommandOutput::new("ExplainDescriptorsResponse", &response, text)
            }
        })
    })
}

/// Explains by the rules of files, with an empty store. Not by the environment: that of this shell is
/// not the server's.
fn explain_by_files(args: &ExplainArgs, request: Request) -> ExitCode {
    let config = match load(&Sources { files: args.config.clone(), ..Sources::default() }) {
        Ok(config) => config,
        Err(code) => return code,
    };
    check_config::warn_left_out(&config, "");
    let observer = Arc::new(NoObserver);
    let store = MemoryStore::new(MemorySettings::default(), Clock::default(), observer.clone());
    let limiter = Limiter::new(config.rules, Store::Memory(store), observer);
    let explained = runtime().map_err(CommandError::from).and_then(|runtime| {
        runtime.block_on(async {
            Ok(match request {
                Request::Check(request) => {
                    let project_id = String::new();
                    let call = ExplainRequest {
                        request: Some(request.clone()),
                        project_id,
                        ..ExplainRequest::default()
                    };
                    let response = service::explain(&limiter, call, Deadline::NEVER).await?;
                    let text = explain_text::of_check(&response, &request);
                    CommandOutput::new("ExplainResponse", &response, text)
                }
                Request::Descriptors(request) => {
                    let call = request.clone();
                    let response =
                        service::explain_descriptors(&limiter, call, Deadline::NEVER).await?;
                    let text = explain_text::of_descriptors(&response, &request);
                    CommandOutput::new("ExplainDescriptorsResponse", &response, text)
                }
            })
        })
    });
    match explained {
        Ok(answer) => args.call.print(&answer.with_note(explain_text::WITHOUT_SERVER)),
        Err(error) => report(&error),
    }
}

impl ExplainArgs {
    fn request(&self) -> anyhow::Result<Request> {
        if let Some(user) = &self.user {
            return Ok(Request::Check(CheckRequest {
                user_id: user.clone(),
                resource: self.resource.clone().unwrap_or_default(),
                attributes: self.attributes.iter().cloned().collect(),
                cost: self.cost,
                ..CheckRequest::default()
            }));
        }
        let [domain, descriptors @ ..] = &*self.envoy else {
            bail!("--envoy must have a domain and at least one KEY=VALUE");
        };
        let descriptors = descriptors.split(|text| text == NEXT_DESCRIPTOR);
        let descriptors = descriptors
            .map(|texts| Ok(Descriptor { entries: entries(texts)?, hits_addend: self.cost }));
        let (domain, descriptors) = (domain.clone(), descriptors.collect::<anyhow::Result<_>>()?);
        Ok(Request::Descriptors(ExplainDescriptorsRequest { domain, descriptors }))
    }
}
