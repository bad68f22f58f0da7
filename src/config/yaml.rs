//! Formats values and keys as YAML that parses to the same values.

use std::fmt::Write;

use figment::value::{Dict, Value};
use serde::de::DeserializeOwned;

/// Words that some version of YAML does not parse as strings unless they are quoted.
const KEYWORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];

/// Parses a text of any length. Aliases may not make more of it than a text of this length has without
/// them.
///
/// # Errors
///
/// That of the parser.
pub(super) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, serde_saphyr::Error> {
    let default = serde_saphyr::Budget::default();
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: default.max_nodes.max(text.len()),
            max_events: default.max_events.max(2 * text.len()),
        },
    };
    serde_saphyr::from_str_with_options(text, options)
}

/// Returns `true` if `shown`, unquoted in a line of YAML, is parsed and read to the same setting again.
pub(super) fn reads_back<T, E>(
    shown: &str,
    given: &Value,
    read: impl Fn(&Value) -> Result<(T, String), E>,
) -> bool {
    let is_number = matches!(given, Value::Num(..)) && shown.bytes().all(|b| b.is_ascii_digit());
    // A shortcut for plain values, which most are: parsing each one again is slow with many rules.
    if is_word(shown) || is_number {
        return true;
    }
    let line = serde_saphyr::from_str::<Dict>(&format!("key: {shown}  # origin"));
    let again = line.ok().and_then(|line| read(line.get("key")?).ok());
    again.is_some_and(|(_, again)| again == shown)
}

/// Formats strings as a list.
pub(super) fn list(texts: &[String]) -> String {
    let item = |text: &String| if is_word(text) { text.clone() } else { quoted(text) };
    format!("[{}]", texts.iter().map(item).collect::<Vec<_>>().join(", "))
}

/// Formats a name as a key.
pub(super) fn key(name: &str) -> String {
    if is_word(name) && !name.contains(['.', '/']) { name.to_owned() } else { quoted(name) }
}

/// Formats a string in quotes.
pub(super) fn quoted(text: &str) -> String {
    let is_odd = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}');
    if !text.contains(is_odd) {
        return format!("'{}'", text.replace('\'', "''"));
    }
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            odd if is_odd(odd) => {
                let _infallible = write!(quoted, "\\u{:04X}", u32::from(odd));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns `true` if YAML parses the unquoted text as a string.
fn is_word(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte);
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at(digits);
    let is_duration = !number.is_empty()
        && !rest.is_empty()
        && rest.bytes().all(|byte| b"smhdun".contains(&byte));
    let is_name = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/')
        && text.bytes().all(plain)
        && !KEYWORDS.iter().any(|keyword| text.eq_ignore_ascii_case(keyword));
    is_name || is_duration
}
