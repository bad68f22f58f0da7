//! Decisions as they are made, for those who watch them.
//!
//! A decision costs one relaxed load if nobody watches. Otherwise it is compared with the filter of
//! each watcher, and offered to its queue without waiting: a full queue drops it and counts it. A
//! watcher reads its queue several times a second and is not woken, because waking a thread costs
//! more than a decision.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use rlaas_core::clock::{Clock, Timestamp};
use rlaas_core::plan::KeyPart;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::holder::Holder;
use rlaas_limiter::{RuleDecision, Source, Verdict};

/// Most watchers at a time.
pub const MAX_WATCHERS: usize = 8;
/// Most events that wait for a watcher.
pub const MAX_EVENTS: usize = 1_024;

/// A decided request.
#[derive(Clone, Debug)]
pub struct DecisionEvent {
    /// When it was decided, by the clock of this machine.
    pub decided_at: Timestamp,
    /// Project of the request; empty: the unnamed one.
    pub project: String,
    /// Protocol of the request: `grpc`, `http` or `envoy`.
    pub api: &'static str,
    /// Name of the RPC.
    pub method: &'static str,
    /// Key of the rule that decided; `None` if no rule did.
    pub key: Option<DecidedKey>,
    /// Units that the request was to take.
    pub cost: u64,
    /// The verdict.
    pub verdict: Verdict,
}

/// A key in clear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecidedKey {
    /// The parts, in the order of `key_by`.
    pub parts: Vec<KeyPart>,
    /// The parts as they are in the store. Empty for a limit of the request.
    pub id: String,
}

/// Outcome of a request for a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventOutcome {
    /// Allowed, not near the limit.
    Allowed,
    /// Allowed, near the limit.
    NearLimit,
    /// Denied.
    Denied,
    /// Denied by a rule that is not enforced.
    ShadowDenied,
    /// Decided by policy, without the store.
    Degraded,
}

/// Whose request was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requester<'a> {
    /// Project of the request; empty: the unnamed one.
    pub project: &'a str,
    /// User of the request; `None` for descriptors.
    pub user_id: Option<&'a str>,
}

/// Selects the decisions that a watcher receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionFilter {
    /// Only requests in these projects; `None`: in all.
    pub projects: Option<BTreeSet<String>>,
    /// Only requests that meet this rule.
    pub rule: Option<String>,
    /// Only requests with one of these outcomes, of that rule if it is set. Empty: all.
    pub outcomes: Vec<EventOutcome>,
    /// Only requests of this user. Descriptors have none.
    pub user_id: Option<String>,
    /// Part that is sent, in millionths: 1 to [`DecisionFilter::WHOLE`].
    pub sample_ppm: u32,
}

/// Reason why there is no watcher.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum WatchError {
    /// There are as many watchers as there may be, or as a project or a caller may have.
    #[error("{0} callers watch already, or half as many of one project or caller")]
    Full(usize),
    /// The server drains.
    #[error("the server drains")]
    Draining,
}

/// All watchers of a server.
#[derive(Debug, Default)]
pub struct DecisionWatchers {
    /// Number of watchers.
    active: AtomicUsize,
    watchers: ArcSwap<Vec<Arc<Watcher>>>,
    /// Held while watchers come and go.
    changing: Mutex<()>,
    draining: CancellationToken,
    clock: Clock,
}

/// Where the events of one watcher go.
struct Watcher {
    filter: DecisionFilter,
    holder: Holder,
    sender: SyncSender<Arc<DecisionEvent>>,
    waiting: AtomicUsize,
    dropped: AtomicU64,
    /// Number of events that met the filter, for the sample.
    met: AtomicU64,
}

/// Reads the events of a watcher. It stops watching when it is dropped.
pub struct DecisionWatch {
    watcher: Arc<Watcher>,
    receiver: Receiver<Arc<DecisionEvent>>,
    all: Arc<DecisionWatchers>,
}

impl DecisionFilter {
    /// The sample of everything, in millionths.
    pub const WHOLE: u32 = 1_000_000;

    fn matches(&self, requester: Requester<'_>, verdict: &Verdict) -> bool {
        let Requester { project, user_id } = requester;
        if self.projects.as_ref().is_some_and(|projects| !projects.contains(project)) {
            return false;
        }
        if self.user_id.is_some() && self.user_id.as_deref() != user_id {
            return false;
        }
        let of_rule = |decided: &&RuleDecision| {
            self.rule.as_deref().is_none_or(|rule| *decided.rule == *rule)
        };
        if verdict.decisions.is_empty() {
            let is_allowed = self.outcomes.contains(&EventOutcome::Allowed);
            return self.rule.is_none() && (self.outcomes.is_empty() || is_allowed);
        }
        verdict.decisions.iter().filter(of_rule).any(|decided| {
            self.outcomes.is_empty()
                || self.outcomes.contains(&EventOutcome::from_decision(decided))
        })
    }
}

