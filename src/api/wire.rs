//! Answers on the wire: written straight from verdicts, into one buffer, in one pass.
//!
//! A message for prost would be two texts and a list on the heap for each decision, and lengths that
//! are counted anew at each level: as much work as to decide. So the answers of checks are written
//! here by hand; `proto/ratelimit.proto` stays the truth, and the tests read what is written by it.
//! Everything else, requests included, is prost's.

use std::marker::PhantomData;

use prost::Message;
use prost::bytes::BufMut;
use tonic::Status;
use tonic::codec::{self, BufferSettings, EncodeBuf, Encoder};
use tonic_prost::ProstDecoder;

use super::facts::Facts;
use super::proto::GetConfigResponse;
use crate::clock::Span;
use crate::limiter::Verdict;

/// The service, answered by what is [`Written`].
#[expect(unreachable_pub, clippy::pedantic, reason = "generated")]
pub(super) mod service {
    include!(concat!(env!("OUT_DIR"), "/served/ratelimit.v1.rs"));
    pub(in crate::api) use rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
}

/// Wire types: of numbers, and of texts and messages.
const VARINT: u8 = 0;
const LENGTH_DELIMITED: u8 = 2;
/// The bit of a varint's byte that says that more follow.
const CONTINUED: u8 = 1 << 7;
/// The highest number of a field whose tag is one byte.
const MAX_FIELD: u8 = 15;

/// Most bytes of the numbers of a message: eight of a tag and up to ten bytes, and three durations of
/// a tag, a length, seconds and nanoseconds.
const MOST_BYTES: usize = 8 * 11 + 3 * (2 + 11 + 6);

/// Bytes that most answers fit into.
const USUAL: usize = 192;

/// A message in its encoded form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Written(Vec<u8>);

impl Written {
    /// `CheckResponse`.
    pub(super) fn response(verdict: &Verdict) -> Self {
        let mut written = Self(Vec::with_capacity(USUAL));
        written.push_response(verdict);
        written
    }

    /// `CheckResult`.
    pub(super) fn result(result: Result<&Verdict, &Status>) -> Self {
        let mut written = Self(Vec::with_capacity(USUAL));
        written.push_result(result);
        written
    }

    /// `CheckBatchResponse` without results, with room for so many.
    pub(super) fn batch(results: usize) -> Self {
        Self(Vec::with_capacity(results * USUAL))
    }

    /// Adds a result to a `CheckBatchResponse`.
    pub(super) fn add(&mut self, result: Result<&Verdict, &Status>) {
        self.message::<1>(|written| written.push_result(result));
    }

    fn push_result(&mut self, result: Result<&Verdict, &Status>) {
        match result {
            Ok(verdict) => self.message::<1>(|written| written.push_response(verdict)),
            // Details are a whole `google.rpc.Status`, code and message included.
            Err(status) if !status.details().is_empty() => {
                self.message::<2>(|written| written.0.extend_from_slice(status.details()));
            }
            Err(status) => self.message::<2>(|written| {
                written.number::<1>(i32::from(status.code()).cast_unsigned().into());
                written.text::<2>(status.message());
            }),
        }
    }

    /// The fields of `CheckResponse`.
    fn push_response(&mut self, verdict: &Verdict) {
        let deciding = verdict.deciding();
        let facts = Facts::of(deciding);
        self.numbers(|numbers| {
            numbers.number::<1>(verdict.is_allowed().into());
            numbers.counts::<2>(&facts);
        });
        self.text::<8>(facts.rule);
        self.numbers(|numbers| {
            numbers.number::<9>(enumerator(facts.algorithm));
            numbers.number::<10>(enumerator(facts.source));
            numbers.duration::<11>(facts.delay);
        });
        for decided in &verdict.decisions {
            if std::ptr::eq(decided, deciding) {
                self.message::<12>(|written| written.push_decision(&facts));
            } else {
                self.message::<12>(|written| written.push_decision(&Facts::of(decided)));
            }
        }
        self.number::<13>(enumerator(facts.reason));
    }

    /// The fields of `RuleDecision`.
    fn push_decision(&mut self, facts: &Facts<'_>) {
        self.text::<1>(facts.rule);
        self.numbers(|numbers| {
            numbers.number::<2>(enumerator(facts.algorithm));
            numbers.number::<3>(facts.allowed.into());
            numbers.counts::<4>(facts);
            numbers.duration::<10>(facts.delay);
            numbers.number::<11>(enumerator(facts.reason));
            numbers.number::<12>(facts.shadow.into());
        });
    }

    fn number<const FIELD: u8>(&mut self, value: u64) {
        if value != 0 {
            self.numbers(|numbers| numbers.number::<FIELD>(value));
        }
    }

