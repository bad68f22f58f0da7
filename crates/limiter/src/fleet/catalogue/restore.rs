//! Conflicts of catalogues, and their end.
//!
//! A conflict is marked in the store, so that nobody writes a catalogue that lost revisions. It ends by
//! a restore: documents are written step by step into a new generation of keys, which one last step
//! makes those of the catalogue, under a new epoch. Readers see the catalogue before that step or after
//! it. A restore that ends half-way leaves the catalogue and the mark as they were, and keys that the
//! next restore removes.
//!
//! Entries beside the catalogue (*aside*) can be written while the conflict lasts.

use std::collections::BTreeSet;

use super::{Catalogue, CatalogueBackend, CatalogueHead, CatalogueId, CatalogueRelation, Document};
use crate::clock::Deadline;
use crate::fleet::{check_name, check_value};
use crate::store::StoreError;

/// The catalogue of the store as an instance finds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CatalogueStatus {
    /// Its newest revision, and how it follows the one that the instance knows. `None` if there is no
    /// catalogue.
    pub head: Option<(CatalogueHead, CatalogueRelation)>,
    /// Whether a conflict is marked.
    pub is_marked: bool,
    /// Number of entries beside the catalogue.
    pub aside: u64,
}

/// The last step of a restore.
#[derive(Clone, Debug)]
pub struct CatalogueRestore {
    /// The generation that was written.
    pub generation: CatalogueId,
    /// The catalogue of the store when it was read; `None`: there was none.
    pub seen: Option<CatalogueHead>,
    /// Number of entries beside the catalogue that were read.
    pub aside: u64,
    /// The restored catalogue, in a new epoch.
    pub head: CatalogueHead,
    /// Number of its documents.
    pub documents: u64,
    /// Number of their counted fields.
    pub counted: u64,
    /// The epochs that it replaces.
    pub replaced: BTreeSet<CatalogueId>,
}

/// Outcome of a step of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreStep {
    /// It was made.
    Done,
    /// Another restore has begun or ended, or the store has changed. Nothing was done.
    Changed,
}

/// Outcome of setting entries beside the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetAside {
    /// They were set.
    Done,
    /// There would be more than there may be.
    Full,
    /// No conflict is marked.
    NoConflict,
}

#[cfg_attr(
    not(feature = "redis"),
    expect(clippy::unused_async, reason = "Redis is waited for, memory is not")
)]
impl Catalogue {
    /// Returns the newest revision, how it follows the one that the caller knows, and whether a conflict
    /// is marked. Marks one if the catalogue has lost a revision of the caller's epoch, or all of it;
    /// with `in_step`, also if it has another epoch that does not replace the caller's.
    ///
    /// # Errors
    ///
    /// As [`Catalogue::head`].
    pub async fn status(
        &self,
        own: Option<CatalogueHead>,
        in_step: bool,
        deadline: Deadline,
    ) -> Result<CatalogueStatus, StoreError> {
        match &self.0 {
            CatalogueBackend::Memory(catalogue) => {
                // Nobody else writes.
                let _ = in_step;
                let head = catalogue.head(own, deadline)?;
                Ok(CatalogueStatus { head, ..CatalogueStatus::default() })
            }
            #[cfg(feature = "redis")]
            CatalogueBackend::Redis(fleet) => fleet.catalogue_status(own, in_step, deadline).await,
        }
    }

    /// Returns the epochs that the catalogue of the store replaces.
    ///
    /// # Errors
    ///
    /// As [`Catalogue::head`].
    pub async fn replaced(&self, deadline: Deadline) -> Result<BTreeSet<CatalogueId>, StoreError> {
        match &self.0 {
            CatalogueBackend::Memory(catalogue) => {
                catalogue.head(None, deadline).map(|_| BTreeSet::new())
            }
            #[cfg(feature = "redis")]
            CatalogueBackend::Redis(fleet) => fleet.catalogue_replaced(deadline).await,
        }
    }

