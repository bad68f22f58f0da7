//! Limits that requests bring with them: where a rule finds them, and which it takes.

use std::fmt;
use std::sync::Arc;

use super::{Grant, Request, Rule};
use crate::algorithm::Limit;

/// Where a rule finds the limit of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitFrom {
    /// In the descriptor that the request is.
    Request,
    /// In an attribute of this name.
    Attribute(Arc<str>),
}

/// What a request says about its limit to a rule that asks for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OwnLimit {
    /// Nothing, or nothing that counts beside an override of the rule.
    #[default]
    None,
    /// A limit, in the place of that of the rule.
    InForce,
    /// Something that is no limit of the rule's algorithm, or of another window.
    Ignored,
}

impl LimitFrom {
    const REQUEST: &str = "request";
    /// What precedes the name of an attribute.
    pub const ATTRIBUTE: &str = "attributes.";

    /// Reads `request` or `attributes.NAME`, with a name of 1 to 64 bytes.
    pub fn from_text(text: &str) -> Option<Self> {
        let is_name = |name: &str| (1..=Request::MAX_ATTRIBUTE_NAME).contains(&name.len());
        match text.strip_prefix(Self::ATTRIBUTE) {
            Some(name) => is_name(name).then(|| Self::Attribute(name.into())),
            None => (text == Self::REQUEST).then_some(Self::Request),
        }
    }
}

impl fmt::Display for LimitFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request => f.write_str(Self::REQUEST),
            Self::Attribute(name) => write!(f, "{}{name}", Self::ATTRIBUTE),
        }
    }
}

impl Rule {
    /// Returns the grant to a request that no override applies to: its own limit, or that of the rule.
    pub(super) fn grant_from(&self, request: &Request<'_>) -> (Grant, OwnLimit) {
        let units = match &self.limit_from {
            None => None,
            Some(LimitFrom::Request) => request.limit().map(|limit| limit.units_in(self.window)),
            Some(LimitFrom::Attribute(name)) => request.attributes().get(name).map(units),
        };
        let grant = units.map(|units| units.and_then(|units| self.grant_of(units)));
        match grant {
            None => (self.grant, OwnLimit::None),
            Some(None) => (self.grant, OwnLimit::Ignored),
            Some(Some(grant)) => (grant, OwnLimit::InForce),
        }
    }

    fn grant_of(&self, units: u64) -> Option<Grant> {
        if units == 0 {
            return Some(Grant::Banned);
        }
        let limit = Limit::new(units, self.window).ok()?;
        self.algorithm.accepts(&limit).ok()?;
        let limit = if self.keeps_debt() { self.algorithm.with_debt(limit, None) } else { limit };
        Some(Grant::Limited(limit))
    }

    /// Returns the grant with room for what requests with larger limits have taken, which then is neither cut
    /// off nor denied attempts.
    #[must_use]
    pub fn with_room(&self, grant: Grant) -> Grant {
        match grant {
            Grant::Limited(limit) if self.limit_from.is_some() => {
                Grant::Limited(self.algorithm.with_most_debt(limit))
            }
            grant => grant,
        }
    }

    /// Returns `true` if a limit alone would count denied attempts of requests with smaller limits.
    pub(crate) fn needs_room(&self) -> bool {
        self.algorithm.keyed_by_window() && !self.window.is_from_first_use() && self.hides_debt()
    }

    /// Returns `true` if what is used above a limit is no debt.
    pub(crate) fn hides_debt(&self) -> bool {
        self.limit_from.is_some() && !self.keeps_debt()
    }
}

/// Reads a whole number: digits of ASCII alone.
fn units(text: &str) -> Option<u64> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_a_whole_number_of_ascii_digits() {
        for (text, expected) in [("5", Some(5)), ("0", Some(0)), ("007", Some(7))] {
            assert_eq!(units(text), expected, "{text}");
        }
        for text in ["", "-1", "+5", " 5", "5 ", "٥", "5.0", "1e3", "100000000000000000000"] {
            assert_eq!(units(text), None, "{text}");
        }
        assert_eq!(units(&format!("{:0>1000}", 5)), Some(5));
    }

    #[test]
    fn places_are_read_as_they_are_written() {
        for text in ["request", "attributes.daily", "attributes.key.daily"] {
            assert_eq!(LimitFrom::from_text(text).expect("a place").to_string(), text);
        }
        let long = format!("attributes.{:a>65}", "");
        for text in ["", "daily", "attributes.", "Request", "attributes", &*long] {
            assert_eq!(LimitFrom::from_text(text), None, "{text}");
        }
    }
}
