//! A process with a journal and snapshots is killed under load, at random moments, again and again;
//! its disk is full for a while. What it has acknowledged is there afterwards, and nothing that it
//! has refused.
//!
//! The process is this test binary, with [`FOLDER`] set: it prints a line for each acknowledged
//! change, and for counters how many are on disk. It has many more ids, so that it is writing a
//! snapshot about half of the time.

#![cfg(all(feature = "journal", target_os = "linux"))]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rlaas_limiter::algorithm::{Algorithm, Cost, Limit};
use rlaas_limiter::clock::{Clock, Deadline, Micros, Timestamp};
use rlaas_limiter::control::{KeyGrant, OverrideChange, OverrideKind};
use rlaas_limiter::fleet::{Fleet, LogRange};
use rlaas_limiter::journal::{JournalSettings, SnapshotSettings};
use rlaas_limiter::observer::{NoObserver, Observer, RuleObserver, StoreEvent};
use rlaas_limiter::operation::{Action, HitReply, Shard, StoreRequest};
use rlaas_limiter::plan::Plan;
use rlaas_limiter::rules::{Coupling, Request, Rule, RuleInfo, RuleSet};
use rlaas_limiter::store::{MemorySettings, MemoryStore, Store, StoreError};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// Variable that makes this binary the process under test.
const FOLDER: &str = "RLAAS_JOURNAL_TEST_FOLDER";
/// Variable with the number of the run, by which names of changes differ.
const RUN: &str = "RLAAS_JOURNAL_TEST_RUN";
const INTERVAL: Duration = Duration::from_millis(100);
/// Keys whose units are taken in turn, one rule for each algorithm.
const USERS: u64 = 7;
/// Keys that make snapshots long.
const FILLERS: u64 = 20_000;
const UNITS: u64 = 100_000;
const WINDOW: Micros = Micros::from_secs(366 * 24 * 60 * 60);

/// Rules of all algorithms, of whose units one comes back every 316 s.
fn rules() -> Vec<RuleSet> {
    let limit = Limit::new(UNITS, WINDOW).expect("a limit");
    let rule = |algorithm: &Algorithm| {
        let rule = Rule { overridable: true, ..Rule::new_default(*algorithm, limit) };
        RuleSet::new(rule, Vec::new())
    };
    Algorithm::RATES.iter().map(rule).collect()
}

/// The user and the rule of the take with this number.
fn place(number: u64) -> (String, usize) {
    let key = number % (USERS * 6);
    (format!("user {key}"), usize::try_from(key % 6).expect("below 6"))
}

struct Process {
    store: Store,
    fleet: Fleet,
    rules: Vec<RuleSet>,
}

impl Process {
    fn open(folder: &Path, observer: Arc<dyn Observer>) -> Self {
        let journal = JournalSettings::new(folder);
        let snapshots = SnapshotSettings { path: folder.to_owned(), interval: INTERVAL };
        let (settings, clock) = (MemorySettings::default(), Clock::default());
        let store = MemoryStore::open(settings, &journal, clock, Arc::clone(&observer));
        let store = store.expect("a journal").with_snapshots(&snapshots, observer);
        let store = Store::Memory(store.expect("a snapshot"));
        Self { fleet: Fleet::new(&store), store, rules: rules() }
    }

    async fn execute(
        &self,
        user: &str,
        rule: usize,
        action: Action,
        change: Option<&OverrideChange>,
    ) -> Result<HitReply, StoreError> {
        let request = Request::user(user).build().expect("a user");
        let plan = Plan::for_request(&self.rules[rule], &request);
        let mut hit = plan.hits[0].for_store().expect("a hit");
        (hit.action, hit.change) = (action, change);
        let coupling = Coupling::AllOrNothing;
        let request =
            StoreRequest { hits: &[hit], coupling, shard: Shard(0), once: None, reservation: None };
        let mut reply = self.store.execute(request, Deadline::NEVER).await?;
        Ok(reply.hits.remove(0))
    }

    async fn used(&self, number: u64) -> u64 {
        let (user, rule) = place(number);
        let reply = self.execute(&user, rule, Action::Peek(Cost::NONE), None).await;
        let remaining = reply.expect("a look").decision.remaining;
        UNITS - u64::try_from(remaining).expect("no debt")
    }

