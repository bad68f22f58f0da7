//! A Redis Cluster of real redis-servers, joined by commands, since `redis-cli --cluster` sleeps
//! and prompts.
//!
//! Nodes have numbers: first the masters, then the replicas. Node `i` is a replica
//! of node `i % masters`. A server keeps its number when its role changes.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use deadpool_redis::redis::FromRedisValue;
use rlaas_core::clock::Timestamp;

use crate::eventually;
use crate::redis::{RedisServer, free_port, is_registry, owned};

/// Timeout for agreement in the cluster, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);

const SLOTS: usize = 16_384;

const LONG_AGO: Timestamp = Timestamp::from_millis(1_000_000_000_000);

/// Selects the clock of the machine.
const MACHINE: Timestamp = Timestamp::from_millis(0);

/// Default arguments; those of the caller come later and win. A node counts as failed after a
/// second. A replica is sent its data at once, not after the default delay of 5 seconds.
const ARGUMENTS: &[&str] = &[
    "--cluster-enabled",
    "yes",
    "--cluster-node-timeout",
    "1000",
    "--cluster-announce-ip",
    "127.0.0.1",
    "--repl-diskless-sync-delay",
    "0",
];

/// A running cluster. Its servers are killed on drop.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
    ids: Vec<String>,
}

impl RedisCluster {
    /// Starts a cluster and waits until it is complete: every node knows every other, every slot is
    /// served, every replica is online.
    pub async fn start(masters: usize, replicas_per_master: usize) -> Self {
        Self::start_with(masters, replicas_per_master, &[]).await
    }

