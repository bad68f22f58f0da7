//! Rules as messages and as specifications, the form that rules files have: each is converted into the
//! other, for the service and for the commands that write its rules; and rules in force as messages.
//!
//! What a message cannot say, a specification for it must not have: [`problems`] finds that.
//!
//! | file | subject |
//! | --- | --- |
//! | here | rules |
//! | `by_table` | their fields, by the table |
//! | `parts` | what messages have in other forms: matchers, keys, overrides |
//! | `in_force` | rules in force as messages |
//! | `notation` | the two notations of resource and key |
//! | `problem` | problems with the paths of messages |

mod by_table;
mod in_force;
mod notation;
mod parts;

pub use by_table::in_message;
pub use in_force::{
    calendar_window, descriptor_message, grant, hold_share, mode, origin, rule_message,
    run_time_origin, window_from,
};
pub use notation::explicit;

use std::collections::BTreeMap;
use std::sync::Arc;

use prost_reflect::DynamicMessage;
use rlaas_core::rules::RuleMode;
use rlaas_core::rules::spec::Value::Text;
use rlaas_core::rules::spec::{
    Field, FieldKind, MatcherSpec, OverrideSpec, Problem, RuleField, RuleSpec, StoreFailurePolicy,
};
use serde_json::{Map, Value};

use self::parts::{key_by, key_part, matcher, matchers, override_message, override_spec};
use crate::json;
use crate::ratelimit::v1 as proto;

/// Returns the rule of a message. A field that a specification cannot have is unreadable in it.
///
/// # Panics
///
/// Never: every message has a descriptor.
pub fn spec(rule: &proto::Rule) -> RuleSpec {
    let mut message = empty();
    message.transcode_from(rule).expect("the type of the message");
    let mut values = by_table::read(&message, RuleSpec::FIELDS);
    if let Some(Value::Object(calendar)) = values.get_mut("calendar") {
        // UNSPECIFIED is no unit.
        calendar.entry("unit").or_insert(Value::Null);
    }
    values.retain(|key, value| key != "mode" || *value != RuleMode::Enforce.name());
    notation::with_endpoint(RuleSpec {
        matcher: matcher(&rule.matchers),
        key_by: key_by(&rule.key_by),
        overrides: rule.overrides.iter().map(override_spec).collect(),
        ..with_values(&RuleSpec::default(), values)
    })
}

/// Returns a message of a rule without fields.
fn empty() -> DynamicMessage {
    let descriptor = json::POOL.get_message_by_name("ratelimit.v1.Rule");
    DynamicMessage::new(descriptor.expect("the name of a message"))
}

/// Leaves out the fields that say what a rule does without them.
pub fn without_defaults(spec: &RuleSpec) -> RuleSpec {
    let mut values = values_of(spec);
    for field in RuleSpec::FIELDS {
        let FieldKind::Value(_, read) = field.kind else { continue };
        let default = field.default.and_then(|default| read(Text(default.to_owned())));
        let default = default.and_then(|default| serde_json::to_value(default).ok());
        if default.is_some() && values.get(field.key) == default.as_ref() {
            values.remove(field.key);
        }
    }
    let spec = with_values(spec, values);
    let unless_limit = |burst: Field<u64>, limit: Field<u64>| {
        if burst == limit { Field::Unset } else { burst }
    };
    let overrides = spec
        .overrides
        .into_iter()
        .map(|other| OverrideSpec { burst: unless_limit(other.burst, other.limit), ..other });
    RuleSpec { burst: unless_limit(spec.burst, spec.limit), overrides: overrides.collect(), ..spec }
}

