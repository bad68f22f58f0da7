//! Metrics of the process, under the names that Prometheus' own clients use.
//!
//! They come from `/proc`. On systems other than Linux there are none.
//!
//! **Source:** proc(5); Prometheus, "Writing client libraries", Process metrics.

use std::sync::Arc;
use std::{fmt, fs};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use ring::rand::{SecureRandom, SystemRandom};

/// Unit of times in `/proc`, as the kernel reports it to programs.
const TICKS_PER_SECOND: f64 = 100.0;
const BYTES_PER_KIB: f64 = 1024.0;

/// Reads `/proc` whenever metrics are rendered.
#[derive(Debug)]
pub(super) struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stat = Stat::read();
        if let Some(seconds) = stat.cpu_seconds() {
            let (name, help) = ("process_cpu_seconds", "Total user and system CPU time in seconds");
            let encoder = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(seconds).encode(encoder)?;
        }
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let bytes = |field| number_after(&status, field).map(|kib| kib * BYTES_PER_KIB);
        for (name, help, value) in [
            (
                "process_start_time_seconds",
                "Start time in seconds since the Unix epoch",
                stat.start_seconds(),
            ),
            ("process_threads", "Number of threads", stat.field(20)),
            ("process_resident_memory_bytes", "Resident memory in bytes", bytes("VmRSS:")),
            ("process_virtual_memory_bytes", "Virtual memory in bytes", bytes("VmSize:")),
            ("process_open_fds", "Number of open file descriptors", open_files()),
            (
                "process_max_fds",
                "Maximum number of open file descriptors",
                number_after(&limits, "Max open files"),
            ),
        ] {
            if let Some(value) = value {
                let encoder = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                ConstGauge::new(value).encode(encoder)?;
            }
        }
        Ok(())
    }
}

/// `/proc/self/stat` from its third field on. The second is a name in brackets with arbitrary
/// characters.
struct Stat(String);

impl Stat {
    fn read() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        Self(stat.rsplit_once(')').map_or(String::new(), |(_, rest)| rest.to_owned()))
    }

    /// Returns a field by its number in proc(5).
    fn field(&self, number: usize) -> Option<f64> {
        self.0.split_whitespace().nth(number - 3)?.parse().ok()
    }

    /// Returns the time in user mode and in the kernel.
    fn cpu_seconds(&self) -> Option<f64> {
        Some((self.field(14)? + self.field(15)?) / TICKS_PER_SECOND)
    }

    fn start_seconds(&self) -> Option<f64> {
        let boot = number_after(&fs::read_to_string("/proc/stat").ok()?, "btime")?;
        Some(boot + self.field(22)? / TICKS_PER_SECOND)
    }
}

fn open_files() -> Option<f64> {
    // One of them is the directory itself.
    let open = fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1);
    u32::try_from(open).ok().map(f64::from)
}

/// Returns the number after `name` at the start of a line.
fn number_after(text: &str, name: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Id of an instance: host name and a random suffix. Each default is another one.
#[derive(Clone, Debug)]
pub struct InstanceId(Arc<str>);

impl Default for InstanceId {
    fn default() -> Self {
        let name = rustix::system::uname();
        let host = name.nodename().to_string_lossy();
        let host: String = host.chars().filter(|c| !c.is_control()).take(64).collect();
        let mut suffix = [0; 4];
        // Without random numbers the process id tells instances of one host apart.
        if SystemRandom::new().fill(&mut suffix).is_err() {
            suffix = std::process::id().to_be_bytes();
        }
        Self(format!("{host}-{:08x}", u32::from_be_bytes(suffix)).into())
    }
}

impl InstanceId {
    /// Returns the id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
