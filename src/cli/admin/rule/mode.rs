//! `rlaas rule mode`: whether a rule is enforced, for a time.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rlaas_proto::ratelimit::admin::v1::{SetModeRequest, SetModeResponse};
use rlaas_proto::ratelimit::v1::RuleMode;

use crate::cli::admin::call::{CallArgs, CommandOutput};
use crate::cli::admin::change::{ChangeArgs, span, time_to_live};
use crate::cli::admin::project::project_id;
use crate::cli::admin::text;

#[derive(Args, Debug)]
#[command(override_usage = "rlaas rule mode <RULE> <MODE> --for <D> --reason <TEXT> [OPTIONS]
       rlaas rule mode <RULE> configured --reason <TEXT> [OPTIONS]")]
pub(super) struct ModeArgs {
    /// Name of the rule; '*' is every rule
    rule: String,
    #[arg(value_enum)]
    mode: ModeArg,
    /// Time until the mode of the configuration is back: 1s to 30d, such as 1h
    #[arg(long = "for", value_name = "D", value_parser = mode_time)]
    #[arg(required_if_eq_any([("mode", "enforce"), ("mode", "shadow"), ("mode", "off")]))]
    ttl: Option<Duration>,
    /// Project; '_' without a key, '-' all, for the rule '*' only
    #[arg(long, value_name = "ID", default_value = "_")]
    project: String,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    call: CallArgs,
}

/// The mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModeArg {
    /// It decides, counts and can refuse requests
    Enforce,
    /// It decides and counts, but refuses no request
    Shadow,
    /// It is ignored
    Off,
    /// End a mode that was set before
    Configured,
}

impl From<ModeArg> for RuleMode {
    fn from(mode: ModeArg) -> Self {
        match mode {
            ModeArg::Enforce => Self::Enforce,
            ModeArg::Shadow => Self::Shadow,
            ModeArg::Off => Self::Off,
            ModeArg::Configured => Self::Unspecified,
        }
    }
}

pub(super) fn run(args: &ModeArgs) -> ExitCode {
    args.call.run(async |admin| {
        let request = SetModeRequest {
            project_id: project_id(&args.project),
            rule: args.rule.clone(),
            mode: RuleMode::from(args.mode).into(),
            ttl: args.ttl.map(span),
            reason: args.change.reason.clone(),
            request_id: args.change.request_id()?,
        };
        let response = admin.set_mode(request).await?;
        let text = to_text(args, response.get_ref());
        let output = CommandOutput::new("SetModeResponse", response.get_ref(), text);
        Ok(output.with_warning_of(response.metadata()))
    })
}

fn to_text(args: &ModeArgs, response: &SetModeResponse) -> String {
    let rule = if args.rule == "*" { "every rule".to_owned() } else { text::value(&args.rule) };
    let mode = match (args.mode.to_possible_value(), &response.ends_at) {
        (Some(mode), Some(end)) => format!("{} until {}", mode.get_name(), text::time(Some(end))),
        _ => "mode of the configuration".to_owned(),
    };
    let place = match (&response.everywhere_by, &response.coverage) {
        (Some(by), _) => format!("in force here, everywhere by {}", text::time(Some(by))),
        (None, Some(coverage)) if !coverage.missing.is_empty() => {
            let missing = coverage.missing.iter().map(|id| text::value(id)).collect::<Vec<_>>();
            format!("in force here alone, the store is away; not on {}", missing.join(", "))
        }
        (None, _) => "in force here alone, the store is away".to_owned(),
    };
    let replayed = if response.replayed { " (set before, under this request id)" } else { "" };
    format!("{rule}: {mode}; {place}{replayed}\n")
}

fn mode_time(text: &str) -> Result<Duration, &'static str> {
    const MAX: Duration = Duration::from_hours(30 * 24);
    let ttl = time_to_live(text).ok().filter(|ttl| *ttl <= MAX);
    ttl.ok_or("must be a duration from 1s to 30d, such as 1h")
}
