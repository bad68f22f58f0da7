//! Selectors: the keys that an administrator names, by a request, by their parts, by their id, or
//! by a descriptor.
//!
//! A selector is resolved against the rules in force, without I/O. The result has what a store
//! needs for each key, and what a person needs to recognise it.
//!
//! | file | subject |
//! | --- | --- |
//! | `resolve` | the keys of a selector, by the rules |
//! | `parts` | the parts of a key: from its id, and as a request that has them |

mod parts;
mod resolve;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use thiserror::Error;

use super::Hit;
use crate::rules::descriptors::DescriptorRequest;
use crate::rules::{InvalidRequest, LimitFrom, Request, Violation};

/// Names keys: at most [`Selector::MAX_KEYS`].
#[derive(Clone, Copy, Debug)]
pub struct Selector<'a> {
    /// Whose keys.
    pub target: SelectorTarget<'a>,
    /// Only keys of the rule with this name. `None`: of every rule.
    pub rule: Option<&'a str>,
}

/// Whose keys a [`Selector`] names.
#[derive(Clone, Copy, Debug)]
pub enum SelectorTarget<'a> {
    /// The keys that a request meets. Its cost makes no difference. With a rule that a request of a
    /// user alone does not meet: the key of this rule that consists of the user id.
    Request(&'a Request<'a>),
    /// The keys that consist of these parts, in any order. Without a rule, they are those of every
    /// rule whose `key_by` has exactly these parts. With a rule for descriptors, the parts are the
    /// entries of a descriptor, in its order.
    ///
    /// Overrides of a rule that depend on other parts than those of the key do not apply.
    Parts(&'a [KeyPart]),
    /// The key with this [id](crate::rules::Key::id). Requires a rule.
    Id(&'a str),
    /// The key that a descriptor meets.
    Descriptor {
        /// Domain of the tree: 1 to 1024 bytes.
        domain: &'a str,
        /// Keys and values, from the top of the tree down. At least one.
        entries: &'a [(&'a str, &'a str)],
    },
}

/// A part of a key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPart {
    /// `user_id`, `resource` or `attributes.NAME`; of a descriptor the key of the entry.
    pub name: String,
    /// The value; `None` if the request does not have the part. Of a descriptor whose values share
    /// one state it is the pattern.
    pub value: Option<String>,
}

/// A key of a rule.
#[derive(Clone, Debug)]
pub struct SelectedKey {
    /// Name of the rule.
    pub rule: Arc<str>,
    /// A hit that looks whether one unit is left, by the grant of the rule to this key.
    pub hit: Hit,
    /// Parts of the key, in the order of `key_by`.
    pub parts: Vec<KeyPart>,
    /// Origin of the grant.
    pub grant_from: GrantSource,
    /// Where requests of the rule have limits of their own.
    pub limit_from: Option<LimitFrom>,
}

/// The origin of the grant to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantSource {
    /// The rule.
    Rule,
    /// An override of the rule.
    RuleOverride,
    /// The request itself.
    Request,
    /// A grant that was set for the key at run time.
    KeyOverride,
}

/// The field of a selector that is not valid. The text names the field and what it must be, never
/// its value.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{}", self.violation())]
pub enum SelectError {
    /// No rule has this name.
    UnknownRule,
    /// An id without a rule.
    RuleRequired,
    /// More keys than can be named at once.
    TooManyKeys,
    /// No parts, or too many.
    Parts,
    /// Neither a part of a request nor, with a rule, one of its key.
    PartName,
    /// Parts of another rule.
    OtherParts,
    /// Every request has this part.
    NoValue,
    /// A value that no request can have.
    Value(InvalidRequest),
    /// No key of the rule has this id.
    Id,
    /// A domain that no request can have.
    Domain,
    /// No entries, or too long ones.
    Entries,
}

impl Selector<'_> {
    /// Most keys that one selector may name.
    pub const MAX_KEYS: usize = 100;
    /// Most parts of a key: user, resource and all attributes of a request.
    pub const MAX_PARTS: usize = 2 + Request::MAX_ATTRIBUTES;
}

impl SelectError {
    /// Returns the field that is not valid, and what it must be.
    pub fn violation(self) -> Violation {
        const PARTS: &str = "selector.key.parts";
        let (path, must) = match self {
            Self::UnknownRule => ("selector.rule", "must be the name of a rule in force".into()),
            Self::RuleRequired => ("selector.rule", "must be set if key.id is".into()),
            Self::TooManyKeys => {
                let most = Selector::MAX_KEYS;
                ("selector", format!("must name at most {most} keys; set rule").into())
            }
            Self::Parts => {
                (PARTS, format!("must have 1 to {} entries", Selector::MAX_PARTS).into())
            }
            Self::PartName => {
                let names = "user_id, resource or attributes.NAME";
                (PARTS, format!("must have names such as {names}, each once").into())
            }
            Self::OtherParts => {
                (PARTS, "must be those of the rule's keys, with values that it matches".into())
            }
            Self::NoValue => (PARTS, "must have values for user_id and resource".into()),
            Self::Value(error) => {
                (PARTS, format!("must be those of a valid request: {error}").into())
            }
            Self::Id => {
                let must = "must be the id of a key of the rule, as Inspect returns it";
                ("selector.key.id", must.into())
            }
            Self::Domain => {
                let most = DescriptorRequest::MAX_DOMAIN;
                ("selector.envoy.domain", format!("must be 1 to {most} bytes").into())
            }
            Self::Entries => {
                let most = DescriptorRequest::MAX_BYTES;
                let least = "must have at least one entry";
                let text = format!("{least}, and at most {most} bytes of keys and values");
                ("selector.envoy.entries", text.into())
            }
        };
        Violation { path, must }
    }
}
