//! The commands of `rlaas` that ask a running server, over [`rlaas_client`].
//!
//! Most call one method of the service, and are rows of tables: their words, the method, the
//! arguments with the paths of the fields that they set, and the columns of the answer. They are
//! filled, sent and printed by the descriptors of the messages; `--json` is the response in the JSON
//! mapping of protobuf. Commands with more to do than that are modules of their own: `check`, `reserve`,
//! `health`, `explain`, `top`, `tail` and `events`.
//!
//! This crate knows no store, no limiter and no file of rules. Those who run rules in their own
//! process, and read files, are in the program; they use the tables, texts and calls from here.

mod argument;
mod call;
mod check;
mod client;
mod codec;
mod command;
mod events;
mod explain;
mod explain_text;
mod fields;
mod health;
mod invocation;
mod keys;
mod lines;
mod look_up;
mod output;
mod parse;
mod reserve;
mod response;
mod show;
mod signals;
mod table;
mod tail;
pub mod text;
mod top;
mod transport_error;

pub use self::call::{
    CallArgs, CommandError, CommandOutput, ProjectClient, confirm, is_confirmed, print, repeated,
    report,
};
pub use self::check::{CheckArgs, ReportArgs, report as report_cost, run as check};
pub use self::client::{loopback, runtime};
pub use self::command::add_commands;
pub use self::events::{EventsArgs, run as events};
pub use self::explain::{ExplainArgs, ExplainedRequest, run as explain};
pub use self::explain_text::{WITHOUT_SERVER, check_lines, descriptor_lines};
pub use self::health::{HealthArgs, run as health};
pub use self::invocation::Invocation;
pub use self::lines::{RuleFields, change_counts, change_lines};
pub use self::reserve::{ReserveArgs, run as reserve};
pub use self::signals::Signals;
pub use self::table::{Column, Table};
pub use self::tail::{TailArgs, run as tail};
pub use self::text::{printable, printable_json};
pub use self::top::{TopArgs, run as top};

use std::process::ExitCode;

use tonic::Code;

/// Exit code of an answer that says no, and of a change that was not confirmed.
pub const EXIT_NO: u8 = 1;
/// Exit code without an answer.
pub const EXIT_NO_RESPONSE: u8 = 2;

/// Parses `KEY=VALUE`.
///
/// # Errors
///
/// What is required of it.
pub fn key_value(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("must be KEY=VALUE"),
    }
}

/// Prints what is wrong with arguments, and returns the exit code.
pub fn wrong_arguments(error: &clap::Error) -> ExitCode {
    let _closed = error.print();
    ExitCode::from(EXIT_NO_RESPONSE)
}

/// Prints an error, if it is one, and returns the exit code.
fn exit_code(done: anyhow::Result<bool>, if_not: u8) -> ExitCode {
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(if_not),
        Err(error) => {
            eprintln!("rlaas: {error:#}");
            ExitCode::from(EXIT_NO_RESPONSE)
        }
    }
}

/// Returns the name of a status code, as the protocol writes it.
fn code_name(code: Code) -> String {
    screaming(&format!("{code:?}"))
}

/// Returns `RULE_MODE` for `RuleMode`.
fn screaming(name: &str) -> String {
    let mut screaming = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !screaming.is_empty() {
            screaming.push('_');
        }
        screaming.extend(letter.to_uppercase());
    }
    screaming
}
