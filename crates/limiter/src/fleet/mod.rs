//! What instances of a service share beside decisions: logs, named values, messages, a secret.
//!
//! A [`Fleet`] lies where the store lies, but decisions and its calls never wait for each other: it
//! has connections of its own, which are opened on first use. Its calls are not batched with
//! decisions, and a failure of one neither opens a circuit breaker nor closes a connection of
//! decisions.
//!
//! | store | the fleet is |
//! | --- | --- |
//! | memory, custom | this process |
//! | Redis | every process with the same server and key prefix |
//!
//! The fleet knows no meaning: entries, values and messages are bytes, and everything has a bound.
//!
//! ```
//! use std::time::Duration;
//!
//! use rlaas_limiter::clock::Deadline;
//! use rlaas_limiter::fleet::{Fleet, LogRange};
//! # use rlaas_limiter::Limiter;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = Limiter::builder().build()?;
//! let fleet = Fleet::new(limiter.store());
//! let deadline = Deadline::within(Duration::from_secs(1));
//! let id = fleet.append("audit", b"alice was reset", 1_000, deadline).await?;
//! let newest = fleet.read("audit", LogRange::default(), 10, deadline).await?;
//! assert_eq!(newest[0].id, id);
//! # Ok(())
//! # }
//! ```

mod capped_log;
mod catalogue;
#[cfg(feature = "journal")]
mod journal;
mod log;
mod memory;
mod registers;
mod subscription;

pub use capped_log::ProjectEntryId;
#[cfg(feature = "journal")]
pub(crate) use catalogue::CONFIRMED;
#[cfg(feature = "redis")]
pub(crate) use catalogue::HistoryPiece;
pub use catalogue::{
    COUNTED_PREFIX, Catalogue, CatalogueBounds, CatalogueHead, CatalogueId, CatalogueRelation,
    CatalogueRisks, CatalogueWrite, ChangedWhileRead, Document, DocumentChange, FieldTooLong,
    HistoryEntry, HistoryReader, InvalidCatalogueId, Lineage, LocalCopy, LocalCopyAge,
    LocalCopyChanges, MAX_CHANGES, MAX_ENTRY_LEN, MAX_FIELD_LEN, MAX_HISTORY, MAX_REMOVED,
    MAX_REVISION_IDS, WriteOutcome,
};
#[cfg(feature = "redis")]
pub use catalogue::{
    CatalogueLook, CatalogueMark, CatalogueStatus, CatalogueSwitch, EndedPage, RestoreStep,
    SharedCatalogue, StagedCatalogue,
};
pub use log::{EntryId, InvalidEntryId, LogEntry, LogRange, NewEntry, ProjectLog};
pub use memory::{FleetJournal, MemoryFleet, OnRecorded};
pub use registers::{MAX_REGISTER_LEN, MAX_REGISTERS, Register, RegisterValues};
pub use subscription::{FleetEvent, Subscription};

#[cfg(feature = "journal")]
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

#[cfg(feature = "redis")]
use self::subscription::Source;
use crate::clock::{Clock, Deadline, Timestamp};
#[cfg(feature = "redis")]
use crate::store::RedisFleet;
use crate::store::{Fate, Store, StoreError};

/// Length of a secret in bytes.
pub const SECRET_LEN: usize = 32;
/// Most bytes of a name: of a log, a map, a value of a map, a topic or a secret.
pub const MAX_NAME_LEN: usize = 1024;
/// Most bytes of an entry of a log, a value of a map, or a message.
pub const MAX_VALUE_LEN: usize = 64 * 1024;
/// Most values of a map.
pub const MAX_VALUES: usize = 1024;
/// Most marks of entries in memory: 50 MB.
const MAX_MARKS: usize = 500_000;
/// Most entries that one call reads.
pub const MAX_READ: usize = 1000;

/// Logs, named values, messages and secrets of a fleet. Clones share them.
///
/// Names may be any text of 1 to [`MAX_NAME_LEN`] bytes. With Redis, a name is the rest of a key
/// after the prefix, so it must not be that of a rule's state, such as `rate_limit:…` or `rule:…`.
#[derive(Clone, Debug)]
pub struct Fleet(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Memory(MemoryFleet),
    #[cfg(feature = "redis")]
    Redis(RedisFleet),
}

