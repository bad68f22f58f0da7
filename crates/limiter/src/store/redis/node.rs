//! One Redis server: its health, its clock, and a batcher for each worker.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::time::timeout;

use super::batch::{Batcher, CallContext};
use super::codec::scripts::ScriptId;
use super::connection::connector::{ConnectTarget, Connector, ManagedConnection};
use super::connection::options::SharedOptions;
use super::connection::{Address, Pool, PoolUse, new_pool};
use super::health::breaker::BreakerGauge;
use super::health::{ServerHealth, monitor};
use super::in_flight::InFlight;
use super::loaded_scripts::{LOAD_TIMEOUT, LoadedScripts};
use crate::clock::{HighWaterMarks, Micros, SystemClock, Timestamp};
use crate::observer::{Observer, StoreEvent};
use crate::store::NodeStatus;

/// One Redis server.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) clock: Arc<ServerClock>,
    pub(super) health: Arc<ServerHealth>,
    pub(super) scripts: LoadedScripts,
    connector: Arc<Connector>,
    context: Arc<CallContext>,
    in_flight: Arc<InFlight>,
    local: SystemClock,
    /// Batchers by the index of their workers, created on first use.
    batchers: ArcSwap<Vec<Arc<Batcher>>>,
    /// The connection of the fleet.
    fleet: OnceLock<Pool>,
}

/// Configuration and state that all servers share.
#[derive(Clone, Debug)]
pub(super) struct NodeContext {
    pub(super) options: SharedOptions,
    pub(super) local: SystemClock,
    pub(super) calls: Arc<CallContext>,
    pub(super) gauge: Arc<BreakerGauge>,
    pub(super) observer: Arc<dyn Observer>,
    /// Notified when the health of a server changes, or a server is added.
    pub(super) changed: watch::Sender<()>,
}

impl Node {
    /// Creates a server. It is connected when it is run, or first called.
    pub(super) fn new(name: String, target: ConnectTarget, context: &NodeContext) -> Self {
        let NodeContext { options, local, calls, gauge, observer, changed } = context.clone();
        let clock = Arc::new(ServerClock::new(local.clone(), observer));
        let health = Arc::new(ServerHealth::new(name, local.clone(), gauge, changed));
        let connector = Arc::new(Connector::new(target, options, Arc::clone(&clock)));
        let in_flight = Arc::new(InFlight::new(calls.timeout));
        let (batchers, fleet) = (ArcSwap::default(), OnceLock::new());
        let scripts = LoadedScripts::default();
        Self {
            clock,
            health,
            scripts,
            connector,
            context: calls,
            in_flight,
            local,
            batchers,
            fleet,
        }
    }

    /// Creates the server at an address.
    pub(super) fn at(address: Address, context: &NodeContext) -> Self {
        Self::new(address.to_string(), ConnectTarget::Server(address), context)
    }

    /// Returns the batcher of a worker.
    pub(super) fn batcher(&self, worker: usize) -> Arc<Batcher> {
        if let Some(batcher) = self.batchers.load().get(worker) {
            return Arc::clone(batcher);
        }
        self.batchers.rcu(|batchers| {
            let mut batchers = Vec::clone(batchers);
            batchers.resize_with(batchers.len().max(worker + 1), || {
                let (connector, health) = (Arc::clone(&self.connector), Arc::clone(&self.health));
                let (in_flight, context) = (Arc::clone(&self.in_flight), Arc::clone(&self.context));
                Arc::new(Batcher::new(connector, health, in_flight, context))
            });
            batchers
        });
        Arc::clone(&self.batchers.load()[worker])
    }

    /// Returns the pool with the connection of the fleet.
    pub(super) fn fleet_pool(&self) -> &Pool {
        self.fleet.get_or_init(|| new_pool(&self.connector, PoolUse::Fleet))
    }

    /// Returns the connector, for subscriptions.
    pub(super) fn connector(&self) -> &Connector {
        &self.connector
    }

