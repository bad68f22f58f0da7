//! The memory store: states in tables, each with its own lock (stripes).
//!
//! A request locks the stripes of its keys in order, decides every hit, and commits only if none
//! denies. It neither waits nor fails.

mod hold_table;
#[cfg(feature = "journal")]
mod overrides;
#[cfg(feature = "journal")]
mod persistence;
mod remembered_replies;
mod segmented_vec;
mod settlement_table;
mod stripe;

use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::DefaultHashBuilder;
use smallvec::SmallVec;

use self::hold_table::HoldTable;
#[cfg(feature = "journal")]
use self::persistence::Snapshots;
use self::remembered_replies::RememberedReplies;
use self::settlement_table::SettlementTable;
use self::stripe::{DecisionTime, Stripe};
use crate::algorithm::{Decision, State};
use crate::clock::{Clock, Micros, Timestamp};
use crate::control::{ControlRecord, KeyOverrides, OverridePage};
use crate::idempotency::RequestIdError;
#[cfg(feature = "journal")]
use crate::journal::Journal;
use crate::limit_history::LimitHistory;
use crate::observer::{Observer, StoreEvent};
use crate::operation::{Action, HitReply, Reply, Shard, StoreHit, StoreRequest};
use crate::reservation::{self, Holds, Reservation, ReservationUse};
use crate::rules::{Coupling, Key};
use crate::step::{self, Slot, Slots};
use crate::store::StoreError;

/// Slots that a background task visits while it holds one lock, for a microsecond or some more.
const SLOTS_PER_LOCK: usize = 64;
/// Time between two steps of the background sweep.
const SWEEP_INTERVAL: Duration = Duration::from_millis(20);
/// Keys of a stripe if there are several stripes: the capacity of a hash table whose size is a
/// power of two, less some reserve for an uneven spread. A stripe holds less than twice as many.
const KEYS_PER_STRIPE: usize = 3328;
/// Stripes of a store for all keys.
const STRIPES_FOR_ALL_KEYS: usize = 4_096;
/// Most keys of a stripe, whose slots have numbers of 16 bits.
const MAX_KEYS_PER_STRIPE: usize = u16::MAX as usize;
/// Number of steps in which the background sweep visits all stripes.
const SWEEP_STEPS: usize = 256;

/// Settings of the memory store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySettings {
    /// Maximum number of keys, at least 1.
    pub max_keys: u32,
}

impl Default for MemorySettings {
    fn default() -> Self {
        Self { max_keys: 1_000_000 }
    }
}

/// A stripe on its own cache lines, which avoids false sharing between neighbours.
#[derive(Debug)]
#[repr(align(64))]
struct PaddedStripe(Mutex<Stripe>);

/// Holds and settlements, both bounded so that no project takes the places of others.
#[derive(Debug)]
struct Reservations {
    holds: HoldTable,
    settlements: SettlementTable,
}

impl Reservations {
    fn new(max_holds: u32, max_settlement_bytes: usize, observer: Arc<dyn Observer>) -> Self {
        let settlements = SettlementTable::new(max_settlement_bytes, observer);
        Self { holds: HoldTable::new(max_holds), settlements }
    }
}

/// State in the memory of this process. Clones share it.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    stripes: Arc<[PaddedStripe]>,
    hasher: DefaultHashBuilder,
    clock: Clock,
    remembered: Arc<RememberedReplies>,
    /// Locked after the stripes.
    reservations: Arc<Mutex<Reservations>>,
    #[cfg(feature = "journal")]
    journal: Option<Journal>,
    #[cfg(feature = "journal")]
    snapshots: Option<Arc<Snapshots>>,
}

impl MemoryStore {
    /// Default of the replies that a store remembers for request ids.
    pub const MAX_REQUEST_IDS: u32 = 100_000;
    /// Default of the holds of a store.
    pub const MAX_HOLDS: u32 = 100_000;
    /// Default of the bytes of the settlements that a store remembers.
    pub const MAX_SETTLEMENT_BYTES: usize = 64 << 20;

