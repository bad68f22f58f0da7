//! `rlaas journal`: what an operator decides about the folder of a journal.
//!
//! Exit codes: 0 accepted, 1 nothing is damaged there, 2 the folder can't be used.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use rlaas_limiter::journal::Journal;

use rlaas_cli::{EXIT_NO, EXIT_NO_RESPONSE};

#[derive(Args, Debug)]
pub(super) struct JournalArgs {
    #[command(subcommand)]
    command: JournalCommand,
}

#[derive(Debug, Subcommand)]
enum JournalCommand {
    /// Accept a damaged journal as it could be read; restart the server afterwards
    Accept {
        /// Folder of the journal, as in store.memory.journal.path
        folder: PathBuf,
    },
}

pub(super) fn run(args: &JournalArgs) -> ExitCode {
    let JournalCommand::Accept { folder } = &args.command;
    match Journal::accept(folder) {
        Ok(accepted) if accepted.is_empty() => {
            eprintln!("rlaas: nothing is damaged in {}", folder.display());
            ExitCode::from(EXIT_NO)
        }
        Ok(accepted) => {
            for path in accepted {
                println!("accepted: {}", path.display());
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("rlaas: {error}");
            ExitCode::from(EXIT_NO_RESPONSE)
        }
    }
}
