//! Without a terminal: the newest point as a table, or a line of JSON for each.

use std::io::{self, Write};

use rlaas_proto::ratelimit::admin::v1::{RuleStats, WatchStatsRequest, WatchStatsResponse};

use super::state::SAME_REQUESTS;
use crate::call::{Admin, CommandError, CommandOutput, to_json};
use crate::table::{Column, Table};
use crate::text;

/// Prints a line of JSON for each point, until the server ends the stream, or the
/// output is closed.
pub(super) async fn lines(
    admin: &mut Admin,
    request: WatchStatsRequest,
) -> Result<CommandOutput, CommandError> {
    let mut stream = admin.watch_stats(request).await?.into_inner();
    while let Some(point) = stream.message().await? {
        let line = to_json("admin.v1.WatchStatsResponse", &point) + "\n";
        let mut out = io::stdout().lock();
        if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    Ok(CommandOutput::printed())
}

/// Returns the newest point as a table, once there is one.
pub(super) async fn table(
    admin: &mut Admin,
    request: WatchStatsRequest,
) -> Result<CommandOutput, CommandError> {
    eprintln!("rlaas: not a terminal: one point (--json prints a line for each)");
    let mut stream = admin.watch_stats(request).await?.into_inner();
    let point = stream.message().await?.unwrap_or_default();
    Ok(CommandOutput::of_message("admin.v1.WatchStatsResponse", &point, shown(&point)))
}

fn shown(point: &WatchStatsResponse) -> String {
    let mut table = Table::new(&[
        Column::text("PROJECT"),
        Column::text("RULE"),
        Column::number("CANDIDATE"),
        Column::number("ALLOWED"),
        Column::number("NEAR"),
        Column::number("DENIED"),
        Column::number("SHADOW"),
        Column::number("UNITS"),
        Column::number("DEGRADED"),
    ]);
    let mut push = |rule: String, stats: &RuleStats| {
        let project = &stats.project_id;
        table.push([
            if project.is_empty() { "-".to_owned() } else { text::value(project) },
            rule,
            match stats.candidate {
                0 => "-".to_owned(),
                SAME_REQUESTS => "(rule)".to_owned(),
                number => number.to_string(),
            },
            stats.allowed.to_string(),
            stats.near_limit.to_string(),
            stats.denied.to_string(),
            stats.shadow_denied.to_string(),
            stats.units.to_string(),
            stats.degraded.to_string(),
        ]);
    };
    point.rules.iter().for_each(|stats| push(text::value(&stats.rule), stats));
    point.others.iter().for_each(|stats| push("(all others)".to_owned(), stats));
    let (since, until) = (text::time(point.since.as_ref()), text::time(point.until.as_ref()));
    let covered = text::coverage(point.coverage.clone().unwrap_or_default());
    table.lines() + &format!("{since} to {until}\n") + &covered
}
