//! Attributes of a request, borrowed from the caller's collection.

use std::collections::HashMap;

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
