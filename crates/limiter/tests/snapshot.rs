//! Snapshots of counters: a store that was restarted decides as one that was not; one that has crashed
//! is at most an interval and a writing behind, and never ahead.

#![cfg(feature = "journal")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use rlaas_limiter::algorithm::{Algorithm, Cost, Limit, OnChange};
use rlaas_limiter::clock::{Clock, ManualClock, Micros, Timestamp};
use rlaas_limiter::journal::{JournalError, JournalSettings, SnapshotSettings};
use rlaas_limiter::observer::{NoObserver, Observer, RuleObserver, StoreEvent};
use rlaas_limiter::operation::{Action, HitReply};
use rlaas_limiter::plan::Plan;
use rlaas_limiter::rules::{Request, Rule, RuleInfo, RuleSet};
use rlaas_limiter::store::{MemorySettings, MemoryStore};

const T0: Timestamp = Timestamp::from_millis(1_700_000_100_000);
/// Longer than any test: a snapshot is written when the store is closed.
const NEVER: Duration = Duration::from_secs(3_600);

/// A store with snapshots, and the same without, which is never restarted.
struct Twins {
    folder: PathBuf,
    max_keys: u32,
    clock: ManualClock,
    store: MemoryStore,
    twin: MemoryStore,
}

impl Twins {
    fn new(max_keys: u32) -> Self {
        let folder = new_folder();
        let clock = ManualClock::new(T0);
        let store = open(&folder, max_keys, &clock);
        let (clock_of_twin, settings) = (Clock::Manual(clock.clone()), MemorySettings { max_keys });
        let twin = MemoryStore::new(settings, clock_of_twin, Arc::new(NoObserver));
        Self { folder, max_keys, clock, store, twin }
    }

    /// Restarts the store with snapshots.
    fn restart(&mut self) {
        self.store.close_journal();
        self.store = open(&self.folder, self.max_keys, &self.clock);
    }

    /// Executes the action on both stores, which must reply alike.
    fn execute(&self, rules: &RuleSet, user: &str, action: Action) -> HitReply {
        let replies = [&self.store, &self.twin].map(|store| execute(store, rules, user, action));
        assert_eq!(replies[0], replies[1], "{user}, {action:?}");
        let [reply, _] = replies;
        reply
    }
}

impl Drop for Twins {
    fn drop(&mut self) {
        self.store.close_journal();
        let _kept = fs::remove_dir_all(&self.folder);
    }
}

fn new_folder() -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("rlaas-snapshot-test-{}-{number}", std::process::id());
    std::env::temp_dir().join(name)
}

fn open(folder: &Path, max_keys: u32, clock: &ManualClock) -> MemoryStore {
    try_open(folder, max_keys, clock).expect("a snapshot that is readable")
}

