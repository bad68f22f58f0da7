//! The cost of counting top keys: nanoseconds of a decision, and processor time of the process.
//!
//! ```sh
//! cargo bench --bench top_keys
//! ```
//!
//! A decision is `Limiter::begin` in memory with metrics, on one thread, for ids by Zipf's law
//! (exponent 1.1). Runs without and with counts alternate; medians of eleven.

#![expect(clippy::cast_precision_loss, reason = "small counts, shown with few digits")]

use std::sync::Arc;
use std::time::Instant;

use rlaas::algorithm::{Algorithm, Limit};
use rlaas::clock::{Clock, Deadline, Micros};
use rlaas::rules::{Request, Rule, RuleSet};
use rlaas::store::{MemorySettings, MemoryStore, Store};
use rlaas_limiter::{Limiter, StartedCheck};
use rlaas_telemetry::metrics::Metrics;
use rlaas_telemetry::top_keys::{TopKeys, TopKind, Window};

const RUNS: usize = 11;
const DECISIONS: usize = 1_000_000;

fn main() {
    println!("| ids | ns without | ns with | more | processor µs without | with | more |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for ids in [1_000, 1_000_000] {
        measure(ids);
    }
}

fn measure(ids: usize) {
    let users: Vec<String> = zipf(ids).into_iter().map(|id| format!("user-{id}")).collect();
    let counted = TopKeys::start().expect("a thread");
    let sides =
        [Side::new(Metrics::new()), Side::new(Metrics::new().with_top_keys(counted.clone()))];
    let mut times = [Vec::new(), Vec::new()];
    let mut processor = [Vec::new(), Vec::new()];
    for run in 0..RUNS {
        // Which side is first alternates too.
        for side in [run % 2, 1 - run % 2] {
            let (started, before) = (now(), processor_micros());
            sides[side].decide(&users);
            times[side].push(started.elapsed().as_secs_f64() * 1e9 / DECISIONS as f64);
            // The thread that counts may be behind.
            TopKeys::flush();
            counted.windows(TopKind::Used, Window::Quarter, |rule| &*rule.rule == "default");
            processor[side].push((processor_micros() - before) / DECISIONS as f64);
        }
    }
    let [without, with] = times.map(median);
    let [cpu_without, cpu_with] = processor.map(median);
    println!(
        "| {ids} | {without:.1} | {with:.1} | {:+.1} % | {cpu_without:.3} | {cpu_with:.3} | {:+.1} % |",
        (with / without - 1.0) * 100.0,
        (cpu_with / cpu_without - 1.0) * 100.0
    );
}

/// A limiter, and its decisions.
struct Side(Limiter);

impl Side {
    fn new(metrics: Metrics) -> Self {
        let metrics = Arc::new(metrics);
        let limit = Limit::new(100, Micros::from_secs(1)).expect("a valid limit");
        let rules = RuleSet::new(Rule::new_default(Algorithm::Gcra, limit), Vec::new());
        let settings = MemorySettings { max_keys: 2_000_000 };
        let store = MemoryStore::new(settings, Clock::default(), metrics.clone());
        Self(Limiter::new(rules, Store::Memory(store), metrics))
    }

    fn decide(&self, users: &[String]) {
        for user in users {
            let request = Request::user(user).build().expect("a valid request");
            let decided = self.0.begin(&request, Deadline::NEVER);
            assert!(matches!(std::hint::black_box(decided), StartedCheck::Decided(Ok(_))));
        }
    }
}

/// Returns the ids of all decisions.
fn zipf(ids: usize) -> Vec<usize> {
    let mut sum = 0.0;
    let shares: Vec<f64> = (1..=ids)
        .map(|rank| {
            sum += (rank as f64).powf(-1.1);
            sum
        })
        .collect();
    let random = |number: usize| {
        let mut mixed = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    };
    let id = |number| shares.partition_point(|share| *share <= random(number) * sum).min(ids - 1);
    (0..DECISIONS).map(id).collect()
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// Returns the processor time of this process in microseconds.
fn processor_micros() -> f64 {
    let schedule = std::fs::read_dir("/proc/self/task").expect("Linux");
    let of_thread = |task: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    };
    schedule.filter_map(of_thread).sum::<f64>() / 1e3
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn now() -> Instant {
    Instant::now()
}
