//! The fleet of a single process in the journal of its store: entries of logs, claims,
//! the catalogue, registers, and secrets.
//!
//! Other values are not in it: they describe the process, and it has ended.

use super::memory::{FleetJournal, MemoryFleet, OnRecorded};
use super::{
    EntryId, LocalCopy, LocalCopyChanges, ProjectEntryId, ProjectLog, Register, SECRET_LEN,
};
use crate::clock::{Micros, Timestamp};
use crate::journal::{Change, Journal, JournalError, Space};
use crate::store::{BoxFuture, StoreError};

/// Length of an id in the name of an entry.
const ID_LEN: usize = 16;
/// Time for which the end of a key is kept.
const ENDED_LIFE: Micros = Micros::from_secs(366 * 86_400);

impl FleetJournal for Journal {
    fn append(
        &self,
        log: ProjectLog<'_>,
        id: EntryId,
        content: &[u8],
        removed: &[ProjectEntryId],
        apply: OnRecorded,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        let (space, name) = entry_name(log, id);
        let removed: Vec<_> = removed
            .iter()
            .map(|(project, id)| entry_name(ProjectLog { project, ..log }, *id))
            .collect();
        let mut changes =
            vec![Change::Put { space, name: &name, value: content, expires_at: None }];
        changes.extend(removed.iter().map(|(space, name)| Change::Delete { space: *space, name }));
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
        changes: &LocalCopyChanges,
        apply: OnRecorded,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        // If damage loses one of both, ended keys stay ended.
        let (ended, others) = changes.split_ended();
        let ends = catalogue_changes(&ended, Some(self.now() + ENDED_LIFE));
        let others = catalogue_changes(&others, None);
        let written = self.write_frames_then(&[&ends, &others], apply);
        Box::pin(async { Ok(written.await?) })
    }

    fn registers(
        &self,
        registers: &[Register],
        expires_at: Timestamp,
        apply: OnRecorded,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        let (space, expires_at) = (Space::REGISTERS, Some(expires_at));
        let name = |register: &Register| value_name(&register.map, &register.name);
        let names: Vec<_> = registers.iter().map(name).collect();
        let put = |(register, name)| {
            let (register, name): (&Register, &[u8]) = (register, name);
            Change::Put { space, name, value: &register.value, expires_at }
        };
        let changes: Vec<_> =
            registers.iter().zip(names.iter().map(Vec::as_slice)).map(put).collect();
        record(self, &changes, apply)
    }

    fn remove_registers(
        &self,
        names: &[(String, String)],
        apply: OnRecorded,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        let space = Space::REGISTERS;
        let names: Vec<_> = names.iter().map(|(map, name)| value_name(map, name)).collect();
        let delete = |name| Change::Delete { space, name };
        let changes: Vec<_> = names.iter().map(Vec::as_slice).map(delete).collect();
        record(self, &changes, apply)
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
    pub fn take_restored_catalogue(&self) -> (LocalCopy, LocalCopyChanges) {
        let restored = self.take_restored(Space::CATALOGUE).into_iter();
        LocalCopy::read(restored.map(|restored| (restored.name, restored.value)))
    }

    /// Writes changes of a catalogue, all or none, and waits until they are on disk.
    ///
    /// # Errors
    ///
    /// As [`Journal::write`].
    pub fn write_catalogue(
        &self,
        changes: &LocalCopyChanges,
    ) -> impl Future<Output = Result<(), JournalError>> + Send + use<> {
        self.write(&catalogue_changes(changes, None))
    }
}

fn catalogue_changes(changes: &LocalCopyChanges, expires_at: Option<Timestamp>) -> Vec<Change<'_>> {
    let space = Space::CATALOGUE;
    let change = |(name, value)| match value {
        Some(value) => Change::Put { space, name, value, expires_at },
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
    let spaces = [Space::AUDIT, Space::PROJECT_AUDITS];
    let entries = spaces.map(|space| journal.take_restored(space));
    let mut entries: Vec<_> = spaces
        .into_iter()
        .zip(&entries)
        .flat_map(|(space, entries)| entries.iter().map(move |entry| (space, entry)))
        .filter_map(|(space, entry)| Some((parse_entry_name(space, &entry.name)?, &*entry.value)))
        .collect();
    entries.sort_unstable_by_key(|((_, id), _)| *id);
    for ((log, id), content) in entries {
        fleet.restore_entry(log, id, content);
    }
    for value in journal.take_restored(Space::ONCE) {
        if let (Some((map, name)), Some(expires_at)) =
            (parse_value_name(&value.name), value.expires_at)
        {
            fleet.restore_value(map, name, &value.value, expires_at);
        }
    }
    for register in journal.take_restored(Space::REGISTERS) {
        if let (Some((map, name)), Some(expires_at)) =
            (parse_value_name(&register.name), register.expires_at)
        {
            let (map, name, value) = (map.to_owned(), name.to_owned(), register.value.into());
            fleet.restore_register(Register { map, name, value }, expires_at);
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

fn entry_name(ProjectLog { log, project }: ProjectLog<'_>, id: EntryId) -> (Space, Vec<u8>) {
    let (space, log) = match project {
        "" => (Space::AUDIT, log.into()),
        project => (Space::PROJECT_AUDITS, value_name(project, log)),
    };
    let (millis, sequence) = id.parts();
    (space, [log, millis.to_be_bytes().into(), sequence.to_be_bytes().into()].concat())
}

fn parse_entry_name(space: Space, name: &[u8]) -> Option<(ProjectLog<'_>, EntryId)> {
    let (log, id) = name.split_at_checked(name.len().checked_sub(ID_LEN)?)?;
    let (millis, sequence) = id.split_at(ID_LEN / 2);
    let number = |bytes: &[u8]| Some(u64::from_be_bytes(bytes.try_into().ok()?));
    let (project, log) = match space {
        Space::PROJECT_AUDITS => parse_value_name(log)?,
        _ => ("", str::from_utf8(log).ok()?),
    };
    Some((ProjectLog { log, project }, EntryId::new(number(millis)?, number(sequence)?)))
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
    fn a_name_has_the_log_the_project_and_the_id() {
        let id = EntryId::new(1_700_000_100_000, 7);
        for (project, expected) in [("", Space::AUDIT), ("shop", Space::PROJECT_AUDITS)] {
            let of = ProjectLog { log: "audit", project };
            let (space, name) = entry_name(of, id);
            assert_eq!(space, expected);
            assert_eq!(parse_entry_name(space, &name), Some((of, id)));
            assert_eq!(parse_entry_name(space, b"audit"), None);
        }
        assert_eq!(parse_entry_name(Space::PROJECT_AUDITS, &[0xff; ID_LEN + 2]), None);
        assert_eq!(parse_value_name(&value_name("a", "b\0")), Some(("a", "b\0")));
        assert_eq!(parse_value_name(b"\0\x05a"), None);
    }
}
