//! Counters in the journal: a store that was restarted decides as one that was not.

#![cfg(feature = "journal")]

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rlaas_limiter::algorithm::{Algorithm, Cost, Limit, OnChange};
use rlaas_limiter::clock::{Clock, ManualClock, Micros, Timestamp};
use rlaas_limiter::journal::JournalSettings;
use rlaas_limiter::observer::NoObserver;
use rlaas_limiter::operation::{Action, HitReply};
use rlaas_limiter::plan::Plan;
use rlaas_limiter::rules::{Request, Rule, RuleSet};
use rlaas_limiter::store::{MemorySettings, MemoryStore};

const T0: Timestamp = Timestamp::from_millis(1_700_000_100_000);
/// Longer than any test: counters are written when the journal is closed.
const NEVER: Duration = Duration::from_secs(3_600);

/// A store with a journal, and the same without one that is never restarted.
struct Twins {
    folder: PathBuf,
    interval: Duration,
    max_keys: u32,
    clock: ManualClock,
    store: MemoryStore,
    twin: MemoryStore,
}

impl Twins {
    fn new(max_keys: u32, interval: Duration) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("rlaas-counters-test-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let clock = ManualClock::new(T0);
        let store = open(&folder, interval, max_keys, &clock);
        let (clock_of_twin, settings) = (Clock::Manual(clock.clone()), MemorySettings { max_keys });
        let twin = MemoryStore::new(settings, clock_of_twin, Arc::new(NoObserver));
        Self { folder, interval, max_keys, clock, store, twin }
    }

    /// Restarts the store with the journal.
    fn restart(&mut self) {
        self.store.close_journal();
        self.store = open(&self.folder, self.interval, self.max_keys, &self.clock);
    }

    /// Executes the action on both stores, which must reply alike.
    fn execute(&self, rules: &RuleSet, user: &str, action: Action) -> HitReply {
        let replies = [&self.store, &self.twin].map(|store| execute(store, rules, user, action));
        assert_eq!(replies[0], replies[1], "{user}, {action:?}");
        let [reply, _] = replies;
        reply
    }

    fn len_on_disk(&self) -> u64 {
        let files = fs::read_dir(&self.folder).expect("a folder");
        files.map(|file| file.and_then(|file| file.metadata()).expect("a file").len()).sum()
    }
}

impl Drop for Twins {
    fn drop(&mut self) {
        self.store.close_journal();
        let _kept = fs::remove_dir_all(&self.folder);
    }
}

fn open(folder: &PathBuf, interval: Duration, max_keys: u32, clock: &ManualClock) -> MemoryStore {
    let journal = JournalSettings { counters: Some(interval), ..JournalSettings::new(folder) };
    let settings = MemorySettings { max_keys };
    let store =
        MemoryStore::open(settings, &journal, Clock::Manual(clock.clone()), Arc::new(NoObserver));
    store.expect("a journal")
}

fn execute(store: &MemoryStore, rules: &RuleSet, user: &str, action: Action) -> HitReply {
    let request = Request::user(user).build().expect("a user");
    let plan = Plan::for_request(rules, &request);
    let mut hit = plan.hits[0].for_store().expect("a limit");
    hit.action = action;
    store.execute_one(&hit)
}

fn rules(algorithm: Algorithm, units: u64, window: Micros) -> RuleSet {
    let limit = Limit::new(units, window).expect("a limit");
    RuleSet::new(Rule::new_default(algorithm, limit), Vec::new())
}

const LOOK: Action = Action::Peek(Cost::NONE);

/// Numbers from a seed, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        u32::try_from(self.0 >> 33).expect("31 bits") % end
    }
}

/// Number of random cases: `SOAK` asks for more.
fn cases() -> u64 {
    if std::env::var_os("SOAK").is_some() { 1_000 } else { 100 }
}

