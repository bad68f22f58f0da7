//! The catalogue in Redis: its keys are in one slot, and each call is one script
//! (`lua/catalogue.lua`).

use std::sync::{Arc, LazyLock, MutexGuard, PoisonError};

use deadpool_redis::redis::Value;

use super::call::FleetCall;
use super::{RedisFleet, bytes, check_deadline, text};
use crate::clock::Deadline;
use crate::fleet::{
    CatalogueHead, CatalogueId, CatalogueLook, CatalogueRelation, CatalogueStatus, CatalogueWrite,
    ChangedWhileRead, Document, DocumentChange, HistoryPiece, Lineage, MAX_CHANGES, WriteOutcome,
};
use crate::store::redis::codec::scripts::Script;
use crate::store::{Fate, StoreError};

static SCRIPT: LazyLock<Script> =
    LazyLock::new(|| Script::from_text(include_str!("../../../../lua/catalogue.lua")));
/// Fields or pieces of a history that one call reads at most, about: less than a millisecond of Redis'
/// time. The script stops earlier when they are long.
const FIELDS_PER_CALL: &str = "200";
/// Times that a document is read again because it has changed meanwhile.
const MAX_READS: u32 = 8;

impl RedisFleet {
    pub(crate) async fn catalogue_look(
        &self,
        look: CatalogueLook<'_>,
        deadline: Deadline,
    ) -> Result<CatalogueStatus, StoreError> {
        let CatalogueLook { own, lineage, ended, instance, marks_foreign } = look;
        let (lineage, foreign) = (lineage.to_string(), u8::from(marks_foreign).to_string());
        let arguments = [&lineage, ended, instance, &foreign].map(str::as_bytes);
        let call = CatalogueCall {
            operation: "head",
            own,
            arguments: &arguments,
            ..CatalogueCall::default()
        };
        let mut results = self.catalogue_call(&call, deadline).await?.results.into_iter();
        let mut next = || text(results.next().ok_or(StoreError::Garbled)?);
        let (relation, marks, ended) = (next()?, number(&next()?)?, next()?);
        let relation = match relation.as_str() {
            "first" => CatalogueRelation::First,
            "same" => CatalogueRelation::Same,
            "newer" => CatalogueRelation::Newer,
            "unchecked" => CatalogueRelation::Unchecked,
            "replaced" => CatalogueRelation::Replaced,
            "missing" | "lost" => CatalogueRelation::Lost,
            "foreign" => CatalogueRelation::Foreign,
            _ => return Err(StoreError::Garbled),
        };
        let epoch = results.next().filter(|epoch| *epoch != Value::Nil);
        let Some(epoch) = epoch.map(text).transpose()? else {
            return Ok(CatalogueStatus { marks, ended, ..CatalogueStatus::default() });
        };
        let mut next = || text(results.next().ok_or(StoreError::Garbled)?);
        let (epoch, revision, id) = (parsed_id(&epoch)?, number(&next()?)?, parsed_id(&next()?)?);
        let head = Some((CatalogueHead { epoch, revision, id }, relation));
        Ok(CatalogueStatus { head, lineage: parsed_lineage(&next()?)?, marks, ended })
    }

    pub(crate) async fn catalogue_changes(
        &self,
        since: u64,
        deadline: Deadline,
    ) -> Result<Vec<DocumentChange>, StoreError> {
        let arguments = [since.to_string(), MAX_CHANGES.to_string()];
        let arguments = arguments.each_ref().map(String::as_bytes);
        let call = CatalogueCall {
            operation: "changes",
            arguments: &arguments,
            ..CatalogueCall::default()
        };
        let mut results = self.catalogue_call(&call, deadline).await?.results.into_iter();
        let mut changes = Vec::new();
        while let (Some(name), Some(revision)) = (results.next(), results.next()) {
            let revision = number(&text(revision)?)?;
            changes.push(DocumentChange { name: text(name)?, revision });
        }
        Ok(changes)
    }

