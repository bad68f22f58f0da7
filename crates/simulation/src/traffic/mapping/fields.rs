//! The fields of a line, as expressions see them.

use crate::traffic::format::FieldValues;

/// The fields of a line, by their numbers in [`super::parser::FieldNames`].
pub(crate) trait Fields {
    /// Returns the value of a field; `None` if the line does not have it.
    fn value(&self, number: usize) -> Option<&[u8]>;
}

impl Fields for FieldValues {
    fn value(&self, number: usize) -> Option<&[u8]> {
        self.get(number)
    }
}

/// Fields that a test gives.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct FakeFields(Vec<Option<Vec<u8>>>);

#[cfg(test)]
impl FakeFields {
    /// Creates the fields of these names from pairs of name and value.
    pub(crate) fn new(names: &super::parser::FieldNames, pairs: &[(&str, &str)]) -> Self {
        let value = |name: &String| {
            let (_, value) = pairs.iter().find(|(known, _)| known == name)?;
            Some(value.as_bytes().to_vec())
        };
        Self(names.names().iter().map(value).collect())
    }
}

#[cfg(test)]
impl Fields for FakeFields {
    fn value(&self, number: usize) -> Option<&[u8]> {
        self.0[number].as_deref()
    }
}
