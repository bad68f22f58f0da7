//! Formats of access logs: from lines to fields.
//!
//! A [`LogFormat`] is parsed from the option of the command line. A [`LineParser`] reads lines of it
//! and keeps the wanted fields, without the format's escapes, in [`FieldValues`]. This module does
//! not know what a field is wanted for: [`LogFormat::known_fields`] says what the format knows of its own
//! fields.

mod common;
mod envelope;
mod expression;
mod json;
mod known;
mod nginx;
mod parser;
mod request_line;
mod template;
mod text;
mod unescape;
mod values;
mod w3c;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use regex::bytes::Regex;

pub use envelope::{DockerProblem, Envelope};
pub use json::{JsonProblem, JsonProblemKind, PathProblem};
pub use known::{DurationUnit, KnownDuration, KnownFields, KnownTime, StampForm};
pub use parser::{LineParser, Parsed, Unreadable};
pub use values::FieldValues;

use crate::traffic::StampedAt;
use common::{Headers, VirtualHost};
use text::TextFormat;

/// The names of formats, for messages.
const NAMES: &str = "common, combined, vhost_common, vhost_combined, nginx, nginx:FORMAT, \
                     envoy-json, jsonl, w3c or regex:EXPRESSION";

/// Why a format can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// There is no format of this name.
    #[error("format must be {NAMES}, not {name}")]
    Unknown {
        /// What was given.
        name: String,
    },
    /// A format of nginx is too long.
    #[error("a format of nginx must have at most {maximum} bytes")]
    NginxLength {
        /// Most bytes.
        maximum: usize,
    },
    /// A format of nginx has an unknown kind of escapes.
    #[error("escape= of a format of nginx must be default, json or none")]
    NginxEscape,
    /// The pieces of a format as nginx's configuration has it are not all in quotes.
    #[error("a log_format directive must have its text in quotes that are closed")]
    NginxQuotes,
    /// A format of nginx has a `$` without a name.
    #[error("a format of nginx must have $name or ${{name}} for each $")]
    NginxVariable,
    /// A format of nginx has no variables.
    #[error("a format of nginx must have a variable")]
    NginxWithoutVariables,
    /// A format of nginx has too many variables.
    #[error("a format of nginx must have at most {maximum} variables")]
    NginxVariables {
        /// Most variables.
        maximum: usize,
    },
    /// A format of nginx has a line end.
    #[error("a format of nginx must be one line; several pieces must each be in quotes")]
    NginxLineEnd,
    /// Nothing shows where one variable ends and the next begins.
    #[error(
        "a format of nginx must have text between ${first} and ${second}: nothing else shows where \
         the first one ends"
    )]
    NginxAdjacent {
        /// The first variable.
        first: String,
        /// The second variable.
        second: String,
    },
    /// The regular expression is wrong or too large.
    #[error("the regular expression of the format cannot be used")]
    Expression(#[from] regex::Error),
    /// The regular expression has no named groups.
    #[error("the regular expression of the format must have a named group, (?<name>…)")]
    ExpressionWithoutGroups,
    /// The format can't have a field.
    #[error("{field} is not a field of the format, must be one of: {fields}")]
    UnknownField {
        /// The wanted field.
        field: String,
        /// The fields that there are.
        fields: String,
    },
    /// A wanted field of JSON is no path.
    #[error("{path} {why}")]
    Path {
        /// The wanted path.
        path: String,
        /// What is wrong with it.
        why: PathProblem,
    },
}

/// A format of access logs.
#[derive(Clone, Debug)]
pub struct LogFormat {
    name: &'static str,
    syntax: Syntax,
    envelope: Envelope,
    known: KnownFields,
}

/// How fields are written.
#[derive(Clone, Debug)]
enum Syntax {
    Text(Arc<TextFormat>),
    Json,
    W3c,
    Expression(Regex),
}

impl LogFormat {
    /// Returns this format within an envelope. The default is [`Envelope::Auto`].
    #[must_use]
    pub fn within(self, envelope: Envelope) -> Self {
        Self { envelope, ..self }
    }

    /// Returns the format's name, without the format string or expression.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns what the format knows of its own fields.
    pub fn known_fields(&self) -> &KnownFields {
        &self.known
    }

    /// Returns the names of the fields; `None` if the log decides them, as JSON does.
    pub fn field_names(&self) -> Option<Vec<String>> {
        match &self.syntax {
            Syntax::Text(text) => Some(text.names()),
            Syntax::Expression(regex) => Some(expression::names(regex)),
            Syntax::Json | Syntax::W3c => None,
        }
    }

    fn text(name: &'static str, format: TextFormat) -> Self {
        let (known, syntax) = (format.known.clone(), Syntax::Text(Arc::new(format)));
        Self { name, syntax, envelope: Envelope::Auto, known }
    }

    fn other(name: &'static str, syntax: Syntax, known: KnownFields) -> Self {
        Self { name, syntax, envelope: Envelope::Auto, known }
    }

    /// Returns what Envoy calls the fields of its JSON logs in its own examples and in Istio.
    fn envoy() -> KnownFields {
        let unit = DurationUnit::Milliseconds;
        KnownFields {
            time: Some(KnownTime { field: "start_time".to_owned(), form: StampForm::Rfc3339 }),
            stamped_at: Some(StampedAt::Start),
            duration: Some(KnownDuration { field: "duration".to_owned(), unit }),
            status: Some("response_code".to_owned()),
        }
    }
}

/// Parses a format as the command line has it.
impl FromStr for LogFormat {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        use Headers::RefererAndUserAgent as Both;
        let (name, rest) =
            text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        Ok(match (name, rest) {
            ("common", None) => {
                Self::text("common", common::format(Headers::None, VirtualHost::None))
            }
            ("vhost_common", None) => {
                Self::text("vhost_common", common::format(Headers::None, VirtualHost::First))
            }
            ("combined", None) => Self::text("combined", common::format(Both, VirtualHost::None)),
            ("vhost_combined", None) => {
                Self::text("vhost_combined", common::format(Both, VirtualHost::First))
            }
            ("nginx", format) => Self::text("nginx", nginx::compile(format.unwrap_or_default())?),
            ("envoy-json", None) => Self::other("envoy-json", Syntax::Json, Self::envoy()),
            ("jsonl", None) => Self::other("jsonl", Syntax::Json, KnownFields::default()),
            ("w3c", None) => Self::other("w3c", Syntax::W3c, w3c::known_fields()),
            ("regex", Some(expression)) => {
                let syntax = Syntax::Expression(expression::compile(expression)?);
                Self::other("regex", syntax, KnownFields::default())
            }
            _ => return Err(FormatError::Unknown { name: text.chars().take(100).collect() }),
        })
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests;