    /// Bans a user for a day; every third is let in again. Prints each step that was acknowledged.
    async fn ban(&self, name: &str, is_lifted: bool) {
        let day = Micros::from_secs(24 * 60 * 60);
        let ban = OverrideChange::new(KeyGrant::Banned, day, name.as_bytes()).expect("a ban");
        match self.execute(name, 0, Action::SetOverride, Some(&ban)).await {
            Ok(reply) => {
                let ends_at = reply.applied.expect("a ban in force").ends_at.as_micros();
                print_line(&format!("banned {name} {ends_at}"));
            }
            Err(error) => return print_line(&format!("refused {name} {error}")),
        }
        if is_lifted {
            print_line(&format!("lifting {name}"));
            let kind = OverrideKind::Both;
            match self.execute(name, 0, Action::ClearOverride(kind), None).await {
                Ok(_) => print_line(&format!("lifted {name}")),
                Err(error) => print_line(&format!("refused {name} {error}")),
            }
        }
    }

    async fn append(&self, entry: &str) {
        match self.fleet.append("audit", entry.as_bytes(), 1_000_000, Deadline::NEVER).await {
            Ok(id) => print_line(&format!("appended {entry} {id}")),
            Err(error) => print_line(&format!("refused {entry} {error}")),
        }
    }
}

/// Prints a line with one write, so that a killed process leaves at most one incomplete line.
fn print_line(line: &str) {
    let mut out = std::io::stdout().lock();
    let _parent_is_gone = out.write_all(format!("{line}\n").as_bytes());
    let _parent_is_gone = out.flush();
}

/// Prints the number of takes that are on disk.
#[derive(Debug, Default)]
struct Kept {
    taken: AtomicU64,
    at_last_event: AtomicU64,
}

impl Observer for Kept {
    fn rule(&self, rule: RuleInfo<'_>) -> Arc<dyn RuleObserver> {
        NoObserver.rule(rule)
    }

    fn store(&self, event: StoreEvent) {
        match event {
            // A snapshot was written. It began after the one before was, so all that was taken
            // until then is on disk.
            StoreEvent::SnapshotWritten(_) => {
                let taken = self.taken.load(Ordering::SeqCst);
                let kept = self.at_last_event.swap(taken, Ordering::SeqCst);
                print_line(&format!("kept {kept}"));
            }
            StoreEvent::JournalFailing(is_failing) => print_line(&format!("failing {is_failing}")),
            StoreEvent::SnapshotFailing(is_failing) => {
                print_line(&format!("behind {is_failing}"));
            }
            _ => {}
        }
    }
}

/// The process under test, if the folder is set.
#[test]
fn process_under_test() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let run = std::env::var(RUN).expect("a number");
    let kept = Arc::new(Kept::default());
    let process = Arc::new(Process::open(Path::new(&folder), kept.clone()));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_time().build();
    let runtime = runtime.expect("a runtime");
    let (bans, entries) = (Arc::clone(&process), Arc::clone(&process));
    let name = run.clone();
    runtime.spawn(async move {
        for number in 0_u64.. {
            bans.ban(&format!("b{name}-{number}"), number % 3 == 0).await;
        }
    });
    runtime.spawn(async move {
        for number in 0_u64.. {
            entries.append(&format!("e{run}-{number}")).await;
        }
    });
    runtime.block_on(async move {
        for number in 0..FILLERS {
            let take = Action::Take(Cost::ONE);
            let filler = format!("filler {number}");
            process.execute(&filler, 0, take, None).await.expect("a decision");
        }
        // The takes of earlier runs.
        let mut used = Vec::new();
        for key in 0..USERS * 6 {
            used.push(process.used(key).await);
        }
        let mut number: u64 = used.iter().sum();
        kept.taken.store(number, Ordering::SeqCst);
        kept.at_last_event.store(number, Ordering::SeqCst);
        let used: Vec<_> = used.iter().map(u64::to_string).collect();
        print_line(&format!("restored {number} {}", used.join(" ")));
        let mut pace = tokio::time::interval(Duration::from_millis(5));
        loop {
            let (id, rule) = place(number);
            let reply = process.execute(&id, rule, Action::Take(Cost::ONE), None).await;
            assert!(reply.expect("a decision").decision.is_allowed());
            number += 1;
            kept.taken.store(number, Ordering::SeqCst);
            if number.is_multiple_of(100) {
                print_line(&format!("taken {number}"));
                // Leaves time to the writers, and units for all that they have to write.
                pace.tick().await;
            }
        }
    });
}

/// A process under test, and the lines that it prints.
struct Running {
    process: Child,
    lines: mpsc::Receiver<String>,
    seen: Acknowledged,
}

/// What a process has acknowledged, and those before it.
#[derive(Default)]
struct Acknowledged {
    /// End of each ban.
    bans: BTreeMap<String, u64>,
    /// Bans that may or may not be lifted.
    unsure: BTreeSet<String>,
    entries: Vec<String>,
    refused: BTreeMap<String, String>,
    /// Numbers of takes: at the start, the last, and the last that is surely on disk.
    started: u64,
    taken: u64,
    kept: u64,
    /// Units of each key at the start.
    used: Vec<u64>,
    is_failing: bool,
    is_behind: bool,
}

