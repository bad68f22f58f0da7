//! The Redis store: one script call decides all hits that share a slot, and those of others that
//! wait at the same moment.
//!
//! | file | what |
//! | --- | --- |
//! | `retry` | one decision: where to, how often, until when |
//! | `topology`, `cluster`, `node` | which server has a slot; one server |
//! | `batch` | requests that wait together become one call |
//! | `codec` | keys, requests to arguments, replies to decisions, scripts |
//! | `connection` | opens connections, pools them, finds the master |
//! | `health`, `clock` | breaker, monitor, log; the server's time |
//! | `settings` | where Redis is, and how to use it |
//!
//! Redis' own clock decides. Every key that a script touches is declared, so the key of a fixed
//! window names its window before the script runs: it comes from an estimate of Redis' clock, and a
//! script that finds itself in another window writes nothing and tells the time.
//!
//! A call whose fate is unknown is never repeated: a decision would count twice. What was surely
//! not executed is repeated where that helps: see `retry.rs`.

mod batch;
mod clock;
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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quanta::Instant;
use tokio::sync::{Semaphore, watch};

use self::batch::ScriptContext;
use self::codec::keys::KeyFormat;
use self::retry::RetryingCall;
use self::topology::Topology;
use super::{Health, StoreError};
use crate::clock::{Deadline, SystemClock, Timestamp};
use crate::observer::{Observer, Operation, StoreEvent};
use crate::operation::{Action, Reply, Shard, StoreRequest};
use crate::rules::Key;

/// State in Redis, shared by any number of instances. Clones share the connections.
#[derive(Clone, Debug)]
pub struct RedisStore {
    format: KeyFormat,
    timeout: Duration,
    topology: Arc<Topology>,
    /// Number of the worker that has a connection of its own to each server; all others share one.
    worker: usize,
    workers: Arc<AtomicUsize>,
    local: SystemClock,
    /// Decisions that may wait at once.
    in_flight: Arc<Semaphore>,
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
        let instance = RandomState::new().hash_one("instance");
        let scripts = ScriptContext::new(instance, settings.timeout);
        let topology = Topology::new(settings, local.clone(), scripts, &observer)?;
        let in_flight = usize::try_from(settings.max_in_flight).unwrap_or(Semaphore::MAX_PERMITS);
        Ok(Self {
            format: KeyFormat::new(settings.key_prefix.clone(), topology.hash_tag()),
            timeout: settings.timeout,
            topology: Arc::new(topology),
            worker: 0,
            workers: Arc::default(),
            local,
            in_flight: Arc::new(Semaphore::new(in_flight.min(Semaphore::MAX_PERMITS))),
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
        let operation = if only_refunds(request) { Operation::Refund } else { Operation::Check };
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
        Shard(self.format.slot(key))
    }

    /// The time by the clock of the server with this key, estimated; that of this machine while the
    /// server is not known. See [`super::Store::now`].
    pub fn now(&self, key: &Key) -> Timestamp {
        let node = self.topology.node_for_slot(self.format.slot(key));
        node.map_or_else(|| self.local.now(), |node| node.clock.estimate())
    }

    /// Returns `true` if the breaker of the server with this key is open.
    pub fn breaker_is_open(&self, key: &Key) -> bool {
        let node = self.topology.node_for_slot(self.format.slot(key));
        node.is_some_and(|node| node.health.breaker_is_open())
    }

    /// Uses the credentials and certificates of these settings from the next connection on.
    ///
    /// # Errors
    ///
    /// As [`RedisStore::new`].
    pub fn update_credentials(&self, settings: &RedisSettings) -> Result<(), SettingError> {
        self.topology.update_credentials(settings)
    }

    /// Watches the servers and the map of a cluster, for ever. See [`super::Store::run`].
    pub async fn run(&self) {
        self.topology.run().await;
    }

    /// A handle with a connection of its own to each server. See [`super::Store::for_worker`].
    #[must_use]
    pub fn for_worker(&self) -> Self {
        let worker = 1 + self.workers.fetch_add(1, Ordering::Relaxed);
        Self { worker, ..self.clone() }
    }

    /// Opens the connections of this handle ahead of its calls, for ever: to a server that is new, or
    /// answers again.
    pub async fn keep_connected(&self) {
        let mut changes = self.topology.changes();
        loop {
            for node in self.topology.nodes() {
                if node.health.current() != Health::Down {
                    node.batcher(self.worker).connect().await;
                }
            }
            if changes.changed().await.is_err() {
                return;
            }
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
        if request.hits.is_empty() {
            return Ok(Reply::default());
        }
        let left = deadline.remaining();
        if left.is_zero() {
            return Err(StoreError::Expired);
        }
        // What is refunded had its room when it was taken.
        let _permit = if only_refunds(request) {
            None
        } else {
            Some(self.in_flight.try_acquire().map_err(|_| StoreError::Overloaded)?)
        };
        let call = RetryingCall {
            topology: &self.topology,
            format: &self.format,
            worker: self.worker,
            request,
            slot: request.shard.0,
            until: deadline.or_within(self.timeout),
            // Less what a request may have spent on its way here.
            caller_deadline_is_shorter: left < self.timeout * 9 / 10,
        };
        call.run().await
    }
}

fn only_refunds(request: StoreRequest<'_>) -> bool {
    request.hits.iter().all(|hit| matches!(hit.action, Action::Refund(_)))
}
