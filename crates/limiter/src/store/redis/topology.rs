//! Which server decides: the only one, or in a cluster the one that serves the slot.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::batch::CallContext;
use super::cluster::Cluster;
use super::codec::call_error::Redirect;
use super::codec::keys::HashTag;
use super::codec::scripts::ScriptSet;
use super::connection::Address;
use super::connection::connector::ConnectTarget;
use super::connection::options::{ConnectOptions, SharedOptions};
use super::connection::sentinel::Sentinels;
use super::health::breaker::BreakerGauge;
use super::node::{Node, NodeContext};
use super::settings::{RedisSettings, Servers, SettingError};
use crate::clock::{Deadline, SystemClock};
use crate::observer::Observer;
use crate::store::{Health, StoreError, Undecided};

/// The servers of a store.
#[derive(Debug)]
pub(super) struct Topology {
    layout: Layout,
    options: SharedOptions,
    mode: &'static str,
    changed: watch::Sender<()>,
    gauge: Arc<BreakerGauge>,
    calls: Arc<CallContext>,
}

#[derive(Debug)]
enum Layout {
    /// One server, or the master that Sentinel reports.
    One(Arc<Node>),
    /// Several servers, each with some of the slots.
    Cluster(Box<Cluster>),
}

impl Topology {
    /// Creates the servers. They are connected when the topology is run.
    ///
    /// # Errors
    ///
    /// [`SettingError`] if the certificates are invalid.
    pub(super) fn new(
        settings: &RedisSettings,
        local: SystemClock,
        calls: CallContext,
        observer: &Arc<dyn Observer>,
    ) -> Result<Self, SettingError> {
        let calls = Arc::new(calls);
        let options = Arc::new(ArcSwap::from_pointee(ConnectOptions::for_servers(settings)?));
        let changed = watch::Sender::new(());
        let gauge = Arc::new(BreakerGauge::new(Arc::clone(observer)));
        let context = NodeContext {
            options: options.clone(),
            local,
            calls: Arc::clone(&calls),
            gauge: Arc::clone(&gauge),
            observer: Arc::clone(observer),
            changed: changed.clone(),
        };
        let layout = match &settings.servers {
            Servers::Standalone(url) => {
                Layout::One(Arc::new(Node::at(Address::from_url(url), &context)))
            }
            Servers::Sentinel { sentinels, master_name } => {
                let sentinels = Sentinels::new(sentinels, master_name, &settings.tls)?;
                let target = ConnectTarget::Master(sentinels);
                Layout::One(Arc::new(Node::new(master_name.clone(), target, &context)))
            }
            Servers::Cluster { seeds } => {
                let seeds = seeds.iter().map(Address::from_url).collect();
                Layout::Cluster(Box::new(Cluster::new(seeds, context)))
            }
        };
        Ok(Self { layout, options, mode: settings.servers.mode(), changed, gauge, calls })
    }

    /// Returns the scripts that rules need.
    pub(super) fn scripts(&self) -> &watch::Sender<ScriptSet> {
        &self.calls.scripts
    }

    /// Returns the part of a key that selects its server.
    pub(super) fn hash_tag(&self) -> HashTag {
        match self.layout {
            Layout::One(_) => HashTag::None,
            Layout::Cluster(_) => HashTag::Id,
        }
    }

    /// Returns the server of a slot.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] if it is unknown at the deadline.
    pub(super) async fn node(
        &self,
        slot: u16,
        deadline: Deadline,
    ) -> Result<Arc<Node>, StoreError> {
        match &self.layout {
            Layout::One(node) => Ok(Arc::clone(node)),
            Layout::Cluster(cluster) => cluster.node(slot, deadline).await,
        }
    }

    /// Returns the server of a slot, if it is known.
    pub(super) fn node_for_slot(&self, slot: u16) -> Option<Arc<Node>> {
        match &self.layout {
            Layout::One(node) => Some(Arc::clone(node)),
            Layout::Cluster(cluster) => cluster.node_for_slot(slot),
        }
    }

    /// Returns the server that a redirect names.
    ///
    /// # Errors
    ///
    /// As [`Topology::node`]. Without a cluster, redirects are errors.
    pub(super) async fn follow(
        &self,
        redirect: &Redirect,
        deadline: Deadline,
    ) -> Result<Arc<Node>, StoreError> {
        match &self.layout {
            Layout::One(_) => Err(StoreError::Unreachable),
            Layout::Cluster(cluster) => cluster.follow(redirect, deadline).await,
        }
    }

    /// Uses the credentials and certificates of these settings for new connections. Settings of
    /// another mode are for other servers, so they are ignored until a restart.
    ///
    /// # Errors
    ///
    /// As [`Topology::new`].
    pub(super) fn update_credentials(&self, settings: &RedisSettings) -> Result<(), SettingError> {
        if settings.servers.mode() == self.mode {
            let renewed = self.options.load().renewed(settings)?;
            self.options.store(Arc::new(renewed));
        }
        Ok(())
    }

    /// Returns a receiver of the health of Redis.
    pub(super) fn health(&self) -> watch::Receiver<Health> {
        match &self.layout {
            Layout::One(node) => node.health.subscribe(),
            Layout::Cluster(cluster) => cluster.health(),
        }
    }

    /// Counts a request that was not decided.
    pub(super) fn count_undecided(&self, request: Undecided) {
        self.gauge.count_undecided(request);
    }

    /// Returns `true` if a server may evict keys when its memory is full.
    pub(super) fn may_evict(&self) -> bool {
        self.gauge.may_evict()
    }

    /// Returns `true` if the restart of a server loses everything.
    pub(super) fn is_lost_at_restart(&self) -> bool {
        self.gauge.is_not_persistent()
    }

    /// Returns every known server.
    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        match &self.layout {
            Layout::One(node) => vec![Arc::clone(node)],
            Layout::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// Returns every known server, and a hash of what tells them apart from those of another time:
    /// in a cluster, who has which slots.
    pub(super) fn layout(&self) -> (u64, Vec<Arc<Node>>) {
        match &self.layout {
            Layout::One(node) => (0, vec![Arc::clone(node)]),
            Layout::Cluster(cluster) => cluster.layout(),
        }
    }

    /// Returns a receiver that is notified when the health of a server changes, or a server is
    /// added.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Monitors the servers, for ever.
    pub(super) async fn run(&self) {
        match &self.layout {
            Layout::One(node) => node.run().await,
            Layout::Cluster(cluster) => cluster.run().await,
        }
    }
}
