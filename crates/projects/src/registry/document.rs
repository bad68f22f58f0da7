//! A project as a document of the catalogue.
//!
//! | field | content, in JSON |
//! | --- | --- |
//! | `project` | the project with its API keys |
//! | `rule:NAME` | one of its rules, with the revision that has set it, which the store adds |
//!
//! An entry of the history is a [`Revision`], whose number is that of the entry.

use std::collections::BTreeMap;

use rlaas_auth::ProjectId;
use rlaas_limiter::fleet::{
    COUNTED_PREFIX, CatalogueWrite, Document, HistoryEntry, LocalCopyChanges,
};
use serde::Serialize;

use super::ProjectState;
use crate::{History, Project, ProjectRules, Revision, RuleRecord};

/// Document of the unnamed project. No other project has this id.
const UNNAMED: &str = "_";
/// Field of the project.
const PROJECT: &str = "project";

/// Returns the name of the document of a project.
pub(super) fn document_name(id: &ProjectId) -> &str {
    if id.is_unnamed() { UNNAMED } else { id.as_str() }
}

/// Returns the project of a document; `None` if it is not one of a project.
pub(super) fn project_of(document: &str) -> Option<ProjectId> {
    if document == UNNAMED { Some(ProjectId::UNNAMED) } else { document.parse().ok() }
}

/// Reads a document.
///
/// # Errors
///
/// A field that is not readable: a later release may have written it.
pub(super) fn decode(document: &Document) -> Result<ProjectState, serde_json::Error> {
    let project = document.fields.get(PROJECT).map_or(&b""[..], Vec::as_slice);
    let project = serde_json::from_slice(project)?;
    let rules = document.fields.iter().filter_map(|(name, content)| {
        let name = name.strip_prefix(COUNTED_PREFIX)?.to_owned();
        Some(serde_json::from_slice(content).map(|record| (name, record)))
    });
    let rules: BTreeMap<String, RuleRecord> = rules.collect::<Result<_, _>>()?;
    Ok(ProjectState { project, rules: ProjectRules::from(rules), revision: document.revision })
}

/// Sets the fields of a write that lead from one state to another.
pub(super) fn encode(
    write: &mut CatalogueWrite,
    before: Option<&ProjectState>,
    project: &Project,
    rules: &ProjectRules,
) {
    if before.is_none_or(|before| before.revision == 0 || before.project != *project) {
        write.set.insert(PROJECT.to_owned(), json(project));
    }
    let record_before = |name: &str| before.and_then(|before| before.rules.rule(name));
    let changed = rules.iter().filter(|(name, record)| record_before(name) != Some(record));
    write.set.extend(changed.map(|(name, record)| (field(name), json(record))));
    let names = before.into_iter().flat_map(|before| before.rules.iter());
    let gone = names.filter(|(name, _)| rules.rule(name).is_none());
    write.delete = gone.map(|(name, _)| field(name)).collect();
}

/// Returns what the state of a project changes in a folder that has another one.
pub(super) fn kept_changes(
    id: &ProjectId,
    before: Option<&ProjectState>,
    after: Option<&ProjectState>,
) -> LocalCopyChanges {
    let mut write = CatalogueWrite::new(document_name(id));
    match after {
        Some(after) => encode(&mut write, before, &after.project, &after.rules),
        None => write.removes = true,
    }
    let rules = before.into_iter().flat_map(|before| before.rules.iter());
    let fields: Vec<String> = rules.map(|(name, _)| field(name)).collect();
    let fields = fields.iter().map(String::as_str).chain([PROJECT]);
    let mut changes = LocalCopyChanges::default();
    changes.write(&write, after.map_or(0, |after| after.revision), fields);
    changes
}

/// Returns an entry of a history.
pub(super) fn encode_revision(revision: &Revision) -> Vec<u8> {
    json(revision)
}

/// Reads a history, newest first. Entries that are not readable are left out.
pub(super) fn decode_history(entries: Vec<HistoryEntry>) -> History {
    let mut history = History::default();
    for entry in entries.into_iter().rev() {
        if let Ok(revision) = serde_json::from_slice::<Revision>(&entry.content) {
            history.push(Revision { number: entry.revision, ..revision });
        }
    }
    history
}

fn field(rule: &str) -> String {
    format!("{COUNTED_PREFIX}{rule}")
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("the types have no maps with keys that are not texts")
}
