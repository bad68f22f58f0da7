//! Costs of a request by rule, borrowed from the caller's collection.

use std::collections::HashMap;

use crate::algorithm::Cost;

/// Units that a request takes from single rules, by their names, in the place of its cost.
#[derive(Clone, Copy, Debug)]
pub enum Costs<'a> {
    /// A map from name to units.
    Map(&'a HashMap<String, u64>),
    /// Pairs of name and units. Of several with the same name the first counts.
    Pairs(&'a [(&'a str, u64)]),
}

impl<'a> Costs<'a> {
    /// No costs.
    pub const NONE: Self = Self::Pairs(&[]);

    /// Returns the cost for a rule, if it is named.
    #[inline]
    pub fn get(self, rule: &str) -> Option<Cost> {
        let units = match self {
            Self::Map(map) if map.is_empty() => None,
            Self::Map(map) => map.get(rule).copied(),
            Self::Pairs(pairs) => {
                pairs.iter().find(|(name, _)| *name == rule).map(|(_, units)| *units)
            }
        };
        // A request has no units above the bound.
        units.map(|units| Cost::new(u32::try_from(units).unwrap_or(u32::MAX)))
    }

    /// Returns the number of costs.
    pub fn len(self) -> usize {
        match self {
            Self::Map(map) => map.len(),
            Self::Pairs(pairs) => pairs.len(),
        }
    }

    /// Returns `true` if no rule is named.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns names and units, in no particular order.
    pub fn iter(self) -> impl Iterator<Item = (&'a str, u64)> {
        let (map, pairs) = match self {
            Self::Map(map) => (Some(map), [].as_slice()),
            Self::Pairs(pairs) => (None, pairs),
        };
        let map = map.into_iter().flatten().map(|(name, units)| (name.as_str(), *units));
        map.chain(pairs.iter().copied())
    }
}

impl<'a> From<&'a HashMap<String, u64>> for Costs<'a> {
    fn from(map: &'a HashMap<String, u64>) -> Self {
        Self::Map(map)
    }
}

impl<'a, const N: usize> From<&'a [(&'a str, u64); N]> for Costs<'a> {
    fn from(pairs: &'a [(&'a str, u64); N]) -> Self {
        Self::Pairs(pairs)
    }
}
