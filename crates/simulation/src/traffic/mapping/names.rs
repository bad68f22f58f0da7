//! The names that expressions are mapped to.

use std::fmt;

use rlaas_core::rules::Request;
use rlaas_core::rules::descriptors::DescriptorRequest;

use super::MappingError;

/// The name that an expression is mapped to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MapName {
    /// User or client.
    UserId,
    /// Resource.
    Resource,
    /// The attribute of this name.
    Attribute(String),
    /// Units to take.
    Cost,
    /// Domain of descriptors.
    Domain,
    /// The entry of this key in the descriptor of this number.
    Entry(usize, String),
    /// Time of the request.
    Time,
    /// Time that the request took.
    Duration,
    /// Status of the response.
    Status,
}

impl MapName {
    /// Splits `NAME=EXPRESSION`.
    ///
    /// # Errors
    ///
    /// [`MappingError`] if there is no `=`, or if nothing is mapped to the name.
    pub(crate) fn split(text: &str) -> Result<(Self, &str), MappingError> {
        let split = text.split_once('=');
        let (name, expression) =
            split.ok_or_else(|| MappingError::NoExpression(text.to_owned()))?;
        Ok((Self::parse(name.trim())?, expression))
    }

    fn parse(name: &str) -> Result<Self, MappingError> {
        let parsed = match name {
            "user_id" => Self::UserId,
            "resource" => Self::Resource,
            "cost" => Self::Cost,
            "domain" => Self::Domain,
            "time" => Self::Time,
            "duration" => Self::Duration,
            "status" => Self::Status,
            _ => {
                let dotted = name.split_once('.');
                let unknown = || MappingError::Name(name.to_owned());
                match dotted.ok_or_else(unknown)? {
                    ("attributes", attribute) => Self::Attribute(attribute.to_owned()),
                    ("entries", key) => Self::Entry(0, key.to_owned()),
                    (list, key) => {
                        let number =
                            list.strip_prefix("entries[").and_then(|it| it.strip_suffix(']'));
                        let number = number.and_then(|number| number.parse().ok());
                        Self::Entry(number.ok_or_else(unknown)?, key.to_owned())
                    }
                }
            }
        };
        parsed.check_bounds()?;
        Ok(parsed)
    }

    fn check_bounds(&self) -> Result<(), MappingError> {
        let problem = match self {
            Self::Attribute(name) if !(1..=Request::MAX_ATTRIBUTE_NAME).contains(&name.len()) => {
                format!("the name must be 1 to {} bytes", Request::MAX_ATTRIBUTE_NAME)
            }
            Self::Entry(number, _) if *number >= DescriptorRequest::MAX_DESCRIPTORS => {
                format!("the number must be at most {}", DescriptorRequest::MAX_DESCRIPTORS - 1)
            }
            Self::Entry(_, key) if key.is_empty() => "the key must not be empty".to_owned(),
            _ => return Ok(()),
        };
        Err(MappingError::Bounds { name: self.to_string(), problem })
    }
}

impl fmt::Display for MapName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UserId => f.write_str("user_id"),
            Self::Resource => f.write_str("resource"),
            Self::Attribute(name) => write!(f, "attributes.{name}"),
            Self::Cost => f.write_str("cost"),
            Self::Domain => f.write_str("domain"),
            Self::Entry(0, key) => write!(f, "entries.{key}"),
            Self::Entry(number, key) => write!(f, "entries[{number}].{key}"),
            Self::Time => f.write_str("time"),
            Self::Duration => f.write_str("duration"),
            Self::Status => f.write_str("status"),
        }
    }
}
