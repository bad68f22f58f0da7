//! `rlaas top`: the keys with the highest counts, and the instances of the fleet.

use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use rlaas_proto::ratelimit::admin::v1::store_node::Breaker;
use rlaas_proto::ratelimit::admin::v1::{
    Coverage, Instance, ListInstancesRequest, ListInstancesResponse, StoreNode, TopKeysRequest,
    TopKeysResponse, TopKind,
};

use super::call::{Admin, CallArgs, CommandError, CommandOutput};
use super::text;
use crate::cli::table::{Column, Table};

#[derive(Args, Debug)]
#[command(group(ArgGroup::new("what").required(true).args(["keys", "instances"])))]
pub(in crate::cli) struct TopArgs {
    /// Keys of this rule with the highest counts
    #[arg(long, value_name = "RULE")]
    keys: Option<String>,
    /// Instances of the fleet
    #[arg(long)]
    instances: bool,
    /// What to count
    #[arg(long, value_enum, default_value = "denied", requires = "keys")]
    kind: CountArg,
    /// The last minute or hour
    #[arg(long, value_enum, default_value = "1m", requires = "keys")]
    window: WindowArg,
    /// Most keys: 1 to 128
    #[arg(long, value_name = "N", default_value_t = 20, requires = "keys",
          value_parser = clap::value_parser!(i32).range(1..=128))]
    max: i32,
    #[command(flatten)]
    call: CallArgs,
}

/// A count of keys.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum CountArg {
    /// Denied requests
    Denied,
    /// Requests allowed near the limit
    NearLimit,
    /// Units taken
    Used,
}

/// A time that is counted.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum WindowArg {
    /// The last minute
    #[value(name = "1m")]
    Minute,
    /// The last hour
    #[value(name = "1h")]
    Hour,
}

pub(in crate::cli) fn run(args: &TopArgs) -> ExitCode {
    args.call.run(async |admin| {
        if let Some(rule) = &args.keys {
            let kind = match args.kind {
                CountArg::Denied => TopKind::Denied,
                CountArg::NearLimit => TopKind::NearLimit,
                CountArg::Used => TopKind::Used,
            };
            let window = match args.window {
                WindowArg::Minute => Duration::from_mins(1),
                WindowArg::Hour => Duration::from_hours(1),
            };
            let request = TopKeysRequest {
                rule: rule.clone(),
                kind: kind.into(),
                window: prost_types::Duration::try_from(window).ok(),
                max_keys: args.max,
            };
            let response = admin.top_keys(request).await?;
            let output = CommandOutput::new(
                "TopKeysResponse",
                response.get_ref(),
                keys(response.get_ref(), args.kind),
            );
            Ok(output.with_warning_of(response.metadata()))
        } else {
            let response = instances(admin).await?;
            let text = fleet(&response);
            Ok(CommandOutput::new("ListInstancesResponse", &response, text))
        }
    })
}

fn keys(response: &TopKeysResponse, kind: CountArg) -> String {
    let covered = coverage(response.coverage.clone().unwrap_or_default());
    if response.keys.is_empty() {
        return format!("no key was counted\n{covered}");
    }
    let count = match kind {
        CountArg::Denied => "DENIED",
        CountArg::NearLimit => "NEAR LIMIT",
        CountArg::Used => "USED",
    };
    let mut table =
        Table::new(&[Column::number(count), Column::number("AT LEAST"), Column::text("KEY")]);
    for top in &response.keys {
        table.push([
            top.count.to_string(),
            top.count.saturating_sub(top.error).to_string(),
            text::key(top.key.as_ref()),
        ]);
    }
    let total = format!("{} of all keys together\n", response.total);
    table.lines() + &total + &covered
}

/// Returns a line that says which instances were counted, if there is more than one.
fn coverage(Coverage { instances, missing }: Coverage) -> String {
    let all = instances.len() + missing.len();
    if missing.is_empty() {
        return if all > 1 { format!("counted by {all} instances\n") } else { String::new() };
    }
    let missing: Vec<_> = missing.iter().map(|id| text::value(id)).collect();
    format!("counted by {} of {all} instances; missing: {}\n", instances.len(), missing.join(", "))
}

/// Reads all pages.
async fn instances(admin: &mut Admin) -> Result<ListInstancesResponse, CommandError> {
    let mut all = ListInstancesResponse::default();
    loop {
        let request = ListInstancesRequest { page_size: 1_000, page_token: all.next_page_token };
        let page = admin.list_instances(request).await?.into_inner();
        all.instances.extend(page.instances);
        all.next_page_token = page.next_page_token;
        if all.next_page_token.is_empty() {
            return Ok(all);
        }
    }
}

fn fleet(response: &ListInstancesResponse) -> String {
    let mut table = Table::new(&[
        Column::text("INSTANCE"),
        Column::word("VERSION"),
        Column::word("REPORTED"),
        Column::number("REV"),
        Column::number("CONNS"),
        Column::number("PER SECOND"),
        Column::number("P50"),
        Column::number("P99"),
        Column::text("STORE"),
    ]);
    for instance in &response.instances {
        let Instance { id, version, reported_at, revision, connections, .. } = instance;
        table.push([
            text::value(id) + if instance.answering { "*" } else { "" },
            text::value(version),
            if instance.missing { "missing".to_owned() } else { text::time(reported_at.as_ref()) },
            revision.to_string(),
            connections.to_string(),
            instance.decisions_per_second.to_string(),
            text::latency(instance.check_p50.as_ref()),
            text::latency(instance.check_p99.as_ref()),
            nodes(&instance.store_nodes),
        ]);
    }
    table.lines() + "* answers\n"
}

/// Returns the servers of a store that do not decide, or their number.
fn nodes(nodes: &[StoreNode]) -> String {
    let is_well = |node: &&StoreNode| node.available && node.breaker() == Breaker::Closed;
    let (well, ill): (Vec<_>, Vec<_>) = nodes.iter().partition(is_well);
    match (nodes, &*ill) {
        ([], _) => "memory".to_owned(),
        (_, []) => format!("{} up", text::count(well.len() as u64, "server")),
        (_, ill) => {
            let names: Vec<_> = ill.iter().map(|node| text::value(&node.address)).collect();
            format!("away: {}", names.join(", "))
        }
    }
}
