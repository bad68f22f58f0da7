//! Ended keys, marks of a conflict, and its end: into keys of a generation of its own, some fields a call.

use deadpool_redis::redis::Value;

use super::catalogue::{CatalogueCall, CatalogueReply, number, parsed_id, parsed_lineage};
use super::{RedisFleet, parsed, text};
use crate::clock::{Deadline, Timestamp};
use crate::fleet::{
    COUNTED_PREFIX, CatalogueHead, CatalogueId, CatalogueLook, CatalogueMark, CatalogueStatus,
    CatalogueSwitch, Document, EndedPage, Lineage, RestoreStep, SharedCatalogue,
};
use crate::store::StoreError;

/// Fields, ended keys or names that one call reads or writes, about: less than a millisecond of Redis'
/// time.
const FIELDS_PER_CALL: usize = 200;
/// Bytes of fields that one call writes, unless one is larger.
const BYTES_PER_CALL: usize = 64 * 1024;

impl SharedCatalogue {
    /// Returns the catalogue as it is. Marks a conflict if it lacks the caller's, unless ended keys are
    /// not united yet.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store does not answer before the deadline.
    pub async fn look(
        &self,
        look: CatalogueLook<'_>,
        deadline: Deadline,
    ) -> Result<CatalogueStatus, StoreError> {
        self.0.catalogue_look(look, deadline).await
    }

    /// Returns the marks of a conflict.
    ///
    /// # Errors
    ///
    /// As [`SharedCatalogue::look`].
    pub async fn marks(&self, deadline: Deadline) -> Result<Vec<CatalogueMark>, StoreError> {
        let mut texts = self.call("marks", None, &[], deadline).await?.texts()?.into_iter();
        let mut marks = Vec::new();
        while let (Some(epoch), Some(mark)) = (texts.next(), texts.next()) {
            let mut words = mark.splitn(4, ' ');
            let mut next = || words.next().ok_or(StoreError::Garbled);
            marks.push(CatalogueMark {
                instance: next()?.to_owned(),
                epoch: parsed_id(&epoch)?,
                revision: number(next()?)?,
                at: Timestamp::from_millis(number(next()?)?.saturating_mul(1_000)),
                lineage: parsed_lineage(next()?)?,
            });
        }
        Ok(marks)
    }

    /// Returns ended keys that were added since the id `known`, after the last one of the page before.
    ///
    /// # Errors
    ///
    /// As [`SharedCatalogue::look`].
    pub async fn ended(
        &self,
        known: &str,
        after: &str,
        deadline: Deadline,
    ) -> Result<EndedPage, StoreError> {
        let count = FIELDS_PER_CALL.to_string();
        let arguments = [known, after, &count].map(str::as_bytes);
        let texts = self.call("ended", None, &arguments, deadline).await?.texts()?;
        let [now, id, begins_anew, found @ ..] = texts.as_slice() else {
            return Err(StoreError::Garbled);
        };
        let now = Timestamp::from_millis(number(now)?.saturating_mul(1_000));
        let ended: Vec<String> = found.iter().step_by(2).cloned().collect();
        let is_full = ended.len() == FIELDS_PER_CALL;
        let last = found.last().filter(|_| is_full).cloned().unwrap_or_default();
        Ok(EndedPage { now, id: id.clone(), begins_anew: begins_anew == "1", ended, last })
    }

    /// Adds ended keys. Returns `false` if there is no room for all.
    ///
    /// # Errors
    ///
    /// As [`SharedCatalogue::look`].
    pub async fn add_ended(
        &self,
        ended: &[String],
        deadline: Deadline,
    ) -> Result<bool, StoreError> {
        let mut have_room = true;
        for some in ended.chunks(FIELDS_PER_CALL) {
            let arguments: Vec<&[u8]> = some.iter().map(String::as_bytes).collect();
            let added = self.call("add_ended", None, &arguments, deadline).await?;
            have_room &= outcome(added)? == "0";
        }
        Ok(have_room)
    }

    /// Removes ended keys that are over.
    ///
    /// # Errors
    ///
    /// As [`SharedCatalogue::look`].
    pub async fn forget_ended(
        &self,
        ended: &[String],
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        for some in ended.chunks(FIELDS_PER_CALL) {
            let arguments: Vec<&[u8]> = some.iter().map(String::as_bytes).collect();
            self.call("forget_ended", None, &arguments, deadline).await?;
        }
        Ok(())
    }

