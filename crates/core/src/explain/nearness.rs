//! How near a rule comes to a request that it does not match.

use std::cmp::Reverse;

use crate::rules::{Matcher, Pattern, Request, TextPattern};

/// How near a matcher comes to a request. The nearest is the greatest. Compares field by field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Nearness {
    /// Number of parts that do not fit.
    misfits: Reverse<usize>,
    /// Number of parts that fit.
    fits: usize,
    /// Longest start that the value of the first misfit shares with a wanted text, in bytes.
    shared: usize,
}

impl Nearness {
    pub(super) fn new(matcher: &Matcher, request: &Request<'_>) -> Self {
        let (mut misfits, mut fits, mut shared) = (0, 0, 0);
        for (part, pattern) in &matcher.patterns {
            let value = part.value_in(request);
            if pattern.fit(value).is_some() {
                fits += 1;
                continue;
            }
            if misfits == 0
                && let (Pattern::OneOf(texts), Some(value)) = (pattern, value)
            {
                shared = texts.iter().map(|text| shared_start(text, value)).max().unwrap_or(0);
            }
            misfits += 1;
        }
        Self { misfits: Reverse(misfits), fits, shared }
    }
}

/// Returns the number of bytes at the start of `value` that a pattern has too.
pub(super) fn shared_start(text: &TextPattern, value: &str) -> usize {
    let start = match text {
        TextPattern::Exact(text) | TextPattern::Prefix(text) => text,
        TextPattern::Wildcard(wildcard) => match wildcard.literals() {
            [first, ..] => first,
            [] => "",
        },
    };
    start.bytes().zip(value.bytes()).take_while(|(byte, other)| byte == other).count()
}
