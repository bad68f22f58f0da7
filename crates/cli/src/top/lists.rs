//! The keys of a rule with the highest counts, and the instances of the fleet, as tables.

use rlaas_proto::ratelimit::admin::v1::{
    ListInstancesRequest, ListInstancesResponse, TopKeysRequest, TopKind,
};

use super::{CountArg, TopArgs};
use crate::call::{Admin, CommandError, CommandOutput};
use crate::fields::{dynamic, messages};
use crate::output::table;
use crate::text::{self, project_id};

/// Returns the keys of a rule.
pub(super) async fn keys(
    admin: &mut Admin,
    rule: &str,
    args: &TopArgs,
) -> Result<CommandOutput, CommandError> {
    let request = TopKeysRequest {
        project_id: project_id(args.project.as_deref().unwrap_or_default()),
        rule: rule.to_owned(),
        kind: TopKind::from(args.kind).into(),
        window: humantime::parse_duration(&args.window).ok().and_then(|time| time.try_into().ok()),
        max_keys: args.max,
    };
    let response = admin.top_keys(request).await?;
    let columns = match args.kind {
        CountArg::Denied => "denied",
        CountArg::NearLimit => "near_limit",
        CountArg::Used => "used",
    };
    let (metadata, response, _) = response.into_parts();
    let covered = text::coverage(response.coverage.clone().unwrap_or_default());
    let message = dynamic("admin.v1.TopKeysResponse", &response);
    let text = if response.keys.is_empty() {
        format!("no key was counted\n{covered}")
    } else {
        let total = format!("{} of all keys together\n", response.total);
        table(columns, &messages(&message, "keys")) + &total + &covered
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
