//! Stands for `administer` in a build without administration: its commands are refused by name.

use std::process::ExitCode;

use clap::ArgMatches;

/// The commands of other builds.
const LEFT_OUT: &[&str] = &[
    "audit", "ban", "events", "explain", "inspect", "key", "override", "project", "refund",
    "reset", "rule", "tail", "top", "unban",
];

pub(super) fn add_commands(program: clap::Command) -> clap::Command {
    program
}

pub(super) fn run(_matches: &ArgMatches) -> Option<ExitCode> {
    None
}

pub(super) fn is_left_out(command: &str) -> bool {
    LEFT_OUT.contains(&command)
}
