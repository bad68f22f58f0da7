//! The embedded store: states in sharded tables.
//!
//! A request locks the shards of its keys in order, decides every hit, and commits only if all
//! allow. Nothing waits and nothing fails.

mod shard;
mod slots;

use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::DefaultHashBuilder;
use smallvec::SmallVec;

use self::shard::{Moment, Position, Shard};
use super::{Decisions, Hit, Intent};
use crate::algorithm::{Cost, Decision};
use crate::clock::Clock;
use crate::rules::Mode;
use crate::telemetry::metrics::Metrics;

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

/// State in this process.
#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[Padded]>,
    hasher: DefaultHashBuilder,
    clock: Clock,
}

impl MemoryStore {
    /// An empty store.
    pub fn new(settings: MemorySettings, clock: Clock, metrics: &Arc<Metrics>) -> Self {
        let max_keys = settings.max_keys.max(1) as usize;
        let shards = (max_keys / KEYS_PER_SHARD).max(1);
        let hasher = DefaultHashBuilder::default();
        let shard = || Shard::new(max_keys / shards, hasher.clone(), Arc::clone(metrics));
        let shards = (0..shards).map(|_| Padded(Mutex::new(shard()))).collect();
        Self { shards, hasher, clock }
    }

    /// Decides every hit and takes the units only if all allow. See [`super::Store::check`].
    pub fn check(&self, hits: &[Hit<'_>], intent: Intent) -> Decisions {
        if let ([hit], Intent::Take | Intent::Look) = (hits, intent) {
            let mut decisions = Decisions::new();
            decisions.push(self.check_one(hit, intent));
            return decisions;
        }
        let places: SmallVec<[Place; 2]> = hits.iter().map(|hit| self.place(hit)).collect();
        let mut shards = self.lock(&places);
        let time = self.clock.now();

        let mut decisions = Decisions::with_capacity(hits.len());
        for (hit, place) in hits.iter().zip(&places) {
            let shard = of(&mut shards, place);
            let moment = shard.moment(time, hit.limit.window());
            let found = shard.find(place.hash, hit.key.as_bytes());
            decisions.push(decide(shard, found, hit, moment, hit.cost));
        }
        let denials = hits.iter().zip(&decisions).map(|(hit, one)| (hit.mode, !one.is_allowed()));
        let all_allow = !Mode::refuse(denials);

        for ((hit, place), decision) in hits.iter().zip(&places).zip(&mut decisions) {
            let shard = of(&mut shards, place);
            let moment = shard.moment(time, hit.limit.window());
            // What was committed before may have moved it.
            let found = shard.find(place.hash, hit.key.as_bytes());
            let takes = match intent {
                Intent::Take => all_allow || !decision.is_allowed(),
                Intent::TakeEach => true,
                Intent::Look => false,
            };
            settle(shard, place.hash, found, hit, moment, takes, decision);
            if intent == Intent::TakeEach && !decision.is_allowed() {
                take_rest(shard, place.hash, hit, moment, decision);
            }
            decision.wait_longer(moment.held_for());
        }
        decisions
    }

    /// Decides one hit: the common case, in which what there is to look up is looked up once.
    pub fn check_one(&self, hit: &Hit<'_>, intent: Intent) -> Decision {
        let Place { hash, shard } = self.place(hit);
        let mut shard = lock(&self.shards[shard]);
        let moment = shard.moment(self.clock.now(), hit.limit.window());
        let found = shard.find(hash, hit.key.as_bytes());
        let takes = intent == Intent::Take && hit.cost != Cost::NONE;
        let mut decision = if let Some(place) = found.filter(|_| takes) {
            let take = |state: &mut _| hit.algorithm.take(state, hit.limit, moment.now, hit.cost);
            shard.update(place, moment, take)
        } else {
            let mut decision = decide(&shard, found, hit, moment, hit.cost);
            settle(&mut shard, hash, found, hit, moment, takes, &mut decision);
            decision
        };
        decision.wait_longer(moment.held_for());
        decision
    }

    /// Gives back what was taken. See [`super::Store::give_back`].
    pub fn give_back(&self, hits: &[Hit<'_>], taken: &[Decision]) -> Decisions {
        let places: SmallVec<[Place; 2]> = hits.iter().map(|hit| self.place(hit)).collect();
        let mut shards = self.lock(&places);
        let time = self.clock.now();

        let mut decisions = Decisions::with_capacity(hits.len());
        for ((hit, place), taken) in hits.iter().zip(&places).zip(taken) {
            let shard = of(&mut shards, place);
            let moment = shard.moment(time, hit.limit.window());
            let found = shard.find(place.hash, hit.key.as_bytes());
            give_back(shard, found, hit, moment, taken);
            let mut decision = decide(shard, found, hit, moment, Cost::NONE);
            decision.wait_longer(moment.held_for());
            decisions.push(decision);
        }
        decisions
    }

    /// Sweeps in the background, a few slots at a time, and keeps the clock steady, for ever.
    pub async fn tend(&self) {
        let mut interval = tokio::time::interval(SWEEP_INTERVAL);
        for shards in self.shards.chunks(self.shards.len().div_ceil(SWEEP_STEPS)).cycle() {
            interval.tick().await;
            self.clock.steady();
            for shard in shards {
                let steps = lock(shard).len().div_ceil(SWEPT_PER_LOCK);
                for _ in 0..steps {
                    lock(shard).sweep(SWEPT_PER_LOCK, self.clock.now());
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    fn place(&self, hit: &Hit<'_>) -> Place {
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

fn decide(
    shard: &Shard,
    found: Option<Position>,
    hit: &Hit<'_>,
    moment: Moment,
    cost: Cost,
) -> Decision {
    hit.algorithm.decide(shard.state(found, moment), hit.limit, moment.now, cost)
}

/// Takes what was decided; where nothing is to be taken, tells the numbers of the state as it
/// stays.
fn settle(
    shard: &mut Shard,
    hash: u64,
    found: Option<Position>,
    hit: &Hit<'_>,
    moment: Moment,
    takes: bool,
    decision: &mut Decision,
) {
    if hit.cost == Cost::NONE {
        return;
    }
    if !takes {
        let outcome = decision.outcome;
        *decision = decide(shard, found, hit, moment, Cost::NONE);
        decision.outcome = outcome;
        return;
    }
    let place = match found {
        Some(place) => place,
        None if decision.is_allowed() => shard.insert(hash, hit.key.as_bytes(), moment),
        // A denial that finds no state leaves none: nobody's room is taken by what never passed.
        None => return,
    };
    shard.update(place, moment, |state| {
        hit.algorithm.commit(state, hit.limit, moment.now, hit.cost, decision);
        *decision
    });
}

/// Takes what is left where a hit is denied for more.
fn take_rest(shard: &mut Shard, hash: u64, hit: &Hit<'_>, moment: Moment, denied: &mut Decision) {
    let left = denied.remaining;
    let Some(cost) = u32::try_from(left).ok().filter(|left| *left > 0).map(Cost::new) else {
        return;
    };
    let rest = Hit { cost, ..*hit };
    let found = shard.find(hash, hit.key.as_bytes());
    let mut taken = decide(shard, found, &rest, moment, cost);
    settle(shard, hash, found, &rest, moment, true, &mut taken);
    let found = shard.find(hash, hit.key.as_bytes());
    *denied = decide(shard, found, hit, moment, hit.cost);
}

fn give_back(
    shard: &mut Shard,
    found: Option<Position>,
    hit: &Hit<'_>,
    moment: Moment,
    taken: &Decision,
) {
    let cost = hit.cost_of(taken);
    let Some(place) = found.filter(|_| cost != Cost::NONE) else { return };
    shard.update(place, moment, |state| {
        hit.algorithm.give_back(state, hit.limit, moment.now, cost, taken);
        hit.algorithm.decide(state, hit.limit, moment.now, Cost::NONE)
    });
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
