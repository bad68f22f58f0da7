//! The replies that the memory store remembers for request ids: a bounded table that forgets the
//! oldest first. If there are projects, it forgets those of the project with most replies first.
//!
//! The table has stripes with their own locks. A stripe is locked while its request is decided, so
//! that calls with the same request id follow one another; the stripes of the states are locked
//! after it.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::{DefaultHashBuilder, HashMap};

use crate::clock::Timestamp;
use crate::idempotency::{self, RememberedReply, RequestIdError};
use crate::observer::{Observer, StoreEvent};
use crate::operation::{Reply, StoreRequest};
use crate::project_counts::ProjectCounts;

/// Replies of a stripe if there are several stripes.
const REPLIES_PER_STRIPE: u32 = 1024;
/// Most stripes.
const MAX_STRIPES: u32 = 64;

/// Remembered replies, by the hash of the request id and that of the first key.
#[derive(Debug)]
pub(super) struct RememberedReplies {
    stripes: Box<[Mutex<ReplyStripe>]>,
    hasher: DefaultHashBuilder,
    max_per_stripe: usize,
    observer: Arc<dyn Observer>,
}

#[derive(Debug, Default)]
struct ReplyStripe {
    replies: HashMap<RecordName, KnownReply>,
    /// Entries in the order in which they were remembered.
    order: VecDeque<OrderedReply>,
    /// Entries of each project in `order`.
    projects: ProjectCounts,
    /// Number of entries so far.
    count: u64,
}

#[derive(Debug)]
struct KnownReply {
    reply: RememberedReply,
    number: u64,
}

#[derive(Debug)]
struct OrderedReply {
    name: RecordName,
    /// Number of the entry: another one if the name was forgotten since.
    number: u64,
    project: Box<[u8]>,
}

/// Hash of the user and the request id, and hash of the project and the id of the first key.
type RecordName = (u128, u64);

impl RememberedReplies {
    /// Creates an empty table of at most about `max` replies.
    pub(super) fn new(max: u32, observer: Arc<dyn Observer>) -> Self {
        let max = max.max(1);
        let stripes = (max / REPLIES_PER_STRIPE).clamp(1, MAX_STRIPES);
        Self {
            stripes: (0..stripes).map(|_| Mutex::default()).collect(),
            hasher: DefaultHashBuilder::default(),
            max_per_stripe: (max / stripes) as usize,
            observer,
        }
    }

    /// Returns an empty table with another bound.
    pub(super) fn emptied(&self, max: u32) -> Self {
        Self::new(max, Arc::clone(&self.observer))
    }

    /// Executes a request by its request id. See [`idempotency::execute`].
    pub(super) fn execute(
        &self,
        request: StoreRequest<'_>,
        time: Timestamp,
        decide: impl FnOnce(StoreRequest<'_>) -> Reply,
    ) -> Result<Reply, RequestIdError> {
        let (Some(once), Some(first)) = (request.once, request.hits.first()) else {
            return Ok(decide(request));
        };
        let name = (once.id, self.hasher.hash_one((first.key.project(), first.key.id())));
        let stripe = once.id as usize % self.stripes.len();
        let mut stripe = lock(&self.stripes[stripe]);
        let known = stripe.replies.remove(&name);
        let number = known.as_ref().map(|entry| entry.number);
        let mut remembered = known.map(|entry| entry.reply);
        let was_known = remembered.as_ref().is_some_and(|reply| !reply.is_expired(time));
        let result = idempotency::execute(request, time, &mut remembered, decide);
        match (remembered, number) {
            (Some(reply), Some(number)) if was_known => {
                stripe.replies.insert(name, KnownReply { reply, number });
            }
            (Some(reply), _) => {
                stripe.forget_expired(time);
                while stripe.order.len() >= self.max_per_stripe {
                    if stripe.make_space() {
                        self.observer.store(StoreEvent::RequestIdEvicted);
                    }
                }
                stripe.add(name, reply, first.key.project().as_bytes());
            }
            (None, _) => {}
        }
        result
    }

    /// Forgets what has expired in one of the stripes: each in turn, as `turn` increases.
    pub(super) fn sweep(&self, turn: usize, time: Timestamp) {
        lock(&self.stripes[turn % self.stripes.len()]).forget_expired(time);
    }
}

impl ReplyStripe {
    fn add(&mut self, name: RecordName, reply: RememberedReply, project: &[u8]) {
        self.count += 1;
        self.projects.add(project);
        self.order.push_back(OrderedReply { name, number: self.count, project: project.into() });
        self.replies.insert(name, KnownReply { reply, number: self.count });
    }

    fn forget_expired(&mut self, time: Timestamp) {
        while let Some(OrderedReply { name, number, .. }) = self.order.front() {
            let entry = self.replies.get(name).filter(|entry| entry.number == *number);
            if entry.is_some_and(|entry| !entry.reply.is_expired(time)) {
                return;
            }
            self.forget(0);
        }
        if self.order.is_empty() && self.replies.capacity() > 0 {
            *self = Self { count: self.count, ..Self::default() };
        }
    }

    /// Forgets the oldest entry of the project with most. Returns `false` if it was forgotten
    /// before.
    fn make_space(&mut self) -> bool {
        if self.projects.is_empty() {
            return self.forget(0);
        }
        let largest = self.projects.largest(self.order.len());
        let oldest = self.order.iter().position(|entry| entry.project == largest);
        self.forget(oldest.unwrap_or_default())
    }

    /// Forgets the entry at a position of the order. Returns `false` if it was forgotten before.
    fn forget(&mut self, position: usize) -> bool {
        let Some(entry) = self.order.remove(position) else { return false };
        let OrderedReply { name, number, project } = entry;
        self.projects.remove(&project);
        let is_there = self.replies.get(&name).is_some_and(|known| known.number == number);
        is_there && self.replies.remove(&name).is_some()
    }
}

/// A poisoned lock is still usable: a stripe is consistent between calls.
fn lock(stripe: &Mutex<ReplyStripe>) -> MutexGuard<'_, ReplyStripe> {
    stripe.lock().unwrap_or_else(PoisonError::into_inner)
}
