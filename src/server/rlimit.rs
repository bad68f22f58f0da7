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

/// Numbers of connections that the limit of open files allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionBudget {
    pub(super) grpc: u32,
    pub(super) http: u32,
    /// Connections that wait for their first byte, for each listener.
    pub(super) pending: u32,
}

impl ConnectionBudget {
    /// Raises the limit of open files to its maximum, and returns the wanted numbers of
    /// connections, or as many as the limit allows.
    pub(super) fn reserve(wanted: u32, listeners: usize, workers: usize) -> Self {
        let [listeners, workers] =
            [listeners, workers].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
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

    fn within(limit: u32, wanted: u32, listeners: u32, workers: u32) -> Self {
        let free = limit.saturating_sub(reserved(workers)).max(limit / 2);
        let pending = (free / 8 / listeners.max(1)).clamp(1, MAX_AWAITING_FIRST_BYTE);
        let http = (free / 4).min(wanted).max(1);
        let rest = free.saturating_sub(http).saturating_sub(pending.saturating_mul(listeners));
        Self { grpc: rest.min(wanted).max(1), http, pending }
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
            for (listeners, workers) in [(2, 2), (32, 2), (2, 64)] {
                let budget = ConnectionBudget::within(limit, 10_000, listeners, workers);
                let most = budget.grpc + budget.http + budget.pending * listeners;
                let kept = reserved(workers).min(limit / 2);
                assert!(limit < 128 || most <= limit - kept, "{limit}: {budget:?}");
                assert!(budget.grpc <= 10_000, "{limit}: {budget:?}");
            }
        }
        assert_eq!(ConnectionBudget::within(u32::MAX, 10_000, 2, 2).grpc, 10_000);
    }
}
