//! The catalogue in Redis: its keys are in one slot, and each call is one script
//! (`lua/catalogue.lua`).

use std::sync::Arc;

use deadpool_redis::redis::Value;

use super::call::FleetCall;
use super::{RedisFleet, bytes, check_deadline, text};
use crate::clock::Deadline;
use crate::fleet::{
    CatalogueHead, CatalogueId, CatalogueRelation, CatalogueWrite, ChangedWhileRead, Document,
    DocumentChange, HistoryEntry, MAX_CHANGES, MAX_HISTORY, WriteOutcome,
};
use crate::store::{Fate, StoreError};

const SCRIPT: &str = include_str!("../../../../lua/catalogue.lua");
/// Fields that one call reads, about: less than a millisecond of Redis' time.
const FIELDS_PER_CALL: &str = "200";
/// Times that a document is read again because it has changed meanwhile.
const MAX_READS: u32 = 8;

impl RedisFleet {
    pub(crate) async fn catalogue_head(
        &self,
        own: Option<CatalogueHead>,
        deadline: Deadline,
    ) -> Result<Option<(CatalogueHead, CatalogueRelation)>, StoreError> {
        let results = self.catalogue_call("", "head", own, &[], deadline).await?;
        let texts: Vec<String> = results.into_iter().map(text).collect::<Result<_, _>>()?;
        let [relation, rest @ ..] = texts.as_slice() else { return Err(StoreError::Garbled) };
        let relation = match relation.as_str() {
            "missing" => return Ok(None),
            "first" => CatalogueRelation::First,
            "same" => CatalogueRelation::Same,
            "newer" => CatalogueRelation::Newer,
            "replaced" => CatalogueRelation::Replaced,
            "conflict" => CatalogueRelation::Conflict,
            _ => return Err(StoreError::Garbled),
        };
        let [epoch, revision, id] = rest else { return Err(StoreError::Garbled) };
        let (epoch, id) = (parsed_id(epoch)?, parsed_id(id)?);
        Ok(Some((CatalogueHead { epoch, revision: number(revision)?, id }, relation)))
    }

    pub(crate) async fn catalogue_changes(
        &self,
        since: u64,
        deadline: Deadline,
    ) -> Result<Vec<DocumentChange>, StoreError> {
        let arguments = [since.to_string(), MAX_CHANGES.to_string()];
        let arguments = arguments.each_ref().map(String::as_bytes);
        let results = self.catalogue_call("", "changes", None, &arguments, deadline).await?;
        let mut changes = Vec::new();
        let mut results = results.into_iter();
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
        let mut is_first = true;
        loop {
            let arguments = [name.as_bytes(), &cursor, FIELDS_PER_CALL.as_bytes()];
            let results = self.catalogue_call(name, "page", None, &arguments, deadline).await?;
            let mut results = results.into_iter();
            let (Some(revision), Some(next)) = (results.next(), results.next()) else {
                return Err(StoreError::Garbled);
            };
            let revision = number(&text(revision)?)?;
            if !is_first && revision != document.revision {
                return Ok(Whole::Changed);
            }
            (document.revision, is_first) = (revision, false);
            while let (Some(field), Some(content)) = (results.next(), results.next()) {
                document.fields.insert(text(field)?, bytes(content)?);
            }
            cursor = bytes(next)?;
            if cursor == b"0" {
                return Ok(Whole::Read((document.revision > 0).then_some(document)));
            }
        }
    }

    pub(crate) async fn catalogue_history(
        &self,
        name: &str,
        deadline: Deadline,
    ) -> Result<Vec<HistoryEntry>, StoreError> {
        let count = MAX_HISTORY.to_string();
        let results =
            self.catalogue_call(name, "history", None, &[count.as_bytes()], deadline).await?;
        let entry = |value| {
            let entry = bytes(value)?;
            let space = entry.iter().position(|byte| *byte == b' ').ok_or(StoreError::Garbled)?;
            let revision = str::from_utf8(&entry[..space]).map_err(|_| StoreError::Garbled)?;
            let revision = number(revision)?;
            Ok(HistoryEntry { revision, content: entry[space + 1..].to_owned() })
        };
        results.into_iter().map(entry).collect()
    }

    pub(crate) async fn catalogue_write(
        &self,
        own: Option<CatalogueHead>,
        write: &CatalogueWrite,
        deadline: Deadline,
    ) -> Result<WriteOutcome, StoreError> {
        let (id, new_epoch) = (CatalogueId::random(), CatalogueId::random());
        let CatalogueWrite { document, expected, set, delete, removes, history, bounds } = write;
        // Numbers of Lua are exact up to 2^53.
        let bound = |most: u64| most.min(1 << 53).to_string();
        let numbers = [
            expected.to_string(),
            id.to_string(),
            new_epoch.to_string(),
            bound(bounds.documents),
            bound(bounds.fields),
            u8::from(*removes).to_string(),
            if *removes { 0 } else { set.len() }.to_string(),
        ];
        let [expected, id_text, epoch, documents, fields, removes_text, sets] = &numbers;
        let mut arguments = vec![
            document.as_bytes(),
            expected.as_bytes(),
            id_text.as_bytes(),
            epoch.as_bytes(),
            documents.as_bytes(),
            fields.as_bytes(),
            history,
            removes_text.as_bytes(),
            sets.as_bytes(),
        ];
        if !removes {
            arguments
                .extend(set.iter().flat_map(|(name, content)| [name.as_bytes(), &content[..]]));
            arguments.extend(delete.iter().map(String::as_bytes));
        }
        let results = self.catalogue_call(document, "write", own, &arguments, deadline).await?;
        let texts: Vec<String> = results.into_iter().map(text).collect::<Result<_, _>>()?;
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
            ["conflict"] => WriteOutcome::Conflict,
            _ => return Err(StoreError::Garbled),
        })
    }

    async fn catalogue_call(
        &self,
        document: &str,
        operation: &'static str,
        own: Option<CatalogueHead>,
        arguments: &[&[u8]],
        deadline: Deadline,
    ) -> Result<Vec<Value>, StoreError> {
        check_deadline(deadline)?;
        let keys = self.format.catalogue_keys(document);
        let slot = self.format.fleet_slot(&keys[0]);
        let own = match own {
            Some(own) => [own.epoch.to_string(), own.revision.to_string(), own.id.to_string()],
            None => [String::new(), "0".to_owned(), String::new()],
        };
        let arguments: Vec<&[u8]> =
            own.iter().map(String::as_bytes).chain(arguments.iter().copied()).collect();
        let topology: &Arc<_> = &self.topology;
        let (script, keys, arguments) = (SCRIPT, &keys, &arguments);
        let call = FleetCall { topology, script, keys, slot, operation, arguments };
        // Boxed because it is large, and rare.
        Box::pin(call.run(deadline)).await
    }
}

/// Outcome of reading all pages of a document.
enum Whole {
    Read(Option<Document>),
    Changed,
}

fn parsed_id(text: &str) -> Result<CatalogueId, StoreError> {
    text.parse().map_err(|_| StoreError::Garbled)
}

fn number(text: &str) -> Result<u64, StoreError> {
    text.parse().map_err(|_| StoreError::Garbled)
}