    /// Returns the names and contents of the entries beside the catalogue.
    ///
    /// # Errors
    ///
    /// As [`Catalogue::head`].
    pub async fn aside(&self, deadline: Deadline) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        match &self.0 {
            CatalogueBackend::Memory(catalogue) => {
                catalogue.head(None, deadline).map(|_| Vec::new())
            }
            #[cfg(feature = "redis")]
            CatalogueBackend::Redis(fleet) => fleet.catalogue_aside(deadline).await,
        }
    }

    /// Sets entries beside the catalogue, names with their contents, all or none. The next restore
    /// removes them.
    ///
    /// # Errors
    ///
    /// As [`Catalogue::write`].
    pub async fn set_aside(
        &self,
        entries: &[(String, Vec<u8>)],
        deadline: Deadline,
    ) -> Result<SetAside, StoreError> {
        for (name, content) in entries {
            check_name(name)?;
            check_value(content)?;
        }
        match &self.0 {
            CatalogueBackend::Memory(catalogue) => {
                catalogue.head(None, deadline).map(|_| SetAside::NoConflict)
            }
            #[cfg(feature = "redis")]
            CatalogueBackend::Redis(fleet) => fleet.catalogue_set_aside(entries, deadline).await,
        }
    }

    /// Begins a restore, and marks the conflict. Returns the generation to write; `None` if there is no
    /// conflict.
    ///
    /// # Errors
    ///
    /// As [`Catalogue::head`].
    pub async fn begin_restore(
        &self,
        own: Option<CatalogueHead>,
        deadline: Deadline,
    ) -> Result<Option<CatalogueId>, StoreError> {
        match &self.0 {
            CatalogueBackend::Memory(catalogue) => catalogue.head(own, deadline).map(|_| None),
            #[cfg(feature = "redis")]
            CatalogueBackend::Redis(fleet) => fleet.catalogue_begin(own, deadline).await,
        }
    }

    /// Writes a document of a restore; `None`: the restored catalogue lacks it. Its history is kept only
    /// with `keeps_history`.
    ///
    /// # Errors
    ///
    /// As [`Catalogue::head`].
    pub async fn stage(
        &self,
        generation: CatalogueId,
        (name, document): (&str, Option<&Document>),
        keeps_history: bool,
        deadline: Deadline,
    ) -> Result<RestoreStep, StoreError> {
        check_name(name)?;
        match &self.0 {
            CatalogueBackend::Memory(catalogue) => {
                // Nothing is written.
                let _ = (generation, document, keeps_history);
                catalogue.head(None, deadline).map(|_| RestoreStep::Changed)
            }
            #[cfg(feature = "redis")]
            CatalogueBackend::Redis(fleet) => {
                fleet.catalogue_stage(generation, (name, document), keeps_history, deadline).await
            }
        }
    }

    /// Ends a restore: its generation is now that of the catalogue, and the conflict has ended.
    ///
    /// # Errors
    ///
    /// As [`Catalogue::write`].
    pub async fn end_restore(
        &self,
        restore: &CatalogueRestore,
        deadline: Deadline,
    ) -> Result<RestoreStep, StoreError> {
        match &self.0 {
            CatalogueBackend::Memory(catalogue) => {
                // Nothing is written.
                let _ = restore;
                catalogue.head(None, deadline).map(|_| RestoreStep::Changed)
            }
            #[cfg(feature = "redis")]
            CatalogueBackend::Redis(fleet) => fleet.catalogue_switch(restore, deadline).await,
        }
    }

    /// Removes the keys of generations that are not that of the catalogue, and not being written.
    ///
    /// # Errors
    ///
    /// As [`Catalogue::head`].
    pub async fn tidy(&self, deadline: Deadline) -> Result<(), StoreError> {
        match &self.0 {
            CatalogueBackend::Memory(catalogue) => catalogue.head(None, deadline).map(drop),
            #[cfg(feature = "redis")]
            CatalogueBackend::Redis(fleet) => fleet.catalogue_tidy(deadline).await,
        }
    }
}