/// A value of a map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedValue {
    /// The name.
    pub name: String,
    /// The value.
    pub value: Vec<u8>,
    /// Time until it expires, by the clock of the store.
    pub expires_in: Duration,
}

/// Reason why a call of a fleet was refused, as the source of a [`StoreError::Custom`].
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum OutOfBounds {
    /// A name has a wrong length.
    #[error("a name must be 1 to {MAX_NAME_LEN} bytes")]
    Name,
    /// An entry, a value or a message is too long.
    #[error("an entry, value or message must be at most {MAX_VALUE_LEN} bytes")]
    Value,
    /// The value of a register is too long.
    #[error("the value of a register must be at most {MAX_REGISTER_LEN} bytes")]
    Register,
    /// A map of registers is full.
    #[error("a map has at most {MAX_REGISTERS} registers")]
    Registers,
    /// A message is empty.
    #[error("a message must not be empty")]
    EmptyMessage,
    /// A map is full of values that have not expired.
    #[error("a map has at most {MAX_VALUES} values")]
    Values,
    /// Memory has as many marks of entries as it keeps.
    #[error("memory has at most {MAX_MARKS} marks of entries")]
    Marks,
}

impl From<OutOfBounds> for StoreError {
    fn from(error: OutOfBounds) -> Self {
        Self::custom(Fate::NotExecuted, error)
    }
}

#[cfg_attr(
    not(feature = "redis"),
    expect(clippy::unused_async, reason = "Redis is waited for, memory is not")
)]
impl Fleet {
    /// Creates the fleet of a store. Makes no connection.
    ///
    /// With a journal of the memory store, logs and secrets outlive the process. For the memory
    /// store and for custom stores each call makes a fleet of its own: make one, and
    /// clone it.
    pub fn new(store: &Store) -> Self {
        match store {
            Store::Memory(store) => {
                let fleet = MemoryFleet::new(store.clock());
                #[cfg(feature = "journal")]
                if let Some(journal) = store.journal() {
                    journal::restore(&fleet, journal);
                    return fleet.with_journal(Arc::new(journal.clone())).into();
                }
                fleet.into()
            }
            #[cfg(feature = "redis")]
            Store::Redis(store) => Self(Kind::Redis(store.fleet())),
            Store::Custom(_) => MemoryFleet::new(Clock::default()).into(),
        }
    }

    /// Returns the catalogue that the fleet shares.
    pub fn catalogue(&self) -> Catalogue {
        Catalogue(match &self.0 {
            Kind::Memory(fleet) => catalogue::CatalogueBackend::Memory(fleet.catalogue()),
            #[cfg(feature = "redis")]
            Kind::Redis(fleet) => catalogue::CatalogueBackend::Redis(fleet.clone()),
        })
    }

    /// Returns `true` if other processes are part of the fleet.
    pub fn is_shared(&self) -> bool {
        match &self.0 {
            Kind::Memory(_) => false,
            #[cfg(feature = "redis")]
            Kind::Redis(_) => true,
        }
    }

    /// Appends an entry of up to [`MAX_VALUE_LEN`] bytes to a log. If the log then has more than
    /// `max_entries` (at least 1), the oldest are removed; Redis may keep up to 100 more. Memory
    /// also keeps at most 64 MiB of a log.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the entry was not appended, or possibly appended:
    /// [`StoreError::is_ambiguous`].
    pub async fn append(
        &self,
        log: &str,
        entry: &[u8],
        max_entries: u64,
        deadline: Deadline,
    ) -> Result<EntryId, StoreError> {
        let entry = NewEntry { content: entry, max_entries, max_project_entries: 0, ttl: None };
        self.append_of_project(ProjectLog { log, project: "" }, entry, deadline).await
    }

    /// Appends an entry of a project, or of none, to a log.
    ///
    /// In Redis the project has a log of its own beside that of all, both are written in one step,
    /// and each loses its oldest entries. In memory the project with most entries loses its oldest
    /// ones: while it has more than `max_project_entries` if the log has more than `max_entries`, and
    /// always if the log has more than 64 MiB.
    ///
    /// # Errors
    ///
    /// As [`Fleet::append`].
    pub async fn append_of_project(
        &self,
        log: ProjectLog<'_>,
        entry: NewEntry<'_>,
        deadline: Deadline,
    ) -> Result<EntryId, StoreError> {
        check_project_log(log)?;
        check_value(entry.content)?;
        match &self.0 {
            Kind::Memory(fleet) => fleet.append(log, entry, deadline).await,
            #[cfg(feature = "redis")]
            Kind::Redis(fleet) => fleet.append(log, entry, deadline).await,
        }
    }

