//! Redis with Sentinel: a master, its replicas, and three sentinels that watch them as `mymaster`.
//!
//! Servers have numbers: 0 is the first master. A number stays with its server, whatever becomes
//! of the server's role.

use std::collections::HashMap;
use std::time::Duration;

use deadpool_redis::redis::FromRedisValue;

use crate::redis::{RedisServer, owned};
use crate::{TempDir, eventually};

/// How long the sentinels may take to agree on something, on a machine that has other work.
const TIMEOUT: Duration = Duration::from_mins(1);

const SENTINELS: usize = 3;

/// How many replicas there are, and who asks for a password.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// Replicas of the first master.
    pub replicas: usize,
    /// What the servers ask for.
    pub server_password: Option<&'a str>,
    /// What the sentinels ask for.
    pub sentinel_password: Option<&'a str>,
}

impl Default for Settings<'_> {
    fn default() -> Self {
        Self { replicas: 1, server_password: None, sentinel_password: None }
    }
}

/// Running servers and sentinels; killed when they are dropped.
#[derive(Debug)]
pub struct Sentinels {
    servers: Vec<RedisServer>,
    watchers: Vec<RedisServer>,
    _files: TempDir,
}

impl Sentinels {
    /// Starts a master, a replica and three sentinels, and waits until every sentinel sees all
    /// others.
    pub async fn start() -> Self {
        Self::start_with(Settings::default()).await
    }

    /// Starts with more replicas, or with passwords.
    ///
    /// # Panics
    ///
    /// If the servers do not start or do not come together.
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
        eventually("the sentinels see each other and the servers", TIMEOUT, whole).await;
        started
    }

    /// Where the sentinels are found, dead ones too.
    pub fn urls(&self) -> Vec<String> {
        self.watchers.iter().map(RedisServer::url).collect()
    }

    /// A server.
    pub fn server(&self, i: usize) -> &RedisServer {
        &self.servers[i]
    }

    /// A server, to kill or restart it.
    pub fn server_mut(&mut self, i: usize) -> &mut RedisServer {
        &mut self.servers[i]
    }

    /// A sentinel.
    pub fn sentinel(&self, i: usize) -> &RedisServer {
        &self.watchers[i]
    }

    /// A sentinel, to kill or restart it.
    pub fn sentinel_mut(&mut self, i: usize) -> &mut RedisServer {
        &mut self.watchers[i]
    }

    /// The master as the first sentinel says that answers.
    ///
    /// # Panics
    ///
    /// If none does.
    pub fn master(&self) -> usize {
        let mut masters = self.watchers.iter().filter_map(|sentinel| self.master_by(sentinel));
        masters.next().expect("a sentinel that answers")
    }

    /// Kills the master as a crash would, and says which it was.
    pub fn kill_master(&mut self) -> usize {
        let master = self.master();
        self.servers[master].kill();
        master
    }

    /// Kills all sentinels; the servers stay as they are.
    pub fn kill_sentinels(&mut self) {
        self.watchers.iter_mut().for_each(RedisServer::kill);
    }

    /// Has a replica take over from a master that lives, and waits until it leads.
    pub async fn failover(&self) -> usize {
        let old = self.master();
        let words = ["SENTINEL", "FAILOVER", "mymaster"];
        // Refused while an earlier failover is not over yet.
        let begun =
            async || self.watchers.iter().any(|sentinel| sentinel.try_query::<()>(&words).is_ok());
        eventually("a failover begins", TIMEOUT, begun).await;
        self.wait_for_new_master(old).await
    }

    /// Waits until every sentinel that answers names one other master, and it agrees.
    pub async fn wait_for_new_master(&self, old: usize) -> usize {
        let moved = async || {
            let new = self.master();
            let mut named = self.watchers.iter().filter_map(|sentinel| self.master_by(sentinel));
            new != old && named.all(|named| named == new) && self.servers[new].is_master()
        };
        eventually("another server is the master", TIMEOUT, moved).await;
        self.master()
    }

    /// Does this sentinel see the master, the replicas and the other sentinels, all in order?
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

/// What a sentinel says about the master, if it answers.
fn query<T: FromRedisValue>(sentinel: &RedisServer, what: &str) -> Option<T> {
    sentinel.try_query(&["SENTINEL", what, "mymaster"]).ok()
}

fn start_server(settings: Settings<'_>, master: Option<u16>) -> RedisServer {
    // A replica need not wait 5 seconds for others before it is sent the data.
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
    // They find each other by what they publish every 2 seconds, and learn of replicas by what
    // they ask every 10. A busy machine is no reason to distrust the clock, and do nothing for
    // 30 seconds.
    let periods = ["PUBLISH-PERIOD", "200", "INFO-PERIOD", "200", "TILT-TRIGGER", "20000"];
    sentinel.query::<()>(&[&["SENTINEL", "DEBUG"], &periods[..]].concat());
    sentinel
}
