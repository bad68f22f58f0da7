//! The two notations of a rule's resource and key.
//!
//! With `endpoint`, as in RLaaS on GoRL, a key by `ip`, `token` or `custom` alone means the user in
//! requests without that attribute. In the explicit notation the key says so itself: `ip|user_id`.
//! Messages and exported files are explicit. Rules are stored with `endpoint` where both say the same,
//! because earlier releases read `ip|user_id` as the name of an attribute.

use std::mem;

use rlaas_core::rules::Part;
use rlaas_core::rules::spec::{Field, RuleSpec};

/// Values of `key-by` that mean the user, too, in rules with `endpoint`.
const ENDPOINT_KEYS: [&str; 3] = ["ip", "token", "custom"];

/// Returns a rule in the explicit notation. One with both `endpoint` and `match.resource`, which is
/// not valid, keeps both.
pub fn explicit(spec: &RuleSpec) -> RuleSpec {
    let mut spec = spec.clone();
    if spec.endpoint.is_unset() {
        return spec;
    }
    if let Some(part) = only_key(&mut spec).filter(|part| ENDPOINT_KEYS.contains(&part.as_str())) {
        part.push_str(Part::OR_USER_ID);
    }
    if spec.matcher.resource.is_unset() {
        spec.matcher.resource = mem::take(&mut spec.endpoint);
    }
    spec
}

/// Returns an explicit rule with `endpoint`, if that says the same.
pub(super) fn with_endpoint(spec: RuleSpec) -> RuleSpec {
    let mut spec = spec;
    if !spec.endpoint.is_unset() || spec.matcher.resource.is_unset() {
        return spec;
    }
    let name = |part: &String| {
        let name = part.strip_suffix(Part::OR_USER_ID)?;
        ENDPOINT_KEYS.contains(&name).then(|| name.to_owned())
    };
    if let Some(part) = only_key(&mut spec)
        && let Some(name) = name(part)
    {
        *part = name;
        spec.endpoint = mem::take(&mut spec.matcher.resource);
    }
    spec
}

fn only_key(spec: &mut RuleSpec) -> Option<&mut String> {
    match &mut spec.key_by {
        Field::Set(parts) => match parts.as_mut_slice() {
            [part] => Some(part),
            _ => None,
        },
        Field::Unset | Field::Unreadable => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule_messages::{merge, message, spec};

    fn rule(yaml: &str) -> RuleSpec {
        serde_saphyr::from_str(&format!("{{name: a, limit: 1, window: 1s, {yaml}}}"))
            .expect("a rule")
    }

    #[test]
    fn messages_say_which_key_a_rule_has() {
        for (yaml, key, stored) in [
            ("endpoint: /x, key-by: ip", "attributes.ip|user_id", "endpoint: /x, key-by: ip"),
            (
                "endpoint: /x, key-by: plan",
                "attributes.plan",
                "match: {resource: /x}, key-by: plan",
            ),
            ("endpoint: /x, key-by: api_key", "attributes.api_key", ""),
            ("match: {resource: /x}, key-by: ip", "attributes.ip", ""),
            ("key-by: ip|user_id", "attributes.ip|user_id", "key-by: ip|user_id"),
            ("endpoint: /x, key-by: plan|user_id", "attributes.plan|user_id", ""),
        ] {
            let given = rule(yaml);
            let sent = message(&given);
            assert_eq!(sent.key_by, [key], "{yaml}");
            let read = spec(&sent);
            assert_eq!(read.build(), given.build(), "{yaml}");
            assert!(stored.is_empty() || read == rule(stored), "{yaml}: {read:?}");
            assert_eq!(explicit(&read), explicit(&given), "{yaml}");
        }
    }

    #[test]
    fn written_key_means_what_it_says() {
        let by_endpoint = rule("endpoint: /x, key-by: ip");
        let written = |key_by: &str, paths: &[&str]| {
            let mut from = message(&by_endpoint);
            from.key_by = vec![key_by.to_owned()];
            from.matchers[0].any_of = vec!["/y".to_owned()];
            let paths: Vec<String> = paths.iter().map(|&path| path.to_owned()).collect();
            merge(&by_endpoint, &spec(&from), &paths).expect("fields").build().expect("a rule")
        };
        let part = |of: &str| rule(&format!("key-by: {of}")).build().expect("a rule").key_by;
        assert_eq!(written("attributes.ip", &["key_by"]).key_by, part("ip"));
        assert_eq!(written("attributes.token|user_id", &["key_by"]).key_by, part("token|user_id"));
        assert_eq!(written("attributes.ip", &["matchers"]).key_by, part("ip|user_id"));
        assert_eq!(spec(&message(&by_endpoint)), by_endpoint);
    }
}
