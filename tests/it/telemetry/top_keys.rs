//! Top keys of a stream by Zipf's law: the true top is found, within the stated error and memory.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;

use rlaas::algorithm::{Algorithm, Limit};
use rlaas::clock::{Clock, Deadline, Micros};
use rlaas::rules::{Matcher, Part, Pattern, Request, Rule, RuleSet, Share};
use rlaas::store::{MemorySettings, MemoryStore, Store};
use rlaas_limiter::{Limiter, StartedCheck};
use rlaas_telemetry::metrics::Metrics;
use rlaas_telemetry::top_keys::{
    MAX_BYTES, MAX_COUNTERS, MAX_RULES, Summary, TopKeys, TopKind, Window,
};

const EXPONENT: f64 = 1.1;
const THREADS: u64 = 2;
const LIMIT: u64 = 500;

/// Ids and calls: the numbers that are stated in the book with SOAK, else a hundredth.
fn size() -> (usize, u64) {
    if std::env::var_os("SOAK").is_some() { (1_000_000, 10_000_000) } else { (10_000, 100_000) }
}

/// The sums of the shares of the ids up to each rank.
fn shares(ids: usize) -> Vec<f64> {
    let mut sum = 0.0;
    let mut rank = 0.0;
    let sums = (0..ids).map(|_| {
        rank += 1.0;
        sum += f64::powf(rank, -EXPONENT);
        sum
    });
    sums.collect()
}

/// Returns a number from 0 to below 1 that looks random.
#[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
fn random(number: u64) -> f64 {
    let mut mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

/// Decides a part of the calls on a thread, and returns the units taken and the denials by id.
fn decide(
    limiter: &Limiter,
    shares: &[f64],
    numbers: impl Iterator<Item = u64>,
) -> [HashMap<usize, u64>; 2] {
    let whole = shares[shares.len() - 1];
    let [mut used, mut denied] = [HashMap::new(), HashMap::new()];
    for number in numbers {
        let share = random(number) * whole;
        let rank = shares.partition_point(|sum| *sum <= share).min(shares.len() - 1);
        let name = format!("user-{rank}");
        let request = Request::user(&name).build().expect("a valid request");
        let StartedCheck::Decided(decided) = limiter.begin(&request, Deadline::NEVER) else {
            panic!("memory never waits");
        };
        let is_allowed = decided.expect("a verdict").is_allowed();
        *(if is_allowed { &mut used } else { &mut denied }).entry(rank).or_default() += 1;
    }
    TopKeys::flush();
    [used, denied]
}

/// Returns the counts of a rule in the last hour.
fn window(top_keys: &TopKeys, rule: &str, kind: TopKind) -> Summary {
    let found = top_keys.windows(kind, Window::Hour, |key| *key.rule == *rule);
    found.into_iter().next().expect("a rule").1
}

/// Waits until the thread that counts has `total`.
fn counted(top_keys: &TopKeys, kind: TopKind, total: u64) -> Summary {
    loop {
        let found = window(top_keys, "default", kind);
        if found.total() == total {
            return found;
        }
        assert!(found.total() < total, "{} of {total}", found.total());
        thread::yield_now();
    }
}

#[test]
fn true_top_is_found_within_the_error_and_the_memory() {
    let (ids, calls) = size();
    let shares = shares(ids);
    let top_keys = TopKeys::start().expect("a thread");
    let metrics = Arc::new(Metrics::new().with_top_keys(top_keys.clone()));
    let limit = Limit::new(LIMIT, Micros::from_secs(86_400)).expect("a valid limit");
    let rules = RuleSet::new(Rule::new_default(Algorithm::Gcra, limit), Vec::new());
    let settings = MemorySettings { max_keys: 2_000_000 };
    let store = MemoryStore::new(settings, Clock::default(), metrics.clone());
    let limiter = Limiter::new(rules, Store::Memory(store), metrics);
    let [mut used, mut denied] = [HashMap::<usize, u64>::new(), HashMap::<usize, u64>::new()];
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let numbers = (thread..calls).step_by(THREADS.try_into().expect("few"));
                let (limiter, shares) = (&limiter, &shares);
                scope.spawn(move || decide(limiter, shares, numbers))
            })
            .collect();
        for thread in threads {
            let [more_used, more_denied] = thread.join().expect("decisions");
            for (all, more) in [(&mut used, more_used), (&mut denied, more_denied)] {
                for (id, count) in more {
                    *all.entry(id).or_default() += count;
                }
            }
        }
    });
    assert!(denied.len() > 5, "few ids are denied: {}", denied.len());
    for (kind, exact) in [(TopKind::Used, &used), (TopKind::Denied, &denied)] {
        let total = exact.values().sum();
        let found = counted(&top_keys, kind, total);
        assert!(found.error() <= total / MAX_COUNTERS as u64, "{kind:?}: {}", found.error());
        let of = |id: usize| {
            let name = format!("user-{id}");
            found.counters().iter().position(|counter| *counter.key == *name)
        };
        let mut top: Vec<(u64, usize)> = exact.iter().map(|(id, count)| (*count, *id)).collect();
        top.sort_unstable_by(|one, other| other.cmp(one));
        // Of equal counts any may be listed: the limit cuts those of USED.
        let last = top[top.len().min(20) - 1].0;
        let mut listed = 0;
        for (count, id) in top.iter().take_while(|(count, _)| *count >= last) {
            let Some(position) = of(*id) else {
                assert!(*count <= found.error(), "{kind:?}: user-{id} has {count}");
                continue;
            };
            listed += 1;
            let at_least = found.counters()[position].least;
            assert!(
                at_least <= *count && *count <= at_least + found.error(),
                "{kind:?}: user-{id}"
            );
        }
        println!(
            "{kind:?}: {total} in {calls} calls, {} ids; error {} ({:.3} % of the total, at most \
             {:.3} %); {listed} ids of the true top listed",
            exact.len(),
            found.error(),
            percent(found.error(), total),
            100.0 / 128.0,
        );
        if kind == TopKind::Denied {
            assert!(listed >= top.len().min(20), "{listed} of the top");
        }
    }
    let (rules, bytes) = top_keys.size();
    println!("memory of {rules} rule: {bytes} bytes");
    assert!(rules == 1 && bytes < 150_000, "{bytes} bytes");
}