    /// Starts a cluster whose servers have more arguments, such as
    /// `["--cluster-require-full-coverage", "no"]`.
    ///
    /// # Panics
    ///
    /// If the servers do not start, or do not form a cluster.
    pub async fn start_with(
        masters: usize,
        replicas_per_master: usize,
        arguments: &[&str],
    ) -> Self {
        let count = masters * (1 + replicas_per_master);
        let nodes: Vec<_> = (0..count).map(|_| start_node(arguments)).collect();
        let ids = nodes.iter().map(|node| node.query(&["CLUSTER", "MYID"])).collect();
        let cluster = Self { nodes, ids };
        for (i, node) in cluster.nodes.iter().enumerate() {
            node.query::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()]);
            if i < masters {
                let (first, end) = (i * SLOTS / masters, (i + 1) * SLOTS / masters);
                let (first, last) = (first.to_string(), (end - 1).to_string());
                node.query::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            }
        }
        for i in 0..count {
            cluster.nodes[i].set_clock(MACHINE);
            cluster.meet(i);
        }
        let met = async || (0..count).all(|i| cluster.view(i).len() == count);
        eventually("the nodes know each other", TIMEOUT, met).await;
        for i in masters..count {
            let master = &cluster.ids[i % masters];
            cluster.nodes[i].query::<()>(&["CLUSTER", "REPLICATE", master]);
        }
        let whole = async || {
            cluster.is_ok()
                && cluster.is_covered()
                && cluster.replicates(masters, replicas_per_master)
        };
        eventually("the cluster is complete", TIMEOUT, whole).await;
        cluster
    }

    /// Returns the URLs of all nodes, including killed ones.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    /// Returns the server of a node.
    pub fn node(&self, i: usize) -> &RedisServer {
        &self.nodes[i]
    }

    /// Returns the server of a node, to kill or restart it.
    pub fn node_mut(&mut self, i: usize) -> &mut RedisServer {
        &mut self.nodes[i]
    }

    /// Kills a node with SIGKILL.
    pub fn kill(&mut self, i: usize) {
        self.nodes[i].kill();
    }

    /// Restarts a killed node without data but with its place in the cluster. A node that is still
    /// a master serves its slots only after 2 seconds.
    pub fn restart(&mut self, i: usize) {
        self.nodes[i].restart();
    }

    /// Returns `true` if every node that responds reports the cluster as ok.
    pub fn is_ok(&self) -> bool {
        let info = |node: &RedisServer| node.try_query::<String>(&["CLUSTER", "INFO"]).ok();
        let mut answers = self.nodes.iter().filter_map(info).peekable();
        answers.peek().is_some() && answers.all(|info| info.contains("cluster_state:ok"))
    }

    /// Returns `true` if every node that responds knows a master for every slot. Without required
    /// full coverage, a cluster is ok before that.
    fn is_covered(&self) -> bool {
        let slots = |view: Vec<Peer>| {
            view.iter().flat_map(|peer| &peer.slots).map(|slots| slots.clone().count()).sum()
        };
        self.views().all(|view| {
            let served: usize = slots(view);
            served == SLOTS
        })
    }

    /// Returns the slot of a key.
    pub fn slot_of(&self, key: &str) -> u16 {
        self.query_any(&["CLUSTER", "KEYSLOT", key])
    }

    /// Returns the node that serves a slot, according to the first node that responds.
    ///
    /// # Panics
    ///
    /// If no node responds, or no node serves the slot.
    pub fn master_of(&self, slot: u16) -> usize {
        let view = (0..self.nodes.len()).map(|i| self.view(i)).find(|view| !view.is_empty());
        let view = view.expect("a node that responds");
        let master = view.iter().find(|peer| peer.serves(slot));
        master.expect("a master of the slot").node
    }

    /// Returns the node that serves the keys of an id.
    pub fn master_of_id(&self, id: &str) -> usize {
        self.master_of(self.slot_of(&format!("{{{id}}}")))
    }

    /// Returns settings for a server that uses this cluster, each for `--set`.
    pub fn settings(&self) -> Vec<String> {
        let urls = format!("store.redis.urls={}", self.urls().join(","));
        ["store.backend=redis", "store.redis.mode=cluster", &urls].map(str::to_owned).into()
    }

    /// Returns all keys of the masters that respond, sorted, without the registry of instances.
    pub fn keys(&self) -> Vec<String> {
        let mut keys = BTreeSet::new();
        for node in self.nodes.iter().filter(|node| node.is_master()) {
            let all: Vec<String> = node.try_query(&["KEYS", "*"]).unwrap_or_default();
            keys.extend(all.into_iter().filter(|key| !is_registry(key)));
        }
        keys.into_iter().collect()
    }

    /// Returns the number of keys of the masters that respond.
    pub fn count_keys(&self) -> usize {
        self.keys().len()
    }

    /// Moves a slot with its keys from one master to another.
    pub async fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_move(slot, from, to);
        self.move_keys(slot, from, to);
        self.end_move(slot, from, to).await;
    }

    /// Starts to move a slot: from now on, the old master redirects requests for keys that it lacks
    /// to the new one.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let importing = ["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.ids[from]];
        self.nodes[to].query::<()>(&importing);
        let migrating = ["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.ids[to]];
        self.nodes[from].query::<()>(&migrating);
    }

    /// Moves the keys of a slot that is being moved.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize) {
        let (slot, port) = (slot.to_string(), self.nodes[to].port().to_string());
        loop {
            let keys: Vec<String> =
                self.nodes[from].query(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
            if keys.is_empty() {
                return;
            }
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000"];
            if let Some(password) = self.nodes[to].argument("--requirepass") {
                words.extend(["AUTH", password]);
            }
            words.push("KEYS");
            words.extend(keys.iter().map(String::as_str));
            self.nodes[from].query::<()>(&words);
        }
    }

    /// Assigns the slot to the new master, and waits until every node that responds knows.
    pub async fn end_move(&self, slot: u16, from: usize, to: usize) {
        let text = slot.to_string();
        let words = ["CLUSTER", "SETSLOT", &text, "NODE", &self.ids[to]];
        // The new master first: otherwise both would redirect to each other for a moment.
        for i in [to, from] {
            self.nodes[i].query::<()>(&words);
        }
        for node in self.nodes.iter().filter(|node| node.is_master()) {
            // A master that is being replaced refuses; it learns from the others.
            let _refused = node.try_query::<()>(&words);
        }
        let known = async || {
            self.views().all(|view| view.iter().any(|peer| peer.node == to && peer.serves(slot)))
        };
        eventually("the slot has moved", TIMEOUT, known).await;
    }

    /// Fails over to a replica in agreement with its master, and waits until every node that
    /// responds knows.
    pub async fn failover(&self, replica: usize) {
        self.nodes[replica].query::<()>(&["CLUSTER", "FAILOVER"]);
        self.wait_for_master(replica).await;
    }

    /// Waits until every node that responds knows this node as a master with slots.
    pub async fn wait_for_master(&self, node: usize) {
        let known = async || {
            let leads = |peer: &Peer| peer.node == node && !peer.slots.is_empty();
            self.views().all(|view| view.iter().any(leads))
        };
        eventually("the node is a master with slots", TIMEOUT, known).await;
    }

    /// Introduces a node to all nodes before it.
    fn meet(&self, i: usize) {
        for other in &self.nodes[..i] {
            let port = other.port().to_string();
            let bus = other.argument("--cluster-port").expect("a bus port");
            self.nodes[i].query::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, bus]);
        }
    }

    /// Returns `true` if each master has its replicas online, and every node knows the replicas.
    fn replicates(&self, masters: usize, replicas_per_master: usize) -> bool {
        let replicas = |view: Vec<Peer>| view.iter().filter(|peer| peer.replicates).count();
        self.nodes[..masters].iter().all(|node| node.replicas_online() == replicas_per_master)
            && self.views().all(|view| replicas(view) == masters * replicas_per_master)
    }

    /// Returns the reply of the first node that responds.
    fn query_any<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let reply = self.nodes.iter().find_map(|node| node.try_query(words).ok());
        reply.expect("a node that responds")
    }

    /// Returns the view of each node that responds.
    fn views(&self) -> impl Iterator<Item = Vec<Peer>> {
        (0..self.nodes.len()).map(|i| self.view(i)).filter(|view| !view.is_empty())
    }

    /// Returns the nodes that a node knows; none if it does not respond.
    fn view(&self, i: usize) -> Vec<Peer> {
        let text: Option<String> = self.nodes[i].try_query(&["CLUSTER", "NODES"]).ok();
        text.unwrap_or_default().lines().filter_map(|line| self.peer(line)).collect()
    }

    /// `id address flags master ping pong epoch link [slots…]`
    fn peer(&self, line: &str) -> Option<Peer> {
        let fields: Vec<_> = line.split(' ').collect();
        let [id, _, flags, _, _, _, _, _, slots @ ..] = &*fields else { return None };
        let node = self.ids.iter().position(|known| known == id)?;
        let flags: Vec<_> = flags.split(',').collect();
        if flags.contains(&"handshake") {
            return None;
        }
        // `[93->-id]` is a slot that is being moved; it is also listed by itself.
        let slots = slots.iter().filter(|slots| !slots.starts_with('[')).map(|slots| {
            let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
            first.parse().expect("a slot")..=last.parse().expect("a slot")
        });
        Some(Peer { node, replicates: flags.contains(&"slave"), slots: slots.collect() })
    }
}

/// A node in the view of another.
#[derive(Debug)]
struct Peer {
    node: usize,
    replicates: bool,
    slots: Vec<RangeInclusive<u16>>,
}

impl Peer {
    fn serves(&self, slot: u16) -> bool {
        self.slots.iter().any(|slots| slots.contains(&slot))
    }
}

fn start_node(arguments: &[&str]) -> RedisServer {
    let mut node = RedisServer::start_with_port(|_| {
        // By default the cluster bus listens on the port plus 10000, which may be in use.
        let bus = ["--cluster-port", &free_port().to_string()];
        owned(&[ARGUMENTS, &bus, arguments].concat())
    });
    // A master serves nothing in its first 2 seconds. Starting it with a clock in the past makes
    // them pass at once.
    node.set_clock(LONG_AGO);
    node.kill();
    node.restart();
    node
}
