//! Files of the journal and of snapshots, with right checksums or without: whatever they have, the store
//! starts, answers, and finds the same after another start. The first byte selects the file; the rest is
//! the file, or its frames, each after its length in two bytes.

#![no_main]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use rlaas_fuzz::RUNTIME;
use rlaas_limiter::algorithm::{Algorithm, Cost, Limit};
use rlaas_limiter::clock::{Clock, Deadline, ManualClock, Micros, Timestamp};
use rlaas_limiter::fleet::{Fleet, LogRange};
use rlaas_limiter::journal::{JournalError, JournalSettings, SnapshotSettings};
use rlaas_limiter::observer::NoObserver;
use rlaas_limiter::operation::{Action, HitReply};
use rlaas_limiter::plan::Plan;
use rlaas_limiter::rules::{Request, Rule, RuleSet};
use rlaas_limiter::store::{MemorySettings, MemoryStore, Store};

/// The folder that is written for each input, in memory where that is possible.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = PathBuf::from("/dev/shm");
    let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
    parent.join(format!("rlaas-fuzz-journal-{}", std::process::id()))
});

/// A rule of each algorithm: of a key with a state of another one they see none.
static RULES: LazyLock<Vec<RuleSet>> = LazyLock::new(|| {
    let limit = Limit::new(5, Micros::from_secs(60)).expect("a limit");
    let rule = |algorithm: &Algorithm| {
        let rule = Rule { overridable: true, ..Rule::new_default(*algorithm, limit) };
        RuleSet::new(rule, Vec::new())
    };
    Algorithm::RATES.iter().map(rule).collect()
});

const MARKER: [u8; 4] = *b"mark";

/// A frame that says that a snapshot is complete.
const END: &[u8] = b"\x05\0\x01\0\0\0\x03";

/// Returns a file with these frames.
fn file(kind: u8, mut records: &[u8]) -> Vec<u8> {
    let mut file = b"rlaasjnl\x02\0".to_vec();
    file.extend([kind, 0]);
    file.extend(MARKER);
    file.extend(crc32fast::hash(&file).to_le_bytes());
    while let Some((len, rest)) = records.split_first_chunk::<2>() {
        let (record, rest) = rest.split_at(usize::from(u16::from_le_bytes(*len)).min(rest.len()));
        records = rest;
        if record.is_empty() {
            continue;
        }
        let len = u32::try_from(record.len()).expect("at most two bytes").to_le_bytes();
        let mut checked = (file.len() as u64).to_le_bytes().to_vec();
        checked.extend(len);
        checked.extend(record);
        file.extend(MARKER);
        file.extend(len);
        file.extend(crc32fast::hash(&checked).to_le_bytes());
        file.extend(record);
    }
    file
}

/// Opens a store, unless a file is of another version.
fn open(folder: &Path) -> Option<MemoryStore> {
    let clock = Clock::Manual(ManualClock::new(Timestamp::from_millis(1_700_000_100_000)));
    let (settings, journal) = (MemorySettings { max_keys: 100 }, JournalSettings::new(folder));
    let interval = Duration::from_secs(3_600);
    let snapshots = SnapshotSettings { path: folder.to_owned(), interval };
    let store = MemoryStore::open(settings, &journal, clock, Arc::new(NoObserver));
    match store.and_then(|store| store.with_snapshots(&snapshots, Arc::new(NoObserver))) {
        Err(JournalError::Version { .. }) => None,
        store => Some(store.expect("a journal and a snapshot")),
    }
}

fn execute(store: &MemoryStore, action: Action) -> Vec<HitReply> {
    let request = Request::user("alice").build().expect("a user");
    let execute = |rules| {
        let plan = Plan::for_request(rules, &request);
        let mut hit = plan.hits[0].for_store().expect("a limit");
        hit.action = action;
        store.execute_one(&hit)
    };
    RULES.iter().map(execute).collect()
}

/// Returns all that was restored, as text.
fn contents(store: &MemoryStore) -> String {
    let store_of_fleet = Store::Memory(store.clone());
    let fleet = Fleet::new(&store_of_fleet);
    RUNTIME.block_on(async {
        let mut all = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = store_of_fleet.list_overrides(&cursor, 7, Deadline::NEVER).await;
            let page = page.expect("memory does not fail");
            all.extend(page.keys.iter().map(|one| format!("{one:?}")));
            let Some(next) = page.next else { break };
            cursor = next;
        }
        all.sort_unstable();
        let range = LogRange::default();
        let audit = fleet.read("audit", range, 1_000, Deadline::NEVER).await.expect("entries");
        let claims = fleet.values("changes", Deadline::NEVER).await.expect("values");
        let looks = execute(store, Action::Peek(Cost::NONE));
        format!("{all:?} {audit:?} {claims:?} {looks:?}")
    })
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, rest)) = data.split_first() else { return };
    let _absent = fs::remove_dir_all(&*FOLDER);
    fs::create_dir(&*FOLDER).expect("a folder");
    let (name, number) =
        [("changes-0000000001.log", 1), ("snapshot.states", 3)][usize::from(kind & 1)];
    let bytes = match kind & 3 {
        0 => file(number, rest),
        1 => file(number, &[rest, END].concat()),
        _ => rest.to_vec(),
    };
    fs::write(FOLDER.join(name), bytes).expect("a file");

    let Some(store) = open(&FOLDER) else { return };
    let restored = contents(&store);
    store.close_journal();
    let store = open(&FOLDER).expect("this version");
    assert_eq!(contents(&store), restored);
    execute(&store, Action::Report(Cost::new(2)));
    execute(&store, Action::Take(Cost::ONE));
    store.close_journal();
    open(&FOLDER).expect("this version").close_journal();
});
