//! Rules as messages and as specifications, the form that rules files have: each is converted into the
//! other, for the service and for the commands that write its rules; and rules in force as messages.
//!
//! What a message cannot say, a specification for it must not have: [`problems`] finds that.
//!
//! | file | subject |
//! | --- | --- |
//! | here | rules, field by field |
//! | `parts` | parts of rules: matchers, keys, overrides |
//! | `in_force` | rules in force as messages |
//! | `notation` | the two notations of resource and key |
//! | `problem` | problems with the paths of messages |

mod in_force;
mod notation;
mod parts;
mod problem;

pub use in_force::{
    calendar_window, descriptor_message, grant, mode, origin, rule_message, run_time_origin,
};
pub use notation::explicit;
pub use problem::in_message;

use std::collections::BTreeMap;

use rlaas_core::algorithm::{Algorithm, OnChange};
use rlaas_core::clock::Micros;
use rlaas_core::rules::spec::{
    CalendarSpec, Field, MatcherSpec, OverrideSpec, Problem, RuleSpec, StoreFailurePolicy,
};
use rlaas_core::rules::{EnforcedShare, RuleMode, Share};
use serde_json::Value;

use self::parts::{
    calendar, calendar_message, key_by, key_part, matcher, matchers, override_message,
    override_spec,
};
use crate::ratelimit::v1 as proto;
use crate::values::{self, duration, int64, micros};

/// Returns the rule of a message. A field that a specification cannot have is unreadable in it.
pub fn spec(rule: &proto::Rule) -> RuleSpec {
    notation::with_endpoint(RuleSpec {
        name: text(&rule.name),
        matcher: matcher(&rule.matchers),
        key_by: key_by(&rule.key_by),
        algorithm: algorithm(rule.algorithm),
        limit: units(rule.max_requests),
        window: rule.window.as_ref().map_or(Field::Unset, window),
        calendar: rule.calendar.as_ref().map(calendar).unwrap_or_default(),
        burst: units(rule.burst),
        cost: units(rule.cost.into()),
        post_paid: flag(rule.post_paid),
        max_debt: match rule.max_debt.map(u64::try_from) {
            None => Field::Unset,
            Some(units) => units.map_or(Field::Unreadable, Field::Set),
        },
        reservable: flag(rule.reservable),
        hold: rule.hold.as_ref().map_or(Field::Unset, window),
        max_holds: units(rule.max_holds.into()),
        mode: match proto::RuleMode::try_from(rule.mode) {
            Ok(proto::RuleMode::Unspecified | proto::RuleMode::Enforce) => Field::Unset,
            Ok(proto::RuleMode::Shadow) => Field::Set(RuleMode::Shadow),
            Ok(proto::RuleMode::Off) => Field::Set(RuleMode::Off),
            Err(_) => Field::Unreadable,
        },
        enforce: rule.enforce_ppm.map_or(Field::Unset, |ppm| {
            EnforcedShare::new(ppm).map_or(Field::Unreadable, Field::Set)
        }),
        on_change: match proto::OnChange::try_from(rule.on_change) {
            Ok(proto::OnChange::Unspecified) => Field::Unset,
            Ok(proto::OnChange::KeepUsed) => Field::Set(OnChange::KeepUsed),
            Ok(proto::OnChange::KeepLeft) => Field::Set(OnChange::KeepLeft),
            Ok(proto::OnChange::Scale) => Field::Set(OnChange::Scale),
            Ok(proto::OnChange::Reset) => Field::Set(OnChange::Reset),
            Err(_) => Field::Unreadable,
        },
        local_share: share(rule.local_share_ppm),
        on_store_failure: match proto::OnStoreFailure::try_from(rule.on_store_failure) {
            Ok(proto::OnStoreFailure::Unspecified) => Field::Unset,
            Ok(proto::OnStoreFailure::Error) => Field::Set(StoreFailurePolicy::Error),
            Ok(proto::OnStoreFailure::Allow) => Field::Set(StoreFailurePolicy::Allow),
            Ok(proto::OnStoreFailure::Deny) => Field::Set(StoreFailurePolicy::Deny),
            Ok(proto::OnStoreFailure::Local) => Field::Set(StoreFailurePolicy::Local),
            Err(_) => Field::Unreadable,
        },
        breaker_opens_rule: flag(rule.breaker_opens_rule),
        near_limit: share(rule.near_limit_ppm),
        overridable: flag(rule.overridable),
        overrides: rule.overrides.iter().map(override_spec).collect(),
        ..RuleSpec::default()
    })
}

