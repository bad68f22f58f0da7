//! Formats of fields with fixed text between them: Common and Combined Log, and those of nginx.

use std::sync::Arc;

use super::request_line::RequestPart;
use super::template::{Mismatch, Quotes, Template};
use super::unescape::append_unescaped;
use super::{FieldValues, KnownFields, Unreadable};

/// A format of fields with fixed text between them.
#[derive(Clone, Debug)]
pub(super) struct TextFormat {
    pub(super) template: Template,
    pub(super) quotes: Quotes,
    /// Names of the fields of the template.
    pub(super) names: Box<[Box<str>]>,
    /// The names of other fields, and the fields that they are or are a part of.
    pub(super) derived: Box<[DerivedField]>,
    pub(super) known: KnownFields,
}

/// Another name of a field, or a part of a request line.
#[derive(Clone, Debug)]
pub(super) struct DerivedField {
    pub(super) name: &'static str,
    /// Number of the field in the template.
    pub(super) field: usize,
    pub(super) part: Option<RequestPart>,
    pub(super) listing: Listing,
}

/// Whether a name is shown when the names of a format are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listing {
    Shown,
    Hidden,
}

/// A field of a template, or a part of one.
#[derive(Clone, Copy, Debug)]
struct TextField {
    field: usize,
    part: Option<RequestPart>,
}

impl TextFormat {
    /// Returns the names of all fields.
    pub(super) fn names(&self) -> Vec<String> {
        let shown = self.derived.iter().filter(|field| field.listing == Listing::Shown);
        let mut names: Vec<_> = self.names.iter().map(ToString::to_string).collect();
        names.extend(shown.map(|field| field.name.to_owned()));
        names
    }

    fn field(&self, name: &str) -> Option<TextField> {
        let has_name = |other: &str| other.eq_ignore_ascii_case(name);
        // Of variables that a format repeats the last one is used, as good as any.
        if let Some(field) = self.names.iter().rposition(|other| has_name(other)) {
            return Some(TextField { field, part: None });
        }
        let derived = self.derived.iter().find(|other| has_name(other.name))?;
        Some(TextField { field: derived.field, part: derived.part })
    }
}

/// Reads the lines of a [`TextFormat`].
#[derive(Clone, Debug)]
pub(super) struct TextParser {
    format: Arc<TextFormat>,
    /// The wanted fields; `None` for those of the envelope.
    wanted: Box<[Option<TextField>]>,
    places: Vec<(usize, usize)>,
}

impl TextParser {
    /// Returns a parser, or the number of the first wanted field that the format does not have.
    pub(super) fn new(format: Arc<TextFormat>, wanted: &[Option<&str>]) -> Result<Self, usize> {
        let mut fields = Vec::with_capacity(wanted.len());
        for (index, name) in wanted.iter().enumerate() {
            fields.push(match name {
                Some(name) => Some(format.field(variable_name(name)).ok_or(index)?),
                None => None,
            });
        }
        Ok(Self { format, wanted: fields.into(), places: Vec::new() })
    }

    pub(super) fn parse(
        &mut self,
        line: &[u8],
        values: &mut FieldValues,
    ) -> Result<(), Unreadable> {
        self.format.template.find(line, &mut self.places).map_err(|why| self.unreadable(why))?;
        for (index, field) in self.wanted.iter().enumerate() {
            let Some(TextField { field, part }) = *field else { continue };
            let (start, end) = self.places[field];
            let value = match part {
                None => &line[start..end],
                Some(part) => part.slice(&line[start..end]),
            };
            match self.format.quotes {
                Quotes::Plain => values.set(index, value),
                Quotes::Escaped => values.set_with(index, |to| append_unescaped(value, to)),
            }
        }
        Ok(())
    }

    fn unreadable(&self, why: Mismatch) -> Unreadable {
        match why {
            Mismatch::Before => Unreadable::TextBefore,
            Mismatch::Behind { at } => Unreadable::TextBehind { at },
            Mismatch::Ambiguous => Unreadable::Ambiguous,
            Mismatch::Field { field, at } => {
                Unreadable::Field { name: self.format.names[field].clone(), at }
            }
        }
    }
}

/// Returns the name of a variable without `$` and braces.
fn variable_name(name: &str) -> &str {
    let Some(name) = name.strip_prefix('$') else { return name };
    name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name)
}
