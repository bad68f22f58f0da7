//! The fleet of a single process.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast;

use super::capped_log::{CappedLog, ProjectEntryId};
use super::catalogue::MemoryCatalogue;
use super::registers::MemoryRegisters;
use super::subscription::{Source, Subscription};
use super::{
    EntryId, LocalCopy, LocalCopyChanges, LogEntry, LogRange, MAX_MARKS, MAX_VALUES, NamedValue,
    NewEntry, OutOfBounds, ProjectLog, Register, SECRET_LEN,
};
use crate::clock::{Clock, Deadline, Micros, Timestamp};
use crate::store::{BoxFuture, StoreError};

/// Messages that a slow subscriber may be behind.
const MAX_QUEUED_MESSAGES: usize = 1024;

/// Records what outlives the process. Calls may be recorded together.
///
/// What a call has begun is recorded even if its future is dropped.
pub trait FleetJournal: Debug + Send + Sync {
    /// Records an entry of a project in a log, and that those of `removed` are no longer in it. Then
    /// calls `apply`, which does not block.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if it was not recorded: `apply` is then dropped.
    fn append(
        &self,
        project_log: ProjectLog<'_>,
        id: EntryId,
        content: &[u8],
        removed: &[ProjectEntryId],
        apply: OnRecorded,
    ) -> BoxFuture<'static, Result<(), StoreError>>;

    /// Records a value of a map of claims. Then calls `apply`, which does not block.
    ///
    /// # Errors
    ///
    /// As [`FleetJournal::append`].
    fn value(
        &self,
        map: &str,
        name: &str,
        content: &[u8],
        expires_at: Timestamp,
        apply: OnRecorded,
    ) -> BoxFuture<'static, Result<(), StoreError>>;

    /// Records changes of the catalogue, all or none. Then calls `apply`, which does not block.
    ///
    /// # Errors
    ///
    /// As [`FleetJournal::append`].
    fn catalogue(
        &self,
        changes: &LocalCopyChanges,
        apply: OnRecorded,
    ) -> BoxFuture<'static, Result<(), StoreError>>;

    /// Records registers, all or none. Then calls `apply`, which does not block.
    ///
    /// # Errors
    ///
    /// As [`FleetJournal::append`].
    fn registers(
        &self,
        registers: &[Register],
        expires_at: Timestamp,
        apply: OnRecorded,
    ) -> BoxFuture<'static, Result<(), StoreError>>;

    /// Records that registers, by map and name, are removed. Then calls `apply`, which does not
    /// block.
    ///
    /// # Errors
    ///
    /// As [`FleetJournal::append`].
    fn remove_registers(
        &self,
        names: &[(String, String)],
        apply: OnRecorded,
    ) -> BoxFuture<'static, Result<(), StoreError>>;

    /// Records a secret.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if it was not recorded: there is no secret then.
    fn secret(
        &self,
        name: &str,
        secret: [u8; SECRET_LEN],
    ) -> BoxFuture<'static, Result<(), StoreError>>;
}

/// Makes visible what was recorded.
pub type OnRecorded = Box<dyn FnOnce() + Send>;

/// Logs, named values, messages and secrets in the memory of this process. Clones share them.
#[derive(Clone, Debug)]
pub struct MemoryFleet {
    shared: Arc<SharedContents>,
    journal: Option<Arc<dyn FleetJournal>>,
}

