//! Scripts that complete commands in a shell, and the man page.

use std::collections::BTreeSet;
use std::fs;

use rlaas_testkit::process::run;

#[test]
fn completions_name_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, script, error) = run(&["completions", shell]);
        assert_eq!((code, error.as_str()), (0, ""));
        for command in [
            "serve",
            "check",
            "check-config",
            "config",
            "health",
            "bench",
            "metrics",
            "completions",
        ] {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
    let (code, _, error) = run(&["completions", "tcsh"]);
    assert_eq!(code, 2);
    assert!(error.contains("bash"), "{error}");
}

#[test]
fn man_page_names_every_command_and_no_other() {
    let between = |text: &str, from: &str, to: &str| {
        let (_, rest) = text.split_once(from).expect("a section");
        rest.split_once(to).expect("its end").0.to_owned()
    };
    let (_, help, _) = run(&["--help"]);
    let commands = between(&help, "Commands:\n", "\n\n");
    let commands: BTreeSet<&str> =
        commands.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let page = fs::read_to_string("docs/man/rlaas.1").expect("a file of the project");
    let named = between(&page, ".SH COMMANDS\n", ".SH ").replace("\\-", "-");
    let named: BTreeSet<&str> =
        named.split(".TP\n.B ").skip(1).filter_map(|entry| entry.lines().next()).collect();
    assert_eq!(named, commands);
}
