//! A Redis Cluster: which server has which slot, and a [`Node`] for each.
//!
//! The map comes from the servers themselves, and from redirects on the way. Nothing here repeats
//! a call: the driver's own cluster client would repeat one that timed out, and count it again.
//! Each server has lanes and a breaker of its own, so that one that is away is the trouble of its
//! slots alone.

mod slots;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{interval, timeout};
use tracing::{debug, warn};

use self::slots::Range;
use crate::clock::Deadline;
use crate::store::redis::codec::keys::SLOTS;
use crate::store::redis::connection::options::Address;
use crate::store::redis::node::{Node, Surroundings};
use crate::store::{Health, StoreError};

/// Time between two looks at the map while something is wrong: a failover is seen soon.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Looks that are skipped while nothing is wrong.
const CALM_LOOKS: u32 = 50;
/// The longest that one server may take to tell the map.
const PATIENCE: Duration = Duration::from_millis(300);
/// Redirects that wait to be noted.
const NEWS: usize = 64;
/// Servers that redirects may add to those of the map.
const MOST_GUESTS: usize = 64;

/// A cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    seeds: Vec<Address>,
    around: Surroundings,
    map: watch::Sender<Arc<Map>>,
    news: mpsc::Sender<Redirect>,
    inbox: Mutex<mpsc::Receiver<Redirect>>,
    health: watch::Sender<Health>,
    /// Whom to ask first at the next look.
    turn: AtomicUsize,
}

/// Which server has which slot.
#[derive(Clone, Debug)]
struct Map {
    slots: Vec<Option<Arc<Node>>>,
    nodes: HashMap<Address, Arc<Node>>,
}

/// A server that says which other one to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redirect {
    pub(crate) slot: u16,
    pub(crate) address: Address,
    pub(crate) kind: RedirectKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RedirectKind {
    /// The slot is there from now on.
    Moved,
    /// The slot is on its way there: this call alone.
    Ask,
}

impl Redirect {
    /// The same, as it was meant by the server of this name.
    pub(crate) fn seen_from(self, asked: &str) -> Self {
        match Address::parse(asked) {
            Some(asked) => Self { address: self.address.seen_from(&asked), ..self },
            None => self,
        }
    }
}

impl Cluster {
    pub(crate) fn new(seeds: Vec<Address>, around: Surroundings) -> Self {
        let (news, inbox) = mpsc::channel(NEWS);
        let slots = vec![None; SLOTS.into()];
        Self {
            seeds,
            around,
            map: watch::Sender::new(Arc::new(Map { slots, nodes: HashMap::new() })),
            news,
            inbox: Mutex::new(inbox),
            health: watch::Sender::new(Health::Unknown),
            turn: AtomicUsize::new(0),
        }
    }

    /// The server of a slot, if it is known now.
    pub(crate) fn known(&self, slot: u16) -> Option<Arc<Node>> {
        self.map.borrow().slots[usize::from(slot)].clone()
    }

    /// The server of a slot; waits for the first map.
    pub(crate) async fn node(
        &self,
        slot: u16,
        deadline: Deadline,
    ) -> Result<Arc<Node>, StoreError> {
        if let Some(node) = self.known(slot) {
            return Ok(node);
        }
        if *self.health.borrow() == Health::Down {
            return Err(StoreError::Unreachable);
        }
        self.wait_for(|map| map.slots[usize::from(slot)].clone(), deadline).await
    }

    /// The server that a redirect names.
    pub(crate) async fn follow(
        &self,
        redirect: &Redirect,
        deadline: Deadline,
    ) -> Result<Arc<Node>, StoreError> {
        let known = self.map.borrow().nodes.get(&redirect.address).cloned();
        if known.is_none() || redirect.kind == RedirectKind::Moved {
            // What finds no room is said again by the next redirect.
            let _full = self.news.try_send(redirect.clone());
        }
        match known {
            Some(node) => Ok(node),
            None => self.wait_for(|map| map.nodes.get(&redirect.address).cloned(), deadline).await,
        }
    }

