//! The fields of a form or of a query.

use std::collections::HashSet;
use std::fmt;

use maud::{Markup, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, utf8_percent_encode};
use thiserror::Error;

use super::page_error::PageError;

/// The value of a field that stands for the project of rules in files, whose id is empty.
pub(super) const UNNAMED: &str = "_";
/// Bytes that stay as they are in a query.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Most fields: more than any form has.
const MAX_FIELDS: usize = 128;

/// Names and values, in their order. A value may be any text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FormFields(Vec<(String, String)>);

/// The reason why fields can't be read. Never shows a value.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum FieldError {
    /// A name or value is no text, or there are too many.
    #[error("fields must be at most {MAX_FIELDS}, in UTF-8")]
    Encoding,
    /// A field that may be given once.
    #[error("{0}: given twice")]
    Twice(String),
}

impl FormFields {
    /// Reads the fields of a query or of a form.
    ///
    /// # Errors
    ///
    /// [`FieldError::Encoding`].
    ///
    /// **Source:** URL Standard, `application/x-www-form-urlencoded` parsing, but that a text which
    /// is not UTF-8 is refused rather than repaired.
    pub fn parse(encoded: &[u8]) -> Result<Self, FieldError> {
        let pairs = encoded.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty());
        let mut fields = Vec::new();
        for pair in pairs {
            let at = pair.iter().position(|byte| *byte == b'=');
            let (name, value) = at.map_or((pair, &b""[..]), |at| (&pair[..at], &pair[at + 1..]));
            if fields.len() == MAX_FIELDS {
                return Err(FieldError::Encoding);
            }
            fields.push((decoded(name)?, decoded(value)?));
        }
        Ok(Self(fields))
    }

    /// Returns the value of a field; empty if it is absent.
    ///
    /// # Errors
    ///
    /// [`FieldError::Twice`].
    pub fn one(&self, name: &str) -> Result<&str, FieldError> {
        let mut values = self.all(name);
        let value = values.next().unwrap_or_default();
        if values.next().is_some() { Err(FieldError::Twice(name.to_owned())) } else { Ok(value) }
    }

    /// Returns the first value of a field; empty if it is absent.
    pub fn get(&self, name: &str) -> &str {
        self.all(name).next().unwrap_or_default()
    }

    /// Returns the fields but for those with a name.
    #[must_use]
    pub(super) fn without(mut self, name: &str) -> Self {
        self.0.retain(|(field, _)| field != name);
        self
    }

    /// Returns the fields with another value of one.
    #[must_use]
    pub(super) fn with(self, name: &str, value: &str) -> Self {
        let mut fields = self.without(name);
        fields.0.push((name.to_owned(), value.to_owned()));
        fields
    }

    /// Returns the number of a page of a list, from 1.
    ///
    /// # Errors
    ///
    /// The field `page` has another value.
    pub(super) fn page(&self) -> Result<usize, PageError> {
        let page = match self.get("page") {
            "" => Some(1),
            number => number.parse().ok().filter(|page| (1..=1_000_000).contains(page)),
        };
        page.ok_or_else(|| PageError::invalid("page must be a number from 1 to 1000000"))
    }

    /// Checks that each field is given once.
    ///
    /// # Errors
    ///
    /// [`FieldError::Twice`].
    pub fn check(&self) -> Result<(), FieldError> {
        let mut names = HashSet::new();
        let twice = self.0.iter().find(|(name, _)| !names.insert(name));
        twice.map_or(Ok(()), |(name, _)| Err(FieldError::Twice(name.clone())))
    }

    /// Returns the values of a field.
    fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(field, _)| field == name).map(|(_, value)| &**value)
    }
}

fn decoded(text: &[u8]) -> Result<String, FieldError> {
    let spaced: Vec<u8> =
        text.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    let decoded = percent_decode(&spaced).decode_utf8().map_err(|_| FieldError::Encoding)?;
    Ok(decoded.into_owned())
}

/// A link to a page with a query. Fields with an empty value are left out.
#[derive(Clone, Debug)]
pub struct Link(String);

impl Link {
    /// Creates a link to a page.
    pub fn to(page: &str) -> Self {
        Self(page.to_owned())
    }

    /// Creates a link to a page with these fields of another query.
    pub(super) fn like(page: &str, fields: &FormFields, names: &[&str]) -> Self {
        names.iter().fold(Self::to(page), |link, name| link.with(name, fields.get(name)))
    }

    /// Returns the query: the fields in visible characters.
    pub(super) fn query(&self) -> &str {
        self.0.split_once('?').map(|(_, query)| query).unwrap_or_default()
    }

    /// Adds a field.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        if !value.is_empty() {
            self.0.push(if self.0.contains('?') { '&' } else { '?' });
            self.0.push_str(name);
            self.0.push('=');
            self.0.extend(utf8_percent_encode(value, PLAIN));
        }
        self
    }

    /// Returns the link, relative to the folder of the pages.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Shows an input of a query: its name, label, type and value.
pub(super) fn search_input(name: &str, label: &str, kind: &str, value: &str) -> Markup {
    html! {
        div {
            label for=(name) { (label) }
            input id=(name) name=(name) type=(kind) value=(value) autocomplete="off" spellcheck="false";
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_survives_a_link() {
        for text in ["a b+c&d=e%", "\0\n\u{202e}é<script>\"'", "https://evil.example/?a#b"] {
            let link = Link::to("key").with("user", text).with("rule", "").with("id", "x");
            let (page, query) = link.as_str().split_once('?').expect("a query");
            let fields = FormFields::parse(query.as_bytes()).expect("fields");
            assert_eq!((page, fields.one("user"), fields.one("id")), ("key", Ok(text), Ok("x")));
            assert_eq!(fields.one("rule"), Ok(""));
            assert!(query.bytes().all(|byte| byte.is_ascii_graphic()), "{query}");
        }
    }

    #[test]
    fn fields_are_read_as_browsers_write_them() {
        let fields = FormFields::parse(b"a=1+2&&b&a=%e2%9c%93&c==").expect("fields");
        assert_eq!(fields.all("a").collect::<Vec<_>>(), ["1 2", "✓"]);
        assert_eq!((fields.one("b"), fields.one("c")), (Ok(""), Ok("=")));
        assert_eq!(fields.one("a"), Err(FieldError::Twice("a".to_owned())));
        assert_eq!(FormFields::parse(b"a=%ff"), Err(FieldError::Encoding));
        assert_eq!(FormFields::parse(&b"a&".repeat(129)), Err(FieldError::Encoding));
        assert_eq!(FormFields::parse(b""), Ok(FormFields::default()));
    }
}
