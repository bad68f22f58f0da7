//! Records: what is stored of a change, within [`MAX_LEN`].

use std::fmt::Write;

use prost::Message;
use rlaas_limiter::fleet::EntryId;
use rlaas_proto::ratelimit::admin::v1::audit_entry::State;
use rlaas_proto::ratelimit::admin::v1::{AuditEntry, KeyRef, KeyState};
use tonic_types::Status as RpcStatus;

use super::{AuditKeys, Intent};
use crate::messages::hide_values;
use rlaas_core::rules::KeyHasher;

/// Most bytes of an entry: of its intent and its outcome together.
pub(super) const MAX_LEN: usize = 8 * 1024;
/// Most bytes of an outcome. The intent has the rest.
const MAX_OUTCOME_LEN: usize = 3 * 1024;
/// Most bytes of texts that callers choose elsewhere, such as names of tokens.
const MAX_TEXT_LEN: usize = 256;
/// Most bytes of the text of an error.
const MAX_ERROR_LEN: usize = 512;

/// A record of the log. Its format never changes: later versions add fields.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Record {
    /// Entry without id, time, outcome and `after`.
    #[prost(message, optional, tag = "1")]
    pub(super) intent: Option<AuditEntry>,
    /// Names the keys of the intent, those that are left out too.
    #[prost(fixed64, repeated, tag = "2")]
    pub(super) keys: Vec<u64>,
    /// Keys that did not fit into the intent.
    #[prost(uint32, tag = "3")]
    pub(super) left_out: u32,
    #[prost(message, optional, tag = "4")]
    pub(super) outcome: Option<Outcome>,
}

/// The outcome of a change.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Outcome {
    /// Id of the intent.
    #[prost(string, tag = "1")]
    intent_id: String,
    #[prost(message, repeated, tag = "2")]
    after: Vec<KeyState>,
    /// Keys that did not fit.
    #[prost(uint32, tag = "3")]
    left_out: u32,
    #[prost(message, optional, tag = "4")]
    error: Option<RpcStatus>,
    /// Revision that was made of a project; 0: none.
    #[prost(uint64, tag = "5")]
    pub(super) revision: u64,
}

impl Record {
    /// Returns the record of a change that is about to be made.
    pub(super) fn of_intent(intent: Intent<'_>, shown: AuditKeys, hasher: &KeyHasher) -> Self {
        let Intent { actor, action, project_id, target, summary, reason, request_id, before } =
            intent;
        let first = before.first().map(|state| state.rule.as_str());
        let of_keys = first.filter(|first| before.iter().all(|state| state.rule == *first));
        let target = if target.is_empty() { of_keys.unwrap_or_default() } else { target };
        let mut record = Self {
            keys: before.iter().map(|state| fingerprint(state, hasher)).collect(),
            left_out: 0,
            outcome: None,
            intent: Some(AuditEntry {
                actor: cut(actor, MAX_TEXT_LEN),
                action: action.to_owned(),
                project_id: cut(project_id, MAX_TEXT_LEN),
                target: cut(target, MAX_TEXT_LEN),
                summary: cut(&summary, MAX_TEXT_LEN),
                reason: cut(reason, 1024),
                request_id: cut(request_id, 64),
                ..AuditEntry::default()
            }),
        };
        // Eight bytes for lengths, and for `left_out`.
        let room = (MAX_LEN - MAX_OUTCOME_LEN).saturating_sub(record.encoded_len() + 8);
        let (before, left_out) = fit(before, room, shown, hasher);
        record.left_out = left_out;
        if let Some(intent) = &mut record.intent {
            intent.before = before;
        }
        record
    }

    pub(super) fn of_outcome(outcome: Outcome) -> Self {
        Self { outcome: Some(outcome), ..Self::default() }
    }

    pub(super) fn encoded(&self) -> Vec<u8> {
        let bytes = self.encode_to_vec();
        debug_assert!(bytes.len() <= MAX_LEN, "{} bytes", bytes.len());
        bytes
    }

