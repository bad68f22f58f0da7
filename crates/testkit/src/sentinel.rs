//! Redis with Sentinel: a master, its replicas, and three sentinels that monitor them as
//! `mymaster`.
//!
//! Servers have numbers: 0 is the first master. A server keeps its number when its role changes.

use std::collections::HashMap;
use std::time::Duration;

use deadpool_redis::redis::FromRedisValue;

use crate::redis::{RedisServer, owned};
use crate::{TempDir, eventually};

/// Timeout for agreement of the sentinels, on a busy machine.
const TIMEOUT: Duration = Duration::from_mins(1);

const SENTINELS: usize = 3;

/// Number of replicas, and passwords.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// Number of replicas of the first master.
    pub replicas: usize,
    /// Password of the servers.
    pub server_password: Option<&'a str>,
    /// Password of the sentinels.
    pub sentinel_password: Option<&'a str>,
}

impl Default for Settings<'_> {
    fn default() -> Self {
        Self { replicas: 1, server_password: None, sentinel_password: None }
    }
}

/// Running servers and sentinels, killed on drop.
#[derive(Debug)]
pub struct Sentinels {
    servers: Vec<RedisServer>,
    watchers: Vec<RedisServer>,
    _files: TempDir,
}

impl Sentinels {
    /// Starts a master, a replica and three sentinels, and waits until every sentinel knows the
    /// servers and the other sentinels.
    pub async fn start() -> Self {
        Self::start_with(Settings::default()).await
    }

    /// Starts with these settings.
    ///
    /// # Panics
    ///
    /// If the servers do not start, or the sentinels do not agree.
    pub async fn start_with(settings: Settings<'_>) -> Self {
        let mut servers = vec![start_server(settings, None)];
        for _ in 0..settings.replicas {
            servers.push(start_server(settings, Some(servers[0].port())));
        }
        let files = TempDir::new();
        let start = |i| start_sentinel(settings, &files, i, servers[0].port());
        let watchers = (0..SENTINELS).map(start).collect();
        let started = Self { servers, watchers, _files: files };
        let whole = async || {
            started.servers[0].replicas_online() == settings.replicas
                && started.watchers.iter().all(|sentinel| started.is_seen_by(sentinel))
        };
        eventually("the sentinels know each other and the servers", TIMEOUT, whole).await;
        started
    }

    /// Returns the URLs of the sentinels, including killed ones.
    pub fn urls(&self) -> Vec<String> {
        self.watchers.iter().map(RedisServer::url).collect()
    }

    /// Returns a server.
    pub fn server(&self, i: usize) -> &RedisServer {
        &self.servers[i]
    }

    /// Returns a server, to kill or restart it.
    pub fn server_mut(&mut self, i: usize) -> &mut RedisServer {
        &mut self.servers[i]
    }

    /// Returns a sentinel.
    pub fn sentinel(&self, i: usize) -> &RedisServer {
        &self.watchers[i]
    }

    /// Returns a sentinel, to kill or restart it.
    pub fn sentinel_mut(&mut self, i: usize) -> &mut RedisServer {
        &mut self.watchers[i]
    }

    /// Returns the master, according to the first sentinel that responds.
    ///
    /// # Panics
    ///
    /// If no sentinel responds.
    pub fn master(&self) -> usize {
        let mut masters = self.watchers.iter().filter_map(|sentinel| self.master_by(sentinel));
        masters.next().expect("a sentinel that responds")
    }

    /// Kills the master with SIGKILL, and returns its number.
    pub fn kill_master(&mut self) -> usize {
        let master = self.master();
        self.servers[master].kill();
        master
    }

    /// Ends the replication to the replicas, and waits until none is online: a failover loses what is
    /// written from now on.
    pub async fn end_replication(&self) {
        let master = self.server(self.master());
        master.query::<()>(&["ACL", "SETUSER", "default", "-psync", "-sync"]);
        master.query::<()>(&["CLIENT", "KILL", "TYPE", "replica"]);
        let is_over = async || master.replicas_online() == 0;
        eventually("the replication ends", TIMEOUT, is_over).await;
    }

    /// Kills all sentinels. The servers are not affected.
    pub fn kill_sentinels(&mut self) {
        self.watchers.iter_mut().for_each(RedisServer::kill);
    }

