//! Matchers: the conditions of a rule or an override.

use super::pattern::{Fit, Pattern, ValueStart};
use super::{Part, Request};

/// The conditions of a rule or an override, all of which a request must meet. Without conditions it
/// matches every request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matcher {
    /// Patterns of parts, at most one for each part.
    pub patterns: Vec<(Part, Pattern)>,
}

impl Matcher {
    /// Returns how closely the request matches; `None` if it does not match.
    pub(super) fn fit(&self, request: &Request<'_>) -> Option<Fit> {
        self.patterns.iter().try_fold(Fit::default(), |fit, (part, pattern)| {
            Some(fit.and(pattern.fit(part.value_in(request))?))
        })
    }

    /// Returns a part whose value must have one of some starts, with these starts, for an index:
    /// if there is one, a part that must have one of some exact values.
    pub(super) fn starts(&self) -> Option<(&Part, Vec<ValueStart<'_>>)> {
        let of_parts =
            self.patterns.iter().filter_map(|(part, pattern)| Some((part, pattern.starts()?)));
        of_parts.min_by_key(|(_, starts)| {
            starts.iter().any(|start| matches!(start, ValueStart::Prefix(_)))
        })
    }
}
