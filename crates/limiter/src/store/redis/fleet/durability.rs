//! Whether the server of the catalogue may lose keys that have no time to live.

use deadpool_redis::redis::RedisResult;
use tokio::time::timeout;

use super::{RedisFleet, check_deadline};
use crate::clock::Deadline;
use crate::fleet::{Catalogue, CatalogueRisks};
use crate::store::StoreError;
use crate::store::redis::connection::connector::ManagedConnection;
use crate::store::redis::connection::server_info::{ServerInfo, is_not_persistent};

impl RedisFleet {
    /// Returns how the catalogue may be lost, as far as the user may ask the server.
    pub(crate) async fn catalogue_risks(
        &self,
        deadline: Deadline,
    ) -> Result<CatalogueRisks, StoreError> {
        check_deadline(deadline)?;
        let slot = self.format.fleet_slot(&self.format.fleet_key(Catalogue::TOPIC));
        let node = self.topology.node(slot, deadline).await?;
        let (pool, whole) = (node.fleet_pool(), deadline.remaining());
        let Ok(Ok(managed)) = timeout(whole, pool.get()).await else {
            return Err(StoreError::Unreachable);
        };
        let ManagedConnection { mut connection, .. } = ManagedConnection::clone(&managed);
        drop(managed);
        let asked = async {
            let (info, _) = ServerInfo::query(&mut connection, "memory").await?;
            RedisResult::Ok((info, is_not_persistent(&mut connection).await?))
        };
        let error = match timeout(deadline.remaining(), asked).await {
            Ok(Ok((info, is_not_persistent))) => {
                let policy = info.eviction_policy;
                let eviction_policy = policy.filter(|policy| policy.starts_with("allkeys-"));
                return Ok(CatalogueRisks { eviction_policy, is_not_persistent });
            }
            Ok(Err(_)) => StoreError::Lost,
            Err(_elapsed) => StoreError::Timeout(whole),
        };
        pool.retain(|_, _| false);
        Err(error)
    }
}
