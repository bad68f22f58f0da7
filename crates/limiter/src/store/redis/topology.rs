//! Which server decides: the one there is, or the one of the cluster that has the slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

use crate::clock::{Deadline, SystemClock};
use crate::observer::Observer;
use crate::store::redis::batch::Scribe;
use crate::store::redis::cluster::{Cluster, Redirect};
use crate::store::redis::codec::keys::Style;
use crate::store::redis::connection::manager::Target;
use crate::store::redis::connection::options::{Access, Address, SharedAccess};
use crate::store::redis::connection::sentinel::Sentinels;
use crate::store::redis::health::breaker::Panel;
use crate::store::redis::node::{Node, Surroundings};
use crate::store::redis::settings::{RedisSettings, Servers, SettingError};
use crate::store::{Health, StoreError};

/// The servers.
#[derive(Debug)]
pub(super) struct Topology {
    servers: Layout,
    access: SharedAccess,
    mode: &'static str,
    /// Home connections to each server that were promised.
    homes: Arc<AtomicUsize>,
}

#[derive(Debug)]
enum Layout {
    /// One server, or whichever is the master.
    One(Arc<Node>),
    /// Several, each with some of the slots.
    Many(Box<Cluster>),
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
        scribe: &Arc<Scribe>,
        observer: &Arc<dyn Observer>,
    ) -> Result<Self, SettingError> {
        let access = SharedAccess::new(Access::to_servers(settings)?);
        let homes = Arc::<AtomicUsize>::default();
        let around = Surroundings {
            access: access.clone(),
            homes: Arc::clone(&homes),
            local,
            scribe: Arc::clone(scribe),
            panel: Arc::new(Panel::new(Arc::clone(observer))),
            stirs: watch::Sender::new(()),
        };
        let servers = match &settings.servers {
            Servers::Standalone(url) => Layout::One(Arc::new(Node::at(Address::of(url), &around))),
            Servers::Sentinel { sentinels, master_name } => {
                let sentinels = Sentinels::new(sentinels, master_name, &settings.tls)?;
                let target = Target::Master(Arc::new(sentinels));
                Layout::One(Arc::new(Node::new(master_name.clone(), target, &around)))
            }
            Servers::Cluster { seeds } => {
                let seeds = seeds.iter().map(Address::of).collect();
                Layout::Many(Box::new(Cluster::new(seeds, around)))
            }
        };
        Ok(Self { servers, access, mode: settings.servers.mode(), homes })
    }

    /// How keys are named here.
    pub(super) fn style(&self) -> Style {
        match self.servers {
            Layout::One(_) => Style::Plain,
            Layout::Many(_) => Style::Tagged,
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
        match &self.servers {
            Layout::One(node) => Ok(Arc::clone(node)),
            Layout::Many(cluster) => cluster.node(slot, deadline).await,
        }
    }

    /// The server of a slot, if it is known now.
    pub(super) fn known(&self, slot: u16) -> Option<Arc<Node>> {
        match &self.servers {
            Layout::One(node) => Some(Arc::clone(node)),
            Layout::Many(cluster) => cluster.known(slot),
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
        match &self.servers {
            Layout::One(_) => Err(StoreError::Unreachable),
            Layout::Many(cluster) => cluster.follow(redirect, deadline).await,
        }
    }

    /// Uses the credentials and certificates of these settings from the next connection on. Those
    /// of another mode are for other servers, and wait for a restart.
    ///
    /// # Errors
    ///
    /// As [`Topology::new`].
    pub(super) fn log_in_anew(&self, settings: &RedisSettings) -> Result<(), SettingError> {
        if settings.servers.mode() != self.mode {
            return Ok(());
        }
        self.access.renew(settings)
    }

    /// Whether Redis answers, now and later.
    pub(super) fn health(&self) -> watch::Receiver<Health> {
        match &self.servers {
            Layout::One(node) => node.health(),
            Layout::Many(cluster) => cluster.health(),
        }
    }

    /// Keeps the connections that are nobody's home to each server, for ever.
    pub(super) async fn run(&self) {
        match &self.servers {
            Layout::One(node) => node.run().await,
            Layout::Many(cluster) => cluster.run().await,
        }
    }

    /// Promises a home connection to each server: it is there while it is kept.
    pub(super) fn add_home(&self) -> usize {
        self.homes.fetch_add(1, Ordering::Relaxed)
    }

    /// Keeps the home connection of this number to each server, for ever.
    pub(super) async fn keep_home(&self, home: usize) {
        match &self.servers {
            Layout::One(node) => node.keep_home(home).await,
            Layout::Many(cluster) => cluster.keep_home(home).await,
        }
    }
}
