//! `rlaas simulate`: tries rules on recorded traffic.
//!
//! [`rlaas_simulation`] reads the traffic and decides it. This module has the options, the text
//! and the exit code.

mod options;
mod text;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use rlaas_simulation::SimulationPage;
use rlaas_simulation::simulation::{GateResult, Simulation, SimulationReport, SimulationSettings};
use rlaas_simulation::traffic::TrafficCounts;
use serde::Serialize;

pub(super) use self::options::SimulateArgs;
use super::traffic::no_result;
use super::{EXIT_CONFIG, EXIT_NO, EXIT_NO_RESPONSE, check_config, load};
use crate::config::Sources;
use crate::rules::RuleSet;
use rlaas_cli::{printable, printable_json};

/// The result of a run. Its JSON form is for scripts.
#[derive(Debug, Serialize)]
struct SimulateOutput<'a> {
    /// What the gate found; `None` without `--max-new-denials`.
    gate: Option<GateResult>,
    #[serde(flatten)]
    report: SimulationReport,
    traffic: &'a TrafficCounts,
    notes: Vec<String>,
}

pub(super) fn run(args: &SimulateArgs) -> ExitCode {
    match prepare(args) {
        Ok(settings) => simulate(args, settings),
        Err(code) => code,
    }
}

/// Loads the rules.
fn prepare(args: &SimulateArgs) -> Result<SimulationSettings, ExitCode> {
    let project = args.traffic.project.as_str();
    let candidate = rules(&args.configuration.clone().sources(), project)?;
    let against = match &args.against[..] {
        [] => None,
        files => Some(rules(&Sources::with_environment(files.to_vec(), Vec::new()), project)?),
    };
    // Rules of a project have keys of their own, by which shares of keys are enforced.
    let in_project = |rules: RuleSet| rules.in_project(project);
    Ok(args.settings(in_project(candidate), against.map(in_project)))
}

/// Loads the rules of a configuration for a project as `serve` does, and prints its warnings.
fn rules(sources: &Sources, project: &str) -> Result<RuleSet, ExitCode> {
    let config = load(sources)?;
    check_config::warn(&config);
    Ok(check_config::rules_of_project(config, project))
}

fn simulate(args: &SimulateArgs, settings: SimulationSettings) -> ExitCode {
    let mut traffic = match args.traffic.open() {
        Ok(traffic) => traffic,
        Err(error) => return fail(&error, EXIT_CONFIG),
    };
    let mut page = match args.html.as_deref().map(PageFile::create).transpose() {
        Ok(page) => page,
        Err(error) => return fail(&error, EXIT_CONFIG),
    };
    let mut simulation = Simulation::new(settings);
    for request in traffic.by_ref() {
        simulation.decide(&request);
    }
    let (report, traffic_counts) = (simulation.finish(), traffic.counts());
    let output = SimulateOutput {
        gate: args.max_new_denials.map(|max| GateResult::new(&report, max)),
        notes: report.notes(traffic_counts),
        report,
        traffic: traffic_counts,
    };
    if args.json {
        let json = serde_json::to_string(&output);
        println!("{}", printable_json(&json.expect("texts, numbers and booleans are JSON")));
    } else {
        println!("{}", text::text(&output));
    }
    let (report, gate, notes) = (&output.report, output.gate.as_ref(), &output.notes);
    if let Some(page) = &mut page
        && let Err(error) = page.write(&SimulationPage { report, gate, notes }.html())
    {
        return fail(&error, EXIT_NO_RESPONSE);
    }
    if output.report.is_empty() {
        return fail(&no_result("nothing was decided", traffic.counts()), EXIT_NO_RESPONSE);
    }
    match (args.traffic.check_read(traffic.counts()), &output.gate) {
        (Err(error), _) => fail(&error, EXIT_NO_RESPONSE),
        (Ok(()), Some(gate)) if !gate.is_within => ExitCode::from(EXIT_NO),
        (Ok(()), _) => ExitCode::SUCCESS,
    }
}

/// The file of the page. It is created before the traffic is read, so a wrong path fails at once.
struct PageFile<'a> {
    path: &'a Path,
    file: File,
}

impl<'a> PageFile<'a> {
    fn create(path: &'a Path) -> anyhow::Result<Self> {
        let file = File::create(path);
        let file = file.with_context(|| format!("--html: can't write {}", path.display()))?;
        Ok(Self { path, file })
    }

    fn write(&mut self, html: &str) -> anyhow::Result<()> {
        let written = self.file.write_all(html.as_bytes());
        written.with_context(|| format!("--html: can't write {}", self.path.display()))
    }
}

fn fail(error: &anyhow::Error, code: u8) -> ExitCode {
    eprintln!("rlaas: {}", printable(&format!("{error:#}")));
    ExitCode::from(code)
}
