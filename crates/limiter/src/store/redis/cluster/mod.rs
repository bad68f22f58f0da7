//! A Redis Cluster: the map from slots to servers, and a [`Node`] for each server.
//!
//! The map comes from the servers, and from redirects. The cluster client of redis-rs is not used:
//! with retries it repeats calls of unknown fate, so that a decision could count twice, and without
//! retries it follows neither MOVED nor ASK. It also has no breaker for each master: here an
//! unavailable master affects only the keys that it owns.

mod slots;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{interval, timeout};
use tracing::{debug, warn};

use self::slots::Range;
use super::codec::call_error::{Redirect, RedirectKind};
use super::codec::keys::SLOTS;
use super::connection::Address;
use super::node::{Node, NodeContext};
use crate::clock::Deadline;
use crate::store::{Health, StoreError};

/// Interval of map refreshes while a server is not healthy, so that a failover is noticed soon.
const REFRESH_INTERVAL: Duration = Duration::from_millis(200);
/// Refreshes that are skipped while all servers are healthy.
const IDLE_TICKS: u32 = 50;
/// Timeout of a map query to one server.
const MAP_TIMEOUT: Duration = Duration::from_millis(300);
/// Capacity of the queue of redirects.
const MAX_QUEUED_REDIRECTS: usize = 64;
/// Maximum number of servers that are known from redirects only.
const MAX_REDIRECT_NODES: usize = 64;

/// A cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    seeds: Vec<Address>,
    context: NodeContext,
    map: watch::Sender<Arc<Map>>,
    redirects: mpsc::Sender<Redirect>,
    queued_redirects: Mutex<mpsc::Receiver<Redirect>>,
    health: watch::Sender<Health>,
    /// Counter that selects the first server to query at the next refresh.
    next_server: AtomicUsize,
}

/// The map from slots to servers.
#[derive(Clone, Debug)]
struct Map {
    slots: Vec<Option<Arc<Node>>>,
    nodes: HashMap<Address, Member>,
}

/// A server of the map, monitored for as long as it is in the map.
#[derive(Clone, Debug)]
struct Member {
    node: Arc<Node>,
    /// Set if the server is known from a redirect only.
    is_from_redirect: bool,
    _monitor: Arc<MonitorTask>,
}

/// Aborts the monitor when the last clone of its member is dropped.
#[derive(Debug)]
struct MonitorTask(AbortHandle);

impl Drop for MonitorTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Cluster {
    pub(crate) fn new(seeds: Vec<Address>, context: NodeContext) -> Self {
        let (redirects, queued_redirects) = mpsc::channel(MAX_QUEUED_REDIRECTS);
        let slots = vec![None; SLOTS.into()];
        Self {
            seeds,
            context,
            map: watch::Sender::new(Arc::new(Map { slots, nodes: HashMap::new() })),
            redirects,
            queued_redirects: Mutex::new(queued_redirects),
            health: watch::Sender::new(Health::Unknown),
            next_server: AtomicUsize::new(0),
        }
    }

    /// Returns the server of a slot, if it is known.
    pub(crate) fn node_for_slot(&self, slot: u16) -> Option<Arc<Node>> {
        self.map.borrow().slots[usize::from(slot)].clone()
    }

