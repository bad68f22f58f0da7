//! The parts in `key-by`.

use crate::rules::{Part, Request};

/// Values of `key_by` in rules of RLaaS on GoRL that mean the `key` of a request.
const RLAAS_KEY_NAMES: [&str; 3] = ["ip", "token", "custom"];

/// Says which parts are valid.
pub(super) const VALID: &str =
    "must be user_id, resource, or names of attributes, also as NAME|user_id";

/// Reads a part of `key_by`.
pub(super) fn part(text: &str) -> Option<Part> {
    if let Some(name) = text.strip_suffix(Part::OR_USER_ID) {
        return match part(name)? {
            Part::Attribute(name) => Some(Part::AttributeOrUserId(name)),
            _ => None,
        };
    }
    match text {
        "user_id" | "user-id" => Some(Part::UserId),
        "resource" => Some(Part::Resource),
        name => {
            let is_valid = (1..=Request::MAX_ATTRIBUTE_NAME).contains(&name.len());
            is_valid.then(|| Part::Attribute(name.to_owned()))
        }
    }
}

/// Returns `true` if two parts of one key would have the same value in some requests, because they name
/// the same part or the same attribute.
pub(super) fn is_same(part: &Part, other: &Part) -> bool {
    part == other || part.attribute().is_some_and(|name| other.attribute() == Some(name))
}

/// Translates `key_by` of rules in the format of RLaaS on GoRL, whose requests have a single `key`:
/// it is the user id unless the request has the attribute.
pub(super) fn of_endpoint(key_by: Vec<Part>) -> Vec<Part> {
    match key_by.as_slice() {
        [Part::Attribute(name)] if RLAAS_KEY_NAMES.contains(&name.as_str()) => {
            vec![Part::AttributeOrUserId(name.clone())]
        }
        _ => key_by,
    }
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    use super::*;
    use crate::rules::spec::RuleSpec;

    #[test]
    fn key_by_names_the_user_in_place_of_an_attribute() {
        let or_user = |name: &str| Part::AttributeOrUserId(name.to_owned());
        let key_by = |yaml: &str| {
            let yaml = format!("{{name: a, limit: 1, window: 1s, {yaml}}}");
            let rule = serde_saphyr::from_str::<RuleSpec>(&yaml).expect("a specification").build();
            rule.map(|rule| rule.key_by).map_err(|problems| problems[0].text.clone())
        };
        assert_eq!(key_by("key-by: ip|user_id"), Ok(vec![or_user("ip")]));
        assert_eq!(key_by("endpoint: /x, key-by: ip"), Ok(vec![or_user("ip")]));
        assert_eq!(key_by("endpoint: /x, key-by: ip|user_id"), Ok(vec![or_user("ip")]));
        let two = vec![Part::Resource, or_user("tenant")];
        assert_eq!(key_by("key-by: [resource, 'tenant|user_id']"), Ok(two));
        for wrong in ["'|user_id'", "user_id|user_id", "resource|user_id", "a|user_id|user_id"] {
            assert_eq!(key_by(&format!("key-by: {wrong}")), Err(VALID.to_owned()), "{wrong}");
        }
        let twice = key_by("key-by: [ip, 'ip|user_id']");
        assert_eq!(twice, Err("must not name a part twice".to_owned()));
        assert_eq!(or_user("ip").to_string(), "attributes.ip|user_id");
    }
}
