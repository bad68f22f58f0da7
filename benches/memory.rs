//! The memory store by itself: nanoseconds and allocations of a decision, bytes of an id.
//!
//! ```sh
//! cargo bench --bench memory                 # or less of it: -- 1000 gcra
//! ```
//!
//! Then how long decisions take while 1,000,000 expired ids are swept beside them.
//!
//! A decision is `MemoryStore::execute_one`, with a whole [`rlaas::algorithm::Decision`] as its
//! result; keys are made before. Medians of five runs, which take turns.

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
use rlaas::rules::{Key, Mode, Request, RequestFields, Rule, RuleSet};
use rlaas::store::{MemorySettings, MemoryStore};
use rlaas::telemetry::metrics::Metrics;

const RUNS: usize = 5;
const DECISIONS: usize = 2_000_000;
const KEYS: [usize; 3] = [1, 1_000, 1_000_000];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let wanted: Option<usize> = arguments.iter().find_map(|keys| keys.parse().ok());
    let only = arguments.iter().find_map(|name| Algorithm::from_name(name));
    println!("| algorithm | keys | threads | ns/decision | one thread's | allocations/decision |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for keys in KEYS.into_iter().filter(|keys| wanted.unwrap_or(*keys) == *keys) {
        let kinds = if keys == 1_000 { &Threads::ALL[..] } else { &[Threads::One] };
        for algorithm in Algorithm::ALL.iter().filter(|one| only.unwrap_or(**one) == **one) {
            decisions(*algorithm, keys, kinds);
        }
    }
    if wanted.is_none_or(|wanted| wanted == 1_000_000) {
        sweep();
    }
}

/// Decisions on as many keys, by these threads in turn.
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

/// How many decide, and on what.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Threads {
    One,
    /// Two on the same keys: what one has written travels to the core of the other.
    SameKeys,
    /// Two on a half of the keys each.
    OwnKeys,
    /// Two that have nothing in common but the machine: as well as two can do on it.
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

/// Decisions beside the sweep of expired ids, and beside none.
fn sweep() {
    const EXPIRED: usize = 1_000_000;
    let clock = ManualClock::new(Timestamp::from_millis(1_000_000));
    let metrics = Arc::new(Metrics::new());
    let settings = MemorySettings { max_keys: 2_000_000 };
    let store = MemoryStore::new(settings, Clock::Manual(clock.clone()), metrics.clone());
    let limit = Limit::new(Limit::MAX_UNITS, Micros::from_secs(1)).expect("a valid limit");
    let rules = RuleSet::new(Rule::new_default(Algorithm::Gcra, limit), Vec::new());
    let decide = |key: &Key| {
        let (algorithm, cost, mode) = (Algorithm::Gcra, Cost::ONE, Mode::Enforced);
        store.execute_one(&StoreHit {
            key,
            algorithm,
            limit: &limit,
            action: Action::Take(cost),
            mode,
        })
    };
    println!("\n| beside | decisions | p99.99 µs | longest µs | over 1 ms |");
    println!("| --- | --- | --- | --- | --- |");
    for (name, expired) in [("nothing to sweep", 0), ("1,000,000 expired ids", EXPIRED)] {
        (0..expired).for_each(|number| _ = black_box(decide(&key(&rules, 1_000 + number))));
        clock.set(clock.now() + Micros::from_secs(3_600));
        let keys: Vec<Key> = (0..1_000).map(|number| key(&rules, number)).collect();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| tend_until(&store, &stop));
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

fn tend_until(store: &MemoryStore, stop: &AtomicBool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let mut looks = tokio::time::interval(std::time::Duration::from_millis(50));
        let stopped = async {
            while !stop.load(Ordering::Relaxed) {
                looks.tick().await;
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
    limit: Limit,
    keys: Vec<Key>,
    /// Which keys are asked for, in turn: at random.
    order: Vec<u32>,
}

impl Bench {
    fn new(algorithm: Algorithm, keys: usize) -> Self {
        let metrics = Arc::new(Metrics::new());
        let settings = MemorySettings { max_keys: 2_000_000 };
        let store = MemoryStore::new(settings, Clock::default(), metrics.clone());
        // A log is at its limit: what it holds is what it costs.
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
        let bench = Self { store, algorithm, limit, keys, order };
        bench.run(bench.keys.len().max(100_000), 0, None);
        bench
    }

    /// Nanoseconds of wall time for one decision, on as many threads.
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

    /// Decides on all keys in their order, or on every second one: the even or the odd ones.
    fn run(&self, decisions: usize, from: usize, own: Option<usize>) {
        for step in 0..decisions {
            let key = self.order[(from + step) % self.order.len()] as usize;
            let key = own.map_or(key, |own| key & !1 | own);
            let hit = StoreHit {
                key: &self.keys[key],
                algorithm: self.algorithm,
                limit: &self.limit,
                action: Action::Take(Cost::ONE),
                mode: Mode::Enforced,
            };
            black_box(self.store.execute_one(&hit));
        }
    }
}

/// An id of 16 bytes.
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