    /// Begins a restore of the caller's catalogue, and marks the conflict. Returns the generation to
    /// write; `None` if there is no conflict.
    ///
    /// # Errors
    ///
    /// As [`SharedCatalogue::look`].
    pub async fn begin_restore(
        &self,
        own: Option<CatalogueHead>,
        lineage: &Lineage,
        instance: &str,
        deadline: Deadline,
    ) -> Result<Option<CatalogueId>, StoreError> {
        let generation = CatalogueId::random();
        let (name, lineage) = (generation.to_string(), lineage.to_string());
        let arguments = [name.as_str(), instance, &lineage].map(str::as_bytes);
        match outcome(self.call("begin", own, &arguments, deadline).await?)?.as_str() {
            "begun" => Ok(Some(generation)),
            "no_conflict" => Ok(None),
            _ => Err(StoreError::Garbled),
        }
    }

    /// Writes a document of a restore; `None`: the restored catalogue lacks it. Its history is kept only
    /// with `keeps_history`.
    ///
    /// # Errors
    ///
    /// As [`SharedCatalogue::look`].
    pub async fn stage(
        &self,
        generation: CatalogueId,
        name: &str,
        document: Option<&Document>,
        keeps_history: bool,
        deadline: Deadline,
    ) -> Result<RestoreStep, StoreError> {
        let generation = generation.to_string();
        let staged = |operation| CatalogueCall {
            document: name,
            operation,
            staged: Some(&generation),
            ..CatalogueCall::default()
        };
        let Some(document) = document else {
            return step(self.0.catalogue_call(&staged("omit"), deadline).await?, "staged");
        };
        let counted = document.counted_fields().to_string();
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
            let call = CatalogueCall { arguments: &arguments, ..staged("stage") };
            let made = step(self.0.catalogue_call(&call, deadline).await?, "staged")?;
            if made == RestoreStep::Changed || fields.peek().is_none() {
                return Ok(made);
            }
        }
    }

    /// Ends a conflict: the catalogue that is kept has a new epoch.
    ///
    /// # Errors
    ///
    /// As [`Catalogue::write`](crate::fleet::Catalogue::write).
    pub async fn switch(
        &self,
        switch: &CatalogueSwitch,
        deadline: Deadline,
    ) -> Result<RestoreStep, StoreError> {
        let CatalogueSwitch { seen, marks, head, lineage, staged } = switch;
        let mut texts = vec![
            marks.to_string(),
            head.epoch.to_string(),
            head.revision.to_string(),
            head.id.to_string(),
            lineage.to_string(),
        ];
        let mut generation = String::new();
        if let Some(staged) = staged {
            generation = staged.generation.to_string();
            texts.extend([staged.documents.to_string(), staged.counted.to_string()]);
        }
        let arguments: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
        let call = CatalogueCall {
            document: "",
            operation: "switch",
            own: *seen,
            arguments: &arguments,
            staged: Some(&generation),
        };
        step(self.0.catalogue_call(&call, deadline).await?, "switched")
    }

    /// Removes the keys of generations that are not that of the catalogue, and not being written.
    ///
    /// # Errors
    ///
    /// As [`SharedCatalogue::look`].
    pub async fn tidy(&self, deadline: Deadline) -> Result<(), StoreError> {
        let unused = self.call("unused", None, &[], deadline).await?.texts()?;
        for generation in unused.iter().step_by(2) {
            self.0.remove_generation(generation, deadline).await?;
        }
        Ok(())
    }

    async fn call(
        &self,
        operation: &'static str,
        own: Option<CatalogueHead>,
        arguments: &[&[u8]],
        deadline: Deadline,
    ) -> Result<CatalogueReply, StoreError> {
        let call = CatalogueCall { operation, own, arguments, ..CatalogueCall::default() };
        self.0.catalogue_call(&call, deadline).await
    }
}

impl Document {
    /// Returns the number of its counted fields.
    pub fn counted_fields(&self) -> u64 {
        self.fields.keys().filter(|field| field.starts_with(COUNTED_PREFIX)).count() as u64
    }
}

impl RedisFleet {
    /// Removes the keys of a generation that is not that of the catalogue.
    async fn remove_generation(
        &self,
        generation: &str,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let (staged, count) = (Some(generation), FIELDS_PER_CALL.to_string());
        let clear = CatalogueCall { operation: "clear", staged, ..CatalogueCall::default() };
        let mut cursor = "0".to_owned();
        loop {
            let arguments = [cursor.as_bytes(), count.as_bytes()];
            let call = CatalogueCall { operation: "names", arguments: &arguments, ..clear };
            let mut page = self.catalogue_call(&call, deadline).await?.results.into_iter();
            let (Some(next), Some(index)) = (page.next(), page.next()) else {
                return Err(StoreError::Garbled);
            };
            let index: Vec<Value> = parsed(index)?;
            for name in index.into_iter().step_by(2) {
                let name = text(name)?;
                let arguments = [name.as_bytes()];
                let call = CatalogueCall { document: &name, arguments: &arguments, ..clear };
                self.catalogue_call(&call, deadline).await?;
            }
            cursor = text(next)?;
            if cursor == "0" {
                return self.catalogue_call(&clear, deadline).await.map(drop);
            }
        }
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
