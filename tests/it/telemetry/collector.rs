//! Metrics and traces, as the OTLP receiver of the OpenTelemetry collector accepts them: a program
//! in Go, from `tests/collector`, which `COLLECTOR=1` builds once, in about a minute.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};

use serde_json::{Value, json};

use super::traces::{TIMEOUT, count_five_checks};
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::free_port;
use rlaas_testkit::tls::{Certificate, Certificates};
use rlaas_testkit::tools::{cache_dir, fetch, finish, left_out, skipped};
use rlaas_testkit::{TempDir, eventually};

const TOKEN: &str = "Bearer s3cret-token";

/// A running collector, killed on drop.
struct CollectorProcess {
    process: Child,
    port: u16,
    exports: Arc<Mutex<Vec<Value>>>,
}

impl CollectorProcess {
    /// Starts a collector with these settings of TLS. Returns `None` and reports the skipped test
    /// if it can't be built.
    async fn start(tls: &Value) -> Option<Self> {
        let program = program()?;
        for _ in 0..10 {
            // Another process may take the port before the collector does.
            let mut collector = Self::launch(&program, free_port(), tls);
            let mut has_ended = false;
            let is_up = async || {
                has_ended = collector.process.try_wait().expect("a process").is_some();
                has_ended
                    || tokio::net::TcpStream::connect(("127.0.0.1", collector.port)).await.is_ok()
            };
            eventually("the collector listens", TIMEOUT, is_up).await;
            if !has_ended {
                return Some(collector);
            }
        }
        panic!("the collector did not start");
    }

    fn launch(program: &Path, port: u16, tls: &Value) -> Self {
        let grpc = json!({
            "endpoint": format!("127.0.0.1:{port}"), "include_metadata": true, "tls": tls,
        });
        let mut command = Command::new(program);
        command.arg(json!({ "protocols": { "grpc": grpc } }).to_string());
        let mut process = command.stdout(Stdio::piped()).spawn().expect("the collector");
        let lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let exports = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&exports);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let export = serde_json::from_str(&line).expect("JSON");
                all.lock().expect("no panic").push(export);
            }
        });
        Self { process, port, exports }
    }

    /// Waits until there are exports of both kinds, and returns all.
    async fn exports(&self) -> Vec<Value> {
        let exports = || self.exports.lock().expect("no panic").clone();
        let has = |kind: &str| exports().iter().any(|export| !export[kind].is_null());
        eventually("both are received", TIMEOUT, async || has("metrics") && has("traces")).await;
        exports()
    }
}

impl Drop for CollectorProcess {
    fn drop(&mut self) {
        let _already_gone = self.process.kill();
        let _already_gone = self.process.wait();
    }
}

/// Returns the collector, built once; or reports the test as skipped.
fn program() -> Option<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    if std::env::var_os("COLLECTOR").is_none() {
        // The build is long, so NO_SKIP does not ask for it.
        left_out("tests/collector", "COLLECTOR is not set");
        return None;
    }
    match BUILT.get_or_init(build) {
        Ok(program) => Some(program.clone()),
        Err(why) => {
            skipped("tests/collector", why);
            None
        }
    }
}

/// Builds the collector. A build that fails is a failure; modules that can't be fetched are not.
fn build() -> Result<PathBuf, String> {
    let folder = cache_dir("collector");
    let go = |arguments: &[&str]| {
        let mut go = Command::new("go");
        go.args(arguments)
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/collector"));
        go.envs([("GOFLAGS", "-modcacherw"), ("GOTOOLCHAIN", "local")]);
        go.env("GOMODCACHE", folder.join("go")).env("GOCACHE", folder.join("build"));
        go
    };
    fetch(&go(&["mod", "download"]))?;
    let program = folder.join("collector");
    let output = program.display().to_string();
    finish(&mut go(&["build", "-o", &output, "."])).unwrap_or_else(|error| panic!("{error}"));
    Ok(program)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns the text of an attribute.
fn attribute<'a>(of: &'a Value, name: &str) -> Option<&'a str> {
    let found = list(&of["attributes"]).iter().find(|attribute| attribute["key"] == name)?;
    found["value"]["stringValue"].as_str()
}

