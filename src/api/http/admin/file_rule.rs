//! A rule to create, or to put in place of another, in the words of rules files, as scripts for RLaaS on GoRL have it: an object with
//! `endpoint` in place of a message.

use axum::http::StatusCode;
use prost::Message;
use prost_reflect::{DynamicMessage, MessageDescriptor};
use rlaas_proto::ratelimit::admin::v1::CreateRuleRequest;
use rlaas_proto::rule_messages;

use crate::api::http::json_object::JsonObject;
use crate::api::http::rejection::Rejection;
use crate::rules::spec::RuleSpec;

/// Reads the message of a body, a `CreateRuleRequest` or an `UpdateRuleRequest`, that has `endpoint`; `None` for others. A rule without a name is given
/// that of [`RuleSpec::name_by_endpoint`].
///
/// # Errors
///
/// A [`Rejection`] that names each field which is not valid.
pub(super) fn read(
    body: &[u8],
    message: &MessageDescriptor,
) -> Option<Result<DynamicMessage, Rejection>> {
    let mut members = JsonObject::from_body(body).ok()?.into_members();
    members.find(|(name, _)| name == "endpoint")?;
    let rejected = |detail: String| Rejection::body(StatusCode::BAD_REQUEST, detail);
    let mut rule: RuleSpec = match serde_json::from_slice(body) {
        Ok(rule) => rule,
        Err(error) => return Some(Err(rejected(format!("rule: {error}")))),
    };
    let has_made_name = rule.name_by_endpoint().is_some();
    let problems = rule.build().err().unwrap_or_else(|| rule_messages::problems(&rule));
    if !problems.is_empty() {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        return Some(Err(rejected(problems.join("; "))));
    }
    let mut rule = rule_messages::message(&rule);
    if has_made_name && message.name() == "UpdateRuleRequest" {
        // The path has it.
        rule.name.clear();
    }
    // Both requests have the rule in the same field.
    let request = CreateRuleRequest { rule: Some(rule), ..CreateRuleRequest::default() };
    let read = DynamicMessage::decode(message.clone(), &request.encode_to_vec()[..]);
    Some(read.map_err(|_| rejected("body: not valid".to_owned())))
}
