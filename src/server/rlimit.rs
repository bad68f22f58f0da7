//! The limit of open files, and the number of connections that it allows.
//!
//! Without reserved file descriptors, a server whose clients hold all of them could not connect to
//! Redis.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

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
