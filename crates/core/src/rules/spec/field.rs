//! Fields of specifications.

/// A field of a specification, not checked yet.
///
/// Deserializing a field never fails: a value of the wrong type becomes [`Field::Unreadable`], so
/// that building the specification reports it together with all other problems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Field<T> {
    /// The field is not given.
    #[default]
    Unset,
    /// The field has this value.
    Set(T),
    /// The field is given, but its value has the wrong type.
    Unreadable,
}

impl<T> Field<T> {
    /// Returns `true` if the field is not given.
    pub const fn is_unset(&self) -> bool {
        matches!(self, Self::Unset)
    }

    /// Returns the value, if one of the right type is given.
    pub const fn value(&self) -> Option<&T> {
        match self {
            Self::Set(value) => Some(value),
            Self::Unset | Self::Unreadable => None,
        }
    }

    /// Returns the field with another value.
    pub(crate) fn map<U>(self, other: impl FnOnce(T) -> U) -> Field<U> {
        match self {
            Self::Unset => Field::Unset,
            Self::Set(value) => Field::Set(other(value)),
            Self::Unreadable => Field::Unreadable,
        }
    }

    /// Returns the field, or `default` if it is not given.
    #[must_use]
    pub fn or(self, default: T) -> Self {
        if self.is_unset() { Self::Set(default) } else { self }
    }
}

impl<T> From<T> for Field<T> {
    fn from(value: T) -> Self {
        Self::Set(value)
    }
}
