//! The memory store by itself: nanoseconds and allocations of a decision, bytes of an id.
//!
//! ```sh
//! cargo bench --bench memory                 # or with one number of keys: -- 1000
//! ```
//!
//! A decision is `MemoryStore::check_one`, with a whole [`rlaas::algorithm::Decision`] as its
//! result; keys are made before. Medians of five runs, which take turns.

#![expect(clippy::cast_precision_loss, reason = "small counts, shown with few digits")]

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use rlaas::algorithm::{Algorithm, Cost, Limit};
use rlaas::clock::{Clock, Span};
use rlaas::rules::{Draft, Key, Mode, Request, Rule, RuleSet};
use rlaas::store::{Hit, Intent, MemorySettings, MemoryStore};
use rlaas::telemetry::metrics::Metrics;

const RUNS: usize = 5;
const DECISIONS: usize = 2_000_000;
const KEYS: [usize; 3] = [1, 1_000, 1_000_000];

fn main() {
    let rows: Vec<(Algorithm, usize, usize)> = Algorithm::ALL
        .iter()
        .flat_map(|algorithm| KEYS.map(|keys| (*algorithm, keys, 1)))
        .chain(Algorithm::ALL.iter().map(|algorithm| (*algorithm, 1_000, 2)))
        .collect();
    let wanted: Option<usize> = std::env::args().nth(1).and_then(|keys| keys.parse().ok());
    println!("| algorithm | keys | threads | ns/decision | allocations/decision |");
    println!("| --- | --- | --- | --- | --- |");
    for (algorithm, keys, threads) in rows {
        if wanted.is_some_and(|wanted| wanted != keys) {
            continue;
        }
        let bench = Bench::new(algorithm, keys);
        let mut nanos: Vec<f64> = (0..RUNS).map(|_| bench.nanos(threads)).collect();
        nanos.sort_by(f64::total_cmp);
        let allocations = bench.allocations();
        let (name, nanos) = (algorithm.name(), nanos[RUNS / 2]);
        println!("| {name} | {keys} | {threads} | {nanos:.1} | {allocations:.3} |");
    }
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
        let store = MemoryStore::new(settings, Clock::default(), &metrics);
        // A log is at its limit: what it holds is what it costs.
        let units = if algorithm == Algorithm::SlidingWindowLog { 100 } else { Limit::MAX_UNITS };
        let limit = Limit::new(units, Span::from_secs(60)).expect("a valid limit");
        let rules = RuleSet::new(Rule::default_of(algorithm, limit), Vec::new());
        let keys: Vec<Key> = (0..keys).map(|number| key(&rules, number)).collect();
        let mut random: u64 = 1;
        let order = (0..1 << 20).map(|_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            u32::try_from((random >> 33) as usize % keys.len()).expect("few keys")
        });
        let order = order.collect();
        let bench = Self { store, algorithm, limit, keys, order };
        bench.run(bench.keys.len().max(100_000), 0);
        bench
    }

    /// Nanoseconds of wall time for one decision, on as many threads.
    #[expect(clippy::disallowed_methods, reason = "measures")]
    fn nanos(&self, threads: usize) -> f64 {
        let started = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || self.run(DECISIONS, thread * self.order.len() / threads));
            }
        });
        started.elapsed().as_nanos() as f64 / (threads * DECISIONS) as f64
    }

    fn allocations(&self) -> f64 {
        const COUNTED: usize = 100_000;
        let counted = allocation_counter::measure(|| self.run(COUNTED, 0));
        counted.count_total as f64 / COUNTED as f64
    }

    fn run(&self, decisions: usize, from: usize) {
        for step in 0..decisions {
            let key = self.order[(from + step) % self.order.len()] as usize;
            let hit = Hit {
                key: &self.keys[key],
                algorithm: self.algorithm,
                limit: &self.limit,
                cost: Cost::ONE,
                mode: Mode::Enforced,
            };
            black_box(self.store.check_one(&hit, Intent::Take));
        }
    }
}

/// An id of 16 bytes.
fn key(rules: &RuleSet, number: usize) -> Key {
    let (user, attributes) = (format!("user-{number:011}"), HashMap::new());
    let draft =
        Draft { user_id: &user, resource: "", attributes: &attributes, cost: None, dry_run: false };
    let request = Request::new(draft).expect("a valid request");
    rules.matching(&request)[0].key.clone()
}
