//! Formats as nginx describes them: `log_format` of its log module.
//!
//! **Source:** <https://nginx.org/en/docs/http/ngx_http_log_module.html#log_format>.

use super::known::{DurationUnit, KnownDuration, KnownTime, StampForm};
use super::request_line::RequestPart;
use super::template::{Quotes, Template, ValueShape};
use super::text::{DerivedField, Listing, TextFormat};
use super::{FormatError, KnownFields};
use crate::traffic::StampedAt;

/// nginx's own `combined`.
const COMBINED: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status \
                        $body_bytes_sent \"$http_referer\" \"$http_user_agent\"";

/// Bounds of a format.
const MAX_FORMAT_BYTES: usize = 16 * 1024;
const MAX_VARIABLES: usize = 128;

/// Variables that are parts of `$request`.
const PARTS: [(&str, RequestPart); 6] = [
    ("request_method", RequestPart::Method),
    ("request_uri", RequestPart::Target),
    ("uri", RequestPart::Path),
    ("args", RequestPart::Query),
    ("query_string", RequestPart::Query),
    ("server_protocol", RequestPart::Protocol),
];

/// Variables with the time, the most exact first.
const TIMES: [(&str, StampForm); 3] = [
    ("msec", StampForm::EpochSeconds),
    ("time_iso8601", StampForm::Rfc3339),
    ("time_local", StampForm::CommonLog),
];

/// Compiles a format. It may be the text of the format alone; the same in single quotes, in several
/// pieces as in nginx's configuration; or the whole directive with its name. `combined` and nothing
/// mean nginx's own format. `escape=…` may stand before the text.
pub(super) fn compile(format: &str) -> Result<TextFormat, FormatError> {
    if format.len() > MAX_FORMAT_BYTES {
        return Err(FormatError::NginxLength { maximum: MAX_FORMAT_BYTES });
    }
    let format = format.trim_matches(['\n', '\r']);
    if format.is_empty() || format == "combined" {
        return from_text(COMBINED, Quotes::Escaped);
    }
    let (format, is_directive) = match format.trim_start().strip_prefix("log_format ") {
        Some(rest) => {
            let rest = rest.trim_start();
            let name = rest.find(char::is_whitespace).unwrap_or(rest.len());
            (rest[name..].trim_start(), true)
        }
        None => (format, false),
    };
    let (format, quotes) = match format.strip_prefix("escape=") {
        Some(rest) => {
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            let quotes = match &rest[..end] {
                "default" | "json" => Quotes::Escaped,
                "none" => Quotes::Plain,
                _ => return Err(FormatError::NginxEscape),
            };
            (rest[end..].trim_start(), quotes)
        }
        None => (format, Quotes::Escaped),
    };
    let is_quoted = format.starts_with('\'') && format.trim_end().ends_with(['\'', ';']);
    if is_directive || is_quoted {
        from_text(&unquote(format)?, quotes)
    } else {
        from_text(format, quotes)
    }
}

/// Joins quoted pieces of nginx's configuration.
fn unquote(pieces: &str) -> Result<String, FormatError> {
    let mut text = String::new();
    let mut rest = pieces.trim();
    while !rest.is_empty() && rest != ";" {
        let quote = rest.chars().next().filter(|quote| ['\'', '"'].contains(quote));
        let quote = quote.ok_or(FormatError::NginxQuotes)?;
        let mut characters = rest[1..].char_indices();
        rest = loop {
            match characters.next().ok_or(FormatError::NginxQuotes)? {
                (at, end) if end == quote => break rest[at + 2..].trim_start(),
                (_, '\\') => match characters.next().ok_or(FormatError::NginxQuotes)?.1 {
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    'n' => text.push('\n'),
                    plain @ ('"' | '\'' | '\\') => text.push(plain),
                    other => text.extend(['\\', other]),
                },
                (_, other) => text.push(other),
            }
        };
    }
    Ok(text)
}

/// Compiles the text of a format.
fn from_text(text: &str, quotes: Quotes) -> Result<TextFormat, FormatError> {
    let (before, variables) = split(text)?;
    if variables.is_empty() {
        return Err(FormatError::NginxWithoutVariables);
    }
    if variables.len() > MAX_VARIABLES {
        return Err(FormatError::NginxVariables { maximum: MAX_VARIABLES });
    }
    if text.contains(['\n', '\r']) {
        return Err(FormatError::NginxLineEnd);
    }
    for pair in variables.windows(2) {
        if pair[0].1.is_empty() {
            let (first, second) = (pair[0].0.to_owned(), pair[1].0.to_owned());
            return Err(FormatError::NginxAdjacent { first, second });
        }
    }
    let shapes: Vec<_> =
        variables.iter().map(|(name, after)| (shape(name), after.as_bytes())).collect();
    let has = |name: &str| variables.iter().any(|variable| variable.0 == name);
    let request = variables.iter().position(|variable| variable.0 == "request");
    let part = |(name, part): &(&'static str, RequestPart)| {
        let listing = Listing::Shown;
        Some(DerivedField { name, field: request?, part: Some(*part), listing })
    };
    let time = TIMES.iter().find(|(name, _)| has(name));
    let seconds =
        |field: &str| KnownDuration { field: field.to_owned(), unit: DurationUnit::Seconds };
    Ok(TextFormat {
        template: Template::new(before.as_bytes(), &shapes, quotes),
        quotes,
        names: variables.iter().map(|variable| variable.0.into()).collect(),
        derived: PARTS.iter().filter_map(part).collect(),
        known: KnownFields {
            time: time.map(|(name, form)| KnownTime { field: (*name).to_owned(), form: *form }),
            stamped_at: Some(StampedAt::End),
            duration: has("request_time").then(|| seconds("request_time")),
            status: has("status").then(|| "status".to_owned()),
        },
    })
}

/// The name of a variable, and the text behind it.
type Variable<'a> = (&'a str, &'a str);

/// Splits a format into the text before the first variable, and each variable with the text behind.
fn split(text: &str) -> Result<(&str, Vec<Variable<'_>>), FormatError> {
    let mut pieces = text.split('$');
    let before = pieces.next().unwrap_or_default();
    let variable = |piece: &'_ str| -> Option<usize> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let length = piece.find(|c| !is_name(c)).unwrap_or(piece.len());
        (length > 0).then_some(length)
    };
    let mut variables = Vec::new();
    for piece in pieces {
        let (name, after) = match piece.strip_prefix('{') {
            Some(braced) => {
                braced.split_once('}').filter(|(name, _)| variable(name) == Some(name.len()))
            }
            None => variable(piece).map(|length| piece.split_at(length)),
        }
        .ok_or(FormatError::NginxVariable)?;
        variables.push((name, after));
    }
    Ok((before, variables))
}

/// Returns what the values of a variable look like.
fn shape(variable: &str) -> ValueShape {
    match variable {
        "remote_addr" | "realip_remote_addr" | "binary_remote_addr" | "server_addr"
        | "time_iso8601" | "scheme" | "request_id" | "pipe" => ValueShape::Word,
        "status"
        | "body_bytes_sent"
        | "bytes_sent"
        | "request_length"
        | "request_time"
        | "msec"
        | "connection"
        | "connection_requests"
        | "remote_port"
        | "server_port"
        | "pid" => ValueShape::Number,
        "time_local" => ValueShape::CommonLogTime,
        _ => ValueShape::Any,
    }
}
