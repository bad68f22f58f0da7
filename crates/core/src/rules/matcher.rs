//! Which requests a rule or an override is about.

use super::pattern::{Fit, Pattern};
use super::{Part, Request};

/// Which requests a rule or an override is about: all parts must fit. None: every request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matcher {
    /// What is said about each part, at most once.
    pub patterns: Vec<(Part, Pattern)>,
}

impl Matcher {
    /// How closely the request fits; `None` if it does not.
    pub(super) fn fit(&self, request: &Request<'_>) -> Option<Fit> {
        self.patterns.iter().try_fold(Fit::default(), |fit, (part, pattern)| {
            Some(fit.and(pattern.fit(part.value_in(request))?))
        })
    }

    /// A part that has to have one of a few exact values, and these; what can be looked up.
    pub(super) fn exact(&self) -> Option<(&Part, Vec<&str>)> {
        self.patterns.iter().find_map(|(part, pattern)| Some((part, pattern.exact()?)))
    }
}
