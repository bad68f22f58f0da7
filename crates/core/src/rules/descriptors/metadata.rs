//! Metadata of rules: data of the rules file that is passed to callers and affects no decision.

use std::collections::BTreeMap;

/// Metadata of a rule: values by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata(pub BTreeMap<String, MetadataValue>);

/// A value of metadata, as in JSON.
#[derive(Clone, Debug, PartialEq)]
pub enum MetadataValue {
    /// `null`.
    Null,
    /// `true` or `false`.
    Boolean(bool),
    /// A finite number.
    Number(f64),
    /// A string.
    Text(String),
    /// Values in order.
    List(Vec<Self>),
    /// Values by name.
    Map(Metadata),
}

/// Numbers are finite, so equality is reflexive.
impl Eq for MetadataValue {}

impl Metadata {
    /// Adds the names of `other` that are missing here, recursively for maps that both have.
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
