//! The program `rlaas`, started as users start it: on free ports, used over sockets.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rlaas_proto::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
use rlaas_proto::ratelimit::v1::{CheckRequest, CheckResponse};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::build_dir;

/// A client of the service.
pub type Client = RateLimitServiceClient<Channel>;

/// A running `rlaas serve`, killed on drop.
#[derive(Debug)]
pub struct Rlaas {
    process: Child,
    grpc: String,
    http: String,
    log: Arc<Mutex<String>>,
    logging: Option<JoinHandle<()>>,
}

impl Rlaas {
    /// Starts the service on free ports, with `--set` for each setting.
    ///
    /// # Panics
    ///
    /// If the service does not start.
    pub fn start(settings: &[&str]) -> Self {
        Self::start_with(rlaas(&["serve"]), settings)
    }

    /// Starts the service on free ports from a configuration file.
    pub fn start_from(file: &Path, settings: &[&str]) -> Self {
        let mut command = rlaas(&["serve", "--config"]);
        command.arg(file);
        Self::start_with(command, settings)
    }

    /// Starts the service on free ports with this command.
    pub fn start_with(mut command: Command, settings: &[&str]) -> Self {
        for setting in ["server.listen=127.0.0.1:0", "server.http=127.0.0.1:0"] {
            command.args(["--set", setting]);
        }
        for setting in settings {
            command.args(["--set", setting]);
        }
        let mut process =
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program");
        let mut lines = BufReader::new(process.stderr.take().expect("a pipe")).lines();
        let log = Arc::new(Mutex::new(String::new()));
        let mut serving = None;
        for line in lines.by_ref().map_while(Result::ok) {
            append(&log, &line);
            if line.contains(" serving ") || line.contains(r#""message":"serving""#) {
                serving = Some(line);
                break;
            }
        }
        let serving =
            serving.unwrap_or_else(|| panic!("the service did not start:\n{}", text(&log)));
        let kept = Arc::clone(&log);
        let logging = std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| append(&kept, &line));
        });
        let (grpc, http) = (field(&serving, "grpc"), field(&serving, "http"));
        Self { process, grpc, http, log, logging: Some(logging) }
    }

    /// Starts the service on this redis-server. The store timeout is so long that it does not
    /// matter unless a test sets it.
    pub fn on_redis(server: &crate::redis::RedisServer, settings: &[&str]) -> Self {
        let url = format!("store.redis.url={}", server.url());
        let always = ["store.backend=redis", &url, "store.redis.timeout=10s"];
        Self::start(&[&always, settings].concat())
    }

    /// Returns `host:port` of gRPC, or `unix:/path`; several are separated by commas.
    pub fn grpc(&self) -> &str {
        &self.grpc
    }

    /// Returns `host:port` of HTTP.
    pub fn http(&self) -> &str {
        &self.http
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        text(&self.log)
    }

    /// Returns the address of `server.metrics`.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn metrics_address(&self) -> String {
        let log = self.log();
        let serving = log.lines().find(|line| line.contains(" serving "));
        field(serving.expect("a server that serves"), "metrics")
    }

    /// Opens a connection.
    pub async fn channel(&self) -> Channel {
        connect(&self.grpc).await
    }

    /// Opens a client with its own connection.
    pub async fn client(&self) -> Client {
        Client::new(self.channel().await)
    }

    /// Sends a GET and returns status code and body.
    pub async fn get(&self, path: &str) -> (u16, String) {
        let (status, _, body) = self.get_with(path, "").await;
        (status, body)
    }

    /// Sends a GET with more headers, each with its line end, and returns status code, headers and
    /// body.
    pub async fn get_with(&self, path: &str, headers: &str) -> (u16, String, String) {
        let answer = match self.http.strip_prefix("unix:") {
            Some(socket) => get(UnixStream::connect(socket).await, path, headers).await,
            None => get(TcpStream::connect(&self.http).await, path, headers).await,
        };
        answer.unwrap_or_else(|error| panic!("no response: {error}\n{}", self.log()))
    }

    /// Sends a POST with a JSON body and returns status code and body.
    pub async fn post(&self, path: &str, body: &str) -> (u16, String) {
        let connection = TcpStream::connect(&self.http).await;
        let length = body.len();
        let head = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
        let answer = send_request("POST", connection, path, &head, body).await;
        let (status, _, body) =
            answer.unwrap_or_else(|error| panic!("no response: {error}\n{}", self.log()));
        (status, body)
    }

    /// Returns the value of a metric, by its name with labels.
    pub async fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = self.get("/metrics").await;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.parse().ok()
    }

    /// Returns the sum of a metric over all series that have these labels, such as `kind="lost"`.
    pub async fn metric_sum(&self, name: &str, labels: &[&str]) -> u64 {
        let (_, text) = self.get("/metrics").await;
        let value = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            let (of, with) = series.split_once('{').unwrap_or((series, ""));
            let fits = of == name && labels.iter().all(|label| with.contains(label));
            fits.then(|| value.parse::<u64>().ok())?
        };
        text.lines().filter_map(value).sum()
    }

    /// Returns the resident memory in KiB.
    pub fn resident_kib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.pid());
        let status = std::fs::read_to_string(path).expect("a running server");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        number.expect("the size of a process")
    }

    /// Returns the processor time so far, in hundredths of a second.
    pub fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        let stat = stat.expect("a running server");
        let fields = stat.rsplit(") ").next().expect("fields after the name").split(' ');
        fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends a signal, such as `TERM`.
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Waits for the end of the process and of its log.
    pub fn wait(&mut self) -> ExitStatus {
        let status = self.process.wait().expect("a child process");
        if let Some(logging) = self.logging.take() {
            logging.join().expect("no panic while reading the log");
        }
        status
    }

    /// Returns `true` if the process has ended.
    pub fn has_ended(&mut self) -> bool {
        self.process.try_wait().expect("a child process").is_some()
    }
}

