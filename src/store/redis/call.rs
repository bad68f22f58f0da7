//! One script call: hits to arguments, reply to decisions. The other side is `lua/check.lua`.

use std::ops::Range;

use deadpool_redis::redis::{Cmd, Value, cmd};
use smallvec::SmallVec;

use super::naming::Naming;
use super::scripts::Script;
use super::server_clock::ServerClock;
use crate::algorithm::{Decision, Outcome, window_index};
use crate::clock::{Span, Timestamp};
use crate::rules::Mode;
use crate::store::{Decisions, Hit, Intent, StoreError};

/// Integers in a reply for each hit.
const REPLY_FIELDS: usize = 7;

/// A window shorter than this can end while the call is on its way, so its call names the keys of
/// the windows that begin within [`TRAVEL`] too. For longer ones a repeat is cheaper.
const SHORT_WINDOW: Span = Span::from_secs(1);
const TRAVEL: Span = Span::from_millis(50);

/// What a call is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose<'a> {
    /// Decide.
    Check(Intent),
    /// Give back what these decisions have taken, one for each hit.
    GiveBack(&'a [Decision]),
}

/// What the service knows of the server's time when it makes a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerTime<'a> {
    /// An estimate of now, to name keys.
    pub(super) estimate: Timestamp,
    /// When decisions were made.
    pub(super) clock: &'a ServerClock,
}

/// The keys and arguments of one call.
#[derive(Debug)]
pub(super) struct Call {
    nonce: String,
    keys: Vec<String>,
    arguments: Vec<String>,
    /// The time before which no hit is decided, one for each; see [`Timestamp::hold`].
    seen: SmallVec<[Timestamp; 2]>,
}

/// What a reply says.
#[derive(Debug)]
pub(super) enum Answer {
    /// One decision for each hit.
    Decisions(Decisions),
    /// A key named another window than that of the server's time, which is this; nothing was
    /// written.
    OtherWindow(Timestamp),
}

