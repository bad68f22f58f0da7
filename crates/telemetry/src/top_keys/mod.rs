//! The keys with the highest counts of each rule: who is denied, who is near the limit, and who
//! uses most.
//!
//! | file | has |
//! | --- | --- |
//! | `batch.rs` | decisions of each thread on their way to the recorder |
//! | `busiest.rs` | the keys with the highest counts over all rules, which can be added up, too |
//! | `recorder.rs` | the counts of all rules, within bounds |
//! | `sketch.rs` | live counts of one stream of keys |
//! | `sliding.rs` | counts of one rule and kind in the last hour, by slices of time |
//! | `summary.rs` | counts in 128 counters, which can be added up; the guarantee |
//!
//! A decision appends its key to a list of its thread. Sketches count it on a thread of their own.
//! No count is left out, and every answer has its error.
//!
//! Keys are here in clear, as they are in the store. They never become labels.

mod batch;
mod busiest;
mod queue;
mod recorder;
mod sketch;
mod sliding;
mod summary;

pub use batch::{MAX_KEY, Usage, is_hash};
pub use busiest::{BusiestKeys, FoundKey};
pub use recorder::{MAX_BYTES, MAX_RULES};
pub use sliding::Window;
pub use summary::{Counter, MAX_COUNTERS, Summary};

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use rlaas_core::rules::Key;
use rlaas_limiter::observer::Decided;

use self::batch::Batch;
use self::queue::Queue;
use self::recorder::Recorder;
use super::stats::StatsKey;

/// Batches that wait for the recorder: at most 4 MiB.
const QUEUE_CAPACITY: usize = 64;
/// Pause between two looks at the queue.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Pause after which a thread without decisions sends its batch.
const FLUSH_INTERVAL: Duration = Duration::from_millis(200);

/// Kinds of counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TopKind {
    /// Requests that the rule denies, in shadow mode too.
    Denied,
    /// Requests that the rule allows near the limit.
    NearLimit,
    /// Units taken, or charged after the fact.
    Used,
}

impl TopKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Denied, Self::NearLimit, Self::Used];
}

/// Counts the keys of all rules. Clones share the counts.
#[derive(Clone, Debug)]
pub struct TopKeys {
    queue: Arc<Queue>,
    names: Arc<Names>,
}

/// The rules by project and name.
#[derive(Debug, Default)]
struct Names {
    next: AtomicU32,
    by_name: Mutex<HashMap<StatsKey, Weak<u32>>>,
}

/// Counts the keys of one rule. The counts last as long as a clone of it, and those of the same
/// project and name.
#[derive(Clone, Debug)]
pub struct RuleTopKeys {
    queue: Arc<Queue>,
    id: Arc<u32>,
}

impl TopKeys {
    /// Starts a thread that counts.
    ///
    /// # Errors
    ///
    /// An error of the system if the thread can't be started.
    pub fn start() -> io::Result<Self> {
        Self::with_max_bytes(MAX_BYTES)
    }

    fn with_max_bytes(max_bytes: usize) -> io::Result<Self> {
        let recorder = Arc::new(Mutex::new(Recorder::new(max_bytes)));
        let (sender, batches) = sync_channel(QUEUE_CAPACITY);
        let queue = Arc::new(Queue { sender, recorder: Arc::clone(&recorder) });
        let names = Arc::<Names>::default();
        let of_thread = Arc::clone(&names);
        let thread = thread::Builder::new().name("top-keys".to_owned());
        thread.spawn(move || run(&batches, &recorder, &of_thread))?;
        Ok(Self { queue, names })
    }

    /// Returns what counts the keys of a rule.
    pub fn rule(&self, rule: &StatsKey) -> RuleTopKeys {
        RuleTopKeys { queue: Arc::clone(&self.queue), id: self.names.id(rule) }
    }

    /// Returns the key that is counted by this hash for a rule of the project, if it is one of the last
    /// long ones of this process.
    pub fn long_key(&self, project: &str, hash: &str) -> Option<String> {
        if !is_hash(hash) {
            return None;
        }
        let by_name = lock(&self.names.by_name);
        let of_project = by_name.iter().filter(|(name, _)| &*name.project == project);
        let ids: Vec<u32> = of_project.filter_map(|(_, id)| Some(*id.upgrade()?)).collect();
        drop(by_name);
        let recorder = lock(&self.queue.recorder);
        ids.into_iter().find_map(|id| recorder.long.get(&(id, hash.to_owned())).cloned())
    }

