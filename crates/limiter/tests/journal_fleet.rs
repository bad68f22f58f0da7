//! Logs and secrets of the fleet of one process, over restarts of the process.

#![cfg(feature = "journal")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rlaas_limiter::clock::{Clock, Deadline};
use rlaas_limiter::fleet::{Fleet, LogRange};
use rlaas_limiter::journal::JournalSettings;
use rlaas_limiter::observer::NoObserver;
use rlaas_limiter::store::{MemorySettings, MemoryStore, Store, StoreError};

fn folder(test: &str) -> PathBuf {
    std::env::temp_dir().join(format!("rlaas-fleet-{test}-{}", std::process::id()))
}

fn open(folder: &Path) -> (MemoryStore, Fleet) {
    let (settings, journal) = (MemorySettings::default(), JournalSettings::new(folder));
    let store = MemoryStore::open(settings, &journal, Clock::default(), Arc::new(NoObserver));
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
    assert_eq!(claim(&fleet, "two").await, None);
    assert!(fleet.values("instances", soon()).await.expect("values").is_empty());
    let next = fleet.append("audit", b"next", 3, soon()).await.expect("appended");
    assert!(ids.iter().all(|id| *id < next), "{ids:?} {next}");
    assert_eq!(contents(&fleet, "audit").await, ["next", "entry 9", "entry 8"]);
    store.close_journal();
    fs::remove_dir_all(&folder).expect("a folder");
}
