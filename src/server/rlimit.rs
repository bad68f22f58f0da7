//! The limit of open files, and how many connections it allows.
//!
//! A server that gives its last file descriptor to a client can't reach Redis any more.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// What everything else needs: listeners, the main thread, files of the configuration.
const RESERVED: u32 = 64;
/// What each worker needs: four for its runtime, the rest for its connections to Redis servers.
const RESERVED_PER_WORKER: u32 = 24;
/// Most connections to one listener that wait for their first byte.
const MAX_AWAITING_FIRST_BYTE: u32 = 1024;

/// How many connections the file descriptors allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionBudget {
    pub(super) grpc: u32,
    pub(super) http: u32,
    /// Those to each listener that wait for their first byte.
    pub(super) pending: u32,
}

impl ConnectionBudget {
    /// Raises the limit as far as the process may, and returns as many connections as are wanted, or
    /// as it allows.
    pub(super) fn reserve(wanted: u32, listeners: usize, workers: usize) -> Self {
        let [listeners, workers] =
            [listeners, workers].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        let budget = Self::within(raise_limit(), wanted, listeners, workers);
        if budget.grpc < wanted {
            warn!(
                wanted,
                allowed = budget.grpc,
                "fewer connections than wanted: raise the limit of open files (ulimit -n) \
                 or lower server.limits.connections"
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

/// The limit of open files, which is as high as it may be from here on.
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
    fn clients_do_not_get_the_last_descriptors() {
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
