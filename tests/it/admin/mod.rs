//! Administration of keys, over gRPC and HTTP.

mod across_instances;
mod all_rules;
mod audit;
mod ban_key;
mod cluster;
mod decisions;
mod explain;
mod faults;
mod fleet_stats;
mod fleet_top_keys;
mod hashed_ids;
mod http;
mod hung_store;
mod instances;
pub(crate) mod journal;
mod journal_folder;
mod keys;
mod left_callers;
mod mode_faults;
pub(crate) mod modes;
mod openapi;
mod override_properties;
mod overrides;
mod refusals;
mod request_ids;
mod requests;
mod state_dir;
pub(crate) mod step_proxy;
mod store_nodes;
mod top_keys;
pub(crate) mod watch_stats;

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::admin_service_client::AdminServiceClient;
use rlaas_proto::ratelimit::admin::v1::selector::Target;
use rlaas_testkit::process::{Rlaas, request};
use tonic::transport::Channel;

pub(crate) type AdminClient = AdminServiceClient<Channel>;

async fn admin(server: &Rlaas) -> AdminClient {
    AdminClient::new(server.channel().await)
}

/// Selects the keys that a request of this user meets.
fn of_user(user_id: &str) -> Option<proto::Selector> {
    selector(Target::Request(request(user_id)))
}

#[expect(clippy::unnecessary_wraps, reason = "the field of a request is optional")]
fn selector(target: Target) -> Option<proto::Selector> {
    Some(proto::Selector { target: Some(target), rule: String::new(), project_id: String::new() })
}

/// Selects the key of a rule with these parts.
#[expect(clippy::unnecessary_wraps, reason = "the field of a request is optional")]
fn of_parts(rule: &str, parts: &[(&str, Option<&str>)]) -> Option<proto::Selector> {
    let part = |(name, value): &(&str, Option<&str>)| proto::KeyPart {
        name: (*name).to_owned(),
        value: value.map(str::to_owned),
    };
    let parts = parts.iter().map(part).collect();
    let target = Target::Key(proto::KeyRef { parts, ..proto::KeyRef::default() });
    Some(proto::Selector { target: Some(target), rule: rule.to_owned(), project_id: String::new() })
}

async fn inspect(
    client: &mut AdminClient,
    selector: Option<proto::Selector>,
) -> Result<Vec<proto::KeyState>, tonic::Status> {
    let request = proto::InspectRequest { selector };
    client.inspect(request).await.map(|response| response.into_inner().keys)
}

async fn reset(
    client: &mut AdminClient,
    selector: Option<proto::Selector>,
    request_id: &str,
) -> Result<proto::Change, tonic::Status> {
    let (reason, request_id) = ("a test".to_owned(), request_id.to_owned());
    let response = client.reset(proto::ResetRequest { selector, reason, request_id }).await?;
    Ok(response.into_inner().change.expect("a change"))
}

async fn refund(
    client: &mut AdminClient,
    selector: Option<proto::Selector>,
    units: u64,
    request_id: &str,
) -> Result<proto::Change, tonic::Status> {
    let (reason, request_id) = ("a test".to_owned(), request_id.to_owned());
    let request = proto::RefundRequest { selector, units, reason, request_id };
    Ok(client.refund(request).await?.into_inner().change.expect("a change"))
}
