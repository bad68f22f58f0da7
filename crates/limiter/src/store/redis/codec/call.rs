//! Encodes one script call, and parses its reply. The other side is `lua/check.lua`.

use deadpool_redis::redis::{Cmd, Value, cmd};
use rmp::Marker;
use rmp::decode::{self, Bytes};
use smallvec::SmallVec;

use super::call_error::CallError;
use super::request::{Overridable, ScriptForm, ScriptRequest, SentHit};
use super::scripts::Script;
use crate::algorithm::{Decision, Outcome, WindowCount};
use crate::clock::{Micros, Timestamp};
use crate::control::{Applied, ControlRecord, KeyGrant, KeyOverride};
use crate::idempotency::{self, CallId, RecordUse, RequestIdError};
use crate::operation::{Held, HitReply, Reply};
use crate::reservation::{ReservationReply, Settlement, Settlements};
use crate::store::StoreError;

/// A note for readers of SLOWLOG or of an error message, which are cut off before the binary
/// arguments.
const NOTE: &str = "MessagePack follows, described in lua/check.lua of rlaas";

/// The requests of one call.
#[derive(Debug)]
pub(crate) struct ScriptCall {
    pub(crate) nonce: String,
    pub(crate) requests: Vec<ScriptRequest>,
}

/// Outcome of one request.
#[expect(clippy::large_enum_variant, reason = "it is the usual one")]
#[derive(Clone, Debug)]
pub(crate) enum ScriptReply {
    /// Replies to the hits.
    Decided(Reply),
    /// A key names another window than that of the server time; nothing was written.
    OtherWindow,
    /// The request id forbids the request; nothing was written.
    RequestId(RequestIdError),
}

/// Reply to one request, with the server time of the call.
pub(crate) type ScriptResult = Result<(Timestamp, ScriptReply), CallError>;

impl ScriptCall {
    /// Returns the call by the hash of the script, or with its text, which caches the script in Redis, too.
    pub(crate) fn command(&self) -> Cmd {
        let ScriptForm { script, by_text } = self.requests[0].form;
        let Script { text, hash } = script.script();
        let mut command = if by_text { cmd("EVAL") } else { cmd("EVALSHA") };
        let keys = self.requests.iter().map(|request| request.keys.len()).sum::<usize>();
        command.arg(if by_text { text } else { hash }).arg(keys);
        for key in self.requests.iter().flat_map(|request| request.keys.iter()) {
            command.arg(key);
        }
        command.arg(&self.nonce).arg(NOTE);
        for request in &self.requests {
            command.arg(&request.argument[..]);
        }
        command
    }

    /// Parses the reply to this call into a result for each request.
    ///
    /// # Errors
    ///
    /// [`StoreError::Garbled`] if it is not the reply to this call.
    pub(crate) fn parse(&self, reply: &Value) -> Result<Vec<ScriptResult>, StoreError> {
        let Value::BulkString(reply) = reply else { return Err(StoreError::Garbled) };
        let mut reply = ReplyReader(Bytes::new(reply));
        if reply.text()? != self.nonce.as_bytes() {
            return Err(StoreError::Garbled);
        }
        let time = Timestamp::from_micros(reply.number()?);
        let results = self.requests.iter().map(|request| reply.result(request, time));
        let results = results.collect::<Result<Vec<ScriptResult>, StoreError>>()?;
        if reply.is_over() { Ok(results) } else { Err(StoreError::Garbled) }
    }
}

/// What a reply has of each hit.
#[derive(Clone, Copy)]
enum HitForm {
    /// The decision, and the units counted.
    Decision,
    /// The count of a fixed window before the cost was taken, from which the decision follows, by a
    /// server whose clock shows `time`.
    WindowCount { time: Timestamp },
}

/// Reader of the rest of a reply: concatenated MessagePack values.
struct ReplyReader<'a>(Bytes<'a>);

