//! The options of `rlaas simulate`.

use std::path::PathBuf;

use clap::{Args, value_parser};
use rlaas_simulation::simulation::{MaxShare, SimulationSettings};

use crate::cli::ConfigurationArgs;
use crate::cli::traffic::TrafficArgs;
use crate::clock::Micros;
use crate::rules::RuleSet;

/// Try rules on recorded traffic, before anybody is refused
///
/// Decides each request of access logs, or of lines of requests, at its time, with the engine of the server,
/// in memory. Nothing is started. Exit codes: 0 within --max-new-denials, 1 above, 2 if nothing was
/// decided or too much of the traffic could not be read, 64 for rules or options that can't be.
#[derive(Args, Debug)]
pub(in crate::cli) struct SimulateArgs {
    #[command(flatten)]
    pub(super) configuration: ConfigurationArgs,
    /// YAML file of the rules in force, to compare with; several as for --config
    #[arg(long, value_name = "FILE")]
    pub(super) against: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) traffic: TrafficArgs,
    /// Largest share of new denials, such as 0.1%: of all requests, and of those that each rule
    /// matched; new are those that --against allows, or all
    #[arg(long, value_name = "SHARE")]
    pub(super) max_new_denials: Option<MaxShare>,
    /// Decide the requests of this time and leave them out of the report, such as 1h
    #[arg(long, value_name = "D", default_value = "0s", value_parser = humantime::parse_duration)]
    warm_up: std::time::Duration,
    /// Most keys in the list of those that are refused most often
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u16).range(0..=1000))]
    top: u16,
    /// Print the report as JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Write the report as a page with charts, which needs no network
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}

impl SimulateArgs {
    /// Returns the settings of the simulation.
    pub(super) fn settings(
        &self,
        candidate: RuleSet,
        against: Option<RuleSet>,
    ) -> SimulationSettings {
        SimulationSettings {
            against,
            warm_up: Micros::from(self.warm_up),
            top: usize::from(self.top),
            ..SimulationSettings::new(candidate)
        }
    }
}
