//! A restore of the catalogue in Redis: into keys of a generation of its own, some fields a call.

use std::collections::{BTreeMap, BTreeSet};

use deadpool_redis::redis::Value;

use super::catalogue::{CatalogueCall, CatalogueReply, number, parsed_id};
use super::{RedisFleet, bytes, text};
use crate::clock::Deadline;
use crate::fleet::{
    COUNTED_PREFIX, CatalogueHead, CatalogueId, CatalogueRestore, Document, RestoreStep, SetAside,
};
use crate::store::StoreError;

/// Fields, entries or names that one call reads or writes, about: less than a millisecond of Redis'
/// time.
const FIELDS_PER_CALL: usize = 200;
/// Bytes of fields that one call writes, unless one is larger.
const BYTES_PER_CALL: usize = 64 * 1024;

impl RedisFleet {
    pub(crate) async fn catalogue_replaced(
        &self,
        deadline: Deadline,
    ) -> Result<BTreeSet<CatalogueId>, StoreError> {
        let call = CatalogueCall { operation: "replaced", ..CatalogueCall::default() };
        let epochs = self.catalogue_call(&call, deadline).await?.texts()?;
        epochs.iter().map(|epoch| parsed_id(epoch)).collect()
    }

    pub(crate) async fn catalogue_aside(
        &self,
        deadline: Deadline,
    ) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let mut entries = BTreeMap::new();
        let mut cursor = "0".to_owned();
        loop {
            let call = CatalogueCall { operation: "aside", ..CatalogueCall::default() };
            let results = self.scan(call, &[], &mut cursor, deadline).await?;
            let mut results = results.into_iter();
            while let (Some(name), Some(content)) = (results.next(), results.next()) {
                entries.insert(text(name)?, bytes(content)?);
            }
            if cursor == "0" {
                return Ok(entries.into_iter().collect());
            }
        }
    }

    pub(crate) async fn catalogue_set_aside(
        &self,
        entries: &[(String, Vec<u8>)],
        deadline: Deadline,
    ) -> Result<SetAside, StoreError> {
        let arguments = entries.iter().flat_map(|(name, content)| [name.as_bytes(), content]);
        let arguments: Vec<&[u8]> = arguments.collect();
        let call = CatalogueCall {
            operation: "set_aside",
            arguments: &arguments,
            ..CatalogueCall::default()
        };
        match outcome(self.catalogue_call(&call, deadline).await?)?.as_str() {
            "written" => Ok(SetAside::Done),
            "full" => Ok(SetAside::Full),
            "no_conflict" => Ok(SetAside::NoConflict),
            _ => Err(StoreError::Garbled),
        }
    }

    pub(crate) async fn catalogue_begin(
        &self,
        own: Option<CatalogueHead>,
        deadline: Deadline,
    ) -> Result<Option<CatalogueId>, StoreError> {
        let generation = CatalogueId::random();
        let text = generation.to_string();
        let call = CatalogueCall {
            operation: "begin",
            own,
            arguments: &[text.as_bytes()],
            ..CatalogueCall::default()
        };
        match outcome(self.catalogue_call(&call, deadline).await?)?.as_str() {
            "begun" => Ok(Some(generation)),
            "no_conflict" => Ok(None),
            _ => Err(StoreError::Garbled),
        }
    }

    pub(crate) async fn catalogue_tidy(&self, deadline: Deadline) -> Result<(), StoreError> {
        let call = CatalogueCall { operation: "unused", ..CatalogueCall::default() };
        for generation in self.catalogue_call(&call, deadline).await?.texts()? {
            self.remove_generation(&generation, deadline).await?;
        }
        Ok(())
    }

    pub(crate) async fn catalogue_stage(
        &self,
        generation: CatalogueId,
        (name, document): (&str, Option<&Document>),
        keeps_history: bool,
        deadline: Deadline,
    ) -> Result<RestoreStep, StoreError> {
        let generation = generation.to_string();
        let staged = Some(generation.as_str());
        let Some(document) = document else {
            let arguments = [name.as_bytes()];
            let call = CatalogueCall {
                document: name,
                operation: "omit",
                own: None,
                arguments: &arguments,
                staged,
            };
            return step(self.catalogue_call(&call, deadline).await?, "staged");
        };
        let is_counted = |field: &&String| field.starts_with(COUNTED_PREFIX);
        let counted = document.fields.keys().filter(is_counted).count().to_string();
        let revision = document.revision.to_string();
        let mut forgets = if keeps_history { "0" } else { "1" };
        let mut fields = document.fields.iter().peekable();
        loop {
            let mut arguments = vec![
                name.as_bytes(),
                revision.as_bytes(),
                counted.as_bytes(),
                std::mem::replace(&mut forgets, "0").as_bytes(),
            ];
            let (mut count, mut len) = (0, 0);
            while let Some((field, content)) =
                fields.next_if(|_| count < FIELDS_PER_CALL && len < BYTES_PER_CALL)
            {
                arguments.extend([field.as_bytes(), content]);
                (count, len) = (count + 1, len + field.len() + content.len());
            }
            let call = CatalogueCall {
                document: name,
                operation: "stage",
                own: None,
                arguments: &arguments,
                staged,
            };
            let made = step(self.catalogue_call(&call, deadline).await?, "staged")?;
            if made == RestoreStep::Changed || fields.peek().is_none() {
                return Ok(made);
            }
        }
    }

    pub(crate) async fn catalogue_switch(
        &self,
        restore: &CatalogueRestore,
        deadline: Deadline,
    ) -> Result<RestoreStep, StoreError> {
        let CatalogueRestore { generation, seen, aside, head, documents, counted, replaced } =
            restore;
        let generation = generation.to_string();
        let mut texts = vec![
            head.epoch.to_string(),
            head.revision.to_string(),
            head.id.to_string(),
            documents.to_string(),
            counted.to_string(),
            aside.to_string(),
        ];
        texts.extend(replaced.iter().map(ToString::to_string));
        let arguments: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
        let call = CatalogueCall {
            document: "",
            operation: "switch",
            own: *seen,
            arguments: &arguments,
            staged: Some(&generation),
        };
        step(self.catalogue_call(&call, deadline).await?, "switched")
    }

    /// Removes the keys of a generation that is not that of the catalogue.
    async fn remove_generation(
        &self,
        generation: &str,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let staged = Some(generation);
        let (mut names, mut cursor) = (BTreeSet::new(), "0".to_owned());
        loop {
            let call = CatalogueCall { operation: "names", staged, ..CatalogueCall::default() };
            let page = self.scan(call, &[], &mut cursor, deadline).await?;
            names.extend(page.into_iter().map(text).collect::<Result<Vec<_>, _>>()?);
            if cursor == "0" {
                break;
            }
        }
        for name in &names {
            let document = name.as_str();
            loop {
                let call = CatalogueCall {
                    document,
                    operation: "clear",
                    staged,
                    ..CatalogueCall::default()
                };
                self.scan(call, &[name.as_bytes()], &mut cursor, deadline).await?;
                if cursor == "0" {
                    break;
                }
            }
        }
        loop {
            let call = CatalogueCall { operation: "forget", staged, ..CatalogueCall::default() };
            if number(&outcome(self.catalogue_call(&call, deadline).await?)?)? == 0 {
                return Ok(());
            }
        }
    }

    /// Calls an operation that goes on at a cursor, and returns its other results.
    async fn scan(
        &self,
        call: CatalogueCall<'_>,
        first: &[&[u8]],
        cursor: &mut String,
        deadline: Deadline,
    ) -> Result<Vec<Value>, StoreError> {
        let count = FIELDS_PER_CALL.to_string();
        let arguments = [first, &[cursor.as_bytes(), count.as_bytes()]].concat();
        let call = CatalogueCall { arguments: &arguments, ..call };
        let mut results = self.catalogue_call(&call, deadline).await?.results;
        if results.is_empty() {
            return Err(StoreError::Garbled);
        }
        *cursor = text(results.remove(0))?;
        Ok(results)
    }
}

fn outcome(reply: CatalogueReply) -> Result<String, StoreError> {
    match <[String; 1]>::try_from(reply.texts()?) {
        Ok([outcome]) => Ok(outcome),
        Err(_) => Err(StoreError::Garbled),
    }
}

fn step(reply: CatalogueReply, done: &str) -> Result<RestoreStep, StoreError> {
    match outcome(reply)?.as_str() {
        outcome if outcome == done => Ok(RestoreStep::Done),
        "changed" => Ok(RestoreStep::Changed),
        _ => Err(StoreError::Garbled),
    }
}
