//! The options of changes, the question before those that cannot be undone, and their output.

use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use prost::Message;
use ring::rand::{SecureRandom, SystemRandom};
use rlaas_proto::ratelimit::admin::v1::Change;
use tonic::Response;

use super::call::{CommandError, CommandOutput};
use super::keys;

/// Why a change is made, and its id.
#[derive(Args, Debug)]
pub(super) struct ChangeArgs {
    /// Reason, for the audit: 1 to 1024 bytes
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: String,
    #[command(flatten)]
    id: RequestIdArgs,
}

/// The id of a change.
#[derive(Args, Debug)]
pub(super) struct RequestIdArgs {
    /// Id of the change: the same again changes nothing [default: random]
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
}

/// For changes that cannot be undone.
#[derive(Args, Debug)]
pub(super) struct ConfirmArgs {
    /// Do not ask for confirmation on a terminal
    #[arg(long, short)]
    yes: bool,
}

impl ChangeArgs {
    /// Returns the id that was given, or a random one.
    pub(super) fn request_id(&self) -> anyhow::Result<String> {
        self.id.request_id()
    }
}

impl RequestIdArgs {
    /// Returns the id that was given, or a random one.
    pub(super) fn request_id(&self) -> anyhow::Result<String> {
        if let Some(id) = &self.request_id {
            return Ok(id.clone());
        }
        let mut random = [0; 16];
        SystemRandom::new().fill(&mut random).ok().context("no random numbers for --request-id")?;
        Ok(format!("{:032x}", u128::from_be_bytes(random)))
    }
}

impl ConfirmArgs {
    /// Returns `true` if nobody types the command, so that nobody could answer.
    pub(super) fn is_given(&self) -> bool {
        self.yes || !io::stdin().is_terminal()
    }

    /// Asks a person who types the command of a change that cannot be undone, unless the answer was
    /// given.
    pub(super) fn confirm(&self, question: &str) -> Result<(), CommandError> {
        self.confirm_write(&format!("{question} This cannot be undone."))
    }

    /// The same for a change that can be undone.
    pub(super) fn confirm_write(&self, question: &str) -> Result<(), CommandError> {
        if self.is_given() || Self::prompt(question)? {
            return Ok(());
        }
        Err(CommandError::NotConfirmed)
    }

    /// Asks on standard error, and returns `true` if the answer is yes.
    fn prompt(question: &str) -> anyhow::Result<bool> {
        let mut terminal = io::stderr();
        write!(terminal, "{question} [y/N] ")?;
        terminal.flush()?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }
}

/// Returns the output of a change: what it did, and the warning in the metadata of its response.
pub(super) fn output<M: Message>(
    name: &str,
    response: &Response<M>,
    change: Option<&Change>,
) -> CommandOutput {
    let text = change.map(keys::change).unwrap_or_default();
    CommandOutput::new(name, response.get_ref(), text).with_warning_of(response.metadata())
}

/// Returns the message of a time.
pub(super) fn span(time: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(time.subsec_nanos()).unwrap_or_default(),
    }
}

/// Parses the time of an override.
pub(super) fn time_to_live(text: &str) -> Result<Duration, &'static str> {
    const MAX: Duration = Duration::from_hours(366 * 24);
    let parsed = humantime::parse_duration(text).ok();
    let parsed = parsed.filter(|time| (Duration::from_secs(1)..=MAX).contains(time));
    parsed.ok_or("must be a duration from 1s to 366d, such as 2h")
}
