//! Where and how to serve.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

/// Where and how to serve.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Where gRPC is answered.
    pub listen: ListenAddress,
    /// Where metrics and probes are answered.
    pub http: ListenAddress,
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

/// `host:port`; port 0 takes a free one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress(String);

impl ListenAddress {
    /// The text, as the system resolves it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ListenAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (host, port) = text.rsplit_once(':').ok_or(AddressError)?;
        let bracketed = host.starts_with('[') && host.ends_with(']');
        if host.is_empty() || (host.contains(':') && !bracketed) {
            return Err(AddressError);
        }
        port.parse::<u16>().map_err(|_| AddressError)?;
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Not an address to listen on.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("valid is host:port, such as 127.0.0.1:50051 or [::1]:0")]
pub struct AddressError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for text in ["127.0.0.1:50051", "localhost:0", "[::1]:8080", "0.0.0.0:65535"] {
            assert_eq!(text.parse(), Ok(ListenAddress(text.to_owned())));
        }
        for text in ["", "50051", ":50051", "::1:80", "h:", "h:65536", "h:http"] {
            assert_eq!(text.parse::<ListenAddress>(), Err(AddressError), "{text}");
        }
    }
}
