//! `rlaas test`: unit tests of rules. Requests at given times, and what must be decided.
//!
//! The requests take the way of the server's, through the limiter to a memory store, whose clock the
//! test sets. Nothing listens, and nothing waits.

mod case_run;
mod expect;
#[cfg_attr(not(feature = "admin"), path = "no_explanation.rs")]
mod explanation;
mod file;
mod one_or;
mod outcome;
mod report;
mod request;
mod rule_names;
mod step;
mod value;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use regex::Regex;
use serde_saphyr::Spanned;
use tokio::runtime::Runtime;

use self::case_run::{CaseResult, run_case};
use self::file::{TestCase, TestFile};
use self::rule_names::ReachedRules;
use super::{EXIT_CONFIG, EXIT_NO, EXIT_NO_RESPONSE, check_config};
use crate::clock::{Clock, Micros};
use rlaas_cli::print;
use rlaas_cli::printable;
use rlaas_cli::runtime;
use rlaas_cli::text::count;

#[derive(Args, Debug)]
pub(super) struct TestArgs {
    /// Test files: each names the files of its rules, and has cases of steps
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Run only the cases whose name this regular expression matches
    #[arg(long, value_name = "REGEX")]
    run: Option<String>,
    /// Also write the results to this file, as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

/// The cases of a file that ran, and how long each took.
struct FileRun<'a> {
    file: &'a TestFile,
    cases: Vec<(&'a Spanned<TestCase>, CaseResult, Micros)>,
    reached: ReachedRules,
}

/// Runs the cases: 0 if all pass, 1 if one fails, 2 if none was to run, 64 for files or options that
/// are not valid.
pub(super) fn run(args: &TestArgs) -> ExitCode {
    let (mut files, mut problems) = (Vec::new(), String::new());
    for path in &args.files {
        match TestFile::read(path) {
            Ok(file) => files.push(file),
            Err(of_file) => problems.push_str(&of_file),
        }
    }
    if !problems.is_empty() {
        eprint!("{problems}");
        return ExitCode::from(EXIT_CONFIG);
    }
    for file in &files {
        check_config::warn_left_out(&file.config, "");
    }
    run_files(args, &files).unwrap_or_else(|error| {
        eprintln!("rlaas: {error:#}");
        ExitCode::from(EXIT_CONFIG)
    })
}

/// Checks the options, and creates the file of `--junit`, before anything runs.
fn run_files(args: &TestArgs, files: &[TestFile]) -> anyhow::Result<ExitCode> {
    let names = args.run.as_deref().map(Regex::new).transpose().context("--run")?;
    let junit = args.junit.as_ref().map(File::create).transpose().context("--junit")?;
    let runtime = runtime()?;
    let runs: Vec<_> =
        files.iter().map(|file| FileRun::new(file, names.as_ref(), &runtime)).collect();
    print(&report::failures(&runs));
    // With --run nobody expects that all rules are reached.
    if names.is_none() {
        print(&unreached(&runs));
    }
    if let Some(mut file) = junit {
        file.write_all(report::document(&runs).as_bytes()).context("--junit")?;
    }
    Ok(finish(&runs))
}

impl<'a> FileRun<'a> {
    /// Runs the cases whose names match, and prints a line for each.
    fn new(file: &'a TestFile, names: Option<&Regex>, runtime: &Runtime) -> Self {
        print(&format!("{}\n", printable(&file.path)));
        let (clock, mut run) =
            (Clock::default(), Self { file, cases: Vec::new(), reached: ReachedRules::default() });
        for case in &file.cases {
            let name = &case.value.name;
            if names.is_some_and(|names| !names.is_match(name)) {
                continue;
            }
            let began = clock.now();
            let result = run_case(&case.value, &file.config, runtime, &mut run.reached);
            let word = if result.failures.is_empty() { "ok    " } else { "FAILED" };
            print(&format!("  {word}  {}\n", printable(name)));
            run.cases.push((case, result, clock.now().since(began)));
        }
        run
    }
}

/// Returns the lines about rules that no case of any file reached.
fn unreached(runs: &[FileRun<'_>]) -> String {
    let mut by_sources: BTreeMap<_, (_, ReachedRules)> = BTreeMap::new();
    for FileRun { file, reached, .. } in runs {
        let of_sources = by_sources.entry(&file.sources);
        of_sources.or_insert((&file.config, ReachedRules::default())).1.extend(reached);
    }
    let mut lines = String::new();
    for (sources, (config, reached)) in by_sources {
        let names = rule_names::unreached(config, &reached);
        if !names.is_empty() {
            lines.push_str(&report::unreached(sources, &names));
        }
    }
    lines
}

/// Prints the last line.
fn finish(runs: &[FileRun<'_>]) -> ExitCode {
    let results = || runs.iter().flat_map(|run| &run.cases).map(|(_, result, _)| result);
    let failed = results().filter(|result| !result.failures.is_empty()).count();
    let passed = results().count() - failed;
    let all: usize = runs.iter().map(|run| run.file.cases.len()).sum();
    let requests = count(results().map(|result| result.requests).sum(), "request");
    let (word, code) = match (passed, failed) {
        (0, 0) => ("none", EXIT_NO_RESPONSE),
        (_, 0) => ("ok", 0),
        _ => ("FAILED", EXIT_NO),
    };
    let left = match all - passed - failed {
        0 => String::new(),
        left => format!(", {left} filtered out"),
    };
    print(&format!("\n{word}: {passed} passed, {failed} failed{left}; {requests}\n"));
    if code == EXIT_NO_RESPONSE {
        eprintln!("rlaas: no case has a name that --run matches");
    }
    ExitCode::from(code)
}
