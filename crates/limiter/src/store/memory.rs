//! The embedded store: states in sharded tables.
//!
//! A request locks the stripes of its keys in order, decides every hit, and commits only if none
//! refuses. Nothing waits and nothing fails.

mod segmented_vec;
mod stripe;

use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::DefaultHashBuilder;
use smallvec::SmallVec;

use self::stripe::{DecisionTime, Stripe};
use crate::algorithm::{Decision, State};
use crate::clock::{Clock, Micros, Timestamp};
use crate::observer::Observer;
use crate::operation::{HitReply, Reply, StoreHit, StoreRequest};
use crate::rules::Coupling;
use crate::step::{self, Slot, Slots};

/// Slots that are swept in the background under one lock: about a microsecond.
const SLOTS_PER_LOCK: usize = 64;
/// Time between two steps of the background sweep.
const SWEEP_INTERVAL: Duration = Duration::from_millis(20);
/// Keys in each stripe where there are several: as many as an index of a power of two has room for,
/// with some to spare for an uneven spread. There are less than twice as many in any.
const KEYS_PER_STRIPE: usize = 3328;
/// Steps in which the background sweep comes around.
const SWEEP_STEPS: usize = 256;

/// How much the memory store may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySettings {
    /// Most keys, at least 1.
    pub max_keys: u32,
}

impl Default for MemorySettings {
    fn default() -> Self {
        Self { max_keys: 1_000_000 }
    }
}

/// On cache lines of its own: neighbours do not wait for each other.
#[derive(Debug)]
#[repr(align(64))]
struct PaddedStripe(Mutex<Stripe>);

/// State in this process. Clones share it.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    stripes: Arc<[PaddedStripe]>,
    hasher: DefaultHashBuilder,
    clock: Clock,
}

impl MemoryStore {
    /// An empty store that reports to `observer`.
    pub fn new(settings: MemorySettings, clock: Clock, observer: Arc<dyn Observer>) -> Self {
        let max_keys = settings.max_keys.max(1) as usize;
        let stripes = (max_keys / KEYS_PER_STRIPE).max(1);
        let hasher = DefaultHashBuilder::default();
        let observers = std::iter::repeat_n(observer, stripes);
        let stripe = |observer| Stripe::new(max_keys / stripes, hasher.clone(), observer);
        let stripes =
            observers.map(|observer| PaddedStripe(Mutex::new(stripe(observer)))).collect();
        Self { stripes, hasher, clock }
    }

    /// The time now. See [`super::Store::now`].
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Decides every hit. See [`super::Store::execute`].
    pub fn execute(&self, request: StoreRequest<'_>) -> Reply {
        let StoreRequest { hits, coupling, .. } = request;
        if let ([hit], Coupling::AllOrNothing) = (hits, coupling) {
            let mut reply = Reply::default();
            reply.hits.push(self.execute_one(hit));
            return reply;
        }
        let locations: SmallVec<[KeyLocation; 2]> =
            hits.iter().map(|hit| self.location(hit)).collect();
        let stripes = self.lock(&locations);
        step::execute(
            request,
            Step { hits, locations: &locations, stripes, time: self.clock.now() },
        )
    }

    /// Decides one hit: the common case, in which what there is to look up is looked up once.
    pub fn execute_one(&self, hit: &StoreHit<'_>) -> HitReply {
        let KeyLocation { hash, stripe } = self.location(hit);
        let mut stripe = lock(&self.stripes[stripe]);
        step::execute_one(hit, StripeSlot::new(&mut stripe, hash, hit, self.clock.now()))
    }

    /// Sweeps in the background, a few slots at a time, and follows wall time, for ever.
    pub async fn run(&self) {
        let mut interval = tokio::time::interval(SWEEP_INTERVAL);
        for stripes in self.stripes.chunks(self.stripes.len().div_ceil(SWEEP_STEPS)).cycle() {
            interval.tick().await;
            self.clock.follow_wall_time();
            for stripe in stripes {
                let steps = lock(stripe).len().div_ceil(SLOTS_PER_LOCK);
                for _ in 0..steps {
                    lock(stripe).sweep(SLOTS_PER_LOCK, self.clock.now());
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    fn location(&self, hit: &StoreHit<'_>) -> KeyLocation {
        let hash = hash_key(&self.hasher, hit.key.as_bytes());
        // A stripe's table takes the low bits and the very top ones; a product takes less time than
        // a remainder.
        let middle = hash >> 24 & 0xffff_ffff;
        let stripe = ((middle * self.stripes.len() as u64) >> 32) as usize;
        KeyLocation { hash, stripe }
    }

    /// Locks the stripes of all locations in ascending order: no two requests wait for each other.
    fn lock(&self, locations: &[KeyLocation]) -> LockedStripes<'_> {
        let mut wanted: SmallVec<[usize; 2]> =
            locations.iter().map(|location| location.stripe).collect();
        wanted.sort_unstable();
        wanted.dedup();
        wanted.into_iter().map(|stripe| (stripe, lock(&self.stripes[stripe]))).collect()
    }
}

/// Of the bytes alone: there is nothing behind them that they could run into.
fn hash_key(hasher: &DefaultHashBuilder, key: &[u8]) -> u64 {
    let mut hasher = hasher.build_hasher();
    hasher.write(key);
    hasher.finish()
}

/// With their indices.
type LockedStripes<'a> = SmallVec<[(usize, MutexGuard<'a, Stripe>); 2]>;

/// Where the state of a hit is.
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
    time: Timestamp,
}

impl Slots for Step<'_> {
    type Slot<'a>
        = StripeSlot<'a>
    where
        Self: 'a;

    fn slot(&mut self, at: usize) -> StripeSlot<'_> {
        let (hit, location) = (&self.hits[at], &self.locations[at]);
        StripeSlot::new(locked_stripe(&mut self.stripes, location), location.hash, hit, self.time)
    }

    #[inline]
    fn have_same_key(&self, one: usize, other: usize) -> bool {
        self.locations[one].hash == self.locations[other].hash
            && self.hits[one].key == self.hits[other].key
    }
}

/// The state of one hit at one decision_time, in its stripe.
struct StripeSlot<'a> {
    stripe: &'a mut Stripe,
    hash: u64,
    key: &'a [u8],
    decision_time: DecisionTime,
}

impl<'a> StripeSlot<'a> {
    #[inline]
    fn new(stripe: &'a mut Stripe, hash: u64, hit: &StoreHit<'a>, time: Timestamp) -> Self {
        let decision_time = stripe.decision_time(time, hit.limit.window());
        Self { stripe, hash, key: hit.key.as_bytes(), decision_time }
    }
}

impl Slot for StripeSlot<'_> {
    #[inline]
    fn now(&self) -> Timestamp {
        self.decision_time.now
    }

    fn held_for(&self) -> Micros {
        self.decision_time.held_for()
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

/// A panic elsewhere does not end this store: a stripe is consistent between calls.
fn lock(stripe: &PaddedStripe) -> MutexGuard<'_, Stripe> {
    stripe.0.lock().unwrap_or_else(PoisonError::into_inner)
}
