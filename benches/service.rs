//! The whole service against a bare tonic echo: answers per second as ratios, in one run.
//!
//! ```sh
//! cargo bench --bench service                 # needs h2load: apt-get install nghttp2-client
//! cargo bench --bench service -- --seconds 5 --rounds 5
//! ```
//!
//! The echo is a tonic server with the same messages, the same HTTP/2 settings and the same layout of
//! threads, which answers every Check with a ready answer: what remains is what deciding costs. The
//! load comes from h2load, 4 connections with 32 streams each, which costs a fraction of a tonic
//! client. Servers are measured in turn, round after round, and the medians are compared: these
//! machines are noisy. With two cores the server has one and the load the other. Where the load is
//! the slower side, the server's own processor time for an answer tells more than the rate.

#[path = "../tests/common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use common::TempDir;
use common::redis::RedisServer;
use prost::Message;
use rlaas::api::proto::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use rlaas::api::proto::{
    CheckBatchRequest, CheckBatchResponse, CheckRequest, CheckResponse, CheckResult,
    GetConfigRequest, GetConfigResponse, RuleDecision,
};
use tokio_stream::Empty;
use tonic::{Request, Response, Status, Streaming};

/// As the service has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CONNECTIONS: usize = 4;
const STREAMS: usize = 32;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.iter().any(|argument| argument == "--echo") {
        return echo();
    }
    let found = Command::new("h2load").arg("--version").stdout(Stdio::null()).status();
    assert!(found.is_ok(), "no h2load: apt-get install nghttp2-client");
    let number = |name: &str, default: usize| {
        let position = arguments.iter().position(|argument| argument == name);
        let value = position.and_then(|position| arguments.get(position + 1)?.parse().ok());
        value.unwrap_or(default)
    };
    let (seconds, rounds) = (number("--seconds", 3), number("--rounds", 5));
    compare(seconds, rounds);
}

/// A server under test.
struct Contender {
    name: &'static str,
    process: Child,
    address: String,
    load: Load,
    rates: Vec<f64>,
    /// Microseconds of processor time for one answer.
    costs: Vec<f64>,
}

/// What is asked.
#[derive(Clone, Copy)]
enum Load {
    Check,
    Batch,
}

fn compare(seconds: usize, rounds: usize) {
    let redis = RedisServer::start_unmoved();
    let url = format!("store.redis.url={}", redis.url());
    let wide = ["rate-limiter.max-requests=1000000000", "rate-limiter.use-algo=fixed-window"];
    let memory = |load, name| Contender::rlaas(name, load, &wide);
    let on_redis = [&wide[..], &["store.backend=redis", &url, "store.redis.timeout=1s"]].concat();
    let mut contenders = [
        Contender::echo(),
        memory(Load::Check, "Check, memory"),
        Contender::rlaas("Check, Redis", Load::Check, &on_redis),
        memory(Load::Batch, "CheckBatch of 100, memory"),
    ];
    let dir = TempDir::new();
    let check = dir.path("check");
    let batch = dir.path("batch");
    let request = |user: usize| CheckRequest {
        user_id: format!("user-{user:011}"),
        ..CheckRequest::default()
    };
    std::fs::write(&check, framed(&request(1))).expect("a file");
    let requests = CheckBatchRequest { requests: (0..100).map(request).collect() };
    std::fs::write(&batch, framed(&requests)).expect("a file");

    for round in 0..=rounds {
        for contender in &mut contenders {
            let (path, file) = match contender.load {
                Load::Check => ("Check", &check),
                Load::Batch => ("CheckBatch", &batch),
            };
            let url = format!("http://{}/ratelimit.v1.RateLimitService/{path}", contender.address);
            let before = processor_seconds(contender.process.id());
            let (answers, rate) = h2load(&url, file, seconds);
            let spent = processor_seconds(contender.process.id()) - before;
            // The first round warms up.
            if round > 0 {
                contender.rates.push(rate);
                contender.costs.push(spent * 1e6 / answers);
            }
        }
        eprintln!("round {round} of {rounds}");
    }
    println!("| what | per second | against the echo | processor µs each | against the echo |");
    println!("| --- | --- | --- | --- | --- |");
    let echo = (median(&mut contenders[0].rates), median(&mut contenders[0].costs));
    for contender in &mut contenders {
        let (name, rate, cost) =
            (contender.name, median(&mut contender.rates), median(&mut contender.costs));
        match contender.load {
            Load::Check => println!(
                "| {name} | {rate:.0} | {:.2} | {cost:.2} | {:.2} |",
                rate / echo.0,
                echo.1 / cost
            ),
            Load::Batch => {
                println!(
                    "| {name} | {:.0} decisions | – | {:.3} | – |",
                    rate * 100.0,
                    cost / 100.0
                );
            }
        }
    }
}

