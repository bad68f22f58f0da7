//! Stores: where state lives. Each decides all hits of a request in one atomic step.
//!
//! A store knows mechanism only: it decides, or says why it could not ([`StoreError`]). What a
//! failure means is the rule's policy, one room up.

mod memory;
#[cfg(feature = "redis")]
mod redis;

pub use memory::{MemorySettings, MemoryStore};
#[cfg(feature = "redis")]
pub use redis::{
    Credentials, Identity, KeyPrefix, RedisSettings, RedisStore, RedisUrl, Secret, Servers,
    SettingError, Tls,
};

#[cfg(feature = "redis")]
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use thiserror::Error;
use tokio::sync::watch;

use crate::algorithm::{Algorithm, Cost, Decision, Limit};
use crate::clock::{Deadline, Timestamp};
pub use crate::rules::Coupling;
use crate::rules::{Key, Mode};

/// One key + rule + action, ready for a store.
#[derive(Clone, Copy, Debug)]
pub struct Hit<'a> {
    /// Names the state.
    pub key: &'a Key,
    /// Decides.
    pub algorithm: Algorithm,
    /// How many per window.
    pub limit: &'a Limit,
    /// What to do with the state.
    pub action: Action,
    /// Does a denial stop the others from taking?
    pub mode: Mode,
}

impl Hit<'_> {
    /// The units to give back of what the decision `taken` has taken for this hit.
    fn cost_of(&self, taken: &Decision) -> Cost {
        match self.action {
            Action::Take(cost) if taken.is_allowed() => cost,
            Action::Take(_) | Action::Peek(_) | Action::Report(_) => Cost::NONE,
        }
    }
}

/// What a store does with the state of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Decides, and takes the cost if it may.
    Take(Cost),
    /// Decides, and takes nothing.
    Peek(Cost),
    /// Counts a cost that has been incurred already, whatever is left and whatever other hits say.
    Report(Cost),
}

impl Action {
    /// The units that it is about.
    pub const fn cost(self) -> Cost {
        match self {
            Self::Take(cost) | Self::Peek(cost) | Self::Report(cost) => cost,
        }
    }

    /// Returns `true` if units may be counted.
    pub fn counts(self) -> bool {
        match self {
            Self::Take(cost) | Self::Report(cost) => cost != Cost::NONE,
            Self::Peek(_) => false,
        }
    }
}

/// Where states are: hits in the same place are decided in one atomic step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(u16);

/// One decision for each hit, in order.
pub type Decisions = SmallVec<[Decision; 2]>;

/// Where state lives. Clones share it.
#[derive(Clone, Debug)]
pub enum Store {
    /// In this process.
    Memory(MemoryStore),
    /// In Redis.
    #[cfg(feature = "redis")]
    Redis(Arc<RedisStore>),
}

#[cfg_attr(
    not(feature = "redis"),
    expect(unused_variables, clippy::unused_async, reason = "for Redis")
)]
impl Store {
    /// Decides every hit, all of which are in one [`Place`], in one atomic step.
    ///
    /// Hits of one key are decided in order, each for the sum of the costs up to it. Where nothing
    /// is taken, the outcome of a hit is that of its cost, and the numbers are those of the state as
    /// it stays.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if Redis does not decide before the deadline; memory always does, unless the
    /// deadline is over.
    pub async fn check(
        &self,
        hits: &[Hit<'_>],
        coupling: Coupling,
        deadline: Deadline,
    ) -> Result<Decisions, StoreError> {
        match self {
            Self::Memory(_) if deadline.is_over() => Err(StoreError::Expired),
            Self::Memory(store) => Ok(store.check(hits, coupling)),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.check(hits, coupling, deadline).await,
        }
    }

    /// The longest that a decision may take.
    pub fn patience(&self) -> Duration {
        match self {
            Self::Memory(_) => Duration::MAX,
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.patience(),
        }
    }

    /// Where the state of a key is.
    pub fn place(&self, key: &Key) -> Place {
        match self {
            Self::Memory(_) => Place(0),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.place(key),
        }
    }

    /// The time by the clock that decides for this key: in Redis an estimate.
    pub fn now(&self, key: &Key) -> Timestamp {
        match self {
            Self::Memory(store) => store.now(),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.now(key),
        }
    }

    /// Has the store failed for this key so often that it is not asked?
    pub fn is_given_up(&self, key: &Key) -> bool {
        match self {
            Self::Memory(_) => false,
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.is_given_up(key),
        }
    }

    /// Gives back what the decisions `taken` have taken, one for each hit, as if they never had: for
    /// a request that is denied elsewhere after all. What was not allowed, or costs nothing, gives
    /// nothing back.
    ///
    /// Answers as a look does: the numbers are those of the states as they now are.
    ///
    /// # Errors
    ///
    /// [`StoreError`] as from [`Store::check`]. What is not given back comes back with time.
    pub async fn give_back(
        &self,
        hits: &[Hit<'_>],
        taken: &[Decision],
    ) -> Result<Decisions, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.give_back(hits, taken)),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.give_back(hits, taken).await,
        }
    }

    /// Decides one hit at once, as [`Store::check`] would; `None` if there is something to wait for.
    pub fn check_at_once(&self, hit: &Hit<'_>, deadline: Deadline) -> Option<Decision> {
        match self {
            Self::Memory(store) if !deadline.is_over() => Some(store.check_one(hit)),
            Self::Memory(_) => None,
            #[cfg(feature = "redis")]
            Self::Redis(_) => None,
        }
    }

    /// Is there nothing to wait for? Then nothing is gained by asking for much at the same time.
    pub const fn decides_at_once(&self) -> bool {
        matches!(self, Self::Memory(_))
    }

    /// Does the work in the background, for ever: expiry in memory; in Redis the connections of those
    /// who have none of their own, and the map of a cluster.
    pub async fn run(&self) {
        match self {
            Self::Memory(store) => store.run().await,
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.run().await,
        }
    }

    /// Returns a handle with a home connection of its own to each Redis server, and the future that
    /// keeps these connections, for ever, on the thread that runs it.
    pub fn for_worker(&self) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let store = match self {
            Self::Memory(store) => Self::Memory(store.clone()),
            #[cfg(feature = "redis")]
            Self::Redis(store) => Self::Redis(Arc::new(store.for_worker())),
        };
        let kept = store.clone();
        let keep = async move {
            match kept {
                Self::Memory(_) => std::future::pending().await,
                #[cfg(feature = "redis")]
                Self::Redis(store) => store.keep_home().await,
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
        }
    }

    /// `memory` or `redis`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Memory(_) => "memory",
            #[cfg(feature = "redis")]
            Self::Redis(_) => "redis",
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
    /// The answer does not fit the question.
    #[error("redis sent an answer that does not fit the question")]
    Garbled,
    /// The clock of Redis left the window of the named keys before they got there, repeatedly.
    #[error("the clock of redis kept leaving the window of the named keys")]
    WindowMissed,
}

impl StoreError {
    /// The kind as a metric label.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::BreakerOpen => "breaker_open",
            Self::Overloaded => "overloaded",
            Self::Expired => "expired",
            Self::Timeout(_) => "timeout",
            Self::Lost => "lost",
            Self::Refused { code, .. } => refusal(code),
            Self::Garbled => "garbled",
            Self::WindowMissed => "window_missed",
        }
    }

    /// May what was sent have been executed all the same?
    pub const fn is_ambiguous(&self) -> bool {
        matches!(self, Self::Timeout(_) | Self::Lost | Self::Garbled)
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
