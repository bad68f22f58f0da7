//! The fleet of a single process.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rlaas_limiter::Limiter;
use rlaas_limiter::clock::{Clock, ManualClock, Micros, Timestamp};
use rlaas_limiter::fleet::{
    EntryId, Fleet, FleetEvent, FleetJournal, LocalCopyChanges, LogRange, MemoryFleet, OnRecorded,
    ProjectEntryId, ProjectLog, Register,
};
use rlaas_limiter::store::{BoxFuture, StoreError};

use super::promises::{self, soon};

const T0: Timestamp = Timestamp::from_millis(1_700_000_100_000);

#[tokio::test]
async fn promises_hold_in_memory() {
    let limiter = Limiter::builder().build().expect("a limiter");
    let fleet = Fleet::new(limiter.store());
    assert!(!fleet.is_shared());
    promises::assert_all(&fleet, &fleet.clone()).await;
}

#[tokio::test]
async fn values_expire_by_the_clock() {
    let clock = ManualClock::new(T0);
    let fleet = Fleet::from(MemoryFleet::new(Clock::Manual(clock.clone())));
    let names = async || {
        let values = fleet.values("map", soon()).await.expect("values");
        values.into_iter().map(|value| value.name).collect::<Vec<_>>()
    };
    fleet.put("map", "short", b"", Duration::from_millis(10), soon()).await.expect("a value");
    fleet.put("map", "long", b"", Duration::from_millis(20), soon()).await.expect("a value");
    clock.set(T0 + Micros::from_micros(9_999));
    assert_eq!(names().await, ["long", "short"]);
    clock.set(T0 + Micros::from_micros(10_000));
    assert_eq!(names().await, ["long"]);
    clock.set(T0 + Micros::from_micros(20_000));
    assert!(names().await.is_empty());
}

#[tokio::test]
async fn ids_increase_while_the_clock_stands_or_goes_back() {
    let clock = ManualClock::new(T0);
    let fleet = Fleet::from(MemoryFleet::new(Clock::Manual(clock.clone())));
    let append = async || fleet.append("log", b"", 10, soon()).await.expect("an id");
    let first = append().await;
    assert_eq!(first.to_string(), "1700000100000-0");
    assert_eq!(append().await, first.next());
    clock.set(T0 - Micros::from_secs(60));
    assert_eq!(append().await, first.next().next());
    clock.set(T0 + Micros::from_secs(1));
    assert_eq!(append().await.to_string(), "1700000101000-0");
}

#[tokio::test]
async fn a_log_is_bounded_in_bytes() {
    let fleet = Fleet::from(MemoryFleet::new(Clock::default()));
    let entry = vec![0; 64 * 1024];
    for _ in 0..1025 {
        fleet.append("log", &entry, u64::MAX, soon()).await.expect("appended");
    }
    let (mut before, mut kept) = (EntryId::MAX, 0);
    loop {
        let range = LogRange { before, ..LogRange::default() };
        let entries = fleet.read("log", range, 100, soon()).await.expect("entries");
        let Some(last) = entries.last() else { break };
        (before, kept) = (last.id, kept + entries.len());
    }
    assert_eq!(kept, 1024, "64 MiB");
}

#[tokio::test]
async fn a_slow_subscriber_is_told_of_a_gap() {
    let fleet = Fleet::from(MemoryFleet::new(Clock::default()));
    let mut subscription = fleet.subscribe("topic");
    assert_eq!(subscription.next().await, FleetEvent::Gap);
    for number in 0..1025_u32 {
        fleet.publish("topic", &number.to_be_bytes(), soon()).await.expect("published");
    }
    assert_eq!(subscription.next().await, FleetEvent::Gap);
    let oldest = FleetEvent::Message(1_u32.to_be_bytes().as_slice().into());
    assert_eq!(subscription.next().await, oldest);
}

/// A journal in memory that can be made to fail.
#[derive(Debug, Default)]
struct Journal {
    entries: Mutex<Vec<(String, EntryId, Vec<u8>)>>,
    secrets: Mutex<Vec<(String, [u8; 32])>>,
    fails: Mutex<bool>,
}

impl Journal {
    fn check(&self) -> Result<(), StoreError> {
        if *self.fails.lock().expect("a flag") { Err(StoreError::Lost) } else { Ok(()) }
    }
}

impl FleetJournal for Journal {
    fn append(
        &self,
        of: ProjectLog<'_>,
        id: EntryId,
        content: &[u8],
        removed: &[ProjectEntryId],
        apply: OnRecorded,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        assert!(removed.is_empty(), "the log has space");
        let recorded = self.check().map(|()| {
            self.entries.lock().expect("entries").push((of.log.to_owned(), id, content.to_owned()));
            apply();
        });
        Box::pin(std::future::ready(recorded))
    }

    fn value(
        &self,
        _map: &str,
        _name: &str,
        _content: &[u8],
        _expires_at: Timestamp,
        apply: OnRecorded,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        Box::pin(std::future::ready(self.check().map(|()| apply())))
    }

    fn catalogue(
        &self,
        _changes: &LocalCopyChanges,
        apply: OnRecorded,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        Box::pin(std::future::ready(self.check().map(|()| apply())))
    }

    fn registers(
        &self,
        _registers: &[Register],
        _expires_at: Timestamp,
        apply: OnRecorded,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        Box::pin(std::future::ready(self.check().map(|()| apply())))
    }

    fn remove_registers(
        &self,
        _names: &[(String, String)],
        apply: OnRecorded,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        Box::pin(std::future::ready(self.check().map(|()| apply())))
    }

    fn secret(&self, name: &str, secret: [u8; 32]) -> BoxFuture<'static, Result<(), StoreError>> {
        let recorded = self.check().map(|()| {
            self.secrets.lock().expect("secrets").push((name.to_owned(), secret));
        });
        Box::pin(std::future::ready(recorded))
    }
}

#[tokio::test]
async fn a_journal_records_before_anything_is_visible_and_restores() {
    let journal = Arc::new(Journal::default());
    let empty = || MemoryFleet::new(Clock::default());
    let fleet = Fleet::from(empty().with_journal(journal.clone()));
    let entries = async |fleet: &Fleet| {
        fleet.read("log", LogRange::default(), 10, soon()).await.expect("entries")
    };
    fleet.append("log", b"a", 10, soon()).await.expect("appended");
    fleet.append("log", b"b", 10, soon()).await.expect("appended");
    let secret = fleet.secret("secret", [1; 32], soon()).await.expect("a secret");
    *journal.fails.lock().expect("a flag") = true;
    assert!(fleet.append("log", b"c", 10, soon()).await.is_err());
    assert!(fleet.secret("another", [2; 32], soon()).await.is_err());
    assert_eq!(fleet.secret("secret", [3; 32], soon()).await.expect("a secret"), secret);
    assert_eq!(entries(&fleet).await.len(), 2);

    let restored = empty();
    for (log, id, content) in &*journal.entries.lock().expect("entries") {
        let of = ProjectLog { log, project: "" };
        restored.restore_entry(of, *id, content);
        // An entry that is there twice is restored once.
        restored.restore_entry(of, *id, content);
    }
    for (name, secret) in &*journal.secrets.lock().expect("secrets") {
        restored.restore_secret(name, *secret);
    }
    let restored = Fleet::from(restored);
    assert_eq!(entries(&restored).await, entries(&fleet).await);
    assert_eq!(restored.secret("secret", [4; 32], soon()).await.expect("a secret"), secret);
    let next = restored.append("log", b"d", 10, soon()).await.expect("appended");
    assert!(next > entries(&fleet).await[0].id);
}
