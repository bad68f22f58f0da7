//! Texts from elsewhere, as they are safe in a page.

use std::fmt::Write;

const QUOTES: [char; 2] = ['"', '\''];

/// Returns a text for HTML, SVG and their attributes: markup is escaped, and characters that nobody
/// sees or that change the direction of a line are written as escape sequences.
pub fn escaped(text: &str) -> String {
    markup_escaped(&visible(text))
}

/// Returns a text that is [`escaped`], of at most about `most` characters as they are shown.
pub(super) fn escaped_label(text: &str, most: usize) -> String {
    // A character is shown as at most ten.
    markup_escaped(&shortened(&visible(&shortened(text, most)), most))
}

/// Returns a text without characters that nobody sees.
fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for piece in text.split_inclusive(QUOTES) {
        let plain = piece.strip_suffix(QUOTES).unwrap_or(piece);
        shown.extend(plain.escape_debug());
        shown.push_str(&piece[plain.len()..]);
    }
    shown
}

fn markup_escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => shown.push_str("&amp;"),
            '<' => shown.push_str("&lt;"),
            '>' => shown.push_str("&gt;"),
            '"' | '\'' => {
                let _infallible = write!(shown, "&#{};", u32::from(char));
            }
            other => shown.push(other),
        }
    }
    shown
}

/// Returns a text of at most about `most` characters: of a longer one its begin and its end.
pub fn shortened(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let end = most / 3;
    let begin: String = text.chars().take(most - end - 1).collect();
    let end: String = text.chars().skip(count - end).collect();
    format!("{begin}…{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_controls_and_marks_are_escaped() {
        for (text, shown) in [
            ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
            ("a\"b'c&d", "a&#34;b&#39;c&amp;d"),
            ("\u{202e}evil\0\u{1b}[2J\n", r"\u{202e}evil\0\u{1b}[2J\n"),
            ("\u{ffff}\u{feff}é💡", r"\u{ffff}\u{feff}é💡"),
            (r"back\slash", r"back\\slash"),
        ] {
            assert_eq!(escaped(text), shown, "{text:?}");
        }
    }

    #[test]
    fn labels_are_short_as_they_are_shown() {
        assert_eq!(escaped_label(&"\0".repeat(100), 7), r"\0\0…\0");
        assert_eq!(escaped_label("a<b", 7), "a&lt;b");
    }

    #[test]
    fn long_texts_keep_their_begin_and_end() {
        assert_eq!(shortened("abc", 3), "abc");
        assert_eq!(shortened("abcdefghij", 7), "abcd…ij");
        assert_eq!(shortened(&"ü".repeat(100), 10).chars().count(), 10);
    }
}
