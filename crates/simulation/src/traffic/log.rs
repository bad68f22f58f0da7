//! From the lines of a log to requests.

use std::net::SocketAddr;

use rlaas_core::rules::Request;
use thiserror::Error;

use super::format::{FieldPlace, FieldsError, LogFormat};
use super::time;
use crate::request::{RecordedFields, RecordedRequest, TimedRequest};

/// Characters of the expressions of earlier versions.
const EXPRESSION_CHARACTERS: [char; 6] = ['(', ')', '"', '\'', '$', ' '];

/// Reads lines of a log.
#[derive(Debug)]
pub(super) struct LogReader {
    format: LogFormat,
    fields: Vec<MappedField>,
    default_mappings: Vec<String>,
}

/// A field, and what becomes of it.
#[derive(Debug)]
struct MappedField {
    name: String,
    place: FieldPlace,
    part: MappedPart,
    was_seen: bool,
}

/// What becomes of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
enum MappedPart {
    UserId,
    Resource,
    Attribute(Box<str>),
    Cost,
    Time,
    Status,
}

/// A mapping can't be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum MappingError {
    /// A name that nothing has.
    #[error(
        "--map {0}: must be of user_id, resource, attributes.NAME (1 to {max} bytes), cost, time \
         and status",
        max = Request::MAX_ATTRIBUTE_NAME
    )]
    Name(String),
    /// A name of an earlier version.
    #[error("--map {0} was removed: see docs/simulation.md, Mapping")]
    Removed(String),
    /// No field, or an expression of an earlier version.
    #[error(
        "--map {0}=FIELD: must be the name of one field; expressions were removed (see \
         docs/simulation.md, Mapping)"
    )]
    Expression(String),
    /// A name twice.
    #[error("--map {0}: must be given once")]
    Twice(String),
    /// No such field.
    #[error("--map {name}: {field} is not a field of the format {format}, must be of {fields}")]
    Field {
        /// What it is mapped to.
        name: String,
        /// The field.
        field: String,
        /// The format.
        format: &'static str,
        /// The fields that there are.
        fields: String,
    },
    /// Nothing says where something is.
    #[error("--map {name}=… must be given: the format {format} does not say where it is")]
    NotMapped {
        /// What it is.
        name: &'static str,
        /// The format.
        format: &'static str,
    },
}

/// Why a line can't be a request.
#[derive(Debug, Error)]
pub(super) enum LogLineError {
    #[error(transparent)]
    Fields(#[from] FieldsError),
    #[error("the line has no time")]
    NoTime,
    #[error(
        "time must be as in RFC 3339 with a zone, as in the Common Log Format, or seconds, \
         milliseconds or microseconds since 1970"
    )]
    Time,
    #[error("cost must be a whole number from 0 to {}", u32::MAX)]
    Cost,
}

impl LogReader {
    /// Creates a reader of a format. What is not mapped is taken from where the format has it.
    pub(super) fn new(format: &LogFormat, mappings: &[String]) -> Result<Self, MappingError> {
        let mut reader =
            Self { format: format.clone(), fields: Vec::new(), default_mappings: Vec::new() };
        for mapping in mappings {
            let (name, field) = mapping.split_once('=').unwrap_or((mapping, ""));
            reader.map(name, field)?;
        }
        for (name, field) in format.default_mappings() {
            let Ok(part) = MappedPart::new(name) else { continue };
            if !reader.has(&part) {
                reader.map(name, field)?;
                reader.default_mappings.push(format!("{name}={field}"));
            }
        }
        let format = format.name();
        for (part, name) in [(MappedPart::UserId, "user_id"), (MappedPart::Time, "time")] {
            if !reader.has(&part) {
                return Err(MappingError::NotMapped { name, format });
            }
        }
        Ok(reader)
    }

    fn has(&self, part: &MappedPart) -> bool {
        self.fields.iter().any(|field| field.part == *part)
    }

    fn map(&mut self, name: &str, field: &str) -> Result<(), MappingError> {
        let part = MappedPart::new(name)?;
        if self.has(&part) {
            return Err(MappingError::Twice(name.to_owned()));
        }
        if field.is_empty() || field.contains(EXPRESSION_CHARACTERS) {
            return Err(MappingError::Expression(name.to_owned()));
        }
        let place = self.format.place(field).ok_or_else(|| MappingError::Field {
            name: name.to_owned(),
            field: field.to_owned(),
            format: self.format.name(),
            fields: self.format.field_names().unwrap_or_default().join(", "),
        })?;
        self.fields.push(MappedField { name: field.to_owned(), place, part, was_seen: false });
        Ok(())
    }

    /// Returns the mappings that follow from the format, as `NAME=FIELD`.
    pub(super) fn default_mappings(&self) -> &[String] {
        &self.default_mappings
    }

    /// Returns the fields that no line had.
    pub(super) fn absent_fields(&self) -> Vec<String> {
        let absent = self.fields.iter().filter(|field| !field.was_seen);
        absent.map(|field| field.name.clone()).collect()
    }

    /// Reads a line; `None` if it has no user id.
    ///
    /// # Errors
    ///
    /// [`LogLineError`] if it can't be a request.
    pub(super) fn read(&mut self, line: &[u8]) -> Result<Option<TimedRequest>, LogLineError> {
        let line = String::from_utf8_lossy(line);
        let values = self.format.fields(&line)?;
        let mut fields = RecordedFields { cost: 1, ..RecordedFields::default() };
        let (mut attributes, mut at, mut was_refused) = (Vec::new(), None, false);
        for field in &mut self.fields {
            let Some(value) = values.value(&field.place) else { continue };
            field.was_seen = true;
            match &field.part {
                MappedPart::UserId => fields.user_id = without_port(&value),
                MappedPart::Resource => {
                    fields.resource = value.split('?').next().unwrap_or_default().into();
                }
                MappedPart::Attribute(name) => attributes.push((name.clone(), value.into())),
                MappedPart::Cost => fields.cost = value.parse().map_err(|_| LogLineError::Cost)?,
                MappedPart::Time => at = Some(time::read(&value).ok_or(LogLineError::Time)?),
                MappedPart::Status => was_refused = value == "429",
            }
        }
        if fields.user_id.is_empty() {
            return Ok(None);
        }
        let at = at.ok_or(LogLineError::NoTime)?;
        fields.attributes = attributes.into();
        let request = RecordedRequest::Fields(fields);
        Ok(Some(TimedRequest { at, request, was_refused }))
    }
}

impl MappedPart {
    fn new(name: &str) -> Result<Self, MappingError> {
        Ok(match name {
            "user_id" => Self::UserId,
            "resource" => Self::Resource,
            "cost" => Self::Cost,
            "time" => Self::Time,
            "status" => Self::Status,
            "duration" | "domain" => return Err(MappingError::Removed(name.to_owned())),
            _ if name.starts_with("entries") => return Err(MappingError::Removed(name.to_owned())),
            _ => match name.strip_prefix("attributes.") {
                Some(attribute) if (1..=Request::MAX_ATTRIBUTE_NAME).contains(&attribute.len()) => {
                    Self::Attribute(attribute.into())
                }
                _ => return Err(MappingError::Name(name.to_owned())),
            },
        })
    }
}

/// Returns an address without its port, as proxies write it; other texts as they are.
fn without_port(text: &str) -> Box<str> {
    match text.parse::<SocketAddr>() {
        Ok(address) => address.ip().to_string().into(),
        Err(_) => text.into(),
    }
}
