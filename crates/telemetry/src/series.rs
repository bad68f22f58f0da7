//! Series that exist before their first event.
//!
//! A series that appears with its first event starts at 1. `rate()` and `increase()` of Prometheus
//! see no increase then, and an alert misses an event that happens once. So series whose labels are
//! known are created at 0.

use rlaas_limiter::observer::Operation;

use super::labels::{
    APIS, AUTH_REFUSALS, ApiLabels, CONNECTION_REFUSALS, KindLabels, LISTENERS, OutcomeLabels,
    REDIS_ERROR_KINDS, REQUEST_FIELDS, ReasonLabels, STORE_ERROR_KINDS, UNMATCHED_REASONS,
};
use super::metrics::Metrics;

impl Metrics {
    /// Creates the series whose labels do not depend on the configuration.
    pub(super) fn declare(&self) {
        for kind in STORE_ERROR_KINDS.iter().chain(&REDIS_ERROR_KINDS) {
            drop(self.store_errors.get_or_create(&KindLabels { kind }));
        }
        for reason in UNMATCHED_REASONS {
            for outcome in ["allowed", "denied"] {
                drop(self.unmatched.get_or_create(&OutcomeLabels { outcome, reason }));
            }
        }
        for reason in REQUEST_FIELDS {
            drop(self.rejected.get_or_create(&ReasonLabels { reason }));
        }
        for reason in AUTH_REFUSALS {
            drop(self.refused.get_or_create(&ReasonLabels { reason }));
        }
        for reason in CONNECTION_REFUSALS {
            drop(self.refused_connections.get_or_create(&ReasonLabels { reason }));
        }
        for api in LISTENERS {
            drop(self.connections.get_or_create(&ApiLabels { api }));
            drop(self.open_connections.get_or_create(&ApiLabels { api }));
        }
        for api in APIS {
            drop(self.check_duration.get_or_create(&ApiLabels { api }));
        }
    }

    /// Creates the series of calls to Redis, which exist only with a Redis store.
    pub fn declare_store_calls(&self) {
        for operation in [Operation::Check, Operation::Refund] {
            self.store_histogram(operation);
        }
    }
}
