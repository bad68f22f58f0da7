//! The local copy of a catalogue, in a journal.
//!
//! | name | value |
//! | --- | --- |
//! | `head` | epoch, revision, id and lineage of the catalogue, as texts with spaces between them |
//! | `d`, document | revision of the document: 8 bytes, big-endian |
//! | `f`, length of the name in 2 bytes, document, field | content of a field |
//! | `h`, length of the name in 2 bytes, document, revision in 8 bytes | entry of a history |
//! | `r`, document | time of its removal, in Unix microseconds: 8 bytes, big-endian |
//! | `e`, ended key | empty |
//! | `confirmed` | wall time in Unix microseconds, and age of the catalogue by then in microseconds: 8 bytes each, big-endian |
//!
//! Changes that are written together are restored together or not at all.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{CatalogueHead, CatalogueWrite, Document, HistoryEntry, Lineage};
use crate::clock::{Micros, Timestamp};

const HEAD: &[u8] = b"head";
pub(crate) const CONFIRMED: &[u8] = b"confirmed";
const DOCUMENT: u8 = b'd';
const FIELD: u8 = b'f';
const HISTORY: u8 = b'h';
const REMOVED: u8 = b'r';
const ENDED: u8 = b'e';

/// A catalogue that a journal held when it was opened.
#[derive(Clone, Debug, Default)]
pub struct LocalCopy {
    /// Its revision; `None` if it was lost, or some changes were not written.
    pub head: Option<CatalogueHead>,
    /// Documents by name.
    pub documents: HashMap<String, Document>,
    /// Histories by the names of the documents, each newest first.
    pub histories: HashMap<String, Vec<HistoryEntry>>,
    /// Documents that were removed, with the time.
    pub removed: HashMap<String, Timestamp>,
    /// Epochs that the catalogue has replaced.
    pub lineage: Lineage,
    /// Ended keys.
    pub ended: BTreeSet<String>,
    /// How old the catalogue was at a time; `None` if that was not written.
    pub age: Option<LocalCopyAge>,
}

/// The age of a local copy at a time: how long ago the store had the same catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalCopyAge {
    /// The time, by the clock of the machine.
    pub at: Timestamp,
    /// The age by then.
    pub age: Micros,
}

impl LocalCopyAge {
    /// Returns the age at `now`; `None` if that is before this time, so that nobody knows how long it
    /// is ago: the clock was set.
    pub fn age_at(&self, now: Timestamp) -> Option<Micros> {
        (now >= self.at).then(|| self.age + now.since(self.at))
    }
}

/// Changes of a local copy that are written together.
#[derive(Clone, Debug, Default)]
pub struct LocalCopyChanges(BTreeMap<Vec<u8>, Option<Vec<u8>>>);

impl LocalCopy {
    /// Reads the names and values of a journal. Also returns the changes that delete all of them.
    pub fn read(values: impl Iterator<Item = (Box<[u8]>, Box<[u8]>)>) -> (Self, LocalCopyChanges) {
        let (mut head, mut documents) = (None, HashMap::<String, Document>::new());
        let mut histories = HashMap::<String, Vec<HistoryEntry>>::new();
        let (mut removed, mut ended, mut age) = (HashMap::new(), BTreeSet::new(), None);
        let mut deleting = LocalCopyChanges::default();
        for (name, value) in values {
            deleting.set(name.to_vec(), None);
            if *name == *HEAD {
                head = parse_head(&value);
                continue;
            }
            if *name == *CONFIRMED {
                age = parse_age(&value);
                continue;
            }
            let Some((kind, name)) = name.split_first() else { continue };
            if *kind == DOCUMENT {
                if let (Ok(name), Some(revision)) = (str::from_utf8(name), number(&value)) {
                    documents.entry(name.to_owned()).or_default().revision = revision;
                }
                continue;
            }
            if *kind == REMOVED {
                if let (Ok(name), Some(time_us)) = (str::from_utf8(name), number(&value)) {
                    removed.insert(name.to_owned(), Timestamp::from_micros(time_us));
                }
                continue;
            }
            if *kind == ENDED {
                ended.extend(str::from_utf8(name).map(str::to_owned));
                continue;
            }
            let Some((document, rest)) = split_name(name) else { continue };
            let content = value.into_vec();
            match (*kind, str::from_utf8(rest), number(rest)) {
                (FIELD, Ok(field), _) => {
                    let document = documents.entry(document.to_owned()).or_default();
                    document.fields.insert(field.to_owned(), content);
                }
                (HISTORY, _, Some(revision)) => {
                    let history = histories.entry(document.to_owned()).or_default();
                    history.push(HistoryEntry { revision, content });
                }
                _ => {}
            }
        }
        documents.retain(|_, document| document.revision > 0);
        for history in histories.values_mut() {
            history.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.revision));
        }
        let (head, lineage) = head.unzip();
        let lineage = lineage.unwrap_or_default();
        (Self { head, documents, histories, removed, lineage, ended, age }, deleting)
    }
}

