//! `rlaas top`: the instances of the fleet.

use std::process::ExitCode;

use clap::Args;
use rlaas_proto::ratelimit::admin::v1::store_node::Breaker;
use rlaas_proto::ratelimit::admin::v1::{
    Instance, ListInstancesRequest, ListInstancesResponse, StoreNode,
};

use super::call::{Admin, CallArgs, CommandError, CommandOutput};
use super::table::{Column, Table};
use super::text;

#[derive(Args, Debug)]
pub(in crate::cli) struct TopArgs {
    /// Instances of the fleet
    #[arg(long, required = true)]
    instances: bool,
    #[command(flatten)]
    call: CallArgs,
}

pub(in crate::cli) fn run(args: &TopArgs) -> ExitCode {
    args.call.run(async |admin| {
        let response = instances(admin).await?;
        let text = fleet(&response);
        Ok(CommandOutput::new("ListInstancesResponse", &response, text))
    })
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
