//! `rlaas tail`: decisions of one instance as they are made.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use clap::builder::PossibleValuesParser;
use rlaas_proto::ratelimit::admin::v1::{DecisionEvent, Outcome, WatchDecisionsRequest};

use crate::call::{CallArgs, CommandOutput, to_json};
use crate::response::detail;
use crate::text::{self, project_id};

/// The outcomes of a request.
const OUTCOMES: [&str; 5] = ["allowed", "near-limit", "denied", "shadow-denied", "degraded"];
/// All decisions, in parts of a million.
const ALL: u32 = 1_000_000;

/// The options of `rlaas tail`.
#[derive(Args, Debug)]
pub struct TailArgs {
    /// Only decisions in this project; - is all [default: that without a key]
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    project: Option<String>,
    /// Only decisions that meet this rule
    #[arg(long)]
    rule: Option<String>,
    /// Only decisions of this user
    #[arg(long)]
    user: Option<String>,
    /// allowed, near-limit, denied, shadow-denied or degraded; may be repeated
    #[arg(long, value_parser = PossibleValuesParser::new(OUTCOMES), value_name = "OUTCOME",
          hide_possible_values = true)]
    outcome: Vec<String>,
    /// Part of the decisions, such as 10%
    #[arg(long, value_name = "SHARE", default_value = "100%", value_parser = millionths)]
    sample: u32,
    #[command(flatten)]
    call: CallArgs,
}

/// Prints decisions until the server ends the stream, or nobody reads them any more.
pub fn run(args: &TailArgs) -> ExitCode {
    args.call.run(async |admin| {
        let outcomes = args.outcome.iter().filter_map(|name| {
            let name = name.to_uppercase().replace('-', "_");
            Outcome::from_str_name(&format!("OUTCOME_{name}")).map(i32::from)
        });
        let request = WatchDecisionsRequest {
            project_id: project_id(args.project.as_deref().unwrap_or_default()),
            rule: args.rule.clone().unwrap_or_default(),
            outcomes: outcomes.collect(),
            user_id: args.user.clone().unwrap_or_default(),
            sample_ppm: args.sample,
        };
        let mut stream = admin.watch_decisions(request).await?.into_inner();
        while let Some(response) = stream.message().await? {
            let mut lines = String::new();
            for event in &response.events {
                lines += &if args.call.json {
                    to_json("admin.v1.DecisionEvent", event)
                } else {
                    line(event)
                };
                lines.push('\n');
            }
            if response.dropped > 0 {
                let dropped = text::count(response.dropped, "decision");
                eprintln!("rlaas: {dropped} dropped, since they were not read fast enough");
            }
            let mut out = io::stdout().lock();
            if out.write_all(lines.as_bytes()).and_then(|()| out.flush()).is_err() {
                break;
            }
        }
        Ok(CommandOutput::printed())
    })
}

/// Returns one line about a decision.
pub(crate) fn line(event: &DecisionEvent) -> String {
    let time = event.decided_at.as_ref().map(ToString::to_string).unwrap_or_default();
    let key = text::key(event.key.as_ref());
    let key = match event.project_id.as_str() {
        "" => key,
        project => format!("{} {key}", text::value(project)),
    };
    let Some(verdict) = &event.verdict else { return format!("{time}  {key}") };
    let verb = if verdict.allowed { "allowed " } else { "denied  " };
    format!(
        "{time}  {verb} {key}: {} ({})",
        detail(verdict, event.cost),
        text::value(&verdict.rule)
    )
}

/// Parses a share, such as `10%` or `0.01%`.
fn millionths(text: &str) -> Result<u32, &'static str> {
    let wrong = "must be above 0% and at most 100%, such as 10%";
    let percent: f64 = text.strip_suffix('%').ok_or(wrong)?.parse().map_err(|_| wrong)?;
    let share = percent / 100.0 * f64::from(ALL);
    if !(1.0..=f64::from(ALL)).contains(&share) {
        return Err(wrong);
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 1,000,000")]
    Ok(share.round() as u32)
}
