//! A real Prometheus that scrapes a running server, and promtool.

use std::fmt::Write;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::TempDir;
use crate::redis::free_port;

const MISSING: &str = "no prometheus: apt-get install prometheus, or run tests/run.sh";

/// A running Prometheus, killed on drop.
#[derive(Debug)]
pub struct Prometheus {
    process: Child,
    port: u16,
    _dir: TempDir,
}

impl Prometheus {
    /// Starts a Prometheus that scrapes `target` with the configuration of the project, four times
    /// a second.
    ///
    /// # Panics
    ///
    /// If prometheus is not installed, or does not start.
    pub fn start(target: &str) -> Self {
        Self::start_from(&config_file("prometheus.yaml"), "127.0.0.1:8080", target)
    }

    /// Starts a Prometheus as [`Prometheus::start`], with this configuration, whose target is
    /// `known`.
    ///
    /// # Panics
    ///
    /// As [`Prometheus::start`].
    pub fn start_from(file: &Path, known: &str, target: &str) -> Self {
        let dir = TempDir::new();
        let example = std::fs::read_to_string(file).expect("a configuration");
        let quick = example.replace(": 15s", ": 250ms");
        assert!(quick != example && quick.contains(known), "{example}");
        let file = dir.write("prometheus.yaml", &quick.replace(known, target));
        std::fs::copy(config_file("alerts.yaml"), dir.path("alerts.yaml")).expect("the alerts");
        // Another process may take the port before Prometheus does.
        let started = (0..10).find_map(|_| {
            let port = free_port();
            Some((launch(port, &file, &dir)?, port))
        });
        let (process, port) = started.expect("prometheus did not start");
        Self { process, port, _dir: dir }
    }

    /// Returns the current values of a query, or its error.
    pub async fn query(&self, query: &str) -> Result<Vec<f64>, String> {
        let answer = self.get(&format!("/api/v1/query?query={}", percent_encoded(query))).await;
        if answer["status"] != "success" {
            return Err(answer["error"].to_string());
        }
        let result = &answer["data"]["result"];
        let number = |value: &Value| value[1].as_str()?.parse().ok();
        Ok(match answer["data"]["resultType"].as_str() {
            Some("scalar") => number(result).into_iter().collect(),
            _ => result
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|series| number(&series["value"]))
                .collect(),
        })
    }

    /// Returns the response of the API at this path.
    pub async fn get(&self, path: &str) -> Value {
        let connection = TcpStream::connect(("127.0.0.1", self.port)).await;
        let mut connection = connection.expect("a running prometheus");
        // With HTTP/1.0 the body is not chunked.
        let request = format!("GET {path} HTTP/1.0\r\nHost: test\r\n\r\n");
        connection.write_all(request.as_bytes()).await.expect("a request");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.expect("an answer");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _already_gone = self.process.kill();
        let _already_gone = self.process.wait();
    }
}

/// Runs promtool.
pub fn promtool(arguments: &[&str], stdin: Stdio) {
    let mut command = Command::new("promtool");
    let output = command.args(arguments).stdin(stdin).output().expect(MISSING);
    let (out, error) = (&output.stdout, &output.stderr);
    let text = [String::from_utf8_lossy(out), String::from_utf8_lossy(error)].concat();
    assert!(output.status.success(), "promtool {}: {text}", arguments.join(" "));
}

/// Returns the path of a file in `config/prometheus`.
pub fn config_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/prometheus").join(name)
}

/// Starts Prometheus and waits until it is ready; `None` if it exits before.
fn launch(port: u16, file: &Path, dir: &TempDir) -> Option<Child> {
    let mut process = Command::new("prometheus")
        .arg(format!("--config.file={}", file.display()))
        .arg(format!("--storage.tsdb.path={}", dir.path(&format!("data-{port}")).display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect(MISSING);
    let mut lines = BufReader::new(process.stderr.take().expect("a pipe")).lines();
    let is_ready = |line: &str| line.contains("Server is ready to receive web requests");
    if !lines.any(|line| line.is_ok_and(|line| is_ready(&line))) {
        let _already_gone = process.kill();
        process.wait().expect("an ended prometheus");
        return None;
    }
    // Keeps reading, so that Prometheus never blocks on a full pipe.
    std::thread::spawn(move || lines.for_each(drop));
    Some(process)
}

fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        let _infallible = write!(encoded, "%{byte:02X}");
        encoded
    })
}