#[test]
fn limits_by_which_keys_were_counted_survive_a_restart() {
    for algorithm in Algorithm::ALL {
        let mut twins = Twins::new(1_000, NEVER);
        let rules = |units| {
            let limit = Limit::new(units, Micros::from_secs(60)).expect("a limit");
            let rule = Rule::new_default(*algorithm, limit);
            RuleSet::new(Rule { on_change: Some(OnChange::Scale), ..rule }, Vec::new())
        };
        let four = Action::Take(Cost::new(4));
        assert_eq!(twins.execute(&rules(10), "alice", four).decision.remaining, 6);
        twins.restart();
        assert_eq!(twins.execute(&rules(20), "alice", four).decision.remaining, 8);
        twins.restart();
        // The limit before is kept, too: it converts nothing now.
        let by_old = twins.execute(&rules(10), "alice", LOOK).decision.remaining;
        assert_eq!(by_old, if algorithm.has_burst() { 8 } else { 0 }, "{algorithm:?}");
        assert_eq!(twins.execute(&rules(20), "alice", LOOK).decision.remaining, 8);
    }
}

#[test]
fn a_restarted_store_replies_as_one_that_was_not() {
    for (seed, algorithm) in (0..cases()).zip(Algorithm::ALL.iter().cycle()) {
        let mut random = Random(seed);
        let window = Micros::from_secs(u64::from(1 + random.below(100)));
        let rules = rules(*algorithm, u64::from(1 + random.below(20)), window);
        let mut twins = Twins::new(1_000, NEVER);
        let users: Vec<String> = (0..5).map(|user| format!("user {user}")).collect();
        // The latest time so far. A clock that was set back by less than a window is held.
        let (mut now, mut latest) = (T0, T0);
        for _ in 0..30 {
            let user = &users[random.below(5) as usize];
            let cost = Cost::new(1 + random.below(3));
            twins.execute(
                &rules,
                user,
                match random.below(10) {
                    0 => Action::Reset,
                    1 => Action::Credit(cost),
                    2 => Action::Report(cost),
                    3 => LOOK,
                    _ => Action::Take(cost),
                },
            );
            let step = Micros::from_micros(
                window.as_micros() / 2 * u64::from(random.below(1_000)) / 1_000 + 1,
            );
            match random.below(10) {
                0 => now = latest - step,
                1 => twins.restart(),
                2 => {
                    // The clock was set back while the process was away.
                    twins.execute(&rules, user, LOOK);
                    twins.store.close_journal();
                    now = latest - step;
                    twins.clock.set(now);
                    twins.restart();
                }
                3..=6 => now = now + step,
                _ => {}
            }
            latest = latest.max(now);
            twins.clock.set(now);
            // A state that has expired may have been removed, so that it does not live again.
            twins.execute(&rules, user, LOOK);
        }
        twins.restart();
        for user in &users {
            twins.execute(&rules, user, LOOK);
        }
    }
}

#[test]
fn a_clock_that_was_set_back_far_while_the_process_was_away_blocks_nobody() {
    for algorithm in Algorithm::ALL {
        let window = Micros::from_secs(60);
        let rules = rules(*algorithm, 5, window);
        let mut twins = Twins::new(1_000, NEVER);
        twins.execute(&rules, "alice", Action::Take(Cost::new(5)));
        twins.store.close_journal();
        twins.clock.set(T0 - Micros::from_secs(600));
        twins.restart();
        let reply = twins.execute(&rules, "alice", Action::Take(Cost::ONE));
        assert!(reply.decision.is_allowed(), "{algorithm:?}: {reply:?}");
    }
}

#[test]
fn expired_states_are_not_restored() {
    let mut twins = Twins::new(1_000, NEVER);
    let rules = rules(Algorithm::FixedWindow, 5, Micros::from_secs(1));
    for user in 0..100 {
        twins.execute(&rules, &user.to_string(), Action::Take(Cost::ONE));
    }
    twins.store.close_journal();
    twins.clock.set(T0 + Micros::from_secs(60));
    let mut restored = Vec::new();
    twins.restart();
    for user in 0..100 {
        restored.push(twins.execute(&rules, &user.to_string(), LOOK).decision.remaining);
    }
    assert_eq!(restored, [5; 100]);
}

