//! The journal: what was written is restored, whatever happens to the process or to its files.

#![cfg(feature = "journal")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rlaas_limiter::clock::{Clock, ManualClock, Timestamp};
use rlaas_limiter::journal::{
    Change, Journal, JournalError, JournalSettings, MAX_CHANGE_LEN, Space,
};
use rlaas_limiter::observer::{NoObserver, Observer, RuleObserver, StoreEvent};
use rlaas_limiter::rules::RuleInfo;

/// A folder that is removed on drop.
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("rlaas-journal-test-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    /// Returns the files with this extension, oldest first.
    fn files(&self, extension: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).expect("a folder");
        let paths = entries.map(|entry| entry.expect("a file").path());
        let mut files: Vec<_> =
            paths.filter(|path| path.extension().is_some_and(|of| of == extension)).collect();
        files.sort_unstable();
        files
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _absent = fs::remove_dir_all(&self.0);
    }
}

fn try_open(folder: &Path) -> Result<Journal, JournalError> {
    Journal::open(&JournalSettings::new(folder), Clock::default(), Arc::new(NoObserver))
}

fn open(folder: &TempDir) -> Journal {
    try_open(&folder.0).expect("a journal")
}

fn put<'a>(name: &'a str, value: &'a [u8]) -> Change<'a> {
    let (name, space) = (name.as_bytes(), Space::CONTROL);
    Change::Put { space, name, value, expires_at: None }
}

fn delete(name: &str) -> Change<'_> {
    Change::Delete { space: Space::CONTROL, name: name.as_bytes() }
}

fn values(journal: &Journal) -> BTreeMap<String, Vec<u8>> {
    let values = journal.take_restored(Space::CONTROL).into_iter();
    values.map(|one| (String::from_utf8_lossy(&one.name).into(), one.value.into())).collect()
}

fn expected(values: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
    values.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect()
}

#[tokio::test]
async fn values_are_restored_in_the_order_of_their_last_put() {
    let folder = TempDir::new();
    let journal = open(&folder);
    journal.write(&[put("a", b"1"), put("b", b"2")]).await.expect("written");
    journal.write(&[delete("b"), put("c", b"3"), put("a", b"4")]).await.expect("written");
    journal.close();
    for _ in 0..2 {
        let journal = open(&folder);
        let names: Vec<_> =
            journal.take_restored(Space::CONTROL).into_iter().map(|one| one.name).collect();
        assert_eq!(names, [Box::from(*b"c"), Box::from(*b"a")]);
        journal.close();
    }
}

#[tokio::test]
async fn expired_values_are_not_restored() {
    let folder = TempDir::new();
    let clock = ManualClock::new(Timestamp::from_millis(10));
    let settings = JournalSettings::new(&folder.0);
    let open = || {
        Journal::open(&settings, Clock::Manual(clock.clone()), Arc::new(NoObserver)).expect("open")
    };
    let journal = open();
    for millis in [20, 30] {
        let expires_at = Some(Timestamp::from_millis(millis));
        let name = millis.to_string();
        let change =
            Change::Put { space: Space::CONTROL, name: name.as_bytes(), value: b"", expires_at };
        journal.write(&[change]).await.expect("written");
    }
    for (now, left) in [(19, 2), (20, 1), (29, 1), (30, 0)] {
        journal.close();
        clock.set(Timestamp::from_millis(now));
        let next = open();
        assert_eq!(next.take_restored(Space::CONTROL).len(), left, "at {now} ms");
        next.close();
    }
}

#[tokio::test]
async fn changes_are_applied_in_the_order_of_the_journal() {
    let folder = TempDir::new();
    let journal = open(&folder);
    let applied = Arc::new(Mutex::new(Vec::new()));
    let writes: Vec<_> = (0..1_000_u32)
        .map(|number| {
            let applied = Arc::clone(&applied);
            let value = number.to_le_bytes();
            journal.write_then(&[put("one", &value)], move || {
                applied.lock().expect("no panic").push(number);
            })
        })
        .collect();
    // Half of the callers go away. Their changes are written and applied all the same.
    for (position, write) in writes.into_iter().enumerate() {
        if position % 2 == 0 {
            write.await.expect("written");
        }
    }
    journal.close();
    assert!(applied.lock().expect("no panic").iter().copied().eq(0..1_000));
    let journal = open(&folder);
    assert_eq!(values(&journal)["one"], 999_u32.to_le_bytes());
}

