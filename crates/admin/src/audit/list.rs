//! Reading the audit, newest first: intents are joined with their outcomes.
//!
//! An outcome is newer than its intent, so it is read first. A page ends between records, and the
//! next one begins where the oldest outcome lies whose intent is still to come.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use prost::Message;
use rlaas_limiter::fleet::{EntryId, LogEntry, LogRange, ProjectLog};
use rlaas_proto::ratelimit::admin::v1::AuditEntry;

use super::record::{Outcome, Record, fingerprint_of};
use super::{Audit, LOG};
use rlaas_core::clock::{Deadline, Micros, Timestamp};
use rlaas_core::plan::SelectedKey;
use rlaas_limiter::store::StoreError;

/// Records that one read returns.
const READ: usize = 250;
/// Most records that are searched for one page.
const MAX_SEARCHED: usize = 10_000;
/// Most bytes of a page, which clients must be able to receive.
const MAX_PAGE_BYTES: usize = 2 * 1024 * 1024;
/// Longest time between an intent and its outcome: more than any operation may take.
const OUTCOME_WITHIN: Micros = Micros::from_secs(60);

/// Projects whose changes are listed, each from a time on: an earlier project may have had its id.
pub type AuditedProjects = BTreeMap<String, Timestamp>;

/// Entries to list: all by default.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter<'a> {
    /// Only changes of these projects; `None`: of all.
    pub projects: Option<&'a AuditedProjects>,
    /// Only changes of one of these keys.
    pub keys: Option<&'a [SelectedKey]>,
    /// Only changes of this rule or API key. Empty: of all.
    pub target: &'a str,
    /// Only changes of this rule, of its keys, and of all rules. Empty: of all.
    pub rule: &'a str,
    /// Only changes by this caller. Empty: by all.
    pub actor: &'a str,
    /// Only changes from then on.
    pub since: Option<Timestamp>,
    /// Only changes before then.
    pub until: Option<Timestamp>,
}

/// A page of the audit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AuditPage {
    /// Newest first.
    pub entries: Vec<AuditEntry>,
    /// Where the next page begins; `None` after the last.
    pub next: Option<PageToken>,
}

/// Where a page begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageToken {
    /// Only intents before this id.
    before: EntryId,
    /// Outcomes are looked for before this id, which is not smaller.
    read_before: EntryId,
}

impl fmt::Display for PageToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.before, self.read_before)
    }
}

impl PageToken {
    /// Reads a token; `None` if the text is none.
    pub fn parse(text: &str) -> Option<Self> {
        let (before, read_before) = text.split_once('.')?;
        let token = Self { before: before.parse().ok()?, read_before: read_before.parse().ok()? };
        (token.read_before >= token.before).then_some(token)
    }
}

impl<'a> AuditFilter<'a> {
    /// Returns the project whose changes alone are listed; empty if there is none, or no log of its
    /// own.
    fn project(&self) -> &'a str {
        let mut projects = self.projects.into_iter().flat_map(BTreeMap::keys);
        match (projects.next(), projects.next()) {
            (Some(project), None) => project,
            _ => "",
        }
    }
}

/// What an entry must be to be listed.
struct Wanted<'a> {
    filter: &'a AuditFilter<'a>,
    keys: Option<HashSet<u64>>,
}

impl Audit {
    /// Returns the newest entries that the filter lets pass: up to `page_size`, fewer if they are
    /// large or far apart.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store does not answer before the deadline.
    pub async fn list(
        &self,
        filter: &AuditFilter<'_>,
        page_size: usize,
        page: Option<PageToken>,
        deadline: Deadline,
    ) -> Result<AuditPage, StoreError> {
        let keys = match filter.keys {
            None => None,
            Some(keys) => {
                let hasher = self.hasher.hasher(deadline).await?;
                let fingerprint =
                    |key: &SelectedKey| fingerprint_of(&key.rule, key.hit.key.id(), &hasher);
                Some(keys.iter().map(fingerprint).collect())
            }
        };
        let wanted = Wanted { filter, keys };
        let first = PageToken {
            before: filter.until.map_or(EntryId::MAX, EntryId::at),
            read_before: filter.until.map_or(EntryId::MAX, |at| EntryId::at(at + OUTCOME_WITHIN)),
        };
        let from = filter.since.map_or(EntryId::default(), first_since);
        let mut search = Search::new(page.unwrap_or(first));
        let mut project = filter.project();
        loop {
            let range = LogRange { from, before: search.read_before };
            let log = ProjectLog { log: LOG, project };
            let records = self.fleet.read_of_project(log, range, READ, deadline).await?;
            let is_last = records.len() < READ;
            for record in records {
                search.take(record, &wanted);
                if search.is_full(page_size) {
                    return Ok(search.into_page());
                }
            }
            if is_last && !project.is_empty() && self.fleet.is_shared() {
                // The log of all may have older ones of the project.
                project = "";
            } else if is_last {
                return Ok(AuditPage { next: None, ..search.into_page() });
            }
        }
    }
}

