//! Request ids: the record of a request, and the agreement of several shards.
//!
//! Each shard remembers its part of a request by itself. Two calls with one request id that run at
//! the same time may meet in different shards: one takes in the first shard, and the other, which
//! is answered there by the record, takes in the second. If the first call is then refused in the
//! second shard, it must not refund what the second call relies on. So a call whose shards were
//! taken by different calls asks those of others once more before it answers: the shard makes it a
//! holder of the units, or, if the record is gone, decides afresh. Units are refunded once nobody
//! holds them.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use super::execution::{Execution, HitGroup};
use super::{CheckError, Limiter};
use crate::clock::Micros;
use crate::idempotency::{CallId, IdempotencyRecord, Operation, RecordUse, RequestIdError};
use crate::operation::StoreId;
use crate::reservation::ReservationReply;
use crate::rules::Request;
use crate::store::Store;
use crate::verdict::HitResult;

/// Time for which a reply is remembered unless another is set.
const DEFAULT_TTL: Micros = Micros::from_secs(60);

/// What a limiter needs to make records.
#[derive(Debug)]
pub(super) struct RequestIds {
    ttl_micros: AtomicU64,
    calls: AtomicU64,
    /// Makes the numbers of calls differ from those of other instances.
    hasher: RandomState,
}

impl RequestIds {
    pub(super) fn new() -> Self {
        let (ttl, calls) = (DEFAULT_TTL.as_micros(), AtomicU64::new(0));
        Self { ttl_micros: ttl.into(), calls, hasher: RandomState::new() }
    }

    fn next_call(&self) -> CallId {
        CallId(self.hasher.hash_one(self.calls.fetch_add(1, Ordering::Relaxed)))
    }
}

impl Limiter {
    /// Sets the time for which the reply to a request with a request id is remembered: 60 seconds
    /// unless it is set. Shorter times than 1 ms become 1 ms, longer ones than a day a day.
    pub fn set_idempotency_ttl(&self, ttl: Micros) {
        self.shared.request_ids.ttl_micros.store(ttl.as_micros(), Ordering::Relaxed);
    }

    /// Returns the time for which the reply to a request with a request id is remembered.
    pub fn idempotency_ttl(&self) -> Micros {
        Micros::from_micros(self.shared.request_ids.ttl_micros.load(Ordering::Relaxed))
    }

    /// Returns the record of a request with a request id; `None` if it takes no units.
    #[cold]
    pub(super) fn record_of(
        &self,
        request: &Request<'_>,
        operation: Operation,
    ) -> Result<Option<Box<IdempotencyRecord>>, CheckError> {
        let (ttl, call) = (self.idempotency_ttl(), self.shared.request_ids.next_call());
        // The number of a reservation is made of the hashes, and outlives this process in a journal.
        let is_local = matches!(self.store, Store::Memory(_)) && operation != Operation::Reserve;
        let for_store = if is_local {
            IdempotencyRecord::for_local_store
        } else {
            IdempotencyRecord::for_request
        };
        let record = for_store(request, operation, ttl, call);
        if record.is_some() && !self.store.remembers_requests() {
            return Err(RequestIdError::Unsupported.into());
        }
        Ok(record.map(Box::new))
    }
}

impl Execution<'_> {
    /// Returns the record for a group of hits, if the request has a request id. Only units of the
    /// configured store are remembered.
    pub(super) fn record_for(
        &self,
        group: &HitGroup,
        purpose: RecordUse,
    ) -> Option<IdempotencyRecord> {
        let record = self.plan.once.as_deref()?;
        let is_remembered = group.store == StoreId::Primary && !group.is_refused;
        is_remembered.then(|| record.with_purpose(purpose))
    }

    /// Asks the shards again that were answered by the records of other calls, if different calls
    /// took in the shards. Leaves all groups in `groups`, also after an error. Stops if the request
    /// is refused.
    pub(super) async fn confirm(
        &self,
        groups: &mut SmallVec<[HitGroup; 1]>,
        results: &mut [Option<HitResult>],
    ) -> Result<(), CheckError> {
        if !self.have_several_takers(groups, results) {
            return Ok(());
        }
        let replayed = results.to_vec();
        let mut waiting = std::mem::take(groups).into_iter();
        while let Some(group) = waiting.next() {
            if group.taker.is_none() {
                groups.push(group);
                continue;
            }
            let confirmed = self.step(group, RecordUse::Confirm, results).await;
            let result = confirmed.map(|group| groups.push(group));
            if result.is_err() || self.is_refused(results) {
                groups.extend(waiting);
                return result;
            }
        }
        // The units count for the calls that took them, and all waits were shortened before.
        for group in groups.iter().filter(|group| group.taker.is_some()) {
            for position in &group.positions {
                results[*position].clone_from(&replayed[*position]);
            }
        }
        Ok(())
    }

    fn have_several_takers(&self, groups: &[HitGroup], results: &[Option<HitResult>]) -> bool {
        let Some(record) = self.plan.once.as_deref() else { return false };
        let mut takers = groups.iter().filter_map(|group| {
            group.taker.or_else(|| has_taken(group, results).then_some(record.call))
        });
        let first = takers.next();
        takers.any(|other| Some(other) != first)
    }
}

/// Returns `true` if the group has taken or holds units.
fn has_taken(group: &HitGroup, results: &[Option<HitResult>]) -> bool {
    let has_taken = |at: &usize| {
        let reply = results[*at].as_ref().map(|result| &result.reply);
        reply.is_some_and(|reply| reply.taken > 0 || reply.own_hold().is_some())
    };
    group.positions.iter().any(has_taken)
}

/// Records that the units of a group were not taken by this call.
pub(super) fn clear_taken(group: &HitGroup, results: &mut [Option<HitResult>]) {
    for position in &group.positions {
        if let Some(result) = &mut results[*position] {
            result.reply.taken = 0;
        }
    }
}

/// Returns `true` if an earlier call took or holds all units, and this one none.
pub(super) fn is_replay(
    groups: &[HitGroup],
    results: &[Option<HitResult>],
    reservation: Option<&ReservationReply>,
) -> bool {
    let held_before = matches!(reservation, Some(ReservationReply::Held { replayed: true, .. }));
    (held_before || groups.iter().any(|group| group.taker.is_some()))
        && results.iter().flatten().all(|result| result.reply.taken == 0)
}
