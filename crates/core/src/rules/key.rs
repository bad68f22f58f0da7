//! Keys: unambiguous names of states.

use std::fmt::Write;

use smallvec::SmallVec;

use super::Rule;
use crate::clock::Micros;

/// The name of one state: the name of the rule (empty for the default rule), a colon, and the id,
/// which consists of the matched values. Keys of a project begin with `p/`, its id and `/`.
///
/// Characters with a meaning in keys (`:`, `%`, braces) and control characters are percent-encoded,
/// so that different ids have different keys and every key is printable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    text: KeyBuffer,
    /// Offset of the rule in bytes: 0 without a project. No key is longer than a few requests.
    rule_at: u32,
    /// Offset of the id in bytes.
    id_at: u32,
}

/// What keys of a project begin with.
const PROJECT: &str = "p/";

/// Large enough for most keys, so that these need no allocation.
type KeyBuffer = SmallVec<[u8; 56]>;

impl Key {
    /// Creates the key of a rule; its name is empty for the default rule. The id is the values,
    /// separated by `:`. An absent value is written as a single `%`, which is not the encoding of
    /// any value.
    #[inline]
    pub(super) fn for_rule<'a>(
        project: &KeyProject,
        name: &str,
        values: impl Iterator<Item = Option<&'a str>>,
    ) -> Self {
        let mut text = KeyBuffer::new();
        if !project.0.is_empty() {
            text.extend_from_slice(project.0.as_bytes());
        }
        let rule_at = offset(&text);
        if !name.is_empty() {
            push_encoded(&mut text, name);
        }
        text.push(b':');
        let id_at = offset(&text);
        for (position, value) in values.enumerate() {
            if position > 0 {
                text.push(b':');
            }
            match value {
                Some(value) => push_encoded(&mut text, value),
                None => text.push(b'%'),
            }
        }
        Self { text, rule_at, id_at }
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
        let id_at = offset(&text);
        for (key, value) in entries {
            if offset(&text) > id_at {
                text.push(b':');
            }
            push_encoded(&mut text, key);
            text.push(b':');
            match value {
                IdValue::Own(value) | IdValue::Configured(value) => push_encoded(&mut text, value),
                IdValue::Shared(pattern) => {
                    text.extend_from_slice(b"%%");
                    push_encoded(&mut text, pattern);
                }
            }
        }
        if let Some(window) = window {
            text.extend_from_slice(format!(":%/{window}").as_bytes());
        }
        Self { text, rule_at: 0, id_at }
    }

    /// Creates the key of no project with an encoded rule name and an encoded id, as returned by
    /// [`Key::rule`] and [`Key::id`].
    pub fn from_encoded(rule: &str, id: &str) -> Self {
        Self::from_encoded_in("", rule, id)
    }

    /// Creates the key of an encoded project, an encoded rule name and an encoded id, as returned by
    /// [`Key::project`], [`Key::rule`] and [`Key::id`].
    pub fn from_encoded_in(project: &str, rule: &str, id: &str) -> Self {
        let mut text = KeyBuffer::new();
        if !project.is_empty() {
            text.extend_from_slice(PROJECT.as_bytes());
            text.extend_from_slice(project.as_bytes());
            text.push(b'/');
        }
        let rule_at = offset(&text);
        text.extend_from_slice(rule.as_bytes());
        text.push(b':');
        let id_at = offset(&text);
        text.extend_from_slice(id.as_bytes());
        Self { text, rule_at, id_at }
    }

    /// Returns the key with this text, as returned by [`Key::as_bytes`]. `None` if a key has a colon
    /// at least, and the text has not.
    pub fn from_text(text: &str) -> Option<Self> {
        let (name, id) = text.split_once(':')?;
        let of_project = name.strip_prefix(PROJECT).and_then(|rest| rest.split_once('/'));
        let (project, rule) = of_project.unwrap_or(("", name));
        Some(Self::from_encoded_in(project, rule, id))
    }

    /// Returns the whole key, which is UTF-8.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    /// Returns the encoded id of the project; empty for none. Letters, digits and `-` are encoded
    /// as they are.
    #[inline]
    pub fn project(&self) -> &str {
        if self.rule_at == 0 {
            return "";
        }
        as_text(&self.text[PROJECT.len()..self.rule_at as usize - 1])
    }

    /// Returns the encoded id of the project in the text of a key: see [`Key::as_bytes`].
    #[inline]
    pub fn project_in(text: &[u8]) -> &[u8] {
        let Some(rest) = text.strip_prefix(PROJECT.as_bytes()) else { return b"" };
        rest.split(|byte| *byte == b'/').next().unwrap_or_default()
    }

    /// Returns the id of the project; empty for none. `None` if the key does not have the encoding
    /// of an id.
    pub fn project_name(&self) -> Option<String> {
        decode_by(self.project(), KeyProject::encode)
    }

    /// Returns the id of a project as [`Key::project`] does.
    pub fn encoded_project(project: &str) -> String {
        KeyProject::encode(project)
    }

    /// Returns the encoded name of the rule; empty for the default rule.
    pub fn rule(&self) -> &str {
        as_text(&self.text[self.rule_at as usize..self.id_at as usize - 1])
    }

    /// Returns the name of the rule, or `envoy/` and the domain of a descriptor. `None` if the key
    /// does not have the encoding of a name.
    pub(crate) fn rule_name(&self) -> Option<String> {
        match self.rule() {
            "" => Some(Rule::DEFAULT.to_owned()),
            encoded => decode(encoded),
        }
    }

    /// Returns the encoded id.
    pub fn id(&self) -> &str {
        as_text(self.id_bytes())
    }

    /// Returns the values of requests in the [id](Key::id) of a key, decoded: neither absent parts
    /// nor patterns. Those of hashed parts are hashed. Of a descriptor the keys of the entries are
    /// among them.
    pub fn values_in(id: &str) -> Vec<String> {
        let values = DecodedValue::all(id).into_iter().flatten();
        let text = |value| match value {
            DecodedValue::Text(text) => Some(text),
            DecodedValue::Absent | DecodedValue::Pattern(_) | DecodedValue::Window => None,
        };
        values.filter_map(text).collect()
    }

    /// Returns the encoded id, which is UTF-8, without a check of that.
    #[inline]
    pub fn id_bytes(&self) -> &[u8] {
        &self.text[self.id_at as usize..]
    }
}

