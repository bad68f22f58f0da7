//! Where and how to serve.

use std::num::NonZeroUsize;
use std::time::Duration;

use super::address::ListenAddress;

/// Where and how to serve.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Where gRPC is answered, at least one.
    pub listen: Vec<ListenAddress>,
    /// Where metrics and probes are answered, at least one.
    pub http: Vec<ListenAddress>,
    /// Worker threads.
    pub workers: NonZeroUsize,
    /// Pause between the signal to stop and the end of accepting.
    pub drain_delay: Duration,
    /// The longest wait for requests in flight.
    pub drain_timeout: Duration,
    /// What an outage of the store means for readiness.
    pub store_health: StoreHealth,
}

/// What an outage of the store, after its first answer, means for readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreHealth {
    /// Nothing: it is reported, no more.
    Reported,
    /// The server is unready.
    Required,
}
