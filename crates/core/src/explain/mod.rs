//! Explanations: why each rule applies to a request, or does not.
//!
//! An explanation contains the [`Plan`] that a check of the same request would
//! execute, so the rules that it says apply are those that a check applies. It is pure: it has
//! neither states nor decisions, which a limiter adds. Its size is bounded, whatever the rules.

mod descriptors;
mod request;

pub use descriptors::{ExplainedDescriptor, ExplainedDescriptors, MAX_NEAREST};
pub use request::Explanation;

use std::cmp::Reverse;

use crate::algorithm::Cost;
use crate::operation::Action;
use crate::plan::{Hit, Plan, RuleIndex};
use crate::rules::{Coupling, Matcher, Pattern, Request, Share, TextPattern};

/// Most rules in an explanation.
pub const MAX_RULES: usize = 100;
/// Most texts in [`Mismatch::wanted`].
pub const MAX_WANTED: usize = 20;
/// Most bytes of a text from the rules in an explanation. Longer ones are cut, and end with `…`.
pub const MAX_TEXT: usize = 1024;

/// Whether one rule applies to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedRule {
    /// The rule, in the set that explains.
    pub rule: RuleIndex,
    /// Whether it applies, and why not.
    pub applies: Applies,
}

/// Whether a rule applies, and why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applies {
    /// It applies.
    Yes(AppliedRule),
    /// A part of the request does not fit.
    Mismatch(Mismatch),
    /// It fits, and its mode is [`Mode::Off`](crate::rules::Mode::Off).
    Off,
    /// The default rule: another rule is enforced, or requests that no rule matches have another
    /// policy.
    NotDefault,
    /// The limit of a descriptor: that of another descriptor replaces it.
    Replaced,
}

/// How a rule applies to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppliedRule {
    /// Position of its hit in the plan, and of its key.
    pub hit: usize,
    /// Units that the request takes from the rule.
    pub cost: Cost,
    /// Position of the closest of the rule's overrides; `None` if none fits.
    pub rule_override: Option<usize>,
    /// What the request leaves to others, as a part of the grant.
    pub headroom: Option<Share>,
}

/// The first part of a request that does not fit a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Name of the part: `user_id`, `resource` or `attributes.NAME`.
    pub part: String,
    /// Patterns of the rule, of which none fits: at most [`MAX_WANTED`], those first that are most
    /// like the value of the request.
    pub wanted: Vec<String>,
    /// Value in the request; `None` if it has none.
    pub got: Option<String>,
}

/// Returns the units that a hit takes; none for a look or for units that are returned.
fn units_taken(hit: &Hit) -> Cost {
    match hit.action {
        Action::Take(cost) | Action::Report(cost) => cost,
        _ => Cost::NONE,
    }
}

/// Cuts a text to [`MAX_TEXT`] bytes.
fn cut(text: String) -> String {
    const MARK: char = '…';
    if text.len() <= MAX_TEXT {
        return text;
    }
    let mut cut = start(&text, MAX_TEXT - MARK.len_utf8()).to_owned();
    cut.push(MARK);
    cut
}

/// Returns the start of a text: whole characters, at most `max` bytes.
fn start(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

impl Plan {
    /// Returns the costs for which the hits of this plan are decided, in order: a hit passes if a
    /// [peek](Action::Peek) for its cost does, decided by itself.
    ///
    /// They differ from the costs of the hits where several hits have one key, because the store
    /// decides those in order, each after the units that the earlier ones take.
    pub fn decided_costs(&self) -> Vec<Cost> {
        // In a banned request nothing is taken.
        let takes = self.coupling == Coupling::EachAlone || !self.is_banned();
        (0..self.hits.len()).map(|at| self.decided_cost(at, takes)).collect()
    }

    fn decided_cost(&self, at: usize, takes: bool) -> Cost {
        let hit = &self.hits[at];
        if matches!(hit.action, Action::Refund(_) | Action::Credit(_) | Action::Reset) {
            return Cost::NONE;
        }
        let own = hit.action.cost().units();
        if self.has_key_once(hit) {
            return hit.action.cost();
        }
        let same_key = self.hits.iter().enumerate().filter(|(_, other)| other.key == hit.key);
        // A look for no units passes unless there is debt, which only reports cause.
        let sees_reports = own > 0 || keeps_debt(hit);
        let before = same_key.filter(|(other, earlier)| match (self.coupling, earlier.action) {
            // Reports are counted first.
            (Coupling::AllOrNothing, Action::Report(_)) => {
                *other != at && (*other < at || !is_report(hit)) && sees_reports
            }
            (Coupling::AllOrNothing, Action::Take(_)) => *other < at && !is_report(hit) && takes,
            (Coupling::EachAlone, Action::Report(_)) => *other < at && sees_reports,
            (Coupling::EachAlone, Action::Take(_)) => *other < at && own > 0,
            _ => false,
        });
        let before = before.map(|(_, earlier)| earlier.action.cost().units());
        Cost::total(before.sum::<u64>() + own)
    }
}

fn is_report(hit: &Hit) -> bool {
    matches!(hit.action, Action::Report(_))
}

fn keeps_debt(hit: &Hit) -> bool {
    let max_debt = hit.for_store().and_then(|hit| hit.grant.limit()?.max_debt());
    max_debt.is_some_and(|units| units > 0)
}

/// How near a matcher comes to a request. The nearest is the greatest. Compares field by field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Nearness {
    /// Number of parts that do not fit.
    misfits: Reverse<usize>,
    /// Number of parts that fit.
    fits: usize,
    /// Longest start that the value of the first misfit shares with a wanted text, in bytes.
    shared: usize,
}

impl Nearness {
    fn new(matcher: &Matcher, request: &Request<'_>) -> Self {
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
fn shared_start(text: &TextPattern, value: &str) -> usize {
    let start = match text {
        TextPattern::Exact(text) | TextPattern::Prefix(text) => text,
        TextPattern::Wildcard(wildcard) => match wildcard.literals() {
            [first, ..] => first,
            [] => "",
        },
    };
    start.bytes().zip(value.bytes()).take_while(|(byte, other)| byte == other).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_at_a_character() {
        assert_eq!(cut("é".repeat(512)), "é".repeat(512));
        let long = cut("é".repeat(513));
        assert_eq!(long, "é".repeat(510) + "…");
        assert!(long.len() <= MAX_TEXT);
    }
}