#[derive(Debug)]
struct SharedContents {
    clock: Clock,
    contents: Mutex<Contents>,
    catalogue: MemoryCatalogue,
    registers: MemoryRegisters,
    /// Held while a secret is made.
    making_secret: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Contents {
    logs: HashMap<String, CappedLog>,
    maps: HashMap<String, BTreeMap<String, Value>>,
    topics: HashMap<String, broadcast::Sender<Arc<[u8]>>>,
    secrets: HashMap<String, [u8; SECRET_LEN]>,
    /// Maps in which names are claimed: their values are in the journal.
    claim_maps: HashSet<String>,
    /// Marks of entries that are appended once, and when they end.
    marks: HashMap<String, Timestamp>,
}

#[derive(Debug)]
struct Value {
    content: Vec<u8>,
    expires_at: Timestamp,
}

impl MemoryFleet {
    /// Creates an empty fleet on this clock.
    pub fn new(clock: Clock) -> Self {
        let registers = MemoryRegisters::new(clock.clone());
        let shared = SharedContents {
            clock,
            contents: Mutex::default(),
            catalogue: MemoryCatalogue::default(),
            registers,
            making_secret: tokio::sync::Mutex::default(),
        };
        Self { shared: Arc::new(shared), journal: None }
    }

    /// Sets the journal. Entries and secrets are recorded before they are visible.
    #[must_use]
    pub fn with_journal(self, journal: Arc<dyn FleetJournal>) -> Self {
        Self { journal: Some(journal), ..self }
    }

    pub(super) fn catalogue(&self) -> MemoryCatalogue {
        let (journal, clock) = (self.journal.clone(), self.shared.clock.clone());
        self.shared.catalogue.clone().with_journal(journal, clock)
    }

    pub(super) fn registers(&self) -> MemoryRegisters {
        self.shared.registers.clone().with_journal(self.journal.clone())
    }

    /// Sets the catalogue that a journal has.
    pub fn restore_catalogue(&self, kept: LocalCopy) {
        self.shared.catalogue.restore(kept);
    }

    /// Appends an entry that a journal has. Entries must be restored in the order of their ids;
    /// others are ignored.
    pub fn restore_entry(&self, project_log: ProjectLog<'_>, id: EntryId, content: &[u8]) {
        let mut contents = self.contents();
        let log = contents.logs.entry(project_log.log.to_owned()).or_default();
        if id >= log.next_id(id) {
            // The next entry removes those that are too many.
            let (max_entries, max_project_entries) = (u64::MAX, u64::MAX);
            let entry = NewEntry { content, max_entries, max_project_entries, ttl: None };
            let removed = log.push(project_log.project, id, entry);
            log.end_recording(id, &removed, true);
        }
    }

    /// Sets a value of a map of claims that a journal has.
    pub fn restore_value(&self, map: &str, name: &str, content: &[u8], expires_at: Timestamp) {
        let value = Value { content: content.to_owned(), expires_at };
        let mut contents = self.contents();
        contents.claim_maps.insert(map.to_owned());
        contents.maps.entry(map.to_owned()).or_default().insert(name.to_owned(), value);
    }

    /// Sets a register that a journal has.
    pub fn restore_register(&self, register: Register, expires_at: Timestamp) {
        self.shared.registers.restore(register, expires_at);
    }

    /// Sets a secret that a journal has.
    pub fn restore_secret(&self, name: &str, secret: [u8; SECRET_LEN]) {
        self.contents().secrets.insert(name.to_owned(), secret);
    }

    pub(super) async fn append(
        &self,
        project_log: ProjectLog<'_>,
        entry: NewEntry<'_>,
        deadline: Deadline,
    ) -> Result<EntryId, StoreError> {
        check_deadline(deadline)?;
        let now = EntryId::at(self.shared.clock.now());
        let (id, removed) = {
            let mut contents = self.contents();
            let log = contents.logs.entry(project_log.log.to_owned()).or_default();
            let id = log.next_id(now);
            (id, log.push(project_log.project, id, entry))
        };
        let recording = self.recording({
            let (log, removed) = (project_log.log.to_owned(), removed.clone());
            move |contents, is_recorded| {
                if let Some(log) = contents.logs.get_mut(&log) {
                    log.end_recording(id, &removed, is_recorded);
                }
            }
        });
        match &self.journal {
            Some(journal) => {
                let apply = recording.on_recorded();
                journal.append(project_log, id, entry.content, &removed, apply).await?;
            }
            None => recording.end(true),
        }
        Ok(id)
    }

