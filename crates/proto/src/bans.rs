//! Bans among the overrides of a key.

use crate::ratelimit::admin::v1::{KeyOverride, KeyState};
use crate::ratelimit::v1::grant::Kind;

impl KeyOverride {
    /// Returns `true` for a ban, and `false` for another limit.
    pub fn is_ban(&self) -> bool {
        matches!(self.grant.and_then(|grant| grant.kind), Some(Kind::Banned(_)))
    }
}

impl KeyState {
    /// Returns the ban of the key.
    pub fn ban(&self) -> Option<&KeyOverride> {
        self.overrides.iter().find(|own| own.is_ban())
    }
}