    pub(crate) async fn catalogue_read(
        &self,
        name: &str,
        deadline: Deadline,
    ) -> Result<Option<Document>, StoreError> {
        for _ in 0..MAX_READS {
            match self.read_whole(name, deadline).await? {
                Whole::Read(document) => return Ok(document),
                Whole::Changed => {}
            }
        }
        Err(StoreError::custom(Fate::NotExecuted, ChangedWhileRead))
    }

    /// Reads a document page by page, unless it changes between two pages.
    async fn read_whole(&self, name: &str, deadline: Deadline) -> Result<Whole, StoreError> {
        let mut document = Document::default();
        let mut cursor = b"0".to_vec();
        let mut first = None;
        loop {
            let arguments = [name.as_bytes(), &cursor, FIELDS_PER_CALL.as_bytes()];
            let call = CatalogueCall {
                document: name,
                operation: "page",
                arguments: &arguments,
                ..CatalogueCall::default()
            };
            let CatalogueReply { generation, results } =
                self.catalogue_call(&call, deadline).await?;
            let mut results = results.into_iter();
            let (Some(revision), Some(next)) = (results.next(), results.next()) else {
                return Err(StoreError::Garbled);
            };
            let revision = number(&text(revision)?)?;
            // A cursor is one of this generation.
            let version = (generation, revision);
            if first.as_ref().is_some_and(|first| *first != version) {
                return Ok(Whole::Changed);
            }
            first = Some(version);
            document.revision = revision;
            while let (Some(field), Some(content)) = (results.next(), results.next()) {
                document.fields.insert(text(field)?, bytes(content)?);
            }
            cursor = bytes(next)?;
            if cursor == b"0" {
                return Ok(Whole::Read((document.revision > 0).then_some(document)));
            }
        }
    }

    /// Returns pieces of a history from a position on; none at the end.
    pub(crate) async fn catalogue_history(
        &self,
        name: &str,
        position: usize,
        deadline: Deadline,
    ) -> Result<Vec<HistoryPiece>, StoreError> {
        let position = position.to_string();
        let call = CatalogueCall {
            document: name,
            operation: "history",
            arguments: &[position.as_bytes(), FIELDS_PER_CALL.as_bytes()],
            ..CatalogueCall::default()
        };
        let results = self.catalogue_call(&call, deadline).await?.results;
        let piece = |value| HistoryPiece::parse(bytes(value)?).ok_or(StoreError::Garbled);
        results.into_iter().map(piece).collect()
    }

    pub(crate) async fn catalogue_write(
        &self,
        own: Option<CatalogueHead>,
        write: &CatalogueWrite,
        deadline: Deadline,
    ) -> Result<WriteOutcome, StoreError> {
        let (id, new_epoch) = (CatalogueId::random(), CatalogueId::random());
        let CatalogueWrite {
            document,
            expected,
            set,
            delete,
            removes,
            history,
            bounds,
            ended,
            rest,
        } = write;
        // Numbers of Lua are exact up to 2^53.
        let bound = |most: u64| most.min(1 << 53).to_string();
        let numbers = [
            expected.to_string(),
            id.to_string(),
            new_epoch.to_string(),
            bound(bounds.documents),
            bound(bounds.fields),
            u8::from(*removes).to_string(),
            rest.as_secs().to_string(),
            if *removes { 0 } else { set.len() }.to_string(),
            ended.len().to_string(),
        ];
        let [expected, id_text, epoch, documents, fields, removes_text, rest, sets, ends] =
            &numbers;
        let mut arguments = vec![
            document.as_bytes(),
            expected.as_bytes(),
            id_text.as_bytes(),
            epoch.as_bytes(),
            documents.as_bytes(),
            fields.as_bytes(),
            history,
            removes_text.as_bytes(),
            rest.as_bytes(),
            sets.as_bytes(),
            ends.as_bytes(),
        ];
        if !removes {
            arguments
                .extend(set.iter().flat_map(|(name, content)| [name.as_bytes(), &content[..]]));
        }
        arguments.extend(ended.iter().map(String::as_bytes));
        if !removes {
            arguments.extend(delete.iter().map(String::as_bytes));
        }
        let call = CatalogueCall {
            document,
            operation: "write",
            own,
            arguments: &arguments,
            staged: None,
        };
        let texts = self.catalogue_call(&call, deadline).await?.texts()?;
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        Ok(match texts.as_slice() {
            ["written", revision] => {
                let epoch = own.map_or(new_epoch, |own| own.epoch);
                let head = CatalogueHead { epoch, revision: number(revision)?, id };
                WriteOutcome::Written { head }
            }
            ["raced", revision] => WriteOutcome::Raced { revision: number(revision)? },
            ["documents"] => WriteOutcome::TooManyDocuments,
            ["fields"] => WriteOutcome::TooManyFields,
            ["removed"] => WriteOutcome::Removed,
            ["conflict"] => WriteOutcome::Conflict,
            _ => return Err(StoreError::Garbled),
        })
    }

