//! The recorder: what it counts is within its error, whatever moves between rules and the rest.

use std::collections::HashMap;
use std::hash::BuildHasher;

use proptest::prelude::*;

use super::recorder::ROUND;
use super::*;

/// A decision: seconds after the one before, rule, key, usage.
type Event = (u64, u32, u32, Usage);

fn event(rules: u32) -> impl Strategy<Value = Event> {
    let pause = prop_oneof![40 => Just(0_u64), 3 => 1..30_u64, 1 => 0..2_000_u64];
    let key = prop_oneof![1 => 0..5_u32, 1 => 0..5_000_u32];
    let taken = prop_oneof![4 => 0..3_u32, 1 => 0..1_000_u32];
    let usage = (any::<bool>(), any::<bool>(), taken).prop_map(|(is_denied, is_near, taken)| {
        Usage { is_denied, is_near_limit: is_near && !is_denied, taken }
    });
    (pause, 0..rules, key, usage)
}

fn counted(kind: TopKind, usage: Usage) -> u64 {
    match kind {
        TopKind::Denied => usage.is_denied.into(),
        TopKind::NearLimit => usage.is_near_limit.into(),
        TopKind::Used => usage.taken.into(),
    }
}

fn window(recorder: &mut Recorder, rule: u32, kind: TopKind, window: Window) -> Summary {
    recorder.windows(&[rule], kind, window).remove(0)
}

