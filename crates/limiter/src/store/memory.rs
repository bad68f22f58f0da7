//! The embedded store: states in sharded tables.
//!
//! A request locks the shards of its keys in order, decides every hit, and commits only if none
//! refuses. Nothing waits and nothing fails.

mod shard;
mod slots;

use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::DefaultHashBuilder;
use smallvec::SmallVec;

use self::shard::{Moment, Shard};
use crate::algorithm::{Decision, State};
use crate::clock::{Clock, Micros, Timestamp};
use crate::observer::Observer;
use crate::operation::{HitReply, Reply, StoreHit, StoreRequest};
use crate::rules::Coupling;
use crate::step::{self, Slot, Slots};

/// Slots that are swept in the background under one lock: about a microsecond.
const SWEPT_PER_LOCK: usize = 64;
/// Time between two steps of the background sweep.
const SWEEP_INTERVAL: Duration = Duration::from_millis(20);
/// Keys in each shard where there are several: as many as an index of a power of two has room for,
/// with some to spare for an uneven spread. There are less than twice as many in any.
const KEYS_PER_SHARD: usize = 3328;
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
struct Padded(Mutex<Shard>);

/// State in this process. Clones share it.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    shards: Arc<[Padded]>,
    hasher: DefaultHashBuilder,
    clock: Clock,
}

impl MemoryStore {
    /// An empty store that reports to `observer`.
    pub fn new(settings: MemorySettings, clock: Clock, observer: Arc<dyn Observer>) -> Self {
        let max_keys = settings.max_keys.max(1) as usize;
        let shards = (max_keys / KEYS_PER_SHARD).max(1);
        let hasher = DefaultHashBuilder::default();
        let observers = std::iter::repeat_n(observer, shards);
        let shard = |observer| Shard::new(max_keys / shards, hasher.clone(), observer);
        let shards = observers.map(|observer| Padded(Mutex::new(shard(observer)))).collect();
        Self { shards, hasher, clock }
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
        let places: SmallVec<[Place; 2]> = hits.iter().map(|hit| self.place(hit)).collect();
        let shards = self.lock(&places);
        step::execute(request, Step { hits, places: &places, shards, time: self.clock.now() })
    }

    /// Decides one hit: the common case, in which what there is to look up is looked up once.
    pub fn execute_one(&self, hit: &StoreHit<'_>) -> HitReply {
        let Place { hash, shard } = self.place(hit);
        let mut shard = lock(&self.shards[shard]);
        step::execute_one(hit, Entry::new(&mut shard, hash, hit, self.clock.now()))
    }

    /// Sweeps in the background, a few slots at a time, and follows wall time, for ever.
    pub async fn run(&self) {
        let mut interval = tokio::time::interval(SWEEP_INTERVAL);
        for shards in self.shards.chunks(self.shards.len().div_ceil(SWEEP_STEPS)).cycle() {
            interval.tick().await;
            self.clock.follow_wall_time();
            for shard in shards {
                let steps = lock(shard).len().div_ceil(SWEPT_PER_LOCK);
                for _ in 0..steps {
                    lock(shard).sweep(SWEPT_PER_LOCK, self.clock.now());
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    fn place(&self, hit: &StoreHit<'_>) -> Place {
        let hash = hash_of(&self.hasher, hit.key.as_bytes());
        // A shard's table takes the low bits and the very top ones; a product takes less time than
        // a remainder.
        let middle = hash >> 24 & 0xffff_ffff;
        let shard = ((middle * self.shards.len() as u64) >> 32) as usize;
        Place { hash, shard }
    }

    /// Locks the shards of all places in ascending order: no two requests wait for each other.
    fn lock(&self, places: &[Place]) -> LockedShards<'_> {
        let mut wanted: SmallVec<[usize; 2]> = places.iter().map(|place| place.shard).collect();
        wanted.sort_unstable();
        wanted.dedup();
        wanted.into_iter().map(|shard| (shard, lock(&self.shards[shard]))).collect()
    }
}

/// Of the bytes alone: there is nothing behind them that they could run into.
fn hash_of(hasher: &DefaultHashBuilder, key: &[u8]) -> u64 {
    let mut hasher = hasher.build_hasher();
    hasher.write(key);
    hasher.finish()
}

/// With their indices.
type LockedShards<'a> = SmallVec<[(usize, MutexGuard<'a, Shard>); 2]>;

/// Where the state of a hit is.
#[derive(Clone, Copy, Debug)]
struct Place {
    hash: u64,
    shard: usize,
}

/// The hits of one request, with the shards of their keys locked.
struct Step<'a> {
    hits: &'a [StoreHit<'a>],
    places: &'a [Place],
    shards: LockedShards<'a>,
    time: Timestamp,
}

impl Slots for Step<'_> {
    type Slot<'a>
        = Entry<'a>
    where
        Self: 'a;

    fn slot(&mut self, at: usize) -> Entry<'_> {
        let (hit, place) = (&self.hits[at], &self.places[at]);
        Entry::new(of(&mut self.shards, place), place.hash, hit, self.time)
    }

    #[inline]
    fn have_same_key(&self, one: usize, other: usize) -> bool {
        self.places[one].hash == self.places[other].hash
            && self.hits[one].key == self.hits[other].key
    }
}

/// The state of one hit at one moment, in its shard.
struct Entry<'a> {
    shard: &'a mut Shard,
    hash: u64,
    key: &'a [u8],
    moment: Moment,
}

impl<'a> Entry<'a> {
    #[inline]
    fn new(shard: &'a mut Shard, hash: u64, hit: &StoreHit<'a>, time: Timestamp) -> Self {
        let moment = shard.moment(time, hit.limit.window());
        Self { shard, hash, key: hit.key.as_bytes(), moment }
    }
}

impl Slot for Entry<'_> {
    #[inline]
    fn now(&self) -> Timestamp {
        self.moment.now
    }

    fn held_for(&self) -> Micros {
        self.moment.held_for()
    }

    fn state(&self) -> &State {
        self.shard.state(self.shard.find(self.hash, self.key), self.moment)
    }

    #[inline]
    fn update(&mut self, change: impl FnOnce(&mut State) -> Decision) -> Option<Decision> {
        let position = self.shard.find(self.hash, self.key)?;
        Some(self.shard.update(position, self.moment, change))
    }

    fn insert(&mut self, change: impl FnOnce(&mut State) -> Decision) -> Decision {
        let position = self.shard.insert(self.hash, self.key, self.moment);
        self.shard.update(position, self.moment, change)
    }

    fn record_reset(&mut self, until: Timestamp) {
        self.shard.record_reset(self.key, self.moment.now, until);
    }

    fn was_reset_since(&self, taken_at: Timestamp) -> bool {
        self.shard.was_reset_since(self.key, taken_at)
    }
}

fn of<'a>(shards: &'a mut [(usize, MutexGuard<'_, Shard>)], place: &Place) -> &'a mut Shard {
    let (_, shard) = shards
        .iter_mut()
        .find(|(index, _)| *index == place.shard)
        .expect("the shard of every place is locked");
    shard
}

/// A panic elsewhere does not end this store: a shard is consistent between calls.
fn lock(shard: &Padded) -> MutexGuard<'_, Shard> {
    shard.0.lock().unwrap_or_else(PoisonError::into_inner)
}
