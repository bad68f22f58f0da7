//! The unambiguous name of one piece of state.

use std::fmt::Write;

/// Rule + matched values, as text: a namespace for the rule, then the id.
///
/// Bytes that have a meaning in keys (`:`, `%`, braces) and control characters are
/// percent-encoded in the id, so that no two ids share a key and every key can be typed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    text: String,
    /// Where the id starts, in bytes.
    id_at: usize,
}

impl Key {
    /// The documented key of the default rule: `rate_limit:` and the id.
    pub(super) fn of_default_rule<'a>(values: impl Iterator<Item = Option<&'a str>>) -> Self {
        Self::new("rate_limit:".to_owned(), values)
    }

    /// The key of a named rule: `rule:`, its name, and the id.
    pub(super) fn of_rule<'a>(name: &str, values: impl Iterator<Item = Option<&'a str>>) -> Self {
        let mut namespace = String::from("rule:");
        push_encoded(&mut namespace, name);
        namespace.push(':');
        Self::new(namespace, values)
    }

    /// The id is the values with `:` between them. One that is absent is a `%` alone, which no
    /// value is encoded as.
    fn new<'a>(namespace: String, values: impl Iterator<Item = Option<&'a str>>) -> Self {
        let mut text = namespace;
        let id_at = text.len();
        for (position, value) in values.enumerate() {
            if position > 0 {
                text.push(':');
            }
            match value {
                Some(value) => push_encoded(&mut text, value),
                None => text.push('%'),
            }
        }
        Self { text, id_at }
    }

    /// The whole key: namespace, then id.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The part that names the rule, with its closing colon.
    pub fn namespace(&self) -> &str {
        &self.text[..self.id_at]
    }

    /// The part that names whose state it is, encoded.
    pub fn id(&self) -> &str {
        &self.text[self.id_at..]
    }
}

fn push_encoded(text: &mut String, value: &str) {
    for character in value.chars() {
        if matches!(character, ':' | '%' | '{' | '}') || character.is_control() {
            for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                let _infallible = write!(text, "%{byte:02X}");
            }
        } else {
            text.push(character);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn default_key(user_id: &str) -> Key {
        Key::of_default_rule([Some(user_id)].into_iter())
    }

    #[test]
    fn the_default_rule_has_the_documented_key() {
        let key = default_key("alice");
        assert_eq!(key.as_str(), "rate_limit:alice");
        assert_eq!((key.namespace(), key.id()), ("rate_limit:", "alice"));
    }

    #[test]
    fn bytes_with_a_meaning_are_encoded() {
        let key = default_key("a:b%3A{c}\0\n\u{85}é/ 💡");
        assert_eq!(key.id(), "a%3Ab%253A%7Bc%7D%00%0A%C2%85é/ 💡");
    }

    proptest! {
        #[test]
        fn different_values_have_different_keys(
            one in ("\\PC{0,8}", values()),
            other in ("\\PC{0,8}", values()),
        ) {
            let key = |(name, values): &(String, Vec<Option<String>>)| {
                Key::of_rule(name, values.iter().map(Option::as_deref))
            };
            // As many values as the rule has parts.
            let same_parts = one.0 != other.0 || one.1.len() == other.1.len();
            prop_assume!(same_parts);
            prop_assert_eq!(one == other, key(&one) == key(&other));
            prop_assert!(!key(&one).as_str().contains(char::is_control));
        }
    }

    /// Values of the bytes that could confuse, and any others.
    fn values() -> impl Strategy<Value = Vec<Option<String>>> {
        let value = prop_oneof!["[:%{}a3A\\x00\\n]{0,5}", any::<String>()];
        prop::collection::vec(prop::option::weighted(0.8, value), 1..4)
    }

    #[test]
    fn absent_empty_and_joined_values_differ() {
        let key = |values: &[Option<&str>]| Key::of_rule("r:1", values.iter().copied());
        assert_eq!(key(&[Some("a"), Some("b")]).as_str(), "rule:r%3A1:a:b");
        let ids = [
            key(&[Some("a"), Some("b")]),
            key(&[Some("a:b")]),
            key(&[Some("a"), None]),
            key(&[Some("a"), Some("")]),
            key(&[Some("a"), Some("%")]),
            key(&[Some(""), Some("a")]),
            key(&[None, Some("a")]),
        ];
        for (position, one) in ids.iter().enumerate() {
            assert!(!ids[position + 1..].contains(one), "{one:?}");
        }
    }
}
