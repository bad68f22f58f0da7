//! Expressions: from the fields of a line to one value of its request.

use std::num::NonZeroUsize;

use super::address;
use super::fields::Fields;
use super::parser::{FieldNames, MappingParser};
use super::token::SyntaxError;

/// An expression: `$http_x_user`, `'ip:' ip($remote_addr)`, `$host path($uri)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expression {
    /// The field of this number.
    Field(usize),
    /// A text, the same for each line.
    Text(Box<[u8]>),
    /// All parts, one after the other; absent if one of them is.
    Join(Box<[Expression]>),
    /// The first of these that is not absent.
    First(Box<[Expression]>),
    /// A function of a value.
    Call(Function, Box<Expression>),
}

/// A function of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    /// The client that an address stands for.
    Ip,
    /// A target without query and fragment.
    Path,
    /// ASCII letters in lower case.
    Lower,
    /// The address at this place from the right of a list.
    Forwarded(NonZeroUsize),
}

impl Expression {
    /// Reads an expression. The fields that it uses are added to `names`.
    ///
    /// # Errors
    ///
    /// [`SyntaxError`] if the text is none.
    pub(crate) fn parse(text: &str, names: &mut FieldNames) -> Result<Self, SyntaxError> {
        let mut parser = MappingParser::new(text, names)?;
        let expression = parser.expression()?;
        parser.end("must be a field, a quoted text or a function")?;
        Ok(expression)
    }

    /// Returns the value; `None` if it is absent. What has to be built is built in `scratch`.
    pub(crate) fn value<'a>(
        &'a self,
        fields: &'a impl Fields,
        scratch: &'a mut Vec<u8>,
    ) -> Option<&'a [u8]> {
        match self {
            Self::Field(number) => fields.value(*number),
            Self::Text(text) => Some(text),
            _ => {
                scratch.clear();
                self.append(fields, scratch).then_some(scratch)
            }
        }
    }

    /// Appends the value. Returns `false` if it is absent; then `out` may end with a part of it.
    fn append(&self, fields: &impl Fields, out: &mut Vec<u8>) -> bool {
        match self {
            Self::Field(number) => {
                let value = fields.value(*number);
                out.extend_from_slice(value.unwrap_or_default());
                value.is_some()
            }
            Self::Text(text) => {
                out.extend_from_slice(text);
                true
            }
            Self::Join(parts) => parts.iter().all(|part| part.append(fields, out)),
            Self::First(parts) => {
                let start = out.len();
                parts.iter().any(|part| {
                    out.truncate(start);
                    part.append(fields, out)
                })
            }
            Self::Call(function, of) => {
                let start = out.len();
                of.append(fields, out) && function.apply(out, start)
            }
        }
    }
}

impl Function {
    /// Replaces what is in `out` from `start` on. Returns `false` if the result is absent.
    fn apply(self, out: &mut Vec<u8>, start: usize) -> bool {
        match self {
            Self::Ip => address::replace_by_client(out, start),
            Self::Path => {
                let path = out[start..].iter().position(|byte| matches!(byte, b'?' | b'#'));
                out.truncate(path.map_or(out.len(), |length| start + length));
            }
            Self::Lower => out[start..].make_ascii_lowercase(),
            Self::Forwarded(place) => {
                let mut addresses = out[start..].rsplit(|byte| *byte == b',');
                let Some(found) = addresses.nth(place.get() - 1) else { return false };
                let found = found.trim_ascii().to_vec();
                out.truncate(start);
                out.extend_from_slice(&found);
            }
        }
        out.len() > start
    }
}

#[cfg(test)]
mod tests {
    use super::super::fields::FakeFields;
    use super::*;

    fn value(text: &str, fields: &[(&str, &str)]) -> Option<String> {
        let mut names = FieldNames::new(Some("http_x_forwarded_for"));
        let parsed = Expression::parse(text, &mut names).unwrap_or_else(|error| panic!("{error}"));
        let fields = FakeFields::new(&names, fields);
        let mut scratch = b"of the line before".to_vec();
        let value = parsed.value(&fields, &mut scratch)?;
        Some(String::from_utf8_lossy(value).into_owned())
    }

    #[test]
    fn parts_are_joined_and_functions_applied() {
        let fields = [("host", "Example.org"), ("uri", "/a?b#c"), ("request.user", "ann")];
        for (text, expected) in [
            ("$host", "Example.org"),
            ("host", "Example.org"),
            ("request.user", "ann"),
            ("'all'", "all"),
            ("5", "5"),
            ("path($uri)", "/a"),
            ("'host:' lower($host) \"/\"path($uri)", "host:example.org//a"),
            ("lower(host path(uri))", "example.org/a"),
            ("first($absent, 'x' $absent, request.user)", "ann"),
            ("first($host, $absent)", "Example.org"),
            ("path('#')first('y')", ""),
        ] {
            let expected = Some(expected).filter(|text| !text.is_empty());
            assert_eq!(value(text, &fields).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_value_is_absent_if_a_field_is() {
        for text in ["absent", "'ip:' absent", "path(absent)", "first(absent, absent)"] {
            assert_eq!(value(text, &[]), None, "{text}");
        }
    }

    #[test]
    fn addresses_are_counted_from_the_right() {
        let list = [("http_x_forwarded_for", "6.6.6.6, 10.0.0.1:80 ,[2001:db8::1]:443")];
        for (text, expected) in [
            ("forwarded(1)", Some("[2001:db8::1]:443")),
            ("ip(forwarded(1))", Some("2001:db8::/64")),
            ("ip(forwarded($http_x_forwarded_for, 2))", Some("10.0.0.1")),
            ("forwarded(3)", Some("6.6.6.6")),
            ("forwarded(4)", None),
            ("forwarded('a,,b', 2)", None),
        ] {
            assert_eq!(value(text, &list).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn errors_say_what_is_missing_and_where() {
        for (text, position, problem) in [
            ("", 1, "must be a field, a quoted text or a function"),
            ("path(", 6, "must be a field, a quoted text or a function"),
            ("path(uri", 9, "must be )"),
            ("path(uri))", 10, "must be a field, a quoted text or a function"),
            (
                "route(uri)",
                1,
                "must be one of the functions ip(), path(), lower(), forwarded(), first()",
            ),
            ("forwarded(uri, 0)", 16, "must be the place of an address from the right, from 1"),
            ("forwarded(1)", 11, "must be a field: the format has no X-Forwarded-For by itself"),
            ("forwarded(uri)", 14, "must be ,"),
            ("'x' == 'y'", 5, "must be a field, a quoted text or a function"),
        ] {
            let error = Expression::parse(text, &mut FieldNames::default()).expect_err(text);
            assert_eq!((error.position, error.problem.as_str()), (position, problem), "{text}");
        }
        let deep = "path(".repeat(1_000);
        assert!(Expression::parse(&deep, &mut FieldNames::default()).is_err());
    }
}
