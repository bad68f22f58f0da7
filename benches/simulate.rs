//! Simulation beside the memory store alone: nanoseconds per decision, in one run.
//!
//! ```sh
//! cargo bench --bench simulate                 # or a part of it: -- 1000 gcra
//! ```
//!
//! The store decides keys that are built in advance, as in `cargo bench --bench memory`. The
//! simulation decides requests of the same ids in the same order by one rule, counts included. Both
//! have seen each id before. Medians of five interleaved runs. The last column is the time of an
//! id's first request: planned, and decided. Traffic is not read here.

#![expect(clippy::cast_precision_loss, reason = "small counts, shown with few digits")]

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use rlaas::algorithm::{Algorithm, Cost, Limit};
use rlaas::clock::{Clock, Micros, Timestamp};
use rlaas::operation::{Action, StoreHit};
use rlaas::plan::Plan;
use rlaas::rules::{Grant, Key, Request, RequestFields, Rule, RuleSet};
use rlaas::store::{MemorySettings, MemoryStore};
use rlaas_simulation::simulation::{Simulation, SimulationSettings};
use rlaas_simulation::{RecordedFields, RecordedRequest, TimedRequest};
use rlaas_telemetry::metrics::Metrics;

const RUNS: usize = 5;
const DECISIONS: usize = 2_000_000;
const KEYS: [usize; 2] = [1_000, 1_000_000];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let only_keys: Option<usize> = arguments.iter().find_map(|keys| keys.parse().ok());
    let only = arguments.iter().find_map(|name| Algorithm::from_name(name));
    println!(
        "| algorithm | keys | store, ns | simulation, ns | ratio | first request of an id, ns |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for keys in KEYS.into_iter().filter(|keys| only_keys.unwrap_or(*keys) == *keys) {
        for algorithm in Algorithm::RATES.iter().filter(|one| only.unwrap_or(**one) == **one) {
            compare(*algorithm, keys);
        }
    }
}

fn compare(algorithm: Algorithm, keys: usize) {
    let order = order(keys);
    let store = StoreBench::new(algorithm, keys);
    let each: Vec<u32> = (0..u32::try_from(keys).expect("few keys")).collect();
    let mut simulation = SimulationBench::new(algorithm, keys);
    let first = nanos(keys, || simulation.run(&each));
    store.run(&each);
    let (mut alone, mut simulated) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        alone.push(nanos(DECISIONS, || store.run(&order)));
        simulated.push(nanos(DECISIONS, || simulation.run(&order)));
    }
    let report = simulation.simulation.finish();
    assert_eq!(report.all.requests, (keys + RUNS * DECISIONS) as u64, "every request is decided");
    let (alone, simulated) = (median(alone), median(simulated));
    let ratio = simulated / alone;
    let name = algorithm.name();
    println!("| {name} | {keys} | {alone:.1} | {simulated:.1} | {ratio:.2} | {first:.0} |");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[expect(clippy::disallowed_methods, reason = "measures")]
fn nanos(decisions: usize, run: impl FnOnce()) -> f64 {
    let started = Instant::now();
    run();
    started.elapsed().as_nanos() as f64 / decisions as f64
}

/// Returns the ids of the decisions of one run, in random order.
fn order(keys: usize) -> Vec<u32> {
    let mut random: u64 = 1;
    let next = |_| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        u32::try_from((random >> 33) as usize % keys).expect("few keys")
    };
    (0..DECISIONS).map(next).collect()
}

/// The log is at its limit, because its cost depends on its number of entries.
fn rules(algorithm: Algorithm) -> (RuleSet, Limit) {
    let units = if algorithm == Algorithm::SlidingWindowLog { 100 } else { Limit::MAX_UNITS };
    let limit = Limit::new(units, Micros::from_secs(60)).expect("a valid limit");
    (RuleSet::new(Rule::new_default(algorithm, limit), Vec::new()), limit)
}

/// Returns a user id of 16 bytes.
fn user(number: usize) -> String {
    format!("user-{number:011}")
}

/// The memory store, and keys that are built.
struct StoreBench {
    store: MemoryStore,
    algorithm: Algorithm,
    grant: Grant,
    keys: Vec<Key>,
}

impl StoreBench {
    fn new(algorithm: Algorithm, keys: usize) -> Self {
        let settings = MemorySettings { max_keys: 2_000_000 };
        let store = MemoryStore::new(settings, Clock::default(), Arc::new(Metrics::new()));
        let (rules, limit) = rules(algorithm);
        let keys = (0..keys).map(|number| key(&rules, number)).collect();
        Self { store, algorithm, grant: Grant::Limited(limit), keys }
    }

    fn run(&self, order: &[u32]) {
        for number in order {
            let (key, action) = (&self.keys[*number as usize], Action::Take(Cost::ONE));
            let hit = StoreHit::new(key, self.algorithm, &self.grant, action);
            black_box(self.store.execute_one(&hit));
        }
    }
}

fn key(rules: &RuleSet, number: usize) -> Key {
    let (user_id, attributes) = (user(number), HashMap::new());
    let fields = RequestFields {
        user_id: &user_id,
        resource: "",
        attributes: &attributes,
        cost: None,
        dry_run: false,
    };
    let request = Request::new(fields).expect("a valid request");
    Plan::for_request(rules, &request).hits[0].key.clone()
}

/// A simulation, and the requests that it decides.
struct SimulationBench {
    simulation: Simulation,
    /// The request of an id is at its number.
    requests: Vec<TimedRequest>,
    now: Timestamp,
}

impl SimulationBench {
    fn new(algorithm: Algorithm, keys: usize) -> Self {
        let now = Timestamp::from_millis(1_700_000_000_000);
        let request = |number| {
            let user_id = user(number).into();
            let fields = RecordedFields { user_id, cost: 1, ..RecordedFields::default() };
            TimedRequest { at: now, request: RecordedRequest::Fields(fields), was_refused: false }
        };
        let simulation = Simulation::new(SimulationSettings::new(rules(algorithm).0));
        Self { simulation, requests: (0..keys).map(request).collect(), now }
    }

    fn run(&mut self, order: &[u32]) {
        for number in order {
            self.now = self.now + Micros::from_micros(1);
            let request = &mut self.requests[*number as usize];
            request.at = self.now;
            black_box(self.simulation.decide(request));
        }
    }
}
