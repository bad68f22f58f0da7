//! Idempotency: the same request under the same request id takes its units once.
//!
//! A store remembers the reply to a request that took units, under a hash of the user and the
//! request id, in the step that takes the units. While the record lives, the same request gets the
//! same reply and takes nothing. Replies that took nothing, such as denials, are not remembered:
//! the request is decided afresh.
//!
//! Each shard has its own record. It names the call that took the units, and the calls that hold
//! them: the one that took them, and each that relies on them by [`RecordUse::Confirm`]. A call that
//! is refused in another shard lets go by [`RecordUse::Undo`], and the last one to let go refunds the
//! units. So no call refunds what another has answered by.
//!
//! This module knows no store. [`execute`] is one step of a store that keeps a [`RememberedReply`]
//! as it keeps a state; `lua/idempotency.lua` is its twin for Redis.

mod fingerprint;

use smallvec::SmallVec;
use thiserror::Error;

use self::fingerprint::HashedFields;
use crate::algorithm::{Cost, Decision, Outcome};
use crate::clock::{Micros, Timestamp};
use crate::operation::{Action, HitReply, Reply, StoreHit, StoreRequest};
use crate::rules::Request;

/// Most times that one reply is repeated.
pub const MAX_REPLAYS: u32 = 8;

/// The request id of a store request: what the store looks up and remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencyRecord {
    /// Hash of the operation, the project, the user and the request id, which names the record.
    pub id: u128,
    /// Hash of the request, by which another request under the same id is detected.
    pub fingerprint: u128,
    /// Time for which the reply is remembered: 1 ms to 1 day.
    pub ttl: Micros,
    /// The call.
    pub call: CallId,
    /// What the call does with the record.
    pub purpose: RecordUse,
}

/// What a request with a request id asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// To decide.
    Check,
    /// To count a cost that was incurred already.
    Report,
    /// To hold units.
    Reserve,
    /// To count what a reservation that is gone has cost.
    Commit,
}

/// Number of one call, different for each call of all instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId(pub u64);

/// What a call does with the record of its request id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordUse {
    /// Repeats the remembered reply; without one decides, and remembers the reply if units were
    /// taken.
    Decide,
    /// As `Decide`, but this call then holds remembered units, too. It is not counted as a replay,
    /// and no wait is shortened.
    Confirm,
    /// Lets go of the units. If no other call holds them, executes the refunds of the request and
    /// removes the record. Otherwise no state changes.
    Undo,
}

/// Reason why a request with a request id is not decided. Nothing was counted.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RequestIdError {
    /// Another request of the same user has the id.
    #[error("request_id was used for another request")]
    OtherRequest,
    /// The reply was repeated [`MAX_REPLAYS`] times.
    #[error("request_id was used too often: a reply is repeated at most {MAX_REPLAYS} times")]
    TooManyReplays,
    /// The rules that match the request are not those of the remembered reply.
    #[error("request_id must be a new one: the rules have changed since it was used")]
    OtherRules,
    /// The store may not read or write the record.
    #[error("request_id needs a permission that the store lacks")]
    NotPermitted,
    /// The store remembers no requests.
    #[error("request_id is not supported by the store")]
    Unsupported,
}

/// The reply to a request that took units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RememberedReply {
    fingerprint: u128,
    /// Hash of the keys and algorithms of the hits, in this process.
    hits: u128,
    taker: CallId,
    /// Each holder is the taker or was answered by the record before: at most one more than
    /// [`MAX_REPLAYS`].
    holders: SmallVec<[CallId; 1]>,
    replays: u32,
    at: Timestamp,
    expires_at: Timestamp,
    replies: SmallVec<[HitReply; 2]>,
}

impl IdempotencyRecord {
    /// Shortest time for which a reply is remembered.
    pub const MIN_TTL: Micros = Micros::from_millis(1);
    /// Longest time for which a reply is remembered.
    pub const MAX_TTL: Micros = Micros::from_secs(86_400);

    /// Creates the record of a request; `None` if it has no request id or takes no units. The same id
    /// is another one for another operation.
    pub fn for_request(
        request: &Request<'_>,
        operation: Operation,
        ttl: Micros,
        call: CallId,
    ) -> Option<Self> {
        let hashes = hashed_fields(request, operation)?.map(|fields| fields.shared_hash());
        Some(Self::new(hashes, ttl, call))
    }

    /// As [`IdempotencyRecord::for_request`], for a store whose records this process alone reads, and
    /// forgets when it ends. Its hashes are quicker.
    pub fn for_local_store(
        request: &Request<'_>,
        operation: Operation,
        ttl: Micros,
        call: CallId,
    ) -> Option<Self> {
        let hashes = hashed_fields(request, operation)?.map(|fields| fields.local_hash());
        Some(Self::new(hashes, ttl, call))
    }

    fn new([id, fingerprint]: [u128; 2], ttl: Micros, call: CallId) -> Self {
        let ttl = ttl.clamp(Self::MIN_TTL, Self::MAX_TTL);
        Self { id, fingerprint, ttl, call, purpose: RecordUse::Decide }
    }

