//! Problems of specifications.

use std::fmt::Display;

use thiserror::Error;

use super::{Field, Whole};

/// A field of a specification that is not valid.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{field}: {text}")]
pub struct Problem {
    /// Path of the field, such as `overrides[1].limit`.
    pub field: String,
    /// The problem: what the field must be. Never contains the value.
    pub text: String,
}

/// The field is not valid, and its problem has been added.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InvalidField;

/// The problems found so far.
#[derive(Debug, Default)]
pub(crate) struct Problems(Vec<Problem>);

impl Problems {
    pub(crate) fn add(&mut self, field: impl Into<String>, text: impl Display) {
        self.0.push(Problem { field: field.into(), text: text.to_string() });
    }

    /// Returns the value of a field, if it is set. Adds the problem `text` if it is not valid.
    pub(crate) fn check<'a, T>(
        &mut self,
        key: &str,
        field: &'a Field<T>,
        text: impl Display,
        is_valid: impl FnOnce(&T) -> bool,
    ) -> Result<Option<&'a T>, InvalidField> {
        match field {
            Field::Unset => Ok(None),
            Field::Set(value) if is_valid(value) => Ok(Some(value)),
            Field::Set(_) | Field::Unreadable => {
                self.add(key, text);
                Err(InvalidField)
            }
        }
    }

    /// Returns the value of a field, if it is set. Adds the problem `text` if it has the wrong
    /// type.
    pub(crate) fn read<T: Copy>(
        &mut self,
        key: &str,
        field: Field<T>,
        text: impl Display,
    ) -> Result<Option<T>, InvalidField> {
        self.check(key, &field, text, |_| true).map(Option::<&T>::copied)
    }

    /// Returns the value of a field, if it is set. Adds a problem if it is no number within bounds.
    pub(crate) fn whole(
        &mut self,
        key: &str,
        field: Field<u64>,
        bounds: Whole,
    ) -> Result<Option<u64>, InvalidField> {
        let is_within = |number: &u64| (bounds.from..=bounds.to).contains(number);
        self.check(key, &field, bounds, is_within).map(Option::<&u64>::copied)
    }

    /// Returns the value of a required field. Adds a problem if it is missing.
    pub(crate) fn required<T>(
        &mut self,
        key: &str,
        value: Result<Option<T>, InvalidField>,
    ) -> Option<T> {
        let value = value.ok()?;
        if value.is_none() {
            self.add(key, "missing");
        }
        value
    }

    /// Adds the problems of a part. Their fields get the prefix `path`.
    pub(crate) fn add_below(&mut self, path: &str, problems: impl IntoIterator<Item = Problem>) {
        let below = |problem: Problem| Problem {
            field: format!("{path}.{}", problem.field),
            text: problem.text,
        };
        self.0.extend(problems.into_iter().map(below));
    }

    /// Returns `built`, or the problems if there are any.
    pub(crate) fn finish<T>(self, built: Option<T>) -> Result<T, Vec<Problem>> {
        match built {
            Some(built) if self.0.is_empty() => Ok(built),
            _ => Err(self.0),
        }
    }
}

impl IntoIterator for Problems {
    type Item = Problem;
    type IntoIter = std::vec::IntoIter<Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