#[tokio::test]
async fn files_are_private_and_the_folder_is_locked() {
    let folder = TempDir::new();
    let journal = open(&folder);
    let mode = |path: &Path| fs::metadata(path).expect("a file").permissions().mode() & 0o777;
    assert_eq!(mode(&folder.0), 0o700);
    for file in fs::read_dir(&folder.0).expect("a folder") {
        let path = file.expect("a file").path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
    let error = try_open(&folder.0).expect_err("the folder is in use").to_string();
    assert!(error.contains("another process uses"), "{error}");
    assert!(error.contains("store.memory.journal.path"), "{error}");
    assert!(error.contains(&folder.0.display().to_string()), "{error}");
    journal.close();
    drop(journal);
    drop(open(&folder));
}

#[tokio::test]
async fn files_that_others_may_read_are_made_private() {
    let folder = TempDir::new();
    let log = write_three(&folder).await;
    let base = log.with_extension("base");
    fs::rename(&log, &base).expect("a base");
    open(&folder).close();
    let foreign = folder.0.join("notes.txt");
    fs::write(&foreign, b"").expect("a file");
    let files = || fs::read_dir(&folder.0).expect("a folder").map(|file| file.expect("a file"));
    for file in files() {
        let mode = fs::Permissions::from_mode(0o644);
        fs::set_permissions(file.path(), mode).expect("a mode");
    }
    let journal = open(&folder);
    for file in files() {
        let mode = file.metadata().expect("a file").permissions().mode() & 0o777;
        let wanted = if file.path() == foreign { 0o644 } else { 0o600 };
        assert_eq!(mode, wanted, "{}", file.path().display());
    }
    assert_eq!(files().count(), 4);
    assert_eq!(values(&journal), expected(&[("a", "a"), ("b", "b"), ("c", "c")]));
}

#[tokio::test]
async fn changes_that_are_too_long_are_refused_alone() {
    let folder = TempDir::new();
    let journal = open(&folder);
    let value = vec![0; MAX_CHANGE_LEN];
    let error = journal.write(&[put("a", &value)]).await.expect_err("too long");
    assert!(matches!(error, JournalError::TooLarge { .. }), "{error}");
    journal.write(&[put("b", b"1")]).await.expect("written");
    journal.close();
    let error = journal.write(&[put("c", b"1")]).await.expect_err("closed");
    assert!(matches!(error, JournalError::Closed), "{error}");
    assert_eq!(values(&open(&folder)), expected(&[("b", "1")]));
}

/// Writes three values and returns the only log.
async fn write_three(folder: &TempDir) -> PathBuf {
    let journal = open(folder);
    for name in ["a", "b", "c"] {
        journal.write(&[put(name, name.as_bytes())]).await.expect("written");
    }
    journal.close();
    let logs = folder.files("log");
    assert_eq!(logs.len(), 1, "{logs:?}");
    logs[0].clone()
}

#[tokio::test]
async fn a_torn_end_is_cut_off_and_written_over() {
    let folder = TempDir::new();
    let log = write_three(&folder).await;
    let whole = fs::read(&log).expect("a log");
    let frame = (whole.len() - 20) / 3;
    for cut in 1..=whole.len() {
        fs::remove_dir_all(&folder.0).expect("a folder");
        fs::create_dir(&folder.0).expect("a folder");
        fs::write(&log, &whole[..whole.len() - cut]).expect("a log");
        let journal = open(&folder);
        let kept = 3 - cut.div_ceil(frame).min(3);
        let left = &[("a", "a"), ("b", "b"), ("c", "c")][..kept];
        assert_eq!(values(&journal), expected(left), "{cut} bytes cut");
        journal.write(&[put("d", b"d")]).await.expect("written");
        journal.close();
        let left = [left, &[("d", "d")]].concat();
        assert_eq!(values(&open(&folder)), expected(&left), "{cut} bytes cut");
        assert!(folder.files("damaged").is_empty(), "{cut} bytes cut");
    }
}

#[tokio::test]
async fn damage_loses_its_record_alone_and_the_file_is_kept() {
    let folder = TempDir::new();
    let log = write_three(&folder).await;
    let mut bytes = fs::read(&log).expect("a log");
    let middle = 20 + (bytes.len() - 20) / 2;
    bytes[middle] ^= 1;
    fs::write(&log, &bytes).expect("a log");
    let journal = open(&folder);
    assert_eq!(values(&journal), expected(&[("a", "a"), ("c", "c")]));
    let kept = folder.files("damaged");
    assert_eq!(kept.len(), 1);
    assert_eq!(fs::read(&kept[0]).expect("the damaged file"), bytes);
    assert_eq!(fs::metadata(&kept[0]).expect("the damaged file").mode() & 0o777, 0o600);
    journal.close();
    // The files were replaced by whole ones.
    let journal = open(&folder);
    assert_eq!(values(&journal), expected(&[("a", "a"), ("c", "c")]));
    assert_eq!(folder.files("base").len(), 1);
    drop(journal);
}

#[tokio::test]
async fn an_insert_keeps_the_whole_file_aside_until_that_is_accepted() {
    let folder = TempDir::new();
    let log = write_three(&folder).await;
    let mut bytes = fs::read(&log).expect("a log");
    bytes.insert(20 + (bytes.len() - 20) / 2, 0);
    fs::write(&log, &bytes).expect("a log");
    for start in 0..3 {
        let journal = open(&folder);
        assert!(journal.is_damaged(), "start {start}");
        assert_eq!(values(&journal)["a"], b"a");
        journal.write(&[put("d", b"d")]).await.expect("written");
        journal.close();
        let kept = folder.files("damaged");
        assert_eq!(fs::read(&kept[0]).expect("the damaged file"), bytes, "start {start}");
    }
    let accepted = Journal::accept(&folder.0).expect("a folder");
    assert_eq!(accepted, folder.files("accepted"));
    assert_eq!(fs::read(&accepted[0]).expect("the damaged file"), bytes);
    let journal = open(&folder);
    assert!(!journal.is_damaged());
    assert_eq!(values(&journal), expected(&[("a", "a"), ("d", "d")]));
    assert!(Journal::accept(&folder.0).expect("a folder").is_empty());
}

#[tokio::test]
async fn a_byte_inserted_anywhere_before_the_last_record_is_noticed() {
    let folder = TempDir::new();
    let log = write_three(&folder).await;
    let whole = fs::read(&log).expect("a log");
    let last = whole.len() - (whole.len() - 20) / 3;
    for at in 20..=last {
        for byte in [0, 1, whole[at], 0xff] {
            fs::remove_dir_all(&folder.0).expect("a folder");
            fs::create_dir(&folder.0).expect("a folder");
            let mut bytes = whole.clone();
            bytes.insert(at, byte);
            fs::write(&log, &bytes).expect("a log");
            let journal = open(&folder);
            assert!(journal.is_damaged(), "{byte} at {at}");
            journal.close();
        }
    }
}

#[tokio::test]
async fn a_whole_record_that_was_damaged_at_the_end_is_not_taken_for_a_torn_one() {
    let folder = TempDir::new();
    let log = write_three(&folder).await;
    let whole = fs::read(&log).expect("a log");
    let last = whole.len() - (whole.len() - 20) / 3;
    for bit in 0..(whole.len() - last) * 8 {
        fs::remove_dir_all(&folder.0).expect("a folder");
        fs::create_dir(&folder.0).expect("a folder");
        let mut bytes = whole.clone();
        bytes[last + bit / 8] ^= 1 << (bit % 8);
        fs::write(&log, &bytes).expect("a log");
        let journal = open(&folder);
        assert!(journal.is_damaged(), "bit {bit}");
        journal.close();
    }
    // Zeros that a crash has left are no damage.
    fs::remove_dir_all(&folder.0).expect("a folder");
    fs::create_dir(&folder.0).expect("a folder");
    fs::write(&log, [whole, vec![0; 5_000]].concat()).expect("a log");
    let journal = open(&folder);
    assert!(!journal.is_damaged());
    assert_eq!(values(&journal), expected(&[("a", "a"), ("b", "b"), ("c", "c")]));
}

#[tokio::test]
async fn a_damaged_file_that_cannot_be_kept_stops_the_start() {
    let folder = TempDir::new();
    let log = write_three(&folder).await;
    let mut bytes = fs::read(&log).expect("a log");
    bytes[40] ^= 1;
    fs::write(&log, &bytes).expect("a log");
    // A folder has the name.
    fs::create_dir(log.with_extension("damaged")).expect("a folder");
    let error = try_open(&folder.0).expect_err("it can't be kept").to_string();
    assert!(error.contains("changes-0000000001.damaged"), "{error}");
    assert_eq!(fs::read(&log).expect("the log"), bytes);
}

#[tokio::test]
async fn a_file_with_a_damaged_header_does_not_stop_the_start() {
    let folder = TempDir::new();
    let log = write_three(&folder).await;
    let mut bytes = fs::read(&log).expect("a log");
    bytes[3] ^= 1;
    fs::write(&log, &bytes).expect("a log");
    let journal = open(&folder);
    assert_eq!(values(&journal), BTreeMap::new());
    assert_eq!(folder.files("damaged").len(), 1);
    journal.write(&[put("d", b"d")]).await.expect("written");
    journal.close();
    assert_eq!(values(&open(&folder)), expected(&[("d", "d")]));
}

/// Records the events of a journal.
#[derive(Debug, Default)]
struct Events {
    len: AtomicU64,
    is_failing: Mutex<Vec<bool>>,
}

impl Observer for Events {
    fn rule(&self, rule: RuleInfo<'_>) -> Arc<dyn RuleObserver> {
        NoObserver.rule(rule)
    }

    fn store(&self, event: StoreEvent) {
        match event {
            StoreEvent::JournalLen(len) => self.len.store(len, Ordering::SeqCst),
            StoreEvent::JournalFailing(is_failing) => {
                self.is_failing.lock().expect("no panic").push(is_failing);
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn compaction_keeps_what_counts_and_bounds_the_files() {
    let folder = TempDir::new();
    let events = Arc::new(Events::default());
    let settings = JournalSettings::new(&folder.0);
    let journal = Journal::open(&settings, Clock::default(), events.clone()).expect("a journal");
    let mut kept = BTreeMap::new();
    let mut written = 0;
    for round in 0..60_u8 {
        for name in 0..10 {
            let (name, value) = (format!("name {name}"), vec![round; 50_000]);
            journal.write(&[put(&name, &value)]).await.expect("written");
            written += value.len() as u64;
            kept.insert(name, value);
        }
        let gone = format!("name {}", round % 10);
        journal.write(&[delete(&gone)]).await.expect("written");
        kept.remove(&gone);
    }
    journal.close();
    assert!(written > 29_000_000, "{written}");
    let files = fs::read_dir(&folder.0).expect("a folder");
    let on_disk: u64 =
        files.map(|file| file.and_then(|file| file.metadata()).expect("a file").len()).sum();
    // Twice: a compaction may be due.
    assert!(on_disk < 12_000_000, "{on_disk} bytes on disk");
    assert_eq!(events.len.load(Ordering::SeqCst), on_disk);
    assert!(events.is_failing.lock().expect("no panic").is_empty());
    assert_eq!(folder.files("base").len(), 1);
    assert_eq!(values(&open(&folder)), kept);
}

#[tokio::test]
async fn files_of_another_version_are_refused_by_name_and_stay() {
    let folder = TempDir::new();
    let log = write_three(&folder).await;
    // As if the process had ended before a compaction removed the log.
    fs::copy(&log, log.with_extension("base")).expect("a base");
    let mut bytes = fs::read(&log).expect("a log");
    for version in [1, 3] {
        bytes[8] = version;
        let checksum = crc32fast::hash(&bytes[..16]);
        bytes[16..20].copy_from_slice(&checksum.to_le_bytes());
        fs::write(&log, &bytes).expect("a log");
        let error = try_open(&folder.0).expect_err("another version");
        assert!(matches!(error, JournalError::Version { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&format!("{} ", log.display())), "{text}");
        assert!(text.contains(&format!("format {version}, ")), "{text}");
        assert_eq!(fs::read(&log).expect("the same file"), bytes);
        assert!(log.with_extension("base").exists() && folder.files("damaged").is_empty());
    }
}

#[tokio::test]
async fn files_that_a_compaction_replaced_are_removed_at_the_start() {
    let folder = TempDir::new();
    let log = write_three(&folder).await;
    // A base of the same number without `b`, as if the process had ended before the removal.
    let journal = open(&folder);
    journal.write(&[delete("b")]).await.expect("written");
    journal.close();
    let whole = fs::read(&log).expect("a log");
    fs::write(log.with_extension("base"), &whole).expect("a base");
    fs::write(folder.0.join("changes-0000000009.tmp"), &whole[..30]).expect("a file");
    let journal = open(&folder);
    assert_eq!(values(&journal), expected(&[("a", "a"), ("c", "c")]));
    assert!(!log.exists());
    assert!(folder.files("tmp").is_empty());
    journal.close();
}
