//! A field that is not valid, as a value.

use std::borrow::Cow;

use thiserror::Error;

/// A field that is not valid, and the requirement that it does not meet.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{path} {must}")]
pub struct Violation {
    /// Path of the field, such as `selector.key.parts`.
    pub path: &'static str,
    /// The requirement, such as `must be 1 to 64 bytes`. Never has the value of the field.
    pub must: Cow<'static, str>,
}