    /// Appends an entry to the log that a project has of its own, once until `until`: not if one with this mark of 1
    /// to [`MAX_NAME_LEN`] bytes was. Returns whether it was appended now. May be repeated after any error.
    ///
    /// The log keeps `max_project_entries`, in memory `max_entries` of all projects, which no journal has.
    ///
    /// # Errors
    ///
    /// As [`Fleet::append`]; [`OutOfBounds::Marks`].
    pub async fn append_once(
        &self,
        log: ProjectLog<'_>,
        mark: &str,
        until: Timestamp,
        entry: NewEntry<'_>,
        deadline: Deadline,
    ) -> Result<bool, StoreError> {
        check_project_log(log)?;
        check_name(mark)?;
        check_value(entry.content)?;
        match &self.0 {
            Kind::Memory(fleet) => fleet.append_once(log, mark, until, entry, deadline),
            #[cfg(feature = "redis")]
            Kind::Redis(fleet) => fleet.append_once(log, mark, until, entry, deadline).await,
        }
    }

    /// Reads up to `count` entries of a log, at most [`MAX_READ`], newest first.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store does not answer before the deadline.
    pub async fn read(
        &self,
        log: &str,
        range: LogRange,
        count: usize,
        deadline: Deadline,
    ) -> Result<Vec<LogEntry>, StoreError> {
        self.read_of_project(ProjectLog { log, project: "" }, range, count, deadline).await
    }

    /// Reads up to `count` entries of a project, at most [`MAX_READ`], newest first. The log of all may
    /// have older ones of the project.
    ///
    /// # Errors
    ///
    /// As [`Fleet::read`].
    pub async fn read_of_project(
        &self,
        log: ProjectLog<'_>,
        range: LogRange,
        count: usize,
        deadline: Deadline,
    ) -> Result<Vec<LogEntry>, StoreError> {
        check_project_log(log)?;
        let count = count.min(MAX_READ);
        match &self.0 {
            Kind::Memory(fleet) => fleet.read(log, range, count, deadline),
            #[cfg(feature = "redis")]
            Kind::Redis(fleet) => fleet.read(log, range, count, deadline).await,
        }
    }

    /// Sets the value of a name in a map, for `ttl` (at least 1 ms). It replaces an earlier one.
    ///
    /// # Errors
    ///
    /// As [`Fleet::append`]; [`OutOfBounds::Values`] if the map is full.
    pub async fn put(
        &self,
        map: &str,
        name: &str,
        value: &[u8],
        ttl: Duration,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let ttl = check_put(map, name, value, ttl)?;
        match &self.0 {
            Kind::Memory(fleet) => fleet.put(map, name, value, ttl, deadline).await,
            #[cfg(feature = "redis")]
            Kind::Redis(fleet) => fleet.put(map, name, value, ttl, deadline).await,
        }
    }

    /// Sets the value of a name in a map, as [`Fleet::put`], unless it has one that has not expired.
    /// Then that one is returned. Of all instances that claim a name at the same time, one sets it.
    ///
    /// # Errors
    ///
    /// As [`Fleet::put`].
    pub async fn claim(
        &self,
        map: &str,
        name: &str,
        value: &[u8],
        ttl: Duration,
        deadline: Deadline,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        self.claim_over(map, name, value, None, ttl, deadline).await
    }

    /// Sets the value of a name in a map, as [`Fleet::claim`], also if it is `over`.
    ///
    /// # Errors
    ///
    /// As [`Fleet::put`].
    pub async fn claim_over(
        &self,
        map: &str,
        name: &str,
        value: &[u8],
        over: Option<&[u8]>,
        ttl: Duration,
        deadline: Deadline,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let ttl = check_put(map, name, value, ttl)?;
        match &self.0 {
            Kind::Memory(fleet) => fleet.claim(map, name, value, over, ttl, deadline).await,
            #[cfg(feature = "redis")]
            Kind::Redis(fleet) => fleet.claim(map, name, value, over, ttl, deadline).await,
        }
    }

