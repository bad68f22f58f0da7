//! Warnings that the store may lose the catalogue.

use std::mem;

use rlaas_core::clock::Deadline;
use rlaas_limiter::fleet::CatalogueRisks;
use tracing::{debug, info, warn};

use super::Registry;
use super::sync::CALL_TIMEOUT;

/// Looks at the catalogue after which the settings of the store are read again.
const LOOKS_PER_CHECK: u32 = 30;

/// The risks that were logged.
#[derive(Debug, Default)]
pub(super) struct LoggedRisks {
    logged: CatalogueRisks,
    looks: u32,
}

impl LoggedRisks {
    /// Reads the settings at the next look.
    pub(super) const fn check_again(&mut self) {
        self.looks = 0;
    }

    /// Now and then reads the settings of a store that has a catalogue, and logs what has changed.
    pub(super) async fn look(&mut self, registry: &Registry) {
        if registry.revision() == 0 {
            return;
        }
        if self.looks.is_multiple_of(LOOKS_PER_CHECK) {
            match registry.0.catalogue.risks(Deadline::within(CALL_TIMEOUT)).await {
                Ok(risks) => self.log(registry, risks),
                // The store's own log says when it is away.
                Err(error) => debug!(%error, "settings of the store can't be read"),
            }
        }
        self.looks = self.looks.wrapping_add(1);
    }

    fn log(&mut self, registry: &Registry, risks: CatalogueRisks) {
        let is_at_risk = risks != CatalogueRisks::default();
        registry.0.metrics.catalogue_at_risk.set(is_at_risk.into());
        if risks == self.logged {
            return;
        }
        let before = mem::replace(&mut self.logged, risks);
        let CatalogueRisks { eviction_policy, is_not_persistent } = &self.logged;
        if let Some(policy) = eviction_policy.as_ref().filter(|_| before.eviction_policy.is_none())
        {
            warn!(
                policy,
                "redis may evict projects and API keys when its memory is full: set \
                 maxmemory-policy noeviction"
            );
        }
        if *is_not_persistent && !before.is_not_persistent {
            warn!("redis loses projects and API keys when it restarts: set appendonly yes");
        }
        if !is_at_risk {
            info!("no setting of redis is known any more by which it may lose projects");
        }
    }
}