impl<'a> ReplyReader<'a> {
    fn result(
        &mut self,
        request: &ScriptRequest,
        time: Timestamp,
    ) -> Result<ScriptResult, StoreError> {
        if self.is_text() {
            let text = String::from_utf8_lossy(self.text()?);
            return Ok(Err(CallError::from_text(&text)));
        }
        match self.number()? {
            0 => Ok(Ok((time, ScriptReply::OtherWindow))),
            code @ (1 | 7) => {
                let form = match code {
                    1 => HitForm::Decision,
                    _ => HitForm::WindowCount { time },
                };
                let hits = self.hits(request, form, request.decided_at(time))?;
                let reservation = self.reservation(request)?;
                let reply = Reply { hits, replayed: None, reservation };
                Ok(Ok((time, ScriptReply::Decided(reply))))
            }
            2 => {
                let text = String::from_utf8_lossy(self.text()?);
                Ok(Err(CallError::from_partial(&text)))
            }
            3 if request.purpose.is_some() => {
                let taker = self.text()?.try_into().map_err(|_| StoreError::Garbled)?;
                let at = Timestamp::from_micros(self.number()?);
                let decided_at = request.decided_at(time).map(|_| self.number());
                let decided_at = decided_at.collect::<Result<SmallVec<[u64; 2]>, _>>()?;
                let decided_at = decided_at.into_iter().map(Timestamp::from_micros);
                let hits = self.hits(request, HitForm::Decision, decided_at)?;
                let taker = CallId(u64::from_be_bytes(taker));
                let counts_down = request.purpose != Some(RecordUse::Confirm);
                let elapsed = if counts_down { time.since(at) } else { Micros::ZERO };
                let reply = idempotency::repeated(hits, taker, elapsed);
                Ok(Ok((time, ScriptReply::Decided(reply))))
            }
            8 if request.has_reservation => {
                let count = self.number()?;
                let settlements = self.settlements(count)?;
                let reservation = Some(ReservationReply::Settled { settlements, replayed: true });
                Ok(Ok((time, ScriptReply::Decided(Reply { reservation, ..Reply::default() }))))
            }
            code @ (9 | 10) if request.has_reservation => {
                let reservation = Some(match code {
                    9 => ReservationReply::NotFound,
                    _ => ReservationReply::Forgotten,
                });
                Ok(Ok((time, ScriptReply::Decided(Reply { reservation, ..Reply::default() }))))
            }
            4 => Ok(Ok((time, ScriptReply::RequestId(RequestIdError::OtherRequest)))),
            5 => Ok(Ok((time, ScriptReply::RequestId(RequestIdError::TooManyReplays)))),
            6 => Ok(Ok((time, ScriptReply::RequestId(RequestIdError::OtherRules)))),
            _ => Err(StoreError::Garbled),
        }
    }

    /// Reads the values of all hits.
    fn hits(
        &mut self,
        request: &ScriptRequest,
        form: HitForm,
        decided_at: impl Iterator<Item = Timestamp>,
    ) -> Result<SmallVec<[HitReply; 2]>, StoreError> {
        let mut overridable = request.overridable.iter().peekable();
        let mut holding = request.holding.iter().peekable();
        let hit = |(position, at)| {
            let (decision, taken) = match form {
                HitForm::Decision => (self.decision(at)?, self.number()?),
                HitForm::WindowCount { time } => {
                    let SentHit { units, window, cost, .. } = request.hits[position];
                    let counted = WindowCount { count: self.number()?, ttl: self.span()? };
                    let mut decision = counted.decide(units, window, at, cost);
                    decision.extend_waits(at.since(time));
                    (decision, decision.outcome.taken(cost))
                }
            };
            let mut reply = HitReply::new(decision, taken);
            if let Some((_, hit)) = overridable.next_if(|(other, _)| *other == position) {
                reply.applied = self.applied(*hit)?;
            }
            if holding.next_if(|other| **other == position).is_some() {
                reply.held = Some(Box::new(self.held()?));
            }
            Ok(reply)
        };
        decided_at.enumerate().map(hit).collect()
    }

    /// Reads the holds of the key of a hit.
    fn held(&mut self) -> Result<Held, StoreError> {
        let (units, holds) = (self.number()?, self.number()?);
        let holds = u32::try_from(holds).map_err(|_| StoreError::Garbled)?;
        // One more than its units.
        let own = self.number()?.checked_sub(1);
        let denies = self.number()? == 1;
        Ok(Held { units, holds, own, denies })
    }