    /// Creates an empty store that reports to `observer`.
    pub fn new(settings: MemorySettings, clock: Clock, observer: Arc<dyn Observer>) -> Self {
        let max_keys = settings.max_keys.max(1) as usize;
        let stripes = (max_keys / KEYS_PER_STRIPE).max(1);
        Self::with_stripes(stripes, max_keys / stripes, clock, observer)
    }

    /// Creates an empty store for as many keys as there are, about 2^28: for simulations, which
    /// have the memory of a machine for themselves and must not lose a key. Starts small.
    pub fn for_all_keys(clock: Clock, observer: Arc<dyn Observer>) -> Self {
        Self::with_stripes(STRIPES_FOR_ALL_KEYS, MAX_KEYS_PER_STRIPE, clock, observer)
    }

    fn with_stripes(
        stripes: usize,
        keys_per_stripe: usize,
        clock: Clock,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let hasher = DefaultHashBuilder::default();
        let remembered = RememberedReplies::new(Self::MAX_REQUEST_IDS, Arc::clone(&observer));
        let (max_holds, max_bytes) = (Self::MAX_HOLDS, Self::MAX_SETTLEMENT_BYTES);
        let reservations = Reservations::new(max_holds, max_bytes, Arc::clone(&observer));
        let observers = std::iter::repeat_n(observer, stripes);
        let stripe = |observer| Stripe::new(keys_per_stripe, hasher.clone(), observer);
        let stripes =
            observers.map(|observer| PaddedStripe(Mutex::new(stripe(observer)))).collect();
        Self {
            stripes,
            hasher,
            clock,
            remembered: Arc::new(remembered),
            reservations: Arc::new(Mutex::new(reservations)),
            #[cfg(feature = "journal")]
            journal: None,
            #[cfg(feature = "journal")]
            snapshots: None,
        }
    }

    /// Returns this store with another bound on the replies that it remembers for request ids, at
    /// least 1. Those that it remembers already are forgotten.
    #[must_use]
    pub fn with_max_request_ids(self, max: u32) -> Self {
        let remembered = Arc::new(self.remembered.emptied(max));
        Self { remembered, ..self }
    }

    /// Returns this store with other bounds on the holds of reservations, and on the bytes of the
    /// settlements that it remembers. Those that it has are forgotten.
    #[must_use]
    pub fn with_max_reservations(self, max_holds: u32, max_settlement_bytes: usize) -> Self {
        let observer = Arc::clone(&self.lock_reservations().settlements.observer);
        let reservations = Reservations::new(max_holds, max_settlement_bytes, observer);
        Self { reservations: Arc::new(Mutex::new(reservations)), ..self }
    }

    /// Returns the time now. See [`super::Store::now`].
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the clock of the store.
    pub(crate) fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// Decides every hit. See [`super::Store::execute`].
    ///
    /// # Errors
    ///
    /// [`RequestIdError`], only if the request has a request id.
    pub fn execute(&self, request: StoreRequest<'_>) -> Result<Reply, RequestIdError> {
        match request.once {
            None => Ok(self.decide(request)),
            Some(_) => {
                self.remembered.execute(request, self.clock.now(), |request| self.decide(request))
            }
        }
    }

    fn decide(&self, request: StoreRequest<'_>) -> Reply {
        let StoreRequest { hits, coupling, reservation, .. } = request;
        if let ([hit], Coupling::AllOrNothing, None) = (hits, coupling, reservation) {
            let mut reply = Reply::default();
            reply.hits.push(self.execute_one(hit));
            return reply;
        }
        self.execute_at(request, None)
    }

