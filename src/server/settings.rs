//! Where and how to serve.

use std::num::NonZeroUsize;
use std::time::Duration;

use super::address::ListenAddress;
use super::tls::Tls;
use crate::api::LimitHeaders;

/// Where and how to serve.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Where gRPC is answered, at least one.
    pub listen: Vec<ListenAddress>,
    /// Where HTTP is answered, decisions included, at least one.
    pub http: Vec<ListenAddress>,
    /// Certificates, for encryption of what comes by TCP.
    pub tls: Option<Tls>,
    /// Worker threads.
    pub workers: NonZeroUsize,
    /// How connections are treated.
    pub connection: ConnectionSettings,
    /// Pause between the signal to stop and the end of accepting.
    pub drain_delay: Duration,
    /// The longest wait for requests in flight.
    pub drain_timeout: Duration,
    /// What an outage of the store means for readiness.
    pub store_health: StoreHealth,
    /// Which headers tell of the limits over HTTP.
    pub http_headers: LimitHeaders,
    /// Which of them are metadata of the responses of `Check` over gRPC.
    pub grpc_headers: LimitHeaders,
}

/// How connections are treated.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionSettings {
    /// Age at half to all of which a client is told to open another connection; unlimited without.
    pub max_age: Option<Duration>,
    /// How long its streams may go on then.
    pub max_age_grace: Duration,
    /// Silence after which the client is sent a ping.
    pub keepalive_interval: Duration,
    /// The longest wait for the answer to a ping.
    pub keepalive_timeout: Duration,
    /// Most connections at once.
    pub connections: u32,
    /// Most of them from one address.
    pub connections_per_address: u32,
    /// Most calls in flight on one of them.
    pub streams: u32,
    /// The longest that a request may take to arrive.
    pub request_time: Duration,
}

/// What an outage of the store, after its first answer, means for readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreHealth {
    /// Nothing: it is reported, no more.
    Reported,
    /// The server is unready.
    Required,
}