    /// Returns the entry of an intent, with its outcome if it is known.
    pub(super) fn into_entry(self, id: EntryId, outcome: Option<Outcome>) -> Option<AuditEntry> {
        let mut entry = self.intent?;
        let total = self.keys.len();
        let mut left_out = vec![(self.left_out, "before")];
        entry.id = id.to_string();
        entry.created_at = Some(timestamp(id));
        let state = match outcome {
            None => State::Unknown,
            Some(outcome) => {
                entry.after = outcome.after;
                entry.revision = outcome.revision;
                left_out.push((outcome.left_out, "after"));
                entry.error = outcome.error;
                if entry.error.is_none() { State::Done } else { State::Failed }
            }
        };
        entry.state = state.into();
        for (left_out, side) in left_out.into_iter().filter(|(left_out, _)| *left_out > 0) {
            let _infallible =
                write!(entry.summary, "; {side}: {left_out} of {total} keys left out");
        }
        Some(entry)
    }
}

impl Outcome {
    /// Returns the outcome of the intent with this id.
    pub(super) fn new(
        intent: EntryId,
        after: Vec<KeyState>,
        error: Option<RpcStatus>,
        shown: AuditKeys,
        hasher: &KeyHasher,
    ) -> Self {
        // Details repeat fields of the request.
        let error = error.map(|error| RpcStatus {
            message: cut(&error.message, MAX_ERROR_LEN),
            code: error.code,
            details: Vec::new(),
        });
        let intent_id = intent.to_string();
        let outcome = Self { intent_id, after: Vec::new(), left_out: 0, error, revision: 0 };
        let room = MAX_OUTCOME_LEN.saturating_sub(outcome.encoded_len() + 16);
        let (after, left_out) = fit(after, room, shown, hasher);
        Self { after, left_out, ..outcome }
    }

    /// Returns the id of the intent.
    pub(super) fn intent_id(&self) -> Option<EntryId> {
        self.intent_id.parse().ok()
    }
}

/// Returns the first states that fit into `room` bytes, as they are shown, and the number of those
/// that do not.
fn fit(
    states: Vec<KeyState>,
    room: usize,
    shown: AuditKeys,
    hasher: &KeyHasher,
) -> (Vec<KeyState>, u32) {
    let total = states.len();
    let (mut fitting, mut used) = (Vec::new(), 0);
    for mut state in states {
        if shown == AuditKeys::Hashed {
            hide(&mut state, hasher);
        }
        // Three bytes for the field and its length.
        used += state.encoded_len() + 3;
        if used > room {
            break;
        }
        fitting.push(state);
    }
    let left_out = total - fitting.len();
    (fitting, u32::try_from(left_out).unwrap_or(u32::MAX))
}

/// Replaces what tells the key by hashes.
fn hide(state: &mut KeyState, hasher: &KeyHasher) {
    let overrides = state.overrides.iter_mut().filter_map(|entry| entry.key.as_mut());
    for key in state.key.iter_mut().chain(overrides) {
        hide_key(key, hasher);
    }
}

fn hide_key(key: &mut KeyRef, hasher: &KeyHasher) {
    hide_values(key, hasher);
    // The name in the store is that of the id.
    key.storage_key.clear();
    let is_id_alone = key.parts.is_empty() && !key.id.is_empty();
    key.id = if is_id_alone { hasher.shown(&key.id) } else { String::new() };
}

/// Returns a number by which entries of a key are found, whether its parts are hashed or not: 60
/// bits of a keyed hash of rule and id.
pub(super) fn fingerprint(state: &KeyState, hasher: &KeyHasher) -> u64 {
    let id = state.key.as_ref().map_or("", |key| key.id.as_str());
    fingerprint_of(&state.rule, id, hasher)
}

/// As [`fingerprint`], of the key of a rule with this id.
pub(super) fn fingerprint_of(rule: &str, id: &str, hasher: &KeyHasher) -> u64 {
    // The length keeps rule and id apart.
    let hash = hasher.hash(&format!("{}:{rule}:{id}", rule.len()));
    u64::from_str_radix(&hash.as_str()[..12], 36).expect("twelve letters and digits")
}

/// Cuts a text at a character, to at most `len` bytes.
fn cut(text: &str, len: usize) -> String {
    let mut end = text.len().min(len);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

fn timestamp(id: EntryId) -> prost_types::Timestamp {
    let micros = id.time().as_micros();
    prost_types::Timestamp {
        seconds: i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX),
        nanos: i32::try_from(micros % 1_000_000 * 1_000).unwrap_or_default(),
    }
}
