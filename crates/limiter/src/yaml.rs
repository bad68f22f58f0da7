//! Reads rules from YAML, in the format of rules files: `rate-limiter` (the default rule), `rules`
//! and `unmatched`. Unknown keys are errors.

use std::error::Error;

use rlaas_core::rules::RuleSet;
use rlaas_core::rules::spec::{Problem, RulesSpec};
use thiserror::Error;

/// Error of a text that has no valid rules.
#[derive(Debug, Error)]
pub enum YamlError {
    /// The text is not YAML, or not of this format.
    #[error("not a rules file: {0}")]
    Syntax(#[source] Box<dyn Error + Send + Sync>),
    /// Some fields are invalid; every problem is listed.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Invalid(Vec<Problem>),
}

/// Reads rule specifications without validating them. An empty text has only the default rule.
///
/// # Errors
///
/// [`YamlError::Syntax`] with line and column, if the text is not YAML of this format.
pub fn read_specs(text: &str) -> Result<RulesSpec, YamlError> {
    let specs = serde_saphyr::from_str::<Option<RulesSpec>>(text);
    Ok(specs.map_err(|error| YamlError::Syntax(error.into()))?.unwrap_or_default())
}

/// Reads and validates rules.
///
/// # Errors
///
/// [`YamlError`] if the text can't be read, or a field is invalid.
///
/// ```
/// use rlaas_limiter::yaml::read_rules;
///
/// let rules = read_rules("rules:\n  - { name: login, key-by: ip, limit: 5, window: 1m }\n")?;
/// assert_eq!(rules.iter().count(), 2);
/// let error = read_rules("rules:\n  - { name: login, limit: many }\n").expect_err("problems");
/// assert_eq!(
///     error.to_string(),
///     "rules[0].limit: must be a whole number from 0 to 999999999999999\nrules[0].window: missing"
/// );
/// # Ok::<(), rlaas_limiter::yaml::YamlError>(())
/// ```
pub fn read_rules(text: &str) -> Result<RuleSet, YamlError> {
    read_specs(text)?.build().map_err(YamlError::Invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_text_has_only_the_default_rule() {
        for text in ["", "# nothing\n", "{}"] {
            assert_eq!(read_rules(text).expect("rules").iter().count(), 1, "{text:?}");
        }
    }

    #[test]
    fn a_syntax_error_names_its_line() {
        for text in ["rules: [", "rules: []\nservers: 1", "rules:\n  - { limits: 5 }"] {
            let error = read_rules(text).expect_err(text);
            assert!(matches!(error, YamlError::Syntax(_)), "{text}: {error}");
            assert!(error.to_string().contains("line "), "{text}: {error}");
        }
    }
}
