//! A catalogue that a fleet shares: documents of named fields, with one revision over all of them.
//!
//! A write is one atomic step. It names the revision of its document that the writer has read, so
//! that no update is lost, and raises the revision of the catalogue. Readers ask which documents
//! have changed since a revision, and read these.
//!
//! A catalogue has a random epoch, and each revision a random id. With them an instance notices a
//! catalogue that is not the one it knows: an empty or restored store, or a replica that lost
//! writes ([`CatalogueRelation::Lost`]).
//!
//! ```
//! use std::time::Duration;
//!
//! use rlaas_limiter::clock::Deadline;
//! use rlaas_limiter::fleet::{CatalogueWrite, Fleet, WriteOutcome};
//! # use rlaas_limiter::Limiter;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = Limiter::builder().build()?;
//! let catalogue = Fleet::new(limiter.store()).catalogue();
//! let deadline = Deadline::within(Duration::from_secs(1));
//! let mut write = CatalogueWrite::new("shop");
//! write.set.insert("name".to_owned(), b"Shop".to_vec());
//! let written = catalogue.write(None, &write, deadline).await?;
//! assert!(matches!(written, WriteOutcome::Written { head } if head.revision == 1));
//! let shop = catalogue.read("shop", deadline).await?.expect("a document");
//! assert_eq!(shop.fields["name"], b"Shop");
//! # Ok(())
//! # }
//! ```

mod history;
mod lineage;
mod local_copy;
mod memory;
mod risks;
#[cfg(feature = "redis")]
mod shared;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

#[cfg(feature = "redis")]
pub(crate) use self::history::HistoryPiece;
pub use self::history::{HistoryEntry, HistoryReader, MAX_ENTRY_LEN, MAX_HISTORY};
pub use self::lineage::Lineage;
#[cfg(feature = "journal")]
pub(crate) use self::local_copy::CONFIRMED;
pub use self::local_copy::{LocalCopy, LocalCopyAge, LocalCopyChanges};
pub(super) use self::memory::MemoryCatalogue;
pub use self::risks::CatalogueRisks;
#[cfg(feature = "redis")]
pub use self::shared::{
    CatalogueLook, CatalogueMark, CatalogueStatus, CatalogueSwitch, EndedPage, RestoreStep,
    SharedCatalogue, StagedCatalogue,
};
use super::check_name;
use crate::clock::Deadline;
#[cfg(feature = "redis")]
use crate::store::RedisFleet;
use crate::store::{Fate, StoreError};

/// Most bytes of a field: Redis is read in steps of less than a millisecond, which have whole fields.
pub const MAX_FIELD_LEN: usize = 128 * 1024;
/// Ids of revisions that a catalogue keeps.
pub const MAX_REVISION_IDS: usize = 1_000;
/// Begins the names of fields that are counted against [`CatalogueBounds::fields`].
pub const COUNTED_PREFIX: &str = "rule:";
/// Removed documents whose names a catalogue keeps.
pub const MAX_REMOVED: usize = 100_000;
/// Most changes that one call lists.
pub const MAX_CHANGES: usize = 1_000;

/// The documents that all instances of a fleet share. Clones share them.
#[derive(Clone, Debug)]
pub struct Catalogue(pub(super) CatalogueBackend);

#[derive(Clone, Debug)]
pub(super) enum CatalogueBackend {
    Memory(MemoryCatalogue),
    #[cfg(feature = "redis")]
    Redis(RedisFleet),
}

/// A random number that names an epoch or a revision: 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CatalogueId(u128);

/// A revision of a catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatalogueHead {
    /// Epoch of the catalogue.
    pub epoch: CatalogueId,
    /// Number of writes so far.
    pub revision: u64,
    /// Id of this revision.
    pub id: CatalogueId,
}

/// How the catalogue of the store follows the one that an instance knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CatalogueRelation {
    /// The instance knows none.
    First,
    /// It is the same revision.
    Same,
    /// It has the instance's revision, and newer ones.
    Newer,
    /// It has newer revisions, more than [`MAX_REVISION_IDS`]: whether it has the instance's is not known.
    Unchecked,
    /// It replaces the epoch that the instance knows: somebody has restored it.
    Replaced,
    /// It lacks the instance's revision: it was restored from a backup, or lost writes.
    Lost,
    /// Neither knows the epoch of the other.
    Foreign,
}