    /// Returns the state of the server, as this process sees it.
    pub(super) fn status(&self) -> NodeStatus {
        let address = self.connector.address().map(|address| address.to_string());
        self.health.status(address)
    }

    /// Loads a script on the connection of a worker, unless the server has it. The task ends after
    /// [`LOAD_TIMEOUT`], and goes on if nobody waits for it.
    pub(super) fn load(
        self: &Arc<Self>,
        worker: usize,
        script: ScriptId,
    ) -> impl Future + Send + use<> {
        let (node, batcher) = (Arc::clone(self), self.batcher(worker));
        let load = async move { batcher.load(script, &node.scripts).await };
        tokio::spawn(timeout(LOAD_TIMEOUT, load))
    }

    /// Monitors the server, and loads the scripts that rules need, for ever.
    pub(super) async fn run(&self) {
        let (connected, connections) = watch::channel(None);
        let monitor = monitor::run(&self.connector, &self.health, &self.local, &connected);
        tokio::join!(monitor, self.keep_scripts_loaded(connections));
    }

    /// Loads the scripts that rules need whenever they change, or the monitor is connected.
    async fn keep_scripts_loaded(
        &self,
        mut connections: watch::Receiver<Option<ManagedConnection>>,
    ) {
        let mut needed = self.context.scripts.subscribe();
        loop {
            let set = *needed.borrow_and_update();
            let connection = connections.borrow_and_update().clone();
            if let Some(managed) = connection {
                for id in set.iter() {
                    if connections.has_changed().unwrap_or(true) {
                        break;
                    }
                    self.scripts.load(id, managed.clone()).await;
                }
            }
            tokio::select! {
                _ = needed.changed() => {}
                _ = connections.changed() => {}
            }
        }
    }
}

/// Keeps the times of replies, and estimates the current time. Estimates only name keys; the clock
/// of the server decides.
#[derive(Debug)]
pub(crate) struct ServerClock {
    local: SystemClock,
    /// Server time minus local time, in microseconds.
    ahead_micros: AtomicI64,
    seen: Mutex<HighWaterMarks>,
    observer: Arc<dyn Observer>,
}

/// Value of `ahead_micros` before the first reply.
const UNKNOWN: i64 = i64::MIN;
/// Drift from one reply to the next that counts as a jump: more than any round trip.
const JUMP: Duration = Duration::from_secs(1);

impl ServerClock {
    /// Creates a clock that is unknown before the first reply. Jumps are reported to `observer`.
    pub(crate) fn new(local: SystemClock, observer: Arc<dyn Observer>) -> Self {
        Self { local, ahead_micros: UNKNOWN.into(), seen: Mutex::default(), observer }
    }

    /// Records the server time in a reply that has just arrived.
    pub(crate) fn observe(&self, time: Timestamp) {
        let local = self.local.now().as_micros().cast_signed();
        let ahead = time.as_micros().cast_signed().wrapping_sub(local);
        let before = self.ahead_micros.swap(ahead, Ordering::Relaxed);
        if before != UNKNOWN && u128::from(before.abs_diff(ahead)) > JUMP.as_micros() {
            self.observer.store(StoreEvent::ClockJumped);
        }
    }

    /// Estimates the server time: late by the time that the last reply took to arrive.
    pub(crate) fn estimate(&self) -> Timestamp {
        let ahead = self.ahead_micros.load(Ordering::Relaxed);
        let ahead = if ahead == UNKNOWN { 0 } else { ahead };
        Timestamp::from_micros(self.local.now().as_micros().saturating_add_signed(ahead))
    }

    /// Records that a limit with this `window` was decided at `time`.
    pub(crate) fn record_decision(&self, time: Timestamp, window: Micros) {
        self.seen().record(window, time);
    }

    /// Returns the latest time of a decision on a limit with this `window`.
    pub(crate) fn latest_decision(&self, window: Micros) -> Timestamp {
        self.seen().latest(window)
    }

    fn seen(&self) -> MutexGuard<'_, HighWaterMarks> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
