//! A rule with its place in a tree, and the keys of descriptors that fit it.

use smallvec::SmallVec;

use super::{DescriptorRule, PathStep};
use crate::clock::Micros;
use crate::rules::key::IdValue;
use crate::rules::{Hashing, Key};

/// A rule with its place in a tree.
#[derive(Clone, Debug)]
pub struct PlacedRule<'a> {
    /// Domain of the tree.
    pub domain: &'a str,
    /// Path from the top of the tree to the rule.
    pub path: Vec<PathStep<'a>>,
    /// The rule.
    pub rule: &'a DescriptorRule,
    /// Position of the rule in [`Descriptors::every`](super::Descriptors::every).
    pub position: usize,
}

impl PlacedRule<'_> {
    /// Returns `true` if the path has entries with these keys and values. The value of an entry
    /// whose values share one state may be the pattern.
    ///
    /// A value that is shown as a hash fits every pattern, since nobody knows what it is the hash
    /// of.
    pub(crate) fn fits(&self, entries: &[(&str, &str)], hashing: Hashing<'_>) -> bool {
        let mut steps = self.path.iter().zip(entries);
        self.path.len() == entries.len()
            && steps.all(|(step, (key, value))| {
                step.key == *key && (step.fits(value) || hashing.names_hash(key, value))
            })
    }

    /// Returns the key of a descriptor whose entries [fit](PlacedRule::fits).
    pub(crate) fn key_of(&self, entries: &[(&str, &str)], hashing: Hashing<'_>) -> Key {
        let values = self.path.iter().zip(entries).map(|(step, (_, value))| {
            let value = match step.value {
                Some(pattern) if step.shares => IdValue::Shared(pattern),
                Some(configured) if configured == *value => IdValue::Configured(configured),
                _ => IdValue::Own(value),
            };
            (step.key, value)
        });
        hashed_key(self.domain, values, None, hashing)
    }
}

/// Returns the key of a descriptor, with hashed values. Values of the configuration stay readable.
#[inline(never)]
pub(super) fn hashed_key<'a>(
    domain: &str,
    entries: impl Iterator<Item = (&'a str, IdValue<'a>)>,
    window: Option<Micros>,
    hashing: Hashing<'_>,
) -> Key {
    let hash = |(key, value): (&'a str, IdValue<'a>)| {
        let hash = match value {
            IdValue::Own(own) => hashing.hash_entry(key, own),
            IdValue::Configured(_) | IdValue::Shared(_) => None,
        };
        (key, value, hash)
    };
    let entries: SmallVec<[_; 4]> = entries.map(hash).collect();
    let entries = entries.iter().map(|(key, value, hash)| {
        (*key, hash.as_ref().map_or(*value, |hash| IdValue::Own(hash.as_str())))
    });
    Key::for_descriptor(domain, entries, window)
}
