//! A value of the effective configuration.

use super::yaml;

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
