//! The circuit breaker of one server: after some failures in a row calls fail at once, and now
//! and then one may try.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::{error, info, warn};

use crate::clock::{Span, SystemClock, Timestamp, jittered};
use crate::observer::{BreakerState, Observer, StoreEvent};
use crate::store::StoreError;

/// Failures in a row that open the breaker.
const MOST_FAILURES: u32 = 5;
/// Time from opening to the first try; doubles with each that fails, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);
/// One failure in so long is logged, with a count of the others.
const LOG_INTERVAL: Span = Span::from_secs(10);

/// Lets calls to one server pass, or not.
#[derive(Debug)]
pub(crate) struct Breaker {
    server: String,
    clock: SystemClock,
    state: Mutex<State>,
    panel: Arc<Panel>,
}

/// The breakers of all servers: the worst is reported.
#[derive(Debug)]
pub(crate) struct Panel {
    /// How many are [`Position::HalfOpen`] and how many [`Position::Open`].
    not_closed: Mutex<[usize; 2]>,
    observer: Arc<dyn Observer>,
}

/// Shown when the call that was let pass has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// How often the breaker had opened before.
    openings: u64,
}

#[derive(Debug, Default)]
struct State {
    /// In a row.
    failures: u32,
    /// How often it has opened.
    openings: u64,
    open: Option<Open>,
    log: Log,
}

/// No call passes before `until`; the one that does then moves it.
#[derive(Debug)]
struct Open {
    since: Timestamp,
    until: Timestamp,
    pause: Duration,
    /// Is one trying?
    tries: bool,
}

/// What was told of each kind of failure.
#[derive(Debug, Default)]
struct Log(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    kind: &'static str,
    at: Timestamp,
    /// Failures since then.
    untold: u64,
}

/// What a breaker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Closed,
    HalfOpen,
    Open,
}

impl Breaker {
    pub(crate) fn new(server: String, clock: SystemClock, panel: &Arc<Panel>) -> Self {
        Self { server, clock, state: Mutex::default(), panel: Arc::clone(panel) }
    }

    /// May a call pass?
    ///
    /// # Errors
    ///
    /// [`StoreError::BreakerOpen`] if not.
    pub(crate) fn admit(&self) -> Result<Ticket, StoreError> {
        let mut state = self.change();
        let ticket = Ticket { openings: state.openings };
        let Some(open) = &mut state.open else { return Ok(ticket) };
        let now = self.clock.now();
        if now < open.until {
            return Err(StoreError::BreakerOpen);
        }
        // If this one is never heard of again, another may try after as long.
        open.until = now + Span::from(jittered(open.pause));
        open.tries = true;
        Ok(ticket)
    }

    /// Has it opened, and not closed yet?
    pub(crate) fn is_open(&self) -> bool {
        self.change().open.is_some()
    }

    /// A call was decided. One that was let pass before the breaker opened comes late, and closes
    /// nothing.
    pub(crate) fn succeeded(&self, ticket: Ticket) {
        let mut state = self.change();
        if ticket.openings != state.openings {
            return;
        }
        state.failures = 0;
        if let Some(open) = state.open.take() {
            let open_seconds = Duration::from(self.clock.now().since(open.since)).as_secs_f64();
            info!(redis = self.server, open_seconds, "breaker closed: redis decides");
        }
    }

    /// A call failed. What says nothing about the server changes nothing.
    pub(crate) fn failed(&self, error: &StoreError) {
        let weight = match error.severity() {
            Severity::None => return,
            Severity::Oddity => 0,
            Severity::Failure | Severity::Defect => 1,
            Severity::Fatal => MOST_FAILURES,
        };
        let now = self.clock.now();
        let mut state = self.change();
        state.log.note(&self.server, now, error);
        if weight == 0 {
            return;
        }
        state.failures = state.failures.saturating_add(weight);
        if let Some(open) = &mut state.open {
            if open.tries {
                open.pause = (open.pause * 2).min(LONGEST_PAUSE);
                open.until = now + Span::from(jittered(open.pause));
                open.tries = false;
            }
        } else if state.failures >= MOST_FAILURES {
            let until = now + Span::from(jittered(FIRST_PAUSE));
            state.openings += 1;
            state.open = Some(Open { since: now, until, pause: FIRST_PAUSE, tries: false });
            warn!(
                redis = self.server,
                kind = error.kind(),
                "breaker opened: redis does not decide"
            );
        }
    }

