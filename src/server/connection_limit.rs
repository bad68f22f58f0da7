//! The connection limit: a maximum in total, and one for each client address.
//!
//! A connection counts from its first byte on. `accept.rs` limits those that have sent nothing.
//!
//! The total is bounded by the limit on file descriptors (`RLIMIT_NOFILE`). Without reserved ones, a server whose clients hold all of them could not connect to
//! Redis.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{info, warn};

use super::protocol::Protocol;

/// Limits the connections of one protocol. Clones share the counts.
#[derive(Clone, Debug)]
pub(super) struct ConnectionLimiter(Arc<Limits>);

#[derive(Debug)]
struct Limits {
    max: u32,
    max_per_address: u32,
    counts: Mutex<ConnectionCounts>,
}

#[derive(Debug, Default)]
struct ConnectionCounts {
    total: u32,
    by_address: HashMap<IpAddr, u32>,
    /// Set when the limit is reached and logged, and cleared when a tenth of it is free.
    limit_logged: bool,
}

/// The reason why a connection is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RejectReason {
    /// The total limit is reached.
    Full,
    /// The limit of its address is reached.
    AddressFull,
    /// No byte arrived within the timeout, or too many connections were waiting for their first
    /// byte.
    Silent,
}

impl RejectReason {
    /// Returns the label value of `rlaas_refused_connections_total`.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::AddressFull => "address_full",
            Self::Silent => "silent",
        }
    }
}

impl ConnectionLimiter {
    pub(super) fn new(max: u32, max_per_address: u32) -> Self {
        Self(Arc::new(Limits { max, max_per_address, counts: Mutex::default() }))
    }

    /// Returns a permit for a connection, or the reason for its rejection. Connections over Unix
    /// domain sockets have no address.
    pub(super) fn acquire(
        &self,
        address: Option<IpAddr>,
    ) -> Result<ConnectionPermit, RejectReason> {
        let address = address.map(client_network);
        let mut counts = self.counts();
        if counts.total >= self.0.max {
            if !counts.limit_logged {
                counts.limit_logged = true;
                let connections = self.0.max;
                warn!(connections, "connection limit reached (server.limits.connections)");
            }
            return Err(RejectReason::Full);
        }
        if let Some(address) = address {
            let count = counts.by_address.entry(address).or_default();
            if *count >= self.0.max_per_address {
                return Err(RejectReason::AddressFull);
            }
            *count += 1;
        }
        counts.total += 1;
        drop(counts);
        Ok(ConnectionPermit { limiter: self.clone(), address })
    }

    fn counts(&self) -> MutexGuard<'_, ConnectionCounts> {
        self.0.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a connection against the limit until it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    limiter: ConnectionLimiter,
    address: Option<IpAddr>,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut counts = self.limiter.counts();
        counts.total -= 1;
        if let Some(address) = self.address
            && let Some(count) = counts.by_address.get_mut(&address)
        {
            *count -= 1;
            if *count == 0 {
                counts.by_address.remove(&address);
            }
        }
        if counts.limit_logged && counts.total <= self.limiter.0.max / 10 * 9 {
            counts.limit_logged = false;
            info!("connections are below the limit again");
        }
    }
}

/// Returns the address by which a client is counted: an IPv4 address, or the /64 network of an IPv6
/// address, all of which one host can use.
pub(super) fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            const NETWORK: u128 = !0 << 64;
            Ipv6Addr::from_bits(address.to_bits() & NETWORK).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

/// Descriptors reserved for listeners, the main thread and configuration files.
const RESERVED: u32 = 64;
/// Descriptors reserved for each worker: 4 for its runtime, 20 for its connections to Redis
/// servers.
const RESERVED_PER_WORKER: u32 = 24;
/// Maximum number of connections that wait for their first byte, for each listener.
const MAX_AWAITING_FIRST_BYTE: u32 = 1024;

/// Maximum number of connections to the console. A browser has up to six.
const MAX_CONSOLE_CONNECTIONS: u32 = 256;

/// Numbers of listeners.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListenerCounts {
    /// For gRPC and HTTP.
    pub(super) api: usize,
    /// For the console and for metrics.
    pub(super) console: usize,
}

/// Numbers of connections that the limit of open files allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionBudget {
    pub(super) grpc: u32,
    pub(super) http: u32,
    pub(super) console: u32,
    /// Connections that wait for their first byte, for each listener.
    pub(super) pending: u32,
}

impl ConnectionBudget {
    /// Returns the number of connections of a protocol.
    pub(super) fn connections(&self, protocol: Protocol) -> u32 {
        match protocol {
            Protocol::Grpc => self.grpc,
            Protocol::Http => self.http,
            Protocol::Console | Protocol::Metrics => self.console,
        }
    }

