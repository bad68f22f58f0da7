//! The load, with prepared requests: frames of our own for single calls over gRPC, with ids that vary;
//! h2load for batches and HTTP.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use prost::Message;
use rlaas_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use rlaas_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use rlaas_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use rlaas_proto::ratelimit::v1::{CheckBatchRequest, CheckRequest};

use crate::contender::{Contender, Load};
use crate::frames::{self, FrameLoad, Report};
use rlaas_testkit::TempDir;

const CONNECTIONS: usize = 4;
const STREAMS: usize = 32;

/// The files of the requests.
pub(crate) struct Requests {
    dir: TempDir,
    check: Vec<u8>,
    batch: PathBuf,
    json: PathBuf,
    envoy: Vec<u8>,
}

impl Requests {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new();
        let (batch, json) = (dir.path("batch"), dir.path("json"));
        let request = |user: usize| CheckRequest {
            user_id: format!("user-{user:011}"),
            ..CheckRequest::default()
        };
        let requests = (0..100).map(request).collect();
        let requests = CheckBatchRequest { requests, decisions_wanted: Some(false) };
        std::fs::write(&batch, framed(&requests)).expect("a file");
        std::fs::write(&json, format!("{{\"userId\":\"user-{:011}\"}}", 1)).expect("a file");
        let (check, envoy) = (request(1).encode_to_vec(), one_descriptor().encode_to_vec());
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
        if let Some(frames) = self.frames(contender, seconds, None) {
            let report = frames::run(&frames).expect("responses");
            let [ok, shed, failed] = report.latencies.map(|latencies| latencies.len());
            assert_eq!((shed, failed), (0, 0), "{}: {ok} answers", contender.name);
            let answers = f64::from(u32::try_from(ok).expect("seconds"));
            return (answers, answers / report.elapsed.as_secs_f64());
        }
        let text = self.h2load(contender, &["-D", &seconds.to_string()]);
        let number = |after: &str, before: &str| -> Option<f64> {
            text.split(after).nth(1)?.split(before).next()?.trim().parse().ok()
        };
        let finished = text.lines().find(|line| line.starts_with("finished in "));
        let rate = finished.and_then(|line| line.split([' ', ',']).nth(4)?.parse().ok());
        let answers = number("status codes: ", " 2xx");
        answers.zip(rate).unwrap_or_else(|| panic!("no rate in {text}"))
    }

    /// Sends single calls at a rate per second.
    pub(crate) fn run_at_rate(&self, contender: &Contender, seconds: usize, rate: f64) -> Report {
        let frames = self.frames(contender, seconds, Some(rate)).expect("single calls");
        frames::run(&frames).expect("responses")
    }

    /// Returns the load of single calls over gRPC; `None` for others.
    fn frames(
        &self,
        contender: &Contender,
        seconds: usize,
        rate: Option<f64>,
    ) -> Option<FrameLoad> {
        let (path, body) = match contender.load {
            Load::Check => ("/ratelimit.v1.RateLimitService/Check", &self.check),
            Load::Envoy => {
                ("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", &self.envoy)
            }
            Load::Batch | Load::Json => return None,
        };
        let id = format!("{:011}", 1);
        let id_offset = body.windows(id.len()).position(|bytes| bytes == id.as_bytes());
        Some(FrameLoad {
            address: contender.address.clone(),
            path: path.to_owned(),
            connections: CONNECTIONS,
            streams: if rate.is_some() { 500 } else { STREAMS },
            duration: Duration::from_secs(seconds as u64),
            rate,
            body: body.clone(),
            id_offset: id_offset.expect("an id"),
            ids: 1000,
        })
    }

    fn h2load(&self, contender: &Contender, options: &[&str]) -> String {
        let grpc = ["-H", "content-type: application/grpc", "-H", "te: trailers"];
        let json = ["--h1", "-H", "content-type: application/json"];
        let (path, body, form) = match contender.load {
            Load::Batch => ("ratelimit.v1.RateLimitService/CheckBatch", &self.batch, &grpc[..]),
            Load::Json => ("v1/check", &self.json, &json[..]),
            Load::Check | Load::Envoy => unreachable!("single calls"),
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
