//! Lists overrides: SCAN of one server after the other, and HGETALL of each hash that it finds.
//!
//! The cursor of a page names the server, the cursor of SCAN, and the last key that was listed of
//! what this step of SCAN finds. A server that takes the place of another one between two pages is
//! listed from its beginning if its address comes later, and left out otherwise.

use std::sync::Arc;

use deadpool_redis::redis::{FromRedisValue, RedisError, Value, cmd, from_redis_value, pipe};
use rmp::decode::{self, Bytes};
use tokio::time::timeout;

use super::RedisStore;
use super::codec::call_error::CallError;
use super::connection::connector::ManagedConnection;
use super::fleet::denied;
use super::node::Node;
use crate::clock::{Deadline, Timestamp};
use crate::control::{ControlRecord, KeyGrant, KeyOverride, KeyOverrides, OverridePage};
use crate::rules::Key;
use crate::store::StoreError;

/// Keys of a server that one step looks at.
const KEYS_PER_STEP: usize = 1_000;
/// Most steps for one page. A page may be empty.
const MAX_STEPS: usize = 50;

/// Place in the list.
#[derive(Clone, Debug, Default)]
struct Cursor {
    /// Address of the server. Empty: the first one.
    server: String,
    /// Cursor of SCAN.
    scan: u64,
    /// Last key that is listed of this step; empty for none.
    after: String,
}

impl Cursor {
    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::default());
        }
        let mut parts = text.splitn(3, ' ');
        let (server, scan, after) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self { server: server.into(), scan: scan.parse().ok()?, after: after.into() })
    }

    fn to_text(&self) -> String {
        format!("{} {} {}", self.server, self.scan, self.after)
    }
}

impl RedisStore {
    /// Lists overrides. See [`crate::store::Store::list_overrides`].
    ///
    /// # Errors
    ///
    /// As [`crate::store::Store::list_overrides`].
    pub async fn list_overrides(
        &self,
        cursor: &str,
        count: usize,
        deadline: Deadline,
    ) -> Result<OverridePage, StoreError> {
        let mut cursor = Cursor::parse(cursor).ok_or(StoreError::Cursor)?;
        // Waits for the first map of a cluster.
        self.topology.node(0, deadline.or_within(self.timeout())).await?;
        let mut nodes = self.topology.nodes();
        nodes.sort_by_cached_key(|node| node.status().address);
        let mut page = OverridePage::default();
        let mut steps = 0;
        for node in nodes {
            let server = node.status().address;
            if server < cursor.server {
                continue;
            }
            if server != cursor.server {
                cursor = Cursor { server, ..Cursor::default() };
            }
            loop {
                if steps == MAX_STEPS {
                    page.next = Some(cursor.to_text());
                    return Ok(page);
                }
                steps += 1;
                let (next, mut found) = self.step(&node, cursor.scan, deadline).await?;
                let text =
                    |one: &KeyOverrides| String::from_utf8_lossy(one.key.as_bytes()).into_owned();
                found.retain(|one| cursor.after.is_empty() || text(one) > cursor.after);
                let space = count.max(1) - page.keys.len();
                let is_whole = found.len() <= space;
                page.keys.extend(found.into_iter().take(space));
                if !is_whole {
                    cursor.after = page.keys.last().map(text).unwrap_or_default();
                    page.next = Some(cursor.to_text());
                    return Ok(page);
                }
                cursor.scan = next;
                cursor.after = String::new();
                if next == 0 {
                    break;
                }
            }
        }
        Ok(page)
    }

    /// Returns the overrides that one step of SCAN finds, by key, and the next cursor.
    async fn step(
        &self,
        node: &Arc<Node>,
        scan: u64,
        deadline: Deadline,
    ) -> Result<(u64, Vec<KeyOverrides>), StoreError> {
        let mut scans = pipe();
        let pattern = format!("{}*", escaped(&self.format.control_prefix()));
        let mut command = cmd("SCAN");
        command.arg(scan).arg("MATCH").arg(pattern).arg("COUNT").arg(KEYS_PER_STEP);
        scans.add_command(command);
        let reply = call(node, "SCAN", &scans, deadline).await?.pop().unwrap_or(Value::Nil);
        let (next, mut names): (u64, Vec<String>) = read(reply)?;
        names.sort_unstable();
        names.dedup();
        if names.is_empty() {
            return Ok((next, Vec::new()));
        }
        let mut hashes = pipe();
        for name in &names {
            hashes.cmd("HGETALL").arg(name);
        }
        let time = node.clock.estimate();
        let mut found = Vec::new();
        for (name, reply) in names.iter().zip(call(node, "HGETALL", &hashes, deadline).await?) {
            let Some(id) = self.format.controlled_id(name) else { continue };
            let fields: Vec<(Vec<u8>, Vec<u8>)> = read(reply)?;
            found.extend(records(id, &fields, time));
        }
        found.sort_by(|one, other| one.key.as_bytes().cmp(other.key.as_bytes()));
        Ok((next, found))
    }
}