impl Call {
    pub(super) fn new(
        nonce: String,
        naming: &Naming,
        hits: &[Hit<'_>],
        purpose: Purpose<'_>,
        time: ServerTime<'_>,
    ) -> Self {
        let arguments = vec![nonce.clone(), purpose.name().to_owned()];
        let mut call = Self { nonce, keys: Vec::new(), arguments, seen: SmallVec::new() };
        match purpose {
            Purpose::Check(_) => hits.iter().for_each(|hit| call.push(naming, hit, time)),
            Purpose::GiveBack(taken) => {
                for (hit, taken) in hits.iter().zip(taken) {
                    call.push_taken(naming, hit, time, taken);
                }
            }
        }
        call
    }

    /// The call by the script's hash: EVALSHA.
    pub(super) fn by_hash(&self, script: &Script) -> Cmd {
        self.command("EVALSHA", &script.hash)
    }

    /// The call with the script's text: EVAL, which Redis remembers too.
    pub(super) fn by_text(&self, script: &Script) -> Cmd {
        self.command("EVAL", &script.text)
    }

    /// Reads the reply to this call: the server's time, and what it says.
    ///
    /// # Errors
    ///
    /// [`StoreError::Garbled`] if it is not a reply to this very call.
    pub(super) fn read(
        &self,
        hits: &[Hit<'_>],
        reply: &Value,
    ) -> Result<(Timestamp, Answer), StoreError> {
        let Value::Array(values) = reply else { return Err(StoreError::Garbled) };
        let [Value::BulkString(nonce), Value::Int(time), numbers @ ..] = values.as_slice() else {
            return Err(StoreError::Garbled);
        };
        if nonce != self.nonce.as_bytes() {
            return Err(StoreError::Garbled);
        }
        let time = Timestamp::from_micros(natural(*time)?);
        if numbers.is_empty() {
            return Ok((time, Answer::OtherWindow(time)));
        }
        if numbers.len() != hits.len() * REPLY_FIELDS {
            return Err(StoreError::Garbled);
        }
        let decided = numbers.chunks_exact(REPLY_FIELDS).zip(hits).zip(&self.seen);
        let decisions: Result<Decisions, StoreError> = decided
            .map(|((numbers, hit), seen)| {
                read_decision(time.hold(*seen, hit.limit.window()), numbers)
            })
            .collect();
        Ok((time, Answer::Decisions(decisions?)))
    }

    /// Adds a hit that is to be decided at about the time of the estimate.
    fn push(&mut self, naming: &Naming, hit: &Hit<'_>, time: ServerTime<'_>) {
        let window = hit.limit.window();
        let seen = time.clock.seen(window);
        let now = time.estimate.hold(seen, window);
        let first_index = window_index(now, window);
        self.push_windows(naming, hit, seen, first_index..first_index + windows_to_name(window));
    }

    /// Adds a hit that gives back; the window that it was taken in is the only one that it needs.
    fn push_taken(
        &mut self,
        naming: &Naming,
        hit: &Hit<'_>,
        time: ServerTime<'_>,
        taken: &Decision,
    ) {
        let window = hit.limit.window();
        let index = window_index(taken.at, window);
        let hit = Hit { cost: hit.cost_of(taken), ..*hit };
        self.push_windows(naming, &hit, time.clock.seen(window), index..index + 1);
        let numbers = [taken.at.as_micros(), taken.reset_after.as_micros()];
        self.arguments.extend(numbers.map(|number| number.to_string()));
    }

    /// Adds a hit; its keys name `windows` if its algorithm wants it.
    fn push_windows(
        &mut self,
        naming: &Naming,
        hit: &Hit<'_>,
        seen: Timestamp,
        windows: Range<u64>,
    ) {
        let key = naming.name(hit.key);
        let (keys, first_index) = if hit.algorithm.keyed_by_window() {
            self.keys.extend(windows.clone().map(|index| format!("{key}:{index}")));
            (windows.end - windows.start, windows.start)
        } else {
            self.keys.push(key);
            (1, 0)
        };
        self.seen.push(seen);
        self.arguments.push(hit.algorithm.lua_name().to_owned());
        self.arguments.extend(
            [
                keys,
                first_index,
                hit.limit.units(),
                hit.limit.window().as_micros(),
                hit.limit.burst(),
                hit.cost.units(),
                u64::from(hit.mode == Mode::Enforced),
                seen.as_micros(),
            ]
            .map(|number| number.to_string()),
        );
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = cmd(name);
        command.arg(script).arg(self.keys.len()).arg(&self.keys).arg(&self.arguments);
        command
    }
}

impl Purpose<'_> {
    /// As `lua/check.lua` knows it.
    const fn name(self) -> &'static str {
        match self {
            Self::Check(Intent::Take) => "take",
            Self::Check(Intent::Look) => "look",
            Self::GiveBack(_) => "give_back",
        }
    }
}

fn windows_to_name(window: Span) -> u64 {
    if window < SHORT_WINDOW { 2 + TRAVEL.as_micros() / window.as_micros() } else { 1 }
}

fn read_decision(at: Timestamp, numbers: &[Value]) -> Result<Decision, StoreError> {
    let mut fields = [0; REPLY_FIELDS];
    for (field, number) in fields.iter_mut().zip(numbers) {
        let Value::Int(number) = number else { return Err(StoreError::Garbled) };
        *field = natural(*number)?;
    }
    let [outcome, current_count, remaining, retry_after, reset_after, ttl, delay] = fields;
    Ok(Decision {
        at,
        outcome: match outcome {
            0 => Outcome::Allowed,
            1 => Outcome::Denied { retry_after: Span::from_micros(retry_after) },
            2 => Outcome::Impossible,
            _ => return Err(StoreError::Garbled),
        },
        current_count,
        remaining,
        reset_after: Span::from_micros(reset_after),
        ttl: Span::from_micros(ttl),
        delay: Span::from_micros(delay),
    })
}

fn natural(number: i64) -> Result<u64, StoreError> {
    u64::try_from(number).map_err(|_| StoreError::Garbled)
}
