//! Reads one parameter of a query string. A value that can't be decoded is rejected, not repaired.

use super::problem::{Field, Rejection};

/// Returns the value of a parameter that must be given exactly once. Other parameters are ignored.
pub(super) fn parameter(query: &str, field: &Field) -> Result<String, Rejection> {
    let mut values = query.split('&').filter_map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = decode(name)?;
        field.names.contains(&name.as_str()).then_some(value)
    });
    let value = values.next().ok_or_else(|| field.missing())?;
    if values.next().is_some() {
        return Err(field.duplicate());
    }
    decode(value).ok_or_else(|| field.invalid())
}

/// Decodes `%41` and `+`. Returns `None` for an incomplete escape or invalid UTF-8.
pub(super) fn decode(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => digit(bytes.next()?)? << 4 | digit(bytes.next()?)?,
            other => other,
        });
    }
    String::from_utf8(decoded).ok()
}

fn digit(byte: u8) -> Option<u8> {
    let digit = char::from(byte).to_digit(16)?;
    u8::try_from(digit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER_ID: Field = Field { names: &["userId"], reason: "user_id", valid: "a string" };

    #[test]
    fn parameter_is_decoded() {
        for (query, expected) in [
            ("userId=alice", "alice"),
            ("a=b&userId=a+b&c", "a b"),
            ("userId=%e2%9C%93%00%25", "✓\0%"),
            ("user%49d=a=b", "a=b"),
            ("userId=", ""),
            ("userId", ""),
            ("%=1&userId=alice", "alice"),
        ] {
            assert_eq!(parameter(query, &USER_ID).expect(query), expected);
        }
    }

    #[test]
    fn errors_name_the_parameter() {
        for (query, expected) in [
            ("", "userId: missing"),
            ("userid=alice", "userId: missing"),
            ("userId=a&userId=b", "userId: given twice"),
            ("userId=%", "userId must be a string"),
            ("userId=%4", "userId must be a string"),
            ("userId=%+1", "userId must be a string"),
            ("userId=%FF", "userId must be a string"),
        ] {
            assert_eq!(parameter(query, &USER_ID).expect_err(query).detail, expected);
        }
    }
}
