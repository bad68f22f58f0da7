//! One call of a fleet: which server, how many attempts, what its reply means. Whether that server may lose
//! keys without a time to live.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value, cmd};
use tokio::time::{sleep, timeout};

use super::{RedisFleet, check_deadline};
use crate::clock::Deadline;
use crate::fleet::{Catalogue, CatalogueRisks};
use crate::store::redis::batch::query;
use crate::store::redis::codec::call_error::{CallError, RedirectKind};
use crate::store::redis::codec::scripts::Script;
use crate::store::redis::connection::connector::ManagedConnection;
use crate::store::redis::connection::server_info::{ServerInfo, is_not_persistent};
use crate::store::redis::node::Node;
use crate::store::redis::topology::Topology;
use crate::store::{MISSING_PERMISSION, StoreError};

/// Redirects, waits for a slot that is being moved, and reconnects to a new master, together.
const MAX_REPEATS: u32 = 3;
/// Delay before a call is repeated while its slot is being moved.
const SLOT_MOVE_DELAY: Duration = Duration::from_millis(20);

/// One operation of a script on keys of one slot.
pub(super) struct FleetCall<'a> {
    pub(super) topology: &'a Topology,
    pub(super) script: &'static Script,
    pub(super) keys: &'a [String],
    pub(super) slot: u16,
    pub(super) operation: &'static str,
    pub(super) arguments: &'a [&'a [u8]],
}

impl FleetCall<'_> {
    /// Calls until there is a result, or an error after which the call must not be repeated.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of the last attempt, at the deadline at the latest.
    pub(super) async fn run(&self, deadline: Deadline) -> Result<Vec<Value>, StoreError> {
        let mut node = self.topology.node(self.slot, deadline).await?;
        let (mut asking, mut repeats) = (false, MAX_REPEATS);
        loop {
            let error = match self.attempt(&node, asking, deadline).await {
                Ok(results) => return Ok(results),
                Err(error) if repeats == 0 || deadline.has_passed() => {
                    return Err(error.into_error());
                }
                Err(error) => error,
            };
            repeats -= 1;
            asking = false;
            match error {
                CallError::Redirected(redirect) if redirect.slot == self.slot => {
                    node = self.topology.follow(&redirect, deadline).await?;
                    asking = redirect.kind == RedirectKind::Ask;
                }
                CallError::TryAgain => wait_for_slot_move(deadline).await,
                // The connection was dropped; the next one is to the new master.
                CallError::ReadOnly => {}
                error => return Err(error.into_error()),
            }
        }
    }

    async fn attempt(
        &self,
        node: &Arc<Node>,
        asking: bool,
        deadline: Deadline,
    ) -> Result<Vec<Value>, CallError> {
        let (pool, whole) = (node.fleet_pool(), deadline.remaining());
        let connection = timeout(whole, pool.get()).await;
        let Ok(Ok(managed)) = connection else {
            return Err(CallError::Other(StoreError::Unreachable));
        };
        // The connection returns to the pool at once; the reply arrives on a clone.
        let ManagedConnection { mut connection, address, .. } = ManagedConnection::clone(&managed);
        drop(managed);
        let nonce = nonce();
        let sent = self.send(&mut connection, asking, &nonce);
        let result = match timeout(deadline.remaining(), sent).await {
            Ok(reply) => reply
                .map_err(|error| CallError::from_redis(&error, &address))
                .and_then(|reply| parse(reply, &nonce, &self.keys[0])),
            Err(_elapsed) => Err(CallError::Other(StoreError::Timeout(whole))),
        };
        if result.as_ref().is_err_and(breaks_connection) {
            pool.retain(|_, _| false);
        }
        result
    }

    /// Sends the call by the hash of the script, and with its text if the server does not know it.
    async fn send(
        &self,
        connection: &mut MultiplexedConnection,
        asking: bool,
        nonce: &str,
    ) -> RedisResult<Value> {
        let by_hash = self.command("EVALSHA", &self.script.hash, nonce);
        let reply = query_one(connection, asking, by_hash).await;
        if !reply.as_ref().is_err_and(is_unknown_script) {
            return reply;
        }
        let by_text = self.command("EVAL", &self.script.text, nonce);
        query_one(connection, asking, by_text).await
    }

    fn command(&self, name: &str, script: &str, nonce: &str) -> Cmd {
        let mut command = cmd(name);
        command.arg(script).arg(self.keys.len()).arg(self.keys).arg(nonce).arg(self.operation);
        for argument in self.arguments {
            command.arg(argument);
        }
        command
    }
}