    /// Returns the counts in a window of every rule in force that is chosen: what was decided up to a
    /// second ago. Takes up to a tenth of a second if there are a thousand busy rules.
    ///
    /// For a rule that is not among the [`MAX_RULES`] busiest, or was not, the total and the error
    /// are those of all such rules together.
    pub fn windows(
        &self,
        kind: TopKind,
        window: Window,
        is_chosen: impl Fn(&StatsKey) -> bool,
    ) -> Vec<(StatsKey, Summary)> {
        let by_name = lock(&self.names.by_name);
        let chosen = by_name.iter().filter(|(name, _)| is_chosen(name));
        let chosen = chosen.filter_map(|(name, id)| Some((name.clone(), *id.upgrade()?)));
        let (names, ids): (Vec<StatsKey>, Vec<u32>) = chosen.unzip();
        drop(by_name);
        let counts = lock(&self.queue.recorder).windows(&ids, kind, window);
        names.into_iter().zip(counts).collect()
    }

    /// Returns the number of rules that are counted by themselves, and the bytes of all counts.
    pub fn size(&self) -> (usize, usize) {
        lock(&self.queue.recorder).size()
    }

    /// Sends the decisions of the calling thread to the counts.
    pub fn flush() {
        queue::flush();
    }

    /// Sends the decisions of the calling thread to the counts several times a second, for ever.
    /// Each thread that decides must do so, or its last decisions are not seen.
    pub async fn flush_thread() {
        let mut ticks = tokio::time::interval(FLUSH_INTERVAL);
        loop {
            ticks.tick().await;
            queue::flush();
        }
    }
}

impl RuleTopKeys {
    /// Counts a decision.
    #[inline]
    pub fn record(&self, decided: &Decided<'_>) {
        let is_allowed = decided.decision.is_allowed();
        let usage = Usage {
            is_denied: !is_allowed,
            is_near_limit: is_allowed && decided.is_near_limit,
            taken: saturated(decided.taken),
        };
        self.push(decided.key, usage);
    }

    /// Counts units that were charged after the fact.
    pub fn record_charge(&self, key: &Key, units: u64) {
        self.push(key, Usage { taken: saturated(units), ..Usage::default() });
    }

    fn push(&self, key: &Key, usage: Usage) {
        if usage != Usage::default() {
            queue::push(&self.queue, *self.id, key.id_bytes(), usage);
        }
    }
}

impl Names {
    fn id(&self, rule: &StatsKey) -> Arc<u32> {
        let mut by_name = lock(&self.by_name);
        if let Some(id) = by_name.get(rule).and_then(Weak::upgrade) {
            return id;
        }
        let id = Arc::new(self.next.fetch_add(1, Ordering::Relaxed));
        by_name.insert(rule.clone(), Arc::downgrade(&id));
        id
    }

    /// Forgets the rules that are in no snapshot any more.
    fn prune(&self, recorder: &Mutex<Recorder>) {
        let mut by_name = lock(&self.by_name);
        by_name.retain(|_, id| id.strong_count() > 0);
        let ids = by_name.values().filter_map(|id| id.upgrade().map(|id| *id));
        let ids: std::collections::HashSet<u32> = ids.collect();
        drop(by_name);
        lock(recorder).retain(|id| ids.contains(&id));
    }
}

/// Counts batches until the last handle is dropped.
fn run(batches: &Receiver<Batch>, recorder: &Mutex<Recorder>, names: &Names) {
    loop {
        match batches.try_recv() {
            Ok(batch) => lock(recorder).record(&batch),
            // This thread is not woken: that would cost a deciding thread a system call.
            Err(TryRecvError::Empty) => thread::park_timeout(POLL_INTERVAL),
            Err(TryRecvError::Disconnected) => return,
        }
        if lock(recorder).advance() {
            names.prune(recorder);
        }
    }
}

fn saturated(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Cases of each property test.
#[cfg(test)]
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").map_or(100, |cases| cases.parse().expect("a number"))
}

#[cfg(test)]
mod tests;
