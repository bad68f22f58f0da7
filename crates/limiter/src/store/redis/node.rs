//! One Redis server: its health, its clock, and a batcher for each worker.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::time::timeout;

use super::batch::{Batcher, CallContext};
use super::clock::ServerClock;
use super::codec::scripts::{ScriptId, ScriptSet};
use super::connection::address::Address;
use super::connection::connector::{ConnectTarget, Connector};
use super::connection::options::SharedOptions;
use super::connection::pool::{Pool, PoolUse, new_pool};
use super::health::ServerHealth;
use super::health::gauge::BreakerGauge;
use super::health::monitor;
use super::in_flight::InFlight;
use super::loaded_scripts::LoadedScripts;
use crate::clock::SystemClock;
use crate::observer::Observer;
use crate::store::{Health, NodeStatus};

/// Longest time that a script is waited for.
const LOAD_TIMEOUT: Duration = Duration::from_secs(1);

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
        NodeStatus {
            address: address.unwrap_or_else(|| self.health.server().to_owned()),
            is_available: self.health.current() == Health::Up,
            breaker: self.health.breaker_state(),
        }
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
        let monitor = monitor::run(&self.connector, &self.health, &self.local);
        tokio::join!(monitor, self.keep_scripts_loaded());
    }

    /// Loads the scripts that rules need whenever they change, or the server is connected.
    async fn keep_scripts_loaded(&self) {
        let (mut needed, mut health) = (self.context.scripts.subscribe(), self.health.subscribe());
        loop {
            let (set, is_up) = (*needed.borrow_and_update(), *health.borrow_and_update());
            if is_up == Health::Up
                && set != ScriptSet::default()
                && let Ok(managed) = self.connector.connect_apart().await
            {
                self.scripts.load_all(set, &managed).await;
            }
            tokio::select! {
                _ = needed.changed() => {}
                _ = health.changed() => {}
            }
        }
    }
}
