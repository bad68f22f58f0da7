//! What a memory store keeps over restarts: changes of overrides in a journal, and its states in
//! snapshots.
//!
//! Decisions do nothing for a snapshot. A thread copies the states of all stripes, and holds the
//! lock of a stripe for at most [`SLOTS_PER_LOCK`] slots. So keys are in a snapshot as they were at
//! different times while it was written, each with all that belongs to it.

use std::borrow::Cow;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tracing::{error, info};

use super::settlement_table::UNKNOWN_HOLDER;
use super::{
    KeyLocation, MemorySettings, MemoryStore, PaddedStripe, Reservations, SLOTS_PER_LOCK, lock,
};
use crate::clock::{Clock, HighWaterMarks, Micros, Timestamp};
use crate::fleet::CONFIRMED;
use crate::journal::{
    Journal, JournalError, JournalSettings, Part, SnapshotFile, SnapshotSettings, Space,
};
use crate::observer::{Observer, StoreEvent};

impl MemoryStore {
    /// Creates a store with the overrides that a journal has, and writes changes to the journal.
    ///
    /// # Errors
    ///
    /// [`JournalError`] if the journal can't be opened, or has the projects of a Redis.
    pub fn open(
        settings: MemorySettings,
        journal: &JournalSettings,
        clock: Clock,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, JournalError> {
        let journal = Journal::open(journal, clock.clone(), Arc::clone(&observer))?;
        // Only a copy of another store's catalogue has an age.
        if journal.has_restored(Space::CATALOGUE, CONFIRMED) {
            let problem = "has the projects of a redis: empty it";
            return Err(JournalError::NotOurs { path: journal.path().to_owned(), problem });
        }
        let mut store = Self::new(settings, clock, observer);
        store.restore_overrides(&journal.take_restored(Space::CONTROL));
        store.journal = Some(journal);
        Ok(store)
    }

    /// Restores the states of the last snapshot, and writes one each interval from now on.
    ///
    /// # Errors
    ///
    /// [`JournalError`] if another process uses the folder, if the file can't be used, or if
    /// another version wrote it. A damaged file is no error: it is logged, kept, and not used.
    pub fn with_snapshots(
        mut self,
        settings: &SnapshotSettings,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, JournalError> {
        let file = SnapshotFile::open(&settings.path)?;
        self.restore_snapshot(&file)?;
        let (stripes, clock) = (Arc::clone(&self.stripes), self.clock.clone());
        let reservations = Arc::clone(&self.reservations);
        let writer =
            SnapshotThread { file, stripes, reservations, clock, observer, is_failing: false };
        self.snapshots = Some(Arc::new(Snapshots::start(writer, settings)?));
        Ok(self)
    }

    fn restore_snapshot(&self, file: &SnapshotFile) -> Result<(), JournalError> {
        let time = self.clock.now();
        let mut invalid: u64 = 0;
        file.restore(|part| match part {
            // A state of another algorithm or limit is what it would be without a restart.
            Some(Part::State(key, state)) if state.is_valid() => {
                if time < state.expires_at() + Micros::from_millis(1) {
                    let KeyLocation { hash, stripe } = self.location_of(key.as_bytes());
                    lock(&self.stripes[stripe]).restore(hash, key, state.into_owned(), time);
                }
            }
            Some(Part::Limits(key, history)) if history.is_valid() => {
                if history.is_alive(time) {
                    let key = key.as_bytes();
                    let mut stripe = lock(&self.stripes[self.location_of(key).stripe]);
                    stripe.set_limit_history(key, history.into_owned(), time);
                }
            }
            Some(Part::Mark(window, latest)) => {
                self.stripes.iter().for_each(|stripe| lock(stripe).restore_mark(window, latest));
            }
            Some(Part::End) => {}
            Some(Part::Holds(key, holds)) if holds.is_valid() => {
                self.lock_reservations().holds.set(key.as_bytes(), holds.into_owned());
            }
            Some(Part::SettlementOf(project, number, settlement)) => {
                let mut all = self.lock_reservations();
                all.settlements.add(project, number, settlement.into_owned());
            }
            Some(Part::Settlement(number, settlement)) => {
                self.lock_reservations().settlements.add(
                    UNKNOWN_HOLDER,
                    number,
                    settlement.into_owned(),
                );
            }
            Some(Part::EvictedSettlements(project, until)) => {
                self.lock_reservations().settlements.restore_evicted(project, until);
            }
            Some(Part::State(..) | Part::Limits(..) | Part::Holds(..)) | None => invalid += 1,
        })?;
        if invalid > 0 {
            error!(parts = invalid, "the snapshot has states that are not valid: they begin anew");
        }
        Ok(())
    }

    /// Returns the journal, if there is one.
    pub fn journal(&self) -> Option<&Journal> {
        self.journal.as_ref()
    }

    /// Writes a last snapshot, and what waits for the journal, and unlocks their folders. Blocks
    /// the thread. Without a journal and snapshots does nothing.
    pub fn close_journal(&self) {
        if let Some(snapshots) = &self.snapshots {
            snapshots.close();
        }
        if let Some(journal) = &self.journal {
            journal.close();
        }
    }
}

/// The thread that writes snapshots. It ends when this is dropped, after a last one.
#[derive(Debug)]
pub(super) struct Snapshots {
    /// The thread ends once it is dropped.
    running: Mutex<Option<Sender<()>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Snapshots {
    fn start(
        mut writer: SnapshotThread,
        settings: &SnapshotSettings,
    ) -> Result<Self, JournalError> {
        let ((running, ended), interval) = (channel(), settings.interval);
        let run = move || {
            // Not that of the store, which tests set.
            let clock = Clock::default();
            let mut began = clock.now();
            loop {
                let passed = Duration::from(clock.now().since(began));
                let waited = ended.recv_timeout(interval.saturating_sub(passed));
                began = clock.now();
                writer.write();
                if waited == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("snapshot".to_owned()).spawn(run);
        let error = |error| JournalError::io("start a thread for", &settings.path, error);
        let thread = Mutex::new(Some(thread.map_err(error)?));
        Ok(Self { running: Mutex::new(Some(running)), thread })
    }

    /// Writes a last snapshot, and unlocks the folder.
    fn close(&self) {
        drop(take(&self.running));
        if let Some(thread) = take(&self.thread) {
            // A panic was logged.
            let _panic = thread.join();
        }
    }
}

fn take<T>(mutex: &Mutex<Option<T>>) -> Option<T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// What the thread needs.
struct SnapshotThread {
    file: SnapshotFile,
    stripes: Arc<[PaddedStripe]>,
    reservations: Arc<Mutex<Reservations>>,
    clock: Clock,
    observer: Arc<dyn Observer>,
    is_failing: bool,
}

impl SnapshotThread {
    fn write(&mut self) {
        let began = self.clock.now();
        let written = self.try_write();
        let is_failing = written.is_err();
        match written {
            Ok(()) => self.observer.store(StoreEvent::SnapshotWritten(began)),
            Err(error) if !self.is_failing => {
                error!(%error, "snapshot failed: a restart would lose counters");
            }
            Err(_) => {}
        }
        if is_failing != self.is_failing {
            self.is_failing = is_failing;
            self.observer.store(StoreEvent::SnapshotFailing(is_failing));
            if !is_failing {
                info!("snapshots are written again");
            }
        }
    }

    fn try_write(&self) -> Result<(), JournalError> {
        let mut snapshot = self.file.begin()?;
        let mut marks = HighWaterMarks::default();
        for stripe in &*self.stripes {
            let mut end = usize::MAX;
            while end > 0 {
                let stripe = lock(stripe);
                let now = self.clock.now();
                raise(&mut marks, stripe.marks(), now);
                end = stripe.copy_states(end, SLOTS_PER_LOCK, now, snapshot.block());
                drop(stripe);
                snapshot.write_block()?;
            }
        }
        // After the states: a cost that is charged meanwhile is lost, and not charged twice.
        let reservations = || self.reservations.lock().unwrap_or_else(PoisonError::into_inner);
        let holds = reservations().holds.copy(self.clock.now());
        for (key, holds) in holds {
            snapshot.block().push(&Part::Holds(&key, Cow::Owned(holds)));
            if snapshot.block().is_full() {
                snapshot.write_block()?;
            }
        }
        let holders = reservations().settlements.holders();
        for holder in holders {
            let mut end = Some((Timestamp::from_micros(u64::MAX), u128::MAX));
            while let Some((at, number)) = end {
                let block = snapshot.block();
                let reservations = reservations();
                end = reservations.settlements.copy(&holder, at, number, SLOTS_PER_LOCK, block);
                drop(reservations);
                if snapshot.block().is_full() {
                    snapshot.write_block()?;
                }
            }
        }
        for (window, time) in marks.iter() {
            snapshot.block().push(&Part::Mark(window, time));
        }
        snapshot.finish()
    }
}

/// Raises each time to that of a stripe, if it is later there. A time more than a window ahead is
/// of before the clock was set back, and of no effect.
fn raise(marks: &mut HighWaterMarks, stripe: &HighWaterMarks, now: Timestamp) {
    for (window, time) in stripe.iter() {
        if time > marks.latest(window) && time.since(now) <= window {
            marks.set(window, time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::observer::NoObserver;
    use crate::reservation::{RememberedSettlement, Settlement};

    /// Snapshots had settlements without their projects before, and any number of them.
    #[test]
    fn settlements_without_a_project_are_read_for_all_and_within_the_bound() {
        let name = format!("rlaas-settlements-test-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let time = Timestamp::from_millis(1_700_000_100_000);
        let later = time + Micros::from_secs(600);
        let file = SnapshotFile::open(&path).expect("a new folder");
        let mut snapshot = file.begin().expect("a file");
        // The last ones come first.
        for number in (0..1_000).rev() {
            let settlement =
                RememberedSettlement::new(vec![("tokens".into(), Settlement::default())], later);
            snapshot.block().push(&Part::Settlement(number, Cow::Owned(settlement)));
        }
        snapshot.finish().expect("a snapshot");
        drop(file);
        let clock = Clock::Manual(ManualClock::new(time));
        let store = MemoryStore::new(MemorySettings::default(), clock, Arc::new(NoObserver));
        let store = store.with_max_reservations(10, 32_600);
        let settings =
            SnapshotSettings { path: path.clone(), interval: Duration::from_secs(3_600) };
        let store = store.with_snapshots(&settings, Arc::new(NoObserver)).expect("a snapshot");
        for project in ["", "shop"] {
            let all = store.lock_reservations();
            let known = |number: &u128| all.settlements.get(project, *number).is_some();
            assert!((900..1_000).all(|number| known(&number)), "{project}");
            assert_eq!((0..1_000).filter(known).count(), 100, "{project}");
            assert_eq!(all.settlements.forgotten(project), later);
        }
        store.close_journal();
        std::fs::remove_dir_all(&path).expect("the folder");
    }
}
