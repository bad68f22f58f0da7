//! Rules: from a request to the limits that it meets.
//!
//! A [`RuleSet`] is a whole, valid, immutable snapshot; matching a [`Request`] against it is pure.
//! This room knows nothing of stores and protocols.

mod key;
mod request;

pub use key::Key;
pub use request::{Draft, InvalidRequest, Request};

use crate::algorithm::{Algorithm, Limit};

/// Matcher + key + limit + algorithm + policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Unique name, shown to callers and in metrics.
    pub name: String,
    /// Which algorithm decides.
    pub algorithm: Algorithm,
    /// How many per window.
    pub limit: Limit,
    /// What a request meets when the store does not answer.
    pub on_store_failure: OnStoreFailure,
}

/// What a request meets when the store does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// The call fails: fail-closed, the caller decides.
    Error,
    /// The request passes: fail-open.
    Allow,
}

/// The rules in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSet {
    /// Applies where no other rule matches.
    pub default: Rule,
}

impl RuleSet {
    /// Name of the default rule.
    pub const DEFAULT: &str = "default";

    /// The rule that `request` meets, with the key of its state.
    pub fn matching(&self, request: &Request<'_>) -> (&Rule, Key) {
        (&self.default, Key::of_default_rule(request.user_id()))
    }
}