/// Returns `true` if the server does not know the script: then nothing was executed.
fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

async fn query_one(
    connection: &mut MultiplexedConnection,
    asking: bool,
    command: Cmd,
) -> RedisResult<Value> {
    let replies = query(connection, vec![(asking, command)]).await;
    replies.into_iter().next().unwrap_or(Ok(Value::Nil))
}

/// Returns the results in a reply to the call with this nonce.
fn parse(reply: Value, nonce: &str, key: &str) -> Result<Vec<Value>, CallError> {
    let garbled = || CallError::Other(StoreError::Garbled);
    let Value::Array(reply) = reply else { return Err(garbled()) };
    let mut values = reply.into_iter();
    if values.next() != Some(Value::BulkString(nonce.as_bytes().to_vec())) {
        return Err(garbled());
    }
    match values.next() {
        Some(Value::BulkString(outcome)) if outcome == b"done" => Ok(values.collect()),
        Some(Value::BulkString(outcome)) if outcome == b"failed" => {
            let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let (command, error) = (values.next(), values.next());
            let (Some(Value::BulkString(command)), Some(Value::BulkString(error))) =
                (command, error)
            else {
                return Err(garbled());
            };
            // Scripts of several keys say which one.
            let key = match values.next() {
                Some(Value::BulkString(key)) => lossy(&key),
                _ => key.to_owned(),
            };
            Err(command_failed(&lossy(&command), &key, &lossy(&error)))
        }
        _ => Err(garbled()),
    }
}

/// Converts the error of a command in the script.
fn command_failed(command: &str, key: &str, error: &str) -> CallError {
    match missing_permission(command, key, error) {
        Some(permission) => CallError::Other(not_permitted(&permission)),
        None => CallError::from_text(error.strip_prefix("ERR ").unwrap_or(error)),
    }
}

fn not_permitted(permission: &str) -> StoreError {
    let text = format!("{MISSING_PERMISSION}{permission}");
    StoreError::Refused { code: "NOPERM".to_owned(), text }
}

/// Returns the error of a command outside of scripts that the user may not run; `None` for other
/// errors.
pub(in crate::store::redis) fn denied(command: &str, error: &str) -> Option<StoreError> {
    // Of keys the error does not say which.
    let permission = missing_permission(command, "", error).filter(|word| word.starts_with('+'))?;
    Some(not_permitted(&permission))
}

/// Returns the permission that a command on a key, or to a channel, lacked; `None` if it failed for
/// another reason.
///
/// The texts are those of Redis 7.0, and of later releases and Valkey.
pub(super) fn missing_permission(command: &str, key: &str, error: &str) -> Option<String> {
    let denied = ["NOPERM", "The user executing the script can't", "ACL failure in script"];
    if !denied.iter().any(|text| error.contains(text)) {
        return None;
    }
    Some(if error.contains(" channel") {
        format!("&{key}")
    } else if error.contains(" key") {
        format!("~{key}")
    } else {
        format!("+{}", command.to_lowercase())
    })
}

fn breaks_connection(error: &CallError) -> bool {
    matches!(
        error,
        CallError::ReadOnly
            | CallError::Other(StoreError::Timeout(_) | StoreError::Lost | StoreError::Garbled)
    )
}

/// Returns a number that is unique among all instances.
fn nonce() -> String {
    static INSTANCE: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one("fleet"));
    static CALLS: AtomicU64 = AtomicU64::new(0);
    format!("fleet.{:x}.{:x}", *INSTANCE, CALLS.fetch_add(1, Ordering::Relaxed))
}

#[expect(clippy::disallowed_methods, reason = "there is no notification of the end of a slot move")]
async fn wait_for_slot_move(deadline: Deadline) {
    sleep(SLOT_MOVE_DELAY.min(deadline.remaining())).await;
}

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
                let policy = info.eviction_policy();
                let policy = policy.filter(|policy| policy.starts_with("allkeys-"));
                let eviction_policy = policy.map(str::to_owned);
                return Ok(CatalogueRisks { eviction_policy, is_not_persistent });
            }
            Ok(Err(_)) => StoreError::Lost,
            Err(_elapsed) => StoreError::Timeout(whole),
        };
        pool.retain(|_, _| false);
        Err(error)
    }
}
