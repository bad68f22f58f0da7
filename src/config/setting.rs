//! Settings as they are declared where they are read: key, description and example.
//!
//! The reference and the example configuration are made of these, so that neither can miss one.

use crate::rules::spec::RuleField;

/// A setting, a section or a list of sections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    /// The last part of its path.
    pub(super) key: &'static str,
    /// Description, in whole sentences.
    pub(super) about: &'static str,
    /// Value for the example configuration, as YAML.
    pub(super) example: Option<&'static str>,
}

impl Setting {
    /// Creates a setting without an example; its default is shown instead.
    pub(super) const fn new(key: &'static str, about: &'static str) -> Self {
        Self { key, about, example: None }
    }

    /// Adds a value for the example configuration.
    pub(super) const fn example(self, example: &'static str) -> Self {
        Self { example: Some(example), ..self }
    }
}

impl From<&RuleField> for Setting {
    fn from(field: &RuleField) -> Self {
        Self { key: field.key, about: field.about, example: field.example }
    }
}

/// A setting and its path.
#[derive(Debug)]
pub(super) struct Declared {
    /// Path; items of lists have the index 0.
    pub(super) path: String,
    pub(super) kind: Kind,
    pub(super) setting: Setting,
}

/// The kind of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value.
    Value,
    /// Settings.
    Section,
    /// Items, each with the same settings.
    List,
}
