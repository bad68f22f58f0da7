//! The queue of checks: bounds the calls in flight, and decides which of those that wait is sent next.
//!
//! Keys are served in turn, so that a flood of one user does not cost another one an answer. Of a key that was
//! refused within the last second one call is in flight at a time, and its refusal answers those that wait. The
//! queue knows neither messages nor the connection: the client sends a call that has its [`Permit`].

use std::collections::{HashMap, VecDeque};
use std::mem::take;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rlaas_core::clock::Deadline;
use rlaas_core::refusal_cache::RequestKey;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::verdict::Verdict;

/// Most calls in flight.
pub(super) const MAX_IN_FLIGHT: usize = 128;
/// Most calls that wait.
const MAX_WAITING: usize = 10_000;
/// Most calls of one key that wait.
const MAX_WAITING_OF_KEY: usize = MAX_WAITING / 4;
/// Longest wait of a call.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Time after a refusal in which one call of its key is in flight at a time.
const REFUSED_FOR: Duration = Duration::from_secs(1);
/// Most keys whose refusals are known. Beyond, all are forgotten: more calls are sent then.
const MAX_REFUSED: usize = 8_192;

/// The calls of a client that are in flight or wait.
#[derive(Debug)]
pub(super) struct Queue {
    timeout: Duration,
    state: Mutex<State>,
}

/// The way on for a call.
#[derive(Debug)]
pub(super) enum Admission {
    /// It is to be sent.
    Send(Permit),
    /// A call with the same key was refused meanwhile.
    Refused(Arc<Verdict>),
    /// The server does not answer.
    NoAnswer,
    /// The server answers, but there is no place, or the call has waited too long.
    Overloaded,
}

/// The place of a call in flight, which is free when this is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    queue: Arc<Queue>,
    key: RequestKey,
    pub(super) has_waited: bool,
    /// Whether it is the only call in flight of a refused key.
    is_only: bool,
    pub(super) outcome: Outcome,
}

/// The end of a call in flight.
#[derive(Debug, Default)]
pub(super) enum Outcome {
    /// It says nothing of the server: the caller has gone, or this program was late.
    #[default]
    Unknown,
    /// The server did not answer.
    Unanswered,
    /// The server answered.
    Answered,
    /// The server refused, and would refuse the same request again.
    Refused(Arc<Verdict>),
}

#[derive(Debug, Default)]
struct State {
    in_flight: usize,
    waiting: usize,
    /// The calls that wait, by key. None is empty.
    queues: HashMap<RequestKey, VecDeque<Waiter>>,
    /// The keys of `queues`, in the order in which they are served.
    turns: VecDeque<RequestKey>,
    refused: HashMap<RequestKey, RefusedKey>,
    /// Set while calls are not answered.
    is_silent: bool,
    /// One timeout after the last answer.
    silent_from: Option<Instant>,
}

type Waiter = oneshot::Sender<Admission>;

#[derive(Debug)]
struct RefusedKey {
    until: Instant,
    is_in_flight: bool,
}

impl Queue {
    /// Creates the queue of a client with this timeout.
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, state: Mutex::default() }
    }

    /// Waits until a call may be sent or is decided.
    pub(super) async fn enter(self: &Arc<Self>, key: RequestKey, deadline: Deadline) -> Admission {
        let admission = match self.try_enter(key) {
            Ok(admission) => return admission,
            Err(waiting) => timeout(MAX_WAIT.min(deadline.remaining()), waiting).await,
        };
        admission
            .map_or(Admission::Overloaded, |admission| admission.unwrap_or(Admission::NoAnswer))
    }

    /// Returns the way on at once, or makes the call wait for it.
    fn try_enter(
        self: &Arc<Self>,
        key: RequestKey,
    ) -> Result<Admission, oneshot::Receiver<Admission>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.in_flight < MAX_IN_FLIGHT && !state.is_held_back(&key) {
            let is_only = state.begin(&key);
            return Ok(Admission::Send(self.permit(key, is_only, false)));
        }
        let of_key = state.queues.get(&key).map_or(0, VecDeque::len);
        if state.is_silent {
            return Ok(Admission::NoAnswer);
        } else if state.waiting >= MAX_WAITING || of_key >= MAX_WAITING_OF_KEY {
            return Ok(Admission::Overloaded);
        }
        if of_key == 0 {
            state.turns.push_back(key.clone());
        }
        let (waiter, receiver) = oneshot::channel();
        state.waiting += 1;
        state.queues.entry(key).or_default().push_back(waiter);
        Err(receiver)
    }

    fn permit(self: &Arc<Self>, key: RequestKey, is_only: bool, has_waited: bool) -> Permit {
        Permit { queue: Arc::clone(self), key, has_waited, is_only, outcome: Outcome::Unknown }
    }
}

