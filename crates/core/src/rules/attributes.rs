//! Attributes of a request, and its costs by rule, borrowed from the caller's collections.

use std::collections::HashMap;

use crate::algorithm::Cost;

/// Properties of a request beside the user and the resource, by name.
#[derive(Clone, Copy, Debug)]
pub enum Attributes<'a> {
    /// A map from name to value.
    Map(&'a HashMap<String, String>),
    /// Pairs of name and value. Of several with the same name the first counts.
    Pairs(&'a [(&'a str, &'a str)]),
}

impl<'a> Attributes<'a> {
    /// No attributes.
    pub const NONE: Self = Self::Pairs(&[]);
    /// The beginning of the names that are those of API keys: no caller sets them.
    pub const OF_KEY: &'static str = "key.";

    /// Returns `true` for the name of an attribute of an API key.
    pub fn is_of_key(name: &str) -> bool {
        name.starts_with(Self::OF_KEY)
    }

    /// Returns the value of an attribute.
    pub fn get(self, name: &str) -> Option<&'a str> {
        match self {
            Self::Map(map) => map.get(name).map(String::as_str),
            Self::Pairs(pairs) => {
                pairs.iter().find(|(other, _)| *other == name).map(|(_, value)| *value)
            }
        }
    }

    /// Returns the number of attributes.
    pub fn len(self) -> usize {
        match self {
            Self::Map(map) => map.len(),
            Self::Pairs(pairs) => pairs.len(),
        }
    }

    /// Returns `true` if there are no attributes.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns names and values, in no particular order.
    pub fn iter(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let (map, pairs) = match self {
            Self::Map(map) => (Some(map), [].as_slice()),
            Self::Pairs(pairs) => (None, pairs),
        };
        let map = map.into_iter().flatten().map(|(name, value)| (name.as_str(), value.as_str()));
        map.chain(pairs.iter().copied())
    }

    /// Copies the attributes to a map.
    pub fn to_map(self) -> HashMap<String, String> {
        let mut map = HashMap::with_capacity(self.len());
        for (name, value) in self.iter() {
            map.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }
        map
    }
}

impl Default for Attributes<'_> {
    fn default() -> Self {
        Self::NONE
    }
}

impl<'a> From<&'a HashMap<String, String>> for Attributes<'a> {
    fn from(map: &'a HashMap<String, String>) -> Self {
        Self::Map(map)
    }
}

impl<'a> From<&'a [(&'a str, &'a str)]> for Attributes<'a> {
    fn from(pairs: &'a [(&'a str, &'a str)]) -> Self {
        Self::Pairs(pairs)
    }
}

impl<'a, const N: usize> From<&'a [(&'a str, &'a str); N]> for Attributes<'a> {
    fn from(pairs: &'a [(&'a str, &'a str); N]) -> Self {
        Self::Pairs(pairs)
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_equal_a_map_of_the_first_of_each_name() {
        let pairs = [("plan", "pro"), ("ip", "::1"), ("plan", "free")];
        let map = Attributes::from(&pairs).to_map();
        assert_eq!(map.len(), 2);
        for (name, value) in [("plan", Some("pro")), ("ip", Some("::1")), ("other", None)] {
            assert_eq!(Attributes::from(&pairs).get(name), value, "{name}");
            assert_eq!(Attributes::from(&map).get(name), value, "{name}");
        }
        let mut all: Vec<_> = Attributes::from(&map).iter().collect();
        all.sort_unstable();
        assert_eq!(all, [("ip", "::1"), ("plan", "pro")]);
        assert!(Attributes::NONE.is_empty());
    }
}
