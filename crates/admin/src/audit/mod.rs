//! The audit: who changed what, when, why, and with what effect.
//!
//! A change is recorded twice: its intent before it is made, and its outcome after. If the intent
//! can't be recorded, nothing is changed. If the outcome can't, the change stands, and the entry
//! says that its outcome is unknown. Refused calls are in the log alone, so that nobody can push
//! entries out by asking.
//!
//! Each project keeps entries of its own, so that none can push those of another out.
//!
//! Records lie in a log of the [`Fleet`], encoded as protobuf: no text in them can end a record or
//! begin another one. Parts of keys are hashed unless the settings say otherwise.
//!
//! | file | subject |
//! | --- | --- |
//! | `record` | what is recorded, and how it is kept within its bound |
//! | `list` | reading: intents joined with their outcomes, filters, pages |

mod list;
mod record;

pub use list::{AuditFilter, AuditPage, AuditedProjects, PageToken};

use std::time::Duration;

use rlaas_limiter::fleet::{EntryId, Fleet, NewEntry, ProjectLog};
use rlaas_projects::registry::ID_REST;
use rlaas_proto::ratelimit::admin::v1::KeyState;
use tonic_types::Status as RpcStatus;
use tracing::{error, info};

use self::record::{Outcome, Record};
use super::hasher::SharedHasher;
use rlaas_core::clock::Deadline;
use rlaas_core::rules::KeyHasher;
use rlaas_limiter::store::StoreError;

/// Name of the log.
const LOG: &str = "audit";

/// Settings of the audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditSettings {
    /// How parts of keys are shown.
    pub keys: AuditKeys,
    /// Number of changes that are kept, at least 1.
    pub max_entries: u32,
}

/// How the audit shows parts of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuditKeys {
    /// As `#` and 26 characters, by a secret key.
    #[default]
    Hashed,
    /// As they are.
    Clear,
}

impl AuditSettings {
    /// The default `audit.max-entries`.
    pub const DEFAULT_MAX_ENTRIES: u32 = 100_000;
    /// Number of changes of each project that are kept beside these, up to as many.
    pub const MAX_PROJECT_ENTRIES: u32 = 1_000;
}

impl Default for AuditSettings {
    fn default() -> Self {
        Self { keys: AuditKeys::default(), max_entries: Self::DEFAULT_MAX_ENTRIES }
    }
}

/// The audit of a fleet. Clones share it.
#[derive(Clone, Debug)]
pub struct Audit {
    fleet: Fleet,
    hasher: SharedHasher,
    settings: AuditSettings,
}

/// A change that is about to be made.
#[derive(Clone, Debug)]
pub struct Intent<'a> {
    /// The caller.
    pub actor: &'a str,
    /// Name of the RPC.
    pub action: &'static str,
    /// Project that is changed; empty: the unnamed one, or none.
    pub project_id: &'a str,
    /// Name of the rule or id of the API key that is changed. Empty: that of the keys.
    pub target: &'a str,
    /// The change in one line, without parts of keys.
    pub summary: String,
    /// Reason that the caller gave.
    pub reason: &'a str,
    /// Id of the request; may be empty.
    pub request_id: &'a str,
    /// State of the keys before, in clear.
    pub before: Vec<KeyState>,
}

/// A recorded change without an outcome. One that is dropped stays without.
#[derive(Debug)]
#[must_use]
pub struct PendingChange {
    audit: Audit,
    hasher: KeyHasher,
    id: EntryId,
    project_id: String,
    /// For the log.
    action: &'static str,
    actor: String,
}

impl Audit {
    /// Creates the audit of a fleet.
    pub fn new(fleet: Fleet, hasher: SharedHasher, settings: AuditSettings) -> Self {
        Self { fleet, hasher, settings }
    }

    /// Records that a change is about to be made.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if it was not, or perhaps not, recorded before the deadline: nothing may be changed.
    pub async fn begin(
        &self,
        intent: Intent<'_>,
        deadline: Deadline,
    ) -> Result<PendingChange, StoreError> {
        let hasher = self.hasher.hasher(deadline).await?;
        let (action, actor) = (intent.action, intent.actor.to_owned());
        let project_id = intent.project_id.to_owned();
        let record = Record::of_intent(intent, self.settings.keys, &hasher);
        let id = self.append(&project_id, &record, None, deadline).await?;
        Ok(PendingChange { audit: self.clone(), hasher, id, project_id, action, actor })
    }

    async fn append(
        &self,
        project: &str,
        record: &Record,
        ttl: Option<Duration>,
        deadline: Deadline,
    ) -> Result<EntryId, StoreError> {
        // Each change has two records.
        let most = |entries: u32| 2 * u64::from(entries.max(1));
        let max_entries = most(self.settings.max_entries);
        let max_project_entries = most(AuditSettings::MAX_PROJECT_ENTRIES).min(max_entries);
        let content = &record.encoded();
        let entry = NewEntry { content, max_entries, max_project_entries, ttl };
        self.fleet.append_of_project(ProjectLog { log: LOG, project }, entry, deadline).await
    }
}

/// What a change of a project has made.
#[derive(Clone, Copy, Debug, Default)]
struct ProjectEffect {
    /// 0: none.
    revision: u64,
    /// Time after which nothing is left of the project.
    ttl: Option<Duration>,
}

impl PendingChange {
    /// Returns the id of the entry.
    pub fn id(&self) -> EntryId {
        self.id
    }

    /// Records that the change was made, with the state of the keys after it, in clear. If that
    /// fails the change stands: the failure is logged, and the entry has no outcome.
    pub async fn done(self, after: Vec<KeyState>, deadline: Deadline) {
        info!(
            audit = %self.id, action = self.action, actor = ?self.actor, keys = after.len(),
            "change made"
        );
        self.end(after, None, ProjectEffect::default(), deadline).await;
    }

    /// Records that a project was changed. As [`Self::done`].
    pub async fn done_as_revision(self, revision: u64, deadline: Deadline) {
        info!(
            audit = %self.id, action = self.action, actor = ?self.actor, revision,
            "project changed"
        );
        let made = ProjectEffect { revision, ttl: None };
        self.end(Vec::new(), None, made, deadline).await;
    }

    /// Records that a project was deleted by making this revision. As [`Self::done`]. What Redis
    /// keeps of the project alone ends when its id may be given again.
    pub async fn done_as_deletion(self, revision: u64, deadline: Deadline) {
        info!(audit = %self.id, actor = ?self.actor, revision, "project deleted");
        let made = ProjectEffect { revision, ttl: Some(ID_REST) };
        self.end(Vec::new(), None, made, deadline).await;
    }

    /// Records that the change was not made, or only for the keys in `after`. A failure is logged.
    pub async fn failed(self, error: RpcStatus, after: Vec<KeyState>, deadline: Deadline) {
        self.end(after, Some(error), ProjectEffect::default(), deadline).await;
    }

    async fn end(
        self,
        after: Vec<KeyState>,
        error: Option<RpcStatus>,
        made: ProjectEffect,
        deadline: Deadline,
    ) {
        let Self { audit, hasher, id, project_id, action, .. } = self;
        let mut outcome = Outcome::new(id, after, error, audit.settings.keys, &hasher);
        outcome.revision = made.revision;
        let record = Record::of_outcome(outcome);
        if let Err(error) = audit.append(&project_id, &record, made.ttl, deadline).await {
            error!(audit = %id, action, %error, "the outcome of a change is not in the audit");
        }
    }
}
