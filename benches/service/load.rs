//! The load: h2load, with a prepared request.

use std::path::{Path, PathBuf};
use std::process::Command;

use prost::Message;
use rlaas_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use rlaas_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use rlaas_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use rlaas_proto::ratelimit::v1::{CheckBatchRequest, CheckRequest};

use crate::contender::{Contender, Load};
use rlaas_testkit::TempDir;

const CONNECTIONS: usize = 4;
const STREAMS: usize = 32;

/// The files of the requests.
pub(crate) struct Requests {
    dir: TempDir,
    check: PathBuf,
    batch: PathBuf,
    json: PathBuf,
    envoy: PathBuf,
}

impl Requests {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new();
        let (check, batch) = (dir.path("check"), dir.path("batch"));
        let (json, envoy) = (dir.path("json"), dir.path("envoy"));
        let request = |user: usize| CheckRequest {
            user_id: format!("user-{user:011}"),
            ..CheckRequest::default()
        };
        std::fs::write(&check, framed(&request(1))).expect("a file");
        let requests = (0..100).map(request).collect();
        let requests = CheckBatchRequest { requests, decisions_wanted: Some(false) };
        std::fs::write(&batch, framed(&requests)).expect("a file");
        std::fs::write(&json, format!("{{\"userId\":\"user-{:011}\"}}", 1)).expect("a file");
        std::fs::write(&envoy, framed(&one_descriptor())).expect("a file");
        Self { dir, check, batch, json, envoy }
    }

    /// Writes rules for the descriptor, with a limit so high that no request is denied.
    pub(crate) fn rules(&self) -> String {
        let rules = "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: { unit: minute, \
                     requests_per_unit: 1000000000 }\n";
        self.dir.write("rules.yaml", rules).display().to_string()
    }

    /// Sends as many calls as possible. Returns the responses and their rate per second.
    pub(crate) fn run_closed_loop(&self, contender: &Contender, seconds: usize) -> (f64, f64) {
        let text = self.h2load(contender, &["-D", &seconds.to_string()]);
        let number = |after: &str, before: &str| -> Option<f64> {
            text.split(after).nth(1)?.split(before).next()?.trim().parse().ok()
        };
        let finished = text.lines().find(|line| line.starts_with("finished in "));
        let rate = finished.and_then(|line| line.split([' ', ',']).nth(4)?.parse().ok());
        let answers = number("status codes: ", " 2xx");
        answers.zip(rate).unwrap_or_else(|| panic!("no rate in {text}"))
    }

    /// Sends calls at a rate per second. Returns the latencies in microseconds, ascending.
    pub(crate) fn run_at_rate(&self, contender: &Contender, seconds: usize, rate: f64) -> Vec<f64> {
        let log = self.dir.path("log");
        let each = format!("{:.0}", rate / CONNECTIONS as f64);
        let path = log.to_string_lossy().into_owned();
        self.h2load(contender, &["-D", &seconds.to_string(), "--rps", &each, "--log-file", &path]);
        let log = std::fs::read_to_string(&log).expect("a log");
        let latency = |line: &str| line.split('\t').nth(2)?.parse().ok();
        let mut latencies: Vec<f64> = log.lines().filter_map(latency).collect();
        latencies.sort_by(f64::total_cmp);
        latencies
    }

    fn h2load(&self, contender: &Contender, options: &[&str]) -> String {
        let grpc = ["-H", "content-type: application/grpc", "-H", "te: trailers"];
        let json = ["--h1", "-H", "content-type: application/json"];
        let (path, body, form) = match contender.load {
            Load::Check => ("ratelimit.v1.RateLimitService/Check", &self.check, &grpc[..]),
            Load::Batch => ("ratelimit.v1.RateLimitService/CheckBatch", &self.batch, &grpc[..]),
            Load::Envoy => {
                let path = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
                (path, &self.envoy, &grpc[..])
            }
            Load::Json => ("v1/check", &self.json, &json[..]),
        };
        // HTTP/1.1 has one request in flight per connection.
        let streams = if contender.load == Load::Json { 1 } else { STREAMS };
        let connections = CONNECTIONS * STREAMS / streams;
        let url = format!("http://{}/{path}", contender.address);
        let output = Command::new("h2load")
            .args(["-c", &connections.to_string(), "-m", &streams.to_string(), "-t", "1"])
            .args(form)
            .args(options)
            .arg("-d")
            .arg(body as &Path)
            .arg(url)
            .output()
            .expect("h2load");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains(" 0 failed, 0 errored, 0 timeout"), "{text}");
        text
    }
}

/// Returns the request that Envoy sends for a header with the user.
fn one_descriptor() -> RateLimitRequest {
    let entry = Entry { key: "user".to_owned(), value: format!("user-{:011}", 1) };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    RateLimitRequest {
        domain: "shop".to_owned(),
        descriptors: vec![descriptor],
        ..RateLimitRequest::default()
    }
}

/// Frames a gRPC message: flag for no compression, length, message.
fn framed(message: &impl Message) -> Vec<u8> {
    let bytes = message.encode_to_vec();
    let length = u32::try_from(bytes.len()).expect("a short message");
    [&[0][..], &length.to_be_bytes(), &bytes].concat()
}
