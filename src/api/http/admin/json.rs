//! Messages in the JSON mapping of protobuf, by their descriptors.
//!
//! A body is checked member by member before it is parsed as a whole, so that an error names the
//! member and what it must be, and never has its value.
//!
//! **Source:** <https://protobuf.dev/programming-guides/json/>.

use axum::http::StatusCode;
use prost_reflect::{
    Cardinality, DeserializeOptions, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor,
    ReflectMessage, SerializeOptions, Value,
};
use serde_json::value::RawValue;

use crate::api::http::json_object::JsonObject;
use crate::api::http::rejection::Rejection;

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

/// Writes a message. Members with default values are included, others that are not set are not, nor
/// are times that JSON can't express: other instances, or others who may write to the store, may
/// have put those there.
pub(super) fn write(message: &DynamicMessage) -> String {
    try_write(message).or_else(|| try_write(&expressible(message))).unwrap_or_else(|| "{}".into())
}

fn try_write(message: &DynamicMessage) -> Option<String> {
    let options =
        SerializeOptions::new().skip_default_fields(false).stringify_64_bit_integers(true);
    let mut text = Vec::new();
    let mut serializer = serde_json::Serializer::new(&mut text);
    message.serialize_with_options(&mut serializer, &options).ok()?;
    String::from_utf8(text).ok()
}

/// Returns the message without the times that JSON can't express.
fn expressible(message: &DynamicMessage) -> DynamicMessage {
    let mut left = message.clone();
    for (field, value) in message.fields() {
        let inner = |value: &Value| match value {
            Value::Message(inner) if is_object(&inner.descriptor()) => {
                Some(Value::Message(expressible(inner)))
            }
            Value::Message(inner) => try_write(inner).map(|_| value.clone()),
            other => Some(other.clone()),
        };
        let kept = match value {
            Value::List(values) => Some(Value::List(values.iter().filter_map(inner).collect())),
            value => inner(value),
        };
        match kept {
            Some(kept) => left.set_field(&field, kept),
            None => left.clear_field(&field),
        }
    }
    left
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
            let (one, other) = (field.containing_oneof(), other.containing_oneof());
            one.is_some_and(|one| !one.is_synthetic() && Some(one) == other)
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

/// Returns `true` if the message is an object in JSON, not one of those with a form of their own.
fn is_object(message: &MessageDescriptor) -> bool {
    !message.full_name().starts_with("google.protobuf.")
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
    let one = match field.kind() {
        _ if field.is_map() => "an object of strings".to_owned(),
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
    if field.is_list() { format!("a list: each entry {one}") } else { one }
}

fn rejected(detail: String) -> Rejection {
    Rejection::body(StatusCode::BAD_REQUEST, detail)
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use prost_types::{Duration, Timestamp};
    use rlaas_proto::ratelimit::admin::v1::{Instance, ListInstancesResponse};

    use super::super::POOL;
    use super::*;

    #[test]
    fn times_that_json_cannot_express_are_left_out() {
        let instance = |id: &str, seconds, nanos| Instance {
            id: id.to_owned(),
            started_at: Some(Timestamp { seconds, nanos }),
            reported_at: Some(Timestamp { seconds: 0, nanos: 0 }),
            check_p50: Some(Duration { seconds: -5, nanos }),
            ..Instance::default()
        };
        // The year 10000, and a fraction of the other sign.
        let instances = vec![instance("one", 253_402_300_800, 7), instance("two", 1, 0)];
        let response = ListInstancesResponse { instances, ..Default::default() };
        let response = response.encode_to_vec();
        let descriptor = POOL.get_message_by_name("ratelimit.admin.v1.ListInstancesResponse");
        let descriptor = descriptor.expect("a message of the service");
        let message = DynamicMessage::decode(descriptor, &*response).expect("a message");
        let json: serde_json::Value = serde_json::from_str(&write(&message)).expect("JSON");
        let [one, two] = &json["instances"].as_array().expect("a list")[..] else {
            panic!("two instances: {json}");
        };
        assert_eq!((one["id"].as_str(), two["id"].as_str()), (Some("one"), Some("two")));
        assert_eq!(one.get("startedAt"), None, "{json}");
        assert_eq!(two["startedAt"], "1970-01-01T00:00:01Z", "{json}");
        assert_eq!(one["reportedAt"], "1970-01-01T00:00:00Z", "{json}");
        assert_eq!(two["checkP50"], "-5s", "{json}");
    }
}