    /// Fails over from a live master to a replica, and waits until the replica is the master.
    pub async fn failover(&self) -> usize {
        let old = self.master();
        let words = ["SENTINEL", "FAILOVER", "mymaster"];
        // Refused while an earlier failover is in progress.
        let begun =
            async || self.watchers.iter().any(|sentinel| sentinel.try_query::<()>(&words).is_ok());
        eventually("a failover starts", TIMEOUT, begun).await;
        self.wait_for_new_master(old).await
    }

    /// Waits until every sentinel that responds reports the same new master, and that server has
    /// the role of a master. Returns its number.
    pub async fn wait_for_new_master(&self, old: usize) -> usize {
        let moved = async || {
            let new = self.master();
            let mut named = self.watchers.iter().filter_map(|sentinel| self.master_by(sentinel));
            new != old && named.all(|named| named == new) && self.servers[new].is_master()
        };
        eventually("another server is the master", TIMEOUT, moved).await;
        self.master()
    }

    /// Returns `true` if this sentinel knows the master, the replicas and the other sentinels, all
    /// in good state.
    fn is_seen_by(&self, sentinel: &RedisServer) -> bool {
        type Fields = HashMap<String, String>;
        let replicas: Vec<Fields> = query(sentinel, "REPLICAS").unwrap_or_default();
        let others: Vec<Fields> = query(sentinel, "SENTINELS").unwrap_or_default();
        replicas.len() + 1 == self.servers.len()
            && replicas
                .iter()
                .all(|replica| replica["flags"] == "slave" && replica["master-link-status"] == "ok")
            && others.len() + 1 == SENTINELS
            && others.iter().all(|other| other["flags"] == "sentinel")
            && query::<String>(sentinel, "CKQUORUM")
                .is_some_and(|usable| usable.starts_with("OK 3"))
    }

    fn master_by(&self, sentinel: &RedisServer) -> Option<usize> {
        let (_, port): (String, u16) = query(sentinel, "GET-MASTER-ADDR-BY-NAME")?;
        self.servers.iter().position(|server| server.port() == port)
    }
}

/// Returns the reply of a sentinel about the master; `None` if it does not respond.
fn query<T: FromRedisValue>(sentinel: &RedisServer, what: &str) -> Option<T> {
    sentinel.try_query(&["SENTINEL", what, "mymaster"]).ok()
}

fn start_server(settings: Settings<'_>, master: Option<u16>) -> RedisServer {
    // A replica is sent its data at once, not after the default delay of 5 seconds.
    let mut arguments = owned(&["--repl-diskless-sync-delay", "0"]);
    if let Some(password) = settings.server_password {
        arguments.extend(owned(&["--requirepass", password, "--masterauth", password]));
    }
    if let Some(port) = master {
        arguments.extend(owned(&["--replicaof", "127.0.0.1", &port.to_string()]));
    }
    RedisServer::start_with_port(|_| arguments.clone())
}

fn start_sentinel(settings: Settings<'_>, files: &TempDir, i: usize, master: u16) -> RedisServer {
    let mut text = format!(
        "sentinel monitor mymaster 127.0.0.1 {master} 2\n\
         sentinel down-after-milliseconds mymaster 500\n\
         sentinel failover-timeout mymaster 2000\n"
    );
    if let Some(password) = settings.server_password {
        text += &["sentinel auth-pass mymaster ", password, "\n"].concat();
    }
    let mut arguments = Vec::new();
    if let Some(password) = settings.sentinel_password {
        text += &["sentinel sentinel-pass ", password, "\n"].concat();
        arguments = owned(&["--requirepass", password]);
    }
    let file = files.write(&format!("sentinel-{i}.conf"), &text);
    let file = file.to_str().expect("a path in UTF-8").to_owned();
    arguments.insert(0, file);
    arguments.push("--sentinel".to_owned());
    let sentinel = RedisServer::start_with_port(|_| arguments.clone());
    // Sentinels discover each other by messages that they publish every 2 seconds, and replicas by
    // INFO every 10 seconds: both periods are shortened. On a busy machine they must not enter TILT
    // mode, in which they do nothing for 30 seconds.
    let periods = ["PUBLISH-PERIOD", "200", "INFO-PERIOD", "200", "TILT-TRIGGER", "20000"];
    sentinel.query::<()>(&[&["SENTINEL", "DEBUG"], &periods[..]].concat());
    sentinel
}