impl LocalCopyChanges {
    /// Sets the revision of the catalogue; `None`: there is none until it is set again.
    pub fn set_head(&mut self, head: Option<CatalogueHead>, lineage: &Lineage) {
        let text =
            |head: CatalogueHead| format!("{} {} {} {lineage}", head.epoch, head.revision, head.id);
        self.set(HEAD.to_vec(), head.map(|head| text(head).into_bytes()));
    }

    /// Sets how old the catalogue is.
    pub fn set_age(&mut self, LocalCopyAge { at, age }: LocalCopyAge) {
        let value = [at.as_micros().to_be_bytes(), age.as_micros().to_be_bytes()];
        self.set(CONFIRMED.to_vec(), Some(value.concat()));
    }

    /// Makes a write to a document, without its history. If it removes the document, `fields` are
    /// those that it has.
    pub fn write<'a>(
        &mut self,
        write: &CatalogueWrite,
        revision: u64,
        fields: impl Iterator<Item = &'a str>,
    ) {
        let document = &write.document;
        let name = [&[DOCUMENT], document.as_bytes()].concat();
        if write.removes {
            self.set(name, None);
            self.0.extend(fields.map(|field| (field_name(document, field), None)));
            return;
        }
        self.set(name, Some(revision.to_be_bytes().to_vec()));
        let set = write.set.iter();
        self.0.extend(
            set.map(|(field, content)| (field_name(document, field), Some(content.clone()))),
        );
        let deleted = write.delete.iter();
        self.0.extend(deleted.map(|field| (field_name(document, field), None)));
    }

    /// Sets or removes an entry of a history.
    pub(super) fn set_history(&mut self, document: &str, revision: u64, content: Option<&[u8]>) {
        let name = long_name(HISTORY, document, &revision.to_be_bytes());
        self.set(name, content.map(<[u8]>::to_vec));
    }

    /// Sets or forgets the time at which a document was removed.
    pub(super) fn set_removed(&mut self, document: &str, at: Option<Timestamp>) {
        let name = [&[REMOVED], document.as_bytes()].concat();
        self.set(name, at.map(|at| at.as_micros().to_be_bytes().to_vec()));
    }

    /// Adds or forgets an ended key.
    pub fn set_ended(&mut self, ended: &str, is_kept: bool) {
        self.set([&[ENDED], ended.as_bytes()].concat(), is_kept.then(Vec::new));
    }

    /// Returns the changes of ended keys, and all others.
    #[cfg(feature = "journal")]
    pub(in crate::fleet) fn split_ended(&self) -> (Self, Self) {
        let is_ended = |(name, _): &(Vec<u8>, _)| name.first() == Some(&ENDED);
        let (ended, others) = self.0.clone().into_iter().partition(is_ended);
        (Self(ended), Self(others))
    }

    /// Adds changes that are made later.
    pub fn extend(&mut self, later: Self) {
        self.0.extend(later.0);
    }

    /// Returns `true` if there are no changes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the changes in parts of about `len` bytes.
    pub fn parts(&self, len: usize) -> Vec<Self> {
        let (mut parts, mut part_len) = (Vec::<Self>::new(), usize::MAX);
        for (name, value) in &self.0 {
            if part_len >= len {
                parts.push(Self::default());
                part_len = 0;
            }
            part_len += name.len() + value.as_ref().map_or(0, Vec::len);
            if let Some(part) = parts.last_mut() {
                part.set(name.clone(), value.clone());
            }
        }
        parts
    }

    fn set(&mut self, name: Vec<u8>, value: Option<Vec<u8>>) {
        self.0.insert(name, value);
    }

    /// Returns the names of the journal and their new values; `None`: it has none.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.0.iter().map(|(name, value)| (name.as_slice(), value.as_deref()))
    }
}

fn field_name(document: &str, field: &str) -> Vec<u8> {
    long_name(FIELD, document, field.as_bytes())
}

fn long_name(kind: u8, document: &str, rest: &[u8]) -> Vec<u8> {
    let len = u16::try_from(document.len()).unwrap_or(u16::MAX);
    [&[kind], &len.to_be_bytes()[..], document.as_bytes(), rest].concat()
}

fn split_name(name: &[u8]) -> Option<(&str, &[u8])> {
    let (len, rest) = name.split_at_checked(2)?;
    let len = u16::from_be_bytes(len.try_into().ok()?);
    let (document, rest) = rest.split_at_checked(len.into())?;
    Some((str::from_utf8(document).ok()?, rest))
}

fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

fn parse_age(value: &[u8]) -> Option<LocalCopyAge> {
    let (at, age) = value.split_at_checked(8)?;
    Some(LocalCopyAge {
        at: Timestamp::from_micros(number(at)?),
        age: Micros::from_micros(number(age)?),
    })
}

fn parse_head(value: &[u8]) -> Option<(CatalogueHead, Lineage)> {
    let mut parts = str::from_utf8(value).ok()?.splitn(4, ' ');
    let epoch = parts.next()?.parse().ok()?;
    let revision = parts.next()?.parse().ok()?;
    let id = parts.next()?.parse().ok()?;
    Some((CatalogueHead { epoch, revision, id }, parts.next()?.parse().ok()?))
}
