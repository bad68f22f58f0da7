//! Settings of the server.

use std::num::NonZeroUsize;
use std::time::Duration;

use rlaas_auth::HostNames;

use super::address::ListenAddress;
use super::tls::Tls;
use crate::api::LimitHeaders;
use crate::api::http::Cors;

/// Settings of the server.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Addresses of gRPC, at least one.
    pub listen: Vec<ListenAddress>,
    /// Name of the cluster for people; empty: none.
    pub name: String,
    /// Addresses of HTTP, at least one.
    pub http: Vec<ListenAddress>,
    /// Addresses of the console; none switches it off.
    pub console: Vec<ListenAddress>,
    /// Addresses of `/metrics` alone; none leaves it on those of HTTP.
    pub metrics: Vec<ListenAddress>,
    /// TLS for TCP connections; `None` serves without encryption.
    pub tls: Option<Tls>,
    /// Whether HTTP and metrics are encrypted, too; the console always is.
    pub tls_for_http: bool,
    /// Number of worker threads.
    pub workers: NonZeroUsize,
    /// Limits and timeouts of connections.
    pub connection: ConnectionSettings,
    /// Time between the report of `NOT_SERVING` and the end of accepting.
    pub drain_delay: Duration,
    /// Maximum wait for connections to end after that.
    pub drain_timeout: Duration,
    /// Whether readiness depends on the store.
    pub store_health: StoreHealth,
    /// Names under which local callers reach the server, for administrative calls while `auth` lists
    /// nobody.
    pub http_hosts: HostNames,
    /// Origins whose pages may read decisions over HTTP.
    pub http_cors: Option<Cors>,
    /// Rate-limit headers of HTTP responses.
    pub http_headers: LimitHeaders,
    /// Rate-limit headers in the metadata of gRPC responses to `Check`.
    pub grpc_headers: LimitHeaders,
}

/// Limits and timeouts of connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionSettings {
    /// Maximum age. A connection receives GOAWAY at a random point between 50 % and 100 % of it.
    /// `None` is no maximum.
    pub max_age: Option<Duration>,
    /// Time for open streams to finish after GOAWAY.
    pub max_age_grace: Duration,
    /// Time without traffic after which the server sends a ping (HTTP/2).
    pub keepalive_interval: Duration,
    /// Maximum wait for the reply to a ping.
    pub keepalive_timeout: Duration,
    /// Maximum number of connections of each protocol.
    pub connections: u32,
    /// Maximum number of connections from one address, of each protocol.
    pub connections_per_address: u32,
    /// Maximum number of calls in flight on one connection.
    pub streams: u32,
    /// Maximum time for a request to arrive.
    pub request_time: Duration,
}

/// Whether the server is ready while the store is unavailable, after the first reply of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreHealth {
    /// The server stays ready; the outage shows only in the status of the service `store`.
    Reported,
    /// The server is not ready.
    Required,
}
