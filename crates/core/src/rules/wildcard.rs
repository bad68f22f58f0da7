//! The pattern language of rules and of Envoy's files: `*` matches any text, `\*` an asterisk.

/// A text in which each `*` matches any text, including the empty one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wildcard {
    /// The texts around the wildcards: one more than there are wildcards.
    literals: Vec<String>,
}

impl Wildcard {
    /// Parses a text. Without a wildcard the result has one literal.
    ///
    /// `\*` is an asterisk. Backslashes are escapes only directly before a `*`, where `\\` is one
    /// backslash.
    pub(super) fn new(text: &str) -> Self {
        let mut literals = Vec::new();
        let mut literal = String::new();
        let mut pieces = text.split('*');
        let mut piece = pieces.next().unwrap_or_default();
        for next in pieces {
            let before = piece.trim_end_matches('\\');
            let backslashes = piece.len() - before.len();
            literal.push_str(before);
            literal.extend(std::iter::repeat_n('\\', backslashes / 2));
            if backslashes % 2 == 1 {
                literal.push('*');
            } else {
                literals.push(std::mem::take(&mut literal));
            }
            piece = next;
        }
        literal.push_str(piece);
        literals.push(literal);
        Self { literals }
    }

    /// The texts around the wildcards: one more than there are wildcards.
    pub fn literals(&self) -> &[String] {
        &self.literals
    }

    /// Returns the text that [`Wildcard::new`] parses to this wildcard.
    pub(super) fn to_text(&self) -> String {
        let last = self.literals.len() - 1;
        let written =
            self.literals.iter().enumerate().map(|(index, literal)| escaped(literal, index < last));
        written.collect::<Vec<_>>().join("*")
    }

    /// Returns `true` if `value` begins with the first literal, ends with the last one, and has the
    /// others in order between them.
    pub(super) fn fits(&self, value: &str) -> bool {
        let [first, between @ .., last] = self.literals.as_slice() else {
            return self.literals.iter().any(|exact| exact == value);
        };
        let Some(mut rest) = value.strip_prefix(first.as_str()) else { return false };
        for part in between {
            let Some((_, after)) = rest.split_once(part.as_str()) else { return false };
            rest = after;
        }
        rest.ends_with(last.as_str())
    }
}

/// Escapes a literal that stands before a wildcard (`before_star`) or at the end.
pub(super) fn escaped(literal: &str, before_star: bool) -> String {
    let mut written = String::with_capacity(literal.len());
    let mut pieces = literal.split('*').peekable();
    while let Some(piece) = pieces.next() {
        written.push_str(piece);
        let is_last = pieces.peek().is_none();
        if !is_last || before_star {
            // Before a `*` backslashes are escapes.
            let backslashes = piece.len() - piece.trim_end_matches('\\').len();
            written.extend(std::iter::repeat_n('\\', backslashes));
        }
        if !is_last {
            written.push_str(r"\*");
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn to_text_is_parsed_to_the_same_wildcard(text in r"[a*\\]{0,12}") {
            let read = Wildcard::new(&text);
            prop_assert_eq!(Wildcard::new(&read.to_text()), read);
        }
    }

    #[test]
    fn each_star_matches_any_text() {
        let fits = |pattern: &str, value: &str| Wildcard::new(pattern).fits(value);
        for (pattern, value) in [
            ("*", ""),
            ("*", "a"),
            ("a*", "a"),
            ("a*", "ab"),
            ("*b", "ab"),
            ("a*c", "ac"),
            ("a*c", "abc"),
            ("/api/*/resource/*/action", "/api/v1/resource/12/action"),
            ("a*b*b", "abb"),
            ("**", "a"),
            ("a", "a"),
            (r"\*", "*"),
            (r"a\*b*", "a*bc"),
            (r"\\*", r"\x"),
            (r"\\\*", r"\*"),
            (r"a\b\\c", r"a\b\\c"),
            (r"*\", r"a\"),
        ] {
            assert!(fits(pattern, value), "{pattern} {value}");
        }
        for (pattern, value) in [
            ("a*", "ba"),
            ("a*c", "ab"),
            ("ab*bc", "abc"),
            ("a*b*b", "ab"),
            ("/api/*/action", "/api/1/other"),
            ("a", "ab"),
            (r"\*", "a"),
            (r"\*", r"\a"),
            (r"a\*b*", "axbc"),
            (r"\\\*", r"\x"),
        ] {
            assert!(!fits(pattern, value), "{pattern} {value}");
        }
    }
}
