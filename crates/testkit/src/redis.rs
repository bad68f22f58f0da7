//! Real servers, redis-server or Valkey, each on a free port and with a clock that tests can move.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use deadpool_redis::redis::{Client, Cmd, Connection, FromRedisValue, RedisResult};
use rlaas_core::clock::Timestamp;

use crate::{TempDir, target_tmp};

/// Log lines of a server, and of a sentinel, that is ready.
const READY: [&str; 2] = ["Ready to accept", "Sentinel ID is"];

/// A running redis-server, killed on drop.
#[derive(Debug)]
pub struct RedisServer {
    process: Child,
    port: u16,
    arguments: Vec<String>,
    clock: PathBuf,
    dir: TempDir,
}

impl RedisServer {
    /// Starts a server on the clock of the machine.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with more arguments, such as `["--maxmemory", "1mb"]`.
    ///
    /// # Panics
    ///
    /// If redis-server is not installed, or does not start.
    pub fn start_with(arguments: &[&str]) -> Self {
        Self::start_with_port(|_| owned(arguments))
    }

    /// Starts a server with arguments that depend on its port. They are made again for each port
    /// that is tried.
    ///
    /// # Panics
    ///
    /// If the server does not start.
    pub fn start_with_port(mut arguments: impl FnMut(u16) -> Vec<String>) -> Self {
        // Another process may take the port before the server does.
        let started = (0..10).find_map(|_| {
            let port = free_port();
            Self::try_start(port, arguments(port), clock_shim())
        });
        started.expect("redis-server did not start")
    }

    /// Starts a server that listens with TLS only; [`RedisServer::query`] uses a Unix socket.
    pub fn start_tls(arguments: &[String]) -> Self {
        Self::start_with_port(|port| {
            let port = port.to_string();
            let listen = ["--port", "0", "--tls-port", &port, "--unixsocket", "redis.sock"];
            [&owned(&listen), arguments].concat()
        })
    }

    /// Starts a server without the clock shim, for benchmarks.
    ///
    /// # Panics
    ///
    /// If the server does not start.
    pub fn start_without_clock_shim() -> Self {
        let started = (0..10).find_map(|_| Self::try_start(free_port(), vec![], Path::new("")));
        started.expect("redis-server did not start")
    }

    /// Starts a server on this port.
    ///
    /// # Panics
    ///
    /// If the server does not start.
    pub fn start_on(port: u16) -> Self {
        Self::try_start(port, vec![], clock_shim()).expect("redis-server did not start")
    }

    fn try_start(port: u16, arguments: Vec<String>, preload: &Path) -> Option<Self> {
        let dir = TempDir::new();
        let clock = dir.path("clock");
        std::fs::write(&clock, 0_u64.to_le_bytes()).expect("a clock file");
        let process = launch(port, &arguments, &dir, &clock, preload)?;
        Some(Self { process, port, arguments, clock, dir })
    }

    /// Returns the port that the server listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the URL of the server, with its password if it has one.
    pub fn url(&self) -> String {
        let scheme = self.argument("--tls-port").map_or("redis", |_| "rediss");
        let password = self.argument("--requirepass").map(|password| format!(":{password}@"));
        format!("{scheme}://{}127.0.0.1:{}", password.unwrap_or_default(), self.port)
    }

    /// Returns the value of a command-line argument. The last one counts, as in redis-server.
    pub fn argument(&self, name: &str) -> Option<&str> {
        let at = self.arguments.iter().rposition(|argument| argument == name)?;
        self.arguments.get(at + 1).map(String::as_str)
    }

    /// Sets the wall clock of the server to `now` and stops it there.
    pub fn set_clock(&self, now: Timestamp) {
        let file = File::options().write(true).open(&self.clock).expect("the clock file");
        file.write_all_at(&now.as_micros().to_le_bytes(), 0).expect("the clock file");
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill().expect("a running redis-server");
        self.process.wait().expect("a killed redis-server");
    }

    /// Restarts the server on the same port, without data.
    pub fn restart(&mut self) {
        self.process = launch(self.port, &self.arguments, &self.dir, &self.clock, clock_shim())
            .expect("redis-server did not start again");
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Opens a connection.
    pub fn connect(&self) -> Connection {
        self.client().get_connection().expect("a running redis-server")
    }

    /// Runs one command, such as `["GET", "key"]`.
    pub fn query<T: FromRedisValue>(&self, words: &[&str]) -> T {
        command(words).query(&mut self.connect()).expect("a reply of redis-server")
    }

    /// Runs one command on a server that may be dead, hung or failing.
    ///
    /// # Errors
    ///
    /// If the server does not reply within a second, or replies with an error.
    pub fn try_query<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        let timeout = Duration::from_secs(1);
        let mut connection = self.client().get_connection_with_timeout(timeout)?;
        connection.set_read_timeout(Some(timeout))?;
        command(words).query(&mut connection)
    }