/// Whether the counts of a rule are within their error.
fn check(
    recorder: &mut Recorder,
    events: &[(u64, u32, u32, Usage)],
    now: u64,
    (rule, kind, window): (u32, TopKind, Window),
) -> Result<(), TestCaseError> {
    let found = self::window(recorder, rule, kind, window);
    prop_assert!(found.error() <= found.total() / MAX_COUNTERS as u64);
    let (surely, most) = if window == Window::Quarter { (840, 899) } else { (3_300, 3_599) };
    let sums = |age: u64| {
        let mut sums = HashMap::<u32, u64>::new();
        let own = events.iter().filter(|(at, of, ..)| *of == rule && now - at <= age);
        own.for_each(|(.., key, usage)| *sums.entry(*key).or_default() += counted(kind, *usage));
        sums
    };
    let inside = sums(surely);
    prop_assert!(found.counters().iter().all(|counter| counter.least <= found.total()));
    for (key, most) in sums(most) {
        let name = key.to_string();
        let counter = found.counters().iter().find(|counter| *counter.key == *name);
        let least = counter.map_or(0, |counter| counter.least);
        let at_least = inside.get(&key).copied().unwrap_or_default();
        prop_assert!(least <= most && at_least <= least + found.error(), "{} {:?}", key, window);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn counts_are_within_their_error_under_any_memory(
        max_bytes in prop_oneof![Just(MAX_BYTES), 40_000..400_000_usize],
        events in prop::collection::vec(event(8), 1..3_000),
    ) {
        let (mut recorder, mut now, mut past) = (Recorder::new(max_bytes), 0, Vec::new());
        for (pause, rule, key, usage) in events {
            now += pause;
            recorder.advance_to(Duration::from_secs(now));
            recorder.count(rule, &key.to_string(), usage);
            past.push((now, rule, key, usage));
        }
        for rule in 0..8 {
            for kind in TopKind::ALL {
                for window in [Window::Quarter, Window::Hour] {
                    check(&mut recorder, &past, now, (rule, kind, window))?;
                }
            }
        }
    }
}

#[test]
fn busiest_rules_are_counted_by_themselves_and_the_rest_together() {
    let used = Usage { taken: 1, ..Usage::default() };
    let mut recorder = Recorder::new(MAX_BYTES);
    let rules = u32::try_from(MAX_RULES + 500).expect("few");
    // At first the rules that come first are alone; the last 500 are the busiest.
    for round in 0..40_u64 {
        recorder.advance_to(ROUND * u32::try_from(round).expect("few"));
        for rule in 0..rules {
            let calls = if rule as usize >= MAX_RULES { 10 } else { 1 };
            (0..calls).for_each(|key| recorder.count(rule, &format!("key{key}"), used));
        }
    }
    let (alone, bytes) = recorder.size();
    assert!(alone <= MAX_RULES && bytes <= MAX_BYTES, "{alone} rules, {bytes} bytes");
    let busy = window(&mut recorder, rules - 1, TopKind::Used, Window::Quarter);
    // It is counted by itself from the second round on, and has counts of the first among the rest.
    let of_rest = window(&mut recorder, 0, TopKind::Used, Window::Quarter);
    assert!(busy.counters().len() == 10, "{busy:?}");
    assert_eq!(busy.total() - of_rest.total(), 39 * 10, "{of_rest:?}");
    for found in [busy, of_rest] {
        assert!(found.error() <= found.total() / MAX_COUNTERS as u64, "{found:?}");
    }
}

#[test]
fn memory_stays_below_its_bound_with_hostile_keys() {
    const BOUND: usize = 3_000_000;
    let usage = Usage { is_denied: true, taken: 7, ..Usage::default() };
    let mut recorder = Recorder::new(BOUND);
    for number in 0..60_000_u32 {
        recorder.advance_to(Duration::from_millis(u64::from(number) * 20));
        recorder.count(number % 97, &format!("{number:0>256}"), usage);
        assert!(recorder.size().1 <= BOUND, "after {number}");
    }
    assert!(recorder.size().0 > 1);
}

#[test]
fn memory_that_is_counted_is_the_memory_that_is_taken() {
    let usage = Usage { is_denied: true, is_near_limit: false, taken: 3 };
    let mut kept = None;
    let taken = allocation_counter::measure(|| {
        let mut recorder = Recorder::new(MAX_BYTES);
        for number in 0..60_000_u32 {
            recorder.advance_to(Duration::from_millis(u64::from(number) * 2));
            recorder.count(number % 20, &format!("{:0>256}", number / 20 % 400), usage);
        }
        kept = Some(recorder);
    });
    let counted = kept.expect("a recorder").size().1;
    let taken = usize::try_from(taken.bytes_current).expect("not negative");
    assert!(taken <= counted && counted - taken < counted / 5, "{taken} of {counted} bytes");
}

#[test]
fn keys_are_hashed_by_a_random_key() {
    let hashes = || {
        let recorder = Recorder::new(MAX_BYTES);
        (0..100_u32).map(|number| recorder.hasher.hash_one(number)).collect::<Vec<_>>()
    };
    let (one, other) = (hashes(), hashes());
    let same = one.iter().zip(&other).filter(|(one, other)| one == other).count();
    assert!(same < 3, "{same} of 100 keys have the same hash in two recorders");
}

#[test]
fn rules_are_counted_by_name_until_they_are_gone() {
    let top_keys = TopKeys::start().expect("a thread");
    let [pay, of_shop] = ["", "shop"].map(|project| StatsKey::of_rule(project, "pay"));
    let rule = top_keys.rule(&pay);
    queue::push(&rule.queue, *rule.id, b"alice", Usage { taken: 5, ..Usage::default() });
    queue::push(
        &rule.queue,
        *rule.id,
        "long".repeat(100).as_bytes(),
        Usage { taken: 3, ..Usage::default() },
    );
    let again = top_keys.rule(&pay);
    drop(rule);
    let _other = top_keys.rule(&of_shop);
    let window = |project, rule| {
        TopKeys::flush();
        let rule = StatsKey::of_rule(project, rule);
        let found = top_keys.windows(TopKind::Used, Window::Hour, |key| *key == rule);
        found.into_iter().next().map(|(_, counts)| counts)
    };
    // The thread that counts may still have the batch.
    let mut found = Summary::default();
    while found.total() < 8 {
        found = window("", "pay").expect("a rule");
        thread::yield_now();
    }
    let keys: Vec<(&str, u64)> =
        found.counters().iter().map(|counter| (&*counter.key, counter.least)).collect();
    let [("alice", 5), (hash, 3)] = keys[..] else { panic!("{keys:?}") };
    assert!(hash.starts_with('#') && hash.len() == 33, "{hash}");
    assert!(is_hash(hash) && !is_hash("alice"), "{hash}");
    assert_eq!(top_keys.long_key("", hash), Some("long".repeat(100)));
    assert_eq!(top_keys.long_key("shop", hash), None);
    assert_eq!(window("", "other"), None);
    assert_eq!(window("blog", "pay"), None);
    assert_eq!(window("shop", "pay"), Some(Summary::default()));
    drop(again);
    assert_eq!(window("", "pay"), None);
}
