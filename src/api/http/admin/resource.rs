//! The resources of HTTP: their fields in paths, their etags, and their statuses; and rules in the form that
//! files have.
//!
//! **Source:** RFC 9110 sections 8.8.3, 13.1.1 and 15.3.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use prost_reflect::{DynamicMessage, Kind, MessageDescriptor, ReflectMessage, Value};

use crate::api::http::json_object::JsonObject;
use crate::api::http::problem::Rejection;
use crate::api::http::query::decode;
use crate::rules::spec::RuleSpec;
use prost::Message;
use rlaas_auth::{AdminApi, AdminRoute, Verb};
use rlaas_proto::ratelimit::admin::v1::CreateRuleRequest;
use rlaas_proto::rule_messages;

/// Sets the etag of a request from `If-Match`, if the request has one: `*` is any.
///
/// # Errors
///
/// A [`Rejection`] if the header is not one etag in quotes, or the body has another one.
pub(super) fn set_etag(headers: &HeaderMap, message: &mut DynamicMessage) -> Result<(), Rejection> {
    let Some(field) = message.descriptor().get_field_by_name("etag") else { return Ok(()) };
    let mut given = headers.get_all(header::IF_MATCH).iter();
    let (first, more) = (given.next(), given.next());
    let Some(given) = first else { return Ok(()) };
    let text = given.to_str().ok().filter(|_| more.is_none()).map(str::trim);
    if text == Some("*") {
        return Ok(());
    }
    let etag = text.and_then(|text| text.strip_prefix('"')?.strip_suffix('"'));
    let etag = etag.filter(|etag| !etag.is_empty() && !etag.contains('"'));
    let etag = etag.ok_or_else(|| rejected("If-Match must be one etag in quotes, or *"))?;
    let etag = Value::String(etag.to_owned());
    if message.has_field(&field) && *message.get_field(&field) != etag {
        return Err(rejected("etag must be unset, or that of If-Match"));
    }
    message.set_field(&field, etag);
    Ok(())
}

/// Makes a request one for a whole resource, which is created if it is missing.
///
/// # Errors
///
/// A [`Rejection`] if the request is for a part.
pub(super) fn set_whole(message: &mut DynamicMessage) -> Result<(), Rejection> {
    if message.has_field_by_name("update_mask") {
        return Err(rejected("updateMask must be unset: use PATCH for some fields"));
    }
    message.set_field_by_name("allow_missing", Value::Bool(true));
    Ok(())
}

/// Returns the status of a response.
pub(super) fn status(route: &AdminRoute, response: &DynamicMessage) -> StatusCode {
    let created = response.get_field_by_name("created").and_then(|created| created.as_bool());
    match route.verb {
        Verb::Delete => StatusCode::NO_CONTENT,
        _ if route.rpc.starts_with("Create") || created == Some(true) => StatusCode::CREATED,
        // A report is counted whatever its verdict says.
        _ if route.api == AdminApi::Reservations && is_denied(response) => {
            StatusCode::TOO_MANY_REQUESTS
        }
        _ => StatusCode::OK,
    }
}

fn is_denied(response: &DynamicMessage) -> bool {
    let verdict = response.get_field_by_name("verdict");
    let allowed =
        verdict.and_then(|verdict| verdict.as_message()?.get_field_by_name("allowed")?.as_bool());
    allowed == Some(false)
}

/// Returns the etag of the resource of a response.
pub(super) fn etag(response: &DynamicMessage) -> Option<HeaderValue> {
    let etag_of = |name: &str| {
        let resource = response.get_field_by_name(name)?;
        let etag = resource.as_message()?.get_field_by_name("etag")?;
        Some(etag.as_str()?.to_owned()).filter(|etag| !etag.is_empty())
    };
    let etag = etag_of("project").or_else(|| etag_of("rule"))?;
    HeaderValue::try_from(format!("\"{etag}\"")).ok()
}

fn rejected(detail: impl Into<String>) -> Rejection {
    Rejection::body(StatusCode::BAD_REQUEST, detail.into())
}

/// The project "", which can't be in a path.
const UNNAMED: &str = "_";

/// Sets the fields that the path of a request has.
///
/// # Errors
///
/// A [`Rejection`] if the path is not percent-encoded UTF-8, a number is none, or the body has
/// another value.
pub(super) fn set_fields(
    route: &AdminRoute,
    path: &str,
    message: &mut DynamicMessage,
) -> Result<(), Rejection> {
    for (field, value) in route.fields(path).unwrap_or_default() {
        // Queries have `+` for a space, paths have not.
        let text = decode(&value.replace('+', "%2B"));
        let text = text.ok_or_else(|| rejected(format!("path: {field} must be UTF-8")))?;
        let is_project = ["projectId", "project.id"].contains(&field);
        let text = if is_project && text == UNNAMED { String::new() } else { text };
        set(message, field, field, text)?;
    }
    Ok(())
}

/// Sets the field at `rest`, the end of `path`.
fn set(
    message: &mut DynamicMessage,
    path: &str,
    rest: &str,
    text: String,
) -> Result<(), Rejection> {
    let (name, below) = match rest.split_once('.') {
        Some((name, below)) => (name, Some(below)),
        None => (rest, None),
    };
    let field = message.descriptor().get_field_by_json_name(name);
    let field = field.expect("a test sets the fields of every route");
    if let Some(below) = below {
        let inner = message.get_field_mut(&field).as_message_mut().expect("a message");
        return set(inner, path, below, text);
    }
    let value = match field.kind() {
        Kind::Uint64 => {
            let number = text.parse().map_err(|_| rejected(format!("{path} must be a number")))?;
            Value::U64(number)
        }
        _ => Value::String(text),
    };
    if message.has_field(&field) && *message.get_field(&field) != value {
        return Err(rejected(format!("{path} must be unset, or that of the path")));
    }
    message.set_field(&field, value);
    Ok(())
}

/// Reads the message of a body, a `CreateRuleRequest` or an `UpdateRuleRequest`, that has `endpoint`; `None` for others. A rule without a name is given
/// that of [`RuleSpec::name_by_endpoint`].
///
/// # Errors
///
/// A [`Rejection`] that names each field which is not valid.
pub(super) fn read_file_rule(
    body: &[u8],
    message: &MessageDescriptor,
) -> Option<Result<DynamicMessage, Rejection>> {
    let mut members = JsonObject::from_body(body).ok()?.into_members();
    members.find(|(name, _)| name == "endpoint")?;
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
    Some(read.map_err(|_| rejected("body: not valid")))
}
