//! The fleet of a single process.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast;

use super::subscription::{Source, Subscription};
use super::{EntryId, LogEntry, LogRange, MAX_VALUES, NamedValue, OutOfBounds, SECRET_LEN};
use crate::clock::{Clock, Deadline, Micros, Timestamp};
use crate::store::{BoxFuture, StoreError};

/// Most bytes of a log.
const MAX_LOG_BYTES: usize = 64 * 1024 * 1024;
/// Messages that a slow subscriber may be behind.
const MAX_QUEUED_MESSAGES: usize = 1024;

/// Records what outlives the process, before it is visible.
pub trait FleetJournal: Debug + Send + Sync {
    /// Records an entry of a log, and that those of `removed` are no longer in it.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if it was not recorded: the entry is then not appended.
    fn append<'a>(
        &'a self,
        log: &'a str,
        id: EntryId,
        content: &'a [u8],
        removed: &'a [EntryId],
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Records a value of a map of claims.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if it was not recorded: it is then not set.
    fn value<'a>(
        &'a self,
        map: &'a str,
        name: &'a str,
        content: &'a [u8],
        expires_at: Timestamp,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Records a secret.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if it was not recorded: there is no secret then.
    fn secret<'a>(
        &'a self,
        name: &'a str,
        secret: [u8; SECRET_LEN],
    ) -> BoxFuture<'a, Result<(), StoreError>>;
}

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
    /// Held while an entry or a secret is recorded, so that the journal has the order of the log.
    recording: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Contents {
    logs: HashMap<String, CappedLog>,
    maps: HashMap<String, BTreeMap<String, Value>>,
    topics: HashMap<String, broadcast::Sender<Arc<[u8]>>>,
    secrets: HashMap<String, [u8; SECRET_LEN]>,
    /// Maps in which names are claimed: their values are in the journal.
    claim_maps: HashSet<String>,
}

#[derive(Debug, Default)]
struct CappedLog {
    /// Oldest first.
    entries: VecDeque<LogEntry>,
    bytes: usize,
    last: EntryId,
}

#[derive(Debug)]
struct Value {
    content: Vec<u8>,
    expires_at: Timestamp,
}

impl MemoryFleet {
    /// Creates an empty fleet on this clock.
    pub fn new(clock: Clock) -> Self {
        let shared = SharedContents {
            clock,
            contents: Mutex::default(),
            recording: tokio::sync::Mutex::default(),
        };
        Self { shared: Arc::new(shared), journal: None }
    }

    /// Sets the journal. Entries and secrets are recorded before they are visible.
    #[must_use]
    pub fn with_journal(self, journal: Arc<dyn FleetJournal>) -> Self {
        Self { journal: Some(journal), ..self }
    }

    /// Appends an entry that a journal has. Entries must be restored in the order of their ids;
    /// others are ignored.
    pub fn restore_entry(&self, log: &str, id: EntryId, content: &[u8], max_entries: u64) {
        let mut contents = self.contents();
        let log = contents.logs.entry(log.to_owned()).or_default();
        if log.entries.is_empty() || id > log.last {
            log.push(LogEntry { id, content: content.to_owned() }, max_entries);
        }
    }

    /// Sets a value of a map of claims that a journal has.
    pub fn restore_value(&self, map: &str, name: &str, content: &[u8], expires_at: Timestamp) {
        let value = Value { content: content.to_owned(), expires_at };
        let mut contents = self.contents();
        contents.claim_maps.insert(map.to_owned());
        contents.maps.entry(map.to_owned()).or_default().insert(name.to_owned(), value);
    }

    /// Sets a secret that a journal has.
    pub fn restore_secret(&self, name: &str, secret: [u8; SECRET_LEN]) {
        self.contents().secrets.insert(name.to_owned(), secret);
    }

    pub(super) async fn append(
        &self,
        log: &str,
        content: &[u8],
        max_entries: u64,
        deadline: Deadline,
    ) -> Result<EntryId, StoreError> {
        let _recording = self.shared.recording.lock().await;
        check_deadline(deadline)?;
        let now = EntryId::at(self.shared.clock.now());
        let (id, removed) = match self.contents().logs.get(log) {
            // The clock may have been set back.
            Some(log) => {
                (now.max(log.last.next()), log.removed_by_push(content.len(), max_entries))
            }
            None => (now, Vec::new()),
        };
        if let Some(journal) = &self.journal {
            journal.append(log, id, content, &removed).await?;
        }
        let mut contents = self.contents();
        let log = contents.logs.entry(log.to_owned()).or_default();
        log.push(LogEntry { id, content: content.to_owned() }, max_entries);
        Ok(id)
    }

