//! Request ids of changes: a retry changes nothing more, and gets the first answer.
//!
//! The fleet keeps a claim for each id, which is written before anything else happens. Of several
//! calls with the same id one claims it, whatever instance they reach. The claim has a fingerprint
//! of the change, and later its answer:
//!
//! | the first call | a retry |
//! | --- | --- |
//! | was answered | gets that answer |
//! | failed, and changed nothing | is made as if it were the first |
//! | failed, and may have changed some keys | is made again, except for a refund |
//! | has not ended | waits for its answer, up to a second; a change of a mode does not wait |
//! | has not ended by then, or its process died while it made the change | is refused as unavailable |
//! | has not begun to make the change within two seconds | is made as if it were the first, which changes nothing any more |
//!
//! A claim has a nonce, so that a server whose claim got no reply asks again whether it has it. A change
//! begins in the step that makes its claim last: only while no other call has claimed the id.
//!
//! A refund whose outcome is unknown is never made again under its id, because it could return
//! units twice: the audit and the state of the keys tell what it did. Ids of different callers are
//! different, so that nobody reads the answer to another one.

use prost::Message;
use ring::digest::{SHA256, digest};
use rlaas_limiter::fleet::{Fleet, MAX_VALUE_LEN};
use rlaas_telemetry::holder::Holder;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tonic::Status;

use super::change::AdminCall;
use super::refusals;
use rlaas_core::clock::Deadline;
use rlaas_limiter::store::StoreError;

/// The map of claims by callers of all projects; those of others are in maps of their projects.
const CLAIMS: &str = "changes";
/// Most bytes of an answer that is remembered.
pub(super) const MAX_ANSWER: usize = MAX_VALUE_LEN - 64;
/// Time for which a claim without effect stays.
const RELEASED: Duration = Duration::from_millis(1);
/// Longest wait for the answer of an earlier call: a form that is sent twice makes one change.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(1);
/// Time between two looks for the answer.
const POLL: Duration = Duration::from_millis(25);
/// Time within which a change must begin; then another call may claim the id.
const BEGIN_WITHIN: Duration = Duration::from_secs(2);
/// Longest wait for a reply of the store, after which it is asked again.
const REPLY_WITHIN: Duration = Duration::from_millis(500);

/// The content of a claim.
#[derive(Clone, PartialEq, Message)]
struct ClaimRecord {
    #[prost(bytes = "vec", tag = "1")]
    fingerprint: Vec<u8>,
    /// The answer, a message; `None` until the change is made.
    #[prost(bytes = "vec", optional, tag = "2")]
    answer: Option<Vec<u8>>,
    /// Whether the id was given back: it is free again as soon as the claim has expired.
    #[prost(bool, tag = "3")]
    released: bool,
    /// That of the call.
    #[prost(fixed64, tag = "4")]
    nonce: u64,
    /// Whether the change may have been made.
    #[prost(bool, tag = "5")]
    begun: bool,
}

/// A claim to the request id of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim<'a> {
    call: &'a AdminCall,
    holder: &'a Holder,
    /// Time for which the answer is remembered.
    ttl: Duration,
    /// Longest wait for the answer of an earlier call, see [`MAX_WAIT`].
    max_wait: Duration,
}

impl AdminCall {
    /// Returns a claim to the request id of the call.
    pub(super) fn claim<'a>(
        &'a self,
        holder: &'a Holder,
        ttl: Duration,
        max_wait: Duration,
    ) -> Claim<'a> {
        debug_assert_ne!(self.fingerprint, [0; 16], "with_fingerprint comes before a claim");
        Claim { call: self, holder, ttl, max_wait }
    }
}

/// The reason why a request id was not claimed.
#[derive(Debug)]
pub(super) enum ClaimError {
    /// Another change has the id, or an earlier call has claimed it and has no answer in time.
    Refused(Status),
    /// There is no space for another id, or the fleet does not answer.
    Store(StoreError),
}

impl From<ClaimError> for Status {
    fn from(error: ClaimError) -> Self {
        match error {
            ClaimError::Refused(status) => status,
            ClaimError::Store(error) => refusals::unclaimed(&error),
        }
    }
}

/// What is known about a change with a request id.
#[derive(Debug)]
pub(super) enum Claimed {
    /// The change is to be made.
    Now(ClaimedId),
    /// The change was made; this was the answer.
    Before(Vec<u8>),
}

/// A request id that this call has claimed. Dropped without an outcome it stays claimed.
#[derive(Debug)]
#[must_use]
pub(super) struct ClaimedId {
    fleet: Fleet,
    map: String,
    name: String,
    claim: ClaimRecord,
    ttl: Duration,
    is_kept: bool,
}

