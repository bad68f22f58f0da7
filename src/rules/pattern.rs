//! What a value must look like: exact, a prefix, one of several, or just there.

/// What a value must look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Any value, as long as there is one: `*`.
    Present,
    /// One of these.
    OneOf(Vec<Text>),
}

/// An exact value, or a prefix with a trailing `*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Text {
    /// This value.
    Exact(String),
    /// Any value that starts with this.
    Prefix(String),
}

/// How closely a request fits: the more is said about it, the closer. Compares field by field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fit {
    /// Values that are exactly as said.
    exact: usize,
    /// Bytes of the prefixes.
    prefix: usize,
    /// Values that are said to be there.
    present: usize,
}

impl Fit {
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            exact: self.exact + other.exact,
            prefix: self.prefix + other.prefix,
            present: self.present + other.present,
        }
    }
}

impl Pattern {
    /// Reads `*`, `prefix*` or an exact value.
    pub fn one(text: &str) -> Self {
        if text == "*" { Self::Present } else { Self::OneOf(vec![Text::new(text)]) }
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
            Self::OneOf(texts) => texts.iter().map(Text::exact).collect(),
        }
    }
}

impl Text {
    /// Reads `prefix*` or an exact value.
    pub fn new(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some(prefix) => Self::Prefix(prefix.to_owned()),
            None => Self::Exact(text.to_owned()),
        }
    }

    fn fit(&self, value: &str) -> Option<Fit> {
        match self {
            Self::Exact(exact) if exact == value => Some(Fit { exact: 1, ..Fit::default() }),
            Self::Prefix(prefix) if value.starts_with(prefix.as_str()) => {
                Some(Fit { prefix: prefix.len(), ..Fit::default() })
            }
            Self::Exact(_) | Self::Prefix(_) => None,
        }
    }

    fn exact(&self) -> Option<&str> {
        match self {
            Self::Exact(exact) => Some(exact),
            Self::Prefix(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_of_several_fits() {
        let pattern = Pattern::OneOf(["a*", "ab*", "abc"].map(Text::new).to_vec());
        let fit = |value| pattern.fit(Some(value));
        assert!(fit("abc") > fit("abx"));
        assert!(fit("abx") > fit("ax"));
        assert_eq!(fit("x"), None);
        assert_eq!(pattern.fit(None), None);
        assert_eq!(Pattern::one("*").fit(None), None);
        assert!(Pattern::one("*").fit(Some("")).is_some());
        assert_eq!(pattern.exact(), None);
        assert_eq!(Pattern::one("abc").exact(), Some(vec!["abc"]));
    }
}
