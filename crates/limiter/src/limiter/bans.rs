//! The bans that this instance has seen last, for the time when the store is away.
//!
//! A ban must not be lifted by an outage, so it decides before the policies of rules. Other
//! overrides are not kept: without the store, the grants of the rules decide.

use std::sync::{PoisonError, RwLock};

use crate::clock::Timestamp;
use crate::expiring_map::ExpiringMap;
use crate::operation::HitReply;
use crate::rules::{Grant, Key};

/// Most bans that are kept. Of more, those that end first are dropped.
const MAX_BANS: usize = 10_000;

/// Bans by key, with their ends by the clock of the store.
#[derive(Debug)]
pub(super) struct LastSeenBans(RwLock<ExpiringMap<Timestamp>>);

impl LastSeenBans {
    pub(super) fn new() -> Self {
        Self(RwLock::new(ExpiringMap::new(MAX_BANS)))
    }

    /// Learns from the reply of the store to an overridable hit.
    pub(super) fn record(&self, key: &Key, reply: &HitReply) {
        let ban = reply.applied.as_ref().filter(|applied| applied.grant == Grant::Banned);
        let ends_at = ban.map(|ban| ban.ends_at);
        let known =
            self.0.read().unwrap_or_else(PoisonError::into_inner).get(key.as_bytes()).copied();
        if known == ends_at {
            return;
        }
        let mut bans = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match ends_at {
            Some(ends_at) => {
                bans.insert_or_evict(key.as_bytes(), ends_at, ends_at, reply.decision.at);
            }
            None => bans.remove(key.as_bytes()),
        }
    }

    /// Returns the end of the ban of a key, if one holds when the clock of the store shows `time`.
    pub(super) fn ends_at(&self, key: &Key, time: Timestamp) -> Option<Timestamp> {
        let bans = self.0.read().unwrap_or_else(PoisonError::into_inner);
        bans.get(key.as_bytes()).copied().filter(|ends_at| time < *ends_at)
    }
}