    /// Returns this record for another purpose.
    #[must_use]
    pub const fn with_purpose(self, purpose: RecordUse) -> Self {
        Self { purpose, ..self }
    }
}

/// Returns the fields of the id and of the request; `None` if it has no request id or takes no units.
fn hashed_fields(request: &Request<'_>, operation: Operation) -> Option<[HashedFields; 2]> {
    let request_id = request.request_id().filter(|_| !request.takes_nothing())?;
    let (project, user_id) = (request.project(), request.user_id());
    let id = fingerprint::of_id(operation, project, user_id, request_id);
    Some([id, fingerprint::of_request(request)])
}

/// Returns the hash of the keys and algorithms of hits, by which a change of the rules is detected.
pub fn hash_of_hits(hits: &[StoreHit<'_>]) -> u128 {
    fingerprint::of_hits(hits).shared_hash()
}

/// Executes a request by its request id: repeats the remembered reply, or executes the request by
/// `decide` and remembers its reply. A request without an id is executed by `decide` alone.
///
/// `remembered` is the record under [`IdempotencyRecord::id`] and the first key of the request. The
/// caller ensures that nobody else changes it or the states meanwhile.
///
/// # Errors
///
/// [`RequestIdError`]. Nothing has changed then.
pub fn execute(
    request: StoreRequest<'_>,
    time: Timestamp,
    remembered: &mut Option<RememberedReply>,
    decide: impl FnOnce(StoreRequest<'_>) -> Reply,
) -> Result<Reply, RequestIdError> {
    let Some(once) = request.once else { return Ok(decide(request)) };
    if remembered.as_ref().is_some_and(|known| known.is_expired(time)) {
        *remembered = None;
    }
    if once.purpose == RecordUse::Undo {
        if remembered.as_mut().is_some_and(|known| known.let_go(once.call)) {
            *remembered = None;
            return Ok(decide(request));
        }
        let look = Action::Peek(Cost::NONE);
        let hits: SmallVec<[StoreHit<'_>; 2]> =
            request.hits.iter().map(|hit| hit.with_action(look)).collect();
        return Ok(decide(StoreRequest { hits: &hits, once: None, ..request }));
    }
    if let Some(known) = remembered {
        return known.repeat(request.hits, once, time);
    }
    let reply = decide(request);
    if reply.hits.iter().any(|reply| reply.taken > 0) {
        *remembered = Some(RememberedReply::new(request.hits, once, &reply, time));
    }
    Ok(reply)
}

impl RememberedReply {
    fn new(
        hits: &[StoreHit<'_>],
        once: &IdempotencyRecord,
        reply: &Reply,
        time: Timestamp,
    ) -> Self {
        Self {
            fingerprint: once.fingerprint,
            hits: fingerprint::of_hits(hits).local_hash(),
            taker: once.call,
            holders: SmallVec::from_slice(&[once.call]),
            replays: 0,
            at: time,
            expires_at: time + once.ttl,
            replies: reply.hits.clone(),
        }
    }

    /// Returns `true` if the record has no effect any more.
    pub fn is_expired(&self, time: Timestamp) -> bool {
        time >= self.expires_at
    }

    fn repeat(
        &mut self,
        hits: &[StoreHit<'_>],
        once: &IdempotencyRecord,
        time: Timestamp,
    ) -> Result<Reply, RequestIdError> {
        if self.fingerprint != once.fingerprint {
            return Err(RequestIdError::OtherRequest);
        }
        if self.hits != fingerprint::of_hits(hits).local_hash() {
            return Err(RequestIdError::OtherRules);
        }
        let mut elapsed = time.since(self.at);
        if once.purpose == RecordUse::Confirm {
            elapsed = Micros::ZERO;
            if !self.holders.contains(&once.call) {
                self.holders.push(once.call);
            }
        } else if self.taker != once.call {
            if self.replays >= MAX_REPLAYS {
                return Err(RequestIdError::TooManyReplays);
            }
            self.replays += 1;
        }
        Ok(repeated(self.replies.clone(), self.taker, elapsed))
    }

    /// Removes a holder. Returns `true` if it was the last.
    fn let_go(&mut self, call: CallId) -> bool {
        let holders = self.holders.len();
        self.holders.retain(|holder| *holder != call);
        self.holders.is_empty() && holders > 0
    }
}

/// Returns remembered replies as they are `elapsed` later. `taker` is the call that took the units.
pub fn repeated(mut hits: SmallVec<[HitReply; 2]>, taker: CallId, elapsed: Micros) -> Reply {
    for hit in &mut hits {
        count_down(&mut hit.decision, elapsed);
    }
    Reply { hits, replayed: Some(taker), reservation: None }
}

/// Shortens the waits of a decision. All other numbers stay as they were.
fn count_down(decision: &mut Decision, elapsed: Micros) {
    if let Outcome::Denied { retry_after } = &mut decision.outcome {
        *retry_after = (*retry_after - elapsed).max(Micros::from_micros(1));
    }
    decision.reset_after = decision.reset_after - elapsed;
}

#[cfg(test)]
mod tests;