    /// Appends an entry that no journal has, unless there is this mark.
    pub(super) fn append_once(
        &self,
        log: ProjectLog<'_>,
        mark: &str,
        until: Timestamp,
        entry: NewEntry<'_>,
        deadline: Deadline,
    ) -> Result<bool, StoreError> {
        check_deadline(deadline)?;
        let now = self.shared.clock.now();
        let mut contents = self.contents();
        let Contents { logs, marks, .. } = &mut *contents;
        if marks.get(mark).is_some_and(|ends| *ends > now) {
            return Ok(false);
        }
        if marks.len() >= MAX_MARKS {
            marks.retain(|_, ends| *ends > now);
        }
        if marks.len() >= MAX_MARKS {
            return Err(OutOfBounds::Marks.into());
        }
        marks.insert(mark.to_owned(), until);
        let entries = logs.entry(log.log.to_owned()).or_default();
        let id = entries.next_id(EntryId::at(now));
        let removed = entries.push(log.project, id, entry);
        entries.end_recording(id, &removed, true);
        Ok(true)
    }

    pub(super) fn read(
        &self,
        project_log: ProjectLog<'_>,
        range: LogRange,
        count: usize,
        deadline: Deadline,
    ) -> Result<Vec<LogEntry>, StoreError> {
        check_deadline(deadline)?;
        let contents = self.contents();
        let log = contents.logs.get(project_log.log);
        Ok(log.map_or_else(Vec::new, |log| log.newest(project_log.project, range, count)))
    }

    pub(super) async fn put(
        &self,
        map: &str,
        name: &str,
        content: &[u8],
        ttl: Duration,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        check_deadline(deadline)?;
        let now = self.shared.clock.now();
        let value = Value { content: content.to_owned(), expires_at: now + Micros::from(ttl) };
        let journal = {
            let mut contents = self.contents();
            contents.make_room(map, name, now)?;
            let is_recorded = contents.claim_maps.contains(map);
            let Some(journal) = self.journal.as_ref().filter(|_| is_recorded) else {
                contents.set(map, name, value);
                return Ok(());
            };
            journal
        };
        let expires_at = value.expires_at;
        let recording = self.recording({
            let (map, name) = (map.to_owned(), name.to_owned());
            move |contents, is_recorded| {
                if is_recorded {
                    contents.set(&map, &name, value);
                }
            }
        });
        journal.value(map, name, content, expires_at, recording.on_recorded()).await
    }

    pub(super) async fn claim(
        &self,
        map: &str,
        name: &str,
        content: &[u8],
        over: Option<&[u8]>,
        ttl: Duration,
        deadline: Deadline,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        check_deadline(deadline)?;
        let now = self.shared.clock.now();
        let expires_at = now + Micros::from(ttl);
        {
            let mut contents = self.contents();
            let held = contents.held(map, name, now);
            if let Some(held) = held.filter(|held| Some(held.as_slice()) != over) {
                return Ok(Some(held));
            }
            contents.make_room(map, name, now)?;
            // Others see the claim while it is recorded: no other call may claim the name.
            contents.set(map, name, Value { content: content.to_owned(), expires_at });
        }
        let Some(journal) = &self.journal else { return Ok(None) };
        let recording = self.recording({
            let (map, name) = (map.to_owned(), name.to_owned());
            move |contents, is_recorded| {
                if is_recorded {
                    contents.claim_maps.insert(map);
                } else if let Some(values) = contents.maps.get_mut(&map) {
                    values.remove(&name);
                }
            }
        });
        journal.value(map, name, content, expires_at, recording.on_recorded()).await?;
        Ok(None)
    }

