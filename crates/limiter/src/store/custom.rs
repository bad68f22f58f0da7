//! A store of one's own.
//!
//! The trait is behind a pointer, and its futures are boxed: memory and Redis pay for neither.

use std::fmt::Debug;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::watch;

use super::{Health, StoreError};
use crate::clock::{Deadline, Timestamp};
use crate::operation::{Reply, Shard, StoreRequest};
use crate::rules::Key;

/// A future behind a pointer.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A store of one's own, for [`Store::Custom`](super::Store::Custom).
///
/// A store that reads and writes all of a key at once, and only if nobody else has written
/// meanwhile, leaves the decision to
/// [`execute_on_records`](crate::step::execute_on_records): see `examples/custom_store.rs`. Whether
/// a store keeps its promises is told by the cases of the module `conformance`.
pub trait CustomStore: Debug + Send + Sync {
    /// Decides every hit, all of which are in one [`Shard`], in one atomic step: see
    /// [`StoreRequest`]. The reply has one [`HitReply`](crate::operation::HitReply) for each hit, in
    /// the same order. It is not called when the deadline is over.
    ///
    /// # Errors
    ///
    /// [`StoreError::Custom`], before the deadline and within [`CustomStore::timeout`]. A request
    /// may have changed something only if the error [says so](super::Fate).
    fn execute<'a>(
        &'a self,
        request: StoreRequest<'a>,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Reply, StoreError>>;

    /// The time by the clock that decides for this key, or an estimate of it.
    fn now(&self, key: &Key) -> Timestamp;

    /// Where the state of a key is. Hits of several shards are decided one shard after the other, in
    /// a task of Tokio's runtime, and what was taken is refunded if a later one refuses.
    fn shard(&self, _key: &Key) -> Shard {
        Shard::default()
    }

    /// The longest that a decision may take.
    fn timeout(&self) -> Duration {
        Duration::MAX
    }

    /// Returns `true` if the store has failed for this key so often that it is not asked: rules
    /// whose breaker opens them then let requests pass.
    fn breaker_is_open(&self, _key: &Key) -> bool {
        false
    }

    /// Does the work in the background, for ever: see [`Store::run`](super::Store::run).
    fn run(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    /// Whether the store answers, now and later.
    fn health(&self) -> watch::Receiver<Health> {
        watch::channel(Health::Up).1
    }

    /// A name for logs.
    fn name(&self) -> &'static str {
        "custom"
    }
}
