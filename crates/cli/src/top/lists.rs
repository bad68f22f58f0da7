//! The keys with the highest counts, the instances of the fleet, and points, as tables.

use std::io::{self, Write};

use rlaas_proto::ratelimit::admin::v1::{
    ListInstancesRequest, ListInstancesResponse, TopKeysRequest, WatchStatsRequest,
    WatchStatsResponse,
};

use super::{ALL_PROJECTS, NEWEST, TopArgs};
use crate::call::{Admin, CommandError, CommandOutput, to_json};
use crate::fields::{dynamic, messages};
use crate::output::table;
use crate::text::{self, project_id};

/// Returns the keys of a rule; of all rules without a name.
pub(super) async fn keys(
    admin: &mut Admin,
    rule: &str,
    args: &TopArgs,
) -> Result<CommandOutput, CommandError> {
    let project = if rule.is_empty() { ALL_PROJECTS } else { "" };
    let request = TopKeysRequest {
        project_id: project_id(args.project.as_deref().unwrap_or(project)),
        rule: rule.to_owned(),
        window: humantime::parse_duration(&args.window).ok().and_then(|time| time.try_into().ok()),
        max_keys: args.max,
        ..TopKeysRequest::default()
    };
    let (metadata, response, _) = admin.top_keys(request).await?.into_parts();
    let covered = text::coverage(response.coverage.clone().unwrap_or_default());
    let message = dynamic("admin.v1.TopKeysResponse", &response);
    let list = match &*args.kind {
        "near-limit" => response.near_limit,
        "used" => response.used,
        _ => response.denied,
    };
    let list = list.unwrap_or_default();
    let text = if list.keys.is_empty() {
        format!("no key was counted\n{covered}")
    } else {
        // It is not known of all rules.
        let total = Some(list.total).filter(|_| !rule.is_empty());
        let total = total.map(|total| format!("{total} of all keys together\n"));
        let total = total.unwrap_or_default();
        let keys = messages(&dynamic("admin.v1.TopKeyList", &list), "keys");
        table(&args.kind, &keys) + &total + &covered
    };
    Ok(CommandOutput::new(&message, text).with_warning_of(&metadata))
}

/// Returns all instances.
pub(super) async fn instances(admin: &mut Admin) -> Result<CommandOutput, CommandError> {
    let mut all = ListInstancesResponse::default();
    loop {
        let request = ListInstancesRequest { page_size: 1_000, page_token: all.next_page_token };
        let page = admin.list_instances(request).await?.into_inner();
        all.instances.extend(page.instances);
        all.next_page_token = page.next_page_token;
        if all.next_page_token.is_empty() {
            break;
        }
    }
    let message = dynamic("admin.v1.ListInstancesResponse", &all);
    let text = table("instances", &messages(&message, "instances")) + "* answers\n";
    Ok(CommandOutput::new(&message, text))
}

/// Prints a line of JSON for each point, until the server ends the stream, or the output is closed.
pub(super) async fn json_lines(
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

/// Returns the newest point, once there is one.
pub(super) async fn newest_point(
    admin: &mut Admin,
    args: &TopArgs,
) -> Result<CommandOutput, CommandError> {
    let request = args.request(Some(NEWEST));
    eprintln!("rlaas: not a terminal: one point (--json prints a line for each)");
    let mut stream = admin.watch_stats(request).await?.into_inner();
    let point = stream.message().await?.unwrap_or_default();
    let (since, until) = (text::time(point.since.as_ref()), text::time(point.until.as_ref()));
    let covered = text::coverage(point.coverage.clone().unwrap_or_default());
    let rates = rates(&point, args.rule.as_deref());
    let text = rules(&point) + &format!("{rates}\n{since} to {until}\n{covered}");
    Ok(CommandOutput::of_message("admin.v1.WatchStatsResponse", &point, text))
}

/// Returns a line with what a point has for each second: all requests, or the decisions of a rule.
#[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
pub(super) fn rates(point: &WatchStatsResponse, rule: Option<&str>) -> String {
    let at = |time: Option<prost_types::Timestamp>| time.map_or(0, |time| time.seconds);
    let seconds = at(point.until).saturating_sub(at(point.since)).max(1);
    let each_second = |count: u64| format!("{:.1}", count as f64 / seconds as f64);
    if rule.is_some() {
        let sum = point.sum();
        let allowed = each_second(sum.allowed.saturating_add(sum.near_limit));
        let denied = each_second(sum.denied.saturating_add(sum.shadow_denied));
        return format!("decisions of the rule per second: {allowed} allow, {denied} deny");
    }
    let all = point.request_sum();
    let [allowed, denied, failed] = [all.allowed, all.denied, all.failed].map(each_second);
    let share = all.denied as f64 * 100.0 / all.requests().max(1) as f64;
    let more = [
        (all.no_rule, "of the denied without a rule"),
        (all.fail_open, "let through (fail-open)"),
        (all.rejected, "not valid"),
    ];
    let more = more.into_iter().filter(|(count, _)| *count > 0);
    let more = more.map(|(count, what)| format!("; {} {what}", each_second(count)));
    let more = more.collect::<Vec<_>>().concat();
    format!(
        "requests per second: {allowed} allowed, {denied} denied ({share:.1} % of the three), {failed} failed{more}"
    )
}

/// Returns a table of the rules of a point.
pub(super) fn rules(point: &WatchStatsResponse) -> String {
    let message = dynamic("admin.v1.WatchStatsResponse", point);
    let mut rows = messages(&message, "rules");
    rows.extend(messages(&message, "others"));
    table("points", &rows)
}
