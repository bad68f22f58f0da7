//! One Redis server: its health, its clock, and a batcher for each worker.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::batch::{Batcher, ScriptContext};
use super::clock::ServerClock;
use super::connection::address::Address;
use super::connection::connector::{ConnectTarget, Connector};
use super::connection::options::ReloadableOptions;
use super::health::ServerHealth;
use super::health::gauge::BreakerGauge;
use super::health::monitor::Monitor;
use crate::clock::SystemClock;
use crate::observer::Observer;

/// One Redis server.
#[derive(Debug)]
pub(super) struct Node {
    name: String,
    pub(super) clock: Arc<ServerClock>,
    pub(super) health: Arc<ServerHealth>,
    connector: Arc<Connector>,
    context: Arc<ScriptContext>,
    monitor: Monitor,
    /// By the workers' numbers; those who have asked.
    batchers: ArcSwap<Vec<Arc<Batcher>>>,
}

/// What all servers have in common.
#[derive(Clone, Debug)]
pub(super) struct NodeContext {
    pub(super) options: ReloadableOptions,
    pub(super) local: SystemClock,
    pub(super) scripts: Arc<ScriptContext>,
    pub(super) gauge: Arc<BreakerGauge>,
    pub(super) observer: Arc<dyn Observer>,
    /// Notified whenever the health of a server changes, or there is another server.
    pub(super) changed: watch::Sender<()>,
}

impl Node {
    /// A server that is connected to when it is run, or asked.
    pub(super) fn new(name: String, target: ConnectTarget, context: &NodeContext) -> Self {
        let NodeContext { options, local, scripts, gauge, observer, changed } = context.clone();
        let clock = Arc::new(ServerClock::new(local.clone(), observer));
        let health = ServerHealth::new(name.clone(), local.clone(), gauge, changed);
        let health = Arc::new(health);
        let connector = Arc::new(Connector::new(target, options, Arc::clone(&clock)));
        let monitor =
            Monitor { connector: Arc::clone(&connector), health: Arc::clone(&health), local };
        let batchers = ArcSwap::default();
        Self { name, clock, health, connector, context: scripts, monitor, batchers }
    }

    /// The server at an address.
    pub(super) fn at(address: Address, context: &NodeContext) -> Self {
        Self::new(address.to_string(), ConnectTarget::Server(address), context)
    }

    /// Its address, or the name of the master that it is.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The batcher of the worker of this number.
    pub(super) fn batcher(&self, worker: usize) -> Arc<Batcher> {
        if let Some(batcher) = self.batchers.load().get(worker) {
            return Arc::clone(batcher);
        }
        self.batchers.rcu(|batchers| {
            let mut batchers = Vec::clone(batchers);
            batchers.resize_with(batchers.len().max(worker + 1), || {
                let (connector, health) = (Arc::clone(&self.connector), Arc::clone(&self.health));
                Arc::new(Batcher::new(connector, health, Arc::clone(&self.context)))
            });
            batchers
        });
        Arc::clone(&self.batchers.load()[worker])
    }

    /// Watches the server, for ever.
    pub(super) async fn run(&self) {
        self.monitor.run().await;
    }
}
