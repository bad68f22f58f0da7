//! Texts from elsewhere, as they are safe on a terminal: no control character, escape sequence or
//! bidirectional mark of theirs reaches it.

use std::fmt::Write;

const QUOTES: [char; 2] = ['"', '\''];

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