#[test]
fn memory_is_bounded_for_many_rules_and_long_keys() {
    // Of each rule; each key is allowed near its limit, and then denied.
    let (rules, keys) = if std::env::var_os("SOAK").is_some() { (10_000, 200) } else { (2_000, 3) };
    let top_keys = TopKeys::start().expect("a thread");
    let metrics = Arc::new(Metrics::new().with_top_keys(top_keys.clone()));
    let limit = Limit::new(1, Micros::from_secs(86_400)).expect("a valid limit");
    let rule = |number: usize| Rule {
        name: format!("rule-{number}").into(),
        matcher: Matcher { patterns: vec![(Part::Resource, Pattern::one(&format!("/{number}")))] },
        near_limit: Share::new(500_000),
        ..Rule::new_default(Algorithm::Gcra, limit)
    };
    let rule_set =
        RuleSet::new(Rule::new_default(Algorithm::Gcra, limit), (0..rules).map(rule).collect());
    let settings = MemorySettings { max_keys: 200_000 };
    let store = MemoryStore::new(settings, Clock::default(), metrics.clone());
    let limiter = Limiter::new(rule_set, Store::Memory(store), metrics);
    let mut most = (0, 0);
    for key in 0..keys {
        for number in 0..rules {
            let (user, resource) = (format!("{key:0>300}"), format!("/{number}"));
            let request =
                Request::user(&user).resource(&resource).build().expect("a valid request");
            for is_allowed in [true, false] {
                let StartedCheck::Decided(decided) = limiter.begin(&request, Deadline::NEVER)
                else {
                    panic!("memory never waits");
                };
                assert_eq!(decided.expect("a verdict").is_allowed(), is_allowed);
            }
        }
        let (alone, bytes) = top_keys.size();
        most = (most.0.max(alone), most.1.max(bytes));
    }
    TopKeys::flush();
    let found = loop {
        let found = window(&top_keys, "rule-0", TopKind::Denied);
        if found.total() >= keys {
            break found;
        }
        thread::yield_now();
    };
    println!(
        "{rules} rules, {keys} keys of 300 bytes each: {most:?} rules alone and bytes at most"
    );
    assert!(most.0 <= MAX_RULES && most.1 <= MAX_BYTES, "{most:?}");
    let is_hash = |key: &str| key.starts_with('#') && key.len() == 33;
    assert!(found.counters().iter().all(|counter| is_hash(&counter.key)), "{found:?}");
}

#[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole as f64
}