/// Returns the smallest id of an entry at `since` or later. Ids have whole milliseconds.
fn first_since(since: Timestamp) -> EntryId {
    EntryId::at(since + Micros::from_micros(999))
}

/// Returns `true` if a change is one of this rule or of its keys, or of all rules.
fn may_change_rule(entry: &AuditEntry, rule: &str) -> bool {
    match &*entry.action {
        "ApplyRules" | "Rollback" => true,
        "CreateKey" | "UpdateKey" | "RotateKey" | "RevokeKey" => false,
        action => {
            entry.target == rule
                || (action == "SetMode" && entry.target == "*")
                || entry.before.iter().any(|state| state.rule == rule)
        }
    }
}

/// One page in the making.
struct Search {
    entries: Vec<AuditEntry>,
    bytes: usize,
    searched: usize,
    /// Intents from this id on are on earlier pages.
    before: EntryId,
    read_before: EntryId,
    /// Outcomes by the ids of their intents, with their own.
    outcomes: HashMap<EntryId, (EntryId, Outcome)>,
}

impl Search {
    fn new(PageToken { before, read_before }: PageToken) -> Self {
        let (entries, outcomes) = (Vec::new(), HashMap::new());
        Self { entries, bytes: 0, searched: 0, before, read_before, outcomes }
    }

    fn take(&mut self, LogEntry { id, content }: LogEntry, wanted: &Wanted<'_>) {
        self.read_before = id;
        // A record that is none is not ours, or of a later version.
        let mut record = Record::decode(content.as_slice()).unwrap_or_default();
        if let Some(outcome) = record.outcome.take()
            && let Some(intent) = outcome.intent_id().filter(|intent| *intent < self.before)
        {
            // The newest one counts, and is read first.
            self.outcomes.entry(intent).or_insert((id, outcome));
        }
        if id >= self.before {
            return;
        }
        (self.before, self.searched) = (id, self.searched + 1);
        let outcome = self.outcomes.remove(&id).map(|(_, outcome)| outcome);
        if wanted.contains(id.time(), &record)
            && let Some(entry) = record.into_entry(id, outcome)
        {
            self.bytes += entry.encoded_len();
            self.entries.push(entry);
        }
    }

    fn is_full(&self, page_size: usize) -> bool {
        self.entries.len() >= page_size
            || self.bytes >= MAX_PAGE_BYTES
            || self.searched >= MAX_SEARCHED
    }

    fn into_page(self) -> AuditPage {
        let newest = self.outcomes.values().map(|(id, _)| id.next()).max();
        let read_before = newest.unwrap_or(self.before).max(self.before);
        let next = Some(PageToken { before: self.before, read_before });
        AuditPage { entries: self.entries, next }
    }
}

impl Wanted<'_> {
    fn contains(&self, at: Timestamp, record: &Record) -> bool {
        let AuditFilter { projects, target, rule, actor, .. } = self.filter;
        let is_any = |keys: &HashSet<u64>| record.keys.iter().any(|key| keys.contains(key));
        record.intent.as_ref().is_some_and(|entry| {
            projects.is_none_or(|projects| {
                projects.get(&entry.project_id).is_some_and(|since| at >= *since)
            }) && (target.is_empty() || entry.target == *target)
                && (rule.is_empty() || may_change_rule(entry, rule))
                && (actor.is_empty() || entry.actor == *actor)
                && self.keys.as_ref().is_none_or(is_any)
        })
    }
}