impl Acknowledged {
    fn read(&mut self, line: &str) {
        let mut words = line.splitn(3, ' ');
        let (Some(verb), Some(what)) = (words.next(), words.next()) else { return };
        let rest = words.next().unwrap_or_default();
        let number = || what.parse().expect("a number");
        match verb {
            "banned" => _ = self.bans.insert(what.to_owned(), rest.parse().expect("an end")),
            "lifting" => _ = self.unsure.insert(what.to_owned()),
            "lifted" => {
                self.unsure.remove(what);
                self.bans.remove(what);
            }
            "appended" => self.entries.push(format!("{what} {rest}")),
            "refused" => _ = self.refused.insert(what.to_owned(), rest.to_owned()),
            // What was not kept is taken again.
            "restored" => {
                (self.started, self.taken, self.kept) = (number(), number(), number());
                let used = rest.split(' ').map(|used| used.parse().expect("a number"));
                self.used = used.collect();
            }
            "taken" => self.taken = number(),
            // The first interval may be over before the process has counted what it restored.
            "kept" => self.kept = self.kept.max(number()),
            "failing" => self.is_failing = what == "true",
            "behind" => self.is_behind = what == "true",
            _ => {}
        }
    }
}

impl Running {
    fn start(folder: &Path, run: u32, mut seen: Acknowledged) -> Self {
        // Known again once it has counted what it restored.
        (seen.taken, seen.kept) = (0, 0);
        // The shell ignores the signal for files above their limit, so that writes fail instead.
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]);
        command.arg(std::env::current_exe().expect("this binary"));
        command.args(["process_under_test", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(FOLDER, folder).env(RUN, run.to_string()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("this binary");
        let out = BufReader::new(process.stdout.take().expect("a pipe"));
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || read_lines(out, &sender));
        Self { process, lines, seen }
    }

    /// Reads lines until the condition holds.
    fn wait_until(&mut self, what: &str, is_met: impl Fn(&Acknowledged) -> bool) {
        while !is_met(&self.seen) {
            let line = self.lines.recv_timeout(Duration::from_secs(60));
            self.seen.read(&line.unwrap_or_else(|_| panic!("{what}: no more lines")));
        }
    }

    /// Kills the process, and returns all that it has acknowledged.
    fn kill(mut self) -> Acknowledged {
        self.process.kill().expect("a running process");
        self.process.wait().expect("a killed process");
        let Self { lines, mut seen, .. } = self;
        for line in &lines {
            seen.read(&line);
        }
        seen
    }

    /// Limits the length of its files.
    fn limit_files(&self, len: Option<u64>) {
        let pid = Pid::from_child(&self.process);
        let limit = Rlimit { current: len, maximum: None };
        prlimit(Some(pid), Resource::Fsize, limit).expect("a limit");
    }
}

/// Sends whole lines.
fn read_lines(mut out: impl BufRead, sender: &mpsc::Sender<String>) {
    let mut line = String::new();
    while out.read_line(&mut line).is_ok_and(|len| len > 0) {
        // The harness prints the name of the test without a line end before the first line.
        let text = line.rsplit_once("... ").map_or(&*line, |(_, text)| text);
        if !line.ends_with('\n') || sender.send(text.trim_end().to_owned()).is_err() {
            return;
        }
        line.clear();
    }
}

