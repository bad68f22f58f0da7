//! Rules without a project that use the attribute `api_key`.
//!
//! While API keys are taken, only the service sets this attribute, and only in requests of a project:
//! all callers of such a rule would share one state.

use rlaas_core::rules::Part;
use rlaas_core::rules::spec::{Field, MatcherSpec, Problem, RuleSpec};

const ATTRIBUTE: &str = "api_key";
const TEXT: &str = "must not use api_key unless auth.api-keys is off since the start: requests of these \
                    rules show no API key, so that all callers would share one state; use it in the \
                    rules of projects";

/// Returns the problems of a rule without a project, for the time in which API keys are taken. `path` is
/// that of the rule; empty if fields are named without one.
pub fn api_key_problems(rule: &RuleSpec, path: &str) -> Vec<Problem> {
    let dot = if path.is_empty() { "" } else { "." };
    let is_used = |matcher: &MatcherSpec| matcher.attributes.contains_key(ATTRIBUTE);
    let is_key = |part: &String| part.strip_suffix(Part::OR_USER_ID).unwrap_or(part) == ATTRIBUTE;
    let key_by = match &rule.key_by {
        Field::Set(parts) if parts.iter().any(is_key) => Some("key-by".to_owned()),
        _ => None,
    };
    let matched = |place: &str| format!("{place}match.attributes.{ATTRIBUTE}");
    let of_rule = is_used(&rule.matcher).then(|| matched(""));
    let overrides = rule.overrides.iter().enumerate();
    let overrides = overrides.filter(|(_, other)| is_used(&other.matcher));
    let overrides = overrides.map(|(at, _)| matched(&format!("overrides[{at}].")));
    let fields = key_by.into_iter().chain(of_rule).chain(overrides);
    fields
        .map(|own| Problem { field: format!("{path}{dot}{own}"), text: TEXT.to_owned() })
        .collect()
}
