//! `rlaas explain`: why a request is decided as it is.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{bail, ensure};
use clap::{ArgGroup, Args};
use rlaas_proto::ratelimit::admin::v1::{
    Descriptor, ExplainDescriptorsRequest, ExplainDescriptorsResponse, ExplainRequest,
    ExplainResponse,
};
use rlaas_proto::ratelimit::v1::CheckRequest;

use crate::call::{CallArgs, CommandError, CommandOutput, report};
use crate::parse::descriptor_entry;
use crate::text::project_id;
use crate::{explain_text, key_value, look_up, text};

/// Separates the descriptors of one request.
const NEXT_DESCRIPTOR: &str = "+";

/// The options of `rlaas explain`.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("request").required(true).args(["user", "envoy"])))]
pub struct ExplainArgs {
    /// User id
    user: Option<String>,
    /// Resource of the request, such as a path
    #[arg(long, visible_alias = "endpoint", requires = "user", value_name = "R")]
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
    pub config: Vec<PathBuf>,
    /// How to reach the server, and how to print its answer.
    #[command(flatten)]
    pub call: CallArgs,
}

/// A request that is explained.
#[derive(Clone, Debug)]
pub enum ExplainedRequest {
    /// Of `Check`.
    Check(ExplainRequest),
    /// Of Envoy.
    Descriptors(ExplainDescriptorsRequest),
}

/// Explains a request by a server. Returns the exit code.
pub fn run(args: &ExplainArgs) -> ExitCode {
    let request = match args.request() {
        Ok(request) => request,
        Err(error) => return report(&CommandError::Other(error)),
    };
    args.call.run(async |admin| {
        Ok(match request {
            ExplainedRequest::Check(request) => {
                let response = admin.explain(request.clone()).await?.into_inner();
                let mut output = CommandOutput::of_check(&response, &request);
                let user = args.user.as_deref().filter(|_| args.is_user_alone());
                let Some(user) = user else { return Ok(output) };
                let project = args.project.as_deref().map_or_else(|| "-".to_owned(), project_id);
                match look_up::of_user(admin, user, project).await {
                    Ok(answer) => {
                        output.text = answer + "\nA request without resource:\n" + &output.text;
                    }
                    Err(status) => {
                        let why = text::printable(status.message());
                        let note = format!("\nOther rules are not looked at: {why}\n");
                        output = output.with_note(&note);
                    }
                }
                output
            }
            ExplainedRequest::Descriptors(request) => {
                let response = admin.explain_descriptors(request.clone()).await?.into_inner();
                CommandOutput::of_descriptors(&response, &request)
            }
        })
    })
}

impl CommandOutput {
    /// Returns the explanation of an answer of `Check`.
    pub fn of_check(response: &ExplainResponse, request: &ExplainRequest) -> Self {
        let text = explain_text::of_check(response, &request.request.clone().unwrap_or_default());
        Self::of_message("admin.v1.ExplainResponse", response, text)
    }

    /// Returns the explanation of an answer to Envoy.
    pub fn of_descriptors(
        response: &ExplainDescriptorsResponse,
        request: &ExplainDescriptorsRequest,
    ) -> Self {
        let text = explain_text::of_descriptors(response, request);
        Self::of_message("admin.v1.ExplainDescriptorsResponse", response, text)
    }
}

impl ExplainArgs {
    /// Returns `true` if the user is looked up in all rules, too: nothing else is given, and the output
    /// is for people.
    fn is_user_alone(&self) -> bool {
        self.user.as_deref() != Some("")
            && self.resource.is_none()
            && self.attributes.is_empty()
            && !self.call.json
    }

    /// Returns the request that the options make.
    ///
    /// # Errors
    ///
    /// If a descriptor is not one.
    pub fn request(&self) -> anyhow::Result<ExplainedRequest> {
        if let Some(user) = &self.user {
            let request = CheckRequest {
                user_id: user.clone(),
                resource: self.resource.clone().unwrap_or_default(),
                attributes: self.attributes.iter().cloned().collect(),
                cost: self.cost,
                ..CheckRequest::default()
            };
            let project_id = project_id(self.project.as_deref().unwrap_or_default());
            return Ok(ExplainedRequest::Check(ExplainRequest {
                request: Some(request),
                project_id,
                ..ExplainRequest::default()
            }));
        }
        let [domain, descriptors @ ..] = &*self.envoy else {
            bail!("--envoy must have a domain and at least one KEY=VALUE");
        };
        let descriptors = descriptors.split(|text| text == NEXT_DESCRIPTOR);
        let descriptors = descriptors.map(|texts| {
            ensure!(!texts.is_empty(), "--envoy must have a domain and at least one KEY=VALUE");
            let entries =
                texts.iter().map(|text| descriptor_entry(text)).collect::<Result<_, _>>()?;
            Ok(Descriptor { entries, hits_addend: self.cost })
        });
        let (domain, descriptors) = (domain.clone(), descriptors.collect::<anyhow::Result<_>>()?);
        Ok(ExplainedRequest::Descriptors(ExplainDescriptorsRequest { domain, descriptors }))
    }
}
