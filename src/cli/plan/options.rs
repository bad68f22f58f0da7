//! The options of `rlaas plan`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use rlaas_simulation::limits::{LimitSettings, RefusalMeasure, SpoolSettings};
use rlaas_simulation::simulation::MaxShare;

use crate::algorithm::{Algorithm, Limit};
use crate::cli::traffic::TrafficArgs;
use crate::cli::{ConfigurationArgs, check_config, load};
use crate::clock::Micros;
use crate::rules::{Rule, RuleSet};

/// Algorithm that is tried without a configuration: that of the default rule.
const DEFAULT_ALGORITHM: Algorithm = Algorithm::SlidingWindowLog;
/// Windows that are tried without a configuration, in seconds.
const DEFAULT_WINDOWS: [u64; 3] = [1, 60, 3_600];

/// Find limits that would have refused few requests of recorded traffic
///
/// For each rule, algorithm and window: the smallest limit such that it and every larger one refuse
/// at most a share of the requests, or of the ids (those refused at least once). Each limit is tried
/// with the engine of the server. Without --config, limits for each user id. Exit codes: 0, 2 if no
/// request matched or too much of the traffic could not be read, 64 for rules or options that can't
/// be.
#[derive(Args, Debug)]
pub(in crate::cli) struct PlanArgs {
    #[command(flatten)]
    configuration: ConfigurationArgs,
    #[command(flatten)]
    pub(super) traffic: TrafficArgs,
    /// Rule to look at; several can be given [default: all that match]
    #[arg(long, value_name = "NAME")]
    pub(super) rule: Vec<String>,
    /// Algorithms to try [default: that of each rule]
    #[arg(long, value_name = "A", value_delimiter = ',', value_parser = algorithm)]
    algorithm: Vec<Algorithm>,
    /// Windows to try, such as 1s,1m,1h [default: that of each rule; 1s,1m,1h without --config]
    #[arg(long, value_name = "D", value_delimiter = ',', value_parser = humantime::parse_duration)]
    window: Vec<Duration>,
    /// Burst of every limit, for token-bucket, leaky-bucket and gcra [default: the limit]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    burst: Option<u64>,
    /// Largest shares that may be refused
    #[arg(long, value_name = "SHARE", value_delimiter = ',', default_values = ["0.1%", "1%", "5%"])]
    share: Vec<MaxShare>,
    /// What the shares are shares of
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["requests", "ids"])]
    of: Vec<OfArg>,
    /// Most temporary space for the traffic, in MiB; a request takes about 5 bytes
    #[arg(long, value_name = "MIB", default_value_t = 4096, value_parser = value_parser!(u32).range(1..))]
    spool_max: u32,
    /// Print the limits and the curves as JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Write a page with the table and the curves to this file
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Show progress even if standard error is not a terminal
    #[arg(long)]
    pub(super) progress: bool,
}

/// What a share is a share of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OfArg {
    /// Requests that are refused
    Requests,
    /// Ids of which at least one request is refused
    Ids,
}

impl PlanArgs {
    /// Returns the rules of the configuration, or one that limits each user id.
    pub(super) fn rules(&self) -> Result<RuleSet, ExitCode> {
        if !self.has_configuration() {
            let limit = Limit::new(1, Micros::from_secs(1)).expect("a valid limit");
            return Ok(RuleSet::new(Rule::new_default(DEFAULT_ALGORITHM, limit), Vec::new()));
        }
        let config = load(&self.configuration.clone().sources())?;
        check_config::warn(&config);
        Ok(check_config::rules_of_project(config, &self.traffic.project))
    }

    fn has_configuration(&self) -> bool {
        !self.configuration.config.is_empty() || !self.configuration.set.is_empty()
    }

    /// Returns what to find.
    pub(super) fn settings(&self) -> LimitSettings {
        let mut windows: Vec<Micros> = self.window.iter().map(|it| Micros::from(*it)).collect();
        if windows.is_empty() && !self.has_configuration() {
            windows = DEFAULT_WINDOWS.map(Micros::from_secs).to_vec();
        }
        let measure = |of: RefusalMeasure| match of {
            RefusalMeasure::Requests => OfArg::Requests,
            RefusalMeasure::Ids => OfArg::Ids,
        };
        let measures = RefusalMeasure::ALL.into_iter().filter(|of| self.of.contains(&measure(*of)));
        let mut shares = self.share.clone();
        shares.sort_unstable();
        shares.dedup();
        LimitSettings {
            algorithms: self.algorithm.clone(),
            windows,
            burst: self.burst,
            shares,
            measures: measures.collect(),
        }
    }

    /// Returns where the traffic is kept.
    pub(super) fn spool(&self) -> SpoolSettings {
        let max_bytes = u64::from(self.spool_max) << 20;
        SpoolSettings { directory: std::env::temp_dir(), max_bytes }
    }
}

fn algorithm(text: &str) -> Result<Algorithm, String> {
    Algorithm::from_name(text).ok_or_else(|| {
        let names: Vec<&str> = Algorithm::ALL.iter().map(|one| one.name()).collect();
        format!("must be {}", names.join(", "))
    })
}
