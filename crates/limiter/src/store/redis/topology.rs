//! Which server decides: the one there is, or the one of the cluster that has the slot.

use std::sync::Arc;

use tokio::sync::watch;

use super::batch::ScriptContext;
use super::cluster::Cluster;
use super::codec::call_error::Redirect;
use super::codec::keys::HashTag;
use super::connection::address::Address;
use super::connection::connector::ConnectTarget;
use super::connection::options::{ConnectOptions, ReloadableOptions};
use super::connection::sentinel::Sentinels;
use super::health::gauge::BreakerGauge;
use super::node::{Node, NodeContext};
use super::settings::{RedisSettings, Servers, SettingError};
use crate::clock::{Deadline, SystemClock};
use crate::observer::Observer;
use crate::store::{Health, StoreError};

/// The servers.
#[derive(Debug)]
pub(super) struct Topology {
    layout: Layout,
    options: ReloadableOptions,
    mode: &'static str,
    changed: watch::Sender<()>,
}

#[derive(Debug)]
enum Layout {
    /// One server, or whichever is the master.
    One(Arc<Node>),
    /// Several, each with some of the slots.
    Cluster(Box<Cluster>),
}

impl Topology {
    /// Connects to nothing before it is run.
    ///
    /// # Errors
    ///
    /// [`SettingError`] if the certificates can't be used.
    pub(super) fn new(
        settings: &RedisSettings,
        local: SystemClock,
        scripts: ScriptContext,
        observer: &Arc<dyn Observer>,
    ) -> Result<Self, SettingError> {
        let options = ReloadableOptions::new(ConnectOptions::for_servers(settings)?);
        let changed = watch::Sender::new(());
        let context = NodeContext {
            options: options.clone(),
            local,
            scripts: Arc::new(scripts),
            gauge: Arc::new(BreakerGauge::new(Arc::clone(observer))),
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
        Ok(Self { layout, options, mode: settings.servers.mode(), changed })
    }

    /// What of a key decides on its server.
    pub(super) fn hash_tag(&self) -> HashTag {
        match self.layout {
            Layout::One(_) => HashTag::None,
            Layout::Cluster(_) => HashTag::Id,
        }
    }

    /// The server of a slot.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] if none is known before the deadline.
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

    /// The server of a slot, if it is known now.
    pub(super) fn node_for_slot(&self, slot: u16) -> Option<Arc<Node>> {
        match &self.layout {
            Layout::One(node) => Some(Arc::clone(node)),
            Layout::Cluster(cluster) => cluster.node_for_slot(slot),
        }
    }

    /// The server that a redirect names; none where there is but one.
    ///
    /// # Errors
    ///
    /// As [`Topology::node`].
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

    /// Uses the credentials and certificates of these settings from the next connection on. Those
    /// of another mode are for other servers, and wait for a restart.
    ///
    /// # Errors
    ///
    /// As [`Topology::new`].
    pub(super) fn update_credentials(&self, settings: &RedisSettings) -> Result<(), SettingError> {
        if settings.servers.mode() != self.mode {
            return Ok(());
        }
        self.options.update(settings)
    }

    /// Whether Redis answers, now and later.
    pub(super) fn health(&self) -> watch::Receiver<Health> {
        match &self.layout {
            Layout::One(node) => node.health.subscribe(),
            Layout::Cluster(cluster) => cluster.health(),
        }
    }

    /// Every server that is known now.
    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        match &self.layout {
            Layout::One(node) => vec![Arc::clone(node)],
            Layout::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// Notified whenever the health of a server changes, or there is another server.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Watches the servers, for ever.
    pub(super) async fn run(&self) {
        match &self.layout {
            Layout::One(node) => node.run().await,
            Layout::Cluster(cluster) => cluster.run().await,
        }
    }
}