    pub(super) fn read(
        &self,
        log: &str,
        range: LogRange,
        count: usize,
        deadline: Deadline,
    ) -> Result<Vec<LogEntry>, StoreError> {
        check_deadline(deadline)?;
        let contents = self.contents();
        let Some(CappedLog { entries, .. }) = contents.logs.get(log) else { return Ok(Vec::new()) };
        let first = entries.partition_point(|entry| entry.id < range.from);
        let end = entries.partition_point(|entry| entry.id < range.before).max(first);
        Ok(entries.range(first..end).rev().take(count).cloned().collect())
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
        let is_recorded = self.contents().claim_maps.contains(map);
        if let Some(journal) = self.journal.as_ref().filter(|_| is_recorded) {
            journal.value(map, name, content, now + Micros::from(ttl)).await?;
        }
        self.contents().put(map, name, content, now, ttl)
    }

    pub(super) async fn claim(
        &self,
        map: &str,
        name: &str,
        content: &[u8],
        ttl: Duration,
        deadline: Deadline,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(journal) = &self.journal else {
            check_deadline(deadline)?;
            let now = self.shared.clock.now();
            let mut contents = self.contents();
            return match contents.held(map, name, now) {
                Some(held) => Ok(Some(held)),
                None => contents.put(map, name, content, now, ttl).map(|()| None),
            };
        };
        // No other call may claim the name while the claim is recorded.
        let _recording = self.shared.recording.lock().await;
        check_deadline(deadline)?;
        let now = self.shared.clock.now();
        if let Some(held) = self.contents().held(map, name, now) {
            return Ok(Some(held));
        }
        journal.value(map, name, content, now + Micros::from(ttl)).await?;
        let mut contents = self.contents();
        contents.claim_maps.insert(map.to_owned());
        contents.put(map, name, content, now, ttl).map(|()| None)
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
        let _recording = self.shared.recording.lock().await;
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
        self.shared.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CappedLog {
    /// Returns the ids of the entries that a further one of `len` bytes removes.
    fn removed_by_push(&self, len: usize, max_entries: u64) -> Vec<EntryId> {
        let (mut entries, mut bytes) = (self.entries.len() + 1, self.bytes + len);
        let is_removed = |entry: &&LogEntry| {
            let is_removed = entries as u64 > max_entries.max(1) || bytes > MAX_LOG_BYTES;
            (entries, bytes) = (entries - 1, bytes - entry.content.len());
            is_removed
        };
        self.entries.iter().take_while(is_removed).map(|entry| entry.id).collect()
    }

    fn push(&mut self, entry: LogEntry, max_entries: u64) {
        self.last = entry.id;
        self.bytes += entry.content.len();
        self.entries.push_back(entry);
        let is_full =
            |log: &Self| log.entries.len() as u64 > max_entries.max(1) || log.bytes > MAX_LOG_BYTES;
        while is_full(self)
            && let Some(oldest) = self.entries.pop_front()
        {
            self.bytes -= oldest.content.len();
        }
    }
}

impl Contents {
    /// Returns a value that has not expired.
    fn held(&self, map: &str, name: &str, now: Timestamp) -> Option<Vec<u8>> {
        let held = self.maps.get(map)?.get(name)?;
        (held.expires_at > now).then(|| held.content.clone())
    }

    /// Sets a value of a map, and removes those that have expired.
    fn put(
        &mut self,
        map: &str,
        name: &str,
        content: &[u8],
        now: Timestamp,
        ttl: Duration,
    ) -> Result<(), StoreError> {
        let value = Value { content: content.to_owned(), expires_at: now + Micros::from(ttl) };
        self.maps.retain(|_, values| {
            values.retain(|_, value| value.expires_at > now);
            !values.is_empty()
        });
        let values = self.maps.entry(map.to_owned()).or_default();
        if values.len() >= MAX_VALUES && !values.contains_key(name) {
            return Err(OutOfBounds::Values.into());
        }
        values.insert(name.to_owned(), value);
        Ok(())
    }
}

fn check_deadline(deadline: Deadline) -> Result<(), StoreError> {
    if deadline.has_passed() { Err(StoreError::Expired) } else { Ok(()) }
}
