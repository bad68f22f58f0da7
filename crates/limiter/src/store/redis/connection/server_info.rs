//! The description of a server: INFO, and whether it keeps anything over a restart.

use std::collections::HashMap;
use std::num::NonZeroU64;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{ErrorKind, RedisError, RedisResult, Value, from_redis_value, pipe};

use crate::clock::Timestamp;
use crate::store::NodeMemory;

/// Returns 1 if the user may run `CONFIG GET save`. What is tried without permission would be in the
/// log of the server each time; Redis 6 can't be asked.
const MAY_READ_CONFIG: &str = "\
if not redis.acl_check_cmd then return 1 end
local known, allowed = pcall(redis.acl_check_cmd, 'CONFIG', 'GET', 'save')
return known and allowed and 1 or 0";

/// Roles of servers.
pub(crate) const MASTER: &str = "master";
pub(crate) const REPLICA: &str = "replica";

/// Description of a server. Fields are `None` without permission for INFO.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerInfo {
    /// Random id of this start of the server.
    pub(crate) run_id: Option<String>,
    /// Set if the server has any key.
    pub(crate) has_keys: Option<bool>,
    pub(crate) memory: Option<NodeMemory>,
    /// [`MASTER`] or [`REPLICA`].
    pub(crate) role: Option<&'static str>,
    pub(crate) is_loading: bool,
    /// Whether a restart loses everything, as far as the user may ask; only the monitor does.
    pub(crate) is_not_persistent: bool,
}

/// Returns `true` if a server is known to have neither `appendonly` nor `save`.
pub(crate) async fn is_not_persistent(connection: &mut MultiplexedConnection) -> RedisResult<bool> {
    let mut commands = pipe();
    commands.cmd("INFO").arg("persistence").cmd("EVAL").arg(MAY_READ_CONFIG).arg(0);
    let replies = connection.send_packed_commands(&commands, 0, 2).await?;
    let [info, may_read] = <[Value; 2]>::try_from(replies).map_err(|_| wrong_shape())?;
    let has_no_log = text(info).lines().any(|line| line.trim() == "aof_enabled:0");
    if !has_no_log || may_read != Value::Int(1) {
        return Ok(false);
    }
    let mut commands = pipe();
    commands.cmd("CONFIG").arg("GET").arg("save");
    let mut replies = connection.send_packed_commands(&commands, 0, 1).await?;
    Ok(has_no_snapshots(replies.pop().unwrap_or(Value::Nil)))
}

/// Returns `true` if a reply to `CONFIG GET save` says that there are no points to save at.
fn has_no_snapshots(save: Value) -> bool {
    let settings: RedisResult<HashMap<String, String>> =
        save.extract_error().and_then(|save| Ok(from_redis_value(save)?));
    settings.is_ok_and(|settings| settings.get("save").is_some_and(String::is_empty))
}

/// Returns the text of a reply; of an error an empty one.
fn text(reply: Value) -> String {
    let text: RedisResult<String> =
        reply.extract_error().and_then(|reply| Ok(from_redis_value(reply)?));
    text.unwrap_or_default()
}

impl ServerInfo {
    /// Queries a section of INFO, and the time of the server.
    pub(crate) async fn query(
        connection: &mut MultiplexedConnection,
        section: &str,
    ) -> RedisResult<(Self, Timestamp)> {
        let mut commands = pipe();
        commands.cmd("INFO").arg(section).cmd("TIME");
        let replies = connection.send_packed_commands(&commands, 0, 2).await?;
        let [info, time] = <[Value; 2]>::try_from(replies).map_err(|_| wrong_shape())?;
        let info = match info.extract_error().and_then(|info| Ok(from_redis_value::<String>(info)?))
        {
            Ok(info) => Self::parse(&info),
            // Without permission for INFO the server is assumed to be a master.
            Err(error) if error.code() == Some("NOPERM") => Self::default(),
            Err(error) if error.kind() == ErrorKind::UnexpectedReturnType => Self::default(),
            Err(error) => return Err(error),
        };
        let (seconds, micros): (u64, u64) = from_redis_value(time.extract_error()?)?;
        let micros = seconds.saturating_mul(1_000_000).saturating_add(micros);
        Ok((info, Timestamp::from_micros(micros)))
    }

    /// Returns the eviction policy; `None` if the server never evicts keys.
    pub(crate) fn eviction_policy(&self) -> Option<&str> {
        let bounded = self.memory.as_ref().filter(|memory| memory.max.is_some());
        bounded.map(|memory| &*memory.eviction_policy).filter(|policy| *policy != "noeviction")
    }

    fn parse(info: &str) -> Self {
        let field = |name: &str| {
            info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
        };
        let bytes = |name: &str| field(name)?.parse::<u64>().ok();
        let memory = || {
            let (used, max) = (bytes("used_memory")?, NonZeroU64::new(bytes("maxmemory")?));
            Some(NodeMemory { used, max, eviction_policy: field("maxmemory_policy")?.to_owned() })
        };
        let role = field("role").map(|role| if role == "slave" { REPLICA } else { MASTER });
        Self {
            run_id: field("run_id").map(str::to_owned),
            has_keys: info.contains("# Keyspace").then(|| info.contains(":keys=")),
            memory: memory(),
            role,
            is_loading: field("loading") == Some("1"),
            is_not_persistent: false,
        }
    }
}

fn wrong_shape() -> RedisError {
    RedisError::from((ErrorKind::UnexpectedReturnType, "INFO and TIME have two replies"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_is_parsed() {
        let info = "# Server\r\nrun_id:abc\r\n# Persistence\r\nloading:0\r\n# Memory\r\n\
                    used_memory:9\r\nmaxmemory:1048576\r\nmaxmemory_policy:allkeys-lru\r\n# Replication\r\n\
                    role:slave\r\n# Keyspace\r\ndb0:keys=3,expires=3,avg_ttl=1\r\n";
        let eviction_policy = "allkeys-lru".to_owned();
        let memory = NodeMemory { used: 9, max: NonZeroU64::new(1 << 20), eviction_policy };
        let expected = ServerInfo {
            run_id: Some("abc".to_owned()),
            has_keys: Some(true),
            memory: Some(memory.clone()),
            role: Some(REPLICA),
            is_loading: false,
            is_not_persistent: false,
        };
        assert_eq!(ServerInfo::parse(info), expected);
        assert_eq!(expected.eviction_policy(), Some("allkeys-lru"));
        let unbounded = "used_memory:9\r\nmaxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\nrole:master\r\nloading:1\r\n# Keyspace\r\n";
        let expected = ServerInfo {
            has_keys: Some(false),
            memory: Some(NodeMemory { max: None, ..memory }),
            role: Some(MASTER),
            is_loading: true,
            ..ServerInfo::default()
        };
        assert_eq!(ServerInfo::parse(unbounded), expected);
        assert_eq!(expected.eviction_policy(), None);
        assert_eq!(ServerInfo::parse(""), ServerInfo::default());
    }

    #[test]
    fn missing_snapshots_are_told_only_if_they_are_known() {
        let saved = |points: &str| {
            let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
            Value::Array(vec![text("save"), text(points)])
        };
        assert!(has_no_snapshots(saved("")));
        for known in [saved("3600 1"), Value::Array(Vec::new()), Value::Nil, Value::Okay] {
            assert!(!has_no_snapshots(known));
        }
    }
}
