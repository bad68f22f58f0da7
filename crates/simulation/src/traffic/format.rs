//! Formats of logs, and the fields of a line.
//!
//! Text is split by a regular expression with named groups; Common and Combined Log are two of
//! these, with the escapes of Apache and nginx undone. A line of JSON is one object, whose keys are
//! fields.

use std::borrow::Cow;
use std::str::FromStr;

use regex::{Regex, RegexBuilder};
use serde_json::Value;
use thiserror::Error;

/// Bytes that a compiled expression may take.
const MAX_COMPILED: usize = 8 << 20;

/// The Common Log Format, as Apache writes it, with the parts of the request line.
///
/// **Source:** <https://httpd.apache.org/docs/2.4/logs.html#accesslog>.
const COMMON: &str = concat!(
    r#"^(?<host>\S+) (?<ident>\S+) (?<user>.*?) \[(?<time>[^\]]+)\] "(?<request>"#,
    r#"(?<method>[^ "\\]+) (?<uri>(?:[^"\\]|\\.)*?)(?: (?<protocol>HTTP/[^ "]+))?"#,
    r#"|(?:[^"\\]|\\.)*)" (?<status>\d+|-) (?<bytes>\d+|-)"#,
);
/// What the Combined Log Format has behind it.
const COMBINED: &str = r#" "(?<referer>(?:[^"\\]|\\.)*)" "(?<user_agent>(?:[^"\\]|\\.)*)""#;
/// What follows the fields is left out, such as a last field of nginx's `main` format.
const REST: &str = "(?: .*)?$";

/// Formats that were removed, and what to use instead.
const REMOVED: [(&str, &str); 4] = [
    ("vhost_common", "cut -d' ' -f2- makes common of it"),
    ("vhost_combined", "cut -d' ' -f2- makes combined of it"),
    ("nginx", "use combined, or jsonl with a log_format of escape=json, or regex:EXPRESSION"),
    ("w3c", "use regex:EXPRESSION, or make JSON of it"),
];

/// Format of the lines of a log.
#[derive(Clone, Debug)]
pub struct LogFormat {
    name: &'static str,
    kind: FormatKind,
}

#[derive(Clone, Debug)]
enum FormatKind {
    /// A regular expression with named groups, and whether escapes in their values are undone.
    Text {
        expression: Regex,
        is_escaped: bool,
    },
    Json,
}

/// A text is no format.
#[derive(Debug, Error)]
pub enum FormatError {
    /// A format of an earlier version.
    #[error("{name} was removed: see docs/simulation.md, {instead}")]
    Removed {
        /// Its name.
        name: &'static str,
        /// What to use instead.
        instead: &'static str,
    },
    /// Not the name of a format.
    #[error("must be common, combined, jsonl, envoy-json or regex:EXPRESSION")]
    Unknown,
    /// The expression can't be used.
    #[error("regex: {0}")]
    Expression(#[from] regex::Error),
}

/// Where in a line a field is.
#[derive(Clone, Debug)]
pub(super) enum FieldPlace {
    /// A group of the expression.
    Group(usize),
    /// A key of the JSON, or keys within keys, with points between them.
    Key(Box<str>),
}

/// The fields of a line.
pub(super) enum LineFields<'a> {
    Text { groups: regex::Captures<'a>, is_escaped: bool },
    Json(Value),
}

/// Why a line has no fields.
#[derive(Debug, Error)]
pub(super) enum FieldsError {
    #[error("the line does not have the format {0}")]
    Text(&'static str),
    #[error("the line must be a JSON object: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the line must be a JSON object")]
    NoObject,
}

impl FromStr for LogFormat {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        let (name, kind) = match text {
            "common" => ("common", FormatKind::text(&[COMMON, REST].concat(), true)?),
            "combined" => ("combined", FormatKind::text(&[COMMON, COMBINED, REST].concat(), true)?),
            "jsonl" => ("jsonl", FormatKind::Json),
            "envoy-json" => ("envoy-json", FormatKind::Json),
            _ => match text.split_once(':') {
                Some(("regex", expression)) => ("regex", FormatKind::text(expression, false)?),
                parts => {
                    let wanted = parts.map_or(text, |(name, _)| name);
                    let removed = REMOVED.iter().find(|(name, _)| *name == wanted);
                    let (name, instead) = removed.ok_or(FormatError::Unknown)?;
                    return Err(FormatError::Removed { name, instead });
                }
            },
        };
        Ok(Self { name, kind })
    }
}

impl FormatKind {
    fn text(expression: &str, is_escaped: bool) -> Result<Self, regex::Error> {
        let expression = RegexBuilder::new(expression).size_limit(MAX_COMPILED).build()?;
        Ok(Self::Text { expression, is_escaped })
    }
}

impl LogFormat {
    /// Returns the name of the format.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the names of the fields; `None` if only the lines have them.
    pub(super) fn field_names(&self) -> Option<Vec<&str>> {
        match &self.kind {
            FormatKind::Text { expression, .. } => {
                Some(expression.capture_names().flatten().collect())
            }
            FormatKind::Json => None,
        }
    }