/// Leaves out the fields that say what a rule does without them.
pub fn without_defaults(spec: RuleSpec) -> RuleSpec {
    let other_than = |field: Field<u64>, default: &Field<u64>| {
        if field == *default { Field::Unset } else { field }
    };
    let overrides = spec
        .overrides
        .into_iter()
        .map(|other| OverrideSpec { burst: other_than(other.burst, &other.limit), ..other });
    RuleSpec {
        algorithm: unless(spec.algorithm, &RuleSpec::DEFAULT_ALGORITHM),
        burst: other_than(spec.burst, &spec.limit),
        key_by: unless(spec.key_by, &vec!["user_id".to_owned()]),
        mode: unless(spec.mode, &RuleMode::Enforce),
        enforce: unless(spec.enforce, &EnforcedShare::ALL),
        local_share: unless(spec.local_share, &Share::HALF),
        on_store_failure: unless(spec.on_store_failure, &StoreFailurePolicy::Error),
        breaker_opens_rule: unless(spec.breaker_opens_rule, &false),
        post_paid: unless(spec.post_paid, &false),
        reservable: unless(spec.reservable, &false),
        overridable: unless(spec.overridable, &false),
        overrides: overrides.collect(),
        ..spec
    }
}

/// Returns the fields of a rule that are not at their defaults, but for its name, in the words of
/// rules files.
pub fn fields(spec: &RuleSpec) -> BTreeMap<String, Value> {
    let spec = RuleSpec { name: Field::Unset, ..without_defaults(spec.clone()) };
    match serde_json::to_value(&spec) {
        Ok(Value::Object(fields)) => fields.into_iter().collect(),
        _ => BTreeMap::new(),
    }
}

/// Returns a field, or an unset one if it has the default.
fn unless<T: PartialEq>(field: Field<T>, default: &T) -> Field<T> {
    if field.value() == Some(default) { Field::Unset } else { field }
}

/// Copies the fields that a mask names from one rule to another.
///
/// # Errors
///
/// The path that names no field that may be written.
pub fn merge(into: &RuleSpec, from: &RuleSpec, paths: &[String]) -> Result<RuleSpec, String> {
    let (mut merged, from) = (explicit(into), explicit(from));
    let is_named = |name: &str| paths.iter().any(|path| path == name);
    for path in paths {
        match path.as_str() {
            "algorithm" => merged.algorithm = from.algorithm,
            "max_requests" => merged.limit = from.limit,
            // Each takes the place of the other, if that is not named.
            "window" => {
                merged.window = from.window;
                if !from.window.is_unset() && !is_named("calendar") {
                    merged.calendar = CalendarSpec::default();
                }
            }
            "calendar" => {
                merged.calendar.clone_from(&from.calendar);
                if !from.calendar.is_empty() && !is_named("window") {
                    merged.window = Field::Unset;
                }
            }
            "burst" => merged.burst = from.burst,
            "cost" => merged.cost = from.cost,
            "post_paid" => merged.post_paid = from.post_paid,
            "reservable" => merged.reservable = from.reservable,
            "hold" => merged.hold = from.hold,
            "max_holds" => merged.max_holds = from.max_holds,
            "max_debt" => merged.max_debt = from.max_debt,
            "matchers" => merged.matcher = from.matcher.clone(),
            "key_by" => merged.key_by = from.key_by.clone(),
            "overrides" => merged.overrides.clone_from(&from.overrides),
            "on_store_failure" => merged.on_store_failure = from.on_store_failure,
            "local_share_ppm" => merged.local_share = from.local_share,
            "breaker_opens_rule" => merged.breaker_opens_rule = from.breaker_opens_rule,
            "mode" => merged.mode = from.mode,
            "enforce_ppm" => merged.enforce = from.enforce,
            "on_change" => merged.on_change = from.on_change,
            "near_limit_ppm" => merged.near_limit = from.near_limit,
            "overridable" => merged.overridable = from.overridable,
            _ => return Err(path.clone()),
        }
    }
    Ok(notation::with_endpoint(merged))
}

