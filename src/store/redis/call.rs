//! One script call: questions to keys and arguments, reply to answers. The other side is
//! `lua/check.lua`.

use deadpool_redis::redis::{Cmd, Value, cmd};

use super::failure::Failure;
use super::question::Question;
use super::scripts::Script;
use crate::algorithm::{Decision, Outcome};
use crate::clock::{Span, Timestamp};
use crate::store::{Decisions, StoreError};

/// Integers in a reply for each hit.
const REPLY_FIELDS: usize = 7;

/// For those who meet a call in SLOWLOG or in an error: both cut the arguments before they get to
/// what is no text.
const NOTE: &str = "what follows is MessagePack, described in lua/check.lua of rlaas";

/// The questions of one call.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) nonce: String,
    pub(super) questions: &'a [&'a Question],
}

/// What a reply says to one question.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// One decision for each hit.
    Decisions(Decisions),
    /// A key named another window than that of the server's time; nothing was written.
    OtherWindow,
}

/// An answer and the server's time when it was made.
pub(super) type Told = Result<(Timestamp, Answer), Failure>;

impl Call<'_> {
    /// The call by the script's hash: EVALSHA.
    pub(super) fn by_hash(&self, script: &Script) -> Cmd {
        self.command("EVALSHA", &script.hash)
    }

    /// The call with the script's text: EVAL, which Redis remembers too.
    pub(super) fn by_text(&self, script: &Script) -> Cmd {
        self.command("EVAL", &script.text)
    }

    /// Reads the reply to this call: what it says to each question.
    ///
    /// # Errors
    ///
    /// [`StoreError::Garbled`] if it is not a reply to this very call.
    pub(super) fn read(&self, reply: &Value) -> Result<Vec<Told>, StoreError> {
        let Value::Array(values) = reply else { return Err(StoreError::Garbled) };
        let [Value::BulkString(nonce), Value::Int(time), rest @ ..] = values.as_slice() else {
            return Err(StoreError::Garbled);
        };
        if nonce != self.nonce.as_bytes() {
            return Err(StoreError::Garbled);
        }
        let time = Timestamp::from_micros(natural(*time)?);
        let mut rest = rest;
        let mut told = Vec::with_capacity(self.questions.len());
        for question in self.questions {
            told.push(read_answer(question, time, &mut rest)?);
        }
        if rest.is_empty() { Ok(told) } else { Err(StoreError::Garbled) }
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let keys = self.questions.iter().map(|question| question.keys().len()).sum::<usize>();
        let mut command = cmd(name);
        command.arg(script).arg(keys);
        for key in self.questions.iter().flat_map(|question| question.keys().iter()) {
            command.arg(key);
        }
        command.arg(&self.nonce).arg(NOTE);
        for question in self.questions {
            command.arg(question.argument());
        }
        command
    }
}

/// Reads what belongs to one question, and leaves the rest.
fn read_answer(
    question: &Question,
    time: Timestamp,
    rest: &mut &[Value],
) -> Result<Told, StoreError> {
    let (first, after) = rest.split_first().ok_or(StoreError::Garbled)?;
    match first {
        Value::Int(0) => {
            *rest = after;
            Ok(Ok((time, Answer::OtherWindow)))
        }
        Value::Int(1) => {
            let fields = question.hits() * REPLY_FIELDS;
            let (numbers, after) = after.split_at_checked(fields).ok_or(StoreError::Garbled)?;
            *rest = after;
            let decided = numbers.chunks_exact(REPLY_FIELDS).zip(question.decided_at(time));
            let decisions: Result<Decisions, StoreError> =
                decided.map(|(numbers, at)| read_decision(at, numbers)).collect();
            Ok(Ok((time, Answer::Decisions(decisions?))))
        }
        Value::BulkString(text) => {
            *rest = after;
            Ok(Err(Failure::of_text(&String::from_utf8_lossy(text))))
        }
        _ => Err(StoreError::Garbled),
    }
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