    /// Returns the place of a field; `None` if the format has no field of this name.
    pub(super) fn place(&self, field: &str) -> Option<FieldPlace> {
        match &self.kind {
            FormatKind::Text { expression, .. } => {
                let group = expression.capture_names().position(|name| name == Some(field));
                group.map(FieldPlace::Group)
            }
            FormatKind::Json => Some(FieldPlace::Key(field.into())),
        }
    }

    /// Returns the names of what requests are made of, with the fields of this format that have it.
    pub(super) fn default_mappings(&self) -> Vec<(&str, &str)> {
        match (self.name, self.field_names()) {
            ("common" | "combined", _) => vec![
                ("user_id", "host"),
                ("resource", "uri"),
                ("time", "time"),
                ("status", "status"),
            ],
            ("envoy-json", _) => vec![
                ("user_id", "downstream_remote_address"),
                ("resource", "path"),
                ("time", "start_time"),
                ("status", "response_code"),
            ],
            (_, names) => names.into_iter().flatten().map(|name| (name, name)).collect(),
        }
    }

    /// Splits a line into its fields.
    pub(super) fn fields<'a>(&self, line: &'a str) -> Result<LineFields<'a>, FieldsError> {
        match &self.kind {
            FormatKind::Text { expression, is_escaped } => {
                let groups = expression.captures(line).ok_or(FieldsError::Text(self.name))?;
                Ok(LineFields::Text { groups, is_escaped: *is_escaped })
            }
            FormatKind::Json => {
                let object: Value = serde_json::from_str(line)?;
                if object.is_object() {
                    Ok(LineFields::Json(object))
                } else {
                    Err(FieldsError::NoObject)
                }
            }
        }
    }
}

impl LineFields<'_> {
    /// Returns the value of a field: `None` if it is absent, null, empty or `-`.
    pub(super) fn value(&self, place: &FieldPlace) -> Option<Cow<'_, str>> {
        let value = match (self, place) {
            (Self::Text { groups, is_escaped }, FieldPlace::Group(group)) => {
                unescaped(groups.get(*group)?.as_str(), *is_escaped)
            }
            (Self::Json(object), FieldPlace::Key(path)) => match json_value(object, path)? {
                Value::Null => return None,
                Value::String(text) => Cow::Borrowed(&**text),
                other => Cow::Owned(other.to_string()),
            },
            _ => return None,
        };
        Some(value).filter(|value| !matches!(&**value, "" | "-"))
    }
}

/// Returns the value of a key, which may have points itself, or of keys within keys.
fn json_value<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    object.get(path).or_else(|| {
        let (key, rest) = path.split_once('.')?;
        json_value(object.get(key)?, rest)
    })
}

