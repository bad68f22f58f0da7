//! The library against governor: nanoseconds per GCRA decision by key, on one thread.
//!
//! ```sh
//! cd benches/embedded && cargo run --release
//! ```
//!
//! Rounds are interleaved and short, so that many are undisturbed even on a busy machine; the 5th
//! percentile of each column is printed. Compare the ratio, not the nanoseconds. All columns visit
//! the keys in the same order, which the processor can't predict. The column `store` is a decision
//! for a key that is already built, as with governor; `check` also matches rules, builds the key
//! and folds the verdict.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use governor::clock::QuantaClock;
use governor::{Quota, RateLimiter};
use rlaas_limiter::clock::Clock;
use rlaas_limiter::observer::NoObserver;
use rlaas_limiter::plan::Plan;
use rlaas_limiter::store::{MemorySettings, MemoryStore};
use rlaas_limiter::{Limiter, Request, Rule};

const ROUNDS: usize = 801;
const DECISIONS: usize = 10_000;
/// Distance from one key to the next: coprime to every number of keys.
const STEP: usize = 7_368_787;
/// A limit so high that no request is denied.
const LIMIT: u32 = 1_000_000_000;

fn main() {
    println!(
        "{:>9} {:>9} {:>9} {:>9} {:>15}",
        "keys", "check", "store", "governor", "store/governor"
    );
    for keys in [1, 1_000, 1_000_000] {
        let names: Vec<String> = (0..keys).map(|key| format!("user-{key:012}")).collect();
        let rule = Rule::gcra("per-user").limit(u64::from(LIMIT)).per(Duration::from_secs(3_600));
        let settings =
            MemorySettings { max_keys: 2 * u32::try_from(keys).expect("few keys") + 10_000 };
        let ours = Limiter::builder().rule(rule).memory(settings).build().expect("a valid rule");
        let decide_ours = |key: &str| {
            let request = Request::user(key).build().expect("a valid request");
            ours.check_now(&request).expect("memory never waits").expect("a verdict").is_allowed()
        };
        let plans: Vec<Plan> = names
            .iter()
            .map(|name| {
                let request = Request::user(name).build().expect("a valid request");
                Plan::for_request(&ours.snapshot().rules, &request)
            })
            .collect();
        let store = MemoryStore::new(settings, Clock::default(), Arc::new(NoObserver));
        let decide_in_store = |plan: &Plan| {
            let hit = plan.hits[0].for_store().expect("a limit");
            store.execute_one(&hit).decision.is_allowed()
        };
        let quota = Quota::per_hour(NonZeroU32::new(LIMIT).expect("above 0"));
        let theirs = RateLimiter::dashmap_with_clock(quota, QuantaClock::default());
        let decide_theirs = |key: &String| theirs.check_key(key).is_ok();

        for name in &names {
            assert!(decide_ours(name) && decide_theirs(name));
        }
        let mut runs = [const { Vec::new() }; 3];
        for round in 0..ROUNDS {
            let first = round * DECISIONS * STEP % keys;
            runs[0].push(time(&names, first, |key: &String| decide_ours(key)));
            runs[1].push(time(&plans, first, decide_in_store));
            runs[2].push(time(&names, first, decide_theirs));
        }
        let [check, store, theirs] = runs.map(undisturbed);
        println!("{keys:>9} {check:>9.1} {store:>9.1} {theirs:>9.1} {:>15.2}", store / theirs);
    }
}

/// Returns the nanoseconds per decision.
fn time<T>(keys: &[T], first: usize, decide: impl Fn(&T) -> bool) -> f64 {
    let started = Instant::now();
    let mut at = first;
    for _ in 0..DECISIONS {
        at = (at + STEP) % keys.len();
        assert!(black_box(decide(&keys[at])));
    }
    started.elapsed().as_secs_f64() * 1e9 / DECISIONS as f64
}

/// Returns the 5th percentile.
fn undisturbed(mut runs: Vec<f64>) -> f64 {
    runs.sort_by(f64::total_cmp);
    runs[runs.len() / 20]
}
