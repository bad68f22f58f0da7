//! The keys of a rule with the highest counts, and the instances of the fleet, as tables.

use rlaas_proto::ratelimit::admin::v1::store_node::Breaker;
use rlaas_proto::ratelimit::admin::v1::{
    Instance, ListInstancesRequest, ListInstancesResponse, StoreNode, TopKeysRequest,
    TopKeysResponse, TopKind,
};

use super::{CountArg, TopArgs};
use crate::cli::admin::call::{Admin, CommandError, CommandOutput};
use crate::cli::admin::selection::project_id;
use crate::cli::admin::text;
use crate::cli::table::{Column, Table};

/// Returns the keys of a rule.
pub(super) async fn keys(
    admin: &mut Admin,
    rule: &str,
    args: &TopArgs,
) -> Result<CommandOutput, CommandError> {
    let request = TopKeysRequest {
        project_id: project_id(args.project.as_deref()),
        rule: rule.to_owned(),
        kind: TopKind::from(args.kind).into(),
        window: prost_types::Duration::try_from(std::time::Duration::from(args.window)).ok(),
        max_keys: args.max,
    };
    let response = admin.top_keys(request).await?;
    let text = key_list(response.get_ref(), args.kind);
    let output = CommandOutput::new("TopKeysResponse", response.get_ref(), text);
    Ok(output.with_warning_of(response.metadata()))
}

/// Returns all instances.
pub(super) async fn instances(admin: &mut Admin) -> Result<CommandOutput, CommandError> {
    let response = every_page(admin).await?;
    Ok(CommandOutput::new("ListInstancesResponse", &response, fleet(&response)))
}

fn key_list(response: &TopKeysResponse, kind: CountArg) -> String {
    let covered = text::coverage(response.coverage.clone().unwrap_or_default());
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

/// Reads all pages.
async fn every_page(admin: &mut Admin) -> Result<ListInstancesResponse, CommandError> {
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
