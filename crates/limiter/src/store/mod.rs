//! Stores: where state lives. Each decides all hits of a request in one atomic step.
//!
//! A store knows mechanism only: it decides, or says why it could not ([`StoreError`]). What a
//! failure means is the rule's policy, one room up.

mod custom;
mod memory;
#[cfg(feature = "redis")]
mod redis;

pub use custom::{BoxFuture, CustomStore};
pub use memory::{MemorySettings, MemoryStore};
#[cfg(feature = "redis")]
pub use redis::{
    Credentials, Identity, KeyPrefix, RedisSettings, RedisStore, RedisUrl, Secret, Servers,
    SettingError, Tls,
};

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::watch;

use crate::clock::{Deadline, Timestamp};
pub use crate::operation::{
    Action, HitReply, Receipt, Reply, Shard, StoreHit, StoreId, StoreRequest,
};
pub use crate::rules::Coupling;
use crate::rules::Key;

/// Where state lives. Clones share it.
#[derive(Clone, Debug)]
pub enum Store {
    /// In this process.
    Memory(MemoryStore),
    /// In Redis.
    #[cfg(feature = "redis")]
    Redis(Arc<RedisStore>),
    /// Somewhere else.
    Custom(Arc<dyn CustomStore>),
}

impl Store {
    /// Decides every hit, all of which are in one [`Shard`], in one atomic step: see [`StoreRequest`].
    ///
    /// # Errors
    ///
    /// [`StoreError`] if Redis does not decide before the deadline; memory always does, unless the
    /// deadline is over.
    pub async fn execute(
        &self,
        request: StoreRequest<'_>,
        deadline: Deadline,
    ) -> Result<Reply, StoreError> {
        match self {
            Self::Memory(_) | Self::Custom(_) if deadline.has_passed() => Err(StoreError::Expired),
            Self::Memory(store) => Ok(store.execute(request)),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.execute(request, deadline).await,
            Self::Custom(store) => store.execute(request, deadline).await,
        }
    }

    /// The same where nothing is to be waited for; `None` if something is, or the deadline is over.
    pub fn execute_now(&self, request: StoreRequest<'_>, deadline: Deadline) -> Option<Reply> {
        match self {
            Self::Memory(store) if !deadline.has_passed() => Some(store.execute(request)),
            Self::Memory(_) => None,
            #[cfg(feature = "redis")]
            Self::Redis(_) => None,
            Self::Custom(_) => None,
        }
    }

    /// The same for one hit by itself.
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

    /// The longest that a decision may take.
    pub fn timeout(&self) -> Duration {
        match self {
            Self::Memory(_) => Duration::MAX,
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.timeout(),
            Self::Custom(store) => store.timeout(),
        }
    }

    /// Where the state of a key is.
    pub fn shard(&self, key: &Key) -> Shard {
        match self {
            Self::Memory(_) => Shard(0),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.shard(key),
            Self::Custom(store) => store.shard(key),
        }
    }

    /// The time by the clock that decides for this key: in Redis an estimate.
    pub fn now(&self, key: &Key) -> Timestamp {
        match self {
            Self::Memory(store) => store.now(),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.now(key),
            Self::Custom(store) => store.now(key),
        }
    }

    /// Returns `true` if the store has failed for this key so often that it is not asked.
    pub fn breaker_is_open(&self, key: &Key) -> bool {
        match self {
            Self::Memory(_) => false,
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.breaker_is_open(key),
            Self::Custom(store) => store.breaker_is_open(key),
        }
    }

    /// Does the work in the background, for ever: expiry in memory; in Redis the connections of those
    /// who have none of their own, and the map of a cluster.
    pub async fn run(&self) {
        match self {
            Self::Memory(store) => store.run().await,
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.run().await,
            Self::Custom(store) => store.run().await,
        }
    }

    /// Returns a handle with a connection of its own to each Redis server, and the future that opens
    /// these connections ahead of its calls, for ever, on the thread that runs it.
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

    /// Whether the store answers, now and later.
    pub fn health(&self) -> watch::Receiver<Health> {
        match self {
            Self::Memory(_) => watch::channel(Health::Up).1,
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.health(),
            Self::Custom(store) => store.health(),
        }
    }