    /// Fields that have but so many bytes together: they are written without a look at the room
    /// that there is.
    #[inline]
    fn numbers(&mut self, write: impl FnOnce(&mut Numbers<'_>)) {
        let start = self.0.len();
        self.0.extend_from_slice(&[0; MOST_BYTES]);
        let room = self.0[start..].first_chunk_mut().expect("as many bytes");
        let mut numbers = Numbers { bytes: room, len: 0 };
        write(&mut numbers);
        let len = numbers.len;
        self.0.truncate(start + len);
    }

    fn text<const FIELD: u8>(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let tag = const { tag(FIELD, LENGTH_DELIMITED) };
        match u8::try_from(text.len()) {
            Ok(length) if length < CONTINUED => self.0.extend_from_slice(&[tag, length]),
            _ => self.numbers(|numbers| {
                numbers.push(tag);
                numbers.varint(text.len() as u64);
            }),
        }
        self.0.extend_from_slice(text.as_bytes());
    }

    /// A message within this one. Its length stands before it and is known after it: most are short
    /// and have the one byte that is kept for it, others are moved on.
    fn message<const FIELD: u8>(&mut self, write: impl FnOnce(&mut Self)) {
        self.0.push(const { tag(FIELD, LENGTH_DELIMITED) });
        let length_at = self.0.len();
        self.0.push(0);
        write(self);
        let mut length = self.0.len() - length_at - 1;
        let mut at = length_at;
        while length >= CONTINUED.into() {
            self.0[at] = length.to_le_bytes()[0] | CONTINUED;
            length >>= 7;
            at += 1;
            self.0.insert(at, 0);
        }
        self.0[at] = length.to_le_bytes()[0];
    }
}

/// Room for the fields of a message, all but texts and messages.
struct Numbers<'a> {
    bytes: &'a mut [u8; MOST_BYTES],
    len: usize,
}

impl Numbers<'_> {
    /// The six fields that a response and a decision have alike, one after the other.
    #[inline]
    fn counts<const FIRST: u8>(&mut self, facts: &Facts<'_>) {
        self.tagged_number(const { tag(FIRST, VARINT) }, facts.current_count);
        self.tagged_number(const { tag(FIRST + 1, VARINT) }, facts.ttl_seconds);
        self.tagged_number(const { tag(FIRST + 2, VARINT) }, facts.limit);
        self.tagged_number(const { tag(FIRST + 3, VARINT) }, facts.remaining.cast_unsigned());
        self.tagged_duration(const { tag(FIRST + 4, LENGTH_DELIMITED) }, facts.retry_after);
        self.tagged_duration(const { tag(FIRST + 5, LENGTH_DELIMITED) }, facts.reset_after);
    }

    /// A field that is left out at its default, as proto3 has it.
    #[inline]
    fn number<const FIELD: u8>(&mut self, value: u64) {
        self.tagged_number(const { tag(FIELD, VARINT) }, value);
    }

    /// `google.protobuf.Duration`: shorter than what a length of one byte can tell.
    #[inline]
    fn duration<const FIELD: u8>(&mut self, span: Option<Span>) {
        self.tagged_duration(const { tag(FIELD, LENGTH_DELIMITED) }, span);
    }

    #[inline]
    fn tagged_number(&mut self, tag: u8, value: u64) {
        if value != 0 {
            self.push(tag);
            self.varint(value);
        }
    }

    #[inline]
    fn tagged_duration(&mut self, tag: u8, span: Option<Span>) {
        let Some(span) = span else { return };
        self.push(tag);
        let length_at = self.len;
        self.push(0);
        self.number::<1>(span.as_micros() / 1_000_000);
        self.number::<2>(span.as_micros() % 1_000_000 * 1_000);
        self.bytes[length_at] = (self.len - length_at - 1).to_le_bytes()[0];
    }

    #[inline]
    fn varint(&mut self, mut value: u64) {
        while value >= CONTINUED.into() {
            self.push(value.to_le_bytes()[0] | CONTINUED);
            value >>= 7;
        }
        self.push(value.to_le_bytes()[0]);
    }

    #[inline]
    fn push(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }
}

/// The tag of a field. Called in constants, so that a field that does not fit does not compile.
const fn tag(field: u8, wire_type: u8) -> u8 {
    assert!(field >= 1 && field <= MAX_FIELD, "the tag of this field is longer than a byte");
    field << 3 | wire_type
}

/// The number of an enum's value.
fn enumerator(value: impl Into<i32>) -> u64 {
    value.into().cast_unsigned().into()
}

/// Writes answers of both kinds, and reads requests as prost does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Codec<T, U>(PhantomData<(T, U)>);

/// What a [`Codec`] can write.
pub(super) trait Answer: Send + 'static {
    /// Writes all of it.
    fn write(self, buffer: &mut EncodeBuf<'_>);
}

impl Answer for Written {
    fn write(self, buffer: &mut EncodeBuf<'_>) {
        buffer.put_slice(&self.0);
    }
}

impl Answer for GetConfigResponse {
    fn write(self, buffer: &mut EncodeBuf<'_>) {
        self.encode(buffer).expect("the buffer grows");
    }
}

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Answer, U: Message + Default + 'static> codec::Codec for Codec<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = Self;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> ProstDecoder<U> {
        ProstDecoder::new(BufferSettings::default())
    }
}

