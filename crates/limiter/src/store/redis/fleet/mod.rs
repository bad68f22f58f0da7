//! The fleet in Redis: calls beside decisions, on connections of their own.
//!
//! Each call is one script (`lua/fleet.lua`) with keys of one slot, by its hash; its text follows when the
//! server does not know it. A call of unknown fate is not repeated.
//! It is not admitted by the circuit breaker and does not count for it; its deadline limits it.

pub(super) mod call;
mod catalogue;
mod registers;
mod restore;
mod subscription;

pub(crate) use subscription::RedisSubscription;

use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use deadpool_redis::redis::{FromRedisValue, Value, from_redis_value};

use self::call::FleetCall;
use super::codec::keys::KeyFormat;
use super::codec::scripts::Script;
use super::overrides;
use super::topology::Topology;
use crate::clock::{Deadline, Timestamp};
use crate::fleet::{
    EntryId, LogEntry, LogRange, MAX_VALUES, NamedValue, NewEntry, OutOfBounds, ProjectLog,
    SECRET_LEN,
};
use crate::store::StoreError;

/// The script of all operations.
static SCRIPT: LazyLock<Script> =
    LazyLock::new(|| Script::from_text(include_str!("../../../../lua/fleet.lua")));
/// The permission for subscriptions, whose command is not in the script.
const SUBSCRIBE: &str = "+subscribe";

/// The fleet of all processes with the same servers and prefix. Clones share connections.
#[derive(Clone, Debug)]
pub(crate) struct RedisFleet {
    format: KeyFormat,
    topology: Arc<Topology>,
    /// Generation of the catalogue when it was last seen.
    generation: Arc<Mutex<String>>,
}

impl RedisFleet {
    pub(super) fn new(format: KeyFormat, topology: Arc<Topology>) -> Self {
        Self { format, topology, generation: Arc::default() }
    }

    pub(crate) async fn append(
        &self,
        log: ProjectLog<'_>,
        entry: NewEntry<'_>,
        deadline: Deadline,
    ) -> Result<EntryId, StoreError> {
        let NewEntry { content, max_entries, max_project_entries, ttl } = entry;
        // Redis counts with signed numbers.
        let bound = |most: u64| most.clamp(1, i64::MAX.unsigned_abs()).to_string();
        let (most, most_of_project) = (bound(max_entries), bound(max_project_entries));
        let ttl = ttl.map_or_else(|| "0".to_owned(), millis);
        let arguments = [most.as_bytes(), content, most_of_project.as_bytes(), ttl.as_bytes()];
        let mut keys = vec![self.format.fleet_key(log.log)];
        let slot = self.format.fleet_slot(&keys[0]);
        if !log.project.is_empty() {
            keys.push(self.format.project_log_key(log.log, log.project));
        }
        let results = self.call_keys(keys, slot, "append", &arguments, deadline).await?;
        let [id] = exactly(results)?;
        text(id)?.parse().map_err(|_| StoreError::Garbled)
    }

    pub(crate) async fn append_once(
        &self,
        log: ProjectLog<'_>,
        mark: &str,
        until: Timestamp,
        entry: NewEntry<'_>,
        deadline: Deadline,
    ) -> Result<bool, StoreError> {
        let slot = self.format.fleet_slot(&self.format.fleet_key(log.log));
        let own = self.format.project_log_key(log.log, log.project);
        let keys = vec![own.clone(), format!("{own}:{mark}")];
        let (most, until) = (entry.max_project_entries.to_string(), until.as_micros() / 1_000);
        let until = until.to_string();
        let arguments = [most.as_bytes(), entry.content, until.as_bytes()];
        let results = self.call_keys(keys, slot, "append_once", &arguments, deadline).await?;
        let [is_new] = exactly(results)?;
        Ok(parsed::<u64>(is_new)? == 1)
    }

    pub(crate) async fn read(
        &self,
        project_log: ProjectLog<'_>,
        range: LogRange,
        count: usize,
        deadline: Deadline,
    ) -> Result<Vec<LogEntry>, StoreError> {
        let LogRange { from, before } = range;
        if count == 0 || from >= before {
            check_deadline(deadline)?;
            return Ok(Vec::new());
        }
        let log = self.format.fleet_key(project_log.log);
        let slot = self.format.fleet_slot(&log);
        let key = match project_log.project {
            "" => log,
            project => self.format.project_log_key(project_log.log, project),
        };
        let (last, first) = (format!("({before}"), from.to_string());
        let arguments = [last.as_bytes(), first.as_bytes(), &count.to_string().into_bytes()];
        let results = self.call_keys(vec![key], slot, "read", &arguments, deadline).await?;
        results.into_iter().map(entry).collect()
    }

    pub(crate) async fn put(
        &self,
        map: &str,
        name: &str,
        content: &[u8],
        ttl: Duration,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let (ttl, most) = (millis(ttl), MAX_VALUES.to_string());
        let arguments = [name.as_bytes(), content, ttl.as_bytes(), most.as_bytes()];
        let results = self.call(map, "put", &arguments, deadline).await?;
        match exactly(results)? {
            [Value::Int(1)] => Ok(()),
            [Value::Int(0)] => Err(OutOfBounds::Values.into()),
            _ => Err(StoreError::Garbled),
        }
    }

    pub(crate) async fn claim(
        &self,
        map: &str,
        name: &str,
        content: &[u8],
        over: Option<&[u8]>,
        ttl: Duration,
        deadline: Deadline,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let (ttl, most) = (millis(ttl), MAX_VALUES.to_string());
        let mut arguments = vec![name.as_bytes(), content, ttl.as_bytes(), most.as_bytes()];
        arguments.extend(over);
        let mut results = self.call(map, "claim", &arguments, deadline).await?.into_iter();
        match (results.next(), results.next(), results.next()) {
            (Some(Value::Int(1)), None, None) => Ok(None),
            (Some(Value::Int(2)), Some(held), None) => Ok(Some(bytes(held)?)),
            (Some(Value::Int(0)), None, None) => Err(OutOfBounds::Values.into()),
            _ => Err(StoreError::Garbled),
        }
    }