#[test]
fn evicted_keys_do_not_come_back() {
    let mut twins = Twins::new(64, NEVER);
    let rules = rules(Algorithm::Gcra, 5, Micros::from_secs(3_600));
    for user in 0..1_000 {
        twins.execute(&rules, &user.to_string(), Action::Take(Cost::ONE));
    }
    // The candidates of an eviction depend on the order of keys, so the twin is no measure here.
    let remaining = |twins: &Twins| -> Vec<i64> {
        let look = |user: u32| execute(&twins.store, &rules, &user.to_string(), LOOK);
        (0..1_000).map(|user| look(user).decision.remaining).collect()
    };
    let before = remaining(&twins);
    assert_eq!(before.iter().filter(|left| **left == 4).count(), 64);
    twins.restart();
    assert_eq!(remaining(&twins), before);
}

#[test]
fn a_reset_key_does_not_come_back_when_its_slot_is_used_for_another() {
    let mut twins = Twins::new(64, NEVER);
    let rules = rules(Algorithm::TokenBucket, 5, Micros::from_secs(3_600));
    let take = |twins: &Twins, user: &str| {
        execute(&twins.store, &rules, user, Action::Take(Cost::new(5)));
    };
    for user in 0..64 {
        take(&twins, &user.to_string());
    }
    twins.restart();
    for user in 0..64 {
        execute(&twins.store, &rules, &user.to_string(), Action::Reset);
    }
    for user in 100..132 {
        take(&twins, &user.to_string());
    }
    twins.restart();
    for user in 0..64 {
        let left = execute(&twins.store, &rules, &user.to_string(), LOOK).decision.remaining;
        assert_eq!(left, 5, "user {user}");
    }
    for user in 100..132 {
        let left = execute(&twins.store, &rules, &user.to_string(), LOOK).decision.remaining;
        assert_eq!(left, 0, "user {user}");
    }
}

#[test]
fn dumps_bound_the_files_and_lose_nothing() {
    const KEYS: u64 = 20_000;
    let mut twins = Twins::new(100_000, Duration::from_millis(1));
    let rules = rules(Algorithm::TokenBucket, 1_000_000, Micros::from_secs(3_600));
    let mut rounds = 0;
    let mut longest = 0;
    // Each round changes all keys. The dump begins at 16 MiB, and removes what was before it.
    while rounds < 30 || twins.len_on_disk() + (4 << 20) > longest {
        for user in 0..KEYS {
            let user = format!("the user with the number {user}");
            execute(&twins.store, &rules, &user, Action::Take(Cost::ONE));
        }
        rounds += 1;
        longest = longest.max(twins.len_on_disk());
        assert!(rounds < 3_000, "no dump; {longest} bytes");
        assert!(longest < 100 << 20, "{longest} bytes after {rounds} rounds");
    }
    twins.restart();
    for user in (0..KEYS).step_by(100) {
        let user = format!("the user with the number {user}");
        let left = execute(&twins.store, &rules, &user, LOOK).decision.remaining;
        assert_eq!(left, 1_000_000 - rounds, "{user}");
    }
}

#[test]
fn counters_that_are_not_kept_are_removed() {
    let mut twins = Twins::new(1_000, NEVER);
    let rules = rules(Algorithm::Gcra, 5, Micros::from_secs(3_600));
    twins.execute(&rules, "alice", Action::Take(Cost::ONE));
    twins.store.close_journal();
    let clock = Clock::Manual(twins.clock.clone());
    let without = JournalSettings::new(&twins.folder);
    let settings = MemorySettings::default();
    let store = MemoryStore::open(settings, &without, clock, Arc::new(NoObserver));
    store.expect("a journal").close_journal();
    twins.restart();
    let left = execute(&twins.store, &rules, "alice", LOOK).decision.remaining;
    assert_eq!(left, 5);
}
