//! One Redis server: lanes to it, a breaker before them, and what is known of its clock.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio::time::timeout;

use crate::clock::{Deadline, SystemClock};
use crate::store::redis::batch::Scribe;
use crate::store::redis::connection::lanes::{Lane, Lanes};
use crate::store::redis::connection::manager::{Dialer, Target};
use crate::store::redis::connection::options::{Address, SharedAccess};
use crate::store::redis::health::breaker::{Breaker, Panel, Ticket};
use crate::store::redis::health::clock::ServerClock;
use crate::store::redis::health::monitor::Pulse;
use crate::store::{Health, StoreError};

/// One Redis server.
#[derive(Debug)]
pub(super) struct Node {
    name: String,
    lanes: Lanes,
    breaker: Arc<Breaker>,
    pulse: Arc<Pulse>,
    clock: Arc<ServerClock>,
}

/// What all servers have in common.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    pub(super) access: SharedAccess,
    /// Home connections to each server that were promised.
    pub(super) homes: Arc<AtomicUsize>,
    pub(super) local: SystemClock,
    pub(super) scribe: Arc<Scribe>,
    pub(super) panel: Arc<Panel>,
    /// Told whenever the health of a server changes.
    pub(super) stirs: watch::Sender<()>,
}

impl Node {
    /// A server that is connected to as soon as it is run.
    pub(super) fn new(name: String, target: Target, around: &Surroundings) -> Self {
        let breaker = Arc::new(Breaker::new(name.clone(), around.local.clone(), &around.panel));
        let pulse = Arc::new(Pulse::new(
            name.clone(),
            around.local.clone(),
            Arc::clone(&breaker),
            around.stirs.clone(),
        ));
        let clock = Arc::new(ServerClock::new(Arc::clone(around.panel.observer())));
        let access = around.access.clone();
        let dialer = Dialer { target, access, reached: Mutex::default() };
        let lanes = Lanes::new(dialer, around, Arc::clone(&clock), Arc::clone(&pulse));
        Self { name, lanes, breaker, pulse, clock }
    }

    /// The server at an address.
    pub(super) fn at(address: Address, around: &Surroundings) -> Self {
        Self::new(address.to_string(), Target::Server(address), around)
    }

    /// Its address, or the name of the master that it is.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// A connection for one call, the home one if it is up, if the breaker lets it through.
    ///
    /// # Errors
    ///
    /// [`StoreError::BreakerOpen`]; [`StoreError::Unreachable`] if none is up, and none comes up
    /// before the deadline.
    pub(super) async fn lane(
        &self,
        home: Option<usize>,
        deadline: Deadline,
    ) -> Result<(Lane, Ticket), StoreError> {
        let ticket = self.breaker.admit()?;
        if let Some(lane) = self.lanes.up(home) {
            return Ok((lane, ticket));
        }
        // In a box, with its timer: it is rare, and would be moved with whatever holds this.
        let lane = Box::pin(timeout(deadline.left(), self.lanes.next(home))).await;
        Ok((lane.unwrap_or(Err(StoreError::Unreachable))?, ticket))
    }

    /// Wants to know how each call ended.
    pub(super) fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    /// Has every connection dropped: the server is not what it was.
    pub(super) fn give_up(&self) {
        self.lanes.give_up();
    }

    /// What is known of its clock.
    pub(super) fn clock(&self) -> &ServerClock {
        &self.clock
    }

    /// Whether it answers, now and later.
    pub(super) fn health(&self) -> watch::Receiver<Health> {
        self.pulse.health()
    }

    /// Keeps the connections that are nobody's home, for ever.
    pub(super) async fn run(&self) {
        self.lanes.run().await;
    }

    /// Keeps the home connection of this number, for ever.
    pub(super) async fn keep_home(&self, home: usize) {
        self.lanes.keep_home(home).await;
    }
}