impl Drop for Rlaas {
    fn drop(&mut self) {
        let _already_gone = self.process.kill();
        let _already_gone = self.process.wait();
    }
}

/// Opens a connection to `host:port` or `unix:/path`.
pub async fn connect(address: &str) -> Channel {
    let is_socket = address.starts_with("unix:");
    let url = if is_socket { address.to_owned() } else { format!("http://{address}") };
    let endpoint = Endpoint::from_shared(url).expect("an address");
    endpoint.timeout(Duration::from_secs(10)).connect().await.expect("a running server")
}

/// Returns the path of the program, which cargo builds for the tests and benchmarks of the package
/// `rlaas`.
///
/// # Panics
///
/// If the program has not been built.
pub fn program() -> PathBuf {
    let program = build_dir().join("rlaas");
    assert!(program.exists(), "no {}: cargo build", program.display());
    program
}

/// Returns a command for the program with these arguments, without the environment variables that
/// it reads.
pub fn rlaas(arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command
        .args(arguments)
        .env_remove("REDIS_URL")
        .env_remove("RUST_LOG")
        .env_remove("RLAAS_TOKEN")
        .env_remove("RLAAS_API_KEY");
    command
}

/// A configuration that listens on free ports: `check-config` warns of one that is taken.
pub const FREE_PORT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/free-port.yaml");

/// Runs a command of the program to its end. See [`finish`]. With `check-config` it is [`FREE_PORT`]
/// that holds unless a file names another.
pub fn run(arguments: &[&str]) -> (i32, String, String) {
    let mut arguments = arguments.to_vec();
    if arguments.len() > 1 && arguments[0] == "check-config" {
        arguments.insert(1, FREE_PORT);
    }
    finish(rlaas(&arguments).output().expect("the program"))
}

/// Returns (exit code, standard output, standard error).
pub fn finish(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

/// Sends a signal to a process. After `STOP` waits until each of its threads has stopped: on a busy
/// machine that takes a while, in which they go on.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status();
    assert!(status.expect("kill").success());
    while name == "STOP" && is_running(pid) {
        std::thread::yield_now();
    }
}

/// Returns `true` if a thread of the process has not stopped, as far as the system tells.
fn is_running(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().any(|thread| {
        let status = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the name, which may contain anything.
        status.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['T', 't', 'Z', 'X']))
    })
}

/// Returns a request with this user id and nothing else.
pub fn request(user_id: &str) -> CheckRequest {
    CheckRequest { user_id: user_id.to_owned(), ..CheckRequest::default() }
}

/// Sends one check.
pub async fn check(client: &mut Client, user_id: &str) -> Result<CheckResponse, Status> {
    client.check(request(user_id)).await.map(tonic::Response::into_inner)
}

/// Sends a GET over this connection.
async fn get(
    connection: io::Result<impl AsyncRead + AsyncWrite + Unpin>,
    path: &str,
    headers: &str,
) -> io::Result<(u16, String, String)> {
    send_request("GET", connection, path, headers, "").await
}

async fn send_request(
    method: &str,
    connection: io::Result<impl AsyncRead + AsyncWrite + Unpin>,
    path: &str,
    headers: &str,
    body: &str,
) -> io::Result<(u16, String, String)> {
    let mut connection = connection?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n{body}"
    );
    connection.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    connection.read_to_string(&mut response).await?;
    let status = response.split(' ').nth(1).and_then(|code| code.parse().ok());
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or_default();
    Ok((status.expect("a status"), head.to_owned(), body.to_owned()))
}

/// Returns a field of a log line, in text or JSON format.
fn field(line: &str, name: &str) -> String {
    if let Ok(object) = serde_json::from_str::<serde_json::Value>(line) {
        return object[name].as_str().expect("a text").to_owned();
    }
    let named = line.split(&format!("{name}=")).nth(1);
    let value = named.and_then(|rest| rest.split(' ').next());
    value.unwrap_or_else(|| panic!("no {name} in {line}")).to_owned()
}

fn append(log: &Mutex<String>, line: &str) {
    let mut log = log.lock().expect("no panic while appending");
    log.push_str(line);
    log.push('\n');
}

fn text(log: &Mutex<String>) -> String {
    log.lock().expect("no panic while appending").clone()
}
