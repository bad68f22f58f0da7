//! The words of an expression: names, texts, numbers and signs, with their positions.

use thiserror::Error;

/// A word of an expression.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    /// A field, a function or a keyword.
    Name(String),
    /// A field that was written with a `$`, so that it can be nothing else.
    Field(String),
    /// What was between quotes.
    Text(String),
    /// A number, as it was written.
    Number(String),
    /// A sign: brackets, a comma, a comparison.
    Sign(&'static str),
}

/// A text that is no expression.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{text:?}, character {position}: {problem}")]
pub struct SyntaxError {
    /// The text.
    pub text: String,
    /// The character at which it stops to be an expression, from 1.
    pub position: usize,
    /// What there must be instead.
    pub problem: String,
}

/// The signs. Of two that begin alike the longer one comes first.
const SIGNS: [&str; 11] = ["==", "!=", "=~", "!~", "<=", ">=", "<", ">", "(", ")", ","];

/// W3C formats name request and response headers like calls of these.
const W3C_PREFIXES: [&str; 4] = ["cs", "sc", "rs", "sr"];

/// Most bytes of an expression.
const MAX_TEXT: usize = 16 * 1024;

/// Splits an expression into its words, each with the character at which it begins.
///
/// # Errors
///
/// [`SyntaxError`] for the first character that begins no word.
pub(crate) fn tokens(text: &str) -> Result<Vec<(usize, Token)>, SyntaxError> {
    let error = |at: usize, problem: &str| SyntaxError {
        text: text.to_owned(),
        position: text[..at].chars().count() + 1,
        problem: problem.to_owned(),
    };
    if text.len() > MAX_TEXT {
        return Err(error(0, "must be at most 16384 bytes"));
    }
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(letter) = text[at..].chars().next() {
        let rest = &text[at..];
        if letter.is_whitespace() {
            at += letter.len_utf8();
            continue;
        }
        let (token, length) = if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign))
        {
            (Token::Sign(sign), sign.len())
        } else if letter == '"' || letter == '\'' {
            let length =
                rest[1..].find(letter).ok_or_else(|| error(at, "the quote must be closed"))?;
            (Token::Text(rest[1..=length].to_owned()), length + 2)
        } else if let Some(quoted) = rest.strip_prefix("${") {
            let length =
                quoted.find('}').ok_or_else(|| error(at, "the { must be closed by a }"))?;
            (Token::Field(quoted[..length].to_owned()), length + 3)
        } else if let Some(name) = rest.strip_prefix('$') {
            let length = name_length(name);
            (Token::Field(name[..length].to_owned()), length + 1)
        } else {
            let length = name_length(rest);
            let name = rest[..length].to_owned();
            (if is_number(&name) { Token::Number(name) } else { Token::Name(name) }, length)
        };
        if rest.starts_with('=') && !rest.starts_with("==") && !rest.starts_with("=~") {
            return Err(error(at, "must be == or =~"));
        }
        if matches!(&token, Token::Field(name) | Token::Name(name) if name.is_empty()) {
            return Err(error(at, "must be a field, a function, a number or a quoted text"));
        }
        found.push((text[..at].chars().count() + 1, token));
        at += length;
    }
    Ok(found)
}

/// Returns a field as it can be written in an expression.
pub(crate) fn field_text(name: &str) -> String {
    if name_length(name) == name.len() { format!("${name}") } else { format!("${{{name}}}") }
}

/// Returns how many bytes of the text are a name.
fn name_length(text: &str) -> usize {
    let is_outside = |letter: char| !letter.is_alphanumeric() && !"_-.@[]:/".contains(letter);
    let length = text.find(is_outside).unwrap_or(text.len());
    let is_header = text[length..].starts_with('(') && W3C_PREFIXES.contains(&&text[..length]);
    match text[length..].find(')') {
        Some(end) if is_header => length + end + 1,
        _ => length,
    }
}

fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    digits.starts_with(|first: char| first.is_ascii_digit()) && text.parse::<f64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Token> {
        let found = tokens(text).unwrap_or_else(|error| panic!("{error}"));
        found.into_iter().map(|(_, token)| token).collect()
    }

    #[test]
    fn names_of_all_formats_are_words() {
        for name in ["http_x_user", "request.headers[0].user", "cs-uri-stem", "cs(User-Agent)"] {
            assert_eq!(words(name), [Token::Name(name.into())]);
            assert_eq!(words(&format!("${name}")), [Token::Field(name.into())]);
            assert_eq!(words(&format!("${{{name}}}")), [Token::Field(name.into())]);
        }
        assert_eq!(words("${a b}"), [Token::Field("a b".into())]);
    }

    #[test]
    fn a_comparison_has_three_words() {
        let name = Token::Name("status".into());
        for sign in ["==", "!=", "<=", ">=", "<", ">", "=~", "!~"] {
            let expected = [name.clone(), Token::Sign(sign), Token::Number("404".into())];
            assert_eq!(words(&format!("status{sign}404")), expected);
        }
        assert_eq!(words("'a \"b'"), [Token::Text("a \"b".into())]);
    }

    #[test]
    fn errors_name_the_position() {
        for (text, position) in [("a 'b", 3), ("ä ${x", 3), ("$", 1), ("a & b", 3), ("a = b", 3)] {
            assert_eq!(tokens(text).expect_err(text).position, position, "{text}");
        }
        assert_eq!(tokens("a = b").expect_err("one =").problem, "must be == or =~");
        assert!(tokens(&"a".repeat(MAX_TEXT + 1)).is_err());
    }
}