    /// `memory`, `redis`, or what a custom store says.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Memory(_) => "memory",
            #[cfg(feature = "redis")]
            Self::Redis(_) => "redis",
            Self::Custom(store) => store.name(),
        }
    }
}

/// Whether a store answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It has not answered yet.
    Unknown,
    /// It answers.
    Up,
    /// It does not answer.
    Down,
}

/// Why a store did not decide.
#[derive(Clone, Debug, Error)]
pub enum StoreError {
    /// There is no connection; nothing was sent.
    #[error("no connection to redis (store.redis.url)")]
    Unreachable,
    /// Redis has failed several times in a row; nothing was sent.
    #[error("redis has failed several times in a row: the breaker is open")]
    BreakerOpen,
    /// Too many decisions wait for Redis already; nothing was sent.
    #[error("too many decisions wait for redis (store.redis.max-in-flight)")]
    Overloaded,
    /// The caller waits no longer; nothing was sent.
    #[error("the caller's deadline is over")]
    Expired,
    /// No answer in time; what was sent may have been executed.
    #[error("redis did not answer within {0:?} (store.redis.timeout)")]
    Timeout(Duration),
    /// The connection broke after sending; what was sent may have been executed.
    #[error("the connection to redis was lost before the answer came")]
    Lost,
    /// Redis answered with an error and decided nothing.
    #[error("redis refused with {code}: {text}")]
    Refused {
        /// Redis' own code, such as `LOADING` or `OOM`.
        code: String,
        /// What it says beside, for logs.
        text: String,
    },
    /// A write failed after others of the same step: they stand, for Redis rolls nothing back.
    #[error("redis refused a write after others of the same step: {code}: {text}")]
    Partial {
        /// Redis' own code, such as `NOPERM`.
        code: String,
        /// What it says beside, for logs.
        text: String,
    },
    /// The answer does not fit the question.
    #[error("redis sent an answer that does not fit the question")]
    Garbled,
    /// The clock of Redis left the window of the named keys before they got there, repeatedly.
    #[error("the clock of redis kept leaving the window of the named keys")]
    WindowMissed,
    /// A custom store has failed.
    #[error("{source}")]
    Custom {
        /// Whether the request may have been executed.
        fate: Fate,
        /// What has failed.
        source: Arc<dyn Error + Send + Sync>,
    },
}

/// What became of a request that a store has not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It has changed nothing.
    NotExecuted,
    /// It may have been executed, in part or as a whole.
    Unknown,
}

impl StoreError {
    /// The error of a custom store.
    pub fn custom(fate: Fate, source: impl Error + Send + Sync + 'static) -> Self {
        Self::Custom { fate, source: Arc::new(source) }
    }

    /// The kind as a metric label.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::BreakerOpen => "breaker_open",
            Self::Overloaded => "overloaded",
            Self::Expired => "expired",
            Self::Timeout(_) => "timeout",
            Self::Lost => "lost",
            Self::Refused { code, .. } | Self::Partial { code, .. } => refusal(code),
            Self::Garbled => "garbled",
            Self::WindowMissed => "window_missed",
            Self::Custom { .. } => "custom",
        }
    }

    /// May what was sent have been executed all the same?
    pub const fn is_ambiguous(&self) -> bool {
        matches!(
            self,
            Self::Timeout(_)
                | Self::Lost
                | Self::Garbled
                | Self::Partial { .. }
                | Self::Custom { fate: Fate::Unknown, .. }
        )
    }
}

/// A code of Redis as a metric label; those that nobody waits for are one.
fn refusal(code: &str) -> &'static str {
    match code {
        "LOADING" => "loading",
        "BUSY" => "busy",
        "OOM" => "oom",
        "MISCONF" => "misconf",
        "NOREPLICAS" => "noreplicas",
        "READONLY" => "readonly",
        "CLUSTERDOWN" => "clusterdown",
        "MASTERDOWN" => "masterdown",
        "MOVED" | "ASK" | "TRYAGAIN" => "slot_moves",
        "NOAUTH" | "WRONGPASS" => "auth",
        "NOPERM" => "noperm",
        _ => "refused",
    }
}
