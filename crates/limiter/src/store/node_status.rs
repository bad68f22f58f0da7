//! A server of a store, as this process sees it.

use std::num::NonZeroU64;
use std::time::Duration;

use crate::clock::{Micros, Timestamp};
use crate::observer::BreakerState;

/// A server of a store, as this process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// `host:port`, or the path of a socket. Without credentials.
    pub address: String,
    /// `true` if the server answers.
    pub is_available: bool,
    /// State of its circuit breaker.
    pub breaker: BreakerState,
    /// `master` or `replica`; `None` if that is not known.
    pub role: Option<&'static str>,
    /// Median of the latest round trips to it, of which those of probes are some; `None` before the first.
    pub p50: Option<Duration>,
    /// 99th percentile of these round trips.
    pub p99: Option<Duration>,
    /// Calls that failed since this process started.
    pub errors: u64,
    /// Its memory; `None` if that is not known, without permission for INFO and while it does not answer.
    pub memory: Option<NodeMemory>,
    /// The outage that lasts, else the longest that ended in the last hour, else the last one; `None` if there
    /// was none since this process started.
    pub outage: Option<NodeOutage>,
}

/// Memory of a Redis server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeMemory {
    /// Bytes in use.
    pub used: u64,
    /// Most bytes (`maxmemory`); `None` if there is no limit.
    pub max: Option<NonZeroU64>,
    /// What is evicted when the memory is full (`maxmemory-policy`).
    pub eviction_policy: String,
}

/// A time in which a server did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeOutage {
    /// Time of the first probe without an answer.
    pub started_at: Timestamp,
    /// Its length, so far if it lasts.
    pub length: Micros,
    /// Requests of this process that failed meanwhile.
    pub failed: u64,
    /// Requests of this process that passed meanwhile because the store failed.
    pub allowed: u64,
}

/// What became of a request that was not decided.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Undecided {
    /// It failed.
    Failed,
    /// It passed because the store failed.
    Allowed,
}