/// A document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// Revision of the catalogue that changed it last.
    pub revision: u64,
    /// Contents of its fields by name.
    pub fields: BTreeMap<String, Vec<u8>>,
}

/// A document that has changed, or was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentChange {
    /// Its name.
    pub name: String,
    /// Revision of its last change.
    pub revision: u64,
}

/// Bounds over all documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatalogueBounds {
    /// Most documents.
    pub documents: u64,
    /// Most counted fields: those whose names begin with [`COUNTED_PREFIX`].
    pub fields: u64,
}

/// A write to one document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogueWrite {
    /// Name of the document.
    pub document: String,
    /// Revision of the document that the writer has read; 0: there is none.
    pub expected: u64,
    /// Fields to set. Counted ones that are JSON objects are stored with the revision of the write, as
    /// their first member `revision`, which they must not have.
    pub set: BTreeMap<String, Vec<u8>>,
    /// Fields to delete, none of which is in `set`.
    pub delete: BTreeSet<String>,
    /// Removes the document with its history; `set` and `delete` are ignored.
    pub removes: bool,
    /// An entry for the history of the document; empty: none.
    pub history: Vec<u8>,
    /// Bounds that must not be exceeded.
    pub bounds: CatalogueBounds,
    /// Ended keys that are added in the same step, as far as there is room.
    pub ended: Vec<String>,
    /// Time for which a document that was removed is not made again. The names of the last
    /// [`MAX_REMOVED`] are kept.
    pub rest: Duration,
}

/// Outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It was made.
    Written {
        /// The new revision of the catalogue and of the document.
        head: CatalogueHead,
    },
    /// The document is not the one that the writer has read. Nothing was written.
    Raced {
        /// Its revision; 0: there is none.
        revision: u64,
    },
    /// There would be too many documents. Nothing was written.
    TooManyDocuments,
    /// There would be too many counted fields. Nothing was written.
    TooManyFields,
    /// A document of this name was removed a short time ago. Nothing was written.
    Removed,
    /// The catalogue does not follow the one that the writer knows, or the writer knows none and
    /// there is one, or a conflict is marked. Nothing was written.
    Conflict,
}

/// Reason why a document cannot be read, as the source of a [`StoreError::Custom`].
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the document changed each time while it was read")]
pub struct ChangedWhileRead;

#[cfg_attr(
    not(feature = "redis"),
    expect(clippy::unused_async, reason = "Redis is waited for, memory is not")
)]
impl Catalogue {
    /// Topic of the fleet to which the new revision is sent after each write.
    pub const TOPIC: &'static str = "catalog";

    /// Returns the newest revision, and how it follows the one that the caller knows. `None` if
    /// there is no catalogue.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store does not answer before the deadline.
    pub async fn head(
        &self,
        own: Option<CatalogueHead>,
        deadline: Deadline,
    ) -> Result<Option<(CatalogueHead, CatalogueRelation)>, StoreError> {
        match &self.0 {
            CatalogueBackend::Memory(catalogue) => catalogue.head(own, deadline),
            #[cfg(feature = "redis")]
            CatalogueBackend::Redis(fleet) => {
                let lineage = Lineage::default();
                let look = CatalogueLook::without_marks(own, &lineage);
                Ok(fleet.catalogue_look(look, deadline).await?.head)
            }
        }
    }

    /// Returns documents that have changed since a revision, removed ones too, in the order of
    /// their revisions: at most [`MAX_CHANGES`].
    ///
    /// # Errors
    ///
    /// As [`Catalogue::head`].
    pub async fn changes(
        &self,
        since: u64,
        deadline: Deadline,
    ) -> Result<Vec<DocumentChange>, StoreError> {
        match &self.0 {
            CatalogueBackend::Memory(catalogue) => catalogue.changes(since, deadline),
            #[cfg(feature = "redis")]
            CatalogueBackend::Redis(fleet) => fleet.catalogue_changes(since, deadline).await,
        }
    }

