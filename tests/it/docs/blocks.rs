//! Every block of commands runs, and prints what stands below each command; every configuration is
//! valid.
//!
//! - `sh`: a script that must succeed. A single command that serves goes on until the page ends.
//! - `console`: commands after `$ `, each with its output below; without output none is compared. In
//!   it `…` stands for any text, and a time such as `59.8s` for any time. With `numbers=vary` a number
//!   stands for any number.
//! - `yaml`: `rlaas check-config` accepts it. `file=NAME` names the file for later commands.
//! - another language with `file=NAME`: the file, for later commands.
//! - `needs=TOOL`: runs where the tool can be had, and is SKIPPED otherwise.
//! - `notrun=REASON`: does not run. The test lists these.
//!
//! Recipes are run by [`recipes`](super::recipes). In them 8000 stands for the port of a program, and there are also:
//!
//! - `sh,installs`: downloads and builds packages; without them the rest of the page is SKIPPED.
//! - `sh,serves`: one command, a program that listens on port 8000. It goes on until the next one.
//! - `console,server=killed`: the server is killed before the commands.

use std::io::Write;

use rlaas_testkit::tools::skipped;

use super::markdown::{Block, readme_and_book};
use super::recipes;
use super::session::Session;

/// Blocks that do not run, at most: a new one wants a reason why it can't.
const MAX_NOT_RUN: usize = 10;

#[derive(Default)]
pub(super) struct Report {
    pub(super) ran: usize,
    not_run: Vec<String>,
    pub(super) failed: Vec<String>,
}

#[test]
fn every_block_of_readme_and_book_does_what_it_says() {
    let mut report = Report::default();
    for page in readme_and_book().iter().filter(|page| !page.path.starts_with(recipes::FOLDER)) {
        let path = page.path.display().to_string();
        let mut session = Session::new();
        for block in page.blocks() {
            try_block(&mut session, &format!("{path}:{}", block.line), &block, &mut report);
        }
    }
    let Report { ran, not_run, failed } = report;
    let list = not_run.join("\n  ");
    let summary = format!("docs: {ran} blocks ran, {} did not:\n  {list}", not_run.len());
    let _nobody_reads_it = writeln!(std::io::stderr(), "{summary}");
    assert!(failed.is_empty(), "{} blocks:\n{}", failed.len(), failed.join("\n"));
    assert!(ran >= 30, "the reader of blocks finds only {ran} to run");
    assert!(not_run.len() <= MAX_NOT_RUN, "more than {MAX_NOT_RUN} do not run:\n  {list}");
}

pub(super) fn try_block(session: &mut Session, place: &str, block: &Block, report: &mut Report) {
    let run = match block.language.as_str() {
        "sh" => run_script,
        "console" => run_console,
        "yaml" => check_yaml,
        _ if block.option("file").is_some() => write_file,
        _ => return,
    };
    if let Some(reason) = block.option("notrun") {
        let failure = reason.trim().is_empty().then(|| format!("{place}: notrun without a reason"));
        report.failed.extend(failure);
        report.not_run.push(format!("{place}: {reason}"));
        return;
    }
    if let Some(tool) = block.option("needs")
        && let Err(why) = session.need(tool)
    {
        skipped(place, &why);
        report.not_run.push(format!("{place}: there is no {tool}"));
        return;
    }
    match run(session, block) {
        Ok(()) => report.ran += 1,
        Err(problem) => report.failed.push(format!("{place}: {problem}")),
    }
}

fn run_script(session: &mut Session, block: &Block) -> Result<(), String> {
    let is_one_command = block.text.trim().lines().count() == 1;
    let strict = if is_one_command { "" } else { "set -euo pipefail\n" };
    let script = format!("{strict}{}", block.text);
    let printed = if block.option("serves").is_some() {
        session.start_program(&script)
    } else {
        session.run(&script)
    };
    match printed.code {
        0 => Ok(()),
        code => Err(format!("exit code {code}\n{}", printed.text)),
    }
}

fn run_console(session: &mut Session, block: &Block) -> Result<(), String> {
    let commands = commands(&block.text)?;
    if block.option("server") == Some("killed") {
        session.kill_server();
    }
    let numbers_vary = block.option("numbers") == Some("vary");
    for (command, expected) in commands {
        let printed = session.run(&command);
        if printed.code != 0 {
            return Err(format!("{command}: exit code {}\n{}", printed.code, printed.text));
        }
        let form = |text: &str| comparable(text, numbers_vary);
        if !expected.is_empty() && !fits(&form(&expected), &form(&printed.text)) {
            return Err(format!("{command}\nexpected:\n{expected}\nprinted:\n{}", printed.text));
        }
    }
    Ok(())
}

