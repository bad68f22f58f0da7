//! The options of `rlaas simulate`.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, value_parser};
use rlaas_simulation::simulation::{Gate, SimulationSettings};

use crate::cli::ConfigurationArgs;
use crate::cli::traffic::TrafficArgs;
use crate::clock::Micros;
use crate::rules::RuleSet;

/// Try rules on recorded traffic, before anybody is refused
///
/// Decides each request of access logs or recordings at its time, with the engine of the server,
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
    /// Key of a recording with hashed values, which is that of privacy.key-file: exact texts in rules
    /// are hashed alike; rules with patterns on hashed parts are reported as not decidable
    #[arg(long, value_name = "FILE")]
    pub(super) key_file: Option<PathBuf>,
    /// Most new denials, as a share of the requests that a rule matched: SHARE in all and for each
    /// rule, RULE=SHARE for one rule, such as 0.1% and login=1%; new are those that --against
    /// allows, or all
    #[arg(long, value_name = "[RULE=]SHARE")]
    max_new_denials: Vec<String>,
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
    /// Returns the gate.
    pub(super) fn gate(&self) -> anyhow::Result<Gate> {
        let values = self.max_new_denials.iter().map(String::as_str);
        Gate::new(values).context("--max-new-denials").map_err(|error| anyhow::anyhow!("{error:#}"))
    }

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
