//! Cost of a decision by algorithm. Prints a table of `benches/README.md`.
//!
//! ```sh
//! cargo bench --bench algorithms
//! ```
//!
//! Memory: nanoseconds from request to verdict, for 1,000 ids in turn on one thread, median of five
//! runs; and resident bytes per id, for 1,000,000 ids of 16 bytes with one request each. Redis:
//! microseconds of server time per decision, with 1 and with 32 decisions per call, and bytes per
//! key, as a redis-server reports times and bytes.

#![expect(clippy::cast_precision_loss, reason = "small counts, shown with few digits")]

use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use rlaas::algorithm::Algorithm;
use rlaas::clock::{Clock, Micros};
use rlaas::rules::RuleSet;
use rlaas::store::{MemorySettings, MemoryStore, Store};
use rlaas_limiter::Limiter;
use rlaas_telemetry::metrics::Metrics;
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::rules;
use rlaas_testkit::service::Service;

/// The allocator of the service.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const IDS: usize = 1_000;
const ROUNDS: usize = 200;
const RESIDENT_IDS: usize = 1_000_000;
const REDIS_CALLS: usize = 20_000;
/// Decisions per call when as many checks run at the same time.
const TOGETHER: usize = 32;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    // This program runs itself, because resident memory is measured in a fresh process.
    let algorithm = std::env::args().skip_while(|argument| argument != "--resident").nth(1);
    if let Some(algorithm) = algorithm.and_then(|name| Algorithm::from_name(&name)) {
        println!("{}", bytes_in_memory(&rules(algorithm, 100, Micros::from_secs(60))).await);
        return;
    }
    println!(
        "| algorithm | memory: ns/decision | bytes/id | Redis: µs/decision | {TOGETHER} per call | bytes/key |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for algorithm in Algorithm::RATES {
        let rules = rules(*algorithm, 100, Micros::from_secs(60));
        let nanos = nanos_in_memory(&rules).await;
        let bytes = bytes_in_a_fresh_process(*algorithm);
        let (alone, together, key_bytes) = on_redis(&rules).await;
        let name = algorithm.name();
        println!("| {name} | {nanos:.0} | {bytes:.0} | {alone:.1} | {together:.1} | {key_bytes} |");
    }
}

fn in_memory(rules: &RuleSet) -> Service {
    let metrics = Arc::new(Metrics::new());
    let settings = MemorySettings { max_keys: 2_000_000 };
    let store = MemoryStore::new(settings, Clock::default(), metrics.clone());
    let limiter = Limiter::new(rules.clone(), Store::Memory(store), metrics.clone());
    Service::with(limiter, metrics)
}

async fn nanos_in_memory(rules: &RuleSet) -> f64 {
    let service = in_memory(rules);
    let ids: Vec<String> = (0..IDS).map(|id| format!("{id:016}")).collect();
    let mut runs = Vec::new();
    for _ in 0..5 {
        #[expect(clippy::disallowed_methods, reason = "measures")]
        let started = Instant::now();
        for _ in 0..ROUNDS {
            for id in &ids {
                black_box(service.check(id).await);
            }
        }
        runs.push(started.elapsed().as_secs_f64() * 1e9 / (ROUNDS * IDS) as f64);
    }
    runs.sort_by(f64::total_cmp);
    runs[2]
}

async fn bytes_in_memory(rules: &RuleSet) -> f64 {
    let service = in_memory(rules);
    let before = resident_bytes();
    for id in 0..RESIDENT_IDS {
        service.check(&format!("{id:016}")).await;
    }
    (resident_bytes() - before) / RESIDENT_IDS as f64
}

fn bytes_in_a_fresh_process(algorithm: Algorithm) -> f64 {
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program).args(["--resident", algorithm.name()]).output();
    let text = String::from_utf8(output.expect("this program").stdout).expect("UTF-8");
    text.trim().parse().expect("a number")
}

/// Resident memory of this process: the second number of `/proc/self/statm`, in pages of 4 KiB.
fn resident_bytes() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok());
    pages.expect("a number of pages") * 4096.0
}

async fn on_redis(rules: &RuleSet) -> (f64, f64, u64) {
    let server = Arc::new(RedisServer::start_without_clock_shim());
    let service = &Service::on_redis(rules.clone(), Arc::clone(&server));
    service.check("0000000000000000").await;
    let key = server.keys().pop().expect("a key");
    let bytes = server.query(&["MEMORY", "USAGE", &key, "SAMPLES", "0"]);
    let mut micros = [1, TOGETHER].map(|together| (together, 0.0));
    for (together, micros) in &mut micros {
        server.query::<()>(&["CONFIG", "RESETSTAT"]);
        for first in (0..REDIS_CALLS).step_by(*together) {
            let ids = (first..first + *together).map(|call| format!("{:016}", call % IDS));
            let checks = ids.map(|id| async move { service.check(&id).await });
            join_all(checks).await;
        }
        *micros = micros_of_scripts(&server) / REDIS_CALLS as f64;
    }
    let [(_, alone), (_, together)] = micros;
    (alone, together, bytes)
}

fn micros_of_scripts(server: &RedisServer) -> f64 {
    let stats: String = server.query(&["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha")).expect("EVALSHA");
    let micros = line.split("usec=").nth(1).and_then(|rest| rest.split(',').next());
    micros.and_then(|micros| micros.parse().ok()).expect("a number")
}
