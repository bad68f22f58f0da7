//! Specifications as messages.

use rlaas_proto::ratelimit::v1 as proto;
use rlaas_proto::ratelimit::v1::grant::Kind;

use super::notation::explicit;
use crate::algorithm::OnChange;
use crate::proto_values::{algorithm, duration, int64};
use crate::rules::spec::{
    CandidateSpec, Field, MatcherSpec, OverrideSpec, Problem, RuleSpec, StoreFailurePolicy,
};
use crate::rules::{EnforcedShare, RuleMode, Share};

/// Returns the message of a rule. Fields that are not set stay so; those that no message can have,
/// which [`problems`] finds, are left out.
pub(crate) fn message(spec: &RuleSpec) -> proto::Rule {
    let flag = |field: &Field<bool>| field.value().copied().unwrap_or_default();
    let share = |field: &Field<Share>| field.value().map_or(0, |share| share.millionths());
    let spec = &explicit(spec);
    proto::Rule {
        name: spec.name.value().cloned().unwrap_or_default(),
        algorithm: spec.algorithm.value().map_or(0, |of| algorithm(*of).into()),
        max_requests: units(&spec.limit),
        window: spec.window.value().copied().map(duration),
        burst: units(&spec.burst),
        matchers: matchers(&spec.matcher),
        key_by: spec.key_by.value().into_iter().flatten().map(|part| key_part(part)).collect(),
        overrides: spec.overrides.iter().map(override_message).collect(),
        candidates: spec.candidates.iter().map(candidate_message).collect(),
        on_store_failure: on_store_failure(spec).into(),
        local_share_ppm: share(&spec.local_share),
        breaker_opens_rule: flag(&spec.breaker_opens_rule),
        mode: mode(spec).into(),
        enforce_ppm: spec.enforce.value().copied().map(EnforcedShare::millionths),
        on_change: on_change(spec.on_change).into(),
        near_limit_ppm: share(&spec.near_limit),
        overridable: flag(&spec.overridable),
        ..proto::Rule::default()
    }
}

/// Returns the problems that a valid rule of a file has as a rule that is made at run time: what no
/// message can say.
pub(crate) fn problems(spec: &RuleSpec) -> Vec<Problem> {
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

/// Returns 0 for a field that is not set.
fn units(field: &Field<u64>) -> i64 {
    field.value().map_or(0, |units| int64(*units))
}

fn key_part(name: &str) -> String {
    match name {
        "user_id" | "user-id" => "user_id".to_owned(),
        "resource" => name.to_owned(),
        name => format!("attributes.{name}"),
    }
}

fn matchers(matcher: &MatcherSpec) -> Vec<proto::PartMatcher> {
    let parts = [("resource", &matcher.resource), ("user_id", &matcher.user_id)];
    let parts = parts.map(|(part, texts)| (part.to_owned(), texts)).into_iter();
    let attributes = matcher.attributes.iter();
    let attributes = attributes.map(|(name, texts)| (format!("attributes.{name}"), texts));
    let given = parts.chain(attributes).filter(|(_, texts)| !texts.is_unset());
    let message = |(part, texts): (String, &Field<Vec<String>>)| proto::PartMatcher {
        part,
        any_of: texts.value().cloned().unwrap_or_default(),
    };
    given.map(message).collect()
}

fn override_message(spec: &OverrideSpec) -> proto::RuleOverride {
    let (kind, burst) = match (spec.unlimited.value(), spec.limit.value()) {
        (Some(true), _) => (Some(Kind::Unlimited(true)), None),
        (_, Some(0)) => (Some(Kind::Banned(true)), None),
        (_, Some(units)) => (Some(Kind::Limit(int64(*units))), spec.burst.value()),
        (_, None) => (None, None),
    };
    let grant = proto::Grant { kind, burst: burst.map_or(0, |burst| int64(*burst)) };
    proto::RuleOverride { matchers: matchers(&spec.matcher), grant: Some(grant) }
}

fn candidate_message(spec: &CandidateSpec) -> proto::Candidate {
    proto::Candidate {
        max_requests: units(&spec.limit),
        window: spec.window.value().copied().map(duration),
        burst: units(&spec.burst),
        algorithm: spec.algorithm.value().map_or(0, |of| algorithm(*of).into()),
    }
}

fn mode(spec: &RuleSpec) -> proto::RuleMode {
    let of_shadow = |shadow| if shadow { RuleMode::Shadow } else { RuleMode::Enforce };
    let mode = spec.mode.value().copied().or(spec.shadow.value().copied().map(of_shadow));
    match mode {
        None => proto::RuleMode::Unspecified,
        Some(RuleMode::Enforce) => proto::RuleMode::Enforce,
        Some(RuleMode::Shadow) => proto::RuleMode::Shadow,
        Some(RuleMode::Off) => proto::RuleMode::Off,
    }
}

fn on_store_failure(spec: &RuleSpec) -> proto::OnStoreFailure {
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

fn on_change(field: Field<OnChange>) -> proto::OnChange {
    match field.value() {
        None => proto::OnChange::Unspecified,
        Some(OnChange::KeepUsed) => proto::OnChange::KeepUsed,
        Some(OnChange::KeepLeft) => proto::OnChange::KeepLeft,
        Some(OnChange::Scale) => proto::OnChange::Scale,
        Some(OnChange::Reset) => proto::OnChange::Reset,
    }
}
