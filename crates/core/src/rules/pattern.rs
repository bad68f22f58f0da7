//! The conditions of a rule or an override: parts of a request, and patterns of their values, which are an
//! exact text, a text with `*`, one of several texts, or any value.

use std::fmt;

use super::Request;
use super::wildcard::{Wildcard, escaped};

/// A condition on a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Any value that is present: `*`.
    Present,
    /// A value that matches one of these.
    OneOf(Vec<TextPattern>),
}

/// A text in which each `*` matches any text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TextPattern {
    /// Matches this value only.
    Exact(String),
    /// Matches values that start with this text. Written with a single `*`, at the end.
    Prefix(String),
    /// Matches values with some `*` elsewhere.
    Wildcard(Wildcard),
}

/// What a value that matches is, or begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueStart<'a> {
    /// It is this text.
    Exact(&'a str),
    /// It begins with this text, which is not empty.
    Prefix(&'a str),
}

impl ValueStart<'_> {
    /// Returns `true` if this is another start, which every value with `other` has too.
    pub(super) fn covers(self, other: ValueStart<'_>) -> bool {
        let Self::Prefix(prefix) = self else { return false };
        match other {
            ValueStart::Exact(text) => text.starts_with(prefix),
            ValueStart::Prefix(text) => text.len() > prefix.len() && text.starts_with(prefix),
        }
    }
}

/// How closely a request matches: the more specific the patterns, the closer. Compares field by
/// field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fit {
    /// Number of values that match an exact text.
    exact: usize,
    /// Bytes outside of `*` in patterns that match.
    literal: usize,
    /// Number of values that only have to be present.
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
    /// Parses `*`, or a text as [`TextPattern::new`] does.
    pub fn one(text: &str) -> Self {
        if text == "*" { Self::Present } else { Self::OneOf(vec![TextPattern::new(text)]) }
    }

    /// Parses texts, one of which must match. Their order has no meaning.
    pub fn any_of(texts: &[String]) -> Self {
        match texts {
            [text] => Self::one(text),
            several if several.iter().any(|text| text == "*") => Self::Present,
            several => {
                let mut texts: Vec<TextPattern> =
                    several.iter().map(|text| TextPattern::new(text)).collect();
                texts.sort();
                Self::OneOf(texts)
            }
        }
    }

    /// Returns how closely `value` matches; `None` if it does not match.
    pub(crate) fn fit(&self, value: Option<&str>) -> Option<Fit> {
        let value = value?;
        match self {
            Self::Present => Some(Fit { present: 1, ..Fit::default() }),
            Self::OneOf(texts) => texts.iter().filter_map(|text| text.fit(value)).max(),
        }
    }

    /// Returns one of which each value that matches has; `None` if it may begin with anything.
    pub(super) fn starts(&self) -> Option<Vec<ValueStart<'_>>> {
        match self {
            Self::Present => None,
            Self::OneOf(texts) => texts.iter().map(TextPattern::start).collect(),
        }
    }
}

impl TextPattern {
    /// Parses a text: `*` matches any text, `\*` an asterisk.
    pub fn new(text: &str) -> Self {
        let wildcard = Wildcard::new(text);
        match wildcard.literals() {
            [exact] => Self::Exact(exact.clone()),
            [prefix, end] if end.is_empty() => Self::Prefix(prefix.clone()),
            _ => Self::Wildcard(wildcard),
        }
    }

    /// Returns the text that [`TextPattern::new`] parses to this pattern.
    pub fn to_text(&self) -> String {
        match self {
            Self::Exact(exact) => escaped(exact, false),
            Self::Prefix(prefix) => escaped(prefix, true) + "*",
            Self::Wildcard(wildcard) => wildcard.to_text(),
        }
    }

    /// Returns `true` if `value` matches.
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

    fn start(&self) -> Option<ValueStart<'_>> {
        let prefix = match self {
            Self::Exact(exact) => return Some(ValueStart::Exact(exact)),
            Self::Prefix(prefix) => prefix,
            Self::Wildcard(wildcard) => wildcard.literals().first()?,
        };
        (!prefix.is_empty()).then_some(ValueStart::Prefix(prefix))
    }
}