/// Checks that a resource is rlaas.
fn check_resource(resource: &Value) {
    let resource = &resource["resource"];
    assert_eq!(attribute(resource, "service.name"), Some("rlaas"), "{resource}");
    assert_eq!(attribute(resource, "service.version"), Some(env!("CARGO_PKG_VERSION")));
    assert!(attribute(resource, "service.instance.id").is_some_and(|id| !id.is_empty()));
}

/// Checks the spans of five checks.
fn check_traces(exports: &[Value]) {
    let mut spans = Vec::new();
    for resource in exports.iter().flat_map(|export| list(&export["traces"]["resourceSpans"])) {
        check_resource(resource);
        spans.extend(list(&resource["scopeSpans"]).iter().flat_map(|scope| list(&scope["spans"])));
    }
    assert_eq!(spans.len(), 5, "{spans:?}");
    for span in spans {
        assert_eq!(span["name"], "ratelimit.v1.RateLimitService/Check");
        assert_eq!(span["traceId"].as_str().map(str::len), Some(32), "{span}");
        assert_eq!(span["kind"], 2, "a server");
    }
}

/// Checks that the last export of metrics has those of `/metrics`, and counts five checks.
fn check_metrics(exports: &[Value], scraped: &str) {
    let export = exports.iter().rfind(|export| !export["metrics"].is_null()).expect("metrics");
    let [resource] = list(&export["metrics"]["resourceMetrics"]) else { panic!("{export}") };
    check_resource(resource);
    let metrics =
        || list(&resource["scopeMetrics"]).iter().flat_map(|scope| list(&scope["metrics"]));
    let names: BTreeSet<&str> = metrics().filter_map(|metric| metric["name"].as_str()).collect();
    let typed = scraped.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let typed = typed.filter_map(|line| line.split(' ').next());
    let has_series =
        |name: &&str| scraped.lines().any(|line| !line.starts_with('#') && line.starts_with(name));
    assert_eq!(names, typed.filter(has_series).collect(), "the names are those of /metrics");

    let decisions = metrics().find(|metric| metric["name"] == "rlaas_decisions_total");
    let sum = &decisions.expect("decisions")["sum"];
    assert_eq!((&sum["aggregationTemporality"], &sum["isMonotonic"]), (&2.into(), &true.into()));
    let counted = |outcome: &str| {
        let points = list(&sum["dataPoints"]).iter();
        let points = points.filter(|point| attribute(point, "outcome") == Some(outcome));
        points.filter_map(|point| point["asDouble"].as_f64()).sum::<f64>().to_string()
    };
    assert_eq!(["allowed", "denied"].map(counted), ["2", "3"], "{sum}");
}

/// Sends five checks to a server with these settings, and checks what the collector has received.
async fn assert_receives(collector: &CollectorProcess, settings: &str) {
    let text = format!(
        "telemetry:\n  otlp:\n    headers: {{authorization: '{TOKEN}'}}\n    metrics: true\n    \
         metrics-interval: 1h\n    {settings}\n"
    );
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", &text);
    let server = Rlaas::start_from(&file, &["rate-limiter.max-requests=2"]);
    let scraped = count_five_checks(server).await;
    let exports = collector.exports().await;
    for export in &exports {
        assert_eq!(export["authorization"], json!([TOKEN]), "{export}");
    }
    check_traces(&exports);
    check_metrics(&exports, &scraped);
}

#[tokio::test]
async fn collector_receives_metrics_and_traces_over_tls() {
    let certificates = Certificates::make();
    let path = |path: PathBuf| path.display().to_string();
    let tls = json!({
        "cert_file": path(certificates.certificate(Certificate::Server)),
        "key_file": path(certificates.key(Certificate::Server)),
    });
    let Some(collector) = CollectorProcess::start(&tls).await else { return };
    let ca = path(certificates.authority());
    let port = collector.port;
    assert_receives(&collector, &format!("endpoint: 'https://localhost:{port}'\n    ca: {ca}"))
        .await;
}

#[tokio::test]
async fn collector_receives_metrics_and_traces_without_tls() {
    let Some(collector) = CollectorProcess::start(&Value::Null).await else { return };
    let endpoint = format!("endpoint: 'http://127.0.0.1:{}'", collector.port);
    assert_receives(&collector, &endpoint).await;
}
