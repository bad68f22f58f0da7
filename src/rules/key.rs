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
    pub(super) fn of_default_rule(user_id: &str) -> Self {
        const NAMESPACE: &str = "rate_limit:";
        let mut text = String::with_capacity(NAMESPACE.len() + user_id.len());
        text.push_str(NAMESPACE);
        push_encoded(&mut text, user_id);
        Self { text, id_at: NAMESPACE.len() }
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

    #[test]
    fn the_default_rule_has_the_documented_key() {
        let key = Key::of_default_rule("alice");
        assert_eq!(key.as_str(), "rate_limit:alice");
        assert_eq!((key.namespace(), key.id()), ("rate_limit:", "alice"));
    }

    #[test]
    fn bytes_with_a_meaning_are_encoded() {
        let key = Key::of_default_rule("a:b%3A{c}\0\n\u{85}é/ 💡");
        assert_eq!(key.id(), "a%3Ab%253A%7Bc%7D%00%0A%C2%85é/ 💡");
    }
}
