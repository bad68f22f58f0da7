//! The unambiguous name of one piece of state.

use std::fmt::Write;

use smallvec::SmallVec;

use crate::clock::Micros;

/// Rule + matched values, as text: the name of the rule, a colon, then the id. The default rule has
/// no name here.
///
/// Bytes that have a meaning in keys (`:`, `%`, braces) and control characters are
/// percent-encoded, so that no two ids share a key and every key can be typed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    text: KeyBuffer,
    /// Where the id starts, in bytes.
    id_at: usize,
}

/// Most keys are made and forgotten without an allocation.
type KeyBuffer = SmallVec<[u8; 56]>;

impl Key {
    /// The key of the default rule.
    pub(super) fn for_default_rule<'a>(values: impl Iterator<Item = Option<&'a str>>) -> Self {
        Self::for_rule("", values)
    }

    /// The key of a rule. The id is the values with `:` between them. One that is absent is a `%`
    /// alone, which no value is encoded as.
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

    /// The key of a descriptor: `envoy/` and the domain for a rule, which no name of one is, then its
    /// keys and values in turn; and the window of a limit that a request brought along.
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

    /// The whole key, which is UTF-8.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    /// The rule, encoded; empty for the default rule.
    pub fn rule(&self) -> &str {
        as_text(&self.text[..self.id_at - 1])
    }

    /// The part that names whose state it is, encoded.
    pub fn id(&self) -> &str {
        as_text(&self.text[self.id_at..])
    }
}

/// What stands for the value of a descriptor's entry. Neither `%%` nor `%/` is how a value begins
/// that is encoded.
#[derive(Clone, Copy, Debug)]
pub(super) enum IdValue<'a> {
    /// The value itself.
    Own(&'a str),
    /// The pattern that the value fits, with all that do.
    Shared(&'a str),
}

fn as_text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).expect("keys are put together from texts")
}

fn push_encoded(text: &mut KeyBuffer, value: &str) {
    // Nearly all values are plain.
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

/// Bytes that stand for themselves in any text that consists of them alone.
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
    fn a_key_names_its_rule_and_whose_state_it_is() {
        let key = default_key("alice");
        assert_eq!((key.rule(), key.id()), ("", "alice"));
        let key = Key::for_rule("p:y", [Some("a"), None, Some("")].into_iter());
        assert_eq!((key.rule(), key.id()), ("p%3Ay", "a:%:"));
        assert_eq!(key.as_bytes(), b"p%3Ay:a:%:");
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
                Key::for_rule(name, values.iter().map(Option::as_deref))
            };
            // As many values as the rule has parts.
            let same_parts = one.0 != other.0 || one.1.len() == other.1.len();
            prop_assume!(same_parts);
            prop_assert_eq!(one == other, key(&one) == key(&other));
            prop_assert!(!as_text(key(&one).as_bytes()).contains(char::is_control));
        }
    }

    /// Values of the bytes that could confuse, and any others.
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