    /// Returns every known server.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        self.map.borrow().nodes.values().map(|member| Arc::clone(&member.node)).collect()
    }

    /// Returns every known server, and a hash of the map from slots to servers.
    pub(crate) fn layout(&self) -> (u64, Vec<Arc<Node>>) {
        let map = Arc::clone(&self.map.borrow());
        (map.hash(), map.nodes.values().map(|member| Arc::clone(&member.node)).collect())
    }

    /// Returns the server of a slot. Waits for the first map.
    pub(crate) async fn node(
        &self,
        slot: u16,
        deadline: Deadline,
    ) -> Result<Arc<Node>, StoreError> {
        if let Some(node) = self.node_for_slot(slot) {
            return Ok(node);
        }
        if *self.health.borrow() == Health::Down {
            return Err(StoreError::Unreachable);
        }
        self.wait_for(|map| map.slots[usize::from(slot)].clone(), deadline).await
    }

    /// Returns the server that a redirect names.
    pub(crate) async fn follow(
        &self,
        redirect: &Redirect,
        deadline: Deadline,
    ) -> Result<Arc<Node>, StoreError> {
        let known = self.map.borrow().node_at(&redirect.address);
        if known.is_none() || redirect.kind == RedirectKind::Moved {
            // If the queue is full, the next redirect reports the move again.
            let _full = self.redirects.try_send(redirect.clone());
        }
        match known {
            Some(node) => Ok(node),
            None => self.wait_for(|map| map.node_at(&redirect.address), deadline).await,
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
        let found = timeout(deadline.remaining(), found).await.ok().flatten();
        found.ok_or(StoreError::Unreachable)
    }

    /// Returns a receiver of the health of the cluster: whether every slot has a healthy server.
    pub(crate) fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Keeps the map up to date and monitors its servers, for ever.
    pub(crate) async fn run(&self) {
        let mut queued_redirects = self.queued_redirects.lock().await;
        let mut changes = self.context.changed.subscribe();
        let mut monitors = JoinSet::new();
        let mut ticks = interval(REFRESH_INTERVAL);
        let mut skipped = IDLE_TICKS;
        let mut is_logged = false;
        loop {
            tokio::select! {
                _ = changes.changed() => {}
                Some(redirect) = queued_redirects.recv() => {
                    self.record_redirect(&redirect, &mut monitors);
                    skipped = IDLE_TICKS;
                }
                _ = ticks.tick() => {
                    skipped += 1;
                    if skipped < IDLE_TICKS && *self.health.borrow() == Health::Up {
                        continue;
                    }
                    skipped = 0;
                    let map = self.query_map().await;
                    if map.is_none() && !is_logged {
                        warn!("CLUSTER SLOTS failed on every server");
                    }
                    is_logged = map.is_none();
                    match map {
                        Some(ranges) => self.apply_map(&ranges, &mut monitors),
                        None if self.map.borrow().nodes.is_empty() => {
                            self.health.send_replace(Health::Down);
                        }
                        None => {}
                    }
                }
            }
            while monitors.try_join_next().is_some() {}
            self.update_health();
        }
    }

    /// Queries one server after the other for the map, until one returns it.
    async fn query_map(&self) -> Option<Vec<Range>> {
        let options = self.context.options.load_full();
        let map = Arc::clone(&self.map.borrow());
        let is_up = |(_, member): &(&Address, &Member)| member.node.health.current() == Health::Up;
        let mut servers: Vec<&Address> =
            map.nodes.iter().filter(is_up).map(|(address, _)| address).collect();
        servers.sort_unstable_by_key(ToString::to_string);
        if !servers.is_empty() {
            let first = self.next_server.fetch_add(1, Ordering::Relaxed) % servers.len();
            servers.rotate_left(first);
        }
        for server in servers.into_iter().chain(&self.seeds) {
            match timeout(MAP_TIMEOUT, slots::query(&options, server)).await {
                Ok(Ok(ranges)) if !ranges.is_empty() => return Some(ranges),
                Ok(Ok(_)) => debug!(redis = %server, "CLUSTER SLOTS returned no slots"),
                Ok(Err(error)) => debug!(redis = %server, %error, "CLUSTER SLOTS failed"),
                Err(_elapsed) => debug!(redis = %server, "CLUSTER SLOTS timed out"),
            }
        }
        None
    }

    /// Applies a new map. Servers that it does not contain are dropped, except those known from
    /// redirects.
    fn apply_map(&self, ranges: &[Range], monitors: &mut JoinSet<()>) {
        let before = Arc::clone(&self.map.borrow());
        let mut nodes = before.nodes.clone();
        nodes.retain(|_, member| member.is_from_redirect);
        let mut slots = vec![None; SLOTS.into()];
        for Range { first, last, address } in ranges {
            let known = nodes.get(address).or_else(|| before.nodes.get(address)).cloned();
            let member = known.unwrap_or_else(|| self.add(address, monitors));
            slots[usize::from(*first)..=usize::from(*last)].fill(Some(Arc::clone(&member.node)));
            nodes.insert(address.clone(), Member { is_from_redirect: false, ..member });
        }
        self.publish(Map { slots, nodes });
    }

    /// Records a redirect in the map.
    fn record_redirect(&self, redirect: &Redirect, monitors: &mut JoinSet<()>) {
        let before = Arc::clone(&self.map.borrow());
        let known = before.node_at(&redirect.address);
        let owner = before.slots[usize::from(redirect.slot)].as_ref();
        let is_owner = |known| owner.is_some_and(|owner| Arc::ptr_eq(owner, known));
        if known.as_ref().is_some_and(|known| redirect.kind == RedirectKind::Ask || is_owner(known))
        {
            return;
        }
        let mut map = Map::clone(&before);
        let from_redirects = map.nodes.values().filter(|member| member.is_from_redirect).count();
        let node = match known {
            Some(node) => node,
            // A server that redirects to ever more others is not trusted.
            None if from_redirects >= MAX_REDIRECT_NODES => return,
            None => {
                let member = self.add(&redirect.address, monitors);
                let node = Arc::clone(&member.node);
                map.nodes.insert(redirect.address.clone(), member);
                node
            }
        };
        if redirect.kind == RedirectKind::Moved {
            map.slots[usize::from(redirect.slot)] = Some(node);
        }
        self.publish(map);
    }

    fn publish(&self, map: Map) {
        self.map.send_replace(Arc::new(map));
        self.context.changed.send_replace(());
    }

    /// Adds a server that a redirect names, and starts its monitor.
    fn add(&self, address: &Address, monitors: &mut JoinSet<()>) -> Member {
        let node = Arc::new(Node::at(address.clone(), &self.context));
        let watched = Arc::clone(&node);
        let monitor = monitors.spawn(async move { watched.run().await });
        Member { node, is_from_redirect: true, _monitor: Arc::new(MonitorTask(monitor)) }
    }

    /// Computes the health of the cluster from that of all servers with slots.
    fn update_health(&self) {
        let map = Arc::clone(&self.map.borrow());
        let health = map.slots.iter().try_fold(None::<&Arc<Node>>, |last, node| match node {
            None => Err(Health::Down),
            Some(node) if last.is_some_and(|last| Arc::ptr_eq(last, node)) => Ok(Some(node)),
            Some(node) => match node.health.current() {
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

impl Map {
    /// Returns a hash of the map, the same for all instances.
    fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let mut last: Option<&Arc<Node>> = None;
        for (slot, node) in self.slots.iter().enumerate() {
            let Some(node) = node else { continue };
            if !last.is_some_and(|last| Arc::ptr_eq(last, node)) {
                (slot, node.status().address).hash(&mut hasher);
            }
            last = Some(node);
        }
        hasher.finish()
    }

    fn node_at(&self, address: &Address) -> Option<Arc<Node>> {
        self.nodes.get(address).map(|member| Arc::clone(&member.node))
    }
}