impl Contender {
    fn echo() -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.arg("--echo");
        Self::start("bare tonic echo", Load::Check, &mut command)
    }

    fn rlaas(name: &'static str, load: Load, settings: &[&str]) -> Self {
        let mut command = common::process::rlaas(&["serve"]);
        let always = ["server.listen=127.0.0.1:0", "server.http=127.0.0.1:0", "server.workers=1"];
        for setting in always.iter().chain(settings) {
            command.args(["--set", setting]);
        }
        Self::start(name, load, &mut command)
    }

    fn start(name: &'static str, load: Load, command: &mut Command) -> Self {
        let mut process =
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("a server");
        let mut lines = BufReader::new(process.stderr.take().expect("a pipe")).lines();
        let serving = lines.by_ref().map_while(Result::ok).find(|line| line.contains(" serving "));
        let address =
            serving.as_ref().and_then(|line| line.split("grpc=").nth(1)?.split(' ').next());
        let address = address.expect("an address").to_owned();
        std::thread::spawn(move || lines.for_each(drop));
        Self { name, process, address, load, rates: Vec::new(), costs: Vec::new() }
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        let _already_gone = self.process.kill();
        let _already_gone = self.process.wait();
    }
}

/// Answers that h2load got, all of them with status 200, and how many in a second.
fn h2load(url: &str, body: &std::path::Path, seconds: usize) -> (f64, f64) {
    let output = Command::new("h2load")
        .args(["-c", &CONNECTIONS.to_string(), "-m", &STREAMS.to_string(), "-t", "1"])
        .args(["-D", &seconds.to_string(), "-H", "content-type: application/grpc"])
        .args(["-H", "te: trailers", "-d"])
        .arg(body)
        .arg(url)
        .output()
        .expect("h2load");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(" 0 failed, 0 errored, 0 timeout"), "{text}");
    let number = |after: &str, before: &str| -> Option<f64> {
        text.split(after).nth(1)?.split(before).next()?.trim().parse().ok()
    };
    let finished = text.lines().find(|line| line.starts_with("finished in "));
    let rate = finished.and_then(|line| line.split([' ', ',']).nth(4)?.parse().ok());
    let answers = number("status codes: ", " 2xx");
    answers.zip(rate).unwrap_or_else(|| panic!("no rate in {text}"))
}

/// What a process has used so far, all threads.
fn processor_seconds(pid: u32) -> f64 {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a running process");
    let fields = stat.rsplit(") ").next().expect("fields after the name").split(' ');
    let ticks: Vec<f64> = fields.skip(11).take(2).filter_map(|field| field.parse().ok()).collect();
    ticks.iter().sum::<f64>() / TICKS_PER_SECOND
}

/// A gRPC message: no compression, its length, itself.
fn framed(message: &impl Message) -> Vec<u8> {
    let bytes = message.encode_to_vec();
    let length = u32::try_from(bytes.len()).expect("a short message");
    [&[0][..], &length.to_be_bytes(), &bytes].concat()
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Serves the ready answer until it is killed.
fn echo() {
    let answer = CheckResponse {
        allowed: true,
        current_count: 1,
        ttl: 60,
        limit: 1_000_000_000,
        remaining: 999_999_999,
        reset_after: Some(prost_types::Duration { seconds: 59, nanos: 999_000_000 }),
        rule: "default".to_owned(),
        algorithm: 1,
        source: 1,
        reason: 1,
        decisions: vec![RuleDecision {
            rule: "default".to_owned(),
            algorithm: 1,
            allowed: true,
            current_count: 1,
            ttl: 60,
            limit: 1_000_000_000,
            remaining: 999_999_999,
            reset_after: Some(prost_types::Duration { seconds: 59, nanos: 999_000_000 }),
            reason: 1,
            ..RuleDecision::default()
        }],
        ..CheckResponse::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("an address");
        eprintln!(" serving grpc={} ", listener.local_addr().expect("an address"));
        let connections = tokio_stream::wrappers::TcpListenerStream::new(listener);
        let connections = tokio_stream::StreamExt::map(connections, |connection| {
            connection.inspect(|connection| drop(connection.set_nodelay(true)))
        });
        let service = RateLimitServiceServer::new(Echo(answer));
        tonic::transport::Server::builder()
            .max_concurrent_streams(1024)
            .add_service(service)
            .serve_with_incoming(connections)
            .await
            .expect("a server");
    });
}

struct Echo(CheckResponse);

#[tonic::async_trait]
impl RateLimitService for Echo {
    type CheckStreamStream = Empty<Result<CheckResult, Status>>;

    async fn check(&self, _: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        Ok(Response::new(self.0.clone()))
    }

    async fn check_batch(
        &self,
        _: Request<CheckBatchRequest>,
    ) -> Result<Response<CheckBatchResponse>, Status> {
        Err(Status::unimplemented("an echo"))
    }

    async fn check_stream(
        &self,
        _: Request<Streaming<CheckRequest>>,
    ) -> Result<Response<Self::CheckStreamStream>, Status> {
        Err(Status::unimplemented("an echo"))
    }

    async fn get_config(
        &self,
        _: Request<GetConfigRequest>,
    ) -> Result<Response<GetConfigResponse>, Status> {
        Err(Status::unimplemented("an echo"))
    }
}
