//! The catalogue of a store that several instances share, and that may lose what they know.
//!
//! An instance that knows more than the store *marks a conflict* there: then nobody writes the
//! catalogue. It ends by a restore, which keeps one side whole: the store's catalogue as it is, or that of
//! an instance, written step by step into a new generation of keys, which one last step makes those of the
//! catalogue. Either gets a new epoch. A restore that ends half-way leaves the catalogue and the marks as
//! they were, and keys that the next restore removes.
//!
//! *Ended keys* are texts beside the catalogue, a set that only grows. They are written in a conflict, too.

use super::{Catalogue, CatalogueBackend, CatalogueHead, CatalogueId, CatalogueRelation, Lineage};
use crate::clock::Timestamp;
use crate::store::RedisFleet;

/// The catalogue in Redis. Clones share it.
#[derive(Clone, Debug)]
pub struct SharedCatalogue(pub(crate) RedisFleet);

impl Catalogue {
    /// Returns the catalogue as several instances share it; `None` in the memory of a process.
    pub fn shared(&self) -> Option<SharedCatalogue> {
        match &self.0 {
            CatalogueBackend::Memory(_) => None,
            CatalogueBackend::Redis(fleet) => Some(SharedCatalogue(fleet.clone())),
        }
    }
}

/// What an instance knows when it looks at the catalogue of the store.
#[derive(Clone, Copy, Debug)]
pub struct CatalogueLook<'a> {
    /// Its catalogue; `None` if it has none.
    pub own: Option<CatalogueHead>,
    /// The epochs that this one has replaced.
    pub lineage: &'a Lineage,
    /// Id of the ended keys that it has in common with the store; empty: it does not know.
    pub ended: &'a str,
    /// Its name, without spaces, if it marks a catalogue that lacks its own; else empty.
    pub instance: &'a str,
    /// Whether it also marks a catalogue if neither knows the other.
    pub marks_foreign: bool,
}

impl<'a> CatalogueLook<'a> {
    /// Returns a look that marks nothing.
    pub fn without_marks(own: Option<CatalogueHead>, lineage: &'a Lineage) -> Self {
        Self { own, lineage, ended: "", instance: "", marks_foreign: false }
    }
}

/// The catalogue of the store as an instance finds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CatalogueStatus {
    /// Its newest revision, and how it follows the one that the instance knows. `None` if there is no
    /// catalogue.
    pub head: Option<(CatalogueHead, CatalogueRelation)>,
    /// The epochs that it has replaced.
    pub lineage: Lineage,
    /// Number of marks of a conflict.
    pub marks: u64,
    /// Id of the ended keys; empty if there are none.
    pub ended: String,
}

/// A mark of a conflict: an instance knows a revision that the store lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogueMark {
    /// Name of the instance.
    pub instance: String,
    /// Epoch of its catalogue.
    pub epoch: CatalogueId,
    /// Revision of its catalogue.
    pub revision: u64,
    /// Time of the mark, by the store's clock.
    pub at: Timestamp,
    /// The epochs that its catalogue has replaced.
    pub lineage: Lineage,
}

/// Some ended keys of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndedPage {
    /// Time by the store's clock.
    pub now: Timestamp,
    /// Id of the ended keys as they are now.
    pub id: String,
    /// Whether the store does not know the caller's id, so that they begin anew.
    pub begins_anew: bool,
    /// The ended keys.
    pub ended: Vec<String>,
    /// Number of the last one; empty: there are no more.
    pub last: String,
}

/// The last step of a restore.
#[derive(Clone, Debug)]
pub struct CatalogueSwitch {
    /// The catalogue of the store when it was read; `None`: there was none.
    pub seen: Option<CatalogueHead>,
    /// Number of marks that were read.
    pub marks: u64,
    /// The restored catalogue, in a new epoch.
    pub head: CatalogueHead,
    /// The epochs that it replaces.
    pub lineage: Lineage,
    /// The documents that were written; `None`: the catalogue of the store is kept as it is.
    pub staged: Option<StagedCatalogue>,
}

/// A catalogue that was written beside that of the store.
#[derive(Clone, Copy, Debug)]
pub struct StagedCatalogue {
    /// The generation of its keys.
    pub generation: CatalogueId,
    /// Number of its documents.
    pub documents: u64,
    /// Number of their counted fields.
    pub counted: u64,
}

/// Outcome of a step of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreStep {
    /// It was made.
    Done,
    /// Another restore has begun or ended, or the store has changed. Nothing was done.
    Changed,
}