impl EventOutcome {
    /// Returns the outcome of the decision of a rule.
    pub fn from_decision(decided: &RuleDecision) -> Self {
        match decided.source {
            Source::FailOpen | Source::FailClosed | Source::LocalFallback => Self::Degraded,
            Source::Store | Source::DenyCache | Source::NoRule => {
                match (decided.decision.is_allowed(), decided.mode.is_shadow()) {
                    (true, _) if decided.is_near_limit => Self::NearLimit,
                    (true, _) => Self::Allowed,
                    (false, true) => Self::ShadowDenied,
                    (false, false) => Self::Denied,
                }
            }
        }
    }
}

impl DecisionWatchers {
    /// Offers a decision to the watchers. `event` is called at most once, if one of them wants it.
    #[inline]
    pub fn decided(
        &self,
        requester: Requester<'_>,
        verdict: &Verdict,
        event: impl FnOnce(Timestamp) -> DecisionEvent,
    ) {
        if self.active.load(Ordering::Relaxed) > 0 {
            self.offer(requester, verdict, event);
        }
    }

    #[cold]
    fn offer(
        &self,
        requester: Requester<'_>,
        verdict: &Verdict,
        event: impl FnOnce(Timestamp) -> DecisionEvent,
    ) {
        let watchers = self.watchers.load();
        let (mut event, mut shared) = (Some(event), None::<Arc<DecisionEvent>>);
        let wants = |watcher: &&Arc<Watcher>| watcher.wants(requester, verdict);
        for watcher in watchers.iter().filter(wants) {
            if watcher.waiting.load(Ordering::Relaxed) >= MAX_EVENTS {
                watcher.dropped.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            if let Some(event) = event.take() {
                shared = Some(Arc::new(event(self.clock.now())));
            }
            watcher.push(shared.clone());
        }
    }

    /// Returns `true` if somebody watches.
    #[inline]
    pub fn are_active(&self) -> bool {
        self.active.load(Ordering::Relaxed) > 0
    }

    /// Starts to watch.
    ///
    /// # Errors
    ///
    /// [`WatchError`].
    pub fn watch(
        self: &Arc<Self>,
        filter: DecisionFilter,
        holder: Holder,
    ) -> Result<DecisionWatch, WatchError> {
        let (sender, receiver) = sync_channel(MAX_EVENTS);
        let watcher = Arc::new(Watcher {
            filter,
            holder,
            sender,
            waiting: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            met: AtomicU64::new(0),
        });
        let _turn = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.draining.is_cancelled() {
            return Err(WatchError::Draining);
        }
        let mut watchers = Vec::clone(&self.watchers.load());
        let held = watchers.iter().map(|watcher| &watcher.holder);
        if !watcher.holder.has_capacity(MAX_WATCHERS, held) {
            return Err(WatchError::Full(MAX_WATCHERS));
        }
        watchers.push(Arc::clone(&watcher));
        self.replace(watchers);
        Ok(DecisionWatch { watcher, receiver, all: Arc::clone(self) })
    }

    /// Ends all watches, and accepts no others: the server drains.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    fn replace(&self, watchers: Vec<Arc<Watcher>>) {
        self.active.store(watchers.len(), Ordering::Relaxed);
        self.watchers.store(Arc::new(watchers));
    }
}

impl Watcher {
    fn wants(&self, requester: Requester<'_>, verdict: &Verdict) -> bool {
        if !self.filter.matches(requester, verdict) {
            return false;
        }
        let number = self.met.fetch_add(1, Ordering::Relaxed);
        let random = u32::try_from(mixed(number) % u64::from(DecisionFilter::WHOLE));
        random.is_ok_and(|random| random < self.filter.sample_ppm)
    }

    fn push(&self, event: Option<Arc<DecisionEvent>>) {
        let Some(event) = event else { return };
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if self.sender.try_send(event).is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Returns a number that looks random.
///
/// **Source:** Steele et al., "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl DecisionWatch {
    /// Takes at most `most` of the events that wait, and the number of those that were dropped since
    /// the call before.
    pub fn take(&mut self, most: usize) -> (Vec<Arc<DecisionEvent>>, u64) {
        let events: Vec<_> = self.receiver.try_iter().take(most).collect();
        self.watcher.waiting.fetch_sub(events.len(), Ordering::Relaxed);
        (events, self.watcher.dropped.swap(0, Ordering::Relaxed))
    }

    /// Waits until the server drains.
    pub fn drained(&self) -> impl Future<Output = ()> + Send + use<> {
        self.all.draining.clone().cancelled_owned()
    }
}

impl Drop for DecisionWatch {
    fn drop(&mut self) {
        let _turn = self.all.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut watchers = Vec::clone(&self.all.watchers.load());
        watchers.retain(|watcher| !Arc::ptr_eq(watcher, &self.watcher));
        self.all.replace(watchers);
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").field("filter", &self.filter).finish_non_exhaustive()
    }
}

impl fmt::Debug for DecisionWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecisionWatch").field("watcher", &self.watcher).finish_non_exhaustive()
    }
}
