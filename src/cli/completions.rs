//! `rlaas completions`: prints a script that completes commands and options in a shell.

use std::process::ExitCode;

use clap::Args;
use clap_complete::Shell;

use super::program;
use rlaas_cli::print;

#[derive(Args, Debug)]
pub(super) struct CompletionsArgs {
    /// Shell to print completions for
    shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program(), "rlaas", &mut script);
    print(&String::from_utf8_lossy(&script))
}
