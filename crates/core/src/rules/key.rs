//! Keys: unambiguous names of states.

use std::fmt::Write;

use smallvec::SmallVec;

use crate::clock::Micros;

/// The name of one state: the name of the rule (empty for the default rule), a colon, and the id,
/// which consists of the matched values.
///
/// Characters with a meaning in keys (`:`, `%`, braces) and control characters are percent-encoded,
/// so that different ids have different keys and every key is printable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    text: KeyBuffer,
    /// Offset of the id in bytes.
    id_at: usize,
}

/// Large enough for most keys, so that these need no allocation.
type KeyBuffer = SmallVec<[u8; 56]>;

impl Key {
    /// Creates the key of the default rule.
    pub(super) fn for_default_rule<'a>(values: impl Iterator<Item = Option<&'a str>>) -> Self {
        Self::for_rule("", values)
    }

    /// Creates the key of a rule. The id is the values, separated by `:`. An absent value is
    /// written as a single `%`, which is not the encoding of any value.
    pub(super) fn for_rule<'a>(name: &str, values: impl Iterator<Item = Option<&'a str>>) -> Self {
        let mut text = KeyBuffer::new();
        if !name.is_empty() {
            push_encoded(&mut text, name);
        }
        text.push(b':');
        let id_at = text.len();
        for (position, value) in values.enumerate() {
            if position > 0 {
                text.push(b':');
            }
            match value {
                Some(value) => push_encoded(&mut text, value),
                None => text.push(b'%'),
            }
        }
        Self { text, id_at }
    }

    /// Creates the key of a descriptor: `envoy/` and the domain in place of a rule name, then the
    /// keys and values of the entries in turn. A limit of the request adds its `window`. No rule
    /// has a name with `/`.
    pub(super) fn for_descriptor<'a>(
        domain: &str,
        entries: impl Iterator<Item = (&'a str, IdValue<'a>)>,
        window: Option<Micros>,
    ) -> Self {
        let mut text = KeyBuffer::new();
        text.extend_from_slice(b"envoy/");
        push_encoded(&mut text, domain);
        text.push(b':');
        let id_at = text.len();
        for (key, value) in entries {
            if text.len() > id_at {
                text.push(b':');
            }
            push_encoded(&mut text, key);
            text.push(b':');
            match value {
                IdValue::Own(value) => push_encoded(&mut text, value),
                IdValue::Shared(pattern) => {
                    text.extend_from_slice(b"%%");
                    push_encoded(&mut text, pattern);
                }
            }
        }
        if let Some(window) = window {
            text.extend_from_slice(format!(":%/{window}").as_bytes());
        }
        Self { text, id_at }
    }

    /// Returns the whole key, which is UTF-8.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    /// Returns the encoded name of the rule; empty for the default rule.
    pub fn rule(&self) -> &str {
        as_text(&self.text[..self.id_at - 1])
    }

    /// Returns the encoded id.
    pub fn id(&self) -> &str {
        as_text(&self.text[self.id_at..])
    }
}

/// The value of a descriptor's entry in a key. Encoded values begin neither with `%%` nor with
/// `%/`, which mark patterns and windows.
#[derive(Clone, Copy, Debug)]
pub(super) enum IdValue<'a> {
    /// The value of the request.
    Own(&'a str),
    /// The pattern that the value matches. All values that match share one state.
    Shared(&'a str),
}

fn as_text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).expect("keys consist of strings")
}

fn push_encoded(text: &mut KeyBuffer, value: &str) {
    // Fast path for the common case.
    let is_plain = value.bytes().fold(true, |plain, byte| plain & PLAIN[usize::from(byte)]);
    if is_plain {
        return text.extend_from_slice(value.as_bytes());
    }
    let mut encoded = String::new();
    for character in value.chars() {
        if matches!(character, ':' | '%' | '{' | '}') || character.is_control() {
            for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                let _infallible = write!(encoded, "%{byte:02X}");
            }
        } else {
            encoded.push(character);
        }
    }
    text.extend_from_slice(encoded.as_bytes());
}

/// Bytes that need no encoding. Text of other bytes must be decoded to characters first.
const PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte: u8 = b' ';
    while byte < 0x7f {
        plain[byte as usize] = !matches!(byte, b':' | b'%' | b'{' | b'}');
        byte += 1;
    }
    plain
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn default_key(user_id: &str) -> Key {
        Key::for_default_rule([Some(user_id)].into_iter())
    }

    #[test]
    fn key_has_rule_and_id() {
        let key = default_key("alice");
        assert_eq!((key.rule(), key.id()), ("", "alice"));
        let key = Key::for_rule("p:y", [Some("a"), None, Some("")].into_iter());
        assert_eq!((key.rule(), key.id()), ("p%3Ay", "a:%:"));
        assert_eq!(key.as_bytes(), b"p%3Ay:a:%:");
    }

    #[test]
    fn key_encodes_separators_and_control_characters() {
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
                Key::for_rule(name, values.iter().map(Option::as_deref))
            };
            // A rule always has the same number of values.
            let same_parts = one.0 != other.0 || one.1.len() == other.1.len();
            prop_assume!(same_parts);
            prop_assert_eq!(one == other, key(&one) == key(&other));
            prop_assert!(!as_text(key(&one).as_bytes()).contains(char::is_control));
        }
    }

    /// Values of characters with a meaning in keys, and any others.
    fn values() -> impl Strategy<Value = Vec<Option<String>>> {
        let value = prop_oneof!["[:%{}a3A\\x00\\n]{0,5}", any::<String>()];
        prop::collection::vec(prop::option::weighted(0.8, value), 1..4)
    }

    #[test]
    fn absent_empty_and_joined_values_differ() {
        let key = |values: &[Option<&str>]| Key::for_rule("r:1", values.iter().copied());
        assert_eq!(key(&[Some("a"), Some("b")]).as_bytes(), b"r%3A1:a:b");
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