    /// As [`MemoryStore::execute`]: now, or at a time of the recent past.
    fn execute_at(&self, request: StoreRequest<'_>, time: Option<Timestamp>) -> Reply {
        let hits = request.hits;
        let locations: SmallVec<[KeyLocation; 2]> =
            hits.iter().map(|hit| self.location(hit)).collect();
        let stripes = self.lock(&locations);
        let holds = hits.iter().any(|hit| hit.max_holds.is_some());
        let mut reservations = holds.then(|| self.lock_reservations());
        let time = time.unwrap_or_else(|| self.clock.now());
        let project = hits.first().map_or("", |hit| hit.key.project());
        let number = request.reservation.map(|reservation| reservation.number);
        let mut remembered = number.zip(reservations.as_deref()).and_then(|(number, all)| {
            let known = all.settlements.get(project, number)?;
            (!known.is_expired(time)).then(|| known.clone())
        });
        let was_known = remembered.is_some();
        let wait_for_space = reservations.as_mut().and_then(|all| {
            let more = new_holds(&request)?;
            all.holds.wait_for_space(project.as_bytes(), more, time)
        });
        let forgotten = reservations.as_ref().map(|all| all.settlements.forgotten(project));
        let forgotten = forgotten.unwrap_or_default();
        let reservations = &mut reservations;
        let reply = reservation::execute(request, time, &mut remembered, forgotten, |request| {
            let reservations = reservations.as_deref_mut();
            let locations = &locations;
            step::execute(
                request,
                Step { hits, locations, stripes, reservations, wait_for_space, time },
            )
        });
        if let Some(all) = reservations {
            if let (Some(number), Some(settlement), false) = (number, remembered, was_known) {
                all.settlements.add(project, number, settlement);
            }
            if wait_for_space.is_some() && reply.reservation.is_none() {
                all.settlements.observer.store(StoreEvent::HoldDenied);
            }
        }
        reply
    }

    /// Decides every hit, unless it would set an override for which there is no space. Then nothing
    /// is changed.
    pub(super) fn try_execute(&self, request: StoreRequest<'_>) -> Result<Reply, StoreError> {
        self.check_space(request.hits)?;
        self.execute(request).map_err(StoreError::RequestId)
    }

