//! Lists overrides: SCAN of one server after the other, and HGETALL of each hash that it finds.
//!
//! A page ends between two steps of SCAN, because a step that is made again may find other keys: it
//! goes on until it has seen so many, and keys come and go. Steps are made smaller until one fits into
//! a page. If the smallest does not, the token names the hashes of it that are listed.
//!
//! A server that has come, gone, restarted or received slots between two pages could be left out, or
//! a part of it. Then the token is refused.

use std::sync::Arc;

use deadpool_redis::redis::{
    FromRedisValue, Pipeline, RedisError, Value, cmd, from_redis_value, pipe,
};
use rmp::decode::{self, Bytes};
use tokio::time::timeout;

use super::RedisStore;
use super::codec::call_error::CallError;
use super::connection::connector::ManagedConnection;
use super::fleet::call::denied;
use super::node::Node;
use crate::clock::{Deadline, Timestamp};
use crate::control::{ControlRecord, KeyGrant, KeyOverride, KeyOverrides, OverridePage};
use crate::rules::Key;
use crate::store::StoreError;

/// Keys of a server that one step looks at, unless more are overrides than a page has.
const KEYS_PER_STEP: usize = 1_000;
/// How many times smaller the next step is.
const SMALLER: usize = 8;
/// Most steps for one page. A page may be empty.
const MAX_STEPS: usize = 50;

/// Place in the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    /// Hash of the servers and their slots.
    layout: u64,
    /// Address of the server.
    server: String,
    /// Which start of the server the cursor of SCAN is of.
    start: Option<u64>,
    /// Cursor of SCAN.
    scan: u64,
    /// Names of hashes that the next step finds and that are listed already.
    listed: Vec<ListedHash>,
}

/// A hash that is listed, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ListedHash {
    name: String,
    /// The last rule that is listed; `None`: all are.
    up_to: Option<String>,
}

impl Cursor {
    /// Parses a cursor: lines, the first with the place in SCAN, each other one with a hash. Encoded
    /// names have no control characters.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.split('\n');
        let mut place = lines.next()?.splitn(4, ' ');
        let hash = |text| u64::from_str_radix(text, 16).ok();
        let layout = hash(place.next()?)?;
        let start = match place.next()? {
            "-" => None,
            start => Some(hash(start)?),
        };
        let (scan, server) = (place.next()?.parse().ok()?, place.next()?.to_owned());
        let listed = lines.map(|line| match line.split_once('\t') {
            None => ListedHash { name: line.to_owned(), up_to: None },
            Some((name, rule)) => {
                ListedHash { name: name.to_owned(), up_to: Some(rule.to_owned()) }
            }
        });
        Some(Self { layout, server, start, scan, listed: listed.collect() })
    }

    fn to_text(&self) -> String {
        let Self { layout, server, start, scan, listed } = self;
        let start = start.map_or_else(|| "-".to_owned(), |start| format!("{start:x}"));
        let mut text = format!("{layout:x} {start} {scan} {server}");
        for ListedHash { name, up_to } in listed {
            text.extend(["\n", name]);
            text.extend(up_to.iter().flat_map(|rule| ["\t", rule]));
        }
        text
    }

    /// Returns `true` if an override is on an earlier page.
    fn has_listed(&self, name: &str, rule: &str) -> bool {
        let of_name = self.listed.iter().find(|hash| hash.name == name);
        of_name.is_some_and(|hash| hash.up_to.as_deref().is_none_or(|last| rule <= last))
    }
}

