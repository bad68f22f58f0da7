//! A call to the administration of a running server, and its answer as text or as JSON.

use std::process::ExitCode;

use clap::Args;
use prost::Message;
use rlaas_client::ApiChannel;
use rlaas_client::rlaas_proto::ratelimit::admin::v1::admin_service_client::AdminServiceClient;
use rlaas_client::rlaas_proto::ratelimit::admin::v1::project_service_client::ProjectServiceClient;
use rlaas_client::rlaas_proto::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::json;
use crate::api::admin::WARNING;
use crate::cli::client::{ServerArgs, runtime};
use crate::cli::config::print;
use crate::cli::printable::printable;
use crate::cli::{EXIT_NO, EXIT_NO_RESPONSE};

/// The administration of a server.
pub(super) type Admin = AdminServiceClient<ApiChannel>;

/// The projects of a server.
pub(super) type ProjectClient = ProjectServiceClient<ApiChannel>;

/// The service that decides.
pub(super) type ServiceClient = RateLimitServiceClient<ApiChannel>;

/// Largest response, in bytes: a page of 1,000 entries of the audit, of 8 KiB each.
const MAX_RESPONSE: usize = 16 * 1024 * 1024;

/// How to reach the server, and how to print its answer.
#[derive(Args, Debug)]
pub(super) struct CallArgs {
    /// Print the whole response in the JSON mapping of protobuf
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

/// An answer in both forms.
#[derive(Debug)]
pub(super) struct CommandOutput {
    /// With a line break at the end, unless it is empty.
    json: String,
    text: String,
    /// Printed on standard error, unless the output is JSON, which has it as a member.
    warning: Option<String>,
}

/// Why a command has no answer.
#[derive(Debug)]
pub(super) enum CommandError {
    /// The server refused the call, or did not answer.
    Status(Box<Status>),
    /// The command could not make the call.
    Other(anyhow::Error),
    /// The person at the terminal said no.
    NotConfirmed,
}

impl CommandOutput {
    /// Creates an answer from the response of an RPC, which has this name within its package.
    pub(super) fn new(name: &str, response: &impl Message, text: String) -> Self {
        Self { json: to_json(name, response) + "\n", text, warning: None }
    }

    /// The same from a response of the service that decides.
    pub(super) fn of_service(name: &str, response: &impl Message, text: String) -> Self {
        let json = json::to_json(&format!("ratelimit.v1.{name}"), response) + "\n";
        Self { json, text, warning: None }
    }

    /// Returns the answer of a command that has printed its lines.
    pub(super) const fn printed() -> Self {
        Self { json: String::new(), text: String::new(), warning: None }
    }

    /// Creates an answer of several responses: one line of JSON for each.
    pub(super) fn of_several<M: Message>(name: &str, responses: &[M], text: String) -> Self {
        let json = responses.iter().map(|response| to_json(name, response) + "\n").collect();
        Self { json, text, warning: None }
    }

    /// Adds the warning in the metadata of a response, if there is one.
    pub(super) fn with_warning_of(self, metadata: &MetadataMap) -> Self {
        let Some(warning) = metadata.get(WARNING).and_then(|warning| warning.to_str().ok()) else {
            return self;
        };
        let json = json::with_member(self.json.trim_end(), "warning", warning) + "\n";
        Self { json, warning: Some(warning.to_owned()), ..self }
    }

    /// Adds a warning for people.
    pub(super) fn with_warning(self, warning: String) -> Self {
        Self { warning: Some(warning), ..self }
    }

    /// Adds a line to the text.
    pub(super) fn with_note(self, note: &str) -> Self {
        Self { text: self.text + note, ..self }
    }
}

/// Returns a message as one line of JSON. It has this name within its package.
pub(super) fn to_json(name: &str, message: &impl Message) -> String {
    json::to_json(&format!("ratelimit.admin.v1.{name}"), message)
}

impl From<Status> for CommandError {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

impl From<anyhow::Error> for CommandError {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}

impl CallArgs {
    /// Calls the server, and prints the answer. Returns exit code 0 with an answer, 1 if the person
    /// at the terminal said no, and 2 otherwise.
    pub(super) fn run(
        &self,
        call: impl AsyncFnOnce(&mut Admin) -> Result<CommandOutput, CommandError>,
    ) -> ExitCode {
        self.run_on(async |channel| call(&mut administration(channel)).await)
    }

    /// As [`CallArgs::run`], with a call to the projects of the server.
    pub(super) fn run_on_projects(
        &self,
        call: impl AsyncFnOnce(&mut ProjectClient) -> Result<CommandOutput, CommandError>,
    ) -> ExitCode {
        self.run_on(async |channel| {
            let projects = ProjectServiceClient::new(channel);
            call(&mut projects.max_decoding_message_size(MAX_RESPONSE)).await
        })
    }

    /// As [`CallArgs::run`], with a call to the service that decides.
    pub(super) fn run_on_service(
        &self,
        call: impl AsyncFnOnce(&mut ServiceClient) -> Result<CommandOutput, CommandError>,
    ) -> ExitCode {
        self.run_on(async |channel| {
            let service = RateLimitServiceClient::new(channel);
            call(&mut service.max_decoding_message_size(MAX_RESPONSE)).await
        })
    }

    fn run_on(
        &self,
        call: impl AsyncFnOnce(ApiChannel) -> Result<CommandOutput, CommandError>,
    ) -> ExitCode {
        let answered = runtime()
            .map_err(CommandError::from)
            .and_then(|runtime| runtime.block_on(self.call(call)));
        match answered {
            Ok(answer) => self.print(&answer),
            Err(error) => report(&error),
        }
    }

    /// Prints an answer.
    pub(super) fn print(&self, answer: &CommandOutput) -> ExitCode {
        if self.json {
            return print(&answer.json);
        }
        if let Some(warning) = &answer.warning {
            eprintln!("rlaas: warning: {}", printable(warning));
        }
        print(&answer.text)
    }

    async fn call(
        &self,
        call: impl AsyncFnOnce(ApiChannel) -> Result<CommandOutput, CommandError>,
    ) -> Result<CommandOutput, CommandError> {
        let server = self.server.endpoint()?;
        let channel = server.connect().await?.channel();
        match call(channel).await {
            Err(CommandError::Status(status)) => Err(CommandError::Other(server.explain(&status))),
            other => other,
        }
    }
}

/// Returns a client of the administration.
fn administration(channel: ApiChannel) -> Admin {
    AdminServiceClient::new(channel).max_decoding_message_size(MAX_RESPONSE)
}

/// Prints an error, and returns the exit code.
pub(super) fn report(error: &CommandError) -> ExitCode {
    match error {
        CommandError::NotConfirmed => {
            eprintln!("rlaas: not confirmed, nothing was changed");
            ExitCode::from(EXIT_NO)
        }
        CommandError::Other(error) => {
            eprintln!("rlaas: {error:#}");
            ExitCode::from(EXIT_NO_RESPONSE)
        }
        CommandError::Status(status) => {
            eprintln!("rlaas: {}", printable(status.message()));
            ExitCode::from(EXIT_NO_RESPONSE)
        }
    }
}
