//! Values of fields as texts for a column.

use prost_reflect::Value;
use prost_types::{Duration, Timestamp};
use rlaas_proto::ratelimit::admin::v1::store_node::Breaker;
use rlaas_proto::ratelimit::admin::v1::{
    ApiKey, AuditEntry, Instance, KeyOverride, KeyRef, KeyState, ProjectRule, StoreNode, TopKey,
};
use rlaas_proto::ratelimit::v1::{CalendarWindow, Grant, PartMatcher, Rule};

use crate::fields::typed;
use crate::{look_up, text};

/// Returns a value as the text of a column.
pub(crate) type Show = fn(&Value) -> String;

/// Returns the function of this name.
///
/// # Panics
///
/// If there is none: a test reads all names.
pub(crate) fn by_name(name: &str) -> Show {
    match name {
        "value" => value,
        // Of several words; `-` if it is empty.
        "words" => |value| text::words(value.as_str().unwrap_or_default()),
        // `_` is that of requests without an API key.
        "project" => |value| text::project(value.as_str().unwrap_or_default()),
        "number" => number,
        "yes_or_no" => yes_or_no,
        "limit" => |value| text::limit(signed(value)),
        "units" => |value| text::units(signed(value)),
        "time" => |value| text::time(message::<Timestamp>(value).as_ref()),
        "wait" => |value| text::wait(message::<Duration>(value).as_ref()),
        "latency" => |value| text::latency(message::<Duration>(value).as_ref()),
        "key" => |value| text::key(message::<KeyRef>(value).as_ref()),
        "grant" => |value| text::grant(message::<Grant>(value).as_ref()),
        "name" => self::name,
        "phrase" => phrase,
        // For requests that no rule matches, in the words of options.
        "policy" => |value| self::name(value).trim_end_matches("-rule").to_owned(),
        "origin" => origin,
        "matchers" => matchers,
        "rule_of_override" => rule_of_override,
        "use_of_key" => |state| text::key_use(&message(state).unwrap_or_default()),
        "passes" => |state| message(state).as_ref().map_or_else(String::new, KeyState::retry_words),
        "resets" => |state| message(state).as_ref().map_or_else(String::new, KeyState::reset_words),
        "old_and_new" => old_and_new,
        "state_of_key" => |key| look_up::state(&message(key).unwrap_or_default()),
        "change_of_key" => |key| look_up::change(&message(key).unwrap_or_default()),
        "revocation" => revocation,
        "attributes_of_key" => {
            |key| text::words(&message::<ApiKey>(key).unwrap_or_default().attribute_words())
        }
        "instance" => instance,
        "reported" => reported,
        "at_least" => at_least,
        "nodes" => nodes,
        "rule_of_point" => rule_of_point,
        "rule_window" => rule_window,
        other => panic!("nothing shows {other}"),
    }
}

fn message<M: prost::Message + Default>(value: &Value) -> Option<M> {
    value.as_message().map(typed)
}

/// A text that is one word, in quotes if it is not.
fn value(value: &Value) -> String {
    text::value(value.as_str().unwrap_or_default())
}

pub(crate) fn number(value: &Value) -> String {
    match value {
        Value::U64(number) => number.to_string(),
        Value::U32(number) => number.to_string(),
        other => signed(other).to_string(),
    }
}

fn signed(value: &Value) -> i64 {
    value.as_i64().or_else(|| value.as_i32().map(i64::from)).unwrap_or_default()
}

fn yes_or_no(value: &Value) -> String {
    if value.as_bool() == Some(true) { "yes" } else { "no" }.to_owned()
}

/// The name of a value of an enum, such as `sliding-window-log`; `-` if it is not set.
fn name(value: &Value) -> String {
    phrase(value).replace(' ', "-")
}

/// The same in words, such as `run time`.
fn phrase(value: &Value) -> String {
    match value.as_str().unwrap_or_default() {
        "UNSPECIFIED" => "-".to_owned(),
        name => name.to_lowercase().replace('_', " "),
    }
}

