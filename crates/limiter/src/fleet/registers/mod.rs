//! Registers: named values of maps, each of which only grows. Many of them are written in one call,
//! and a call that is repeated changes nothing.
//!
//! A map of registers is not one of [`Fleet::put`], though their names are of one kind.

mod memory;

pub(super) use memory::MemoryRegisters;

use std::time::Duration;

use super::{Fleet, Kind, OutOfBounds, check_name};
use crate::clock::Deadline;
use crate::store::StoreError;

/// Most registers of a map.
pub const MAX_REGISTERS: usize = 10_000;
/// Most bytes of the value of a register.
pub const MAX_REGISTER_LEN: usize = 256;

/// A named value of a map. Of two values of a name the larger one stays, compared by bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Register {
    /// The map.
    pub map: String,
    /// Name within the map.
    pub name: String,
    /// The value: up to [`MAX_REGISTER_LEN`] bytes.
    pub value: Vec<u8>,
}

/// The registers of a map by name.
pub type RegisterValues = Vec<(String, Vec<u8>)>;

#[cfg_attr(
    not(feature = "redis"),
    expect(clippy::unused_async, reason = "Redis is waited for, memory is not")
)]
impl Fleet {
    /// Sets each register, unless it has a larger value. The maps are then kept for `ttl` (at least
    /// 1 ms). Returns for each register whether it had a value.
    ///
    /// # Errors
    ///
    /// For each register by itself: [`StoreError`] if it was not set, or possibly set. It may be set
    /// again after any error. [`OutOfBounds::Registers`] if its map is full.
    pub async fn raise(
        &self,
        registers: &[Register],
        ttl: Duration,
        deadline: Deadline,
    ) -> Vec<Result<bool, StoreError>> {
        if let Some(error) = registers.iter().find_map(|register| check(register).err()) {
            return vec![Err(error.into()); registers.len()];
        }
        let ttl = ttl.max(Duration::from_millis(1));
        match &self.0 {
            Kind::Memory(fleet) => fleet.registers().raise(registers, ttl, deadline).await,
            #[cfg(feature = "redis")]
            Kind::Redis(fleet) => fleet.raise(registers, ttl, deadline).await,
        }
    }

    /// Returns the registers of each map, in no order.
    ///
    /// # Errors
    ///
    /// As [`Fleet::read`].
    pub async fn registers(
        &self,
        maps: &[String],
        deadline: Deadline,
    ) -> Result<Vec<RegisterValues>, StoreError> {
        maps.iter().try_for_each(|map| check_name(map))?;
        match &self.0 {
            Kind::Memory(fleet) => fleet.registers().registers(maps, deadline),
            #[cfg(feature = "redis")]
            Kind::Redis(fleet) => fleet.registers(maps, deadline).await,
        }
    }

    /// Removes maps of registers.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if some are possibly not removed. They may be removed again.
    pub async fn remove_registers(
        &self,
        maps: &[String],
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        maps.iter().try_for_each(|map| check_name(map))?;
        match &self.0 {
            Kind::Memory(fleet) => fleet.registers().remove_registers(maps, deadline).await,
            #[cfg(feature = "redis")]
            Kind::Redis(fleet) => fleet.remove_registers(maps, deadline).await,
        }
    }
}

fn check(register: &Register) -> Result<(), OutOfBounds> {
    check_name(&register.map)?;
    check_name(&register.name)?;
    let is_valid = register.value.len() <= MAX_REGISTER_LEN;
    if is_valid { Ok(()) } else { Err(OutOfBounds::Register) }
}