    fn check_space(&self, hits: &[StoreHit<'_>]) -> Result<(), StoreError> {
        let sets = |hit: &&StoreHit<'_>| hit.overridable && hit.action == Action::SetOverride;
        for hit in hits.iter().filter(sets) {
            let stripe = self.location(hit).stripe;
            let time = self.clock.now();
            if !lock(&self.stripes[stripe]).has_space_for_control(hit.key.as_bytes(), time) {
                return Err(StoreError::Full);
            }
        }
        Ok(())
    }

    /// Decides a single hit, the common case, with one lookup.
    pub fn execute_one(&self, hit: &StoreHit<'_>) -> HitReply {
        if hit.max_holds.is_some() {
            return self.execute_one_beside_holds(hit);
        }
        let KeyLocation { hash, stripe } = self.location(hit);
        let mut stripe = lock(&self.stripes[stripe]);
        step::execute_one(hit, StripeSlot::new(&mut stripe, hash, hit, self.clock.now()))
    }

    #[cold]
    fn execute_one_beside_holds(&self, hit: &StoreHit<'_>) -> HitReply {
        let (hits, coupling) = (std::slice::from_ref(hit), Coupling::AllOrNothing);
        let shard = Shard::default();
        let request = StoreRequest { hits, coupling, shard, once: None, reservation: None };
        self.execute_at(request, None).hits.swap_remove(0)
    }

    fn lock_reservations(&self) -> MutexGuard<'_, Reservations> {
        self.reservations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists overrides. See [`super::Store::list_overrides`]. The cursor is the number of a stripe,
    /// and the last key of it that is listed.
    pub(super) fn list_overrides(
        &self,
        cursor: &str,
        count: usize,
    ) -> Result<OverridePage, StoreError> {
        let (stripe, last) = match cursor.split_once(' ') {
            Some((stripe, last)) => (stripe.parse().map_err(|_| StoreError::Cursor)?, Some(last)),
            None if cursor.is_empty() => (0, None),
            None => return Err(StoreError::Cursor),
        };
        if stripe >= self.stripes.len() {
            return Err(StoreError::Cursor);
        }
        let mut page = OverridePage::default();
        let mut last = last.map(str::to_owned);
        for number in stripe..self.stripes.len() {
            let time = self.clock.now();
            let mut stripe = lock(&self.stripes[number]);
            stripe.drop_ended(time);
            let mut after = last.take().unwrap_or_default();
            let is_left = |(key, _): &(&str, _)| after.is_empty() || *key > after.as_str();
            let mut found: Vec<_> = stripe.controls().filter(is_left).collect();
            found.sort_unstable_by_key(|(key, _)| *key);
            for (text, record) in found {
                if page.keys.len() >= count.max(1) {
                    page.next = Some(format!("{number} {after}"));
                    return Ok(page);
                }
                text.clone_into(&mut after);
                let Some(key) = Key::from_text(text) else { continue };
                let mut record = record.clone();
                record.drop_ended(time);
                page.keys.push(KeyOverrides { key, record });
            }
        }
        Ok(page)
    }

    /// Sweeps expired keys, a few slots at a time, and follows changes of the wall clock, for ever.
    pub async fn run(&self) {
        let mut interval = tokio::time::interval(SWEEP_INTERVAL);
        let parts = self.stripes.chunks(self.stripes.len().div_ceil(SWEEP_STEPS)).cycle();
        for (turn, stripes) in parts.enumerate() {
            interval.tick().await;
            self.clock.follow_wall_time();
            self.remembered.sweep(turn, self.clock.now());
            self.lock_reservations().holds.drop_ended(self.clock.now());
            self.lock_reservations().settlements.sweep(self.clock.now());
            for stripe in stripes {
                lock(stripe).drop_ended(self.clock.now());
                let steps = lock(stripe).len().div_ceil(SLOTS_PER_LOCK);
                for _ in 0..steps {
                    lock(stripe).sweep(SLOTS_PER_LOCK, self.clock.now());
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    fn location(&self, hit: &StoreHit<'_>) -> KeyLocation {
        self.location_of(hit.key.as_bytes())
    }

    #[inline]
    fn location_of(&self, key: &[u8]) -> KeyLocation {
        let hash = hash_key(&self.hasher, key);
        // The table of a stripe uses the low bits and the topmost ones of the hash, so the stripe
        // is chosen by those between. A product is faster than a remainder.
        let middle = hash >> 24 & 0xffff_ffff;
        let stripe = ((middle * self.stripes.len() as u64) >> 32) as usize;
        KeyLocation { hash, stripe }
    }

    /// Locks the stripes of all locations in ascending order, so requests can't deadlock.
    fn lock(&self, locations: &[KeyLocation]) -> LockedStripes<'_> {
        let mut wanted: SmallVec<[usize; 2]> =
            locations.iter().map(|location| location.stripe).collect();
        wanted.sort_unstable();
        wanted.dedup();
        wanted.into_iter().map(|stripe| (stripe, lock(&self.stripes[stripe]))).collect()
    }
}

/// Hashes the bytes of a key without a length prefix or terminator, which only composite keys need.
fn hash_key(hasher: &DefaultHashBuilder, key: &[u8]) -> u64 {
    let mut hasher = hasher.build_hasher();
    hasher.write(key);
    hasher.finish()
}

/// Returns the number of holds that a request would add; `None` if it makes no reservation.
fn new_holds(request: &StoreRequest<'_>) -> Option<usize> {
    let Reservation { purpose, .. } = request.reservation?;
    let holds = |hit: &&StoreHit<'_>| matches!(hit.action, Action::Hold(_));
    matches!(purpose, ReservationUse::Reserve { .. })
        .then(|| request.hits.iter().filter(holds).count())
}

/// Locked stripes, with their indices.
type LockedStripes<'a> = SmallVec<[(usize, MutexGuard<'a, Stripe>); 2]>;

/// Hash and stripe of a key.
#[derive(Clone, Copy, Debug)]
struct KeyLocation {
    hash: u64,
    stripe: usize,
}

/// The hits of one request, with the stripes of their keys locked.
struct Step<'a> {
    hits: &'a [StoreHit<'a>],
    locations: &'a [KeyLocation],
    stripes: LockedStripes<'a>,
    /// Set if a rule of the hits holds.
    reservations: Option<&'a mut Reservations>,
    /// Set if the reservation of the request has no space.
    wait_for_space: Option<Micros>,
    time: Timestamp,
}