    /// Raises the limit of open files to its maximum, and returns the wanted numbers of
    /// connections, or as many as the limit allows.
    pub(super) fn reserve(wanted: u32, listeners: ListenerCounts, workers: usize) -> Self {
        let workers = u32::try_from(workers).unwrap_or(u32::MAX);
        let budget = Self::within(raise_limit(), wanted, listeners, workers);
        if budget.grpc < wanted {
            warn!(
                wanted,
                allowed = budget.grpc,
                "limit of open files allows fewer connections than server.limits.connections: \
                 raise the limit (ulimit -n) or lower the setting"
            );
        }
        budget
    }

    fn within(limit: u32, wanted: u32, listeners: ListenerCounts, workers: u32) -> Self {
        let ListenerCounts { api, console } = listeners;
        let listeners = u32::try_from(api + console).unwrap_or(u32::MAX);
        let free = limit.saturating_sub(reserved(workers)).max(limit / 2);
        let console = if console == 0 { 0 } else { (free / 16).clamp(1, MAX_CONSOLE_CONNECTIONS) };
        let free = free.saturating_sub(console);
        let pending = (free / 8 / listeners.max(1)).clamp(1, MAX_AWAITING_FIRST_BYTE);
        let http = (free / 4).min(wanted).max(1);
        let rest = free.saturating_sub(http).saturating_sub(pending.saturating_mul(listeners));
        Self { grpc: rest.min(wanted).max(1), http, console, pending }
    }
}

fn reserved(workers: u32) -> u32 {
    RESERVED_PER_WORKER.saturating_mul(workers).saturating_add(RESERVED)
}

/// Raises the limit of open files to the maximum of the process, and returns it.
fn raise_limit() -> u32 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let raised = setrlimit(Resource::Nofile, raised).map(|()| raised.current);
    let limit = raised.unwrap_or(limit.current);
    limit.map_or(u32::MAX, |limit| u32::try_from(limit).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use rlaas_telemetry::labels::CONNECTION_REFUSALS;

    use super::*;

    #[test]
    fn reject_reasons_equal_the_metric_labels() {
        let reasons = [RejectReason::Full, RejectReason::AddressFull, RejectReason::Silent];
        assert_eq!(reasons.map(RejectReason::label), CONNECTION_REFUSALS);
    }

    #[test]
    fn dropping_a_permit_frees_it() {
        let limiter = ConnectionLimiter::new(3, 2);
        let [one, same, other] =
            ["2001:db8::1", "2001:db8::2", "::ffff:192.0.2.1"].map(|text| text.parse().ok());
        let first = limiter.acquire(one).expect("a permit");
        let _second = limiter.acquire(same).expect("a permit");
        assert_eq!(
            limiter.acquire(one).err(),
            Some(RejectReason::AddressFull),
            "both addresses are in one /64 network"
        );
        let _third = limiter.acquire(other).expect("a permit");
        assert_eq!(limiter.acquire(None).err(), Some(RejectReason::Full));
        drop(first);
        let _again = limiter.acquire(one).expect("a permit");
        assert_eq!(limiter.acquire(None).err(), Some(RejectReason::Full));
    }

    #[test]
    fn addresses_without_connections_are_removed() {
        let limiter = ConnectionLimiter::new(1, 1);
        for last in 0..=255 {
            drop(limiter.acquire(Some([192, 0, 2, last].into())).expect("a permit"));
        }
        assert!(limiter.counts().by_address.is_empty());
    }
}

#[cfg(test)]
mod rlimit_tests {
    use super::*;

    #[test]
    fn budget_leaves_the_reserved_descriptors() {
        for limit in [16, 64, 128, 1024, 20_000, u32::MAX] {
            for (api, console, workers) in
                [(2, 0, 2), (32, 0, 2), (2, 0, 64), (2, 1, 2), (2, 16, 8)]
            {
                let listeners = ListenerCounts { api, console };
                let budget = ConnectionBudget::within(limit, 10_000, listeners, workers);
                let listeners = u32::try_from(api + console).expect("few");
                let ConnectionBudget { grpc, http, pending, .. } = budget;
                let most = grpc + http + budget.console + pending * listeners;
                let kept = reserved(workers).min(limit / 2);
                assert!(limit < 128 || most <= limit - kept, "{limit}: {budget:?}");
                assert!(budget.grpc <= 10_000, "{limit}: {budget:?}");
            }
        }
        let listeners = ListenerCounts { api: 2, console: 1 };
        let budget = ConnectionBudget::within(u32::MAX, 10_000, listeners, 2);
        assert_eq!((budget.grpc, budget.http, budget.console), (10_000, 10_000, 256));
    }
}