/// The conditions of a rule or an override, all of which a request must meet. Without conditions it
/// matches every request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matcher {
    /// Patterns of parts, at most one for each part.
    pub patterns: Vec<(Part, Pattern)>,
}

impl Matcher {
    /// Returns how closely the request matches; `None` if it does not match.
    pub(super) fn fit(&self, request: &Request<'_>) -> Option<Fit> {
        self.patterns.iter().try_fold(Fit::default(), |fit, (part, pattern)| {
            Some(fit.and(pattern.fit(part.value_in(request))?))
        })
    }

    /// Returns a part whose value must have one of some starts, with these starts, for an index:
    /// if there is one, a part that must have one of some exact values.
    pub(super) fn starts(&self) -> Option<(&Part, Vec<ValueStart<'_>>)> {
        let of_parts =
            self.patterns.iter().filter_map(|(part, pattern)| Some((part, pattern.starts()?)));
        of_parts.min_by_key(|(_, starts)| {
            starts.iter().any(|start| matches!(start, ValueStart::Prefix(_)))
        })
    }
}

/// A part of a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The user.
    UserId,
    /// The resource.
    Resource,
    /// The attribute with this name.
    Attribute(String),
    /// The attribute with this name, or the user in requests without it. Only for keys.
    AttributeOrUserId(String),
}

impl Part {
    /// Ends the name of a [`Part::AttributeOrUserId`], after that of the attribute.
    pub const OR_USER_ID: &str = "|user_id";

    /// Returns the name of the attribute, if the part has one.
    pub(super) fn attribute(&self) -> Option<&str> {
        match self {
            Self::Attribute(name) | Self::AttributeOrUserId(name) => Some(name),
            Self::UserId | Self::Resource => None,
        }
    }

    /// Returns the value of the part in a request; `None` for an absent attribute.
    pub fn value_in<'a>(&self, request: &Request<'a>) -> Option<&'a str> {
        match self {
            Self::UserId => Some(request.user_id()),
            Self::Resource => Some(request.resource()),
            Self::Attribute(name) => request.attributes().get(name),
            Self::AttributeOrUserId(name) => {
                let value = request.attributes().get(name);
                Some(value.unwrap_or(request.user_id()))
            }
        }
    }
}

/// Writes the name of the part in messages: `user_id`, `resource`, `attributes.NAME`, or
/// `attributes.NAME|user_id`.
impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UserId => f.write_str("user_id"),
            Self::Resource => f.write_str("resource"),
            Self::Attribute(name) => write!(f, "attributes.{name}"),
            Self::AttributeOrUserId(name) => write!(f, "attributes.{name}{}", Self::OR_USER_ID),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closest_of_several_texts_counts() {
        let pattern = Pattern::OneOf(["a*", "ab*", "abc"].map(TextPattern::new).to_vec());
        let fit = |value| pattern.fit(Some(value));
        assert!(fit("abc") > fit("abx"));
        assert!(fit("abx") > fit("ax"));
        assert_eq!(fit("x"), None);
        assert_eq!(pattern.fit(None), None);
        assert_eq!(Pattern::one("*").fit(None), None);
        assert!(Pattern::one("*").fit(Some("")).is_some());
        assert_eq!(Pattern::one("*").starts(), None);
        assert_eq!(Pattern::one("*a").starts(), None);
        assert_eq!(Pattern::one("abc").starts(), Some(vec![ValueStart::Exact("abc")]));
        assert_eq!(Pattern::one(r"a\*").starts(), Some(vec![ValueStart::Exact("a*")]));
        assert_eq!(Pattern::one("a*b*").starts(), Some(vec![ValueStart::Prefix("a")]));
    }

    #[test]
    fn longer_literal_text_is_closer() {
        let fit = |pattern| Pattern::one(pattern).fit(Some("/v1/a.png"));
        assert!(fit("/v1/*.png") > fit("/v1/*"));
        assert!(fit("/v1/*") == fit("*.png"));
        assert!(fit("*/a.png") > fit("*.png"));
        assert!(fit("/v1/a.png") > fit("/v1/a.pn*"));
    }
}
