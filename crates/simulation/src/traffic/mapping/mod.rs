//! From the fields of a line to its request: `--map NAME=EXPRESSION` and `--where CONDITION`.
//!
//! Expressions are fields, quoted texts and functions, one after the other. This module knows fields
//! by their names alone, not the formats that have them.

mod address;
mod condition;
mod expression;
mod fields;
mod names;
mod parser;
mod request;
mod time;
mod token;

pub(crate) use condition::Condition;
pub(crate) use fields::Fields;
pub(crate) use names::MapName;
pub(crate) use parser::FieldNames;
pub(crate) use request::{RequestError, RequestMapping};
pub(crate) use time::{DurationMapping, TimeMapping};
pub use token::SyntaxError;
pub(crate) use token::field_text;

use expression::Expression;
use thiserror::Error;

/// Expressions by the names that they are mapped to.
#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    /// What becomes the request.
    pub(crate) request: RequestMapping,
    /// What becomes the time.
    pub(crate) time: Option<TimeMapping>,
    /// What the time is ahead of, if it is the end of the request.
    pub(crate) duration: Option<DurationMapping>,
    /// What says whether the request was refused when it was recorded.
    pub(crate) status: Option<Expression>,
}

/// A mapping that can't be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum MappingError {
    /// Without a `=`.
    #[error("--map must be NAME=EXPRESSION: {0:?}")]
    NoExpression(String),
    /// A name that nothing is mapped to.
    #[error(
        "--map must be of user_id, resource, attributes.NAME, cost, domain, entries.KEY, \
         entries[N].KEY, time, duration or status: {0:?}"
    )]
    Name(String),
    /// A name or key that is empty or too long, or a number that is too large.
    #[error("--map {name}: {problem}")]
    Bounds {
        /// The name.
        name: String,
        /// How it must be.
        problem: String,
    },
    /// The same name twice.
    #[error("--map {0}: must be given once")]
    Repeated(String),
    /// An expression that is none.
    #[error("--map {name}")]
    Expression {
        /// The name.
        name: String,
        /// What is wrong with the expression.
        source: SyntaxError,
    },
    /// Names of both kinds of requests.
    #[error("--map must be of user_id, resource and attributes, or of domain and entries")]
    BothKinds,
    /// A domain without entries, or entries without a domain.
    #[error("--map must be of domain and of entries, or of neither")]
    HalfOfDescriptors,
    /// Descriptors 0 and 2, but not 1.
    #[error("--map entries[{0}].KEY: descriptors must be numbered from 0 on")]
    MissingDescriptor(usize),
    /// A condition that is none.
    #[error("--where")]
    Condition(#[source] SyntaxError),
}

impl Mapping {
    /// Reads mappings, each as `NAME=EXPRESSION`. The fields that they use are added to `fields`.
    ///
    /// # Errors
    ///
    /// [`MappingError`] if one of them can't be used, or if they contradict each other.
    pub(crate) fn parse<'a>(
        mappings: impl IntoIterator<Item = &'a str>,
        fields: &mut FieldNames,
    ) -> Result<Self, MappingError> {
        let (mut time, mut duration, mut status) = (None, None, None);
        let mut request = Vec::new();
        let mut known = Vec::new();
        for text in mappings {
            let (name, expression) = MapName::split(text)?;
            let error = |source| MappingError::Expression { name: name.to_string(), source };
            if known.contains(&name) {
                return Err(MappingError::Repeated(name.to_string()));
            }
            known.push(name.clone());
            match name {
                MapName::Time => {
                    time = Some(TimeMapping::parse(expression, fields).map_err(error)?);
                }
                MapName::Duration => {
                    duration = Some(DurationMapping::parse(expression, fields).map_err(error)?);
                }
                _ => {
                    let expression = Expression::parse(expression, fields).map_err(error)?;
                    if name == MapName::Status {
                        status = Some(expression);
                    } else {
                        request.push((name, expression));
                    }
                }
            }
        }
        Ok(Self { request: RequestMapping::new(request)?, time, duration, status })
    }

    /// Returns the recorded status of a line.
    pub(crate) fn status(&self, fields: &impl Fields, scratch: &mut Vec<u8>) -> Option<u16> {
        let status = self.status.as_ref()?.value(fields, scratch)?;
        str::from_utf8(status).ok()?.parse().ok()
    }
}
