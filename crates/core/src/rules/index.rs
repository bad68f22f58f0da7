//! An index of rules by the value of one part: of those that need an exact value, and those that need a
//! beginning. It narrows the rules that may match; whether they do is decided by their matchers.

use std::collections::{BTreeSet, HashMap};

use super::pattern::ValueStart;

/// Positions of rules by the value of one part. Each rule is found at most once for a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ValueIndex {
    exact: HashMap<String, Vec<usize>>,
    by_prefix: HashMap<String, Vec<usize>>,
    /// Lengths of the prefixes, in bytes.
    lengths: BTreeSet<usize>,
}

impl ValueIndex {
    /// Adds a rule that needs a value with one of these starts. Rules are added in order.
    pub(super) fn insert(&mut self, starts: &[ValueStart<'_>], position: usize) {
        for start in starts {
            // The values of a longer start are among those of a shorter one.
            if starts.iter().any(|other| other.covers(*start)) {
                continue;
            }
            let positions = match *start {
                ValueStart::Exact(value) => self.exact.entry(value.to_owned()).or_default(),
                ValueStart::Prefix(prefix) => {
                    self.lengths.insert(prefix.len());
                    self.by_prefix.entry(prefix.to_owned()).or_default()
                }
            };
            // The same start may be given twice.
            if positions.last() != Some(&position) {
                positions.push(position);
            }
        }
    }

    /// Returns the positions of the rules that may match a value.
    pub(super) fn find(&self, value: &str) -> impl Iterator<Item = usize> {
        let prefixes = self.lengths.range(..=value.len()).filter_map(|length| value.get(..*length));
        let of_prefixes = prefixes.filter_map(|prefix| self.by_prefix.get(prefix));
        self.exact.get(value).into_iter().chain(of_prefixes).flatten().copied()
    }

    /// Returns an upper bound of the rules that match one value. The longest start that a value has
    /// comes with all its shorter ones.
    pub(super) fn max_matches(&self) -> usize {
        let longest = self.exact.keys().chain(self.by_prefix.keys());
        longest.map(|start| self.find(start).count()).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rules::Pattern;

    fn index(patterns: &[Pattern]) -> ValueIndex {
        let mut index = ValueIndex::default();
        for (position, pattern) in patterns.iter().enumerate() {
            index.insert(&pattern.starts().expect("starts"), position);
        }
        index
    }

    proptest! {
        #[test]
        fn every_rule_that_matches_is_found_once_and_counted(
            texts in prop::collection::vec(prop::collection::vec("[ab][ab*]{0,3}", 1..4), 0..8),
            value in "[ab]{0,5}",
        ) {
            let patterns: Vec<Pattern> = texts.iter().map(|texts| Pattern::any_of(texts)).collect();
            let index = index(&patterns);
            let mut found: Vec<usize> = index.find(&value).collect();
            found.sort_unstable();
            let count = found.len();
            found.dedup();
            prop_assert_eq!(found.len(), count, "twice");
            prop_assert!(count <= index.max_matches());
            for (position, pattern) in patterns.iter().enumerate() {
                let fits = pattern.fit(Some(&value)).is_some();
                prop_assert!(!fits || found.contains(&position), "{:?} {}", pattern, value);
            }
        }
    }

    #[test]
    fn only_starts_that_one_value_can_have_are_counted_together() {
        let of = |texts: &[&str]| {
            let patterns: Vec<Pattern> = texts.iter().map(|text| Pattern::one(text)).collect();
            index(&patterns).max_matches()
        };
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&["/svc/1/*", "/svc/2/*", "/svc/12/*"]), 1);
        assert_eq!(of(&["/svc/*", "/svc/1/*", "/svc/2/*", "/svc/2/x"]), 3);
        assert_eq!(of(&["/svc/1/*/a", "/svc/1/*/b", "/svc/2/*"]), 2);
    }
}