/// Checks that everything that was acknowledged since `begun` is in the folder.
async fn check(folder: &Path, seen: &Acknowledged, begun: Timestamp) {
    let process = Process::open(folder, Arc::new(NoObserver));
    // Overrides.
    let mut restored = BTreeMap::new();
    let mut cursor = String::new();
    loop {
        let page = process.store.list_overrides(&cursor, 1_000, Deadline::NEVER).await;
        let page = page.expect("a page");
        for one in page.keys {
            let ends_at = one.record.iter().next().expect("a ban").ends_at.as_micros();
            restored.insert(one.key.id().to_owned(), ends_at);
        }
        let Some(next) = page.next else { break };
        cursor = next;
    }
    for (name, ends_at) in &seen.bans {
        let is_unsure = seen.unsure.contains(name);
        assert!(restored.get(name) == Some(ends_at) || is_unsure, "{name} is lost or changed");
    }
    // At most the one ban that was not acknowledged yet is there besides.
    let unseen: Vec<_> = restored.keys().filter(|name| !seen.bans.contains_key(*name)).collect();
    let was_refused = |name: &&&String| seen.refused.contains_key(**name);
    assert_eq!(unseen.iter().filter(was_refused).count(), 0, "refused bans came back");
    // Entries.
    let mut found = BTreeSet::new();
    let mut range = LogRange::default();
    loop {
        let page = process.fleet.read("audit", range, 1_000, Deadline::NEVER).await;
        let page = page.expect("entries");
        let Some(oldest) = page.last() else { break };
        range.before = oldest.id;
        found.extend(page.into_iter().map(|entry| {
            format!("{} {}", String::from_utf8(entry.content).expect("text"), entry.id)
        }));
    }
    for entry in &seen.entries {
        assert!(found.contains(entry), "{entry} is lost");
    }
    let refused = found
        .iter()
        .filter(|entry| seen.refused.contains_key(entry.split(' ').next().expect("a name")));
    assert_eq!(refused.count(), 0, "refused entries came back");
    // Counters.
    let count = |number: u64, key: u64| (number + USERS * 6 - 1 - key) / (USERS * 6);
    let elapsed = Clock::default().now().since(begun).as_micros();
    let come_back = elapsed * UNITS / WINDOW.as_micros();
    for (key, at_start) in (0..).zip(&seen.used) {
        let used = process.used(key).await;
        let since_start = |number| at_start + count(number, key) - count(seen.started, key);
        let least = since_start(seen.kept).saturating_sub(come_back);
        let most = since_start(seen.taken + 101);
        assert!((least..=most).contains(&used), "key {key}: {used}, not {least} to {most}");
    }
    if let Store::Memory(store) = &process.store {
        store.close_journal();
    }
}

fn folder(test: &str) -> PathBuf {
    std::env::temp_dir().join(format!("rlaas-crash-{test}-{}", std::process::id()))
}

/// Number of runs: `SOAK` asks for more.
fn runs() -> u32 {
    if std::env::var_os("SOAK").is_some() { 200 } else { 15 }
}

#[tokio::test]
async fn a_killed_process_keeps_what_it_has_acknowledged() {
    let folder = folder("kill");
    let mut while_writing = 0;
    let (begun, mut seen) = (Clock::default().now(), Acknowledged::default());
    for run in 0..runs() {
        let mut running = Running::start(&folder, run, seen);
        running.wait_until("it counts", |seen| seen.kept > 0 && !seen.bans.is_empty());
        // A moment that differs from run to run: after so many more entries.
        let entries = running.seen.entries.len() + 3 + (run as usize * 7_919) % 60;
        running.wait_until("it appends", |seen| seen.entries.len() >= entries);
        seen = running.kill();
        while_writing += u32::from(folder.join("snapshot.tmp").exists());
        check(&folder, &seen, begun).await;
    }
    println!("{while_writing} of {} kills while a snapshot was written", runs());
    assert!(seen.bans.len() > 15 && seen.entries.len() > 100 && seen.kept > 1_000);
    assert!(seen.refused.is_empty(), "{:?}", seen.refused);
    std::fs::remove_dir_all(&folder).expect("a folder");
}

#[tokio::test]
async fn a_full_disk_refuses_changes_until_there_is_space() {
    let folder = folder("full");
    let (begun, mut seen) = (Clock::default().now(), Acknowledged::default());
    for run in 0..3 {
        let mut running = Running::start(&folder, run, seen);
        running.wait_until("it counts", |seen| seen.kept > 0 && seen.entries.len() > 20);
        running.limit_files(Some(8 << 10));
        let refused = running.seen.refused.len();
        running.wait_until("it refuses", |seen| seen.refused.len() > refused + 20);
        assert!(running.seen.is_failing);
        running.wait_until("snapshots fail", |seen| seen.is_behind);
        // Decisions go on.
        let taken = running.seen.taken;
        running.wait_until("it decides", |seen| seen.taken > taken + 10_000);
        running.limit_files(None);
        running.wait_until("it recovers", |seen| !seen.is_failing && !seen.is_behind);
        let (bans, entries) = (running.seen.bans.len(), running.seen.entries.len());
        running.wait_until("it accepts changes", |seen| {
            seen.bans.len() > bans + 5 && seen.entries.len() > entries + 5
        });
        // Snapshots go on.
        let kept = running.seen.taken;
        running.wait_until("it keeps counters", |seen| seen.kept > kept);
        seen = running.kill();
        for text in seen.refused.values() {
            assert!(text.contains("store.memory.journal.path"), "{text}");
            assert!(text.contains(&folder.display().to_string()), "{text}");
            assert!(text.contains("File too large"), "{text}");
        }
        check(&folder, &seen, begun).await;
    }
    std::fs::remove_dir_all(&folder).expect("a folder");
}
