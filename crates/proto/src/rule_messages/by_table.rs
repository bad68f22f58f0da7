//! The fields of rules from and to the fields of messages that the table names, in the form that files have.
//!
//! So are the paths of fields in problems. Keys, matchers and overrides have other forms in messages, and are left to `parts`.

use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, ReflectMessage, Value as Sent,
};
use rlaas_core::clock::Micros;
use rlaas_core::rules::spec::{Field, FieldKind, Problem, RuleField, RuleSpec, ValueKind};
use rlaas_core::rules::{EnforcedShare, Share};
use serde_json::{Map, Value, from_value, to_value};

use crate::values::{duration, int64, micros};

/// Returns the fields that are set in a message. Those that files can't have are `null`.
pub(super) fn read(message: &DynamicMessage, fields: &[RuleField]) -> Map<String, Value> {
    let entry = |field: &RuleField| {
        let named = named(message, field).filter(|named| message.has_field(named))?;
        let value: Value = match (field.kind, &*message.get_field(&named)) {
            (FieldKind::Section(fields), Sent::Message(sent)) => read(sent, fields).into(),
            (FieldKind::Value(ValueKind::Percentages, _), Sent::List(sent)) => {
                let shares =
                    sent.iter().map(|sent| read_value(sent, &named, ValueKind::Percentage));
                shares.collect::<Option<Vec<Value>>>().map_or(Value::Null, Value::Array)
            }
            (FieldKind::Value(kind, _), sent) if !named.is_list() => {
                read_value(sent, &named, kind).unwrap_or_default()
            }
            _ => return None,
        };
        Some((field.key.to_owned(), value))
    };
    fields.iter().filter_map(entry).collect()
}

/// Writes the fields that are set and have a value.
pub(super) fn write(
    values: &Map<String, Value>,
    fields: &[RuleField],
    message: &mut DynamicMessage,
) {
    for field in fields {
        let (Some(value), Some(named)) = (values.get(field.key), named(message, field)) else {
            continue;
        };
        let sent = match (field.kind, value, named.kind()) {
            (FieldKind::Value(ValueKind::Percentages, _), value, _) => {
                let texts = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
                let shares = texts.iter().map(|text| written(text, &named, ValueKind::Percentage));
                shares.collect::<Option<Vec<Sent>>>().map(Sent::List)
            }
            _ if named.is_list() => None,
            (FieldKind::Section(fields), Value::Object(values), Kind::Message(section)) => {
                let mut below = DynamicMessage::new(section);
                write(values, fields, &mut below);
                Some(Sent::Message(below))
            }
            (FieldKind::Value(kind, _), value, _) => written(value, &named, kind),
            _ => None,
        };
        if let Some(sent) = sent {
            message.set_field(&named, sent);
        }
    }
}

fn named(message: &DynamicMessage, field: &RuleField) -> Option<FieldDescriptor> {
    message.descriptor().get_field_by_name(&field.name_in_messages()?)
}

/// Returns `None` for a value that files can't have.
fn read_value(sent: &Sent, field: &FieldDescriptor, kind: ValueKind) -> Option<Value> {
    match (sent, kind) {
        (Sent::Bool(flag), _) => Some((*flag).into()),
        (Sent::String(text), _) => Some(text.as_str().into()),
        (Sent::U32(ppm), ValueKind::Share) => to_value(Field::Set(Share::new(*ppm)?)).ok(),
        (Sent::U32(ppm), ValueKind::Percentage) => {
            to_value(Field::Set(EnforcedShare::new(*ppm)?)).ok()
        }
        (Sent::U32(number), _) => Some((*number).into()),
        (Sent::I64(number), _) => Some((*number).into()),
        (Sent::EnumNumber(number), _) => {
            let kind = field.kind();
            let values = kind.as_enum()?;
            Some(word(values, values.get_value(*number)?.name()).into())
        }
        (Sent::Message(message), _) => {
            let time: prost_types::Duration = message.transcode_to().ok()?;
            // What is cut off would be another time than the caller wrote.
            let time = micros(&time).filter(|_| time.nanos % 1_000 == 0)?;
            to_value(Field::Set(time)).ok()
        }
        _ => None,
    }
}