/// Returns the permission that the user of a server lacks to list overrides, as a word of
/// `ACL SETUSER`.
///
/// # Errors
///
/// [`StoreError`] if the server does not answer before the deadline.
pub(super) async fn missing_permission(
    node: &Node,
    deadline: Deadline,
) -> Result<Option<String>, StoreError> {
    let mut scan = pipe();
    scan.cmd("SCAN").arg(0).arg("COUNT").arg(1);
    match call(node, "SCAN", &scan, deadline).await {
        Ok(_) => Ok(None),
        Err(error) => error.missing_permission().map(|word| Some(word.to_owned())).ok_or(error),
    }
}

/// Returns the records of a hash that have not ended. A record that can't be read is left out.
fn records<'f>(
    id: &'f str,
    fields: &'f [(Vec<u8>, Vec<u8>)],
    time: Timestamp,
) -> impl Iterator<Item = KeyOverrides> + 'f {
    let field = |name: &str| {
        fields.iter().find(|(field, _)| field == name.as_bytes()).map(|(_, value)| value.as_slice())
    };
    fields.iter().filter_map(move |(name, value)| {
        let rule = str::from_utf8(name).ok().filter(|name| !name.contains(':'))?;
        let note = |part: &str| field(&format!("{rule}:{part}")).unwrap_or_default().into();
        let mut values = Bytes::new(value);
        let mut number = || decode::read_int::<i64, _>(&mut values).ok();
        let (ban_ends_at, grant_ends_at) = (number()?, number()?);
        let (units, burst) = (number()?, number()?);
        let mut record = ControlRecord::default();
        if let Some(ends_at) = end(ban_ends_at) {
            record.set(KeyOverride { grant: KeyGrant::Banned, ends_at, note: note("ban") });
        }
        if let Some(ends_at) = end(grant_ends_at) {
            let grant = match u32::try_from(units) {
                Ok(units) => KeyGrant::Limited { units, burst: u32::try_from(burst).ok()? },
                Err(_) => KeyGrant::Unlimited,
            };
            record.set(KeyOverride { grant, ends_at, note: note("grant") });
        }
        record.drop_ended(time);
        let key = Key::from_encoded(rule, id);
        (!record.is_empty()).then_some(KeyOverrides { key, record })
    })
}

fn end(micros: i64) -> Option<Timestamp> {
    u64::try_from(micros).ok().filter(|micros| *micros > 0).map(Timestamp::from_micros)
}

/// Sends commands of this name on the connection of the fleet, which is not that of decisions.
async fn call(
    node: &Node,
    command: &str,
    commands: &deadpool_redis::redis::Pipeline,
    deadline: Deadline,
) -> Result<Vec<Value>, StoreError> {
    let whole = deadline.remaining();
    let connection = timeout(whole, node.fleet_pool().get()).await;
    let Ok(Ok(managed)) = connection else { return Err(StoreError::Unreachable) };
    let ManagedConnection { mut connection, address, .. } = ManagedConnection::clone(&managed);
    drop(managed);
    let sent = connection.send_packed_commands(commands, 0, commands.len());
    let replies = timeout(deadline.remaining(), sent).await;
    let replies = replies.map_err(|_elapsed| StoreError::Timeout(whole))?;
    let converted = |error: RedisError| {
        let code = error.code().unwrap_or_default();
        denied(command, &format!("{code} {}", error.detail().unwrap_or_default()))
            .unwrap_or_else(|| CallError::from_redis(&error, &address).into_error())
    };
    let replies = replies.map_err(converted)?.into_iter().map(Value::extract_error);
    replies.map(|reply| reply.map_err(converted)).collect()
}

fn read<T: FromRedisValue>(reply: Value) -> Result<T, StoreError> {
    from_redis_value(reply).map_err(|_| StoreError::Garbled)
}

/// Returns a text without a meaning in patterns.
fn escaped(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_as_text() {
        let cursor =
            Cursor { server: "h:1".to_owned(), scan: u64::MAX, after: "a b:c d".to_owned() };
        let read = Cursor::parse(&cursor.to_text()).expect("a cursor");
        assert_eq!(
            (read.server, read.scan, read.after),
            (cursor.server, cursor.scan, cursor.after)
        );
        for text in ["h:1", "h:1 x y", "h:1 -1 ", " "] {
            assert!(Cursor::parse(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn a_prefix_matches_itself_alone() {
        assert_eq!(escaped("a*b[c]?\\"), "a\\*b\\[c\\]\\?\\\\");
    }
}
