//! What a rule says of itself to those who ask: data of the file, which decides nothing.

use std::collections::BTreeMap;

/// Names and values of a rule, for answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata(pub BTreeMap<String, MetadataValue>);

/// A value of metadata: one of JSON.
#[derive(Clone, Debug, PartialEq)]
pub enum MetadataValue {
    /// `null`.
    Null,
    /// `true` or `false`.
    Boolean(bool),
    /// A finite number.
    Number(f64),
    /// A text.
    Text(String),
    /// Values in order.
    List(Vec<Self>),
    /// Values by name.
    Map(Metadata),
}

/// No number is NaN.
impl Eq for MetadataValue {}

impl Metadata {
    /// Adds what `other` has and this one has not, in maps that both have too.
    pub fn merge(&mut self, other: &Self) {
        for (name, value) in &other.0 {
            match (self.0.get_mut(name), value) {
                (None, value) => {
                    self.0.insert(name.clone(), value.clone());
                }
                (Some(MetadataValue::Map(own)), MetadataValue::Map(other)) => own.merge(other),
                (Some(_), _) => {}
            }
        }
    }
}