    /// Reads what became of the reservation of a request that was executed.
    fn reservation(
        &mut self,
        request: &ScriptRequest,
    ) -> Result<Option<ReservationReply>, StoreError> {
        if !request.has_reservation {
            return Ok(None);
        }
        match self.number()? {
            0 => Ok(None),
            code @ (1 | 3) => {
                let ends_at = Timestamp::from_micros(self.number()?);
                Ok(Some(ReservationReply::Held { ends_at, replayed: code == 3 }))
            }
            2 => {
                let settlements = self.settlements(request.hits.len() as u64)?;
                Ok(Some(ReservationReply::Settled { settlements, replayed: false }))
            }
            _ => Err(StoreError::Garbled),
        }
    }

    fn settlements(&mut self, count: u64) -> Result<Settlements, StoreError> {
        let settlement = |_| {
            let rule = String::from_utf8_lossy(self.text()?).into_owned();
            let [charged, returned] = [self.number()?, self.number()?];
            let [debt, uncounted] = [self.number()?, self.number()?];
            Ok((rule.into(), Settlement { charged, returned, debt, uncounted }))
        };
        (0..count).map(settlement).collect()
    }

    /// Reads the record of an overridable hit. Its parts have not ended.
    fn applied(&mut self, hit: Overridable) -> Result<Option<Box<Applied>>, StoreError> {
        let (ban_ends_at, grant_ends_at) = (self.number()?, self.number()?);
        let units: i64 = decode::read_int(&mut self.0).map_err(|_| StoreError::Garbled)?;
        let burst = self.number()?;
        let mut note = || if hit.shows { self.text() } else { Ok(&[][..]) };
        let mut record = ControlRecord::default();
        let (ban_note, grant_note) = (note()?, note()?);
        if ban_ends_at > 0 {
            let ends_at = Timestamp::from_micros(ban_ends_at);
            record.set(KeyOverride { grant: KeyGrant::Banned, ends_at, note: ban_note.into() });
        }
        if grant_ends_at > 0 {
            let grant = match (units, u64::try_from(units), burst) {
                (-1, _, _) => KeyGrant::Unlimited,
                (1.., Ok(units), burst) => KeyGrant::Limited { units, burst },
                _ => return Err(StoreError::Garbled),
            };
            let ends_at = Timestamp::from_micros(grant_ends_at);
            record.set(KeyOverride { grant, ends_at, note: grant_note.into() });
        }
        let Some(KeyOverride { grant, ends_at, .. }) = record.iter().next() else {
            return Ok(None);
        };
        let (grant, ends_at) = (grant.within(hit.frame), *ends_at);
        let record = hit.shows.then_some(record);
        Ok(Some(Box::new(Applied { grant, ends_at, record })))
    }

    fn decision(&mut self, at: Timestamp) -> Result<Decision, StoreError> {
        let (outcome, current_count) = (self.number()?, self.number()?);
        let remaining = decode::read_int(&mut self.0).map_err(|_| StoreError::Garbled)?;
        let retry_after = self.span()?;
        let outcome = match outcome {
            0 => Outcome::Allowed,
            1 => Outcome::Denied { retry_after },
            2 => Outcome::Impossible,
            _ => return Err(StoreError::Garbled),
        };
        let (reset_after, ttl, delay) = (self.span()?, self.span()?, self.span()?);
        Ok(Decision { at, outcome, current_count, remaining, reset_after, ttl, delay })
    }

    fn span(&mut self) -> Result<Micros, StoreError> {
        self.number().map(Micros::from_micros)
    }

    fn number(&mut self) -> Result<u64, StoreError> {
        decode::read_int(&mut self.0).map_err(|_| StoreError::Garbled)
    }

    fn text(&mut self) -> Result<&'a [u8], StoreError> {
        let length = decode::read_str_len(&mut self.0).map_err(|_| StoreError::Garbled)?;
        let rest = self.0.remaining_slice();
        let (text, rest) = rest.split_at_checked(length as usize).ok_or(StoreError::Garbled)?;
        self.0 = Bytes::new(rest);
        Ok(text)
    }

    fn is_text(&self) -> bool {
        let marker = self.0.remaining_slice().first().map(|first| Marker::from_u8(*first));
        matches!(marker, Some(Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32))
    }

    fn is_over(&self) -> bool {
        self.0.remaining_slice().is_empty()
    }
}
