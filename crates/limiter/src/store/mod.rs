//! Stores hold the state of limits. A store decides all hits of a request in one atomic step.
//!
//! A store is mechanism only: it decides, or returns why it could not ([`StoreError`]). The policy
//! of a rule, applied by the limiter, decides what a failure means.

mod custom;
mod error;
mod memory;
mod node_status;
#[cfg(feature = "redis")]
mod redis;

pub use custom::{BoxFuture, CustomStore};
#[cfg(feature = "redis")]
pub(crate) use error::MISSING_PERMISSION;
pub use error::{Fate, StoreError};
pub use memory::{MemorySettings, MemoryStore};
pub(crate) use node_status::Undecided;
pub use node_status::{NodeMemory, NodeOutage, NodeStatus};
#[cfg(all(feature = "redis", fuzzing))]
pub use redis::fuzzing;
#[cfg(feature = "redis")]
pub use redis::{
    Credentials, Identity, KeyPrefix, RedisSettings, RedisStore, RedisUrl, Secret, Servers,
    SettingError, Tls,
};
#[cfg(feature = "redis")]
pub(crate) use redis::{RedisFleet, RedisSubscription};

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::{Deadline, Timestamp};
use crate::control::OverridePage;
use crate::idempotency::RequestIdError;
pub use crate::operation::{
    Action, HitReply, Receipt, Reply, Shard, StoreHit, StoreId, StoreRequest,
};
pub use crate::rules::Coupling;
use crate::rules::{Key, RuleSet};

/// A store of state. Clones share the state.
#[derive(Clone, Debug)]
pub enum Store {
    /// In the memory of this process.
    Memory(MemoryStore),
    /// In Redis.
    #[cfg(feature = "redis")]
    Redis(Arc<RedisStore>),
    /// In a custom store.
    Custom(Arc<dyn CustomStore>),
}

impl Store {
    /// Decides every hit in one atomic step. All hits must be in one [`Shard`]; see
    /// [`StoreRequest`].
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store fails to decide before the deadline. Memory fails only if the
    /// deadline has already passed, if it has no space for an override, for a request id, or if its
    /// journal can't be written.
    pub async fn execute(
        &self,
        request: StoreRequest<'_>,
        deadline: Deadline,
    ) -> Result<Reply, StoreError> {
        match self {
            Self::Memory(_) | Self::Custom(_) if deadline.has_passed() => Err(StoreError::Expired),
            #[cfg(feature = "journal")]
            Self::Memory(store) if store.must_record(&request) => {
                store.record_and_execute(request).await
            }
            Self::Memory(store) => store.try_execute(request),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.execute(request, deadline).await,
            Self::Custom(store) => store.execute(request, deadline).await,
        }
    }

    /// As [`Store::execute`], without waiting. Returns `None` if the store has to be waited for, or
    /// the deadline has passed. Not for changes of overrides, which a journal may have to record.
    ///
    /// # Errors
    ///
    /// [`RequestIdError`].
    pub fn execute_now(
        &self,
        request: StoreRequest<'_>,
        deadline: Deadline,
    ) -> Option<Result<Reply, RequestIdError>> {
        match self {
            Self::Memory(store) if !deadline.has_passed() => Some(store.execute(request)),
            Self::Memory(_) => None,
            #[cfg(feature = "redis")]
            Self::Redis(_) => None,
            Self::Custom(_) => None,
        }
    }

    /// As [`Store::execute_now`], for a single hit.
    #[inline]
    pub fn execute_one_now(&self, hit: &StoreHit<'_>, deadline: Deadline) -> Option<HitReply> {
        match self {
            Self::Memory(store) if !deadline.has_passed() => Some(store.execute_one(hit)),
            Self::Memory(_) => None,
            #[cfg(feature = "redis")]
            Self::Redis(_) => None,
            Self::Custom(_) => None,
        }
    }

    /// Returns overrides in force: at most `count` keys, from `cursor` on, which is empty for the
    /// first page, else [`OverridePage::next`] of the page before. Those that begin or end
    /// meanwhile may be left out; no other is. A custom store lists none by default.
    ///
    /// # Errors
    ///
    /// [`StoreError::Cursor`] if the cursor comes from elsewhere; [`StoreError::ServersChanged`] if
    /// other servers have the keys by now: list from the first page; else as [`Store::execute`].
    pub async fn list_overrides(
        &self,
        cursor: &str,
        count: usize,
        deadline: Deadline,
    ) -> Result<OverridePage, StoreError> {
        match self {
            Self::Memory(store) => store.list_overrides(cursor, count),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.list_overrides(cursor, count, deadline).await,
            Self::Custom(store) => store.list_overrides(cursor, count, deadline).await,
        }
    }

    /// Prepares for rules that are put in force. Redis loads the scripts that they can need ahead of the first
    /// request.
    #[cfg_attr(not(feature = "redis"), expect(unused_variables))]
    pub(crate) fn prepare(&self, rules: &RuleSet) {
        match self {
            Self::Memory(_) | Self::Custom(_) => {}
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.prepare(rules),
        }
    }

