//! The walk of a descriptor through a tree, told step by step, for explanations.

use super::tree::Level;
use super::{Descriptors, RequestDescriptor};
use crate::plan::RuleIndex;

/// Key and value of a node or of an entry; a key alone stands for any value.
pub(crate) type Choice<'a> = (&'a str, Option<&'a str>);

/// The end of a descriptor's walk through the tree.
#[derive(Debug)]
pub(crate) struct Walk<'a, 'r> {
    /// The rule at the end.
    pub(crate) rule: Option<RuleIndex>,
    /// Number of entries that were found.
    pub(crate) matched_entries: usize,
    /// The entry that was not found; the domain if that is unknown; `None` if every entry was found.
    pub(crate) ended_at: Option<Choice<'r>>,
    /// All that stands at the level where the walk ended, in no order; none if it has a rule.
    pub(crate) choices: Vec<Choice<'a>>,
}

impl Descriptors {
    /// Walks as far as the entries of a descriptor are found.
    pub(crate) fn explain_walk<'a, 'r>(
        &'a self,
        name: &'r str,
        descriptor: &RequestDescriptor<'r>,
    ) -> Walk<'a, 'r> {
        let Some(domain) = self.domains.get(name) else {
            let choices = self.domains.keys().map(|domain| (domain.as_str(), None)).collect();
            return Walk { rule: None, matched_entries: 0, ended_at: Some((name, None)), choices };
        };
        let (mut level, mut position): (&Level, _) = (&domain.top, None);
        let (mut matched_entries, mut ended_at) = (0, None);
        for (key, value) in &descriptor.entries {
            let Some(node) = level.choose(key, value) else {
                (position, ended_at) = (None, Some((*key, Some(*value))));
                break;
            };
            (level, position) = (&node.below, node.rule);
            matched_entries += 1;
        }
        // A limit of the request applies whatever the walk finds.
        let is_override = descriptor.limit.is_some();
        let position = if is_override { position.or(Some(domain.others)) } else { position };
        let rule = position.map(|position| RuleIndex::Descriptor { position, is_override });
        let choices = if rule.is_none() { level.choices() } else { Vec::new() };
        Walk { rule, matched_entries, ended_at, choices }
    }
}
