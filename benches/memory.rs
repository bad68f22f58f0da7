//! The memory store alone: nanoseconds and allocations per decision.
//!
//! ```sh
//! cargo bench --bench memory                 # or a part of it: -- 1000 gcra
//! ```
//!
//! Then the latency of decisions while 1,000,000 expired ids are swept.
//!
//! A decision is `MemoryStore::execute_one`, which returns a whole [`rlaas::algorithm::Decision`]. Keys
//! are built in advance. Medians of five interleaved runs.

#![expect(clippy::cast_precision_loss, reason = "small counts, shown with few digits")]

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rlaas::algorithm::{Algorithm, Cost, Limit};
use rlaas::clock::{Clock, ManualClock, Micros, Timestamp};
use rlaas::operation::{Action, StoreHit};
use rlaas::plan::Plan;
use rlaas::rules::{Grant, Key, Request, RequestFields, Rule, RuleSet};
use rlaas::store::{MemorySettings, MemoryStore};
use rlaas_telemetry::metrics::Metrics;

const RUNS: usize = 5;
const DECISIONS: usize = 2_000_000;
const KEYS: [usize; 3] = [1, 1_000, 1_000_000];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let only_keys: Option<usize> = arguments.iter().find_map(|keys| keys.parse().ok());
    let only = arguments.iter().find_map(|name| Algorithm::from_name(name));
    println!(
        "| algorithm | keys | threads | ns/decision | ratio to one thread | allocations/decision |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for keys in KEYS.into_iter().filter(|keys| only_keys.unwrap_or(*keys) == *keys) {
        let kinds = if keys == 1_000 { &Threads::ALL[..] } else { &[Threads::One] };
        for algorithm in Algorithm::RATES.iter().filter(|one| only.unwrap_or(**one) == **one) {
            decisions(*algorithm, keys, kinds);
        }
    }
    if only_keys.is_none_or(|only_keys| only_keys == 1_000_000) {
        sweep();
    }
}

/// Measures decisions on this number of keys, with each kind of threads.
fn decisions(algorithm: Algorithm, keys: usize, kinds: &[Threads]) {
    let stores = if kinds.contains(&Threads::OwnStores) { 2 } else { 1 };
    let benches: Vec<Bench> = (0..stores).map(|_| Bench::new(algorithm, keys)).collect();
    let mut nanos = vec![Vec::new(); kinds.len()];
    for _ in 0..RUNS {
        for (nanos, threads) in nanos.iter_mut().zip(kinds) {
            nanos.push(Bench::nanos(&benches, *threads));
        }
    }
    let allocations = benches[0].allocations();
    let medians = nanos.into_iter().map(|mut nanos| {
        nanos.sort_by(f64::total_cmp);
        nanos[RUNS / 2]
    });
    let medians: Vec<f64> = medians.collect();
    for (threads, nanos) in kinds.iter().zip(&medians) {
        let (name, threads, ratio) = (algorithm.name(), threads.name(), medians[0] / nanos);
        println!("| {name} | {keys} | {threads} | {nanos:.1} | {ratio:.2} | {allocations:.3} |");
    }
}

/// The number of threads, and what they share.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Threads {
    One,
    /// Two threads on the same keys: cache lines move between their cores.
    SameKeys,
    /// Two threads, each on one half of the keys.
    OwnKeys,
    /// Two threads, each with a store of its own: the limit of the machine.
    OwnStores,
}

impl Threads {
    const ALL: [Self; 4] = [Self::One, Self::SameKeys, Self::OwnKeys, Self::OwnStores];

    fn count(self) -> usize {
        if self == Self::One { 1 } else { 2 }
    }

    fn name(self) -> &'static str {
        match self {
            Self::One => "1",
            Self::SameKeys => "2",
            Self::OwnKeys => "2, own keys",
            Self::OwnStores => "2, own stores",
        }
    }
}