/// The overrides of one hash.
struct HashOverrides {
    name: String,
    keys: Vec<KeyOverrides>,
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
        let begun = match cursor {
            "" => None,
            text => Some(Cursor::parse(text).ok_or(StoreError::Cursor)?),
        };
        // Waits for the first map of a cluster.
        self.topology.node(0, deadline.or_within(self.timeout())).await?;
        let (layout, nodes) = self.topology.layout();
        let mut nodes: Vec<_> =
            nodes.into_iter().map(|node| (node.status().address, node)).collect();
        nodes.sort_unstable_by(|(left, _), (right, _)| left.cmp(right));
        let first = match &begun {
            None => 0,
            Some(begun) => {
                let known = nodes.iter().position(|(server, _)| *server == begun.server);
                known.filter(|_| begun.layout == layout).ok_or(StoreError::ServersChanged)?
            }
        };
        let mut cursor = begun.unwrap_or_default();
        let (mut page, mut steps) = (OverridePage::default(), MAX_STEPS);
        for (server, node) in nodes.into_iter().skip(first) {
            if server != cursor.server {
                cursor = Cursor { layout, server, ..Cursor::default() };
            }
            if !self.fill(&mut page, count.max(1), &mut cursor, &node, &mut steps, deadline).await?
            {
                page.next = Some(cursor.to_text());
                break;
            }
        }
        if self.topology.layout().0 != layout {
            return Err(StoreError::ServersChanged);
        }
        Ok(page)
    }

    /// Adds the overrides of one server to a page. Returns `false` if some are left, from the cursor
    /// on.
    async fn fill(
        &self,
        page: &mut OverridePage,
        count: usize,
        cursor: &mut Cursor,
        node: &Arc<Node>,
        steps: &mut usize,
        deadline: Deadline,
    ) -> Result<bool, StoreError> {
        let mut step = KEYS_PER_STEP;
        while *steps > 0 && page.keys.len() < count {
            *steps -= 1;
            let space = count - page.keys.len();
            let (next, names) = self.scan(node, cursor, step, deadline).await?;
            let mut found = Vec::new();
            if names.len() <= space || step == 1 {
                found = self.read(node, names, cursor, deadline).await?;
                let keys =
                    found.iter().map(|found: &HashOverrides| found.keys.len()).sum::<usize>();
                if keys <= space {
                    page.keys.extend(found.into_iter().flat_map(|found| found.keys));
                    (cursor.scan, cursor.listed) = (next, Vec::new());
                    if next == 0 {
                        return Ok(true);
                    }
                    continue;
                }
            }
            if !page.keys.is_empty() {
                return Ok(false);
            }
            if step == 1 {
                add_some(page, count, cursor, found);
                return Ok(false);
            }
            step = (step / SMALLER).max(1);
        }
        Ok(false)
    }

    /// Returns the next cursor of SCAN, and the names of hashes that one step finds.
    async fn scan(
        &self,
        node: &Arc<Node>,
        cursor: &mut Cursor,
        step: usize,
        deadline: Deadline,
    ) -> Result<(u64, Vec<String>), StoreError> {
        let mut scans = pipe();
        let (start, rest) = self.format.control_pattern();
        let pattern = escaped(&start) + &rest;
        let mut command = cmd("SCAN");
        command.arg(cursor.scan).arg("MATCH").arg(pattern).arg("COUNT").arg(step);
        scans.add_command(command);
        let (start, mut replies) = call(node, "SCAN", &scans, deadline).await?;
        if *cursor.start.get_or_insert(start) != start {
            return Err(StoreError::ServersChanged);
        }
        let reply = replies.pop().unwrap_or(Value::Nil);
        let (next, mut names): (u64, Vec<String>) = read(reply)?;
        names.retain(|name| self.format.controlled(name).is_some());
        names.sort_unstable();
        names.dedup();
        Ok((next, names))
    }

    /// Returns the overrides in hashes, but for those that are listed, in the order of their rules.
    async fn read(
        &self,
        node: &Arc<Node>,
        names: Vec<String>,
        cursor: &Cursor,
        deadline: Deadline,
    ) -> Result<Vec<HashOverrides>, StoreError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut hashes = pipe();
        for name in &names {
            hashes.cmd("HGETALL").arg(name);
        }
        let time = node.clock.estimate();
        let (_, replies) = call(node, "HGETALL", &hashes, deadline).await?;
        let mut all = Vec::new();
        for (name, reply) in names.into_iter().zip(replies) {
            let Some((project, id)) = self.format.controlled(&name) else { continue };
            let fields: Vec<(Vec<u8>, Vec<u8>)> = read(reply)?;
            let found = records(project, id, &fields, time);
            let mut keys: Vec<_> =
                found.filter(|found| !cursor.has_listed(&name, found.key.rule())).collect();
            keys.sort_unstable_by(|left, right| left.key.rule().cmp(right.key.rule()));
            all.push(HashOverrides { name, keys });
        }
        Ok(all)
    }
}

