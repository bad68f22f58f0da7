//! YAML as a tree with the line and the column of each value.
//!
//! The parser bounds depth, size and aliases. Scalars are kept as they are written, so that the user
//! `007` is not the number 7.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Spanned, UserMessageFormatter};

/// A value and where it begins.
#[derive(Clone, Debug)]
pub(super) struct YamlNode {
    /// Counted from 1.
    pub(super) line: u64,
    /// Counted from 1, in characters.
    pub(super) column: u64,
    pub(super) value: YamlValue,
    /// Bytes of the source that the value was written in: start and length.
    written: Option<(usize, usize)>,
}

/// A value.
#[derive(Clone, Debug)]
pub(super) enum YamlValue {
    /// `null`, `~`, or nothing.
    Null,
    /// Any other scalar.
    Scalar(String),
    /// A list.
    Items(Vec<YamlNode>),
    /// A map, in the order of the file. A key is a scalar.
    Fields(Vec<(YamlNode, YamlNode)>),
}

impl YamlNode {
    /// Parses a text.
    ///
    /// # Errors
    ///
    /// The parser's message, with line and column.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut node: Self = serde_saphyr::from_str(text).map_err(|error| {
            error.without_snippet().render_with_formatter(&UserMessageFormatter)
        })?;
        node.restore(text);
        Ok(node)
    }

    /// Returns the text of a scalar.
    pub(super) fn scalar(&self) -> Option<&str> {
        match &self.value {
            YamlValue::Scalar(text) => Some(text),
            _ => None,
        }
    }

    /// Replaces numbers and booleans by the text that they were written as.
    fn restore(&mut self, source: &str) {
        match &mut self.value {
            YamlValue::Null => {}
            YamlValue::Scalar(text) => {
                let written = self.written.and_then(|(from, len)| source.get(from..from + len));
                if let Some(written) = written {
                    written.trim().clone_into(text);
                }
            }
            YamlValue::Items(items) => items.iter_mut().for_each(|item| item.restore(source)),
            YamlValue::Fields(fields) => {
                for (_, value) in fields {
                    value.restore(source);
                }
            }
        }
    }
}

impl<'de> Deserialize<'de> for YamlNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<ParsedValue>::deserialize(deserializer)?;
        let (at, span) = (spanned.referenced, spanned.defined.span());
        let bytes = || {
            let from = usize::try_from(span.byte_offset()?).ok()?;
            Some((from, usize::try_from(span.byte_len()?).ok()?))
        };
        let written = if spanned.value.is_text { None } else { bytes() };
        let (line, column) = (at.line(), at.column());
        Ok(Self { line, column, value: spanned.value.value, written })
    }
}

/// A value, and whether YAML reads it as a text.
struct ParsedValue {
    value: YamlValue,
    is_text: bool,
}

impl ParsedValue {
    fn text(text: impl Into<String>) -> Self {
        Self { value: YamlValue::Scalar(text.into()), is_text: true }
    }

    /// A number or boolean, which is restored to what was written.
    fn plain(scalar: impl fmt::Display) -> Self {
        Self { value: YamlValue::Scalar(scalar.to_string()), is_text: false }
    }

    fn structure(value: YamlValue) -> Self {
        Self { value, is_text: true }
    }
}

impl<'de> Deserialize<'de> for ParsedValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(YamlVisitor)
    }
}

struct YamlVisitor;

impl<'de> Visitor<'de> for YamlVisitor {
    type Value = ParsedValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any YAML")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ParsedValue, A::Error> {
        let mut fields = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let value: YamlNode = map.next_value()?;
            let (line, column) = (key.referenced.line(), key.referenced.column());
            let key = YamlValue::Scalar(key.value);
            fields.push((YamlNode { line, column, value: key, written: None }, value));
        }
        Ok(ParsedValue::structure(YamlValue::Fields(fields)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<ParsedValue, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = items.next_element()? {
            nodes.push(node);
        }
        Ok(ParsedValue::structure(YamlValue::Items(nodes)))
    }

    fn visit_some<D: Deserializer<'de>>(self, of: D) -> Result<ParsedValue, D::Error> {
        of.deserialize_any(self)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, of: D) -> Result<ParsedValue, D::Error> {
        of.deserialize_any(self)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<ParsedValue, E> {
        Ok(ParsedValue::text(text))
    }

    fn visit_bool<E: Error>(self, boolean: bool) -> Result<ParsedValue, E> {
        Ok(ParsedValue::plain(boolean))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<ParsedValue, E> {
        Ok(ParsedValue::plain(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<ParsedValue, E> {
        Ok(ParsedValue::plain(number))
    }

    fn visit_i128<E: Error>(self, number: i128) -> Result<ParsedValue, E> {
        Ok(ParsedValue::plain(number))
    }

    fn visit_u128<E: Error>(self, number: u128) -> Result<ParsedValue, E> {
        Ok(ParsedValue::plain(number))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<ParsedValue, E> {
        Ok(ParsedValue::plain(number))
    }

    fn visit_unit<E: Error>(self) -> Result<ParsedValue, E> {
        Ok(ParsedValue::structure(YamlValue::Null))
    }

    fn visit_none<E: Error>(self) -> Result<ParsedValue, E> {
        Ok(ParsedValue::structure(YamlValue::Null))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(node: &YamlNode) -> String {
        let at = format!("{}:{}", node.line, node.column);
        match &node.value {
            YamlValue::Null => format!("{at} null"),
            YamlValue::Scalar(text) => format!("{at} {text:?}"),
            YamlValue::Items(items) => {
                format!("[{}]", items.iter().map(shown).collect::<Vec<_>>().join(", "))
            }
            YamlValue::Fields(fields) => {
                let fields = fields.iter().map(|(k, v)| format!("{}: {}", shown(k), shown(v)));
                format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
            }
        }
    }

    #[test]
    fn scalars_are_kept_as_written_with_their_place() {
        for (text, expected) in [
            ("a: 007", r#"{1:1 "a": 1:4 "007"}"#),
            ("é: 1.10 # ten", r#"{1:1 "é": 1:4 "1.10"}"#),
            (
                "a: [true, 0x10, -1, ~]",
                r#"{1:1 "a": [1:5 "true", 1:11 "0x10", 1:17 "-1", 1:21 null]}"#,
            ),
            ("a: '1'\nb: \"x\\ty\"", r#"{1:1 "a": 1:4 "1", 2:1 "b": 2:4 "x\ty"}"#),
            ("a: &x 007\nb: *x", r#"{1:1 "a": 1:7 "007", 2:1 "b": 2:4 "007"}"#),
            ("1: é\n", r#"{1:1 "1": 1:4 "é"}"#),
        ] {
            assert_eq!(shown(&YamlNode::parse(text).expect(text)), expected, "{text}");
        }
    }

    #[test]
    fn hostile_texts_are_errors_with_a_place() {
        let laughs =
            (1..12).fold("a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned(), |text, of| {
                let before = vec![format!("*a{}", of - 1); 9].join(", ");
                format!("{text}a{of}: &a{of} [{before}]\n")
            });
        let deep = "[".repeat(100_000);
        for text in [&laughs, &deep, "a: 1\na: 2", "a: [", "a: 1\n---\nb: 2", "\u{0}", "a: \u{7}"] {
            let error = YamlNode::parse(text).expect_err(&text[..text.len().min(20)]);
            assert!(error.contains("line "), "{error}");
            assert!(error.len() < 1_000, "{error}");
        }
    }
}
