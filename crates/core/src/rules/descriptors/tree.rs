//! The tree of one domain, and the walk of a descriptor through it, step by step for explanations. On each
//! level exact values match before patterns, and patterns before keys without a value.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::{DescriptorRule, Descriptors, RequestDescriptor, label};
use crate::plan::RuleIndex;
use crate::rules::TextPattern;
use crate::rules::key::IdValue;

/// A node of a tree as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Key of the entry.
    pub key: String,
    /// Value of the entry, parsed as a [`TextPattern`]. `None` matches any value.
    pub value: Option<String>,
    /// Whether all values that match the pattern share one state.
    pub shares: bool,
    /// Whether metrics have the value of the request.
    pub value_to_metric: bool,
    /// Rule for descriptors whose last entry matches here.
    pub rule: Option<DescriptorRule>,
    /// Nodes for the next entry.
    pub below: Vec<Descriptor>,
}

/// One level of the path to a rule, as configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathStep<'a> {
    /// Key of the descriptor.
    pub key: &'a str,
    /// Value of the descriptor, in which each `*` matches any text. `None` matches any value.
    pub value: Option<&'a str>,
    /// Whether all values that match the pattern share one state.
    pub shares: bool,
    /// Whether metrics have the value of the request.
    pub value_to_metric: bool,
}

/// The nodes of one level, by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Level(HashMap<String, Choices>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Choices {
    exact: HashMap<String, Node>,
    /// In the order of the file: the first match counts.
    patterns: Vec<(TextPattern, Node)>,
    alone: Option<Box<Node>>,
}

/// A node of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// Position of its rule.
    pub(super) rule: Option<usize>,
    value: Option<String>,
    shares: bool,
    value_to_metric: bool,
    pub(super) below: Level,
}

/// An entry of a request and the node that it matches.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatchedEntry<'a> {
    pub(super) key: &'a str,
    value: &'a str,
    pub(super) node: &'a Node,
}

/// The nodes that the entries of a descriptor match, in order. Empty if an entry matches none.
pub(super) type Path<'a> = SmallVec<[MatchedEntry<'a>; 4]>;

/// Key and value of a node above another one.
pub(super) type KeyAndValue<'a> = (&'a str, Option<&'a str>);

impl PathStep<'_> {
    /// Returns `true` if a value matches the step, or is its pattern where all values share one
    /// state.
    pub(super) fn fits(&self, value: &str) -> bool {
        self.value
            .is_none_or(|own| TextPattern::new(own).fits(value) || self.shares && own == value)
    }
}

impl Level {
    /// Creates the index of descriptors, and adds their rules to `rules`.
    pub(super) fn new(descriptors: Vec<Descriptor>, rules: &mut Vec<DescriptorRule>) -> Self {
        let mut level = Self::default();
        for Descriptor { key, value, shares, value_to_metric, rule, below } in descriptors {
            let rule = rule.map(|rule| {
                rules.push(rule);
                rules.len() - 1
            });
            let below = Self::new(below, rules);
            let node = |value| Node { rule, value, shares, value_to_metric, below };
            let choices = level.0.entry(key).or_default();
            match value.as_deref().map(TextPattern::new) {
                None => choices.alone = Some(Box::new(node(None))),
                Some(TextPattern::Exact(exact)) => {
                    choices.exact.insert(exact.clone(), node(Some(exact)));
                }
                Some(pattern) => choices.patterns.push((pattern, node(value))),
            }
        }
        level
    }

    pub(super) fn walk<'a>(&'a self, entries: &[(&'a str, &'a str)]) -> Path<'a> {
        let mut level = self;
        let mut path = Path::new();
        for (key, value) in entries {
            let Some(node) = level.choose(key, value) else { return Path::new() };
            path.push(MatchedEntry { key, value, node });
            level = &node.below;
        }
        path
    }

    /// Calls `visit` with the value of each descriptor and the path to it.
    pub(super) fn visit_values<'a>(
        &'a self,
        above: &mut Vec<KeyAndValue<'a>>,
        visit: &mut dyn FnMut(&[KeyAndValue<'_>], &TextPattern),
    ) {
        for (key, Choices { exact, patterns, alone }) in &self.0 {
            let exact =
                exact.iter().map(|(value, node)| (Some(TextPattern::Exact(value.clone())), node));
            let patterns = patterns.iter().map(|(text, node)| (Some(text.clone()), node));
            let alone = alone.iter().map(|node| (None, &**node));
            for (text, node) in exact.chain(patterns).chain(alone) {
                above.push((key, node.value.as_deref()));
                if let Some(text) = text {
                    visit(above, &text);
                }
                node.below.visit_values(above, visit);
                above.pop();
            }
        }
    }

    /// Calls `visit` with the position of each rule and the path to it.
    pub(super) fn visit<'a>(
        &'a self,
        above: &mut Vec<PathStep<'a>>,
        visit: &mut impl FnMut(&[PathStep<'a>], usize),
    ) {
        for (key, choices) in &self.0 {
            let patterns = choices.patterns.iter().map(|(_, node)| node);
            for node in choices.exact.values().chain(patterns).chain(choices.alone.as_deref()) {
                let (shares, value_to_metric) = (node.shares, node.value_to_metric);
                above.push(PathStep { key, value: node.value.as_deref(), shares, value_to_metric });
                if let Some(rule) = node.rule {
                    visit(above, rule);
                }
                node.below.visit(above, visit);
                above.pop();
            }
        }
    }

    /// Returns key and value of every node of this level, in no order.
    pub(super) fn choices(&self) -> Vec<KeyAndValue<'_>> {
        let mut all = Vec::new();
        for (key, Choices { exact, patterns, alone }) in &self.0 {
            let patterns = patterns.iter().map(|(_, node)| node);
            let nodes = exact.values().chain(patterns).chain(alone.as_deref());
            all.extend(nodes.map(|node| (key.as_str(), node.value.as_deref())));
        }
        all
    }

    /// Returns the node that an entry matches.
    pub(super) fn choose(&self, key: &str, value: &str) -> Option<&Node> {
        let choices = self.0.get(key)?;
        let by_pattern = || {
            let mut patterns = choices.patterns.iter();
            patterns.find(|(pattern, _)| pattern.fits(value)).map(|(_, node)| node)
        };
        choices.exact.get(value).or_else(by_pattern).or(choices.alone.as_deref())
    }
}

impl MatchedEntry<'_> {
    /// Returns the value of the entry in a key.
    pub(super) fn id_value(&self) -> IdValue<'_> {
        match &self.node.value {
            Some(pattern) if self.node.shares => IdValue::Shared(pattern),
            Some(configured) if configured == self.value => IdValue::Configured(configured),
            _ => IdValue::Own(self.value),
        }
    }
}

/// Returns the label of a path with the values of the request, for metrics. `None` if it equals the
/// label of the rule.
pub(super) fn detailed_label(domain: &str, path: &Path<'_>, all: bool) -> Option<String> {
    let has_own_value = |step: &&MatchedEntry<'_>| {
        let is_other = step.node.value.as_deref() != Some(step.value);
        (all || step.node.value_to_metric) && !step.node.shares && is_other
    };
    path.iter().find(has_own_value)?;
    let shown = path.iter().map(|step| {
        let value =
            if has_own_value(&step) { Some(step.value) } else { step.node.value.as_deref() };
        (step.key, value)
    });
    Some(label(domain, shown))
}

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
