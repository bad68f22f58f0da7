//! Rules in messages: read as specifications, of which each problem has the path of its field.

use rlaas_proto::ratelimit::v1 as proto;
use rlaas_proto::ratelimit::v1::PartMatcher;
use rlaas_proto::ratelimit::v1::grant::Kind;

use crate::algorithm::{Algorithm, OnChange};
use crate::clock::Micros;
use crate::rules::spec::{Field, MatcherSpec, OverrideSpec, Problem, RuleSpec, StoreFailurePolicy};
use crate::rules::{EnforcedShare, RuleMode, Share};

/// Returns the rule of a message. A field that a specification cannot have is unreadable in it.
pub(super) fn spec(rule: &proto::Rule) -> RuleSpec {
    RuleSpec {
        name: text(&rule.name),
        matcher: matcher(&rule.matchers),
        key_by: key_by(&rule.key_by),
        algorithm: algorithm(rule.algorithm),
        limit: units(rule.max_requests),
        window: rule.window.as_ref().map_or(Field::Unset, window),
        burst: units(rule.burst),
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
    }
}

/// Copies the fields that a mask names from one rule to another.
///
/// # Errors
///
/// The path that names no field that may be written.
pub(super) fn merge(
    into: &RuleSpec,
    from: &RuleSpec,
    paths: &[String],
) -> Result<RuleSpec, String> {
    let mut merged = into.clone();
    for path in paths {
        match path.as_str() {
            "algorithm" => merged.algorithm = from.algorithm,
            "max_requests" => merged.limit = from.limit,
            "window" => merged.window = from.window,
            "burst" => merged.burst = from.burst,
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
    Ok(merged)
}

/// Returns a problem with the path of the field in the message. `of` is the path of the rule, empty
/// if the field begins with that of a list of rules.
pub(super) fn in_message(problem: Problem, of: &str) -> Problem {
    let Problem { field, text } = problem;
    // `rules[3].limit` of a list, `limit` of one rule.
    let (list, own) = match field.split_once("].") {
        Some((list, own)) if field.starts_with("rules[") => (format!("{list}]"), own),
        _ if field == "rules" => return Problem { field: of_list(of), text },
        _ => (of.to_owned(), field.as_str()),
    };
    let (part, own) = match own.split_once("].") {
        Some((part, own)) if own_is_override(part) => (format!(".{part}]"), own),
        _ => (String::new(), own),
    };
    let (name, text) = match (own, part.is_empty()) {
        ("limit", true) => ("max_requests".to_owned(), text),
        ("limit" | "burst", false) => (format!("grant.{own}"), text),
        ("unlimited", false) => ("grant".to_owned(), text),
        ("enforce", _) if text.contains('%') => {
            ("enforce_ppm".to_owned(), "must be 0 to 1000000".to_owned())
        }
        ("enforce", _) => ("enforce_ppm".to_owned(), "requires the mode ENFORCE".to_owned()),
        ("local-share" | "near-limit", _) => {
            (format!("{}_ppm", own.replace('-', "_")), "must be 1 to 1000000".to_owned())
        }
        ("match", _) => ("matchers".to_owned(), text),
        (own, _) if own.starts_with("match.") => (
            "matchers".to_owned(),
            "must have a known part, once, and at least one text".to_owned(),
        ),
        ("key-by", _) => (
            "key_by".to_owned(),
            "must be user_id, resource or attributes.NAME, each once".to_owned(),
        ),
        (own, _) => (own.replace('-', "_"), text),
    };
    Problem { field: format!("{list}{part}.{name}"), text }
}

fn of_list(of: &str) -> String {
    if of.is_empty() { "rules".to_owned() } else { of.to_owned() }
}

fn own_is_override(part: &str) -> bool {
    part.starts_with("overrides[")
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
    let span = std::time::Duration::try_from(*window).ok();
    span.map_or(Field::Unreadable, |span| {
        // What is cut off would be another window than the caller wrote.
        let is_whole = span.subsec_nanos() % 1_000 == 0;
        if is_whole { Field::Set(span.into()) } else { Field::Unreadable }
    })
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

fn key_by(parts: &[String]) -> Field<Vec<String>> {
    let names = parts.iter().map(|part| match part.as_str() {
        "user_id" | "resource" => Some(part.clone()),
        other => attribute(other).map(str::to_owned),
    });
    match names.collect::<Option<Vec<_>>>() {
        Some(names) if names.is_empty() => Field::Unset,
        Some(names) => Field::Set(names),
        None => Field::Unreadable,
    }
}

/// Returns the name of an attribute, unless it is that of another part in specifications.
fn attribute(part: &str) -> Option<&str> {
    let name = part.strip_prefix("attributes.")?;
    (!["", "user_id", "user-id", "resource"].contains(&name)).then_some(name)
}

fn matcher(matchers: &[PartMatcher]) -> MatcherSpec {
    let mut spec = MatcherSpec::default();
    for PartMatcher { part, any_of } in matchers {
        let texts = Field::Set(any_of.clone());
        let set = |field: &mut Field<Vec<String>>| {
            *field = if field.is_unset() { texts.clone() } else { Field::Unreadable };
        };
        match part.as_str() {
            "resource" => set(&mut spec.resource),
            "user_id" => set(&mut spec.user_id),
            part => {
                let known = part.strip_prefix("attributes.").filter(|name| !name.is_empty());
                let entry = spec.attributes.entry(known.unwrap_or(part).to_owned());
                match known {
                    Some(_) => set(entry.or_default()),
                    None => *entry.or_default() = Field::Unreadable,
                }
            }
        }
    }
    spec
}

fn override_spec(other: &proto::RuleOverride) -> OverrideSpec {
    let spec = OverrideSpec { matcher: matcher(&other.matchers), ..OverrideSpec::default() };
    let Some(grant) = &other.grant else { return spec };
    match grant.kind {
        Some(Kind::Limit(0)) => OverrideSpec { limit: Field::Unreadable, ..spec },
        Some(Kind::Limit(limit)) => {
            OverrideSpec { limit: units(limit), burst: units(grant.burst), ..spec }
        }
        Some(Kind::Unlimited(true)) => OverrideSpec { unlimited: Field::Set(true), ..spec },
        Some(Kind::Banned(true)) => OverrideSpec { limit: Field::Set(0), ..spec },
        Some(Kind::Unlimited(false) | Kind::Banned(false)) | None => spec,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            "key_by",
            "local_share_ppm",
            "matchers",
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
    }

    #[test]
    fn mask_names_fields_that_may_be_written() {
        let from = proto::Rule { max_requests: 7, burst: 9, ..proto::Rule::default() };
        let merged = merge(&RuleSpec::default(), &spec(&from), &["max_requests".to_owned()]);
        let merged = merged.expect("a field");
        assert_eq!((merged.limit, merged.burst), (Field::Set(7), Field::Unset));
        for path in ["name", "fail_open", "origin", "Window", ""] {
            let refused = merge(&merged, &spec(&from), &[path.to_owned()]);
            assert_eq!(refused.err().as_deref(), Some(path));
        }
    }
}
