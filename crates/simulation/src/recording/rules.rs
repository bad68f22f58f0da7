//! Rules as a recording with hashed values can decide them.
//!
//! Exact texts in conditions are hashed as the values of the recording are. What a pattern would
//! match nobody can say: a rule with one on a hashed part is left out, and so is what applies only
//! where it does not match.

use std::fmt;

use rlaas_core::rules::descriptors::{Descriptor, Descriptors};
use rlaas_core::rules::{
    EnforcedShare, HashedParts, KeyHasher, Matcher, Mode, Pattern, Rule, RuleSet, TextPattern,
    Unmatched,
};
use thiserror::Error;

use super::hashing::key_fingerprint;
use super::header::{Header, RecordedKeys};

/// Rules for a recording, and those that were left out.
#[derive(Clone, Debug)]
pub struct RulesForRecording {
    /// The rules that can be decided, with hashed texts.
    pub rules: RuleSet,
    /// The rules that can't.
    pub undecidable: Vec<UndecidableRule>,
}

/// A rule that a recording with hashed values can't decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndecidableRule {
    /// Its name.
    pub name: String,
    /// Why it can't be decided.
    pub reason: Undecidable,
}

/// Why a rule can't be decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undecidable {
    /// It has a pattern on this part.
    Pattern(String),
    /// It has a condition on this part, and the key is not known.
    WithoutKey(String),
    /// It is enforced for a share of keys, which are other ones when they are hashed.
    Share,
    /// It decides what a rule does not match that can't be decided.
    Rest,
}

/// Reason why rules can't be tried on recordings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    /// The recording was hashed by another key.
    #[error("--key-file: the recording was hashed by another key")]
    OtherKey,
    /// Recordings differ in what is hashed.
    #[error("recordings must have the same keys: clear, or hashed by the same key")]
    Differ,
}

impl fmt::Display for Undecidable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pattern(part) => write!(f, "a pattern on {part}, which is hashed"),
            Self::WithoutKey(part) => {
                write!(f, "a condition on {part}, which is hashed: needs --key-file")
            }
            Self::Share => f.write_str("enforced for a share of keys, which are hashed"),
            Self::Rest => f.write_str("decides what such a rule does not match"),
        }
    }
}

/// Returns the rules that recordings with these headers can decide. `key` is the hash by the key that
/// the user has.
///
/// # Errors
///
/// [`KeyError`] if the recordings differ, or were hashed by another key.
pub fn rules_for_recordings(
    rules: &RuleSet,
    headers: &[Header],
    key: Option<&KeyHasher>,
) -> Result<RulesForRecording, KeyError> {
    let first = headers.first().map(|header| &header.keys);
    if headers.iter().any(|header| Some(&header.keys) != first) {
        return Err(KeyError::Differ);
    }
    let Some(RecordedKeys::Hashed(hashed)) = first else {
        return Ok(RulesForRecording { rules: rules.clone(), undecidable: Vec::new() });
    };
    if key.is_some_and(|key| key_fingerprint(key) != hashed.key) {
        return Err(KeyError::OtherKey);
    }
    // Without the key nothing is hashed, but the parts are known.
    let of_key = key.cloned().unwrap_or_else(|| KeyHasher::new(|_| [0; 16]));
    Ok(Hashing { parts: hashed.hashed_parts(of_key), has_key: key.is_some() }.rules(rules))
}

/// What is hashed, and how.
struct Hashing {
    parts: HashedParts,
    has_key: bool,
}