/// Measures decisions while expired ids are swept, and without a sweep.
fn sweep() {
    const EXPIRED: usize = 1_000_000;
    let clock = ManualClock::new(Timestamp::from_millis(1_000_000));
    let metrics = Arc::new(Metrics::new());
    let settings = MemorySettings { max_keys: 2_000_000 };
    let store = MemoryStore::new(settings, Clock::Manual(clock.clone()), metrics.clone());
    let limit = Limit::new(Limit::MAX_UNITS, Micros::from_secs(1)).expect("a valid limit");
    let rules = RuleSet::new(Rule::new_default(Algorithm::Gcra, limit), Vec::new());
    let decide = |key: &Key| {
        let grant = Grant::Limited(limit);
        store.execute_one(&StoreHit::new(key, Algorithm::Gcra, &grant, Action::Take(Cost::ONE)))
    };
    println!("\n| background work | decisions | p99.99 µs | max µs | over 1 ms |");
    println!("| --- | --- | --- | --- | --- |");
    for (name, expired) in [("none", 0), ("sweep of 1,000,000 expired ids", EXPIRED)] {
        (0..expired).for_each(|number| _ = black_box(decide(&key(&rules, 1_000 + number))));
        clock.set(clock.now() + Micros::from_secs(3_600));
        let keys: Vec<Key> = (0..1_000).map(|number| key(&rules, number)).collect();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| run_until(&store, &stop));
            let mut micros: Vec<f64> = Vec::new();
            // The sweep of all shards takes 256 steps of 20 ms.
            for key in keys.iter().cycle() {
                let started = now();
                black_box(decide(key));
                micros.push(started.elapsed().as_secs_f64() * 1e6);
                let left = metrics.memory_keys.get();
                if micros.len() >= 20_000_000 && left <= 1_000 || micros.len() > 400_000_000 {
                    assert!(left <= 1_000, "{left} keys are left");
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
            micros.sort_by(f64::total_cmp);
            let late = micros.iter().filter(|micros| **micros > 1_000.0).count();
            let at = micros[micros.len() / 10_000 * 9_999];
            let longest = micros[micros.len() - 1];
            println!("| {name} | {} | {at:.1} | {longest:.0} | {late} |", micros.len());
        });
    }
}

fn run_until(store: &MemoryStore, stop: &AtomicBool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let mut ticks = tokio::time::interval(std::time::Duration::from_millis(50));
        let stopped = async {
            while !stop.load(Ordering::Relaxed) {
                ticks.tick().await;
            }
        };
        tokio::select! { () = store.run() => {}, () = stopped => {} }
    });
}

#[expect(clippy::disallowed_methods, reason = "measures")]
fn now() -> Instant {
    Instant::now()
}

struct Bench {
    store: MemoryStore,
    algorithm: Algorithm,
    grant: Grant,
    keys: Vec<Key>,
    /// Positions of the keys in random order.
    order: Vec<u32>,
}

impl Bench {
    fn new(algorithm: Algorithm, keys: usize) -> Self {
        let metrics = Arc::new(Metrics::new());
        let settings = MemorySettings { max_keys: 2_000_000 };
        let store = MemoryStore::new(settings, Clock::default(), metrics.clone());
        // The log is at its limit, because its cost depends on its number of entries.
        let units = if algorithm == Algorithm::SlidingWindowLog { 100 } else { Limit::MAX_UNITS };
        let limit = Limit::new(units, Micros::from_secs(60)).expect("a valid limit");
        let rules = RuleSet::new(Rule::new_default(algorithm, limit), Vec::new());
        let keys: Vec<Key> = (0..keys).map(|number| key(&rules, number)).collect();
        let mut random: u64 = 1;
        let order = (0..1 << 20).map(|_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            u32::try_from((random >> 33) as usize % keys.len()).expect("few keys")
        });
        let order = order.collect();
        let bench = Self { store, algorithm, grant: Grant::Limited(limit), keys, order };
        bench.run(bench.keys.len().max(100_000), 0, None);
        bench
    }

    /// Returns the nanoseconds of wall time per decision.
    fn nanos(benches: &[Self], threads: Threads) -> f64 {
        let started = now();
        std::thread::scope(|scope| {
            for thread in 0..threads.count() {
                let bench = &benches[if threads == Threads::OwnStores { thread } else { 0 }];
                let own = (threads == Threads::OwnKeys).then_some(thread);
                let from = thread * bench.order.len() / threads.count();
                scope.spawn(move || bench.run(DECISIONS, from, own));
            }
        });
        started.elapsed().as_nanos() as f64 / (threads.count() * DECISIONS) as f64
    }

    fn allocations(&self) -> f64 {
        const COUNTED: usize = 100_000;
        let counted = allocation_counter::measure(|| self.run(COUNTED, 0, None));
        counted.count_total as f64 / COUNTED as f64
    }

    /// Decides on all keys in their order, or on the even or the odd keys alone.
    fn run(&self, decisions: usize, from: usize, own: Option<usize>) {
        for step in 0..decisions {
            let key = self.order[(from + step) % self.order.len()] as usize;
            let key = own.map_or(key, |own| key & !1 | own);
            let (key, action) = (&self.keys[key], Action::Take(Cost::ONE));
            let hit = StoreHit::new(key, self.algorithm, &self.grant, action);
            black_box(self.store.execute_one(&hit));
        }
    }
}

/// Returns the key of an id of 16 bytes.
fn key(rules: &RuleSet, number: usize) -> Key {
    let (user, attributes) = (format!("user-{number:011}"), HashMap::new());
    let fields = RequestFields {
        user_id: &user,
        resource: "",
        attributes: &attributes,
        cost: None,
        dry_run: false,
    };
    let request = Request::new(fields).expect("a valid request");
    Plan::for_request(rules, &request).hits[0].key.clone()
}