/// Returns the fields that are set, as files have them.
fn values_of(spec: &RuleSpec) -> Map<String, Value> {
    match serde_json::to_value(spec) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// Returns a rule with other fields.
fn with_values(spec: &RuleSpec, values: Map<String, Value>) -> RuleSpec {
    let read: RuleSpec = serde_json::from_value(values.into()).expect("fields of the table");
    RuleSpec { file: Arc::clone(&spec.file), revision: spec.revision, ..read }
}

/// Returns the fields of a rule that are not at their defaults, but for its name, in the words of
/// rules files.
pub fn fields(spec: &RuleSpec) -> BTreeMap<String, Value> {
    let spec = RuleSpec { name: Field::Unset, ..without_defaults(spec) };
    values_of(&spec).into_iter().collect()
}

/// Copies the fields that a mask names from one rule to another.
///
/// # Errors
///
/// The path that names no field that may be written.
pub fn merge(into: &RuleSpec, from: &RuleSpec, paths: &[String]) -> Result<RuleSpec, String> {
    let (mut merged, from) = (values_of(&explicit(into)), values_of(&explicit(from)));
    for path in paths {
        let is_named = |field: &&RuleField| {
            field.key != "name" && field.name_in_messages().as_ref() == Some(path)
        };
        let field = RuleSpec::FIELDS.iter().find(is_named).ok_or_else(|| path.clone())?;
        let Some(value) = from.get(field.key) else {
            merged.remove(field.key);
            continue;
        };
        merged.insert(field.key.to_owned(), value.clone());
        // Each takes the place of the other, if that is not named.
        let replaced = match field.key {
            "window" => "calendar",
            "calendar" => "window",
            _ => continue,
        };
        if paths.iter().all(|path| path != replaced) {
            merged.remove(replaced);
        }
    }
    Ok(notation::with_endpoint(with_values(into, merged)))
}

/// Returns the message of a rule. Fields that are not set stay so; those that no message can have,
/// which [`problems`] finds, are left out.
///
/// # Panics
///
/// Never: every message has a descriptor.
pub fn message(spec: &RuleSpec) -> proto::Rule {
    let mut spec = explicit(spec);
    // Messages have one notation of each.
    if let Some(shadow) = spec.shadow.value() {
        spec.mode = spec.mode.or(if *shadow { RuleMode::Shadow } else { RuleMode::Enforce });
    }
    if let Some(open) = spec.fail_open.value() {
        let policy = if *open { StoreFailurePolicy::Allow } else { StoreFailurePolicy::Error };
        spec.on_store_failure = spec.on_store_failure.or(policy);
    }
    let mut message = empty();
    by_table::write(&values_of(&spec), RuleSpec::FIELDS, &mut message);
    proto::Rule {
        matchers: matchers(&spec.matcher),
        key_by: spec.key_by.value().into_iter().flatten().map(|part| key_part(part)).collect(),
        overrides: spec.overrides.iter().map(override_message).collect(),
        ..message.transcode_to().expect("the type of the message")
    }
}

/// Returns the problems that a valid rule of a file has as a rule that is made at run time: what no
/// message can say.
pub fn problems(spec: &RuleSpec) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut add = |field: &str, text: &str| {
        problems.push(Problem { field: field.to_owned(), text: text.to_owned() });
    };
    if spec.limit == Field::Set(0) {
        add("limit", "must be at least 1: only rules files of the server can have 0");
    }
    let named = |matcher: &MatcherSpec| matcher.attributes.keys().all(|name| !name.is_empty());
    if !named(&spec.matcher) || !spec.overrides.iter().all(|other| named(&other.matcher)) {
        add("match.attributes", "must have names of at least one byte");
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ratelimit::v1::PartMatcher;
    use crate::ratelimit::v1::grant::Kind;

    fn problems(rule: &proto::Rule) -> Vec<String> {
        let problems = spec(rule).build().expect_err("problems");
        problems.into_iter().map(|problem| in_message(problem, "rule").field).collect()
    }

    #[test]
    fn problems_have_the_paths_of_fields_of_the_message() {
        let part = |part: &str, any_of: &[&str]| PartMatcher {
            part: part.to_owned(),
            any_of: any_of.iter().map(|text| (*text).to_owned()).collect(),
        };
        let rule = proto::Rule {
            name: "a b".to_owned(),
            algorithm: 99,
            max_requests: -1,
            window: Some(prost_types::Duration { seconds: -1, nanos: 0 }),
            burst: -1,
            max_debt: Some(-1),
            reservable: true,
            hold: Some(prost_types::Duration { seconds: -1, nanos: 0 }),
            max_holds: u32::MAX,
            hold_share_ppm: 9_999,
            mode: 99,
            enforce_ppm: Some(1_000_001),
            near_limit_ppm: 1_000_001,
            local_share_ppm: 1_000_001,
            on_change: 99,
            window_from: 99,
            on_store_failure: 99,
            key_by: vec!["attributes.user_id".to_owned()],
            matchers: vec![part("user_id", &["a"]), part("user_id", &["b"]), part("other", &[])],
            overrides: vec![proto::RuleOverride {
                matchers: Vec::new(),
                grant: Some(proto::Grant { kind: Some(Kind::Limit(0)), burst: 0 }),
                headroom_ppm: 9_999,
            }],
            ..proto::Rule::default()
        };
        let mut found = problems(&rule);
        found.sort();
        found.dedup();
        let expected = [
            "algorithm",
            "burst",
            "enforce_ppm",
            "hold",
            "hold_share_ppm",
            "key_by",
            "local_share_ppm",
            "matchers",
            "max_debt",
            "max_holds",
            "max_requests",
            "mode",
            "name",
            "near_limit_ppm",
            "on_change",
            "on_store_failure",
            "overrides[0].grant.limit",
            "overrides[0].headroom_ppm",
            "overrides[0].matchers",
            "window",
            "window_from",
        ];
        assert_eq!(found, expected.map(|field| format!("rule.{field}")));
        assert_eq!(
            problems(&proto::Rule::default()),
            ["rule.name", "rule.max_requests", "rule.window"]
        );
        let window = Some(prost_types::Duration { seconds: i64::MIN, nanos: i32::MIN });
        let (name, max_requests) = ("a".to_owned(), 1);
        let rule = proto::Rule { name, max_requests, window, ..proto::Rule::default() };
        assert_eq!(problems(&rule), ["rule.window"]);
    }

    #[test]
    fn mask_names_fields_that_may_be_written() {
        let from = proto::Rule { max_requests: 7, burst: 9, ..proto::Rule::default() };
        let merged = merge(&RuleSpec::default(), &spec(&from), &["max_requests".to_owned()]);
        let merged = merged.expect("a field");
        assert_eq!((merged.limit, merged.burst), (Field::Set(7), Field::Unset));
        let unit = proto::calendar_window::Unit::Month.into();
        let calendar = Some(proto::CalendarWindow { unit, ..proto::CalendarWindow::default() });
        let window = Some(prost_types::Duration { seconds: 60, nanos: 0 });
        let monthly = spec(&proto::Rule { calendar, ..proto::Rule::default() });
        let minute = spec(&proto::Rule { window, ..proto::Rule::default() });
        for (into, from, field) in [(&minute, &monthly, "calendar"), (&monthly, &minute, "window")]
        {
            let merged = merge(into, from, &[field.to_owned()]).expect("a field");
            assert_eq!((merged.window, &merged.calendar), (from.window, &from.calendar));
        }
        for path in ["name", "fail_open", "origin", "Window", ""] {
            let refused = merge(&merged, &spec(&from), &[path.to_owned()]);
            assert_eq!(refused.err().as_deref(), Some(path));
        }
    }
}