impl<T: Answer, U> Encoder for Codec<T, U> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.write(buffer);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use futures_util::FutureExt;
    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::{Algorithm, Limit};
    use crate::api::message::respond;
    use crate::api::proto::{CheckBatchResponse, CheckResult, check_result};
    use crate::clock::{Clock, Deadline, ManualClock, Timestamp};
    use crate::limiter::{CheckError, Limiter};
    use crate::rules::{Draft, Grant, Mode, Request, Rule, RuleSet, Unmatched};
    use crate::store::{MemorySettings, MemoryStore, Store};
    use crate::telemetry::metrics::Metrics;

    proptest! {
        #[test]
        fn what_is_written_is_what_prost_writes(
            rules in prop::collection::vec(rule(), 0..20),
            asked in prop::collection::vec((0..4_u64, 0..100_000_000_u64), 1..20),
            unmatched in prop_oneof![Just(Unmatched::DefaultRule), Just(Unmatched::Allow)],
        ) {
            let (limiter, clock) = limiter(rules, unmatched);
            let mut batch = Written::batch(asked.len());
            let mut results = Vec::new();
            for (cost, pause_micros) in asked {
                clock.set(clock.now() + Span::from_micros(pause_micros));
                if let Some(verdict) = check(&limiter, cost) {
                    let message = respond(&verdict);
                    prop_assert_eq!(Written::response(&verdict).0, message.encode_to_vec());
                    batch.add(Ok(&verdict));
                    results.push(check_result::Result::Response(message));
                }
                let status = Status::invalid_argument("e".repeat(100 * usize::from(cost > 1)));
                batch.add(Err(&status));
                results.push(check_result::Result::Error(tonic_types::Status {
                    code: status.code().into(),
                    message: status.message().to_owned(),
                    details: Vec::new(),
                }));
            }
            let results = results.into_iter().map(|result| CheckResult { result: Some(result) });
            let message = CheckBatchResponse { results: results.collect() };
            prop_assert_eq!(batch.0, message.encode_to_vec());
        }
    }

    /// One of every kind, with a name that is short or long.
    fn rule() -> impl Strategy<Value = Rule> {
        let limit = (1..=Limit::MAX_UNITS, 1..100_000_u64).prop_map(|(units, millis)| {
            Grant::Limited(Limit::new(units, Span::from_millis(millis)).expect("a valid limit"))
        });
        let small = Limit::new(2, Span::from_secs(60)).expect("a valid limit");
        let grants = prop_oneof![
            4 => limit,
            4 => Just(Grant::Limited(small)),
            1 => Just(Grant::Banned),
            1 => Just(Grant::Unlimited),
        ];
        let algorithm = prop::sample::select(Algorithm::ALL);
        let modes = prop_oneof![Just(Mode::Enforced), Just(Mode::Shadow)];
        (0..1_500_usize, algorithm, grants, modes).prop_map(
            move |(length, algorithm, grant, mode)| {
                let name = "n".repeat(length).into();
                Rule { name, grant, mode, ..Rule::default_of(algorithm, small) }
            },
        )
    }

    #[test]
    fn details_of_an_error_are_those_of_the_status() {
        let status = Status::from(CheckError::NoRule);
        let written = Written::result(Err(&status));
        let CheckResult { result: Some(check_result::Result::Error(error)) } =
            CheckResult::decode(&*written.0).expect("a result")
        else {
            panic!("{written:?}");
        };
        assert_eq!((error.code, &*error.message), (7, "no rule matches"));
        assert_eq!(error.encode_to_vec(), status.details());
    }

    fn limiter(mut rules: Vec<Rule>, unmatched: Unmatched) -> (Arc<Limiter>, ManualClock) {
        for (number, rule) in rules.iter_mut().enumerate() {
            rule.name = format!("{number}{}", rule.name).into();
        }
        let default = Limit::new(5, Span::from_secs(60)).expect("a valid limit");
        let default = Rule::default_of(Algorithm::LeakyBucket, default);
        let (clock, metrics) = (ManualClock::new(Timestamp::from_millis(1)), Metrics::new());
        let metrics = Arc::new(metrics);
        let settings = MemorySettings::default();
        let store = MemoryStore::new(settings, Clock::Manual(clock.clone()), &metrics);
        let rules = RuleSet::new(default, rules).with_unmatched(unmatched);
        (Arc::new(Limiter::new(rules, Store::Memory(store), metrics)), clock)
    }

    fn check(limiter: &Arc<Limiter>, cost: u64) -> Option<Verdict> {
        let attributes = HashMap::new();
        let (user_id, resource, cost) = ("u", "", Some(cost));
        let draft = Draft { user_id, resource, attributes: &attributes, cost, dry_run: false };
        let request = Request::new(draft).ok()?;
        limiter.check(&request, Deadline::NEVER).now_or_never()?.ok()
    }
}
