//! Servers under test, each a process of its own.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rlaas_testkit::process;
use rlaas_testkit::redis::RedisServer;

/// A server under test and its measurements.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    process: Child,
    pub(crate) address: String,
    pub(crate) load: Load,
    /// Seconds from the start of the process to the log entry with its address.
    pub(crate) start: f64,
    /// Responses per second, by round.
    pub(crate) rates: Vec<f64>,
    /// Microseconds of processor time per response, by round.
    pub(crate) costs: Vec<f64>,
    /// The processes of its Redis servers, if their processor time is measured too.
    redis: Vec<u32>,
    /// Microseconds of processor time of all Redis servers per response, by round.
    pub(crate) redis_costs: Vec<f64>,
}

/// The call that the load makes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    Check,
    Batch,
    /// `POST /v1/check`.
    Json,
    /// `ShouldRateLimit` of Envoy's service.
    Envoy,
}

impl Contender {
    /// Starts this program as a server: the echo.
    pub(crate) fn own(name: &'static str, arguments: &[&str]) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        Self::start(name, Load::Check, command.args(arguments))
    }

    pub(crate) fn rlaas(name: &'static str, load: Load, settings: &[&str]) -> Self {
        let mut command = process::rlaas(&["serve"]);
        let always = ["server.listen=127.0.0.1:0", "server.http=127.0.0.1:0", "server.workers=1"];
        for setting in always.iter().chain(settings) {
            command.args(["--set", setting]);
        }
        Self::start(name, load, &mut command)
    }

    #[expect(clippy::disallowed_methods, reason = "measures")]
    fn start(name: &'static str, load: Load, command: &mut Command) -> Self {
        let started = Instant::now();
        let mut process =
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("a server");
        let mut lines = BufReader::new(process.stderr.take().expect("a pipe")).lines();
        let serving = lines.by_ref().map_while(Result::ok).find(|line| line.contains(" serving "));
        let start = started.elapsed().as_secs_f64();
        let field = if load == Load::Json { "http=" } else { "grpc=" };
        let address = serving.as_ref().and_then(|line| line.split(field).nth(1)?.split(' ').next());
        let address = address.expect("an address").to_owned();
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            name,
            process,
            address,
            load,
            start,
            rates: Vec::new(),
            costs: Vec::new(),
            redis: Vec::new(),
            redis_costs: Vec::new(),
        }
    }

    /// Measures the processor time of these Redis servers too.
    pub(crate) fn with_redis(mut self, servers: &[&RedisServer]) -> Self {
        self.redis = servers.iter().map(|server| server.pid()).collect();
        self
    }

    /// Returns the processor time of all threads of the server so far, in seconds.
    pub(crate) fn processor_seconds(&self) -> f64 {
        processor_seconds(self.process.id())
    }

    /// Returns the processor time of its Redis servers so far, in seconds.
    pub(crate) fn redis_seconds(&self) -> f64 {
        self.redis.iter().copied().map(processor_seconds).sum()
    }
}

fn processor_seconds(process: u32) -> f64 {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
    let stat = stat.expect("a running process");
    let fields = stat.rsplit(") ").next().expect("fields after the name").split(' ');
    let ticks: Vec<f64> = fields.skip(11).take(2).filter_map(|field| field.parse().ok()).collect();
    ticks.iter().sum::<f64>() / TICKS_PER_SECOND
}

impl Drop for Contender {
    fn drop(&mut self) {
        let _already_gone = self.process.kill();
        let _already_gone = self.process.wait();
    }
}
