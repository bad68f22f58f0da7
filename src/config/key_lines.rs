//! Finds the line of a key in a YAML text. The text is parsed for this only after a problem was found
//! in it.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::yaml;

/// The line of each key in a text.
#[derive(Debug)]
pub(super) struct KeyLines(Node);

#[derive(Debug)]
struct Node {
    line: u64,
    children: Children,
}

#[derive(Debug)]
enum Children {
    Nothing,
    Items(Vec<Node>),
    Keys(Vec<(String, Node)>),
}

impl KeyLines {
    /// Parses a text. Returns `None` if it is not valid YAML.
    pub(super) fn parse(text: &str) -> Option<Self> {
        yaml::parse(text).ok().map(Self)
    }

    /// Returns the line of a key such as `rules[0].limit`, counted from 1. For a missing key, the line
    /// of the section that lacks it; `None` if that is the whole text.
    pub(super) fn line_of(&self, key: &str) -> Option<u64> {
        self.0.line_of(key)
    }
}

impl Node {
    fn line_of(&self, key: &str) -> Option<u64> {
        match &self.children {
            Children::Nothing => None,
            Children::Items(items) => {
                let (index, rest) = key.strip_prefix('[')?.split_once(']')?;
                items.get(index.parse::<usize>().ok()?)?.line_at(rest)
            }
            Children::Keys(keys) => keys.iter().find_map(|(name, node)| {
                let rest = strip_name(key, name)?;
                node.line_at(rest)
            }),
        }
    }

    /// Returns the line of the key `rest` below this node, or the node's own line.
    fn line_at(&self, rest: &str) -> Option<u64> {
        let key = rest.strip_prefix('.').unwrap_or(rest);
        let line = if key.is_empty() { None } else { self.line_of(key) };
        line.or(Some(self.line)).filter(|line| *line > 0)
    }
}

/// Removes the prefix `name` from `key`, where `-` equals `_`.
fn strip_name<'a>(key: &'a str, name: &str) -> Option<&'a str> {
    let (start, rest) = key.split_at_checked(name.len())?;
    let is_equal = |(left, right): (u8, u8)| {
        left == right || (matches!(left, b'-' | b'_') && matches!(right, b'-' | b'_'))
    };
    let is_name = start.bytes().zip(name.bytes()).all(is_equal);
    (is_name && (rest.is_empty() || rest.starts_with(['.', '[']))).then_some(rest)
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value, referenced, .. } = Spanned::<Children>::deserialize(deserializer)?;
        Ok(Self { line: referenced.line(), children: value })
    }
}

impl<'de> Deserialize<'de> for Children {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ChildrenVisitor)
    }
}

struct ChildrenVisitor;

impl<'de> Visitor<'de> for ChildrenVisitor {
    type Value = Children;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any YAML")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Children, A::Error> {
        let mut keys = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let Node { line, children } = map.next_value()?;
            let key_line = key.referenced.line();
            let line = if key_line > 0 { key_line } else { line };
            keys.push((key.value, Node { line, children }));
        }
        Ok(Children::Keys(keys))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Children, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = items.next_element()? {
            nodes.push(node);
        }
        Ok(Children::Items(nodes))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Children, E> {
        Ok(Children::Nothing)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Children, E> {
        Ok(Children::Nothing)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Children, E> {
        Ok(Children::Nothing)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Children, E> {
        Ok(Children::Nothing)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Children, E> {
        Ok(Children::Nothing)
    }

    fn visit_unit<E: Error>(self) -> Result<Children, E> {
        Ok(Children::Nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_its_line_and_a_missing_key_the_line_of_its_section() {
        let text = "a: 1\nb_c:\n  d: [x, y]\n  e.f: 007\nrules:\n  - name: a\n    limit: 1\n  \
                    - name: b\n    match:\n      attributes: {p: ~}\n";
        let lines = KeyLines::parse(text).expect("YAML");
        for (key, line) in [
            ("a", Some(1)),
            ("b_c", Some(2)),
            ("b-c.d", Some(3)),
            ("b-c.d[1]", Some(3)),
            ("b_c.e.f", Some(4)),
            ("b_c.missing", Some(2)),
            ("rules[0].limit", Some(7)),
            ("rules[1].limit", Some(8)),
            ("rules[1].match.attributes.p", Some(10)),
            ("rules[2].limit", Some(5)),
            ("missing", None),
        ] {
            assert_eq!(lines.line_of(key), line, "{key}");
        }
        assert!(KeyLines::parse("a: [").is_none());
    }
}
