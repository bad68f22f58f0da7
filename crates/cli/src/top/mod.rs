//! `rlaas top`: requests, and decisions by rule, as they are made; the keys with the highest counts; the instances
//! of the fleet.

mod keyboard;
mod lists;
mod live;

use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{ArgGroup, Args};
use rlaas_proto::ratelimit::admin::v1::WatchStatsRequest;

use crate::call::{CallArgs, CommandOutput};
use crate::text::project_id;

/// The past that shows the newest point.
const NEWEST: Duration = Duration::from_secs(1);
/// Bounds of `--interval`.
const INTERVALS: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_mins(1);
/// Selects the rules of all projects.
const ALL_PROJECTS: &str = "-";
/// Most rules of a point.
const MAX_RULES: i32 = 1_000;

/// Kinds of counts of keys, with what they count.
const KINDS: [(&str, &str); 3] = [
    ("denied", "Denied requests"),
    ("near-limit", "Requests allowed near the limit"),
    ("used", "Units used"),
];

/// The options of `rlaas top`.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("what").args(["keys", "instances"])))]
pub struct TopArgs {
    /// Keys with the highest counts: of this rule, or of all
    #[arg(long, value_name = "RULE", num_args = 0..=1, default_missing_value = "")]
    keys: Option<String>,
    /// Instances of the fleet
    #[arg(long)]
    instances: bool,
    /// What to count
    #[arg(long, value_parser = PossibleValuesParser::new(kinds()), default_value = "denied",
          requires = "keys")]
    kind: String,
    /// The last 15 minutes or hour
    #[arg(long, value_parser = PossibleValuesParser::new(["15m", "1h"]), default_value = "15m",
          requires = "keys")]
    window: String,
    /// Most keys: 1 to 128
    #[arg(long, value_name = "N", default_value_t = 20, requires = "keys",
          value_parser = clap::value_parser!(i32).range(1..=128))]
    max: i32,
    /// Project; - is all, _ that without a key [default: -, _ with --keys RULE]
    #[arg(long, value_name = "ID", conflicts_with = "instances", allow_hyphen_values = true)]
    project: Option<String>,
    /// Only this rule
    #[arg(long, conflicts_with = "what")]
    rule: Option<String>,
    /// Time between points: 10s to 60s, from 1s with --this-instance
    #[arg(long, value_name = "D", conflicts_with = "what", value_parser = interval)]
    interval: Option<Duration>,
    /// Only decisions of the instance that answers
    #[arg(long, conflicts_with = "what")]
    this_instance: bool,
    #[command(flatten)]
    call: CallArgs,
}

fn kinds() -> [PossibleValue; 3] {
    KINDS.map(|(name, help)| PossibleValue::new(name).help(help))
}

/// Shows what was asked for. Returns the exit code.
pub fn run(args: &TopArgs) -> ExitCode {
    args.call.run(async |admin| {
        if let Some(rule) = &args.keys {
            return lists::keys(admin, rule, args).await;
        }
        if args.instances {
            return lists::instances(admin).await;
        }
        if args.call.json {
            return lists::json_lines(admin, args.request(None)).await;
        }
        if !live::has_terminal() {
            return lists::newest_point(admin, args).await;
        }
        live::run(admin, args).await?;
        Ok(CommandOutput::printed())
    })
}

impl TopArgs {
    fn request(&self, history: Option<Duration>) -> WatchStatsRequest {
        let duration = |time: Duration| prost_types::Duration::try_from(time).ok();
        WatchStatsRequest {
            project_id: project_id(self.project.as_deref().unwrap_or(ALL_PROJECTS)),
            rule: self.rule.clone().unwrap_or_default(),
            interval: self.interval.and_then(duration),
            this_instance: self.this_instance,
            max_rules: MAX_RULES,
            history: history.and_then(duration),
            ..WatchStatsRequest::default()
        }
    }
}

fn interval(text: &str) -> Result<Duration, &'static str> {
    let interval = humantime::parse_duration(text).ok();
    let interval = interval.filter(|interval| INTERVALS.contains(interval));
    interval.ok_or("must be a duration from 1s to 1m, such as 10s")
}
