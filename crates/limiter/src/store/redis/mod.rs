//! The Redis store: one script call decides all hits of a slot, together with those of other
//! requests that wait at the same moment.
//!
//! | file | subject |
//! | --- | --- |
//! | `retry` | one decision: which server, how many attempts, until when |
//! | `topology`, `cluster`, `node` | the server of a slot; one server and its time |
//! | `batch`, `in_flight` | concurrent requests become one call; how many may be under way |
//! | `loaded_scripts` | the scripts that a server has |
//! | `codec` | keys, arguments, replies, scripts |
//! | `connection` | opening connections, pools, Sentinel |
//! | `fleet` | calls and subscriptions beside decisions |
//! | `health` | circuit breaker, monitor, log |
//! | `settings` | addresses, credentials, timeouts |
//!
//! The clock of Redis decides. Every key that a script touches is declared, so the key of a fixed
//! window names its window before the script runs. The window comes from an estimate of the Redis
//! clock. A script that runs in another window writes nothing and returns the time.
//!
//! A call of unknown fate is never repeated, because its units could be counted twice, unless it has
//! a request id. A call that was certainly not executed is repeated where that helps: see `retry.rs`.

mod batch;
mod cluster;
mod codec;
mod connection;
mod fleet;
#[cfg(fuzzing)]
pub mod fuzzing;
mod health;
mod in_flight;
mod loaded_scripts;
mod node;
mod overrides;
mod retry;
mod settings;
mod topology;

pub(crate) use fleet::{RedisFleet, RedisSubscription};
pub use settings::{
    Credentials, Identity, KeyPrefix, RedisSettings, RedisUrl, Secret, Servers, SettingError, Tls,
};

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quanta::Instant;
use tokio::sync::{Semaphore, watch};

use self::batch::CallContext;
use self::codec::keys::KeyFormat;
use self::codec::request::only_refunds;
use self::codec::scripts::{ScriptSet, own_script};
use self::retry::RetryingCall;
use self::topology::Topology;
use super::{Health, NodeStatus, StoreError, Undecided};
use crate::clock::{Deadline, SystemClock, Timestamp};
use crate::observer::{Observer, Operation, StoreEvent};
use crate::operation::{Reply, Shard, StoreRequest};
use crate::rules::descriptors::DescriptorRule;
use crate::rules::{Key, Rule, RuleSet};

/// State in Redis, shared by any number of instances. Clones share the connections.
#[derive(Clone, Debug)]
pub struct RedisStore {
    format: KeyFormat,
    timeout: Duration,
    topology: Arc<Topology>,
    /// Index of the worker. A worker handle has its own connection to each server; all other
    /// handles share the connections of index 0.
    worker: usize,
    workers: Arc<AtomicUsize>,
    local: SystemClock,
    /// Permits for decisions in flight. What each server has to do is limited by `in_flight.rs`.
    in_flight: Arc<Semaphore>,
    observer: Arc<dyn Observer>,
}