    /// Calls an operation on the generation of the catalogue, which is learned from a reply, unless the
    /// call names one.
    pub(super) async fn catalogue_call(
        &self,
        call: &CatalogueCall<'_>,
        deadline: Deadline,
    ) -> Result<CatalogueReply, StoreError> {
        check_deadline(deadline)?;
        for _ in 0..MAX_READS {
            let generation = match call.staged {
                Some(generation) => generation.to_owned(),
                None => self.known_generation().clone(),
            };
            let mut results = self.call_generation(call, &generation, deadline).await?.into_iter();
            let current = text(results.next().ok_or(StoreError::Garbled)?)?;
            if call.staged.is_some() || current == generation {
                return Ok(CatalogueReply { generation, results: results.collect() });
            }
            *self.known_generation() = current;
        }
        Err(StoreError::custom(Fate::NotExecuted, ChangedWhileRead))
    }

    async fn call_generation(
        &self,
        call: &CatalogueCall<'_>,
        generation: &str,
        deadline: Deadline,
    ) -> Result<Vec<Value>, StoreError> {
        let keys = self.format.catalogue_keys(generation, call.document);
        let slot = self.format.fleet_slot(&keys[0]);
        let own = match call.own {
            Some(own) => [own.epoch.to_string(), own.revision.to_string(), own.id.to_string()],
            None => [String::new(), "0".to_owned(), String::new()],
        };
        let arguments = own.iter().map(String::as_bytes).chain([generation.as_bytes()]);
        let arguments: Vec<&[u8]> = arguments.chain(call.arguments.iter().copied()).collect();
        let topology: &Arc<_> = &self.topology;
        let (script, keys, arguments) = (&SCRIPT, &keys, &arguments);
        let call = FleetCall { topology, script, keys, slot, operation: call.operation, arguments };
        // Boxed because it is large, and rare.
        Box::pin(call.run(deadline)).await
    }

    fn known_generation(&self) -> MutexGuard<'_, String> {
        self.generation.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call of the script.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CatalogueCall<'a> {
    /// Name of the document of the operation; empty for others.
    pub(super) document: &'a str,
    pub(super) operation: &'static str,
    /// The catalogue that the caller knows.
    pub(super) own: Option<CatalogueHead>,
    pub(super) arguments: &'a [&'a [u8]],
    /// The generation of the keys; `None`: that of the catalogue.
    pub(super) staged: Option<&'a str>,
}

/// Results of an operation.
#[derive(Debug)]
pub(super) struct CatalogueReply {
    /// The generation that was read or written.
    generation: String,
    pub(super) results: Vec<Value>,
}

impl CatalogueReply {
    pub(super) fn texts(self) -> Result<Vec<String>, StoreError> {
        self.results.into_iter().map(text).collect()
    }
}

/// Outcome of reading all pages of a document.
enum Whole {
    Read(Option<Document>),
    Changed,
}

pub(super) fn parsed_id(text: &str) -> Result<CatalogueId, StoreError> {
    text.parse().map_err(|_| StoreError::Garbled)
}

pub(super) fn parsed_lineage(text: &str) -> Result<Lineage, StoreError> {
    text.parse().map_err(|_| StoreError::Garbled)
}

pub(super) fn number(text: &str) -> Result<u64, StoreError> {
    text.parse().map_err(|_| StoreError::Garbled)
}
