//! Fields of messages by their paths, such as `key.expires_at`.

use prost::Message;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, ReflectMessage, Value};
use rlaas_proto::json::POOL;

use crate::parse::Input;
use crate::screaming;

/// Sets a field, adds to a list, or adds an entry to a map. The messages on the way are made.
///
/// # Panics
///
/// If there is no such field, or if the value is of another type: paths are those of tables that a
/// test checks.
pub(crate) fn set(message: &mut DynamicMessage, path: &str, input: &Input) {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    let descriptor = message.descriptor();
    let field = descriptor.get_field_by_name(first).expect("a field of the table");
    if !rest.is_empty() {
        let inner = message.get_field_mut(&field).as_message_mut().expect("a message on the way");
        return set(inner, rest, input);
    }
    match (message.get_field_mut(&field), input) {
        (Value::Map(map), Input::Pair(key, value)) => {
            map.insert(MapKey::String(key.clone()), Value::String(value.clone()));
        }
        (Value::List(list), Input::Pair(name, text)) => add_to_group(list, &field, name, text),
        (Value::List(list), input) => list.push(value(&field, input)),
        (single, input) => *single = value(&field, input),
    }
}

/// Adds a text to the message of this name in a list of names with their texts.
fn add_to_group(list: &mut Vec<Value>, field: &FieldDescriptor, name: &str, text: &str) {
    let Kind::Message(descriptor) = field.kind() else { return };
    let is_named = |value: &Value| {
        let name_of = value.as_message().and_then(|message| message.get_field_by_number(1));
        name_of.is_some_and(|found| found.as_str() == Some(name))
    };
    let at = list.iter().position(is_named).unwrap_or_else(|| {
        let mut group = DynamicMessage::new(descriptor);
        group.set_field_by_number(1, Value::String(name.to_owned()));
        list.push(Value::Message(group));
        list.len() - 1
    });
    let texts = list[at].as_message_mut().and_then(|group| group.get_field_by_number_mut(2));
    if let Some(texts) = texts.and_then(Value::as_list_mut) {
        texts.push(Value::String(text.to_owned()));
    }
}

/// Returns an input as a value of a field.
fn value(field: &FieldDescriptor, input: &Input) -> Value {
    match (input, field.kind()) {
        (Input::Flag(flag), _) => Value::Bool(*flag),
        (Input::Number(number), Kind::Int32) => {
            Value::I32(i32::try_from(*number).unwrap_or(i32::MAX))
        }
        (Input::Number(number), Kind::Int64) => {
            Value::I64(i64::try_from(*number).unwrap_or(i64::MAX))
        }
        (Input::Number(number), Kind::Uint32) => {
            Value::U32(u32::try_from(*number).unwrap_or(u32::MAX))
        }
        (Input::Number(number), _) => Value::U64(*number),
        (Input::Text(name), Kind::Enum(names)) => {
            let value = names.get_value_by_name(name).expect("a value of the table");
            Value::EnumNumber(value.number())
        }
        (Input::Message(bytes), Kind::Message(descriptor)) => Value::Message(
            DynamicMessage::decode(descriptor, &**bytes).expect("the bytes of this message"),
        ),
        (Input::Text(text), _) => Value::String(text.clone()),
        (Input::Pair(..) | Input::Message(_), _) => unreachable!("not a type of a single field"),
    }
}

/// Returns the value of a field, with an enum as the rest of its name after that of its type, such
/// as `ACTIVE`. An empty path is the message itself. `None`: a message on the way, or this one, is
/// not set.
pub(crate) fn get(message: &DynamicMessage, path: &str) -> Option<Value> {
    if path.is_empty() {
        return Some(Value::Message(message.clone()));
    }
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    let descriptor = message.descriptor();
    let field = descriptor.get_field_by_name(first).expect("a field of the table");
    if field.supports_presence() && !message.has_field(&field) {
        return None;
    }
    let value = message.get_field(&field);
    match (&*value, field.kind()) {
        (Value::Message(inner), _) if !rest.is_empty() => get(inner, rest),
        (Value::EnumNumber(number), Kind::Enum(names)) => {
            let name = names.get_value(*number).map_or(number.to_string(), |value| {
                let prefix = screaming(names.name()) + "_";
                let name = value.name();
                name.strip_prefix(&prefix).unwrap_or(name).to_owned()
            });
            Some(Value::String(name))
        }
        (value, _) => Some(value.clone()),
    }
}

/// Returns the field of a message as a text; empty unless it is one.
pub(crate) fn text(message: &DynamicMessage, path: &str) -> String {
    match get(message, path) {
        Some(Value::String(text)) => text,
        _ => String::new(),
    }
}

/// Returns the messages of a list, or the single message of a field.
pub(crate) fn messages(message: &DynamicMessage, path: &str) -> Vec<DynamicMessage> {
    let all = match get(message, path) {
        Some(Value::List(list)) => list,
        Some(value) => vec![value],
        None => Vec::new(),
    };
    all.iter().filter_map(|value| value.as_message().cloned()).collect()
}

/// Returns a message of a generated type, which has this name, such as `v1.CheckResponse`.
///
/// # Panics
///
/// If it has another name.
pub(crate) fn dynamic(name: &str, message: &impl Message) -> DynamicMessage {
    let descriptor = POOL.get_message_by_name(&format!("ratelimit.{name}"));
    let bytes = message.encode_to_vec();
    DynamicMessage::decode(descriptor.expect("the name of a message"), &*bytes)
        .expect("the bytes of this message")
}

/// Returns a message as its generated type.
pub(crate) fn typed<M: Message + Default>(message: &DynamicMessage) -> M {
    message.transcode_to().unwrap_or_default()
}
