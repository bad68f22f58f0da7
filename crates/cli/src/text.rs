//! Texts of others, as they are shown on a terminal: no value can forge a line, a column or a
//! colour.

use std::fmt::Write;
use std::time::Duration;

use prost_types::Timestamp;
use rlaas_core::rules::{Percentage, Share};
use rlaas_proto::ratelimit::admin::v1::{Coverage, KeyRef, KeyState};
use rlaas_proto::ratelimit::v1::Grant;
use rlaas_proto::{limit_words, wait_words};

const QUOTES: [char; 2] = ['"', '\''];
/// The project of requests without an API key, in commands.
const UNNAMED: &str = "_";

/// Returns the id of a project as the protocol has it.
pub fn project_id(shown: &str) -> String {
    if shown == UNNAMED { String::new() } else { shown.to_owned() }
}

/// Returns the id of a project as commands have it.
pub fn project(id: &str) -> String {
    if id.is_empty() { UNNAMED.to_owned() } else { value(id) }
}

/// Shows a value: as it is if it consists of harmless characters, else in quotes, with escapes.
pub fn value(text: &str) -> String {
    let is_plain = |char: char| char.is_alphanumeric() || "-_./:@+~*#%".contains(char);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("\"{}\"", printable(text).replace('"', "\\\""))
    }
}

/// Shows a text of several words, without quotes; `-` if it is empty.
pub fn words(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { printable(text) }
}

/// Shows the parts of a key, or its id where only that is known.
pub fn key(key: Option<&KeyRef>) -> String {
    key.map(|key| key.words(value)).unwrap_or_default()
}

/// Shows units per window; the wire has 0 for a ban and the largest number for no limit.
pub fn limit(units: i64) -> String {
    limit_words(units, self::units)
}

/// Shows parts per million as a percentage; nothing for 0.
pub fn share(ppm: u32) -> Option<String> {
    Some(Percentage(Share::new(ppm)?).to_string())
}

/// Shows the use of a key; `-` if nothing is counted.
pub fn key_use(state: &KeyState) -> String {
    if matches!(state.limit, 0 | i64::MAX) { "-".to_owned() } else { state.use_words(units) }
}

/// Shows units left or in use.
pub fn units(units: i64) -> String {
    if units == i64::MAX { "unlimited".to_owned() } else { units.to_string() }
}

/// Shows a grant.
pub fn grant(grant: Option<&Grant>) -> String {
    grant.copied().unwrap_or_default().words(|units| units.to_string())
}

/// Shows a wait; `-` if there is none.
pub fn wait(duration: Option<&prost_types::Duration>) -> String {
    duration.filter(|wait| is_positive(wait)).map_or_else(|| "-".to_owned(), wait_words)
}

/// Returns `true` for a duration that is longer than 0.
pub(crate) fn is_positive(duration: &prost_types::Duration) -> bool {
    duration.seconds > 0 || duration.nanos > 0
}

/// Shows a latency; `-` if it is not known.
pub fn latency(duration: Option<&prost_types::Duration>) -> String {
    let nanos = duration
        .map(|time| time.seconds.saturating_mul(1_000_000_000).saturating_add(time.nanos.into()));
    let nanos = nanos.and_then(|nanos| u64::try_from(nanos).ok());
    nanos.map_or_else(|| "-".to_owned(), |nanos| format!("{:.2?}", Duration::from_nanos(nanos)))
}

/// Shows a time in UTC, to the second.
pub fn time(time: Option<&Timestamp>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| Timestamp { nanos: 0, ..*time }.to_string())
}

/// Returns a line that says which instances were counted, if there is more than one.
pub fn coverage(Coverage { instances, missing }: Coverage) -> String {
    let all = instances.len() + missing.len();
    if missing.is_empty() {
        return if all > 1 { format!("counted by {all} instances\n") } else { String::new() };
    }
    let missing: Vec<_> = missing.iter().map(|id| value(id)).collect();
    format!("counted by {} of {all} instances; missing: {}\n", instances.len(), missing.join(", "))
}

/// Returns `1 key` or `2 keys`.
pub fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// Returns a text for people: characters that a terminal would obey, or that nobody sees, are
/// escaped. Quotes are left as they are.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for piece in text.split_inclusive(QUOTES) {
        let plain = piece.strip_suffix(QUOTES).unwrap_or(piece);
        let _infallible = write!(shown, "{}{}", plain.escape_debug(), &piece[plain.len()..]);
    }
    shown
}

/// Returns the same JSON with such characters as `\u` escapes. Outside of texts JSON has none.
pub fn printable_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for char in json.chars() {
        let is_printable =
            if char.is_ascii() { char != '\u{7f}' } else { char.escape_debug().len() == 1 };
        if is_printable {
            shown.push(char);
        } else {
            for unit in char.encode_utf16(&mut [0; 2]) {
                let _infallible = write!(shown, "\\u{unit:04x}");
            }
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_values_stay_in_their_place() {
        for (text, shown) in [
            ("alice", "alice"),
            ("/v1/pay?x", "\"/v1/pay?x\""),
            ("", "\"\""),
            ("a, b=c", "\"a, b=c\""),
            ("a\nb\0\u{1b}[2J", r#""a\nb\0\u{1b}[2J""#),
            ("\u{202e}evil", r#""\u{202e}evil""#),
            ("say \"hi\"", r#""say \"hi\"""#),
            ("O'Brien", r#""O'Brien""#),
        ] {
            assert_eq!(value(text), shown, "{text:?}");
        }
        assert_eq!(words("a \"b\"\n\u{9b}c"), r#"a "b"\n\u{9b}c"#);
        assert_eq!(words(""), "-");
    }

    #[test]
    fn controls_and_marks_are_escaped_and_quotes_are_not() {
        for (text, shown) in [
            ("the rule's \"name\"", "the rule's \"name\""),
            ("'", "'"),
            ("", ""),
            ("a\nb\0\u{1b}[2J\u{9b}31m\u{7f}", r"a\nb\0\u{1b}[2J\u{9b}31m\u{7f}"),
            ("\u{202e}\u{2066}\u{200f}\u{61c}é", r"\u{202e}\u{2066}\u{200f}\u{61c}é"),
            (r"\u{1b}", r"\\u{1b}"),
        ] {
            assert_eq!(printable(text), shown, "{text:?}");
        }
    }

    #[test]
    fn json_keeps_its_meaning() {
        let text = "a\n\u{1b}\u{7f}\u{9b}é\u{202e}\u{e0001}\"\\'";
        let json = serde_json::to_string(text).expect("JSON");
        let shown = printable_json(&json);
        assert_eq!(shown, r#""a\n\u001b\u007f\u009bé\u202e\udb40\udc01\"\\'""#);
        assert_eq!(serde_json::from_str::<String>(&shown).expect("JSON"), text);
    }
}