impl Hashing {
    fn rules(&self, rules: &RuleSet) -> RulesForRecording {
        let mut undecidable = Vec::new();
        let mut leaves_rest_open = false;
        let mut named = Vec::new();
        for rule in rules.iter().skip(1) {
            match self.rule(rule) {
                Ok(rule) => named.push(rule),
                Err(reason) => {
                    leaves_rest_open |= rule.mode != Mode::Shadow;
                    undecidable.push(UndecidableRule { name: rule.name.to_string(), reason });
                }
            }
        }
        let mut unmatched = rules.unmatched();
        let mut default = rules.default_rule().clone();
        if unmatched != Unmatched::Allow {
            let decided =
                if leaves_rest_open { Err(Undecidable::Rest) } else { self.rule(&default) };
            match decided {
                Ok(rule) => default = rule,
                Err(reason) => {
                    unmatched = Unmatched::Allow;
                    undecidable.push(UndecidableRule { name: default.name.to_string(), reason });
                }
            }
        }
        let coupling = rules.descriptors().coupling();
        let trees = rules.descriptors().trees().into_iter();
        let trees = trees.map(|(domain, top)| (domain, self.level(top, &mut undecidable)));
        let descriptors = Descriptors::new(trees.collect(), coupling);
        let hashed =
            RuleSet::new(default, named).with_unmatched(unmatched).with_descriptors(descriptors);
        let rules = hashed.in_project(rules.project());
        RulesForRecording { rules, undecidable }
    }

    fn rule(&self, rule: &Rule) -> Result<Rule, Undecidable> {
        let is_hashed = |part| self.parts.hasher_of(part).is_some();
        if rule.enforce != EnforcedShare::ALL && rule.key_by.iter().any(is_hashed) {
            return Err(Undecidable::Share);
        }
        let mut rule = rule.clone();
        self.hash_matcher(&mut rule.matcher)?;
        for other in &mut rule.overrides {
            self.hash_matcher(&mut other.matcher)?;
        }
        Ok(rule)
    }

    fn hash_matcher(&self, matcher: &mut Matcher) -> Result<(), Undecidable> {
        for (part, pattern) in &mut matcher.patterns {
            if let Pattern::OneOf(texts) = pattern
                && let Some(hasher) = self.parts.hasher_of(part)
            {
                for text in texts {
                    *text = TextPattern::Exact(self.hashed(hasher, &part.to_string(), text)?);
                }
            }
        }
        Ok(())
    }

    fn hashed(
        &self,
        hasher: &KeyHasher,
        part: &str,
        text: &TextPattern,
    ) -> Result<String, Undecidable> {
        match text {
            TextPattern::Exact(exact) if self.has_key => Ok(hasher.shown(exact)),
            TextPattern::Exact(_) => Err(Undecidable::WithoutKey(part.to_owned())),
            _ => Err(Undecidable::Pattern(part.to_owned())),
        }
    }

    /// Hashes the values of a level, and leaves out nodes whose values can't be hashed, with those
    /// that match what such a node does not.
    fn level(
        &self,
        level: Vec<Descriptor>,
        left_out: &mut Vec<UndecidableRule>,
    ) -> Vec<Descriptor> {
        let is_open = |node: &&Descriptor| self.value(node).is_err();
        let open_keys: Vec<String> =
            level.iter().filter(is_open).map(|node| node.key.clone()).collect();
        let mut kept = Vec::new();
        for mut node in level {
            match self.value(&node) {
                Ok(None) if open_keys.contains(&node.key) => {
                    leave_out(&node, &Undecidable::Rest, left_out);
                }
                Ok(value) => {
                    node.value = value;
                    node.below = self.level(node.below, left_out);
                    kept.push(node);
                }
                Err(reason) => leave_out(&node, &reason, left_out),
            }
        }
        kept
    }

    /// Returns the value of a node as the recording has it.
    fn value(&self, node: &Descriptor) -> Result<Option<String>, Undecidable> {
        match (&node.value, self.parts.hasher_of_entry(&node.key)) {
            (Some(value), Some(hasher)) => {
                self.hashed(hasher, &node.key, &TextPattern::new(value)).map(Some)
            }
            (value, _) => Ok(value.clone()),
        }
    }
}

/// Lists the rules of a node, and of those below it.
fn leave_out(node: &Descriptor, reason: &Undecidable, left_out: &mut Vec<UndecidableRule>) {
    if let Some(rule) = &node.rule {
        left_out.push(UndecidableRule { name: rule.name.to_string(), reason: reason.clone() });
    }
    for below in &node.below {
        leave_out(below, reason, left_out);
    }
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

#[cfg(test)]
mod tests;