/// The beginning of the keys of a project: empty for none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyProject(Box<str>);

impl KeyProject {
    pub(super) fn new(project: &str) -> Self {
        if project.is_empty() {
            return Self::default();
        }
        Self(format!("{PROJECT}{}/", Self::encode(project)).into())
    }

    fn encode(project: &str) -> String {
        encode(project).replace('/', "%2F")
    }

    /// Returns the encoded id of the project, as [`Key::project`] does.
    pub(super) fn encoded(&self) -> &str {
        self.0.strip_prefix(PROJECT).and_then(|text| text.strip_suffix('/')).unwrap_or_default()
    }
}

fn offset(text: &KeyBuffer) -> u32 {
    u32::try_from(text.len()).expect("a key is as long as a few requests at most")
}

/// The values of an id: its parts between colons, decoded. The values of an absent part and of a
/// pattern are told apart from values of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DecodedValue {
    /// A value.
    Text(String),
    /// An absent part.
    Absent,
    /// A pattern, whose values share one state.
    Pattern(String),
    /// The window of a limit of a request.
    Window,
}

impl DecodedValue {
    /// Decodes the values of an id. `None` if a value is not encoded as [`Key`] encodes it.
    pub(crate) fn all(id: &str) -> Option<Vec<Self>> {
        id.split(':').map(Self::one).collect()
    }

    fn one(text: &str) -> Option<Self> {
        if text == "%" {
            return Some(Self::Absent);
        }
        if text.starts_with("%/") {
            return Some(Self::Window);
        }
        match text.strip_prefix("%%") {
            Some(pattern) => decode(pattern).map(Self::Pattern),
            None => decode(text).map(Self::Text),
        }
    }
}

/// Undoes the encoding of a text. `None` unless encoding the result gives the text again.
pub(crate) fn decode(text: &str) -> Option<String> {
    decode_by(text, encode)
}

fn encode(text: &str) -> String {
    let mut encoded = KeyBuffer::new();
    push_encoded(&mut encoded, text);
    as_text(&encoded).to_owned()
}

/// Undoes an encoding of bytes as `%` and two digits.
fn decode_by(text: &str, encode: impl Fn(&str) -> String) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let digits = [*high, *low];
                let digits = str::from_utf8(&digits).ok()?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                after
            }
            (b'%', _) => return None,
            (other, after) => {
                bytes.push(*other);
                after
            }
        };
    }
    let decoded = String::from_utf8(bytes).ok()?;
    (encode(&decoded) == text).then_some(decoded)
}

/// The value of a descriptor's entry in a key. Encoded values begin neither with `%%` nor with
/// `%/`, which mark patterns and windows.
#[derive(Clone, Copy, Debug)]
pub(super) enum IdValue<'a> {
    /// The value of the request.
    Own(&'a str),
    /// The value of the request, which the configuration has as it is: never hashed.
    Configured(&'a str),
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

    fn rule_key<'a>(name: &str, values: impl Iterator<Item = Option<&'a str>>) -> Key {
        Key::for_rule(&KeyProject::default(), name, values)
    }

    fn default_key(user_id: &str) -> Key {
        rule_key("", [Some(user_id)].into_iter())
    }

    #[test]
    fn key_has_rule_and_id() {
        let key = default_key("alice");
        assert_eq!((key.rule(), key.id()), ("", "alice"));
        let key = rule_key("p:y", [Some("a"), None, Some("")].into_iter());
        assert_eq!((key.rule(), key.id()), ("p%3Ay", "a:%:"));
        assert_eq!(Key::from_encoded(key.rule(), key.id()), key);
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
                rule_key(name, values.iter().map(Option::as_deref))
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
    fn an_id_is_decoded_to_its_values() {
        let values = [Some("a:b%{}\0\n\u{85}é"), None, Some("")];
        let key = rule_key("r", values.into_iter());
        let text = |value: &str| DecodedValue::Text(value.to_owned());
        let expected = vec![text("a:b%{}\0\n\u{85}é"), DecodedValue::Absent, text("")];
        assert_eq!(DecodedValue::all(key.id()), Some(expected));
        let entries = [("k", IdValue::Shared("a*")), ("l", IdValue::Own("%"))];
        let key = Key::for_descriptor("d", entries.into_iter(), Some(Micros::from_secs(1)));
        let pattern = DecodedValue::Pattern("a*".to_owned());
        let expected = vec![text("k"), pattern, text("l"), text("%"), DecodedValue::Window];
        assert_eq!(DecodedValue::all(key.id()), Some(expected));
    }

    #[test]
    fn what_no_key_contains_is_not_decoded() {
        for id in ["%4", "%zz", "%+1", "%3a", "%41", "{", "a}", "\n", "%FF", "%C2", "%%%"] {
            assert_eq!(DecodedValue::all(id), None, "{id:?}");
        }
    }

    #[test]
    fn absent_empty_and_joined_values_differ() {
        let key = |values: &[Option<&str>]| rule_key("r:1", values.iter().copied());
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
