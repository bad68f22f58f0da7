//! What a value must look like: exact, with `*` in it, one of several, or just there.

use super::wildcard::{Wildcard, escaped};

/// What a value must look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Any value, as long as there is one: `*`.
    Present,
    /// One of these.
    OneOf(Vec<TextPattern>),
}

/// A text in which each `*` stands for any text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TextPattern {
    /// This value.
    Exact(String),
    /// Any value that starts with this: one `*`, at the end.
    Prefix(String),
    /// Any value that fits this.
    Wildcard(Wildcard),
}

/// How closely a request fits: the more is said about it, the closer. Compares field by field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fit {
    /// Values that are exactly as said.
    exact: usize,
    /// Bytes of what is said beside stars.
    literal: usize,
    /// Values that are said to be there.
    present: usize,
}

impl Fit {
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            exact: self.exact + other.exact,
            literal: self.literal + other.literal,
            present: self.present + other.present,
        }
    }
}

impl Pattern {
    /// Reads `*`, or a text as [`TextPattern::new`] does.
    pub fn one(text: &str) -> Self {
        if text == "*" { Self::Present } else { Self::OneOf(vec![TextPattern::new(text)]) }
    }

    /// Reads texts, one of which must fit; their order says nothing.
    pub fn any_of(texts: &[String]) -> Self {
        match texts {
            [one] => Self::one(one),
            several if several.iter().any(|text| text == "*") => Self::Present,
            several => {
                let mut texts: Vec<TextPattern> =
                    several.iter().map(|text| TextPattern::new(text)).collect();
                texts.sort();
                Self::OneOf(texts)
            }
        }
    }

    /// How closely the pattern fits `value`; `None` if it does not.
    pub(super) fn fit(&self, value: Option<&str>) -> Option<Fit> {
        let value = value?;
        match self {
            Self::Present => Some(Fit { present: 1, ..Fit::default() }),
            Self::OneOf(texts) => texts.iter().filter_map(|text| text.fit(value)).max(),
        }
    }

    /// The values that fit, if all of them are exact.
    pub(super) fn exact(&self) -> Option<Vec<&str>> {
        match self {
            Self::Present => None,
            Self::OneOf(texts) => texts.iter().map(TextPattern::exact).collect(),
        }
    }
}

impl TextPattern {
    /// Reads a text: `*` is any text, `\*` a star.
    pub fn new(text: &str) -> Self {
        let wildcard = Wildcard::new(text);
        match wildcard.literals() {
            [exact] => Self::Exact(exact.clone()),
            [prefix, end] if end.is_empty() => Self::Prefix(prefix.clone()),
            _ => Self::Wildcard(wildcard),
        }
    }

    /// The text that [`TextPattern::new`] reads as this.
    pub fn to_text(&self) -> String {
        match self {
            Self::Exact(exact) => escaped(exact, false),
            Self::Prefix(prefix) => escaped(prefix, true) + "*",
            Self::Wildcard(wildcard) => wildcard.to_text(),
        }
    }

    /// Returns `true` if `value` is as the text says.
    pub(super) fn fits(&self, value: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == value,
            Self::Prefix(prefix) => value.starts_with(prefix.as_str()),
            Self::Wildcard(wildcard) => wildcard.fits(value),
        }
    }

    fn fit(&self, value: &str) -> Option<Fit> {
        self.fits(value).then(|| match self {
            Self::Exact(_) => Fit { exact: 1, ..Fit::default() },
            Self::Prefix(prefix) => Fit { literal: prefix.len(), ..Fit::default() },
            Self::Wildcard(wildcard) => {
                let literal = wildcard.literals().iter().map(String::len).sum();
                Fit { literal, ..Fit::default() }
            }
        })
    }

    fn exact(&self) -> Option<&str> {
        match self {
            Self::Exact(exact) => Some(exact),
            Self::Prefix(_) | Self::Wildcard(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_of_several_fits() {
        let pattern = Pattern::OneOf(["a*", "ab*", "abc"].map(TextPattern::new).to_vec());
        let fit = |value| pattern.fit(Some(value));
        assert!(fit("abc") > fit("abx"));
        assert!(fit("abx") > fit("ax"));
        assert_eq!(fit("x"), None);
        assert_eq!(pattern.fit(None), None);
        assert_eq!(Pattern::one("*").fit(None), None);
        assert!(Pattern::one("*").fit(Some("")).is_some());
        assert_eq!(pattern.exact(), None);
        assert_eq!(Pattern::one("abc").exact(), Some(vec!["abc"]));
        assert_eq!(Pattern::one(r"a\*").exact(), Some(vec!["a*"]));
    }

    #[test]
    fn the_text_beside_stars_says_how_closely_a_pattern_fits() {
        let fit = |pattern| Pattern::one(pattern).fit(Some("/v1/a.png"));
        assert!(fit("/v1/*.png") > fit("/v1/*"));
        assert!(fit("/v1/*") == fit("*.png"));
        assert!(fit("*/a.png") > fit("*.png"));
        assert!(fit("/v1/a.png") > fit("/v1/a.pn*"));
    }
}
