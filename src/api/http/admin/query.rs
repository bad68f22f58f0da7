//! Requests in the query of a URL: `rule=pay&pageSize=10`. A parameter is the path of a field, such
//! as `selector.request.userId`; that of a list may be given several times.

use axum::http::StatusCode;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value};

use super::json;
use crate::api::http::problem::Rejection;
use crate::api::http::query::decode;

/// Reads a message.
///
/// # Errors
///
/// A [`Rejection`] that names the parameter.
pub(super) fn read(query: &str, message: MessageDescriptor) -> Result<DynamicMessage, Rejection> {
    let mut members = Map::new();
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (path, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let not_text =
            || Rejection::body(StatusCode::BAD_REQUEST, "query: not percent-encoded UTF-8");
        let (path, value) =
            (decode(path).ok_or_else(not_text)?, decode(value).ok_or_else(not_text)?);
        set(&mut members, &message, &path, &path, value)?;
    }
    json::read(Value::Object(members).to_string().as_bytes(), message)
}

/// Sets the field at `rest`, the end of `path`.
fn set(
    members: &mut Map<String, Value>,
    message: &MessageDescriptor,
    path: &str,
    rest: &str,
    value: String,
) -> Result<(), Rejection> {
    let unknown = || Rejection::client_name(path, "unknown field");
    let (name, below) = match rest.split_once('.') {
        Some((name, below)) => (name, Some(below)),
        None => (rest, None),
    };
    let field = message.get_field_by_json_name(name).or_else(|| message.get_field_by_name(name));
    let field = field.ok_or_else(unknown)?;
    match (field.kind(), below) {
        (Kind::Message(inner), Some(below)) if !field.is_list() && !field.is_map() => {
            let member = members.entry(field.json_name()).or_insert_with(|| Map::new().into());
            let members = member.as_object_mut().ok_or_else(unknown)?;
            set(members, &inner, path, below, value)
        }
        (_, Some(_)) => Err(unknown()),
        (_, None) if field.is_list() => {
            let member =
                members.entry(field.json_name()).or_insert_with(|| Value::Array(Vec::new()));
            member.as_array_mut().ok_or_else(unknown)?.push(json_of(&field, value));
            Ok(())
        }
        (_, None) => match members.insert(field.json_name().to_owned(), json_of(&field, value)) {
            None => Ok(()),
            Some(_) => Err(Rejection::client_name(path, "given twice")),
        },
    }
}

/// Returns the value of a parameter in JSON, where numbers may be strings.
fn json_of(field: &FieldDescriptor, value: String) -> Value {
    match (field.kind(), value.as_str()) {
        (Kind::Bool, "true") => true.into(),
        (Kind::Bool, "false") => false.into(),
        (Kind::Enum(names), short) => {
            // `key` stands for USAGE_BY_KEY.
            let unset = names.default_value().name().to_owned();
            let full = unset.replace("UNSPECIFIED", &short.to_ascii_uppercase());
            if names.get_value_by_name(&full).is_some() { full.into() } else { value.into() }
        }
        _ => value.into(),
    }
}