    async fn wait_for(
        &self,
        known: impl Fn(&Arc<Map>) -> Option<Arc<Node>>,
        deadline: Deadline,
    ) -> Result<Arc<Node>, StoreError> {
        let mut maps = self.map.subscribe();
        let found = async {
            loop {
                if let Some(node) = known(&maps.borrow_and_update()) {
                    return Some(node);
                }
                maps.changed().await.ok()?;
            }
        };
        let found = timeout(deadline.left(), found).await.ok().flatten();
        found.ok_or(StoreError::Unreachable)
    }

    /// Whether every slot has a server that answers.
    pub(crate) fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Keeps the home connection of this number to each server, for ever.
    pub(crate) async fn keep_home(&self, home: usize) {
        let mut maps = self.map.subscribe();
        let mut kept: HashMap<Address, Arc<Node>> = HashMap::new();
        let mut tasks = Tended::default();
        loop {
            let map = Arc::clone(&maps.borrow_and_update());
            kept.retain(|address, node| {
                map.nodes.get(address).is_some_and(|known| Arc::ptr_eq(known, node))
            });
            tasks.leave_all_but(&kept);
            for (address, node) in &map.nodes {
                if kept.contains_key(address) {
                    continue;
                }
                kept.insert(address.clone(), Arc::clone(node));
                let node = Arc::clone(node);
                tasks.add(address, async move { node.keep_home(home).await });
            }
            if maps.changed().await.is_err() {
                return;
            }
        }
    }

    /// Keeps the map, and the connections to each server that are nobody's home, for ever.
    pub(crate) async fn run(&self) {
        let mut inbox = self.inbox.lock().await;
        let mut stirs = self.around.stirs.subscribe();
        let mut tended = Tended::default();
        let mut looks = interval(LOOK_INTERVAL);
        let mut skipped = CALM_LOOKS;
        let mut is_told = false;
        loop {
            tokio::select! {
                _ = stirs.changed() => {}
                Some(redirect) = inbox.recv() => {
                    self.note(&redirect, &mut tended);
                    skipped = CALM_LOOKS;
                }
                _ = looks.tick() => {
                    skipped += 1;
                    if skipped >= CALM_LOOKS || *self.health.borrow() != Health::Up {
                        skipped = 0;
                        let seen = self.look(&mut tended).await;
                        if !seen && !is_told {
                            warn!("no server tells the map of the cluster");
                        }
                        is_told = !seen;
                        if !seen && self.map.borrow().nodes.is_empty() {
                            self.health.send_replace(Health::Down);
                        }
                    }
                }
            }
            self.feel();
        }
    }

