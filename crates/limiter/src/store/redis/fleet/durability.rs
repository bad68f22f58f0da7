//! Whether the server of the catalogue may lose keys that have no time to live.

use std::collections::HashMap;

use deadpool_redis::redis::{Pipeline, RedisResult, Value, from_redis_value, pipe};
use tokio::time::timeout;

use super::{RedisFleet, check_deadline};
use crate::clock::Deadline;
use crate::fleet::{Catalogue, CatalogueRisks};
use crate::store::StoreError;
use crate::store::redis::connection::connector::ManagedConnection;
use crate::store::redis::node::Node;

/// Returns 1 if the user may run `CONFIG GET save`. What is tried without permission would be in the
/// log of the server each time; Redis 6 can't be asked.
const MAY_READ_CONFIG: &str = "\
if not redis.acl_check_cmd then return 1 end
local known, allowed = pcall(redis.acl_check_cmd, 'CONFIG', 'GET', 'save')
return known and allowed and 1 or 0";

impl RedisFleet {
    /// Returns how the catalogue may be lost, as far as the user may ask the server.
    pub(crate) async fn catalogue_risks(
        &self,
        deadline: Deadline,
    ) -> Result<CatalogueRisks, StoreError> {
        check_deadline(deadline)?;
        let slot = self.format.fleet_slot(&self.format.fleet_key(Catalogue::TOPIC));
        let node = self.topology.node(slot, deadline).await?;
        let mut commands = pipe();
        commands.cmd("INFO").arg("memory").cmd("INFO").arg("persistence");
        commands.cmd("EVAL").arg(MAY_READ_CONFIG).arg(0);
        let replies = <[Value; 3]>::try_from(send(&node, &commands, deadline).await?);
        let [memory, persistence, allowed] = replies.map_err(|_| StoreError::Garbled)?;
        let mut save = Value::Nil;
        if allowed == Value::Int(1) {
            let mut commands = pipe();
            commands.cmd("CONFIG").arg("GET").arg("save");
            save = send(&node, &commands, deadline).await?.pop().unwrap_or(Value::Nil);
        }
        Ok(risks(&text(memory), &text(persistence), save))
    }
}

/// Sends commands on a connection of the fleet. Errors of single commands are among the replies.
async fn send(
    node: &Node,
    commands: &Pipeline,
    deadline: Deadline,
) -> Result<Vec<Value>, StoreError> {
    let (pool, whole) = (node.fleet_pool(), deadline.remaining());
    let Ok(Ok(managed)) = timeout(whole, pool.get()).await else {
        return Err(StoreError::Unreachable);
    };
    let ManagedConnection { mut connection, .. } = ManagedConnection::clone(&managed);
    drop(managed);
    let sent = connection.send_packed_commands(commands, 0, commands.len());
    let error = match timeout(deadline.remaining(), sent).await {
        Ok(Ok(replies)) => return Ok(replies),
        Ok(Err(_)) => StoreError::Lost,
        Err(_elapsed) => StoreError::Timeout(whole),
    };
    pool.retain(|_, _| false);
    Err(error)
}

/// Returns the risks that the replies tell. What is not known is none.
fn risks(memory: &str, persistence: &str, save: Value) -> CatalogueRisks {
    let is_bounded = field(memory, "maxmemory").is_some_and(|bytes| bytes != "0");
    let policy = field(memory, "maxmemory_policy").filter(|policy| policy.starts_with("allkeys-"));
    let has_log = field(persistence, "aof_enabled").map(|enabled| enabled != "0");
    let settings: RedisResult<HashMap<String, String>> =
        save.extract_error().and_then(|save| Ok(from_redis_value(save)?));
    let has_snapshots =
        settings.ok().and_then(|settings| settings.get("save").map(|points| !points.is_empty()));
    CatalogueRisks {
        eviction_policy: policy.filter(|_| is_bounded).map(str::to_owned),
        is_not_persistent: (has_log, has_snapshots) == (Some(false), Some(false)),
    }
}

/// Returns the text of a reply; of an error an empty one.
fn text(reply: Value) -> String {
    let text: RedisResult<String> =
        reply.extract_error().and_then(|reply| Ok(from_redis_value(reply)?));
    text.unwrap_or_default()
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGGED: &str = "# Persistence\r\nloading:0\r\naof_enabled:1\r\n";
    const NOT_LOGGED: &str = "# Persistence\r\naof_enabled:0\r\n";

    fn bounded(policy: &str) -> String {
        format!("# Memory\r\nmaxmemory:1048576\r\nmaxmemory_policy:{policy}\r\n")
    }

    fn saved(points: &str) -> Value {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        Value::Array(vec![text("save"), text(points)])
    }

    #[test]
    fn policies_that_evict_any_key_are_a_risk() {
        let policy = |memory: &str| risks(memory, LOGGED, saved("")).eviction_policy;
        for name in ["allkeys-lru", "allkeys-lfu", "allkeys-random"] {
            assert_eq!(policy(&bounded(name)).as_deref(), Some(name));
        }
        for name in ["noeviction", "volatile-lru", "volatile-ttl"] {
            assert_eq!(policy(&bounded(name)), None, "{name}");
        }
        assert_eq!(policy("maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n"), None);
        assert_eq!(policy(""), None);
    }

    #[test]
    fn missing_persistence_is_a_risk_only_if_it_is_known() {
        let is_lost = |persistence: &str, save| risks("", persistence, save).is_not_persistent;
        assert!(is_lost(NOT_LOGGED, saved("")));
        assert!(!is_lost(NOT_LOGGED, saved("3600 1")));
        assert!(!is_lost(LOGGED, saved("")));
        assert!(!is_lost("", saved("")));
        for unknown in [Value::Array(Vec::new()), Value::Nil, Value::Okay] {
            assert!(!is_lost(NOT_LOGGED, unknown));
        }
    }
}
