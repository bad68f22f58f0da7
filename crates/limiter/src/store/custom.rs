//! Custom stores.
//!
//! The trait is used as a trait object and its futures are boxed. Memory and Redis have neither
//! cost.

use std::fmt::Debug;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::watch;

use super::{Health, StoreError};
use crate::clock::{Deadline, Timestamp};
use crate::control::OverridePage;
use crate::operation::{Reply, Shard, StoreRequest};
use crate::rules::Key;

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A custom store, for [`Store::Custom`](super::Store::Custom).
///
/// A store that can read the records of keys, and write them on condition that they have not
/// changed, can use [`execute_on_records`](crate::step::execute_on_records) for decisions: see
/// `examples/custom_store.rs`. The test cases of the module `conformance` show whether a store
/// keeps its promises.
pub trait CustomStore: Debug + Send + Sync {
    /// Decides every hit in one atomic step. All hits are in one [`Shard`]: see [`StoreRequest`].
    /// The reply has one [`HitReply`](crate::operation::HitReply) for each hit, in the same order.
    /// Not called after the deadline.
    ///
    /// # Errors
    ///
    /// [`StoreError::Custom`], before the deadline and within [`CustomStore::timeout`]. A failed
    /// request may have changed something only if the error [says so](super::Fate).
    fn execute<'a>(
        &'a self,
        request: StoreRequest<'a>,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Reply, StoreError>>;

    /// Returns the time by the clock that decides for this key, or an estimate of it.
    fn now(&self, key: &Key) -> Timestamp;

    /// Returns the shard of a key. Hits of several shards are decided one shard after the other, in
    /// a task of the Tokio runtime; if a later shard denies, the units that were taken in others
    /// are refunded.
    fn shard(&self, _key: &Key) -> Shard {
        Shard::default()
    }

    /// Returns overrides in force: see [`Store::list_overrides`](super::Store::list_overrides). By
    /// default none.
    ///
    /// # Errors
    ///
    /// As [`CustomStore::execute`].
    fn list_overrides<'a>(
        &'a self,
        _cursor: &'a str,
        _count: usize,
        _deadline: Deadline,
    ) -> BoxFuture<'a, Result<OverridePage, StoreError>> {
        Box::pin(async { Ok(OverridePage::default()) })
    }

    /// Returns `true` if the store remembers requests by their request ids. Otherwise requests with
    /// a request id fail with [`RequestIdError::Unsupported`], and [`StoreRequest::once`] is never
    /// set.
    ///
    /// Such a store keeps a [`RememberedReply`] for each [`IdempotencyRecord::id`] and first key of
    /// a request, in the transaction that changes the states, and executes requests by
    /// [`idempotency::execute`](crate::idempotency::execute).
    ///
    /// [`IdempotencyRecord::id`]: crate::idempotency::IdempotencyRecord::id
    /// [`RememberedReply`]: crate::idempotency::RememberedReply
    /// [`RequestIdError::Unsupported`]: crate::idempotency::RequestIdError::Unsupported
    fn remembers_requests(&self) -> bool {
        false
    }

    /// Returns the name under which an operator finds the state of a key, without a window.
    fn key_name(&self, key: &Key) -> String {
        String::from_utf8_lossy(key.as_bytes()).into_owned()
    }

    /// Returns the longest time that a decision may take.
    fn timeout(&self) -> Duration {
        Duration::MAX
    }

    /// Returns `true` if the store failed so often for this key that it is not called: rules with
    /// `breaker-opens-rule` then allow requests.
    fn breaker_is_open(&self, _key: &Key) -> bool {
        false
    }

    /// Runs the background work, for ever: see [`Store::run`](super::Store::run).
    fn run(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    /// Returns a receiver of the health of the store.
    fn health(&self) -> watch::Receiver<Health> {
        watch::channel(Health::Up).1
    }

    /// Returns a name for logs.
    fn name(&self) -> &'static str {
        "custom"
    }
}