    fn client(&self) -> Client {
        let Some(socket) = self.argument("--unixsocket") else {
            return Client::open(self.url()).expect("a valid url");
        };
        let password = self.argument("--requirepass").map(|password| format!("?pass={password}"));
        let socket = self.dir.path(socket);
        let url = format!("redis+unix://{}{}", socket.display(), password.unwrap_or_default());
        Client::open(url).expect("a valid url")
    }

    /// Returns `true` if the server responds and is a master.
    pub fn is_master(&self) -> bool {
        self.replication().contains("role:master")
    }

    /// Returns the number of online replicas, according to the master. A replica reports its link
    /// as up some time earlier.
    pub fn replicas_online(&self) -> usize {
        self.replication().matches("state=online").count()
    }

    /// Returns `true` if the server is a replica of this master and its link is up.
    pub fn follows(&self, master: &Self) -> bool {
        let (text, port) = (self.replication(), format!("master_port:{}\r", master.port));
        text.contains(&port) && text.contains("master_link_status:up")
    }

    /// Returns the replication section of INFO; empty if the server does not respond. A server that
    /// changes its role closes its connections.
    fn replication(&self) -> String {
        self.try_query(&["INFO", "replication"]).unwrap_or_default()
    }

    /// Returns all keys, sorted, without those that instances write now and then.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.query(&["KEYS", "*"]);
        keys.retain(|key| !is_registry(key));
        keys.sort();
        keys
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _already_gone = self.process.kill();
        let _already_gone = self.process.wait();
    }
}

/// Returns `true` if a key is one that instances write now and then: their registry, their counts,
/// or usage.
pub(crate) fn is_registry(key: &str) -> bool {
    key.split_once(':').is_some_and(|(_, name)| {
        name == "instances"
            || name == "fleet"
            || name.starts_with("usage:")
            || name.starts_with("p:") && name.contains(":usage:")
    })
}

/// Returns owned copies of arguments.
pub fn owned(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|&argument| argument.to_owned()).collect()
}

/// Returns a command, such as `["GET", "key"]`.
pub fn command(words: &[&str]) -> Cmd {
    let mut command = Cmd::new();
    for word in words {
        command.arg(word);
    }
    command
}

/// Returns a port that was free a moment ago.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("a bound port").port()
}

/// Returns the server program: the value of `TEST_REDIS_SERVER`, such as `valkey-server`, or
/// `redis-server`.
fn program() -> OsString {
    std::env::var_os("TEST_REDIS_SERVER").unwrap_or_else(|| "redis-server".into())
}

/// Starts a server and waits until it is ready; `None` if it exits before.
fn launch(
    port: u16,
    arguments: &[String],
    dir: &TempDir,
    clock: &Path,
    preload: &Path,
) -> Option<Child> {
    // redis-server requires a configuration file before the options.
    let options = arguments.iter().position(|argument| argument.starts_with("--"));
    let (file, options) = arguments.split_at(options.unwrap_or(arguments.len()));
    let mut process = Command::new(program())
        .args(file)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
        .args(["--enable-debug-command", "yes", "--dir"])
        .arg(dir.path("."))
        .args(options)
        .env("LD_PRELOAD", preload)
        .env("TEST_CLOCK_FILE", clock)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("no redis-server, or none of this name: see tests/run.sh");
    let mut lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
    let is_ready = |line: &str| READY.iter().any(|ready| line.contains(ready));
    let ready = lines.any(|line| line.is_ok_and(|line| is_ready(&line)));
    if !ready {
        let _already_gone = process.kill();
        process.wait().expect("an ended redis-server");
        return None;
    }
    // Keeps reading, so that the server never blocks on a full pipe.
    std::thread::spawn(move || lines.for_each(drop));
    Some(process)
}

/// Returns the library that moves the clock of a server, compiled once per test process.
pub fn clock_shim() -> &'static Path {
    static SHIM: OnceLock<PathBuf> = OnceLock::new();
    SHIM.get_or_init(|| {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/clock_shim.c");
        let library = target_tmp().join("clock_shim.so");
        let fresh = library.with_extension(std::process::id().to_string());
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .arg(&fresh)
            .arg(source)
            .status()
            .expect("no C compiler: apt-get install gcc, or run tests/run.sh");
        assert!(status.success(), "the clock shim does not compile");
        std::fs::rename(&fresh, &library).expect("a library in place");
        library
    })
}
