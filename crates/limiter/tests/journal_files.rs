//! Other things under the names of the files of a journal and of snapshots: a symbolic link, a pipe, a folder.

#![cfg(feature = "journal")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rlaas_limiter::clock::Clock;
use rlaas_limiter::journal::{JournalError, JournalSettings, SnapshotSettings};
use rlaas_limiter::observer::NoObserver;
use rlaas_limiter::store::{MemorySettings, MemoryStore};

const NAMES: [&str; 6] = [
    "lock",
    "changes-0000000001.log",
    "changes-0000000001.base",
    "snapshot.lock",
    "snapshot.states",
    "snapshot.damaged",
];

/// A folder that is removed on drop.
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("rlaas-files-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(path.join("state")).expect("a folder");
        Self(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _absent = fs::remove_dir_all(&self.0);
    }
}

/// Opens a store with a journal and snapshots in one folder, and closes it.
fn open(folder: &Path) -> Result<(), JournalError> {
    let (clock, observer) = (Clock::default(), Arc::new(NoObserver));
    let journal = JournalSettings::new(folder);
    let store = MemoryStore::open(MemorySettings::default(), &journal, clock, observer.clone())?;
    let settings =
        SnapshotSettings { path: folder.to_owned(), interval: Duration::from_secs(3_600) };
    store.with_snapshots(&settings, observer)?.close_journal();
    Ok(())
}

/// Puts something else in the place of a file.
fn put(kind: &str, path: &Path, target: &Path) {
    match kind {
        "a link" => symlink(target, path).expect("a link"),
        "a dangling link" => symlink(target.with_extension("none"), path).expect("a link"),
        "a pipe" => assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo").success()),
        _ => fs::create_dir(path).expect("a folder"),
    }
}

#[test]
fn other_things_than_files_are_refused_by_name_and_not_followed() {
    for name in NAMES {
        for kind in ["a link", "a dangling link", "a pipe", "a folder"] {
            let dir = TempDir::new();
            let (state, target) = (dir.0.join("state"), dir.0.join("target"));
            fs::write(&target, "somebody else's").expect("a file");
            fs::set_permissions(&target, fs::Permissions::from_mode(0o666)).expect("its owner");
            let path = state.join(name);
            put(kind, &path, &target);
            let refused = open(&state).expect_err(name);
            assert!(matches!(refused, JournalError::NotOurs { .. }), "{name}, {kind}: {refused}");
            assert!(refused.to_string().contains(name), "{name}, {kind}: {refused}");
            assert_eq!(fs::read(&target).expect("a file"), b"somebody else's");
            let mode = fs::metadata(&target).expect("a file").permissions().mode();
            assert_eq!(mode & 0o777, 0o666, "{name}, {kind}");
            assert!(!target.with_extension("none").exists(), "{name}: nothing is made through it");
        }
    }
}

#[test]
fn a_link_that_comes_later_is_not_followed() {
    let dir = TempDir::new();
    let (state, target) = (dir.0.join("state"), dir.0.join("target"));
    fs::write(&target, "somebody else's").expect("a file");
    open(&state).expect("a new folder");
    let (clock, observer) = (Clock::default(), Arc::new(NoObserver));
    let store = MemoryStore::new(MemorySettings::default(), clock, observer.clone());
    let settings = SnapshotSettings { path: state.clone(), interval: Duration::from_secs(3_600) };
    let store = store.with_snapshots(&settings, observer).expect("a snapshot");
    // In the way of the snapshot that is written last.
    symlink(&target, state.join("snapshot.tmp")).expect("a link");
    store.close_journal();
    assert_eq!(fs::read(&target).expect("a file"), b"somebody else's");
    // The folder itself may be a link: where it leads is the owner's choice.
    let link = dir.0.join("link");
    symlink(&state, &link).expect("a link");
    open(&link).expect("the folder");
}