    /// Returns `true` if the store remembers requests by their request ids.
    pub fn remembers_requests(&self) -> bool {
        match self {
            Self::Memory(_) => true,
            #[cfg(feature = "redis")]
            Self::Redis(_) => true,
            Self::Custom(store) => store.remembers_requests(),
        }
    }

    /// Returns `true` if overrides and logs outlive this process: in Redis, in a custom store, and
    /// in memory with a journal.
    pub fn outlives_process(&self) -> bool {
        match self {
            #[cfg(feature = "journal")]
            Self::Memory(store) => store.journal().is_some(),
            #[cfg(not(feature = "journal"))]
            Self::Memory(_) => false,
            #[cfg(feature = "redis")]
            Self::Redis(_) => true,
            Self::Custom(_) => true,
        }
    }

    /// Returns the longest time that a decision may take.
    pub fn timeout(&self) -> Duration {
        match self {
            Self::Memory(_) => Duration::MAX,
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.timeout(),
            Self::Custom(store) => store.timeout(),
        }
    }

    /// Returns the shard of a key.
    pub fn shard(&self, key: &Key) -> Shard {
        match self {
            Self::Memory(_) => Shard(0),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.shard(key),
            Self::Custom(store) => store.shard(key),
        }
    }

    /// Returns the whole name of the state of a key, without a window: in Redis that of its key, in
    /// memory the key itself.
    pub fn key_name(&self, key: &Key) -> String {
        match self {
            Self::Memory(_) => String::from_utf8_lossy(key.as_bytes()).into_owned(),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.key_name(key),
            Self::Custom(store) => store.key_name(key),
        }
    }

    /// Returns the time by the clock that decides for this key. For Redis it is an estimate.
    pub fn now(&self, key: &Key) -> Timestamp {
        match self {
            Self::Memory(store) => store.now(),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.now(key),
            Self::Custom(store) => store.now(key),
        }
    }

    /// Returns `true` if the circuit breaker is open: the store failed repeatedly for this key and
    /// is not called.
    pub fn breaker_is_open(&self, key: &Key) -> bool {
        match self {
            Self::Memory(_) => false,
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.breaker_is_open(key),
            Self::Custom(store) => store.breaker_is_open(key),
        }
    }

    /// Runs the background work, for ever. Memory removes expired keys. Redis keeps the shared
    /// connections, used by handles without their own, and the map of a cluster.
    pub async fn run(&self) {
        match self {
            Self::Memory(store) => store.run().await,
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.run().await,
            Self::Custom(store) => store.run().await,
        }
    }

    /// Returns a handle with its own connection to each Redis server, and a future that opens these
    /// connections ahead of calls. The future never completes; it runs on the thread that polls it.
    pub fn for_worker(&self) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let store = match self {
            Self::Memory(store) => Self::Memory(store.clone()),
            #[cfg(feature = "redis")]
            Self::Redis(store) => Self::Redis(Arc::new(store.for_worker())),
            Self::Custom(store) => Self::Custom(Arc::clone(store)),
        };
        let kept = store.clone();
        let keep = async move {
            match kept {
                Self::Memory(_) | Self::Custom(_) => std::future::pending().await,
                #[cfg(feature = "redis")]
                Self::Redis(store) => store.keep_connected().await,
            }
        };
        (store, keep)
    }

    /// Returns a receiver of the health of the store.
    pub fn health(&self) -> watch::Receiver<Health> {
        match self {
            Self::Memory(_) => watch::channel(Health::Up).1,
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.health(),
            Self::Custom(store) => store.health(),
        }
    }

    /// Returns `true` if a server of the store may evict keys when its memory is full, so that counts,
    /// overrides and bans may be lost. Redis is asked when it is connected.
    pub fn may_evict(&self) -> bool {
        match self {
            Self::Memory(_) | Self::Custom(_) => false,
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.may_evict(),
        }
    }

    /// Returns `true` if the restart of a server of the store loses everything, overrides and bans
    /// among it, as far as that is known. Redis is asked when it is connected.
    pub fn is_lost_at_restart(&self) -> bool {
        match self {
            Self::Memory(_) | Self::Custom(_) => false,
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.is_lost_at_restart(),
        }
    }

    /// Returns the servers of the store, ordered by address: none for memory and custom stores.
    pub fn nodes(&self) -> Vec<NodeStatus> {
        match self {
            Self::Memory(_) | Self::Custom(_) => Vec::new(),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.nodes(),
        }
    }

    /// Counts a request that was not decided, for the status of servers that are away.
    #[cfg_attr(not(feature = "redis"), expect(unused_variables))]
    pub(crate) fn count_undecided(&self, request: Undecided) {
        match self {
            Self::Memory(_) | Self::Custom(_) => {}
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.count_undecided(request),
        }
    }

    /// Returns `memory`, `redis`, or the name of the custom store.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Memory(_) => "memory",
            #[cfg(feature = "redis")]
            Self::Redis(_) => "redis",
            Self::Custom(store) => store.name(),
        }
    }
}

/// Health of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// The store has not answered yet.
    Unknown,
    /// The store answers.
    Up,
    /// The store does not answer.
    Down,
}
