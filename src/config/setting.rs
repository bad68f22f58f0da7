//! Settings as they are declared where they are read: key, description and example; and their values in force.
//!
//! The reference and the example configuration are made of these, so that neither can miss one.

use super::yaml;
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
    /// One percentage or several.
    Percentages,
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
            ValueKind::Percentages => Self::Percentages,
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

/// One value in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective {
    /// The whole key, such as `server.listen`.
    pub key: String,
    /// The value; secrets are masked.
    pub value: String,
    /// The origin: a file, an environment variable, the command line or the default.
    pub origin: String,
    /// Whether the unquoted value, read as YAML, gives the same setting.
    pub reads_back: bool,
}

impl Effective {
    /// Returns the keys of the enclosing sections, and the value's own key.
    pub fn path(&self) -> (Vec<&str>, &str) {
        let (mut sections, mut rest) = (Vec::new(), self.key.as_str());
        // A quoted name is data and always the last part. Dots in it do not separate keys.
        while let Some((section, below)) =
            rest.split_once('.').filter(|_| !rest.starts_with(['\'', '"']))
        {
            sections.push(section);
            rest = below;
        }
        (sections, rest)
    }

    /// Returns the value as YAML.
    pub fn to_yaml(&self) -> String {
        let value = &self.value;
        let is_plain = value.starts_with(|first: char| first.is_ascii_alphanumeric());
        let is_list = value.starts_with('[') && value.ends_with(']');
        if (is_plain || is_list) && self.reads_back { value.clone() } else { yaml::quoted(value) }
    }
}
