//! Parts of a request: what conditions look at and keys are made of.

use std::fmt;

use super::Request;

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
