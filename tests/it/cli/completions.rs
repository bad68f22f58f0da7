//! Scripts that complete commands in a shell, and the man page.
//!
//! `UPDATE_REFERENCE=1 cargo test --test it man_page` writes the options and the version of the page anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;

use rlaas_testkit::process::run;

const PAGE: &str = "docs/man/rlaas.1";

/// Options that so many commands have are listed once.
const SHARED: usize = 10;

/// An argument or option, and its help.
type Entry = (String, String);

#[test]
fn completions_name_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, script, error) = run(&["completions", shell]);
        assert_eq!((code, error.as_str()), (0, ""));
        for command in
            ["serve", "check", "check-config", "config", "health", "metrics", "completions"]
        {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
    let (code, _, error) = run(&["completions", "tcsh"]);
    assert_eq!(code, 2);
    assert!(error.contains("bash"), "{error}");
}

#[test]
fn help_and_man_page_have_the_same_commands_in_the_same_groups() {
    let between = |text: &str, from: &str, to: &str| {
        let (_, rest) = text.split_once(from).expect("a section");
        rest.split_once(to).expect("its end").0.to_owned()
    };
    let (_, help, _) = run(&["--help"]);
    let help = between(&help, "[COMMAND]\n\n", "Options:\n");
    let mut shown: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for group in help.split_terminator("\n\n") {
        let (title, commands) = group.split_once(":\n").expect("a title");
        let names = commands.lines().filter_map(|line| line.split_whitespace().next());
        shown.insert(title, names.collect());
    }
    let page = fs::read_to_string(PAGE).expect("a file of the project");
    let page = between(&page, ".SH COMMANDS\n", ".SH ").replace("\\-", "-");
    let mut named: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for group in page.split(".SS ").skip(1) {
        let (title, commands) = group.split_once('\n').expect("a title");
        let entries = commands.split(".TP\n.B ").skip(1);
        named.insert(title, entries.filter_map(|entry| entry.lines().next()).collect());
    }
    assert_eq!(named, shown);
    let mut all: BTreeSet<&str> = shown.into_values().flatten().collect();
    let (_, script, _) = run(&["completions", "bash"]);
    let case = between(&script, "rlaas)\n", "\n            ;;");
    let (_, offered) = case.split_once("opts=\"").expect("what bash completes");
    all.extend(["-h", "-V", "--help", "--version", "--config", "--set"]);
    let offered: BTreeSet<&str> =
        offered.split('"').next().expect("words").split_whitespace().collect();
    assert_eq!(offered, all, "a command without a group");
}

#[test]
fn man_page_has_the_options_of_every_command_and_the_version() {
    let page = fs::read_to_string(PAGE).expect("a file of the project");
    let (_, after_title) = page.split_once('\n').expect("lines");
    let (before, rest) = after_title.split_once(".SH OPTIONS OF COMMANDS\n").expect("a section");
    let (_, after) = rest.split_once(".SH ").expect("its end");
    let version = env!("CARGO_PKG_VERSION");
    let written = format!(
        ".TH RLAAS 1 \"\" \"rlaas {version}\" \"User Commands\"\n{before}\
         .SH OPTIONS OF COMMANDS\n{}.SH {after}",
        options_of_commands()
    );
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::write(PAGE, &written).expect("a file that can be written");
        return;
    }
    let differs = page.lines().zip(written.lines()).find(|(kept, written)| kept != written);
    assert!(page == written, "UPDATE_REFERENCE=1 writes it anew; first difference: {differs:?}");
}

/// Returns the section of the page about the options of all commands.
fn options_of_commands() -> String {
    let mut commands = BTreeMap::new();
    collect(&[], &mut commands);
    let mut uses: BTreeMap<&Entry, usize> = BTreeMap::new();
    for entry in commands.values().flatten() {
        *uses.entry(entry).or_default() += 1;
    }
    let is_shared = |entry: &&Entry| uses[entry] >= SHARED;
    let mut section = ".SS Of most commands that ask a server\n".to_owned();
    let shared = uses.keys().copied().filter(is_shared);
    shared.for_each(|entry| write_entry(&mut section, entry));
    for (command, entries) in &commands {
        let mut own = entries.iter().filter(|entry| !is_shared(entry)).peekable();
        if own.peek().is_some() {
            writeln!(section, ".SS {}", roff(command)).expect("a string");
            own.for_each(|entry| write_entry(&mut section, entry));
        }
    }
    section
}

/// Adds the entries of a command and of those below it.
fn collect(command: &[&str], commands: &mut BTreeMap<String, Vec<Entry>>) {
    let (code, help, _) = run(&[command, &["-h"]].concat());
    assert_eq!(code, 0, "{command:?}");
    // The page has those of the program itself.
    if !command.is_empty() {
        commands.insert(command.join(" "), entries(&help));
    }
    let (_, usage) = help.split_once("Usage: ").expect("a usage");
    let (usage, listed) = usage.split_once('\n').unwrap_or((usage, ""));
    let (listed, _) = listed.split_once("Options:\n").unwrap_or((listed, ""));
    let has_commands = usage.ends_with("[COMMAND]") || usage.ends_with("<COMMAND>");
    let lines = listed.lines().filter(|line| has_commands && line.starts_with("  "));
    for name in lines.filter_map(|line| line.split_whitespace().next()) {
        if name != "help" {
            collect(&[command, &[name]].concat(), commands);
        }
    }
}

/// Returns the arguments and options that a help text lists, without `--help`.
fn entries(help: &str) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for line in help.lines() {
        let text = line.trim_start();
        let is_entry =
            matches!(line.len() - text.len(), 2..=6) && text.starts_with(['-', '<', '[']);
        if is_entry {
            let (name, help) = text.split_once("  ").unwrap_or((text, ""));
            entries.push((name.to_owned(), help.trim_start().to_owned()));
        } else if line.starts_with("       ")
            && let Some((_, help)) = entries.last_mut()
        {
            let space = if help.is_empty() { "" } else { " " };
            help.push_str(space);
            help.push_str(text);
        }
    }
    entries.retain(|(name, _)| name != "-h, --help");
    entries
}

fn write_entry(section: &mut String, (name, help): &Entry) {
    writeln!(section, ".TP\n.B {}\n{}", roff(name), roff(help)).expect("a string");
}

/// Escapes text for a line of the page.
fn roff(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-");
    if escaped.starts_with(['.', '\'']) { format!("\\&{escaped}") } else { escaped }
}