impl RedisStore {
    /// Creates a store that connects when it is run, and reports to `observer`.
    ///
    /// # Errors
    ///
    /// [`SettingError`] if the certificates are invalid.
    pub fn new(
        settings: &RedisSettings,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, SettingError> {
        let local = SystemClock::new();
        let instance = RandomState::new().hash_one("instance");
        let calls = CallContext::new(instance, settings.timeout);
        let topology = Topology::new(settings, local.clone(), calls, &observer)?;
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
    /// [`StoreError`], before the deadline and within `store.redis.timeout`, whatever Redis does.
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

    /// Loads the scripts that requests can need by these rules, ahead of the first request. See
    /// [`super::Store::prepare`].
    pub(crate) fn prepare(&self, rules: &RuleSet) {
        let of_rule = |rule: &Rule| (own_script(rule.algorithm, rule.window), rule.overridable);
        let has_headroom = |rule: &&Rule| rule.overrides.iter().any(|own| own.headroom.is_some());
        let with_headroom = rules.iter().filter(has_headroom);
        let with_headroom = with_headroom.map(|rule| (None, rule.overridable));
        let descriptors = rules.descriptors().every().map(DescriptorRule::info);
        let of_descriptors = descriptors.map(|rule| (Some(rule.algorithm), rule.overridable));
        let all = rules.iter().map(of_rule).chain(with_headroom).chain(of_descriptors);
        let ScriptSet(more) = ScriptSet::for_rules(all);
        self.topology.scripts().send_if_modified(|ScriptSet(needed)| {
            let before = *needed;
            *needed |= more;
            *needed != before
        });
    }

    /// Returns the longest time that a decision may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the shard of a key. See [`super::Store::shard`].
    pub fn shard(&self, key: &Key) -> Shard {
        Shard(self.format.slot(key))
    }

    /// Returns the name of the key in Redis, without a window. See [`super::Store::key_name`].
    pub fn key_name(&self, key: &Key) -> String {
        let mut name = String::new();
        self.format.write(key, &mut name);
        name
    }

    /// Returns the estimated time of the server of this key, or the local time if the server is
    /// unknown. See [`super::Store::now`].
    pub fn now(&self, key: &Key) -> Timestamp {
        let node = self.topology.node_for_slot(self.format.slot(key));
        node.map_or_else(|| self.local.now(), |node| node.clock.estimate())
    }

    /// Returns `true` if the breaker of the server of this key is open.
    pub fn breaker_is_open(&self, key: &Key) -> bool {
        let node = self.topology.node_for_slot(self.format.slot(key));
        node.is_some_and(|node| node.health.breaker_is_open())
    }

    /// Counts a request that was not decided, for the outages of servers.
    pub(crate) fn count_undecided(&self, request: Undecided) {
        self.topology.count_undecided(request);
    }

    /// Uses the credentials and certificates of these settings for new connections.
    ///
    /// # Errors
    ///
    /// As [`RedisStore::new`].
    pub fn update_credentials(&self, settings: &RedisSettings) -> Result<(), SettingError> {
        self.topology.update_credentials(settings)
    }

    /// Runs the monitors of the servers, and the refresh of the map of a cluster, for ever. See
    /// [`super::Store::run`].
    pub async fn run(&self) {
        self.topology.run().await;
    }

    /// Returns a handle with its own connection to each server. See [`super::Store::for_worker`].
    #[must_use]
    pub fn for_worker(&self) -> Self {
        let worker = 1 + self.workers.fetch_add(1, Ordering::Relaxed);
        Self { worker, ..self.clone() }
    }

    /// Opens the connections of this handle ahead of its calls, for ever: to each new server, and
    /// to each that recovers.
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

    /// Returns a receiver of the health of Redis.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.topology.health()
    }

    /// Returns the servers. See [`super::Store::nodes`].
    pub fn nodes(&self) -> Vec<NodeStatus> {
        let mut nodes: Vec<_> = self.topology.nodes().iter().map(|node| node.status()).collect();
        nodes.sort_unstable_by(|left, right| left.address.cmp(&right.address));
        nodes
    }

    /// Returns `true` if a server may evict keys. See [`super::Store::may_evict`].
    pub fn may_evict(&self) -> bool {
        self.topology.may_evict()
    }

    /// Returns `true` if the restart of a server loses everything. See
    /// [`super::Store::is_lost_at_restart`].
    pub fn is_lost_at_restart(&self) -> bool {
        self.topology.is_lost_at_restart()
    }

    /// Returns the fleet of the instances that use the same servers and prefix.
    pub(crate) fn fleet(&self) -> RedisFleet {
        RedisFleet::new(self.format.clone(), Arc::clone(&self.topology))
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
        // Refunds need no permit: the takes that they undo had one.
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
            deadline,
            timeout: self.timeout,
            until: deadline.or_within(self.timeout),
            // A tenth less than the store timeout, for the time that a request has spent before it
            // gets here.
            caller_deadline_is_shorter: left < self.timeout * 9 / 10,
        };
        call.run().await
    }
}