/// The source of a rule of a project.
fn origin(value: &Value) -> String {
    let of_project: ProjectRule = message(value).unwrap_or_default();
    let kind = of_project.rule.unwrap_or_default().origin.unwrap_or_default().kind();
    match kind.as_str_name().trim_start_matches("KIND_") {
        _ if of_project.hidden => "hidden".to_owned(),
        name => name.to_lowercase().replace('_', " "),
    }
}

/// The window of a rule.
fn rule_window(value: &Value) -> String {
    let rule: Rule = message(value).unwrap_or_default();
    let length = || text::wait(rule.window.as_ref()) + rule.window_from().words();
    rule.calendar.as_ref().map_or_else(length, CalendarWindow::words)
}

/// The conditions of a rule.
fn matchers(value: &Value) -> String {
    let shown = |value: &Value| {
        let PartMatcher { part, any_of } = message(value).unwrap_or_default();
        let texts: Vec<_> = any_of.iter().map(|text| text::value(text)).collect();
        format!("{}={}", text::value(&part), texts.join("|"))
    };
    let all: Vec<_> = value.as_list().into_iter().flatten().map(shown).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}

/// The rule of an override, with its project if that has an id.
fn rule_of_override(value: &Value) -> String {
    let KeyOverride { project_id, rule, .. } = message(value).unwrap_or_default();
    let place = if project_id.is_empty() { String::new() } else { format!("{project_id}/") };
    text::value(&format!("{place}{rule}"))
}

/// What has changed of the keys of a change; of a change of rules the revision that it made.
fn old_and_new(value: &Value) -> String {
    let entry: AuditEntry = message(value).unwrap_or_default();
    match entry.revision {
        0 => text::words(&entry.old_and_new(text::units)),
        revision => format!("revision {revision}"),
    }
}

/// The command that ends an API key.
fn revocation(value: &Value) -> String {
    let ApiKey { id, project_id, .. } = message(value).unwrap_or_default();
    format!("rlaas key revoke {} {}", text::project(&project_id), text::value(&id))
}

/// The id of an instance, with a mark if it is the one that answers.
fn instance(value: &Value) -> String {
    let Instance { id, answering, .. } = message(value).unwrap_or_default();
    text::value(&id) + if answering { "*" } else { "" }
}

/// When an instance reported last.
fn reported(value: &Value) -> String {
    let Instance { missing, reported_at, .. } = message(value).unwrap_or_default();
    if missing { "missing".to_owned() } else { text::time(reported_at.as_ref()) }
}

/// The least count of a key.
fn at_least(value: &Value) -> String {
    let TopKey { count, error, .. } = message(value).unwrap_or_default();
    count.saturating_sub(error).to_string()
}

/// The rule of a row; the last row of a point is of all others together.
fn rule_of_point(value: &Value) -> String {
    match value.as_str() {
        Some("") => "(all others)".to_owned(),
        _ => self::value(value),
    }
}

/// The servers of a store that do not decide, or their number.
fn nodes(value: &Value) -> String {
    let nodes: Vec<StoreNode> = value.as_list().into_iter().flatten().filter_map(message).collect();
    let is_well = |node: &&StoreNode| node.available && node.breaker() == Breaker::Closed;
    let (well, ill): (Vec<_>, Vec<_>) = nodes.iter().partition(is_well);
    match (&*nodes, &*ill) {
        ([], _) => "memory".to_owned(),
        (_, []) => {
            let slowest = well.iter().filter_map(|node| node.p99.as_ref());
            let slowest = slowest.max_by_key(|p99| (p99.seconds, p99.nanos));
            let up = text::count(well.len() as u64, "server");
            format!("{up} up, p99 {}", text::latency(slowest))
        }
        (_, ill) => {
            let names: Vec<_> = ill.iter().map(|node| text::value(&node.address)).collect();
            format!("away: {}", names.join(", "))
        }
    }
}
