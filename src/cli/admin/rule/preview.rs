//! `rlaas rule preview`: how the rules of a file would have decided the requests of the last minutes.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use rlaas_proto::ratelimit::admin::v1::{PreviewRequest, PreviewResponse, RulePreview, TopKey};

use super::source;
use crate::cli::admin::call::{CallArgs, CommandOutput};
use crate::cli::admin::change::span;
use crate::cli::admin::project::shown_id;
use crate::cli::admin::text;
use crate::cli::refuse;
use crate::cli::table::{Column, Table};
use crate::rule_messages;

#[derive(Args, Debug)]
pub(super) struct PreviewArgs {
    /// Rules file of one project; '-' is standard input. Its `unmatched` is not tried
    #[arg(long, short, value_name = "FILE")]
    file: PathBuf,
    /// Id of the project, unless the file names it; '_' is that of requests without a key
    /// [default: _]
    #[arg(long, value_name = "ID")]
    project: Option<String>,
    /// Without the other rules of the project, but for those of the server's files
    #[arg(long)]
    prune: bool,
    /// Requests of this time: 1m to telemetry.preview.keep [default: all that are kept]
    #[arg(long, value_name = "D", value_parser = window)]
    window: Option<Duration>,
    #[command(flatten)]
    call: CallArgs,
}

pub(super) fn run(args: &PreviewArgs) -> ExitCode {
    let file = match source::read(&args.file, args.project.as_deref()) {
        Ok(file) => file,
        Err(problems) => return refuse(&problems),
    };
    args.call.run_on_projects(async |projects| {
        let request = PreviewRequest {
            project_id: file.project.clone(),
            rules: file.content.rules.iter().map(rule_messages::message).collect(),
            prune: args.prune,
            window: args.window.map(span),
        };
        let response = projects.preview(request).await?;
        let text = to_text(&file.project, response.get_ref());
        let output = CommandOutput::new("PreviewResponse", response.get_ref(), text);
        Ok(output.with_warning_of(response.metadata()))
    })
}

fn to_text(project: &str, response: &PreviewResponse) -> String {
    let PreviewResponse { since, until, requests, total, rules, coverage, .. } = response;
    let total = total.clone().unwrap_or_default();
    let times = match requests {
        0 => String::new(),
        _ => format!(", {} to {}", text::time(since.as_ref()), text::time(until.as_ref())),
    };
    let requests = text::count(*requests, "request");
    let RulePreview { denied, denied_before, newly_denied, newly_allowed, .. } = total;
    format!(
        "project {}: {requests}{times}\n{denied} denied, {denied_before} before: {newly_denied} newly \
         denied, {newly_allowed} newly allowed\n{}{}{}{}",
        shown_id(project),
        table_of(rules),
        hardest_hit(rules),
        undecidable(&response.undecidable_rules),
        text::coverage(coverage.clone().unwrap_or_default()),
    )
}

/// Returns a line for each rule that applies to a request before or after.
fn table_of(rules: &[RulePreview]) -> String {
    if rules.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        Column::text("RULE"),
        Column::number("DECIDED"),
        Column::number("DENIED"),
        Column::number("BEFORE"),
        Column::number("NEWLY DENIED"),
        Column::number("NEWLY ALLOWED"),
        Column::number("LONGEST WAIT"),
    ]);
    for rule in rules {
        table.push([
            text::value(&rule.rule_name),
            rule.decided.to_string(),
            rule.denied.to_string(),
            rule.denied_before.to_string(),
            rule.newly_denied.to_string(),
            rule.newly_allowed.to_string(),
            text::wait(rule.longest_wait.as_ref()),
        ]);
    }
    table.lines()
}

/// Returns the keys with the most newly denied requests.
fn hardest_hit(rules: &[RulePreview]) -> String {
    let mut table =
        Table::new(&[Column::number("NEWLY DENIED"), Column::text("RULE"), Column::text("KEY")]);
    let keys = |rule: &RulePreview| !rule.hit_hardest.is_empty();
    if !rules.iter().any(keys) {
        return String::new();
    }
    for rule in rules {
        for TopKey { key, count, .. } in &rule.hit_hardest {
            let rule = text::value(&rule.rule_name);
            table.push([count.to_string(), rule, text::key(key.as_ref())]);
        }
    }
    table.lines()
}

/// Returns a line about the rules of which nothing is known.
fn undecidable(rules: &[String]) -> String {
    if rules.is_empty() {
        return String::new();
    }
    let names: Vec<_> = rules.iter().map(|name| text::value(name)).collect();
    format!("left out, because they look into hashed parts: {}\n", names.join(", "))
}

fn window(text: &str) -> Result<Duration, &'static str> {
    let parsed = humantime::parse_duration(text).ok();
    parsed.ok_or("must be a duration from 1m to telemetry.preview.keep, such as 5m")
}
