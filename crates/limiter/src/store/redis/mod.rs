//! The Redis store: one script call decides all hits that share a place, and those of others that
//! wait at the same moment.
//!
//! Redis' own clock decides. Every key that a script touches is declared, so the key of a fixed
//! window names its window before the script runs: it comes from an estimate of Redis' clock, and a
//! script that finds itself in another window writes nothing and tells the time.
//!
//! A call whose fate is unknown is never repeated: a decision would count twice. What was surely
//! not executed is repeated where that helps: see `retry.rs`.

mod batch;
mod cluster;
mod codec;
mod connection;
mod health;
mod node;
mod retry;
mod settings;
mod topology;

pub use settings::{
    Credentials, Identity, KeyPrefix, RedisSettings, RedisUrl, Secret, Servers, SettingError, Tls,
};

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use quanta::Instant;
use tokio::sync::{Semaphore, watch};

use crate::clock::{Deadline, SystemClock, Timestamp};
use crate::observer::{Observer, Operation, StoreEvent};
use crate::operation::{Action, Reply, Shard, StoreRequest};
use crate::rules::Key;
use crate::store::redis::batch::Scribe;
use crate::store::redis::codec::keys::Naming;
use crate::store::redis::retry::Attempt;
use crate::store::redis::topology::Topology;
use crate::store::{Health, StoreError};

/// State in Redis, shared by any number of instances. Clones share the connections.
#[derive(Clone, Debug)]
pub struct RedisStore {
    naming: Naming,
    timeout: Duration,
    topology: Arc<Topology>,
    /// Number of the home connection to each server, of those who have one.
    home: Option<usize>,
    local: SystemClock,
    /// Decisions that may wait at once.
    room: Arc<Semaphore>,
    observer: Arc<dyn Observer>,
}

impl RedisStore {
    /// A store that connects as soon as it is run, and reports to `observer`.
    ///
    /// # Errors
    ///
    /// [`SettingError`] if the certificates can't be used.
    pub fn new(
        settings: &RedisSettings,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, SettingError> {
        let local = SystemClock::new();
        let scribe =
            Arc::new(Scribe::new(RandomState::new().hash_one("instance"), settings.timeout));
        let topology = Topology::new(settings, local.clone(), &scribe, &observer)?;
        let room = usize::try_from(settings.max_in_flight).unwrap_or(Semaphore::MAX_PERMITS);
        Ok(Self {
            naming: Naming::new(settings.key_prefix.clone(), topology.style()),
            timeout: settings.timeout,
            topology: Arc::new(topology),
            home: None,
            local,
            room: Arc::new(Semaphore::new(room.min(Semaphore::MAX_PERMITS))),
            observer,
        })
    }

    /// Decides every hit. See [`super::Store::execute`].
    ///
    /// # Errors
    ///
    /// [`StoreError`]; before the deadline and within `store.redis.timeout`, whatever Redis does.
    pub async fn execute(
        &self,
        request: StoreRequest<'_>,
        deadline: Deadline,
    ) -> Result<Reply, StoreError> {
        let operation = if only_refunds(request) { Operation::GiveBack } else { Operation::Check };
        let started = Instant::now();
        let reply = self.decide(request, deadline).await;
        self.observer.store(StoreEvent::Called { operation, took: started.elapsed() });
        if reply.as_ref().is_err_and(StoreError::is_ambiguous) {
            self.observer.store(StoreEvent::Ambiguous);
        }
        reply
    }

    /// The longest that a decision may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Where the state of a key is. See [`super::Store::shard`].
    pub fn shard(&self, key: &Key) -> Shard {
        Shard(self.naming.slot(key))
    }

    /// The time by the clock of the server with this key, estimated; that of this machine while the
    /// server is not known. See [`super::Store::now`].
    pub fn now(&self, key: &Key) -> Timestamp {
        let local = self.local.now();
        let node = self.topology.known(self.naming.slot(key));
        node.map_or(local, |node| node.clock().estimate(local))
    }

    /// Has the breaker of the server with this key opened?
    pub fn breaker_is_open(&self, key: &Key) -> bool {
        let node = self.topology.known(self.naming.slot(key));
        node.is_some_and(|node| node.breaker().is_open())
    }

    /// Uses the credentials and certificates of these settings from the next connection on.
    ///
    /// # Errors
    ///
    /// As [`RedisStore::new`].
    pub fn log_in_anew(&self, settings: &RedisSettings) -> Result<(), SettingError> {
        self.topology.log_in_anew(settings)
    }

    /// Keeps the connections of those who have no home connection, for ever. See
    /// [`super::Store::run`].
    pub async fn run(&self) {
        self.topology.run().await;
    }

    /// A handle with a home connection of its own. See [`super::Store::for_worker`].
    #[must_use]
    pub fn for_worker(&self) -> Self {
        Self { home: Some(self.topology.add_home()), ..self.clone() }
    }

    /// Keeps the home connections of this handle, for ever; nothing where it has none.
    pub async fn keep_home(&self) {
        if let Some(home) = self.home {
            self.topology.keep_home(home).await;
        }
    }

    /// Whether Redis answers, now and later.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.topology.health()
    }

    async fn decide(
        &self,
        request: StoreRequest<'_>,
        deadline: Deadline,
    ) -> Result<Reply, StoreError> {
        let Some(first) = request.hits.first() else { return Ok(Reply::default()) };
        let left = deadline.left();
        if left.is_zero() {
            return Err(StoreError::Expired);
        }
        // What is refunded had its room when it was taken.
        let _room = if only_refunds(request) {
            None
        } else {
            Some(self.room.try_acquire().map_err(|_| StoreError::Overloaded)?)
        };
        let slot = self.naming.slot(first.key);
        // What a request has spent on its way here is no hurry.
        let hurries = left < self.timeout * 9 / 10;
        Attempt { store: self, request, slot, deadline, hurries }.run().await
    }
}

fn only_refunds(request: StoreRequest<'_>) -> bool {
    request.hits.iter().all(|hit| matches!(hit.action, Action::Refund(_)))
}
