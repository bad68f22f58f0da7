//! The values of the fields that were wanted.

/// The values of one line's fields. Used again for each line, so that a line needs no allocation.
#[derive(Clone, Debug, Default)]
pub struct FieldValues {
    bytes: Vec<u8>,
    /// Where each value lies in `bytes`.
    places: Vec<Option<(usize, usize)>>,
}

impl FieldValues {
    /// Returns the value of a field by its position among the wanted ones, without the format's
    /// escapes. `None` if the field is absent, empty or `-`.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let (start, end) = self.places.get(index).copied().flatten()?;
        Some(&self.bytes[start..end])
    }

    /// Forgets all values, and expects this many.
    pub(super) fn clear(&mut self, count: usize) {
        self.bytes.clear();
        self.places.clear();
        self.places.resize(count, None);
    }

    /// Forgets one value.
    pub(super) fn remove(&mut self, index: usize) {
        self.places[index] = None;
    }

    /// Sets a value to these bytes.
    pub(super) fn set(&mut self, index: usize, value: &[u8]) {
        self.set_with(index, |bytes| bytes.extend_from_slice(value));
    }

    /// Sets a value to the bytes that a function appends.
    pub(super) fn set_with(&mut self, index: usize, append: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        append(&mut self.bytes);
        let value = &self.bytes[start..];
        let is_absent = value.is_empty() || value == b"-";
        self.places[index] = (!is_absent).then_some((start, self.bytes.len()));
    }
}
