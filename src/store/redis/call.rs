//! One script call: hits to arguments, reply to decisions. The other side is `lua/check.lua`.

use deadpool_redis::redis::{Cmd, Value, cmd};

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
        intent: Intent,
        time: ServerTime<'_>,
    ) -> Self {
        let take = if intent == Intent::Take { "1" } else { "0" };
        let mut call =
            Self { arguments: vec![nonce.clone(), take.to_owned()], nonce, keys: Vec::new() };
        for hit in hits {
            call.push(naming, hit, time);
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
        let decisions: Result<Decisions, StoreError> =
            numbers.chunks_exact(REPLY_FIELDS).map(read_decision).collect();
        Ok((time, Answer::Decisions(decisions?)))
    }

    fn push(&mut self, naming: &Naming, hit: &Hit<'_>, time: ServerTime<'_>) {
        let key = naming.name(hit.key);
        let window = hit.limit.window();
        let seen = time.clock.seen(window);
        let now = time.estimate.hold(seen, window);
        let (keys, first_index) = if hit.algorithm.keyed_by_window() {
            (windows_to_name(window), window_index(now, window))
        } else {
            (1, 0)
        };
        if hit.algorithm.keyed_by_window() {
            self.keys
                .extend((first_index..first_index + keys).map(|index| format!("{key}:{index}")));
        } else {
            self.keys.push(key);
        }
        self.arguments.push(hit.algorithm.lua_name().to_owned());
        self.arguments.extend(
            [
                keys,
                first_index,
                hit.limit.units(),
                window.as_micros(),
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

fn windows_to_name(window: Span) -> u64 {
    if window < SHORT_WINDOW { 2 + TRAVEL.as_micros() / window.as_micros() } else { 1 }
}

fn read_decision(numbers: &[Value]) -> Result<Decision, StoreError> {
    let mut fields = [0; REPLY_FIELDS];
    for (field, number) in fields.iter_mut().zip(numbers) {
        let Value::Int(number) = number else { return Err(StoreError::Garbled) };
        *field = natural(*number)?;
    }
    let [outcome, current_count, remaining, retry_after, reset_after, ttl, delay] = fields;
    Ok(Decision {
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