/// Undoes the escapes of Apache and nginx: `\xHH`, `\n`, `\t`, `\r`, and `\` before other characters.
fn unescaped(text: &str, is_escaped: bool) -> Cow<'_, str> {
    if !is_escaped || !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [byte, after @ ..] = rest {
        let hex = || u8::from_str_radix(str::from_utf8(after.get(1..3)?).ok()?, 16).ok();
        let (byte, taken) = match (byte, after.first()) {
            (b'\\', Some(b'x')) => hex().map_or((b'\\', 0), |byte| (byte, 3)),
            (b'\\', Some(b'n')) => (b'\n', 1),
            (b'\\', Some(b't')) => (b'\t', 1),
            (b'\\', Some(b'r')) => (b'\r', 1),
            (b'\\', Some(escaped)) => (*escaped, 1),
            _ => (*byte, 0),
        };
        bytes.push(byte);
        rest = &after[taken..];
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(format: &str, line: &str, fields: &[&str]) -> Vec<Option<String>> {
        let format: LogFormat = format.parse().expect("a format");
        let values = format.fields(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let value = |field: &&str| {
            let place = format.place(field).expect("a field of the format");
            values.value(&place).map(Cow::into_owned)
        };
        fields.iter().map(value).collect()
    }

    fn some(values: &[&str]) -> Vec<Option<String>> {
        values.iter().map(|value| Some((*value).to_owned())).collect()
    }

    #[test]
    fn common_and_combined_lines_are_split() {
        let common =
            r#"192.0.2.7 - ann lee [17/May/2026:10:05:03 +0000] "GET /a b?c HTTP/1.1" 200 17"#;
        let fields = ["host", "user", "time", "method", "uri", "protocol", "status", "bytes"];
        let expected =
            ["192.0.2.7", "ann lee", "17/May/2026:10:05:03 +0000", "GET", "/a b?c", "HTTP/1.1"];
        assert_eq!(values("common", common, &fields)[..6], some(&expected));
        assert_eq!(values("common", common, &["status", "bytes"]), some(&["200", "17"]));
        let combined = format!(r#"{common} "-" "say \"hi\" \x5C\x41\xC3\xA4\xff\q\x""#);
        assert_eq!(
            values("combined", &combined, &["referer", "user_agent", "ident"]),
            [None, Some("say \"hi\" \\A\u{e4}\u{fffd}q\\x".to_owned()), None]
        );
        let more = format!("{combined} \"192.0.2.1, 10.0.0.1\" 0.003");
        assert_eq!(values("combined", &more, &["uri"]), some(&["/a b?c"]), "nginx's main");
        for (request, expected) in [
            ("GET /a", [Some("GET"), Some("/a"), None]),
            ("GET /a/ HTTP/2.0", [Some("GET"), Some("/a/"), Some("HTTP/2.0")]),
            (r"GET /\x22 HTTP/1.0", [Some("GET"), Some("/\""), Some("HTTP/1.0")]),
            ("GET", [None; 3]),
            ("-", [None; 3]),
        ] {
            let line = common.replace("GET /a b?c HTTP/1.1", request);
            let found = values("common", &line, &["method", "uri", "protocol"]);
            let found: Vec<_> = found.iter().map(Option::as_deref).collect();
            assert_eq!(found, expected, "{request}");
        }
        let garbage = r#"192.0.2.7 - - [17/May/2026:10:05:03 +0000] "\x16\x03\x01" 400 0 "-" "-""#;
        assert_eq!(
            values("combined", garbage, &["uri", "host"]),
            [None, some(&["192.0.2.7"])[0].clone()]
        );
    }

    #[test]
    fn keys_of_json_are_found_within_keys() {
        let line = r#"{"user":{"id":"ann","n":7},"http.status":429,"ok":true,"no":null,"e":"","list":[1]}"#;
        let fields = ["user.id", "user.n", "http.status", "ok", "list"];
        assert_eq!(values("jsonl", line, &fields), some(&["ann", "7", "429", "true", "[1]"]));
        let absent = ["no", "e", "user.none", "none.id", "user.id.x"];
        assert_eq!(values("jsonl", line, &absent), vec![None; 5]);
        let format: LogFormat = "jsonl".parse().expect("a format");
        for line in ["[]", "1", "{", "", "{\"a\":1} x"] {
            assert!(format.fields(line).is_err(), "{line}");
        }
        let deep = format!("{}1{}", "{\"a\":".repeat(1_000), "}".repeat(1_000));
        assert!(format.fields(&deep).is_err(), "bounded");
    }

    #[test]
    fn groups_of_an_expression_are_fields() {
        let format = r"regex:^(?<time>\d+) (?<user_id>\S+)(?: (?<attributes.plan>\S+))?";
        let fields = ["time", "user_id", "attributes.plan"];
        assert_eq!(values(format, "17 a\\x41 free", &fields), some(&["17", "a\\x41", "free"]));
        assert_eq!(values(format, "17 ann", &fields)[2], None);
        let format: LogFormat = format.parse().expect("a format");
        assert!(format.fields("none").is_err());
        assert!(format.place("uri").is_none());
    }

    #[test]
    fn what_is_no_format_says_so() {
        let error = |text: &str| text.parse::<LogFormat>().expect_err("no format").to_string();
        assert!(error("combi").starts_with("must be common, combined, jsonl"));
        assert!(error("regex:(").starts_with("regex: regex parse error"));
        assert!(error("regex:(a{1000}){1000}").contains("size limit"));
        for (text, name) in [("nginx", "nginx"), ("nginx:$status", "nginx"), ("w3c", "w3c")] {
            let error = error(text);
            let expected = format!("{name} was removed: see docs/simulation.md");
            assert!(error.starts_with(&expected), "{error}");
        }
    }
}
