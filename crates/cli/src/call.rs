//! A call to the administration of a running server, and its answer as text or as JSON.

use std::io::{self, BufRead, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use prost::Message;
use prost_reflect::DynamicMessage;
use rlaas_client::ApiChannel;
use rlaas_proto::json::write;
use rlaas_proto::ratelimit::admin::v1::admin_service_client::AdminServiceClient;
use rlaas_proto::ratelimit::admin::v1::project_service_client::ProjectServiceClient;
use rlaas_proto::{CHANGE_PAUSE, CHANGE_REPEAT_TIME, WARNING, is_too_many_changes};
use tokio::time::Instant;
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::client::{ServerArgs, runtime};
use crate::fields::dynamic;
use crate::text::{printable, printable_json};
use crate::{EXIT_NO, EXIT_NO_RESPONSE};

/// The administration of a server.
pub(crate) type Admin = AdminServiceClient<ApiChannel>;

/// The projects of a server.
pub type ProjectClient = ProjectServiceClient<ApiChannel>;

/// Largest response, in bytes: a page of 1,000 entries of the audit, of 8 KiB each.
pub(crate) const MAX_RESPONSE: usize = 16 * 1024 * 1024;

/// How to reach the server, and how to print its answer.
#[derive(Args, Debug)]
pub struct CallArgs {
    /// Print the whole response in the JSON mapping of protobuf
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// An answer in both forms.
#[derive(Debug)]
pub struct CommandOutput {
    /// With a line break at the end, unless it is empty.
    json: String,
    pub(crate) text: String,
    /// Printed on standard error, unless the output is JSON, which has it as a member.
    warning: Option<String>,
    /// Nothing was found that could be changed.
    pub(crate) found_nothing: bool,
}

/// Why a command has no answer.
#[derive(Debug)]
pub enum CommandError {
    /// The server refused the call, or did not answer.
    Status(Box<Status>),
    /// The command could not make the call.
    Other(anyhow::Error),
    /// The person at the terminal said no.
    NotConfirmed,
}

impl CommandOutput {
    /// Creates an answer from a response.
    pub fn new(response: &DynamicMessage, text: String) -> Self {
        let json = printable_json(&write(response)) + "\n";
        Self { json, text, warning: None, found_nothing: false }
    }

    /// Creates an answer from a response of this name, such as `admin.v1.ValidateResponse`.
    pub fn of_message(name: &str, response: &impl Message, text: String) -> Self {
        Self::new(&dynamic(name, response), text)
    }

    /// Creates an answer of several responses: one line of JSON for each.
    pub fn of_several<M: Message>(name: &str, responses: &[M], text: String) -> Self {
        let json = responses.iter().map(|response| to_json(name, response) + "\n").collect();
        Self { json, text, warning: None, found_nothing: false }
    }

    /// Returns the answer of a command that has printed its lines.
    pub const fn printed() -> Self {
        Self { json: String::new(), text: String::new(), warning: None, found_nothing: false }
    }

    /// Adds the warning in the metadata of a response, if there is one.
    pub(crate) fn with_warning_of(self, metadata: &MetadataMap) -> Self {
        let Some(warning) = metadata.get(WARNING).and_then(|warning| warning.to_str().ok()) else {
            return self;
        };
        let json = self.json.trim_end();
        let members = json.strip_suffix('}').unwrap_or(json);
        let comma = if members == "{" { "" } else { "," };
        let json = format!("{members}{comma}\"warning\":{}}}\n", serde_json::json!(warning));
        Self { json, warning: Some(warning.to_owned()), ..self }
    }

    /// Adds a warning for people.
    #[must_use]
    pub fn with_warning(self, warning: Option<String>) -> Self {
        Self { warning, ..self }
    }

    /// Adds a line to the text.
    #[must_use]
    pub fn with_note(self, note: &str) -> Self {
        Self { text: self.text + note, ..self }
    }
}

/// Returns a message of this name as one line of JSON.
pub(crate) fn to_json(name: &str, message: &impl Message) -> String {
    printable_json(&write(&dynamic(name, message)))
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
    /// at the terminal said no or nothing was found to be changed, and 2 otherwise.
    pub fn run(
        &self,
        call: impl AsyncFnOnce(&mut Admin) -> Result<CommandOutput, CommandError>,
    ) -> ExitCode {
        self.run_on(async |channel| call(&mut administration(channel)).await)
    }

    /// Returns how long the server may wait for something, so that a call is answered in time.
    pub(crate) fn wait(&self) -> Duration {
        (self.server.timeout() / 2).min(Duration::from_secs(30))
    }

    /// As [`CallArgs::run`], with a call to the projects of the server.
    pub fn run_on_projects(
        &self,
        call: impl AsyncFnOnce(&mut ProjectClient) -> Result<CommandOutput, CommandError>,
    ) -> ExitCode {
        self.run_on(async |channel| {
            let projects = ProjectServiceClient::new(channel);
            call(&mut projects.max_decoding_message_size(MAX_RESPONSE)).await
        })
    }

    /// As [`CallArgs::run`], with a call over the connection.
    pub(crate) fn run_on(
        &self,
        call: impl AsyncFnOnce(ApiChannel) -> Result<CommandOutput, CommandError>,
    ) -> ExitCode {
        let answered = runtime().map_err(CommandError::from).and_then(|runtime| {
            runtime.block_on(async {
                let server = self.server.endpoint()?;
                let answered = call(server.connect().await?.channel()).await;
                answered.map_err(|error| match error {
                    CommandError::Status(status) => CommandError::Other(server.explain(&status)),
                    other => other,
                })
            })
        });
        match answered {
            Ok(answer) => self.print(&answer),
            Err(error) => report(&error),
        }
    }

    /// Prints an answer. Returns exit code 1 if there was nothing that could be changed.
    pub fn print(&self, answer: &CommandOutput) -> ExitCode {
        let warning = answer.warning.as_ref().filter(|_| !self.json);
        if let Some(warning) = warning {
            eprintln!("rlaas: warning: {}", printable(warning));
        }
        let printed = print(if self.json { &answer.json } else { &answer.text });
        if answer.found_nothing { ExitCode::from(EXIT_NO) } else { printed }
    }
}

/// Writes to standard output. A reader that closes the pipe has read enough.
pub fn print(text: &str) -> ExitCode {
    let _closed = io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// Makes a change, and again for 10 s while the server makes as many as it may at a time.
///
/// # Errors
///
/// That of the last time.
#[expect(clippy::disallowed_methods, reason = "the server does not say when it may")]
pub async fn repeated<T>(change: impl AsyncFn() -> Result<T, Status>) -> Result<T, Status> {
    let until = Instant::now() + CHANGE_REPEAT_TIME;
    loop {
        match change().await {
            Err(status) if is_too_many_changes(&status) && Instant::now() < until => {
                tokio::time::sleep(CHANGE_PAUSE).await;
            }
            answer => return answer,
        }
    }
}

/// Returns a client of the administration.
fn administration(channel: ApiChannel) -> Admin {
    AdminServiceClient::new(channel).max_decoding_message_size(MAX_RESPONSE)
}

/// Prints an error, and returns the exit code.
pub fn report(error: &CommandError) -> ExitCode {
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

/// Returns `true` if nobody types the command, so that nobody could answer, or if `yes` was given.
pub fn is_confirmed(yes: bool) -> bool {
    yes || !io::stdin().is_terminal()
}

/// Asks on standard error.
///
/// # Errors
///
/// [`CommandError::NotConfirmed`] if the answer is not yes.
pub fn confirm(question: &str) -> Result<(), CommandError> {
    if prompt(question).map_err(anyhow::Error::from)? {
        Ok(())
    } else {
        Err(CommandError::NotConfirmed)
    }
}

/// Asks at a terminal whether a limit may be lowered; with `yes` it may.
///
/// # Errors
///
/// If the answer is not yes, or there is no terminal.
pub(crate) fn confirm_lowering(yes: bool, refused: &Status) -> Result<(), CommandError> {
    let why = printable(refused.message());
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(anyhow!("{why}; nothing was changed, --yes lowers it").into());
    }
    confirm(&format!("{why}. Lower it?"))
}

fn prompt(question: &str) -> io::Result<bool> {
    let mut terminal = io::stderr();
    write!(terminal, "{question} [y/N] ")?;
    terminal.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use prost_types::Any;
    use tonic::Code;

    use super::*;

    /// `google.rpc.Status`.
    #[derive(Clone, PartialEq, Message)]
    struct RpcStatus {
        #[prost(int32, tag = "1")]
        code: i32,
        #[prost(message, repeated, tag = "3")]
        details: Vec<Any>,
    }

    /// `google.rpc.ErrorInfo`.
    #[derive(Clone, PartialEq, Message)]
    struct ErrorInfo {
        #[prost(string, tag = "1")]
        reason: String,
        #[prost(string, tag = "2")]
        domain: String,
    }

    fn refusal(reason: &str) -> Status {
        let (reason, domain) = (reason.to_owned(), "rlaas".to_owned());
        let info = ErrorInfo { reason, domain }.encode_to_vec();
        let type_url = "type.googleapis.com/google.rpc.ErrorInfo".to_owned();
        let code = Code::ResourceExhausted;
        let details = vec![Any { type_url, value: info }];
        let details = RpcStatus { code: code.into(), details }.encode_to_vec();
        Status::with_details(code, "too many", details.into())
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_repeated_while_too_many_are_made_and_for_no_other_reason() {
        let calls = Cell::new(0);
        let third = repeated(async || {
            calls.set(calls.get() + 1);
            if calls.get() < 3 { Err(refusal("TOO_MANY_CHANGES")) } else { Ok(calls.get()) }
        });
        assert_eq!(third.await.expect("an answer"), 3);
        let calls = Cell::new(0);
        let first = repeated(async || {
            calls.set(calls.get() + 1);
            Err::<(), _>(refusal("BOUND_REACHED"))
        });
        let refused = first.await.expect_err("refused");
        assert_eq!((refused.code(), calls.get()), (Code::ResourceExhausted, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_repeated_for_10_s_however_long_each_call_takes() {
        for (took_ms, expected) in [(0, 101), (1_900, 6), (11_000, 1)] {
            let calls = Cell::new(0);
            let last = repeated(async || {
                calls.set(calls.get() + 1);
                tokio::time::advance(Duration::from_millis(took_ms)).await;
                Err::<(), _>(refusal("TOO_MANY_CHANGES"))
            });
            assert_eq!(last.await.expect_err("refused").code(), Code::ResourceExhausted);
            assert_eq!(calls.get(), expected, "{took_ms} ms each");
        }
    }
}
