//! Explanations: why each rule applies to a request, or does not.
//!
//! An explanation contains the [`Plan`](crate::plan::Plan) that a check of the same request would
//! execute, so the rules that it says apply are those that a check applies. It is pure: it has
//! neither states nor decisions, which a limiter adds. Its size is bounded, whatever the rules.

mod descriptors;
mod nearness;
mod peeks;
mod request;

pub use descriptors::{ExplainedDescriptor, ExplainedDescriptors, MAX_NEAREST};
pub use request::Explanation;

use crate::algorithm::Cost;
use crate::operation::Action;
use crate::plan::{Hit, RuleIndex};

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