    pub(crate) async fn values(
        &self,
        map: &str,
        deadline: Deadline,
    ) -> Result<Vec<NamedValue>, StoreError> {
        let results = self.call(map, "values", &[], deadline).await?;
        let mut values = Vec::new();
        let mut results = results.into_iter();
        while let Some(name) = results.next() {
            let (Some(value), Some(Value::Int(millis))) = (results.next(), results.next()) else {
                return Err(StoreError::Garbled);
            };
            let expires_in = Duration::from_millis(millis.unsigned_abs());
            values.push(NamedValue { name: text(name)?, value: bytes(value)?, expires_in });
        }
        values.sort();
        Ok(values)
    }

    pub(crate) async fn publish(
        &self,
        topic: &str,
        message: &[u8],
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        self.call(topic, "publish", &[message], deadline).await.map(drop)
    }

    pub(crate) async fn secret(
        &self,
        name: &str,
        candidate: [u8; SECRET_LEN],
        deadline: Deadline,
    ) -> Result<[u8; SECRET_LEN], StoreError> {
        let [secret] = exactly(self.call(name, "secret", &[&candidate], deadline).await?)?;
        bytes(secret)?.try_into().map_err(|_| StoreError::Garbled)
    }

    /// Returns the permissions that the user lacks, also those of the list of overrides, as words of
    /// `ACL SETUSER`.
    pub(crate) async fn missing_permissions(
        &self,
        topics: &[&str],
        deadline: Deadline,
    ) -> Result<Vec<String>, StoreError> {
        let channels: Vec<_> = topics.iter().map(|topic| self.format.fleet_key(topic)).collect();
        let arguments: Vec<_> = channels.iter().map(String::as_bytes).collect();
        let results = self.call("permissions", "permissions", &arguments, deadline).await?;
        let mut missing = Vec::new();
        let mut results = results.into_iter();
        while let (Some(command), Some(key), Some(error)) =
            (results.next(), results.next(), results.next())
        {
            let (command, key, error) = (text(command)?, text(key)?, text(error)?);
            missing.extend(call::missing_permission(&command, &key, &error));
        }
        for topic in topics {
            let denied = self.subscribe(topic).denied(deadline).await?;
            missing.extend(denied);
        }
        let node = self.topology.node(self.format.fleet_slot("permissions"), deadline).await?;
        missing.extend(overrides::missing_permission(&node, deadline).await?);
        // The check is made once: its connection need not wait for the first use of the fleet.
        for node in self.topology.nodes() {
            node.fleet_pool().retain(|_, _| false);
        }
        missing.sort_unstable();
        missing.dedup();
        Ok(missing)
    }

    pub(crate) fn subscribe(&self, topic: &str) -> RedisSubscription {
        let channel = self.format.fleet_key(topic);
        let slot = self.format.fleet_slot(&channel);
        RedisSubscription::new(channel, slot, Arc::clone(&self.topology))
    }

    fn call<'a>(
        &'a self,
        name: &str,
        operation: &'static str,
        arguments: &'a [&'a [u8]],
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<Value>, StoreError>> + Send + use<'a> {
        let key = self.format.fleet_key(name);
        let slot = self.format.fleet_slot(&key);
        self.call_keys(vec![key], slot, operation, arguments, deadline)
    }

    /// Calls an operation with its arguments on keys of one slot.
    async fn call_keys(
        &self,
        keys: Vec<String>,
        slot: u16,
        operation: &'static str,
        arguments: &[&[u8]],
        deadline: Deadline,
    ) -> Result<Vec<Value>, StoreError> {
        check_deadline(deadline)?;
        let (topology, keys) = (&self.topology, &keys);
        let call = FleetCall { topology, script: &SCRIPT, keys, slot, operation, arguments };
        // Boxed because it is large, and rare.
        Box::pin(call.run(deadline)).await
    }
}

fn check_deadline(deadline: Deadline) -> Result<(), StoreError> {
    if deadline.has_passed() { Err(StoreError::Expired) } else { Ok(()) }
}

/// Returns a time to live in milliseconds: a century at most, as numbers of Lua are exact up to 2^53.
fn millis(ttl: Duration) -> String {
    ttl.as_millis().min(3_155_760_000_000).to_string()
}

fn exactly<const N: usize>(results: Vec<Value>) -> Result<[Value; N], StoreError> {
    results.try_into().map_err(|_| StoreError::Garbled)
}

fn text(value: Value) -> Result<String, StoreError> {
    parsed(value)
}

fn bytes(value: Value) -> Result<Vec<u8>, StoreError> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        _ => Err(StoreError::Garbled),
    }
}

fn parsed<T: FromRedisValue>(value: Value) -> Result<T, StoreError> {
    from_redis_value(value).map_err(|_| StoreError::Garbled)
}

/// Parses an entry of a stream: its id, and its fields in turn. An entry that was not written by a
/// fleet has no field `e`, and so no content.
fn entry(entry: Value) -> Result<LogEntry, StoreError> {
    let (id, fields): (String, Vec<Value>) = parsed(entry)?;
    let content = match fields.as_slice() {
        [Value::BulkString(field), Value::BulkString(content)] if field == b"e" => content.clone(),
        _ => Vec::new(),
    };
    Ok(LogEntry { id: id.parse().map_err(|_| StoreError::Garbled)?, content })
}
