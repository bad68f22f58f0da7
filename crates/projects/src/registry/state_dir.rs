//! The catalogue in force in a folder, so that an instance starts and decides with it while the store
//! is away.
//!
//! The folder also has the age of the catalogue: how long ago it was last that of the store. So a restart
//! does not make API keys younger than they are.
//!
//! The folder is a journal, without histories. Damage loses the whole catalogue, not a part of it, until
//! it was written again: otherwise an API key could be accepted again that was revoked later. The ends of
//! keys beside it are each used as far as they can be read.

use std::path::Path;
use std::sync::Arc;

use rlaas_core::clock::{Clock, Micros, Timestamp};
use rlaas_limiter::fleet::{CatalogueHead, Lineage, LocalCopy, LocalCopyAge, LocalCopyChanges};
use rlaas_limiter::journal::{Journal, JournalError, JournalSettings};
use rlaas_limiter::observer::NoObserver;
use tracing::{error, info};

/// Longest changes that are written together with the head, and longest parts of longer ones.
const MAX_LEN: usize = 8 << 20;
/// Time between two writes of the age alone.
const AGE_INTERVAL: Micros = Micros::from_secs(5);

/// A folder that is locked against other processes.
#[derive(Debug)]
pub(super) struct StateDir {
    journal: Journal,
    /// What the folder lacks.
    pending: LocalCopyChanges,
    head: Option<CatalogueHead>,
    /// Does not follow wall time, which can be set.
    clock: Clock,
    /// Time by `clock` at which the age was set last.
    age_set_at: Option<Timestamp>,
    is_failing: bool,
}

impl StateDir {
    /// Opens a folder, and returns what is in it: without a head only the ends of keys count.
    ///
    /// # Errors
    ///
    /// [`JournalError`] if another process uses the folder, or it can't be used.
    pub(super) fn open(path: &Path) -> Result<(Self, LocalCopy), JournalError> {
        let settings = JournalSettings::new(path);
        let journal = Journal::open(&settings, Clock::default(), Arc::new(NoObserver))?;
        let (mut kept, mut pending) = journal.take_restored_catalogue();
        kept.head = kept.head.filter(|_| !journal.is_damaged());
        let is_lost = kept.head.is_none() && (journal.is_damaged() || !kept.documents.is_empty());
        if is_lost && !pending.is_empty() {
            error!(path = %path.display(), "state-dir is damaged: its catalogue is not used");
            for ended in &kept.ended {
                pending.set_ended(ended, true);
            }
        } else {
            pending = LocalCopyChanges::default();
        }
        let (clock, age_set_at, is_failing) = (Clock::default(), None, false);
        let head = kept.head;
        Ok((Self { journal, pending, head, clock, age_set_at, is_failing }, kept))
    }

    /// Returns the age of a catalogue that was kept; `None`: nobody knows it.
    pub(super) fn age_of(kept: &LocalCopy) -> Option<Micros> {
        kept.age?.age_at(wall_time())
    }

    /// Adds the age of the catalogue in force to the changes that [`StateDir::flush`] writes, if there
    /// are others or the last age was added a while ago.
    pub(super) fn set_age(&mut self, age: Micros) {
        let now = self.clock.now();
        let is_due = |last| now.since(last) >= AGE_INTERVAL;
        if !self.pending.is_empty() || self.age_set_at.is_none_or(is_due) {
            self.age_set_at = Some(now);
            self.pending.set_age(LocalCopyAge { at: wall_time(), age });
        }
    }

    /// Adds changes to those that [`StateDir::flush`] writes.
    pub(super) fn add(&mut self, changes: LocalCopyChanges) {
        self.pending.extend(changes);
    }

    /// Writes what the folder lacks of the catalogue with this head. A failure is logged; then it is
    /// tried again with the next change.
    pub(super) async fn flush(&mut self, head: Option<CatalogueHead>, lineage: &Lineage) {
        if self.pending.is_empty() && self.head == head {
            return;
        }
        let written = self.write(head, lineage).await;
        match &written {
            Ok(()) => {
                self.pending = LocalCopyChanges::default();
                self.head = head;
            }
            Err(error) if !self.is_failing => error!(%error, "state-dir can't be written"),
            Err(_) => {}
        }
        if written.is_ok() && self.is_failing {
            info!("state-dir is written again");
        }
        self.is_failing = written.is_err();
    }

    /// Writes all changes at once, or in parts. Without the head, which is last, no part counts.
    async fn write(
        &self,
        head: Option<CatalogueHead>,
        lineage: &Lineage,
    ) -> Result<(), JournalError> {
        let mut parts = self.pending.parts(MAX_LEN);
        let mut last = parts.pop().unwrap_or_default();
        if !parts.is_empty() {
            let mut none = LocalCopyChanges::default();
            none.set_head(None, lineage);
            self.journal.write_catalogue(&none).await?;
        }
        for part in &parts {
            self.journal.write_catalogue(part).await?;
        }
        last.set_head(head, lineage);
        self.journal.write_catalogue(&last).await?;
        if self.journal.is_damaged() {
            Journal::accept(self.journal.path())?;
        }
        Ok(())
    }
}

/// Returns the time of the machine, which can be set.
fn wall_time() -> Timestamp {
    Clock::default().now()
}
