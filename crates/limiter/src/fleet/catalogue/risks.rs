//! How a store may lose the catalogue.

use super::{Catalogue, CatalogueBackend};
use crate::clock::Deadline;
use crate::store::StoreError;

/// Settings of the store by which it may lose the catalogue, as far as they are known: a user of Redis
/// needs `+info` and `+config|get` for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CatalogueRisks {
    /// `maxmemory-policy` of Redis, if it may evict keys without a time to live.
    pub eviction_policy: Option<String>,
    /// Whether a restart of Redis loses everything: it has neither `appendonly` nor `save`.
    pub is_not_persistent: bool,
}

#[cfg_attr(
    not(feature = "redis"),
    expect(clippy::unused_async, reason = "Redis is waited for, memory is not")
)]
impl Catalogue {
    /// Returns how the store may lose the catalogue. The memory store has no such settings.
    ///
    /// # Errors
    ///
    /// As [`Catalogue::head`].
    pub async fn risks(&self, deadline: Deadline) -> Result<CatalogueRisks, StoreError> {
        match &self.0 {
            CatalogueBackend::Memory(catalogue) => {
                catalogue.head(None, deadline).map(|_| CatalogueRisks::default())
            }
            #[cfg(feature = "redis")]
            CatalogueBackend::Redis(fleet) => fleet.catalogue_risks(deadline).await,
        }
    }
}
