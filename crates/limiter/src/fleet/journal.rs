//! The fleet of a single process in the journal of its store: entries of logs, claims,
//! the catalogue, and secrets.
//!
//! Other values are not in it: they describe the process, and it has ended.

use super::memory::{FleetJournal, MemoryFleet, OnRecorded};
use super::{EntryId, KeptCatalogue, KeptChanges, SECRET_LEN};
use crate::clock::Timestamp;
use crate::journal::{Change, Journal, JournalError, Space};
use crate::store::{BoxFuture, StoreError};

/// Length of an id in the name of an entry.
const ID_LEN: usize = 16;

impl FleetJournal for Journal {
    fn append(
        &self,
        log: &str,
        id: EntryId,
        content: &[u8],
        removed: &[EntryId],
        apply: OnRecorded,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        let (space, name) = (Space::AUDIT, entry_name(log, id));
        let removed: Vec<_> = removed.iter().map(|id| entry_name(log, *id)).collect();
        let mut changes =
            vec![Change::Put { space, name: &name, value: content, expires_at: None }];
        changes.extend(removed.iter().map(|name| Change::Delete { space, name }));
        record(self, &changes, apply)
    }

    fn value(
        &self,
        map: &str,
        name: &str,
        content: &[u8],
        expires_at: Timestamp,
        apply: OnRecorded,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        let (space, name, expires_at) = (Space::ONCE, value_name(map, name), Some(expires_at));
        let put = Change::Put { space, name: &name, value: content, expires_at };
        record(self, &[put], apply)
    }

    fn catalogue(
        &self,
        changes: &KeptChanges,
        apply: OnRecorded,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        record(self, &catalogue_changes(changes), apply)
    }

    fn secret(
        &self,
        name: &str,
        secret: [u8; SECRET_LEN],
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        let (space, name) = (Space::VALUES, name.as_bytes());
        let put = Change::Put { space, name, value: &secret, expires_at: None };
        record(self, &[put], Box::new(|| ()))
    }
}

impl Journal {
    /// Removes the catalogue from what was restored, and returns it with the changes that delete all
    /// of it.
    pub fn take_restored_catalogue(&self) -> (KeptCatalogue, KeptChanges) {
        let restored = self.take_restored(Space::CATALOGUE).into_iter();
        KeptCatalogue::read(restored.map(|restored| (restored.name, restored.value)))
    }

    /// Writes changes of a catalogue, all or none, and waits until they are on disk.
    ///
    /// # Errors
    ///
    /// As [`Journal::write`].
    pub fn write_catalogue(
        &self,
        changes: &KeptChanges,
    ) -> impl Future<Output = Result<(), JournalError>> + Send + use<> {
        self.write(&catalogue_changes(changes))
    }
}

fn catalogue_changes(changes: &KeptChanges) -> Vec<Change<'_>> {
    let space = Space::CATALOGUE;
    let change = |(name, value)| match value {
        Some(value) => Change::Put { space, name, value, expires_at: None },
        None => Change::Delete { space, name },
    };
    changes.iter().map(change).collect()
}

fn record(
    journal: &Journal,
    changes: &[Change<'_>],
    apply: OnRecorded,
) -> BoxFuture<'static, Result<(), StoreError>> {
    let written = journal.write_then(changes, apply);
    Box::pin(async { Ok(written.await?) })
}

/// Restores what the journal has.
pub(super) fn restore(fleet: &MemoryFleet, journal: &Journal) {
    let entries = journal.take_restored(Space::AUDIT);
    let mut entries: Vec<_> = entries
        .iter()
        .filter_map(|entry| Some((parse_entry_name(&entry.name)?, &*entry.value)))
        .collect();
    entries.sort_unstable();
    for ((log, id), content) in entries {
        // The next entry removes those that are too many.
        fleet.restore_entry(log, id, content, u64::MAX);
    }
    for value in journal.take_restored(Space::ONCE) {
        if let (Some((map, name)), Some(expires_at)) =
            (parse_value_name(&value.name), value.expires_at)
        {
            fleet.restore_value(map, name, &value.value, expires_at);
        }
    }
    let (catalogue, _) = journal.take_restored_catalogue();
    fleet.restore_catalogue(catalogue);
    for secret in journal.take_restored(Space::VALUES) {
        if let (Ok(name), Ok(value)) = (str::from_utf8(&secret.name), (*secret.value).try_into()) {
            fleet.restore_secret(name, value);
        }
    }
}

fn entry_name(log: &str, id: EntryId) -> Vec<u8> {
    let (millis, sequence) = id.parts();
    [log.as_bytes(), &millis.to_be_bytes(), &sequence.to_be_bytes()].concat()
}

fn parse_entry_name(name: &[u8]) -> Option<(&str, EntryId)> {
    let (log, id) = name.split_at_checked(name.len().checked_sub(ID_LEN)?)?;
    let (millis, sequence) = id.split_at(ID_LEN / 2);
    let number = |bytes: &[u8]| Some(u64::from_be_bytes(bytes.try_into().ok()?));
    Some((str::from_utf8(log).ok()?, EntryId::new(number(millis)?, number(sequence)?)))
}

/// Returns the length of the name of the map, that name, and the name of the value.
fn value_name(map: &str, name: &str) -> Vec<u8> {
    let len = u16::try_from(map.len()).unwrap_or(u16::MAX);
    [&len.to_be_bytes(), map.as_bytes(), name.as_bytes()].concat()
}

fn parse_value_name(name: &[u8]) -> Option<(&str, &str)> {
    let (len, rest) = name.split_at_checked(2)?;
    let (map, name) = rest.split_at_checked(u16::from_be_bytes(len.try_into().ok()?).into())?;
    Some((str::from_utf8(map).ok()?, str::from_utf8(name).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_log_and_the_id() {
        let id = EntryId::new(1_700_000_100_000, 7);
        assert_eq!(parse_entry_name(&entry_name("audit", id)), Some(("audit", id)));
        assert_eq!(parse_entry_name(b"audit"), None);
        assert_eq!(parse_value_name(&value_name("a", "b\0")), Some(("a", "b\0")));
        assert_eq!(parse_value_name(b"\0\x05a"), None);
    }
}
