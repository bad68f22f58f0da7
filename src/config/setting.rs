//! Settings as they are declared where they are read: key, description and example.
//!
//! The reference and the example configuration are made of these, so that neither can miss one.

use crate::rules::spec::{FieldKind, RuleField, ValueKind, Whole};

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
    /// What its values can be, as far as that is known.
    pub(super) takes: Option<Takes>,
    /// The key is data, which the setting describes.
    pub(super) is_name: bool,
}

/// The values that a setting takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Takes {
    /// `true` or `false`.
    Boolean,
    /// A whole number within bounds.
    Whole(u64, u64),
    /// One of these words.
    Words(Vec<&'static str>),
    /// A text.
    Text,
    /// One text or several.
    Texts,
    /// A time with a unit, or in whole seconds.
    Duration,
    /// A number above 0 and at most 1.
    Share,
    /// A percentage.
    Percentage,
}

impl Takes {
    /// Returns what a field of rules takes.
    pub(super) fn of_field(field: &RuleField) -> Option<Self> {
        let FieldKind::Value(kind, _) = field.kind else { return None };
        Some(match kind {
            ValueKind::Boolean => Self::Boolean,
            ValueKind::Whole => {
                let Whole { from, to } = field.bounds.unwrap_or(Whole { from: 0, to: u64::MAX });
                Self::Whole(from, to)
            }
            ValueKind::Text => Self::Text,
            ValueKind::Texts => Self::Texts,
            ValueKind::Words(words) => Self::Words(words()),
            ValueKind::Duration => Self::Duration,
            ValueKind::Share => Self::Share,
            ValueKind::Percentage => Self::Percentage,
        })
    }
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