    /// Returns all values of a map that have not expired, ordered by name.
    ///
    /// # Errors
    ///
    /// As [`Fleet::read`].
    pub async fn values(
        &self,
        map: &str,
        deadline: Deadline,
    ) -> Result<Vec<NamedValue>, StoreError> {
        check_name(map)?;
        match &self.0 {
            Kind::Memory(fleet) => fleet.values(map, deadline),
            #[cfg(feature = "redis")]
            Kind::Redis(fleet) => fleet.values(map, deadline).await,
        }
    }

    /// Sends a message of 1 to [`MAX_VALUE_LEN`] bytes to all who subscribe to a topic at this moment, this process included.
    /// Its receipt is not confirmed.
    ///
    /// # Errors
    ///
    /// As [`Fleet::append`].
    pub async fn publish(
        &self,
        topic: &str,
        message: &[u8],
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        check_name(topic)?;
        check_value(message)?;
        if message.is_empty() {
            return Err(OutOfBounds::EmptyMessage.into());
        }
        match &self.0 {
            Kind::Memory(fleet) => fleet.publish(topic, message, deadline),
            #[cfg(feature = "redis")]
            Kind::Redis(fleet) => fleet.publish(topic, message, deadline).await,
        }
    }

    /// Subscribes to a topic of 1 to [`MAX_NAME_LEN`] bytes. Makes no connection until the
    /// subscription is polled.
    pub fn subscribe(&self, topic: &str) -> Subscription {
        match &self.0 {
            Kind::Memory(fleet) => fleet.subscribe(topic),
            #[cfg(feature = "redis")]
            Kind::Redis(fleet) => Subscription(Source::Redis(Box::new(fleet.subscribe(topic)))),
        }
    }

    /// Returns the permissions that the user of Redis lacks for calls of a fleet with these topics,
    /// and for [`Store::list_overrides`], as words of `ACL SETUSER`, such as `+xadd`; none without Redis.
    ///
    /// # Errors
    ///
    /// As [`Fleet::read`].
    pub async fn missing_permissions(
        &self,
        topics: &[&str],
        deadline: Deadline,
    ) -> Result<Vec<String>, StoreError> {
        topics.iter().try_for_each(|topic| check_name(topic))?;
        match &self.0 {
            Kind::Memory(_) if deadline.has_passed() => Err(StoreError::Expired),
            Kind::Memory(_) => Ok(Vec::new()),
            #[cfg(feature = "redis")]
            Kind::Redis(fleet) => fleet.missing_permissions(topics, deadline).await,
        }
    }

    /// Returns the secret of this name. The first call of all instances makes it: then it is
    /// `candidate`, which must be random.
    ///
    /// # Errors
    ///
    /// As [`Fleet::read`]. A call may be repeated after any error.
    pub async fn secret(
        &self,
        name: &str,
        candidate: [u8; SECRET_LEN],
        deadline: Deadline,
    ) -> Result<[u8; SECRET_LEN], StoreError> {
        check_name(name)?;
        match &self.0 {
            Kind::Memory(fleet) => fleet.secret(name, candidate, deadline).await,
            #[cfg(feature = "redis")]
            Kind::Redis(fleet) => fleet.secret(name, candidate, deadline).await,
        }
    }
}

impl From<MemoryFleet> for Fleet {
    fn from(fleet: MemoryFleet) -> Self {
        Self(Kind::Memory(fleet))
    }
}

fn check_name(name: &str) -> Result<(), OutOfBounds> {
    let is_valid = (1..=MAX_NAME_LEN).contains(&name.len());
    if is_valid { Ok(()) } else { Err(OutOfBounds::Name) }
}

fn check_project_log(log: ProjectLog<'_>) -> Result<(), OutOfBounds> {
    check_name(log.log)?;
    if log.project.len() > MAX_NAME_LEN { Err(OutOfBounds::Name) } else { Ok(()) }
}

/// Returns the time to live of a value of a map.
fn check_put(map: &str, name: &str, value: &[u8], ttl: Duration) -> Result<Duration, OutOfBounds> {
    check_name(map)?;
    check_name(name)?;
    check_value(value)?;
    Ok(ttl.max(Duration::from_millis(1)))
}

fn check_value(value: &[u8]) -> Result<(), OutOfBounds> {
    if value.len() <= MAX_VALUE_LEN { Ok(()) } else { Err(OutOfBounds::Value) }
}