fn try_open(
    folder: &Path,
    max_keys: u32,
    clock: &ManualClock,
) -> Result<MemoryStore, JournalError> {
    let (path, clock) = (folder.to_owned(), Clock::Manual(clock.clone()));
    let store = MemoryStore::new(MemorySettings { max_keys }, clock, Arc::new(NoObserver));
    let settings = SnapshotSettings { path, interval: NEVER };
    store.with_snapshots(&settings, Arc::new(NoObserver))
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
    for algorithm in Algorithm::RATES {
        let mut twins = Twins::new(1_000);
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
    for (seed, algorithm) in (0..cases()).zip(Algorithm::RATES.iter().cycle()) {
        let mut random = Random(seed);
        let window = Micros::from_secs(u64::from(1 + random.below(100)));
        let rules = rules(*algorithm, u64::from(1 + random.below(20)), window);
        let mut twins = Twins::new(1_000);
        let users: Vec<String> = (0..5).map(|user| format!("user {user}")).collect();
        // The latest time so far. A clock that was set back by less than a window is frozen.
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
    for algorithm in Algorithm::RATES {
        let window = Micros::from_secs(60);
        let rules = rules(*algorithm, 5, window);
        let mut twins = Twins::new(1_000);
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
    let mut twins = Twins::new(1_000);
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
    let mut twins = Twins::new(64);
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
    let mut twins = Twins::new(64);
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

/// Names of the files in a folder.
fn names(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).expect("a folder");
    let name = |file: fs::DirEntry| file.file_name().into_string().expect("text");
    let mut names: Vec<_> = files.map(|file| name(file.expect("a file"))).collect();
    names.sort_unstable();
    names
}

/// Closes a store with one key of each algorithm. Returns its snapshot.
fn write_one_of_each(folder: &Path, clock: &ManualClock) -> Vec<u8> {
    let store = open(folder, 1_000, clock);
    for algorithm in Algorithm::RATES {
        let rules = rules(*algorithm, 5, Micros::from_secs(60));
        execute(&store, &rules, algorithm.name(), Action::Take(Cost::new(2)));
    }
    store.close_journal();
    fs::read(folder.join("snapshot.states")).expect("a snapshot")
}

/// Returns the units that are left to the keys of [`write_one_of_each`].
fn left(store: &MemoryStore) -> Vec<i64> {
    let left = |algorithm: &Algorithm| {
        let rules = rules(*algorithm, 5, Micros::from_secs(60));
        execute(store, &rules, algorithm.name(), LOOK).decision.remaining
    };
    Algorithm::RATES.iter().map(left).collect()
}

#[test]
fn a_damaged_snapshot_is_not_used_at_all_and_kept() {
    let (folder, clock) = (new_folder(), ManualClock::new(T0));
    let bytes = write_one_of_each(&folder, &clock);
    let path = folder.join("snapshot.states");
    let kept = folder.join("snapshot.damaged");
    let store = open(&folder, 1_000, &clock);
    assert_eq!(left(&store), [3; Algorithm::RATES.len()]);
    store.close_journal();
    let cuts = (0..bytes.len()).map(|len| bytes[..len].to_vec());
    let flips = (0..8 * bytes.len()).map(|at| {
        let mut damaged = bytes.clone();
        damaged[at / 8] ^= 1 << (at % 8);
        damaged
    });
    let foreign = [bytes.repeat(2), [&bytes[..], b"more"].concat()];
    for damaged in cuts.chain(flips).chain(foreign) {
        let _of_the_case_before = fs::remove_file(&kept);
        fs::write(&path, &damaged).expect("a file");
        let store = open(&folder, 1_000, &clock);
        assert_eq!(left(&store), [5; Algorithm::RATES.len()], "{damaged:?}");
        assert_eq!(fs::read(&kept).expect("the damaged file"), damaged);
        store.close_journal();
        assert_eq!(names(&folder), ["snapshot.damaged", "snapshot.lock", "snapshot.states"]);
    }
    fs::remove_dir_all(&folder).expect("a folder");
}

#[test]
fn a_snapshot_of_another_version_is_refused_by_name_and_stays() {
    let (folder, clock) = (new_folder(), ManualClock::new(T0));
    let mut bytes = write_one_of_each(&folder, &clock);
    let path = folder.join("snapshot.states");
    for version in [1, 3] {
        bytes[8] = version;
        let checksum = crc32fast::hash(&bytes[..16]);
        bytes[16..20].copy_from_slice(&checksum.to_le_bytes());
        fs::write(&path, &bytes).expect("a file");
        let error = try_open(&folder, 1_000, &clock).expect_err("another version").to_string();
        assert!(error.contains("state-dir"), "{error}");
        assert!(error.contains(&path.display().to_string()), "{error}");
        assert!(error.contains(&format!("format {version}")), "{error}");
        assert_eq!(fs::read(&path).expect("the same file"), bytes);
    }
    fs::remove_dir_all(&folder).expect("a folder");
}

#[test]
fn a_folder_has_snapshots_and_a_journal_of_one_process() {
    let (folder, clock) = (new_folder(), ManualClock::new(T0));
    let settings = MemorySettings::default();
    let (journal, manual) = (JournalSettings::new(&folder), Clock::Manual(clock.clone()));
    let snapshots = SnapshotSettings { path: folder.clone(), interval: NEVER };
    let store = MemoryStore::open(settings, &journal, manual, Arc::new(NoObserver));
    let store = store.expect("a journal").with_snapshots(&snapshots, Arc::new(NoObserver));
    let store = store.expect("a folder for both");
    let error = try_open(&folder, 1_000, &clock).expect_err("the folder is in use").to_string();
    assert!(error.contains("another process uses"), "{error}");
    store.close_journal();
    // What a crash leaves of a snapshot is removed at the next start, and nothing else.
    fs::write(folder.join("snapshot.tmp"), b"half").expect("a file");
    open(&folder, 1_000, &clock).close_journal();
    let expected = ["changes-0000000001.log", "lock", "snapshot.lock", "snapshot.states"];
    assert_eq!(names(&folder), expected);
    fs::remove_dir_all(&folder).expect("a folder");
}

/// Reports each snapshot, with the takes of each user before the snapshot began.
#[derive(Debug)]
struct Reports {
    taken: Arc<[AtomicU32]>,
    at_last: Mutex<Vec<u32>>,
    sender: Mutex<mpsc::Sender<Vec<u32>>>,
}

impl Observer for Reports {
    fn rule(&self, rule: RuleInfo<'_>) -> Arc<dyn RuleObserver> {
        NoObserver.rule(rule)
    }

    fn store(&self, event: StoreEvent) {
        if matches!(event, StoreEvent::SnapshotWritten(_)) {
            // The next snapshot begins after this.
            let taken = self.taken.iter().map(|taken| taken.load(Ordering::SeqCst)).collect();
            let before = std::mem::replace(&mut *self.at_last.lock().expect("no panic"), taken);
            let _test_is_over = self.sender.lock().expect("no panic").send(before);
        }
    }
}

/// Each snapshot that is written under load is neither ahead of what was taken, nor behind what had
/// been taken when it began, while other keys come and go, so that slots move.
#[test]
fn a_snapshot_under_load_is_not_ahead_and_has_all_that_was_taken_before_it() {
    const USERS: usize = 200;
    const UNITS: u32 = 1_000_000;
    let (folder, copies) = (new_folder(), new_folder());
    fs::create_dir(&copies).expect("a folder");
    let taken: Arc<[AtomicU32]> = (0..USERS).map(|_| AtomicU32::new(0)).collect();
    let (sender, snapshots) = mpsc::channel();
    let at_last = Mutex::new(vec![0; USERS]);
    let reports = Reports { taken: Arc::clone(&taken), at_last, sender: Mutex::new(sender) };
    let settings = MemorySettings { max_keys: 20_000 };
    let store = MemoryStore::new(settings, Clock::default(), Arc::new(NoObserver));
    let snapshot = SnapshotSettings { path: folder.clone(), interval: Duration::from_millis(2) };
    let store = store.with_snapshots(&snapshot, Arc::new(reports)).expect("snapshots");
    let rules = rules(Algorithm::Gcra, UNITS.into(), Micros::from_secs(366 * 24 * 60 * 60));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for from in [0, 1] {
            let (store, rules, taken, is_over) = (&store, &rules, &taken, &is_over);
            scope.spawn(move || {
                let mut random = Random(from);
                while !is_over.load(Ordering::SeqCst) {
                    // Each thread has its own users, so that takes and their number agree.
                    let user =
                        2 * random.below(100) as usize + usize::try_from(from).expect("0 or 1");
                    execute(store, rules, &user.to_string(), Action::Take(Cost::ONE));
                    taken[user].fetch_add(1, Ordering::SeqCst);
                    let other = format!("other {}", random.below(2_000));
                    let action =
                        if random.below(2) == 0 { Action::Reset } else { Action::Take(Cost::ONE) };
                    execute(store, rules, &other, action);
                }
            });
        }
        for _ in 0..cases() {
            let least = snapshots.recv().expect("a snapshot");
            // A later one may be there by now: it is not behind this one.
            let copy = copies.join("snapshot.states");
            fs::copy(folder.join("snapshot.states"), &copy).expect("a copy");
            let most: Vec<_> = taken.iter().map(|taken| taken.load(Ordering::SeqCst) + 1).collect();
            let settings_of_copy = SnapshotSettings { path: copies.clone(), interval: NEVER };
            let restored = MemoryStore::new(settings, Clock::default(), Arc::new(NoObserver));
            let restored = restored.with_snapshots(&settings_of_copy, Arc::new(NoObserver));
            let restored = restored.expect("a snapshot");
            assert!(!copies.join("snapshot.damaged").exists());
            for user in 0..USERS {
                let left = execute(&restored, &rules, &user.to_string(), LOOK).decision.remaining;
                let used = i64::from(UNITS) - left;
                // A unit comes back every 31 s.
                let least = i64::from(least[user].saturating_sub(1));
                let most = i64::from(most[user]);
                assert!((least..=most).contains(&used), "{user}: {used}, not {least} to {most}");
            }
            restored.close_journal();
        }
        is_over.store(true, Ordering::SeqCst);
    });
    store.close_journal();
    for folder in [folder, copies] {
        fs::remove_dir_all(&folder).expect("a folder");
    }
}

/// With `SNAPSHOT_BENCH` set: bytes and seconds of a snapshot of a million ids, and the times of
/// decisions meanwhile and without. The profile `release` shows what a server does.
#[expect(clippy::disallowed_methods, reason = "decisions are timed one by one")]
#[test]
fn a_million_ids_are_restored() {
    use std::time::Instant;

    let ids: u32 = if std::env::var_os("SNAPSHOT_BENCH").is_some() { 1_000_000 } else { 20_000 };
    let folder = new_folder();
    let settings = MemorySettings { max_keys: 2 * ids };
    let rules = rules(Algorithm::Gcra, 1_000, Micros::from_secs(24 * 60 * 60));
    let snapshot = SnapshotSettings { path: folder.clone(), interval: NEVER };
    let open = || {
        let store = MemoryStore::new(settings, Clock::default(), Arc::new(NoObserver));
        store.with_snapshots(&snapshot, Arc::new(NoObserver)).expect("snapshots")
    };
    let store = open();
    for user in 0..ids {
        execute(&store, &rules, &format!("user {user:08}"), Action::Take(Cost::ONE));
    }
    let decide_until = |is_over: &dyn Fn() -> bool| {
        let mut random = Random(7);
        let mut times = Vec::new();
        while !is_over() {
            let user = format!("user {:08}", random.below(ids));
            let began = Instant::now();
            execute(&store, &rules, &user, Action::Take(Cost::ONE));
            times.push(began.elapsed());
        }
        times.sort_unstable();
        let at = |share: usize| times[(times.len() * share / 1_000).min(times.len() - 1)];
        println!(
            "{} decisions: p50 {:?}, p99 {:?}, p99.9 {:?}, max {:?}",
            times.len(),
            at(500),
            at(990),
            at(999),
            times[times.len() - 1],
        );
    };
    let began = Instant::now();
    decide_until(&|| began.elapsed() > Duration::from_millis(500));
    thread::scope(|scope| {
        let began = Instant::now();
        let writing = scope.spawn(|| store.close_journal());
        decide_until(&|| writing.is_finished());
        println!("{:?} for a snapshot", began.elapsed());
    });
    let len = fs::metadata(folder.join("snapshot.states")).expect("a snapshot").len();
    println!("{len} bytes for {ids} ids");
    let began = Instant::now();
    let restored = open();
    println!("{:?} to restore", began.elapsed());
    let counted = (0..ids).filter(|user| {
        let look = execute(&restored, &rules, &format!("user {user:08}"), LOOK);
        look.decision.remaining < 1_000
    });
    assert_eq!(counted.count(), ids as usize);
    restored.close_journal();
    fs::remove_dir_all(&folder).expect("a folder");
}