impl Slots for Step<'_> {
    type Slot<'a>
        = StripeSlot<'a>
    where
        Self: 'a;

    fn slot(&mut self, at: usize) -> StripeSlot<'_> {
        let (hit, location) = (&self.hits[at], &self.locations[at]);
        let stripe = locked_stripe(&mut self.stripes, location);
        let slot = StripeSlot::new(stripe, location.hash, hit, self.time);
        let (reservations, wait_for_space) =
            (self.reservations.as_deref_mut(), self.wait_for_space);
        StripeSlot { reservations, wait_for_space, ..slot }
    }

    #[inline]
    fn have_same_key(&self, left: usize, right: usize) -> bool {
        self.locations[left].hash == self.locations[right].hash
            && self.hits[left].key == self.hits[right].key
    }
}

/// The state of one hit in its stripe, at the time of the decision.
struct StripeSlot<'a> {
    stripe: &'a mut Stripe,
    hash: u64,
    key: &'a [u8],
    decision_time: DecisionTime,
    reservations: Option<&'a mut Reservations>,
    wait_for_space: Option<Micros>,
}

impl<'a> StripeSlot<'a> {
    #[inline]
    fn new(stripe: &'a mut Stripe, hash: u64, hit: &StoreHit<'a>, time: Timestamp) -> Self {
        let decision_time = stripe.decision_time(time, hit.window.length());
        let (key, reservations, wait_for_space) = (hit.key.as_bytes(), None, None);
        Self { stripe, hash, key, decision_time, reservations, wait_for_space }
    }
}

impl Slot for StripeSlot<'_> {
    #[inline]
    fn now(&self) -> Timestamp {
        self.decision_time.now
    }

    fn frozen_for(&self) -> Micros {
        self.decision_time.frozen_for()
    }

    fn state(&self) -> &State {
        self.stripe.state(self.stripe.find(self.hash, self.key), self.decision_time)
    }

    #[inline]
    fn update(&mut self, change: impl FnOnce(&mut State) -> Decision) -> Option<Decision> {
        let position = self.stripe.find(self.hash, self.key)?;
        Some(self.stripe.update(position, self.decision_time, change))
    }

    fn insert(&mut self, change: impl FnOnce(&mut State) -> Decision) -> Decision {
        let position = self.stripe.insert(self.hash, self.key, self.decision_time);
        self.stripe.update(position, self.decision_time, change)
    }

    fn record_reset(&mut self, until: Timestamp) {
        self.stripe.record_reset(self.key, self.decision_time.now, until);
    }

    fn was_reset_since(&self, taken_at: Timestamp) -> bool {
        self.stripe.was_reset_since(self.key, taken_at)
    }

    fn control(&self) -> Option<&ControlRecord> {
        self.stripe.control(self.key)
    }

    fn set_control(&mut self, record: ControlRecord) {
        let time = self.time();
        self.stripe.set_control(self.key, record, time);
    }

    fn limit_history(&self) -> Option<&LimitHistory> {
        self.stripe.limit_history(self.key, self.time())
    }

    fn set_limit_history(&mut self, history: LimitHistory) {
        let time = self.time();
        self.stripe.set_limit_history(self.key, history, time);
    }

    fn update_limit_history(&mut self, change: impl FnOnce(&mut LimitHistory)) -> bool {
        let time = self.time();
        self.stripe.update_limit_history(self.key, time, change)
    }

    fn holds(&self) -> Option<&Holds> {
        self.reservations.as_ref()?.holds.get(self.key)
    }

    fn take_holds(&mut self) -> Holds {
        self.reservations.as_mut().map_or_else(Holds::default, |all| all.holds.take(self.key))
    }

    fn set_holds(&mut self, holds: Holds) {
        if let Some(all) = &mut self.reservations {
            all.holds.set(self.key, holds);
        }
    }

    fn wait_for_space(&self) -> Option<Micros> {
        self.wait_for_space
    }
}

fn locked_stripe<'a>(
    stripes: &'a mut [(usize, MutexGuard<'_, Stripe>)],
    location: &KeyLocation,
) -> &'a mut Stripe {
    let (_, stripe) = stripes
        .iter_mut()
        .find(|(index, _)| *index == location.stripe)
        .expect("the stripe of every location is locked");
    stripe
}

/// A poisoned lock is still usable: a stripe is consistent between calls.
fn lock(stripe: &PaddedStripe) -> MutexGuard<'_, Stripe> {
    stripe.0.lock().unwrap_or_else(PoisonError::into_inner)
}
