//! `rlaas simulate`: tries rules on recorded traffic.
//!
//! [`rlaas_simulation`] reads the traffic and decides it. This module has the options, the text
//! and the exit code.

mod text;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use rlaas_simulation::SimulationPage;
use rlaas_simulation::simulation::{
    GateResult, MaxShare, Simulation, SimulationReport, SimulationSettings,
};
use rlaas_simulation::traffic::TrafficCounts;
use serde::Serialize;

use super::traffic::no_result;
use super::{EXIT_CONFIG, EXIT_NO, EXIT_NO_RESPONSE, check_config, load};
use crate::cli::ConfigurationArgs;
use crate::cli::traffic::TrafficArgs;
use crate::clock::Micros;
use crate::config::Sources;
use crate::rules::RuleSet;
use clap::{Args, value_parser};
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

/// Try rules on recorded traffic, before anybody is refused
///
/// Decides each request of access logs, or of lines of requests, at its time, with the engine of the server,
/// in memory. Nothing is started. Exit codes: 0 within --max-new-denials, 1 above, 2 if nothing was
/// decided or too much of the traffic could not be read, 64 for rules or options that can't be.
#[derive(Args, Debug)]
pub(in crate::cli) struct SimulateArgs {
    #[command(flatten)]
    configuration: ConfigurationArgs,
    /// YAML file of the rules in force, to compare with; several as for --config
    #[arg(long, value_name = "FILE")]
    against: Vec<PathBuf>,
    #[command(flatten)]
    traffic: TrafficArgs,
    /// Largest share of new denials, such as 0.1%: of all requests, and of those that each rule
    /// matched; new are those that --against allows, or all
    #[arg(long, value_name = "SHARE")]
    max_new_denials: Option<MaxShare>,
    /// Decide the requests of this time and leave them out of the report, such as 1h
    #[arg(long, value_name = "D", default_value = "0s", value_parser = humantime::parse_duration)]
    warm_up: std::time::Duration,
    /// Most keys in the list of those that are refused most often
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u16).range(0..=1000))]
    top: u16,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Write the report as a page with charts, which needs no network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl SimulateArgs {
    /// Returns the settings of the simulation.
    fn settings(&self, candidate: RuleSet, against: Option<RuleSet>) -> SimulationSettings {
        SimulationSettings {
            against,
            warm_up: Micros::from(self.warm_up),
            top: usize::from(self.top),
            ..SimulationSettings::new(candidate)
        }
    }
}
