//! Escapes of access logs, undone.

use memchr::memchr;

/// Appends a text without its escapes: `\xHH`, `\uHHHH` with surrogate pairs, `\"`, `\\`, `\/`, and
/// `\b \f \n \r \t \v`. nginx, Apache and JSON write different ones of these, and none writes one of
/// them in another meaning. Any other backslash stays.
///
/// Half a surrogate pair becomes the three bytes of its code point, which are no UTF-8: two ids that
/// differ stay different.
pub(super) fn append_unescaped(mut text: &[u8], to: &mut Vec<u8>) {
    while let Some(found) = memchr(b'\\', text) {
        to.extend_from_slice(&text[..found]);
        text = &text[found..];
        let (length, character) = escape(text);
        match character {
            Escaped::Byte(byte) => to.push(byte),
            Escaped::Code(code) => append_code(code, to),
            Escaped::Nothing => to.extend_from_slice(&text[..length]),
        }
        text = &text[length..];
    }
    to.extend_from_slice(text);
}

enum Escaped {
    Byte(u8),
    Code(u32),
    Nothing,
}

/// Reads the escape at the beginning of a text. Returns its length and what it stands for.
fn escape(text: &[u8]) -> (usize, Escaped) {
    let byte = |byte| (2, Escaped::Byte(byte));
    match text.get(1) {
        Some(plain @ (b'"' | b'\\' | b'/')) => byte(*plain),
        Some(b'b') => byte(0x08),
        Some(b'f') => byte(0x0c),
        Some(b'n') => byte(b'\n'),
        Some(b'r') => byte(b'\r'),
        Some(b't') => byte(b'\t'),
        Some(b'v') => byte(0x0b),
        Some(b'x') => match text.get(2..4).and_then(hex) {
            Some(code) => (4, Escaped::Byte(u8::try_from(code).expect("two digits"))),
            None => (2, Escaped::Nothing),
        },
        Some(b'u') => match text.get(2..6).and_then(hex) {
            Some(code) => with_second_half(code, &text[6..]),
            None => (2, Escaped::Nothing),
        },
        _ => (1, Escaped::Nothing),
    }
}

/// Returns the character of `\uHHHH`, with the second half of a surrogate pair that may follow.
fn with_second_half(first: u32, rest: &[u8]) -> (usize, Escaped) {
    let second = rest.strip_prefix(b"\\u").and_then(|rest| rest.get(..4)).and_then(hex);
    match second {
        Some(second @ 0xdc00..=0xdfff) if (0xd800..=0xdbff).contains(&first) => {
            let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
            (12, Escaped::Code(code))
        }
        _ => (6, Escaped::Code(first)),
    }
}

/// Appends a code point as UTF-8 has it, halves of surrogate pairs too.
fn append_code(code: u32, to: &mut Vec<u8>) {
    if let Some(character) = char::from_u32(code) {
        to.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    } else {
        let bits = |shift: u32| u8::try_from((code >> shift) & 0x3f).expect("six bits");
        to.extend_from_slice(&[0xe0 | bits(12), 0x80 | bits(6), 0x80 | bits(0)]);
    }
}

/// Returns the number that hexadecimal digits stand for.
fn hex(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |number, digit| Some(number * 16 + char::from(*digit).to_digit(16)?))
}

/// Appends a text in which `%HH` stands for a byte. Any other `%` stays.
pub(super) fn append_percent_decoded(mut text: &[u8], to: &mut Vec<u8>) {
    while let Some(found) = memchr(b'%', text) {
        to.extend_from_slice(&text[..found]);
        text = &text[found..];
        let length = if let Some(code) = text.get(1..3).and_then(hex) {
            to.push(u8::try_from(code).expect("two digits"));
            3
        } else {
            to.push(b'%');
            1
        };
        text = &text[length..];
    }
    to.extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone() {
        for (text, expected) in [
            (&br"plain"[..], &b"plain"[..]),
            (br#"\x22a\x5C\xff\"\\\/"#, b"\"a\\\xff\"\\/"),
            (br"\n\r\t\b\f\v", b"\n\r\t\x08\x0c\x0b"),
            (br"\u00e9\u0000\ud83d\ude00", "é\0😀".as_bytes()),
            (br"\ud83d\ud83d\ude00", "\u{0}😀".as_bytes()),
            (br"\ude00x", b"\xed\xb8\x80x"),
            (br"\x2\xzz\u12\q\", br"\x2\xzz\u12\q\"),
        ] {
            let mut found = Vec::new();
            append_unescaped(text, &mut found);
            let expected = match expected {
                [0, rest @ ..] => [b"\xed\xa0\xbd", rest].concat(),
                _ => expected.to_vec(),
            };
            assert_eq!(found, expected, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn percent_is_decoded_once() {
        for (text, expected) in
            [("a%20b%2520", "a b%20"), ("100%", "100%"), ("%zz%4", "%zz%4"), ("", "")]
        {
            let mut found = Vec::new();
            append_percent_decoded(text.as_bytes(), &mut found);
            assert_eq!(found, expected.as_bytes());
        }
    }
}
