//! A field of a specification, as it was given.

/// A field of a specification, as it was given.
///
/// To deserialize one never fails: a value of the wrong kind is [`Field::Unreadable`], so that
/// building the specification reports it beside all other problems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Field<T> {
    /// The field is not given.
    #[default]
    Unset,
    /// The value that is given.
    Set(T),
    /// Something is given that is no value of this field.
    Unreadable,
}

impl<T> Field<T> {
    /// Returns `true` if the field is not given.
    pub const fn is_unset(&self) -> bool {
        matches!(self, Self::Unset)
    }

    /// The value, if one is given that can be read.
    pub const fn value(&self) -> Option<&T> {
        match self {
            Self::Set(value) => Some(value),
            Self::Unset | Self::Unreadable => None,
        }
    }

    /// The same field, or this value if it is not given.
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
