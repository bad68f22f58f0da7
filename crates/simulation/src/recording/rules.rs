//! Which rules a recording can decide.

use rlaas_core::rules::{EnforcedShare, KeyHasher, Pattern, RuleSet};
use thiserror::Error;

use super::header::{Header, RecordedKeys};

/// A rule that looks at values which a recording has as hashes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "rule {rule} looks at {part}, which is hashed in the recording: leave it out, or record in clear"
)]
pub struct HashedPart {
    /// Name of the rule.
    pub rule: String,
    /// Name of the part.
    pub part: String,
}

/// Checks that recordings with these headers can decide all rules.
///
/// # Errors
///
/// [`HashedPart`] for the first rule with a condition on a hashed part, or that is enforced for a share
/// of keys of one: they are other keys when they are hashed.
pub fn check_rules(rules: &RuleSet, headers: &[Header]) -> Result<(), HashedPart> {
    for header in headers {
        let RecordedKeys::Hashed(hashed) = &header.keys else { continue };
        // Which parts are hashed matters here, not how.
        let hashed = hashed.hashed_parts(KeyHasher::new(|_| [0; 16]));
        for rule in rules.iter() {
            let overrides = rule.overrides.iter().map(|other| &other.matcher);
            let patterns = overrides.chain([&rule.matcher]).flat_map(|matcher| &matcher.patterns);
            let texts = patterns.filter(|(_, pattern)| matches!(pattern, Pattern::OneOf(_)));
            let keys = rule.key_by.iter().filter(|_| rule.enforce != EnforcedShare::ALL);
            let mut looked_at = texts.map(|(part, _)| part).chain(keys);
            if let Some(part) = looked_at.find(|part| hashed.hasher_of(part).is_some()) {
                let (rule, part) = (rule.name.to_string(), part.to_string());
                return Err(HashedPart { rule, part });
            }
        }
        for placed in rules.descriptors().placed() {
            let mut valued = placed.path.iter().filter(|step| step.value.is_some());
            if let Some(step) = valued.find(|step| hashed.hasher_of_entry(step.key).is_some()) {
                let (rule, part) = (placed.rule.name.to_string(), step.key.to_owned());
                return Err(HashedPart { rule, part });
            }
        }
    }
    Ok(())
}

/// Returns the names of the rules whose keys lack a part of the sample of a recording, each with that
/// part: such a rule sees only a share of the requests of each of its keys.
pub fn undercounted_rules(rules: &RuleSet, headers: &[Header]) -> Vec<(String, String)> {
    let flat = rules.iter().filter_map(|rule| {
        let lacking = headers.iter().find_map(|header| header.undercounted_for(&rule.key_by))?;
        Some((rule.name.to_string(), lacking.to_owned()))
    });
    let mut undercounted: Vec<_> = flat.collect();
    if headers.iter().any(Header::is_sampled) {
        for placed in rules.descriptors().placed() {
            if let Some(step) = placed.path.iter().find(|step| step.shares) {
                undercounted.push((placed.rule.name.to_string(), step.key.to_owned()));
            }
        }
    }
    undercounted
}
