//! Settings of the server, and the addresses that it listens on.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use rlaas_auth::HostNames;
use thiserror::Error;

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

/// Maximum length of the path of a socket, in bytes.
///
/// **Source:** `sun_path` in unix(7): 108 with the NUL at its end.
const MAX_SOCKET_PATH: usize = 107;

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// `host:port`. The system resolves the host, and chooses a free port for port 0.
    Tcp(String),
    /// The absolute path of a Unix domain socket.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Returns `true` if only this machine can reach the address.
    pub fn is_local(&self) -> bool {
        let Self::Tcp(address) = self else { return true };
        let host = address.rsplit_once(':').map_or("", |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
    }
}

impl FromStr for ListenAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("unix:") {
            // gRPC clients also accept `unix:///path`.
            Some(path) => socket(path.strip_prefix("//").unwrap_or(path)),
            None => host_and_port(text),
        }
    }
}

fn socket(path: &str) -> Result<ListenAddress, AddressError> {
    let path = PathBuf::from(path);
    let length = path.as_os_str().as_bytes().len();
    let is_valid = path.is_absolute() && path.file_name().is_some() && length <= MAX_SOCKET_PATH;
    if is_valid { Ok(ListenAddress::Unix(path)) } else { Err(AddressError) }
}

fn host_and_port(text: &str) -> Result<ListenAddress, AddressError> {
    let (host, port) = text.rsplit_once(':').ok_or(AddressError)?;
    let bracketed = host.starts_with('[') && host.ends_with(']');
    if host.is_empty() || (host.contains(':') && !bracketed) {
        return Err(AddressError);
    }
    port.parse::<u16>().map_err(|_| AddressError)?;
    Ok(ListenAddress::Tcp(text.to_owned()))
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The error for a text that is not an address to listen on.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("must be host:port, such as 127.0.0.1:50051 or [::1]:0, or unix:/path of up to 107 bytes")]
pub struct AddressError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for text in ["127.0.0.1:50051", "localhost:0", "[::1]:8080", "0.0.0.0:65535"] {
            assert_eq!(text.parse(), Ok(ListenAddress::Tcp(text.to_owned())));
        }
        for text in ["", "50051", ":50051", "::1:80", "h:", "h:65536", "h:http"] {
            assert_eq!(text.parse::<ListenAddress>(), Err(AddressError), "{text}");
        }
    }

    #[test]
    fn an_address_is_local_if_no_other_machine_can_reach_it() {
        for (text, is_local) in [
            ("127.0.0.1:1", true),
            ("127.9.9.9:1", true),
            ("[::1]:1", true),
            ("localhost:1", true),
            ("unix:/run/rlaas.sock", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("10.0.0.1:1", false),
            ("rlaas.example:1", false),
        ] {
            let address: ListenAddress = text.parse().expect("an address");
            assert_eq!(address.is_local(), is_local, "{text}");
        }
    }

    #[test]
    fn an_address_may_be_the_path_of_a_socket() {
        let socket = ListenAddress::Unix("/run/rlaas.sock".into());
        for text in ["unix:/run/rlaas.sock", "unix:///run/rlaas.sock"] {
            assert_eq!(text.parse(), Ok(socket.clone()));
        }
        assert_eq!(socket.to_string(), "unix:/run/rlaas.sock");
        let long = |length: usize| format!("unix:/{}", "s".repeat(length - 1));
        assert!(long(MAX_SOCKET_PATH).parse::<ListenAddress>().is_ok());
        for text in ["unix:", "unix:/", "unix:rlaas.sock", "unix://h/path/..", &long(108)] {
            assert_eq!(text.parse::<ListenAddress>(), Err(AddressError), "{text}");
        }
    }
}