    /// Asks one server after the other for the map until one tells it.
    async fn look(&self, tended: &mut Tended) -> bool {
        let access = self.around.access.now();
        let up = |(_, node): &(&Address, &Arc<Node>)| *node.health().borrow() == Health::Up;
        let map = Arc::clone(&self.map.borrow());
        let mut servers: Vec<&Address> =
            map.nodes.iter().filter(up).map(|(address, _)| address).collect();
        servers.sort_unstable_by_key(ToString::to_string);
        if !servers.is_empty() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % servers.len();
            servers.rotate_left(turn);
        }
        for server in servers.into_iter().chain(&self.seeds) {
            match timeout(PATIENCE, slots::ask(&access, server)).await {
                Ok(Ok(ranges)) if !ranges.is_empty() => {
                    self.draw(&ranges, tended);
                    return true;
                }
                Ok(Ok(_)) => debug!(redis = %server, "it has no slots to tell of"),
                Ok(Err(error)) => debug!(redis = %server, %error, "no map"),
                Err(_elapsed) => debug!(redis = %server, "no map in time"),
            }
        }
        false
    }

    /// Puts a new map in force. Servers that it does not name are left.
    fn draw(&self, ranges: &[Range], tended: &mut Tended) {
        let before = Arc::clone(&self.map.borrow());
        let mut slots = vec![None; SLOTS.into()];
        let mut nodes = HashMap::new();
        for range in ranges {
            let node = before.nodes.get(&range.address).or_else(|| nodes.get(&range.address));
            let node = node.cloned().unwrap_or_else(|| self.add(&range.address, tended));
            for slot in range.first..=range.last {
                slots[usize::from(slot)] = Some(Arc::clone(&node));
            }
            nodes.insert(range.address.clone(), node);
        }
        // Whom the map names is no guest any more.
        tended.guests.retain(|guest| !nodes.contains_key(guest));
        for guest in &tended.guests {
            if let Some(node) = before.nodes.get(guest) {
                nodes.entry(guest.clone()).or_insert_with(|| Arc::clone(node));
            }
        }
        tended.leave_all_but(&nodes);
        self.map.send_replace(Arc::new(Map { slots, nodes }));
    }

    /// Notes a redirect in the map.
    fn note(&self, redirect: &Redirect, tended: &mut Tended) {
        let before = Arc::clone(&self.map.borrow());
        let address = &redirect.address;
        let known = before.nodes.get(address);
        let there = before.slots[usize::from(redirect.slot)].as_ref();
        let is_noted = known.is_some_and(|known| {
            redirect.kind == RedirectKind::Ask
                || there.is_some_and(|there| Arc::ptr_eq(there, known))
        });
        // A server that names ever more others is not believed.
        if is_noted || known.is_none() && tended.guests.len() >= MOST_GUESTS {
            return;
        }
        let node = known.cloned().unwrap_or_else(|| {
            tended.guests.push(address.clone());
            self.add(address, tended)
        });
        let mut map = (*before).clone();
        map.nodes.insert(address.clone(), Arc::clone(&node));
        if redirect.kind == RedirectKind::Moved {
            map.slots[usize::from(redirect.slot)] = Some(node);
        }
        self.map.send_replace(Arc::new(map));
    }

    fn add(&self, address: &Address, tended: &mut Tended) -> Arc<Node> {
        let node = Arc::new(Node::at(address.clone(), &self.around));
        let kept = Arc::clone(&node);
        tended.add(address, async move { kept.run().await });
        node
    }

    /// Folds the health of all servers that have slots.
    fn feel(&self) {
        let map = Arc::clone(&self.map.borrow());
        let health = map.slots.iter().try_fold(None::<&Arc<Node>>, |last, node| match node {
            None => Err(Health::Down),
            Some(node) if last.is_some_and(|last| Arc::ptr_eq(last, node)) => Ok(Some(node)),
            Some(node) => match *node.health().borrow() {
                Health::Up => Ok(Some(node)),
                other => Err(other),
            },
        });
        let health = health.err().unwrap_or(Health::Up);
        if !map.nodes.is_empty() && *self.health.borrow() != health {
            self.health.send_replace(health);
        }
    }
}

/// The tasks that keep the connections of each server.
#[derive(Debug, Default)]
struct Tended {
    tasks: JoinSet<()>,
    handles: HashMap<Address, AbortHandle>,
    /// Servers that only redirects named.
    guests: Vec<Address>,
}

impl Tended {
    fn add(&mut self, address: &Address, keep: impl Future<Output = ()> + Send + 'static) {
        let handle = self.tasks.spawn(keep);
        self.handles.insert(address.clone(), handle);
    }

    fn leave_all_but(&mut self, nodes: &HashMap<Address, Arc<Node>>) {
        self.guests.retain(|guest| nodes.contains_key(guest));
        self.handles.retain(|address, handle| {
            let stays = nodes.contains_key(address);
            if !stays {
                handle.abort();
            }
            stays
        });
        while self.tasks.try_join_next().is_some() {}
    }
}