    /// The server is connected again: the next call may try.
    pub(crate) fn retry_now(&self) {
        let now = self.clock.now();
        if let Some(open) = &mut self.change().open {
            open.until = open.until.min(now);
        }
    }

    fn change(&self) -> Change<'_> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Change { before: state.position(), state, panel: &self.panel }
    }
}

impl Drop for Breaker {
    fn drop(&mut self) {
        self.change().open = None;
    }
}

impl State {
    fn position(&self) -> Position {
        match &self.open {
            None => Position::Closed,
            Some(open) if open.tries => Position::HalfOpen,
            Some(_) => Position::Open,
        }
    }
}

/// A state that may change; the panel is told if its position does.
struct Change<'a> {
    before: Position,
    state: MutexGuard<'a, State>,
    panel: &'a Panel,
}

impl Deref for Change<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Change<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let now = self.state.position();
        if now != self.before {
            self.panel.moved(self.before, now);
        }
    }
}

impl Panel {
    pub(crate) fn new(observer: Arc<dyn Observer>) -> Self {
        Self { not_closed: Mutex::default(), observer }
    }

    /// What else is told of servers.
    pub(crate) fn observer(&self) -> &Arc<dyn Observer> {
        &self.observer
    }

    fn moved(&self, from: Position, to: Position) {
        let mut not_closed = self.not_closed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut count = |position, change: isize| {
            let counted = match position {
                Position::Closed => return,
                Position::HalfOpen => &mut not_closed[0],
                Position::Open => &mut not_closed[1],
            };
            *counted = counted.saturating_add_signed(change);
        };
        count(from, -1);
        count(to, 1);
        self.observer.store(StoreEvent::Breakers(match *not_closed {
            [0, 0] => BreakerState::Closed,
            [_, 0] => BreakerState::HalfOpen,
            [_, _] => BreakerState::Open,
        }));
    }
}

impl Log {
    /// Tells of a kind of failure when it begins, and then once in [`LOG_INTERVAL`] how often.
    fn note(&mut self, server: &str, now: Timestamp, error: &StoreError) {
        // Connections have a story of their own, which the pulse tells.
        if matches!(error, StoreError::Unreachable) {
            return;
        }
        let kind = error.kind();
        let told = self.0.iter_mut().find(|told| told.kind == kind);
        let failures = match told {
            Some(told) if now.since(told.at) < LOG_INTERVAL => {
                told.untold += 1;
                return;
            }
            Some(told) => {
                told.at = now;
                std::mem::take(&mut told.untold) + 1
            }
            None => {
                self.0.push(Entry { kind, at: now, untold: 0 });
                1
            }
        };
        match error.severity() {
            Severity::Fatal => error!(redis = server, %error, failures, "redis refuses us"),
            Severity::Defect => error!(redis = server, %error, failures, "redis does not decide"),
            Severity::Failure | Severity::Oddity | Severity::None => {
                warn!(redis = server, %error, failures, "redis does not decide");
            }
        }
    }
}

/// What a failure says about the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Severity {
    /// Nothing.
    None,
    /// Nothing that is known: it may be the one key.
    Oddity,
    /// It failed once.
    Failure,
    /// It will fail until somebody does something, or it recovers.
    Defect,
    /// It will fail until somebody does something.
    Fatal,
}

impl StoreError {
    fn severity(&self) -> Severity {
        match self {
            Self::Unreachable | Self::Timeout(_) | Self::Lost | Self::Garbled => Severity::Failure,
            Self::Refused { code, .. } | Self::Partial { code, .. } => match code.as_str() {
                "NOAUTH" | "WRONGPASS" | "NOPERM" => Severity::Fatal,
                "OOM" | "MISCONF" | "NOREPLICAS" => Severity::Defect,
                "CLUSTERDOWN" | "MASTERDOWN" | "LOADING" | "BUSY" => Severity::Failure,
                "MOVED" | "ASK" | "TRYAGAIN" => Severity::None,
                _ => Severity::Oddity,
            },
            Self::WindowMissed
            | Self::BreakerOpen
            | Self::Overloaded
            | Self::Expired
            | Self::Custom { .. } => Severity::None,
        }
    }
}
