//! Logs and secrets of the fleet of one process, over restarts of the process.

#![cfg(feature = "journal")]

use std::fs;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Waker};
use std::time::Duration;

use rlaas_limiter::clock::{Clock, Deadline};
use rlaas_limiter::fleet::{
    Fleet, LogEntry, LogRange, MAX_VALUES, NewEntry, OutOfBounds, ProjectLog,
};
use rlaas_limiter::journal::{Change, JournalSettings, Space};
use rlaas_limiter::observer::{NoObserver, Observer, RuleObserver, StoreEvent};
use rlaas_limiter::rules::RuleInfo;
use rlaas_limiter::store::{MemorySettings, MemoryStore, Store, StoreError};

fn folder(test: &str) -> PathBuf {
    std::env::temp_dir().join(format!("rlaas-fleet-{test}-{}", std::process::id()))
}

fn open(folder: &Path) -> (MemoryStore, Fleet) {
    open_observed(folder, Arc::new(NoObserver))
}

fn open_observed(folder: &Path, observer: Arc<dyn Observer>) -> (MemoryStore, Fleet) {
    let (settings, journal) = (MemorySettings::default(), JournalSettings::new(folder));
    let store = MemoryStore::open(settings, &journal, Clock::default(), observer);
    let store = store.expect("a journal");
    (store.clone(), Fleet::new(&Store::Memory(store)))
}

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(30))
}

async fn contents(fleet: &Fleet, log: &str) -> Vec<String> {
    let entries = fleet.read(log, LogRange::default(), 100, soon()).await.expect("entries");
    entries.into_iter().map(|entry| String::from_utf8(entry.content).expect("text")).collect()
}

#[tokio::test]
async fn entries_and_secrets_outlive_the_process() {
    let folder = folder("restart");
    let (store, fleet) = open(&folder);
    let mut ids = Vec::new();
    for number in 0..10 {
        let entry = format!("entry {number}");
        ids.push(fleet.append("audit", entry.as_bytes(), 3, soon()).await.expect("appended"));
        fleet.append("other", entry.as_bytes(), 1_000, soon()).await.expect("appended");
    }
    let minute = Duration::from_secs(60);
    let claim = async |fleet: &Fleet, name: &str| {
        fleet.claim("claims", name, b"claimed", minute, soon()).await.expect("an answer")
    };
    for name in ["one", "two"] {
        assert_eq!(claim(&fleet, name).await, None);
    }
    fleet.put("claims", "one", b"answered", minute, soon()).await.expect("a value");
    fleet.put("claims", "two", b"", Duration::from_millis(1), soon()).await.expect("a value");
    fleet.put("instances", "this", b"", minute, soon()).await.expect("a value");
    let secret = fleet.secret("secret", [1; 32], soon()).await.expect("a secret");
    let kept = contents(&fleet, "audit").await;
    assert_eq!(kept, ["entry 9", "entry 8", "entry 7"]);
    store.close_journal();
    let error = fleet.append("audit", b"late", 3, soon()).await.expect_err("closed");
    assert!(matches!(error, StoreError::Journal(_)), "{error}");
    assert!(error.to_string().contains("store.memory.journal"), "{error}");
    assert!(!error.is_ambiguous());
    assert_eq!(contents(&fleet, "audit").await, kept);

    let (store, fleet) = open(&folder);
    assert_eq!(contents(&fleet, "audit").await, kept);
    assert_eq!(contents(&fleet, "other").await.len(), 10);
    assert_eq!(fleet.secret("secret", [2; 32], soon()).await.expect("a secret"), secret);
    assert_eq!(claim(&fleet, "one").await.as_deref(), Some(&b"answered"[..]));
    // Its millisecond may not be over: the restart is fast.
    while let Some(held) = claim(&fleet, "two").await {
        assert!(held.is_empty());
    }
    assert!(fleet.values("instances", soon()).await.expect("values").is_empty());
    let next = fleet.append("audit", b"next", 3, soon()).await.expect("appended");
    assert!(ids.iter().all(|id| *id < next), "{ids:?} {next}");
    assert_eq!(contents(&fleet, "audit").await, ["next", "entry 9", "entry 8"]);
    store.close_journal();
    fs::remove_dir_all(&folder).expect("a folder");
}

#[tokio::test]
async fn entries_of_a_quiet_project_outlive_those_of_a_busy_one_and_the_process() {
    let folder = folder("projects");
    let (store, fleet) = open(&folder);
    let append = async |fleet: &Fleet, project, text: &str| {
        let content = text.as_bytes();
        let entry = NewEntry { content, max_entries: 10, max_project_entries: 2, ttl: None };
        let of = ProjectLog { log: "audit", project };
        fleet.append_of_project(of, entry, soon()).await.expect("appended");
    };
    let read = async |fleet: &Fleet, project| {
        let of = ProjectLog { log: "audit", project };
        let entries = fleet.read_of_project(of, LogRange::default(), 100, soon()).await;
        let text = |entry: LogEntry| String::from_utf8(entry.content).expect("text");
        entries.expect("entries").into_iter().map(text).collect::<Vec<_>>()
    };
    append(&fleet, "quiet", "a").await;
    append(&fleet, "", "b").await;
    for number in 0..30 {
        append(&fleet, "busy", &number.to_string()).await;
    }
    append(&fleet, "quiet", "c").await;
    let assert_kept = async |fleet: &Fleet| {
        assert_eq!(read(fleet, "quiet").await, ["c", "a"]);
        assert_eq!(read(fleet, "busy").await, ["29", "28", "27", "26", "25", "24", "23"]);
        let all = ["c", "29", "28", "27", "26", "25", "24", "23", "b", "a"];
        assert_eq!(read(fleet, "").await, all);
    };
    assert_kept(&fleet).await;
    store.close_journal();
    let (store, fleet) = open(&folder);
    assert_kept(&fleet).await;
    append(&fleet, "quiet", "d").await;
    assert_eq!(read(&fleet, "quiet").await, ["d", "c", "a"]);
    assert_eq!(read(&fleet, "busy").await.len(), 6);
    store.close_journal();
    let (store, fleet) = open(&folder);
    assert_eq!(read(&fleet, "").await.len(), 10);
    store.close_journal();
    fs::remove_dir_all(&folder).expect("a folder");
}

