//! Parts of rules that messages have in other forms than files: matchers, keys, overrides.

use rlaas_core::rules::spec::{Field, MatcherSpec, OverrideSpec};
use rlaas_core::rules::{Part, Percentage, Share};

use crate::ratelimit::v1 as proto;
use crate::ratelimit::v1::PartMatcher;
use crate::ratelimit::v1::grant::Kind;
use crate::values::int64;

pub(super) fn key_by(parts: &[String]) -> Field<Vec<String>> {
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

/// Returns the name of an attribute, or `NAME|user_id`, unless it is that of another part in
/// specifications.
fn attribute(part: &str) -> Option<&str> {
    let text = part.strip_prefix("attributes.")?;
    let name = text.strip_suffix(Part::OR_USER_ID).unwrap_or(text);
    (!["", "user_id", "user-id", "resource"].contains(&name)).then_some(text)
}

pub(super) fn matcher(matchers: &[PartMatcher]) -> MatcherSpec {
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

pub(super) fn override_spec(other: &proto::RuleOverride) -> OverrideSpec {
    let headroom = match other.headroom_ppm {
        0 => Field::Unset,
        ppm => Share::new(ppm).map_or(Field::Unreadable, |share| Field::Set(Percentage(share))),
    };
    let matcher = matcher(&other.matchers);
    let spec = OverrideSpec { matcher, headroom, ..OverrideSpec::default() };
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

pub(super) fn key_part(name: &str) -> String {
    match name {
        "user_id" | "user-id" => "user_id".to_owned(),
        "resource" => name.to_owned(),
        name => format!("attributes.{name}"),
    }
}

pub(super) fn matchers(matcher: &MatcherSpec) -> Vec<proto::PartMatcher> {
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

pub(super) fn override_message(spec: &OverrideSpec) -> proto::RuleOverride {
    let (kind, burst) = match (spec.unlimited.value(), spec.limit.value()) {
        (Some(true), _) => (Some(Kind::Unlimited(true)), None),
        (_, Some(0)) => (Some(Kind::Banned(true)), None),
        (_, Some(units)) => (Some(Kind::Limit(int64(*units))), spec.burst.value()),
        (_, None) => (None, None),
    };
    let headroom = spec.headroom.value().copied();
    let headroom_ppm = headroom.map_or(0, |Percentage(share)| share.millionths());
    let grant = proto::Grant { kind, burst: burst.map_or(0, |burst| int64(*burst)) };
    let grant = Some(grant).filter(|_| kind.is_some() || headroom_ppm == 0);
    proto::RuleOverride { matchers: matchers(&spec.matcher), grant, headroom_ppm }
}

fn units(units: i64) -> Field<u64> {
    match u64::try_from(units) {
        Ok(0) => Field::Unset,
        Ok(units) => Field::Set(units),
        Err(_) => Field::Unreadable,
    }
}