    /// Reads a document, as one write has left it; `None` if there is none. Redis is asked for some
    /// fields at a time, so that a large document does not hold it up.
    ///
    /// # Errors
    ///
    /// As [`Catalogue::head`]; [`ChangedWhileRead`].
    pub async fn read(
        &self,
        document: &str,
        deadline: Deadline,
    ) -> Result<Option<Document>, StoreError> {
        check_name(document)?;
        match &self.0 {
            CatalogueBackend::Memory(catalogue) => catalogue.read(document, deadline),
            #[cfg(feature = "redis")]
            CatalogueBackend::Redis(fleet) => fleet.catalogue_read(document, deadline).await,
        }
    }

    /// Returns the ended keys that the journal of the memory store had; none with Redis.
    pub fn journaled_ended(&self) -> BTreeSet<String> {
        match &self.0 {
            CatalogueBackend::Memory(catalogue) => catalogue.ended(),
            #[cfg(feature = "redis")]
            CatalogueBackend::Redis(_) => BTreeSet::new(),
        }
    }

    /// Writes a document. `own` is the catalogue that the writer knows; without one, the first write
    /// makes the catalogue.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the document was not written, or possibly written:
    /// [`StoreError::is_ambiguous`].
    pub async fn write(
        &self,
        own: Option<CatalogueHead>,
        write: &CatalogueWrite,
        deadline: Deadline,
    ) -> Result<WriteOutcome, StoreError> {
        check_name(&write.document)?;
        write.check()?;
        match &self.0 {
            CatalogueBackend::Memory(catalogue) => catalogue.write(own, write, deadline).await,
            #[cfg(feature = "redis")]
            CatalogueBackend::Redis(fleet) => fleet.catalogue_write(own, write, deadline).await,
        }
    }
}

impl CatalogueWrite {
    /// Creates a write of a new document without fields, within the largest bounds.
    pub fn new(document: &str) -> Self {
        Self {
            document: document.to_owned(),
            expected: 0,
            set: BTreeMap::new(),
            delete: BTreeSet::new(),
            removes: false,
            history: Vec::new(),
            bounds: CatalogueBounds { documents: u64::MAX, fields: u64::MAX },
            ended: Vec::new(),
            rest: Duration::ZERO,
        }
    }

    /// Returns `true` if a field has more than [`MAX_FIELD_LEN`] bytes: it can't be written.
    pub fn has_long_field(&self) -> bool {
        self.set.values().any(|content| content.len() > MAX_FIELD_LEN)
    }

    /// Returns the write as it is stored: counted fields that are JSON objects have the revision.
    /// Twin: `stamped` in `lua/catalogue.lua`.
    fn stamped(&self, revision: u64) -> Self {
        let mut write = self.clone();
        let counted = write.set.iter_mut().filter(|(name, _)| name.starts_with(COUNTED_PREFIX));
        for (_, content) in counted.filter(|(_, content)| content.starts_with(b"{\"")) {
            let member = format!("\"revision\":{revision},");
            content.splice(1..1, member.into_bytes());
        }
        write
    }

    fn check(&self) -> Result<(), StoreError> {
        for name in self.set.keys().chain(&self.delete) {
            check_name(name)?;
        }
        if self.has_long_field() || self.history.len() > MAX_ENTRY_LEN {
            return Err(StoreError::custom(Fate::NotExecuted, FieldTooLong));
        }
        let is_both = self.delete.iter().any(|name| self.set.contains_key(name));
        debug_assert!(!is_both, "a field is set and deleted");
        Ok(())
    }
}

/// Reason why a write was refused, as the source of a [`StoreError::Custom`].
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a field must be at most {MAX_FIELD_LEN} bytes, an entry of the history {MAX_ENTRY_LEN}")]
pub struct FieldTooLong;

impl CatalogueId {
    /// Makes a random id. Not a secret.
    pub fn random() -> Self {
        // `RandomState` has new random keys each time, so no random number generator is needed.
        let part = |half: u8| u128::from(RandomState::new().hash_one(half));
        Self(part(0) << 64 | part(1))
    }
}

impl fmt::Display for CatalogueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A text that is no id.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("must be 32 hexadecimal digits")]
pub struct InvalidCatalogueId;

impl FromStr for CatalogueId {
    type Err = InvalidCatalogueId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = u128::from_str_radix(text, 16).ok().filter(|_| is_digits);
        id.map(Self).ok_or(InvalidCatalogueId)
    }
}