impl ClaimedId {
    /// Claims the request id of a caller for a change.
    ///
    /// # Errors
    ///
    /// [`ClaimError`]: nothing is claimed, as far as known.
    pub(super) async fn claim(
        fleet: &Fleet,
        Claim { call, holder, ttl, max_wait }: Claim<'_>,
        deadline: Deadline,
    ) -> Result<Claimed, ClaimError> {
        let name = hex(&hash(&[call.actor.as_bytes(), call.request_id.as_bytes()]));
        let nonce = RandomState::new().hash_one(&name);
        let fingerprint = call.fingerprint.to_vec();
        let claim = ClaimRecord { fingerprint, nonce, ..ClaimRecord::default() };
        let map = holder.own_map(CLAIMS);
        let claimed = Self { fleet: fleet.clone(), map, name, claim, ttl, is_kept: false };
        let until = Deadline::within(max_wait);
        let mut was_held = false;
        loop {
            let held = match claimed.set(&claimed.claim, BEGIN_WITHIN, deadline).await {
                // Another call has claimed it, whatever the store says now.
                Err(_) if was_held => return Err(unfinished()),
                held => held.map_err(ClaimError::Store)?,
            };
            let Some(held) = held else { return Ok(Claimed::Now(claimed)) };
            let claim = &claimed.claim;
            // A newer version may write claims that this one can't read.
            let held = ClaimRecord::decode(&held[..]).map_err(|_| unfinished())?;
            if !held.released && held.fingerprint != claim.fingerprint {
                return Err(ClaimError::Refused(refusals::other_change()));
            }
            if let Some(answer) = held.answer {
                return Ok(Claimed::Before(answer));
            }
            if until.has_passed() {
                return Err(unfinished());
            }
            was_held = true;
            pause().await;
        }
    }

    /// Makes the claim last, before the change is made.
    ///
    /// # Errors
    ///
    /// [`ClaimError`]: another call has claimed the id meanwhile, or the store does not answer. Then the
    /// change must not be made.
    pub(super) async fn begin(&mut self, deadline: Deadline) -> Result<(), ClaimError> {
        let begun = ClaimRecord { begun: true, ..self.claim.clone() };
        let held = self.set(&begun, self.ttl, deadline).await;
        if held.map_err(ClaimError::Store)?.is_some() {
            return Err(unfinished());
        }
        self.claim = begun;
        Ok(())
    }

    /// Sets the claim if the id is free, or this call has it. Else returns the claim of the other call.
    async fn set(
        &self,
        to: &ClaimRecord,
        ttl: Duration,
        deadline: Deadline,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let (own, to) = (self.claim.encode_to_vec(), to.encode_to_vec());
        loop {
            let (map, name, within) = (&self.map, &self.name, deadline.or_within(REPLY_WITHIN));
            match self.fleet.claim_over(map, name, &to, Some(&own), ttl, within).await {
                Err(error) if error.is_ambiguous() && !deadline.has_passed() => pause().await,
                // The reply was lost before.
                Ok(Some(held)) if held == to => return Ok(None),
                set => return set,
            }
        }
    }

    /// Remembers the answer, of at most [`MAX_ANSWER`] bytes. If the fleet does not answer, retries
    /// are refused.
    pub(super) async fn answered(mut self, answer: &impl Message, deadline: Deadline) {
        self.claim.answer = Some(answer.encode_to_vec());
        let Self { fleet, map, name, claim, ttl, .. } = self;
        remembered(fleet.put(&map, &name, &claim.encode_to_vec(), ttl, deadline).await);
    }

    /// Sets whether the claim is kept without an answer: the change may have been made, and a retry could
    /// make it twice.
    pub(super) fn set_kept(&mut self, is_kept: bool) {
        self.is_kept = is_kept;
    }

    /// Gives the id back, unless it is kept or another call has it: a retry makes the change.
    pub(super) async fn released(self, deadline: Deadline) {
        if self.is_kept {
            return;
        }
        // One that has not begun ends soon by itself.
        let deadline = if self.claim.begun { deadline } else { deadline.or_within(REPLY_WITHIN) };
        let released = ClaimRecord { released: true, ..self.claim.clone() };
        remembered(self.set(&released, RELEASED, deadline).await);
    }
}

fn unfinished() -> ClaimError {
    ClaimError::Refused(refusals::unfinished())
}

fn remembered<T>(result: Result<T, StoreError>) {
    if let Err(error) = result {
        tracing::warn!(%error, "the outcome of a change is not remembered under its request id");
    }
}

#[expect(clippy::disallowed_methods, reason = "the fleet reports no answers")]
async fn pause() {
    tokio::time::sleep(POLL).await;
}

/// Returns a hash of texts: 128 bits, by which another change under the same id is detected.
pub(super) fn hash(texts: &[&[u8]]) -> [u8; 16] {
    let mut all = Vec::new();
    for text in texts {
        all.extend_from_slice(&(text.len() as u64).to_be_bytes());
        all.extend_from_slice(text);
    }
    let hash = digest(&SHA256, &all);
    hash.as_ref()[..16].try_into().expect("SHA-256 has 32 bytes")
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}
