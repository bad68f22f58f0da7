//! Registers in Redis: many keys of one slot in one script (`lua/registers.lua`).

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use deadpool_redis::redis::Value;
use futures_util::future::join_all;

use super::call::FleetCall;
use super::{RedisFleet, bytes, check_deadline, exactly, millis, parsed, text};
use crate::clock::Deadline;
use crate::fleet::{MAX_REGISTERS, OutOfBounds, Register, RegisterValues};
use crate::store::StoreError;
use crate::store::redis::codec::scripts::Script;

static SCRIPT: LazyLock<Script> =
    LazyLock::new(|| Script::from_text(include_str!("../../../../lua/registers.lua")));
/// Most keys of a call: about a tenth of a millisecond of Redis' time.
const KEYS_PER_CALL: usize = 50;
/// Calls at the same time. Decisions wait behind them.
const CONCURRENT_CALLS: usize = 4;
/// Registers of a map that one call reads, about. Small maps are read whole.
const VALUES_PER_PAGE: &str = "500";

/// Keys of one slot, by their positions in a list of maps.
struct KeyGroup {
    slot: u16,
    positions: Vec<usize>,
    keys: Vec<String>,
}

impl RedisFleet {
    pub(crate) async fn raise(
        &self,
        registers: &[Register],
        ttl: Duration,
        deadline: Deadline,
    ) -> Vec<Result<bool, StoreError>> {
        let mut raised = vec![Err(StoreError::Expired); registers.len()];
        let ttl = millis(ttl);
        let groups = self.groups(registers.iter().map(|register| register.map.as_str()));
        for groups in groups.chunks(CONCURRENT_CALLS) {
            let calls =
                groups.iter().map(|group| self.raise_group(group, registers, &ttl, deadline));
            for (group, results) in groups.iter().zip(join_all(calls).await) {
                for (at, position) in group.positions.iter().enumerate() {
                    raised[*position] = match &results {
                        Ok(results) => results[at].clone(),
                        Err(error) => Err(error.clone()),
                    };
                }
            }
        }
        raised
    }

    async fn raise_group(
        &self,
        group: &KeyGroup,
        registers: &[Register],
        ttl: &str,
        deadline: Deadline,
    ) -> Result<Vec<Result<bool, StoreError>>, StoreError> {
        let most = MAX_REGISTERS.to_string();
        let mut arguments = vec![ttl.as_bytes(), most.as_bytes()];
        for position in &group.positions {
            let Register { name, value, .. } = &registers[*position];
            arguments.extend([name.as_bytes(), value]);
        }
        let results = self.call_group(group, "raise", &arguments, deadline).await?;
        let result = |result| match result {
            Value::Int(-1) => Ok(Err(OutOfBounds::Registers.into())),
            Value::Int(held) => Ok(Ok(held == 1)),
            _ => Err(StoreError::Garbled),
        };
        results.into_iter().map(result).collect()
    }

    pub(crate) async fn registers(
        &self,
        maps: &[String],
        deadline: Deadline,
    ) -> Result<Vec<RegisterValues>, StoreError> {
        let mut values = vec![RegisterValues::new(); maps.len()];
        let groups = self.groups(maps.iter().map(String::as_str));
        for groups in groups.chunks(CONCURRENT_CALLS) {
            let calls = groups.iter().map(|group| self.read_group(group, deadline));
            for (group, read) in groups.iter().zip(join_all(calls).await) {
                for (position, read) in group.positions.iter().zip(read?) {
                    values[*position] = read;
                }
            }
        }
        Ok(values)
    }

    async fn read_group(
        &self,
        group: &KeyGroup,
        deadline: Deadline,
    ) -> Result<Vec<RegisterValues>, StoreError> {
        let arguments = [b"0", VALUES_PER_PAGE.as_bytes()];
        let pages = self.call_group(group, "page", &arguments, deadline).await?;
        let mut values = Vec::new();
        for (key, page) in group.keys.iter().zip(pages) {
            let (mut cursor, mut read) = parse_page(page)?;
            let single = KeyGroup { slot: group.slot, positions: vec![0], keys: vec![key.clone()] };
            while cursor != b"0" {
                let arguments = [cursor.as_slice(), VALUES_PER_PAGE.as_bytes()];
                let page = self.call_group(&single, "page", &arguments, deadline).await?;
                let [page] = exactly(page)?;
                let more;
                (cursor, more) = parse_page(page)?;
                read.extend(more);
            }
            // A page may repeat values of the pages before.
            read.sort_unstable();
            read.dedup_by(|next, last| {
                next.0 == last.0 && {
                    last.1.clone_from(&next.1);
                    true
                }
            });
            values.push(read);
        }
        Ok(values)
    }

    pub(crate) async fn remove_registers(
        &self,
        maps: &[String],
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let groups = self.groups(maps.iter().map(String::as_str));
        for groups in groups.chunks(CONCURRENT_CALLS) {
            let calls = groups.iter().map(|group| self.call_group(group, "remove", &[], deadline));
            join_all(calls).await.into_iter().try_for_each(|removed| removed.map(drop))?;
        }
        Ok(())
    }

    /// Groups maps by slot.
    fn groups<'a>(&self, maps: impl Iterator<Item = &'a str>) -> Vec<KeyGroup> {
        let keyed = maps.enumerate().map(|(position, map)| {
            let key = self.format.fleet_key(map);
            (self.format.fleet_slot(&key), position, key)
        });
        let mut keyed: Vec<_> = keyed.collect();
        keyed.sort_unstable();
        let of_slots = keyed.chunk_by(|left, right| left.0 == right.0);
        let groups = of_slots.flat_map(|of_slot| of_slot.chunks(KEYS_PER_CALL));
        let group = |group: &[(u16, usize, String)]| KeyGroup {
            slot: group[0].0,
            positions: group.iter().map(|(_, position, _)| *position).collect(),
            keys: group.iter().map(|(_, _, key)| key.clone()).collect(),
        };
        groups.map(group).collect()
    }

    /// Returns a result for each key.
    async fn call_group(
        &self,
        group: &KeyGroup,
        operation: &'static str,
        arguments: &[&[u8]],
        deadline: Deadline,
    ) -> Result<Vec<Value>, StoreError> {
        check_deadline(deadline)?;
        let topology: &Arc<_> = &self.topology;
        let (script, keys, slot) = (&SCRIPT, &group.keys, group.slot);
        let call = FleetCall { topology, script, keys, slot, operation, arguments };
        // Boxed because it is large, and rare.
        let results = Box::pin(call.run(deadline)).await?;
        if results.len() == group.keys.len() { Ok(results) } else { Err(StoreError::Garbled) }
    }
}

/// Returns the cursor of the next page, and the values of this one.
fn parse_page(page: Value) -> Result<(Vec<u8>, RegisterValues), StoreError> {
    let (cursor, fields): (Value, Vec<Value>) = parsed(page)?;
    let mut values = RegisterValues::new();
    let mut fields = fields.into_iter();
    while let (Some(name), Some(value)) = (fields.next(), fields.next()) {
        values.push((text(name)?, bytes(value)?));
    }
    Ok((bytes(cursor)?, values))
}