impl State {
    /// Returns `true` if a call of this key must end before the next one is sent.
    fn is_held_back(&self, key: &RequestKey) -> bool {
        self.refused.get(key).is_some_and(|key| key.is_in_flight && now() < key.until)
    }

    /// Counts a call in flight. Returns `true` if it is the only one of a refused key.
    fn begin(&mut self, key: &RequestKey) -> bool {
        self.in_flight += 1;
        let refused = self.refused.get_mut(key).filter(|key| now() < key.until);
        refused.map(|key| key.is_in_flight = true).is_some()
    }

    /// Ends a call in flight. Returns those that its outcome decides.
    fn end(&mut self, permit: &Permit, outcome: &Outcome, timeout: Duration) -> VecDeque<Waiter> {
        self.in_flight -= 1;
        if let Some(refused) = self.refused.get_mut(&permit.key).filter(|_| permit.is_only) {
            refused.is_in_flight = false;
        }
        if matches!(outcome, Outcome::Answered | Outcome::Refused(_)) {
            self.is_silent = false;
            self.silent_from = now().checked_add(timeout);
        }
        let decided = match outcome {
            Outcome::Refused(_) => self.refuse(&permit.key),
            Outcome::Unanswered if self.silent_from.is_none_or(|from| from <= now()) => {
                self.is_silent = true;
                self.turns.clear();
                take(&mut self.queues).into_values().flatten().collect()
            }
            _ => VecDeque::new(),
        };
        self.waiting -= decided.len();
        decided
    }

    /// Records the refusal of a key. Returns the calls that wait for it.
    fn refuse(&mut self, key: &RequestKey) -> VecDeque<Waiter> {
        if self.refused.len() >= MAX_REFUSED {
            self.refused.clear();
        }
        let until = now() + REFUSED_FOR;
        let refused = RefusedKey { until, is_in_flight: false };
        self.refused.entry(key.clone()).or_insert(refused).until = until;
        let waiting = self.queues.remove(key);
        if waiting.is_some() {
            self.turns.retain(|other| other != key);
        }
        waiting.unwrap_or_default()
    }

    /// Takes the next call that is to be sent, and whether it is the only one of a refused key.
    fn next(&mut self) -> Option<(RequestKey, Waiter, bool)> {
        while self.in_flight < MAX_IN_FLIGHT {
            let position = self.turns.iter().position(|key| !self.is_held_back(key))?;
            let key = self.turns.remove(position)?;
            let queue = self.queues.get_mut(&key)?;
            let waiter = queue.pop_front()?;
            self.waiting -= 1;
            if queue.is_empty() {
                self.queues.remove(&key);
            } else {
                self.turns.push_back(key.clone());
            }
            if !waiter.is_closed() {
                let is_only = self.begin(&key);
                return Some((key, waiter, is_only));
            }
        }
        None
    }
}

impl Drop for Permit {
    /// Ends the call, and lets others go on.
    fn drop(&mut self) {
        let (queue, outcome) = (Arc::clone(&self.queue), take(&mut self.outcome));
        let mut state = queue.state.lock().unwrap_or_else(PoisonError::into_inner);
        let decided = state.end(self, &outcome, queue.timeout);
        let next: Vec<_> = std::iter::from_fn(|| state.next()).collect();
        // The permit of a call whose caller has gone is dropped, which locks the state again.
        drop(state);
        for waiter in decided {
            let _has_gone = waiter.send(match &outcome {
                Outcome::Refused(refusal) => Admission::Refused(Arc::clone(refusal)),
                _ => Admission::NoAnswer,
            });
        }
        for (key, waiter, is_only) in next {
            let _has_gone = waiter.send(Admission::Send(queue.permit(key, is_only, true)));
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the clock of the timers, which tests can move")]
fn now() -> Instant {
    Instant::now()
}