    pub(super) fn values(
        &self,
        map: &str,
        deadline: Deadline,
    ) -> Result<Vec<NamedValue>, StoreError> {
        check_deadline(deadline)?;
        let now = self.shared.clock.now();
        let contents = self.contents();
        let values = contents.maps.get(map).into_iter().flatten();
        let live = values.filter(|(_, value)| value.expires_at > now);
        let named = live.map(|(name, value)| NamedValue {
            name: name.clone(),
            value: value.content.clone(),
            expires_in: value.expires_at.since(now).into(),
        });
        Ok(named.collect())
    }

    pub(super) fn publish(
        &self,
        topic: &str,
        message: &[u8],
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        check_deadline(deadline)?;
        let mut contents = self.contents();
        contents.topics.retain(|_, topic| topic.receiver_count() > 0);
        if let Some(topic) = contents.topics.get(topic) {
            let _nobody_listens = topic.send(message.into());
        }
        Ok(())
    }

    pub(super) fn subscribe(&self, topic: &str) -> Subscription {
        let mut contents = self.contents();
        let topic = contents.topics.entry(topic.to_owned());
        let topic = topic.or_insert_with(|| broadcast::Sender::new(MAX_QUEUED_MESSAGES));
        Subscription(Source::Memory { messages: topic.subscribe(), has_begun: false })
    }

    pub(super) async fn secret(
        &self,
        name: &str,
        candidate: [u8; SECRET_LEN],
        deadline: Deadline,
    ) -> Result<[u8; SECRET_LEN], StoreError> {
        let _making = self.shared.making_secret.lock().await;
        check_deadline(deadline)?;
        if let Some(secret) = self.contents().secrets.get(name) {
            return Ok(*secret);
        }
        if let Some(journal) = &self.journal {
            journal.secret(name, candidate).await?;
        }
        self.contents().secrets.insert(name.to_owned(), candidate);
        Ok(candidate)
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.shared.contents()
    }

    /// Returns a change that ends by `end`, which is told whether it was recorded.
    fn recording(&self, end: impl FnOnce(&mut Contents, bool) + Send + 'static) -> Recording {
        Recording { shared: Arc::clone(&self.shared), end: Some(Box::new(end)) }
    }
}

impl SharedContents {
    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type EndRecording = Box<dyn FnOnce(&mut Contents, bool) + Send>;

/// A change that is being recorded. If it is dropped before its end it was not recorded.
struct Recording {
    shared: Arc<SharedContents>,
    end: Option<EndRecording>,
}

impl Recording {
    fn on_recorded(self) -> OnRecorded {
        Box::new(move || self.end(true))
    }

    fn end(mut self, is_recorded: bool) {
        if let Some(end) = self.end.take() {
            end(&mut self.shared.contents(), is_recorded);
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            end(&mut self.shared.contents(), false);
        }
    }
}

impl Contents {
    /// Returns a value that has not expired.
    fn held(&self, map: &str, name: &str, now: Timestamp) -> Option<Vec<u8>> {
        let held = self.maps.get(map)?.get(name)?;
        (held.expires_at > now).then(|| held.content.clone())
    }

    /// Removes values that have expired, so that a map has room for this one.
    fn make_room(&mut self, map: &str, name: &str, now: Timestamp) -> Result<(), OutOfBounds> {
        self.maps.retain(|_, values| {
            values.retain(|_, value| value.expires_at > now);
            !values.is_empty()
        });
        let is_full = self
            .maps
            .get(map)
            .is_some_and(|values| values.len() >= MAX_VALUES && !values.contains_key(name));
        if is_full { Err(OutOfBounds::Values) } else { Ok(()) }
    }

    fn set(&mut self, map: &str, name: &str, value: Value) {
        self.maps.entry(map.to_owned()).or_default().insert(name.to_owned(), value);
    }
}

pub(super) fn check_deadline(deadline: Deadline) -> Result<(), StoreError> {
    if deadline.has_passed() { Err(StoreError::Expired) } else { Ok(()) }
}
