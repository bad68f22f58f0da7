//! The registers of a single process.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{MAX_REGISTERS, Register, RegisterValues};
use crate::clock::{Clock, Deadline, Micros, Timestamp};
use crate::fleet::OutOfBounds;
use crate::fleet::memory::{FleetJournal, check_deadline};
use crate::store::StoreError;

/// Registers that are recorded together: less than the journal takes at once.
const MAX_RECORDED: usize = 1000;
/// Time between two searches for maps that have expired.
const SWEEP_INTERVAL: Micros = Micros::from_secs(3_600);

/// Registers in the memory of this process. Clones share them.
#[derive(Clone, Debug)]
pub(in crate::fleet) struct MemoryRegisters {
    contents: Arc<Mutex<RegisterContents>>,
    clock: Clock,
    journal: Option<Arc<dyn FleetJournal>>,
}

#[derive(Debug, Default)]
struct RegisterContents {
    maps: HashMap<String, RegisterMap>,
    swept_at: Timestamp,
}

#[derive(Debug)]
struct RegisterMap {
    values: BTreeMap<String, Vec<u8>>,
    expires_at: Timestamp,
}

impl MemoryRegisters {
    pub(in crate::fleet) fn new(clock: Clock) -> Self {
        Self { contents: Arc::default(), clock, journal: None }
    }

    /// Sets the journal. Registers are recorded before they are visible.
    pub(in crate::fleet) fn with_journal(self, journal: Option<Arc<dyn FleetJournal>>) -> Self {
        Self { journal, ..self }
    }

    pub(in crate::fleet) async fn raise(
        &self,
        registers: &[Register],
        ttl: Duration,
        deadline: Deadline,
    ) -> Vec<Result<bool, StoreError>> {
        let mut raised = Vec::new();
        for registers in registers.chunks(MAX_RECORDED) {
            if let Err(error) = self.raise_some(registers, ttl, deadline, &mut raised).await {
                raised.extend(vec![Err(error); registers.len()]);
            }
        }
        raised
    }

    async fn raise_some(
        &self,
        registers: &[Register],
        ttl: Duration,
        deadline: Deadline,
        raised: &mut Vec<Result<bool, StoreError>>,
    ) -> Result<(), StoreError> {
        check_deadline(deadline)?;
        let now = self.clock.now();
        let held = self.held(registers, now);
        let rising = self.rising(registers, now);
        match &self.journal {
            Some(journal) if !rising.is_empty() => {
                let (shared, applied) = (self.clone(), rising.clone());
                let apply = Box::new(move || shared.set(&applied, now, ttl));
                journal.registers(&rising, now + Micros::from(ttl), apply).await?;
            }
            _ => self.set(&rising, now, ttl),
        }
        raised.extend(held.into_iter().map(|held| Ok(held?)));
        Ok(())
    }

    pub(in crate::fleet) fn registers(
        &self,
        maps: &[String],
        deadline: Deadline,
    ) -> Result<Vec<RegisterValues>, StoreError> {
        check_deadline(deadline)?;
        Ok(self.values(maps, self.clock.now()))
    }

    pub(in crate::fleet) async fn remove_registers(
        &self,
        maps: &[String],
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        check_deadline(deadline)?;
        let (registers, removed) = (self.clone(), maps.to_vec());
        let values = registers.values(maps, Timestamp::EPOCH);
        let of_map = |(map, values): (&String, RegisterValues)| {
            values.into_iter().map(|(name, _)| (map.clone(), name)).collect::<Vec<_>>()
        };
        let names: Vec<_> = maps.iter().zip(values).flat_map(of_map).collect();
        let apply = Box::new(move || registers.remove(&removed));
        match &self.journal {
            Some(journal) if !names.is_empty() => journal.remove_registers(&names, apply).await,
            _ => {
                apply();
                Ok(())
            }
        }
    }

    /// Returns for each register whether it has a value, or why it can't be set.
    fn held(&self, registers: &[Register], now: Timestamp) -> Vec<Result<bool, OutOfBounds>> {
        let mut contents = self.lock();
        contents.sweep(now);
        let held = |register: &Register| {
            let Some(map) = contents.live(&register.map, now) else { return Ok(false) };
            let is_there = map.values.contains_key(&register.name);
            let is_full = !is_there && map.values.len() >= MAX_REGISTERS;
            if is_full { Err(OutOfBounds::Registers) } else { Ok(is_there) }
        };
        registers.iter().map(held).collect()
    }

    /// Returns those of the registers that have smaller values, or none, in maps that are not full.
    fn rising(&self, registers: &[Register], now: Timestamp) -> Vec<Register> {
        let contents = self.lock();
        let rises = |register: &&Register| {
            let Some(map) = contents.live(&register.map, now) else { return true };
            match map.values.get(&register.name) {
                Some(held) => *held < register.value,
                None => map.values.len() < MAX_REGISTERS,
            }
        };
        registers.iter().filter(rises).cloned().collect()
    }

    /// Sets registers that have no larger values.
    fn set(&self, registers: &[Register], now: Timestamp, ttl: Duration) {
        let expires_at = now + Micros::from(ttl);
        let mut contents = self.lock();
        for Register { map, name, value } in registers {
            let fresh = || RegisterMap { values: BTreeMap::new(), expires_at };
            let map = contents.maps.entry(map.clone()).or_insert_with(fresh);
            if map.expires_at <= now {
                map.values.clear();
            }
            map.expires_at = expires_at;
            let held = map.values.entry(name.clone()).or_default();
            if *held < *value {
                held.clone_from(value);
            }
        }
    }

    fn values(&self, maps: &[String], now: Timestamp) -> Vec<RegisterValues> {
        let contents = self.lock();
        let values = |map: &String| {
            let values = contents.live(map, now).into_iter().flat_map(|map| &map.values);
            values.map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        maps.iter().map(values).collect()
    }

    fn remove(&self, maps: &[String]) {
        let mut contents = self.lock();
        for map in maps {
            contents.maps.remove(map);
        }
    }

    /// Sets a register that a journal has.
    pub(in crate::fleet) fn restore(&self, register: Register, expires_at: Timestamp) {
        let mut contents = self.lock();
        let fresh = || RegisterMap { values: BTreeMap::new(), expires_at };
        let map = contents.maps.entry(register.map).or_insert_with(fresh);
        map.expires_at = map.expires_at.max(expires_at);
        map.values.insert(register.name, register.value);
    }

    fn lock(&self) -> MutexGuard<'_, RegisterContents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RegisterContents {
    fn live(&self, map: &str, now: Timestamp) -> Option<&RegisterMap> {
        self.maps.get(map).filter(|map| map.expires_at > now)
    }

    fn sweep(&mut self, now: Timestamp) {
        if now < self.swept_at || now.since(self.swept_at) >= SWEEP_INTERVAL {
            self.maps.retain(|_, map| map.expires_at > now);
            self.swept_at = now;
        }
    }
}
