//! Requests in the JSON mapping of protobuf, by the descriptors of their messages.
//!
//! A body is checked member by member before it is parsed as a whole, so that an error names the
//! member and what it must be, and never has its value.
//!
//! **Source:** <https://protobuf.dev/programming-guides/json/>.

use axum::http::StatusCode;
use prost_reflect::{
    Cardinality, DeserializeOptions, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor,
};
use serde_json::value::RawValue;

use crate::api::http::json_object::JsonObject;
use crate::api::http::problem::Rejection;
use crate::json_messages::is_object;

/// Reads a message. Names may be in camel case or as in the proto; `null` is the same as absent.
///
/// # Errors
///
/// A [`Rejection`] that names the member.
pub(super) fn read(body: &[u8], message: MessageDescriptor) -> Result<DynamicMessage, Rejection> {
    check(JsonObject::from_body(body)?, &message, "")?;
    let text = str::from_utf8(body).unwrap_or_default();
    parse(text, message).ok_or_else(|| Rejection::body(StatusCode::BAD_REQUEST, "body: not valid"))
}

fn parse(text: &str, message: MessageDescriptor) -> Option<DynamicMessage> {
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    let mut text = serde_json::Deserializer::from_str(text);
    let message = DynamicMessage::deserialize_with_options(message, &mut text, &options).ok()?;
    text.end().ok()?;
    Some(message)
}

/// Checks the members of a message. `path` is that of the message, with a dot at its end.
fn check(
    members: JsonObject<'_>,
    message: &MessageDescriptor,
    path: &str,
) -> Result<(), Rejection> {
    let mut given: Vec<FieldDescriptor> = Vec::new();
    for (name, value) in members.into_members() {
        let field =
            message.get_field_by_json_name(&name).or_else(|| message.get_field_by_name(&name));
        let Some(field) = field else {
            return Err(Rejection::client_name(&format!("{path}{name}"), "unknown field"));
        };
        if value.get() == "null" {
            continue;
        }
        let place = format!("{path}{}", field.json_name());
        let same_choice = |other: &FieldDescriptor| {
            let (own, other) = (field.containing_oneof(), other.containing_oneof());
            own.is_some_and(|own| !own.is_synthetic() && Some(own) == other)
        };
        if given.contains(&field) {
            return Err(rejected(format!("{place}: given twice")));
        }
        if let Some(other) = given.iter().find(|other| same_choice(other)) {
            let other = other.json_name();
            return Err(rejected(format!("{place} must not be set beside {other}")));
        }
        check_value(value, &field, &place)?;
        given.push(field);
    }
    Ok(())
}

fn check_value(value: &RawValue, field: &FieldDescriptor, place: &str) -> Result<(), Rejection> {
    match field.kind() {
        Kind::Message(inner) if is_object(&inner) && !field.is_map() => {
            if field.cardinality() != Cardinality::Repeated {
                return check(object(value, place)?, &inner, &format!("{place}."));
            }
            let values: Result<Vec<&RawValue>, _> = serde_json::from_str(value.get());
            let values = values.map_err(|_| rejected(format!("{place} must be a list")))?;
            for (index, value) in values.into_iter().enumerate() {
                let place = format!("{place}[{index}]");
                check(object(value, &place)?, &inner, &format!("{place}."))?;
            }
            Ok(())
        }
        _ => {
            if field.is_map() {
                object(value, place)?;
            }
            let alone = format!("{{\"{}\":{}}}", field.name(), value.get());
            let is_valid = parse(&alone, field.parent_message().clone()).is_some();
            let problem = || rejected(format!("{place} must be {}", valid(field)));
            if is_valid { Ok(()) } else { Err(problem()) }
        }
    }
}

fn object<'a>(value: &'a RawValue, place: &str) -> Result<JsonObject<'a>, Rejection> {
    let members: JsonObject<'a> = serde_json::from_str(value.get())
        .map_err(|_| rejected(format!("{place} must be an object")))?;
    match members.duplicate() {
        Some(name) => Err(Rejection::client_name(&format!("{place}.{name}"), "given twice")),
        None => Ok(members),
    }
}

/// Returns what the value of a field must be.
fn valid(field: &FieldDescriptor) -> String {
    let value = match field.kind() {
        Kind::Message(entry) if field.is_map() => {
            let values = entry.map_entry_value_field().kind();
            format!(
                "an object of {}",
                if values == Kind::String { "strings" } else { "whole numbers" }
            )
        }
        Kind::String => "a string".to_owned(),
        Kind::Bool => "true or false".to_owned(),
        Kind::Int32
        | Kind::Sint32
        | Kind::Sfixed32
        | Kind::Int64
        | Kind::Sint64
        | Kind::Sfixed64 => "a whole number".to_owned(),
        Kind::Uint32 | Kind::Fixed32 => format!("a whole number from 0 to {}", u32::MAX),
        Kind::Uint64 | Kind::Fixed64 => format!("a whole number from 0 to {}", u64::MAX),
        Kind::Double | Kind::Float => "a number".to_owned(),
        Kind::Bytes => "a string in base64".to_owned(),
        Kind::Enum(values) => {
            let names: Vec<String> = values.values().map(|value| value.name().to_owned()).collect();
            names.join(" or ")
        }
        Kind::Message(message) => match message.full_name() {
            "google.protobuf.Duration" => "a duration such as \"60s\"".to_owned(),
            "google.protobuf.Timestamp" => "a time such as \"2030-01-31T12:00:00Z\"".to_owned(),
            _ => "an object".to_owned(),
        },
    };
    if field.is_list() { format!("a list: each entry {value}") } else { value }
}

fn rejected(detail: String) -> Rejection {
    Rejection::body(StatusCode::BAD_REQUEST, detail)
}
