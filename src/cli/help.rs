//! The help of the program: its commands in groups, as in the man page.

use std::fmt::Write;

use clap::Command;

/// The groups, each with its commands.
const GROUPS: [(&str, &[&str]); 4] = [
    (
        "Server",
        &[
            "serve",
            "check-config",
            "config",
            "health",
            "journal",
            "metrics",
            "schema",
            "completions",
            "help",
        ],
    ),
    ("Decisions", &["check", "report", "reserve", "explain", "top", "tail", "events"]),
    ("Rules", &["rule", "simulate", "test"]),
    (
        "Administration",
        &["inspect", "reset", "refund", "ban", "unban", "override", "project", "key", "audit"],
    ),
];

/// Lists the commands of a program in groups. A command without a group is not shown: the test of the man
/// page finds it.
pub(super) fn grouped(program: Command) -> Command {
    let styles = program.get_styles();
    let (header, literal) = (*styles.get_header(), *styles.get_literal());
    let mut groups = String::new();
    for (title, names) in GROUPS {
        let mut lines = String::new();
        for name in names {
            let about = match program.find_subcommand(name) {
                Some(command) => command.get_about().map(ToString::to_string),
                // Clap adds it when it reads the arguments.
                None => (*name == "help").then(|| "Print the help of a command".to_owned()),
            };
            if let Some(about) = about {
                let _written = writeln!(lines, "  {literal}{name:<12}{literal:#}  {about}");
            }
        }
        if !lines.is_empty() {
            let _written = writeln!(groups, "{header}{title}:{header:#}\n{lines}");
        }
    }
    program.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{header}Options:{header:#}\n{{options}}"
    ))
}