/// Counts the times at which the files grew: once for each sync.
#[derive(Debug, Default)]
struct Syncs(AtomicUsize);

impl Observer for Syncs {
    fn rule(&self, rule: RuleInfo<'_>) -> Arc<dyn RuleObserver> {
        NoObserver.rule(rule)
    }

    fn store(&self, event: StoreEvent) {
        if matches!(event, StoreEvent::JournalLen(_)) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Makes the thread of the journal wait until the sender is dropped.
fn occupy(store: &MemoryStore) -> mpsc::Sender<()> {
    let (sender, receiver) = mpsc::channel::<()>();
    let put = Change::Put { space: Space::VALUES, name: b"", value: b"", expires_at: None };
    let journal = store.journal().expect("a journal");
    drop(journal.write_then(&[put], move || receiver.recv().expect_err("nothing is sent")));
    sender
}

/// Polls a future that has to wait.
fn begin<T>(future: &mut Pin<Box<impl Future<Output = T>>>) {
    let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "the thread of the journal is occupied");
}

#[tokio::test]
async fn changes_that_wait_together_are_on_disk_after_one_sync() {
    let folder = folder("together");
    let syncs = Arc::new(Syncs::default());
    let (store, fleet) = open_observed(&folder, syncs.clone());
    let occupied = occupy(&store);
    let before = syncs.0.load(Ordering::SeqCst);
    let minute = Duration::from_secs(60);
    let names: Vec<_> = (0..100).map(|number| format!("{number:03}")).collect();
    let append = |name| Box::pin(fleet.append("audit", str::as_bytes(name), 90, soon()));
    let claim = |name| Box::pin(fleet.claim("claims", name, b"claimed", minute, soon()));
    let mut appends: Vec<_> = names.iter().map(|name| append(name)).collect();
    let mut claims: Vec<_> = names.iter().map(|name| claim(name)).collect();
    appends.iter_mut().for_each(begin);
    claims.iter_mut().for_each(begin);
    // An entry is visible once it is on disk. No other call may claim a name meanwhile.
    assert!(contents(&fleet, "audit").await.is_empty());
    let held = fleet.claim("claims", "007", b"another", minute, soon()).await;
    assert_eq!(held.expect("an answer").as_deref(), Some(&b"claimed"[..]));
    // A caller that goes away changes nothing.
    drop((appends.pop(), claims.pop()));
    drop(occupied);
    let mut ids = Vec::new();
    for append in appends {
        ids.push(append.await.expect("appended"));
    }
    for claim in claims {
        assert_eq!(claim.await.expect("claimed"), None);
    }
    assert!(ids.is_sorted());
    // Those of the occupied thread, and all others.
    store.close_journal();
    let syncs = syncs.0.load(Ordering::SeqCst) - before;
    assert!(syncs <= 2, "{syncs} syncs");
    let newest: Vec<_> = names[10..].iter().rev().cloned().collect();
    assert_eq!(contents(&fleet, "audit").await, newest);

    let (store, fleet) = open(&folder);
    assert_eq!(contents(&fleet, "audit").await, newest);
    assert_eq!(fleet.values("claims", soon()).await.expect("values").len(), 100);
    store.close_journal();
    fs::remove_dir_all(&folder).expect("a folder");
}

#[tokio::test]
async fn a_refused_claim_is_free_and_does_not_come_back() {
    let folder = folder("refused");
    let (store, fleet) = open(&folder);
    let minute = Duration::from_secs(60);
    let occupied = occupy(&store);
    let names: Vec<_> = (0..MAX_VALUES).map(|number| number.to_string()).collect();
    let claim = |name| Box::pin(fleet.claim("full", name, b"", minute, soon()));
    let mut claims: Vec<_> = names.iter().map(|name| claim(name)).collect();
    claims.iter_mut().for_each(begin);
    drop(occupied);
    for claim in claims {
        assert_eq!(claim.await.expect("claimed"), None);
    }
    for refused in
        [claim("more").await.map(drop), fleet.put("full", "more", b"", minute, soon()).await]
    {
        let text = refused.expect_err("the map is full").to_string();
        assert_eq!(text, OutOfBounds::Values.to_string());
    }
    store.close_journal();
    // What the journal does not take is not claimed.
    for _ in 0..2 {
        let refused = fleet.claim("claims", "a", b"", minute, soon()).await;
        assert!(matches!(refused, Err(StoreError::Journal(_))), "{refused:?}");
        assert!(fleet.values("claims", soon()).await.expect("values").is_empty());
    }
    let (store, fleet) = open(&folder);
    assert_eq!(fleet.values("full", soon()).await.expect("values").len(), MAX_VALUES);
    store.close_journal();
    fs::remove_dir_all(&folder).expect("a folder");
}