/// Fills a page with a part of what a step has found. The next page makes the step again.
fn add_some(page: &mut OverridePage, count: usize, cursor: &mut Cursor, found: Vec<HashOverrides>) {
    for HashOverrides { name, keys } in found {
        let space = count - page.keys.len();
        let is_whole = keys.len() <= space;
        let last = keys.get(space.wrapping_sub(1)).map(|listed| listed.key.rule().to_owned());
        if !is_whole && last.is_none() {
            return;
        }
        page.keys.extend(keys.into_iter().take(space));
        cursor.listed.retain(|hash| hash.name != name);
        cursor.listed.push(ListedHash { name, up_to: last.filter(|_| !is_whole) });
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

/// Returns the records of a hash that have not ended: of a project and an id. A record that can't be
/// read is left out.
pub(super) fn records<'f>(
    project: &'f str,
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
            let grant = match u64::try_from(units) {
                Ok(units) => KeyGrant::Limited { units, burst: u64::try_from(burst).ok()? },
                Err(_) => KeyGrant::Unlimited,
            };
            record.set(KeyOverride { grant, ends_at, note: note("grant") });
        }
        record.drop_ended(time);
        let key = Key::from_encoded_in(project, rule, id);
        (!record.is_empty()).then_some(KeyOverrides { key, record })
    })
}

fn end(micros: i64) -> Option<Timestamp> {
    u64::try_from(micros).ok().filter(|micros| *micros > 0).map(Timestamp::from_micros)
}

/// Sends commands on the connection of the fleet, which is not that of decisions. Returns which start
/// of the server has replied, and its replies.
async fn call(
    node: &Node,
    command: &'static str,
    commands: &Pipeline,
    deadline: Deadline,
) -> Result<(u64, Vec<Value>), StoreError> {
    let whole = deadline.remaining();
    let connection = timeout(whole, node.fleet_pool().get()).await;
    let Ok(Ok(managed)) = connection else { return Err(StoreError::Unreachable) };
    let ManagedConnection { mut connection, address, start, .. } =
        ManagedConnection::clone(&managed);
    drop(managed);
    let sent = connection.send_packed_commands(commands, 0, commands.len());
    let convert = |error: RedisError| {
        let text = [error.code().unwrap_or_default(), error.detail().unwrap_or_default()].join(" ");
        let denied = denied(command, &text);
        denied.unwrap_or_else(|| CallError::from_redis(&error, &address).into_error())
    };
    let replies = match timeout(deadline.remaining(), sent).await {
        Ok(replies) => replies.and_then(|replies| {
            replies.into_iter().map(Value::extract_error).collect::<Result<Vec<_>, _>>()
        }),
        Err(_elapsed) => {
            node.fleet_pool().retain(|_, _| false);
            return Err(StoreError::Timeout(whole));
        }
    };
    let replies = replies.map_err(convert);
    if matches!(replies, Err(StoreError::Lost | StoreError::Garbled)) {
        node.fleet_pool().retain(|_, _| false);
    }
    Ok((start, replies?))
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
        let hash = |name: &str, up_to: Option<&str>| ListedHash {
            name: name.to_owned(),
            up_to: up_to.map(str::to_owned),
        };
        for listed in
            [vec![], vec![hash("a b:c d", None)], vec![hash("a", None), hash("", Some("pay"))]]
        {
            let (server, layout) = ("/tmp/a b.sock".to_owned(), u64::MAX);
            for start in [None, Some(7)] {
                let (server, listed) = (server.clone(), listed.clone());
                let cursor = Cursor { layout, server, start, scan: u64::MAX, listed };
                assert_eq!(Cursor::parse(&cursor.to_text()), Some(cursor));
            }
        }
        for text in ["", " ", "h:1", "0 0 x h:1", "0 0 -1 h:1", "x 0 1 h:1", "0 0 1"] {
            assert_eq!(Cursor::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_prefix_matches_itself_alone() {
        assert_eq!(escaped("a*b[c]?\\"), "a\\*b\\[c\\]\\?\\\\");
    }
}