/// Returns the message of a rule. Fields that are not set stay so; those that no message can have,
/// which [`problems`] finds, are left out.
pub fn message(spec: &RuleSpec) -> proto::Rule {
    let flag = |field: &Field<bool>| field.value().copied().unwrap_or_default();
    let share = |field: &Field<Share>| field.value().map_or(0, |share| share.millionths());
    let spec = &explicit(spec);
    proto::Rule {
        name: spec.name.value().cloned().unwrap_or_default(),
        algorithm: spec.algorithm.value().map_or(0, |of| values::algorithm(*of).into()),
        max_requests: units_message(&spec.limit),
        window: spec.window.value().copied().map(duration),
        calendar: calendar_message(&spec.calendar),
        burst: units_message(&spec.burst),
        cost: spec.cost.value().map_or(0, |units| u32::try_from(*units).unwrap_or(u32::MAX)),
        post_paid: flag(&spec.post_paid),
        reservable: flag(&spec.reservable),
        hold: spec.hold.value().copied().map(duration),
        max_holds: spec.max_holds.value().map_or(0, |one| u32::try_from(*one).unwrap_or(u32::MAX)),
        max_debt: spec.max_debt.value().map(|units| int64(*units)),
        matchers: matchers(&spec.matcher),
        key_by: spec.key_by.value().into_iter().flatten().map(|part| key_part(part)).collect(),
        overrides: spec.overrides.iter().map(override_message).collect(),
        on_store_failure: failure_message(spec).into(),
        local_share_ppm: share(&spec.local_share),
        breaker_opens_rule: flag(&spec.breaker_opens_rule),
        mode: mode_message(spec).into(),
        enforce_ppm: spec.enforce.value().copied().map(EnforcedShare::millionths),
        on_change: in_force::on_change(spec.on_change.value().copied()).into(),
        near_limit_ppm: share(&spec.near_limit),
        overridable: flag(&spec.overridable),
        ..proto::Rule::default()
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

fn text(text: &str) -> Field<String> {
    if text.is_empty() { Field::Unset } else { Field::Set(text.to_owned()) }
}

fn flag(flag: bool) -> Field<bool> {
    if flag { Field::Set(true) } else { Field::Unset }
}

fn units(units: i64) -> Field<u64> {
    match u64::try_from(units) {
        Ok(0) => Field::Unset,
        Ok(units) => Field::Set(units),
        Err(_) => Field::Unreadable,
    }
}

fn share(ppm: u32) -> Field<Share> {
    match ppm {
        0 => Field::Unset,
        ppm => Share::new(ppm).map_or(Field::Unreadable, Field::Set),
    }
}

fn window(window: &prost_types::Duration) -> Field<Micros> {
    // What is cut off would be another window than the caller wrote.
    micros(window).filter(|_| window.nanos % 1_000 == 0).map_or(Field::Unreadable, Field::Set)
}

fn algorithm(value: i32) -> Field<Algorithm> {
    match proto::Algorithm::try_from(value) {
        Ok(proto::Algorithm::Unspecified) => Field::Unset,
        Ok(known) => {
            let name = known.as_str_name().to_lowercase();
            Algorithm::from_name(&name).map_or(Field::Unreadable, Field::Set)
        }
        Err(_) => Field::Unreadable,
    }
}

/// Returns 0 for a field that is not set.
fn units_message(field: &Field<u64>) -> i64 {
    field.value().map_or(0, |units| int64(*units))
}

fn mode_message(spec: &RuleSpec) -> proto::RuleMode {
    let of_shadow = |shadow| if shadow { RuleMode::Shadow } else { RuleMode::Enforce };
    let mode = spec.mode.value().copied().or(spec.shadow.value().copied().map(of_shadow));
    match mode {
        None => proto::RuleMode::Unspecified,
        Some(RuleMode::Enforce) => proto::RuleMode::Enforce,
        Some(RuleMode::Shadow) => proto::RuleMode::Shadow,
        Some(RuleMode::Off) => proto::RuleMode::Off,
    }
}

fn failure_message(spec: &RuleSpec) -> proto::OnStoreFailure {
    let of_fail_open =
        |open| if open { StoreFailurePolicy::Allow } else { StoreFailurePolicy::Error };
    let policy = spec.on_store_failure.value().copied();
    match policy.or(spec.fail_open.value().copied().map(of_fail_open)) {
        None => proto::OnStoreFailure::Unspecified,
        Some(StoreFailurePolicy::Error) => proto::OnStoreFailure::Error,
        Some(StoreFailurePolicy::Allow) => proto::OnStoreFailure::Allow,
        Some(StoreFailurePolicy::Deny) => proto::OnStoreFailure::Deny,
        Some(StoreFailurePolicy::Local) => proto::OnStoreFailure::Local,
    }
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
            mode: 99,
            enforce_ppm: Some(1_000_001),
            near_limit_ppm: 1_000_001,
            local_share_ppm: 1_000_001,
            on_change: 99,
            on_store_failure: 99,
            key_by: vec!["attributes.user_id".to_owned()],
            matchers: vec![part("user_id", &["a"]), part("user_id", &["b"]), part("other", &[])],
            overrides: vec![proto::RuleOverride {
                matchers: Vec::new(),
                grant: Some(proto::Grant { kind: Some(Kind::Limit(0)), burst: 0 }),
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
            "overrides[0].matchers",
            "window",
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
