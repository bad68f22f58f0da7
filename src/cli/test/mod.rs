//! `rlaas test`: unit tests of rules. Requests at given times, and what must be decided.
//!
//! The requests take the way of the server's, through the limiter to a memory store, whose clock the
//! test sets. Nothing listens, and nothing waits.

mod case_run;
mod decision;
mod expect;
mod explanation;
mod fields;
mod file;
mod junit;
mod outcome;
mod report;
mod request;
mod rule_names;
mod scalar;
mod step;
mod yaml;

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use regex::Regex;
use tokio::runtime::Runtime;

use self::case_run::run_case;
use self::file::TestFile;
use self::junit::JunitReport;
use self::report::{FailedCase, TestCounts};
use self::rule_names::{ReachedRules, RuleSources};
use super::client::runtime;
use super::{EXIT_CONFIG, EXIT_NO, EXIT_NO_RESPONSE, check_config};
use crate::clock::Clock;
use crate::config::Config;

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

/// The rules of one configuration, and those that its cases reached.
struct TestedRules<'a> {
    sources: &'a RuleSources,
    config: &'a Config,
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
    match TestRun::new(args) {
        Ok(run) => run.run(&files),
        Err(error) => {
            eprintln!("rlaas: {error:#}");
            ExitCode::from(EXIT_CONFIG)
        }
    }
}

/// What a run needs beside the files.
struct TestRun {
    runtime: Runtime,
    /// Selects the cases; `None`: all of them.
    names: Option<Regex>,
    junit: Option<File>,
}

impl TestRun {
    /// Checks the options, and creates the file of `--junit`, before anything runs.
    fn new(args: &TestArgs) -> anyhow::Result<Self> {
        let names = args.run.as_deref().map(Regex::new).transpose().context("--run")?;
        let junit = args.junit.as_ref().map(File::create).transpose();
        Ok(Self { runtime: runtime()?, names, junit: junit.context("--junit")? })
    }

    fn run(self, files: &[TestFile]) -> ExitCode {
        let clock = Clock::default();
        let (mut counts, mut failed) = (TestCounts::default(), Vec::new());
        let (mut junit, mut tested) = (JunitReport::default(), Vec::new());
        for file in files {
            report::begin_file(file);
            let mut reached = ReachedRules::default();
            for case in &file.cases {
                if self.names.as_ref().is_some_and(|names| !names.is_match(&case.name)) {
                    counts.filtered_out += 1;
                    continue;
                }
                let began = clock.now();
                let result = run_case(case, &file.config, &self.runtime, &mut reached);
                report::add_case(case, &result);
                junit.add(file, case, &result, clock.now().since(began));
                counts.requests += result.requests;
                if result.is_ok() {
                    counts.passed += 1;
                } else {
                    counts.failed += 1;
                    failed.push(FailedCase { file, case, result });
                }
            }
            add_reached(&mut tested, file, reached);
        }
        // With --run nobody expects that all rules are reached.
        let unreached = if self.names.is_none() { unreached(&tested) } else { Vec::new() };
        report::finish(&failed, &unreached, counts);
        self.exit_code(&junit, counts)
    }

    fn exit_code(self, junit: &JunitReport, counts: TestCounts) -> ExitCode {
        if let Some(mut file) = self.junit
            && let Err(error) = file.write_all(junit.document().as_bytes())
        {
            eprintln!("rlaas: --junit: {error}");
            return ExitCode::from(EXIT_CONFIG);
        }
        match counts {
            TestCounts { passed: 0, failed: 0, .. } => {
                eprintln!("rlaas: no case has a name that --run matches");
                ExitCode::from(EXIT_NO_RESPONSE)
            }
            TestCounts { failed: 0, .. } => ExitCode::SUCCESS,
            TestCounts { .. } => ExitCode::from(EXIT_NO),
        }
    }
}

/// Adds the rules that a file reached to those of other files with the same rules.
fn add_reached<'a>(tested: &mut Vec<TestedRules<'a>>, file: &'a TestFile, reached: ReachedRules) {
    let TestFile { sources, config, .. } = file;
    match tested.iter_mut().find(|other| other.sources == sources) {
        Some(same) => same.reached.merge(reached),
        None => tested.push(TestedRules { sources, config, reached }),
    }
}

fn unreached<'a>(tested: &[TestedRules<'a>]) -> Vec<(&'a RuleSources, Vec<String>)> {
    let missing = tested.iter().map(|of| (of.sources, of.reached.missing(of.config)));
    missing.filter(|(_, names)| !names.is_empty()).collect()
}