/// Returns each command of a console with the output that stands below it.
fn commands(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut commands: Vec<(String, String)> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(command) = line.strip_prefix("$ ") {
            let mut command = command.to_owned();
            while command.ends_with('\\') {
                command.push('\n');
                command.push_str(lines.next().ok_or("a command goes on after the block")?);
            }
            commands.push((command, String::new()));
        } else {
            let (_, expected) = commands.last_mut().ok_or(format!("{line} has no command"))?;
            expected.push_str(line);
            expected.push('\n');
        }
    }
    Ok(commands)
}

fn check_yaml(session: &mut Session, block: &Block) -> Result<(), String> {
    let name = block.option("file").map_or(format!("block-{}.yaml", block.line), str::to_owned);
    session.write(&name, &block.text);
    let printed = session.run(&format!("rlaas check-config {name}"));
    match printed.code {
        0 => Ok(()),
        code => Err(format!("rlaas check-config: exit code {code}\n{}", printed.text)),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "as every kind of block")]
fn write_file(session: &mut Session, block: &Block) -> Result<(), String> {
    session.write(block.option("file").expect("a name"), &block.text);
    Ok(())
}

/// Replaces times, and with `numbers_vary` numbers too, by a word that is the same for all of them.
fn comparable(text: &str, numbers_vary: bool) -> String {
    let mut form = String::new();
    let mut rest = text.trim_end();
    while let Some(char) = rest.chars().next() {
        let digits = rest.find(|char: char| !char.is_ascii_digit() && char != '.');
        let after = &rest[digits.unwrap_or(rest.len())..];
        let is_word = form.ends_with(|before: char| before.is_alphanumeric());
        let unit = ["µs", "ms", "ns", "s"].into_iter().find(|unit| {
            let next = after.strip_prefix(unit).map(|after| after.chars().next());
            next.is_some_and(|next| !next.is_some_and(char::is_alphanumeric))
        });
        let is_number = char.is_ascii_digit() && !is_word;
        match unit {
            Some(unit) if is_number => {
                form.push_str("TIME");
                rest = &after[unit.len()..];
            }
            None if is_number && numbers_vary => {
                form.push_str("NUMBER");
                rest = after;
            }
            _ => {
                form.push(char);
                rest = &rest[char.len_utf8()..];
            }
        }
    }
    if numbers_vary {
        return form.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    form
}

/// Returns `true` if the text is the expected one, with any text in place of each `…`.
fn fits(expected: &str, text: &str) -> bool {
    let Some((first, others)) = expected.split_once('…') else {
        return expected == text;
    };
    let Some(mut rest) = text.strip_prefix(first.trim_end()) else {
        return false;
    };
    let mut parts: Vec<&str> = others.split('…').map(str::trim).collect();
    let last = parts.pop().expect("split returns at least one part");
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else {
            return false;
        };
        rest = after;
    }
    rest.trim_end().ends_with(last)
}

#[test]
fn output_fits_with_its_placeholders() {
    for (expected, text) in [
        ("a\nb", "a\nb"),
        ("a …, c", "a b, c"),
        ("…\nexit code 64", "wrong\nmore\nexit code 64"),
        ("a [ … ], … z", "a [\n 1\n],\n y\n z"),
    ] {
        assert!(fits(expected, text), "{expected} / {text}");
    }
    for (expected, text) in [("a", "a\nb"), ("a … c", "a b"), ("… c", "c d"), ("a…", "ba")] {
        assert!(!fits(expected, text), "{expected} / {text}");
    }
}

#[test]
fn times_and_numbers_are_comparable() {
    assert_eq!(comparable("in 57.216s (5)\n", false), "in TIME (5)");
    assert_eq!(
        comparable("\"59.9s\" q=5;w=60 1.2µs 3ms v1s", false),
        "\"TIME\" q=5;w=60 TIME TIME v1s"
    );
    assert_eq!(comparable("calls   10  5.0/s", true), "calls NUMBER NUMBER/s");
}

#[test]
fn commands_have_their_output() {
    let text = "$ one\n1\n2\n$ two \\\n    more\n";
    let expected = [("one", "1\n2\n"), ("two \\\n    more", "")];
    let expected = expected.map(|(command, out)| (command.to_owned(), out.to_owned()));
    assert_eq!(commands(text), Ok(expected.to_vec()));
    assert!(commands("1\n").is_err());
}