/// Returns `None` for a value that messages can't have. Numbers above the most of a field become that.
fn written(value: &Value, field: &FieldDescriptor, kind: ValueKind) -> Option<Sent> {
    let field_kind = field.kind();
    Some(match kind {
        ValueKind::Boolean => Sent::Bool(value.as_bool()?),
        ValueKind::Whole if field_kind == Kind::Int64 => Sent::I64(int64(value.as_u64()?)),
        ValueKind::Whole => Sent::U32(u32::try_from(value.as_u64()?).unwrap_or(u32::MAX)),
        ValueKind::Text => Sent::String(value.as_str()?.to_owned()),
        ValueKind::Words(_) => {
            let (values, text) = (field_kind.as_enum()?, value.as_str()?);
            Sent::EnumNumber(
                values.values().find(|value| word(values, value.name()) == text)?.number(),
            )
        }
        ValueKind::Duration => {
            let time: Field<Micros> = from_value(value.clone()).ok()?;
            let mut message = DynamicMessage::new(field_kind.as_message()?.clone());
            message.transcode_from(&duration(*time.value()?)).ok()?;
            Sent::Message(message)
        }
        ValueKind::Share => {
            let share: Field<Share> = from_value(value.clone()).ok()?;
            Sent::U32(share.value()?.millionths())
        }
        ValueKind::Percentage => {
            let share: Field<EnforcedShare> = from_value(value.clone()).ok()?;
            Sent::U32(share.value()?.millionths())
        }
        ValueKind::Texts | ValueKind::Percentages => return None,
    })
}

/// Returns a name of an enum's value as files have it: without the prefix of the enum, as the first
/// value has it.
fn word(values: &EnumDescriptor, name: &str) -> String {
    let first = values.default_value();
    let prefix = first.name().trim_end_matches("UNSPECIFIED");
    name.strip_prefix(prefix).unwrap_or(name).to_lowercase().replace('_', "-")
}

/// Returns a problem with the path of the field in the message. `rule` is the path of the rule, empty
/// if the field begins with that of a list of rules.
pub fn in_message(problem: Problem, rule: &str) -> Problem {
    let Problem { field, text } = problem;
    // `rules[3].limit` of a list, `limit` of one rule.
    let (list, own) = match field.split_once("].") {
        Some((list, own)) if field.starts_with("rules[") => (format!("{list}]"), own),
        _ if field == "rules" => return Problem { field: of_list(rule), text },
        _ => (rule.to_owned(), field.as_str()),
    };
    let (part, own) = match own.split_once("].") {
        Some((part, own)) if part.starts_with("overrides[") => (format!(".{part}]"), own),
        _ => (String::new(), own),
    };
    let is_of_key = text.contains("auth.api-keys");
    let is_override = !part.is_empty();
    let name = match own {
        "limit" | "burst" if is_override => format!("grant.{own}"),
        "unlimited" if is_override => "grant".to_owned(),
        "headroom" => "headroom_ppm".to_owned(),
        "endpoint" if is_of_key => "matchers".to_owned(),
        own if own.starts_with("match.") => "matchers".to_owned(),
        own => {
            let field = RuleSpec::FIELDS.iter().find(|field| field.key == own);
            let name = field.and_then(RuleField::name_in_messages);
            name.unwrap_or_else(|| own.replace('-', "_"))
        }
    };
    let text = match own {
        _ if is_of_key => text,
        "enforce" if text.contains('%') => "must be 0 to 1000000".to_owned(),
        "enforce" => "requires the mode ENFORCE".to_owned(),
        "notify-at" if text.contains('%') => "must be 1 to 5 of 10000 to 1000000".to_owned(),
        "hold-share" | "headroom" if text.contains('%') => "must be 10000 to 1000000".to_owned(),
        "local-share" | "near-limit" => "must be 1 to 1000000".to_owned(),
        "key-by" => {
            "must be user_id, resource, attributes.NAME or attributes.NAME|user_id, each once"
                .to_owned()
        }
        own if own.starts_with("match.") => {
            "must have a known part, once, and at least one text".to_owned()
        }
        _ => text,
    };
    Problem { field: format!("{list}{part}.{name}"), text }
}

fn of_list(rule: &str) -> String {
    if rule.is_empty() { "rules".to_owned() } else { rule.to_owned() }
}
