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

use self::shard::{Moment, Position, Shard};
use crate::algorithm::{Cost, Decision, Outcome, State, Taken};
use crate::clock::{Clock, Timestamp};
use crate::observer::Observer;
use crate::operation::{Action, HitReply, Reply, StoreHit, StoreRequest};
use crate::rules::{Coupling, Mode};

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
        let StoreRequest { hits, coupling } = request;
        let mut reply = Reply::default();
        if let ([hit], Coupling::AllOrNothing) = (hits, coupling) {
            reply.hits.push(self.execute_one(hit));
            return reply;
        }
        let places: SmallVec<[Place; 2]> = hits.iter().map(|hit| self.place(hit)).collect();
        let shards = self.lock(&places);
        let mut step = Step { hits, places: &places, shards, time: self.clock.now() };
        reply.hits = match coupling {
            Coupling::AllOrNothing => step.all_or_nothing(),
            Coupling::EachAlone => (0..hits.len()).map(|at| step.alone(at)).collect(),
        };
        reply
    }

    /// Decides one hit: the common case, in which what there is to look up is looked up once.
    pub fn execute_one(&self, hit: &StoreHit<'_>) -> HitReply {
        let Place { hash, shard } = self.place(hit);
        let mut shard = lock(&self.shards[shard]);
        let moment = shard.moment(self.clock.now(), hit.limit.window());
        let mut entry = Entry { shard: &mut shard, hash, hit, moment };
        let mut reply = match hit.action {
            Action::Take(cost) if cost != Cost::NONE => {
                let decision = entry.take(cost);
                HitReply { decision, taken: decision.outcome.taken(cost) }
            }
            _ => entry.settle_alone(),
        };
        reply.decision.wait_longer(moment.held_for());
        reply
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

impl Step<'_> {
    fn all_or_nothing(&mut self) -> SmallVec<[HitReply; 2]> {
        let mut decided: SmallVec<[Option<HitReply>; 2]> =
            SmallVec::from_elem(None, self.hits.len());
        for (at, reply) in decided.iter_mut().enumerate() {
            if matches!(self.hits[at].action, Action::Report(_)) {
                *reply = Some(self.alone(at));
            }
        }
        for (at, reply) in decided.iter_mut().enumerate() {
            if matches!(self.hits[at].action, Action::Take(_) | Action::Peek(_)) {
                let sum = self.cost_up_to(at);
                *reply = Some(HitReply { decision: self.entry(at).decide(sum), taken: 0 });
            }
        }
        let denials = self.hits.iter().zip(&decided);
        let refused = Mode::refuse(denials.map(|(hit, reply)| {
            (hit.mode, reply.is_some_and(|reply| !reply.decision.is_allowed()))
        }));
        for (at, reply) in decided.iter_mut().enumerate() {
            if let Some(reply) = reply {
                self.settle(at, reply, refused);
            }
        }
        for (at, hit) in self.hits.iter().enumerate() {
            if hit.action == Action::Reset || hit.action.gives() && !refused {
                self.entry(at).give();
            }
        }
        let settled = decided.into_iter().enumerate();
        settled.map(|(at, reply)| reply.unwrap_or_else(|| self.peek(at))).collect()
    }

    /// Takes what was decided, if anything is to be taken.
    fn settle(&mut self, at: usize, reply: &mut HitReply, refused: bool) {
        let is_repeated = self.cost_up_to(at) != self.hits[at].action.cost();
        let mut entry = self.entry(at);
        let decision = &mut reply.decision;
        match entry.hit.action {
            Action::Take(cost) if cost != Cost::NONE && !(refused && decision.is_allowed()) => {
                // What was committed before of the same key is in the state by now.
                if is_repeated {
                    *decision = match decision.outcome {
                        Outcome::Allowed => entry.decide(cost),
                        denied => entry.as_it_stays(denied),
                    };
                }
                entry.commit(entry.find(), cost, decision);
                reply.taken = decision.outcome.taken(cost);
            }
            Action::Take(_) | Action::Peek(_) => {
                *decision = entry.as_it_stays(decision.outcome);
            }
            // Decided and settled at once.
            Action::Report(_) | Action::Refund(_) | Action::Credit(_) | Action::Reset => return,
        }
        decision.wait_longer(entry.moment.held_for());
    }

    /// Decides one hit whatever the others say.
    fn alone(&mut self, at: usize) -> HitReply {
        let mut entry = self.entry(at);
        let mut reply = match entry.hit.action {
            Action::Take(cost) if cost != Cost::NONE => entry.take_what_is_left(cost),
            _ => entry.settle_alone(),
        };
        reply.decision.wait_longer(entry.moment.held_for());
        reply
    }

    /// The numbers of the state as it is.
    fn peek(&mut self, at: usize) -> HitReply {
        let entry = self.entry(at);
        let mut decision = entry.peek(Cost::NONE);
        decision.wait_longer(entry.moment.held_for());
        HitReply { decision, taken: 0 }
    }

    /// What this hit costs, and those that take before it from the same key.
    fn cost_up_to(&self, at: usize) -> Cost {
        let (hit, hash) = (&self.hits[at], self.places[at].hash);
        let earlier = self.hits[..at].iter().zip(self.places).filter(|(other, place)| {
            place.hash == hash && other.key == hit.key && matches!(other.action, Action::Take(_))
        });
        let units: u64 = earlier.map(|(other, _)| other.action.cost().units()).sum();
        let units = units + hit.action.cost().units();
        Cost::new(u32::try_from(units).unwrap_or(u32::MAX))
    }

    fn entry(&mut self, at: usize) -> Entry<'_> {
        let (hit, place) = (&self.hits[at], &self.places[at]);
        let shard = of(&mut self.shards, place);
        let moment = shard.moment(self.time, hit.limit.window());
        Entry { shard, hash: place.hash, hit, moment }
    }
}

/// The state of one hit at one moment, in its shard.
struct Entry<'a> {
    shard: &'a mut Shard,
    hash: u64,
    hit: &'a StoreHit<'a>,
    moment: Moment,
}

impl Entry<'_> {
    fn find(&self) -> Option<Position> {
        self.shard.find(self.hash, self.hit.key.as_bytes())
    }

    fn insert(&mut self) -> Position {
        self.shard.insert(self.hash, self.hit.key.as_bytes(), self.moment)
    }

    fn decide(&self, cost: Cost) -> Decision {
        self.decide_at(self.find(), cost)
    }

    fn decide_at(&self, found: Option<Position>, cost: Cost) -> Decision {
        let state = self.shard.state(found, self.moment);
        self.hit.algorithm.decide(state, self.hit.limit, self.moment.now, cost)
    }

    /// Decides and takes nothing.
    fn peek(&self, cost: Cost) -> Decision {
        let found = self.find();
        let decision = self.decide_at(found, cost);
        if cost == Cost::NONE {
            return decision;
        }
        Decision { outcome: decision.outcome, ..self.decide_at(found, Cost::NONE) }
    }

    /// The numbers of the state as it stays, with this outcome.
    fn as_it_stays(&self, outcome: Outcome) -> Decision {
        Decision { outcome, ..self.decide(Cost::NONE) }
    }

    /// Does whatever else than to take.
    fn settle_alone(&mut self) -> HitReply {
        let mut taken = 0;
        let decision = match self.hit.action {
            Action::Report(cost) if cost != Cost::NONE => {
                let decision;
                (decision, taken) = self.report(cost);
                decision
            }
            Action::Refund(_) | Action::Credit(_) | Action::Reset => {
                self.give();
                self.decide(Cost::NONE)
            }
            Action::Take(cost) | Action::Peek(cost) | Action::Report(cost) => self.peek(cost),
        };
        HitReply { decision, taken }
    }

    /// Decides, and takes the cost if it is allowed.
    fn take(&mut self, cost: Cost) -> Decision {
        let StoreHit { algorithm, limit, .. } = *self.hit;
        let now = self.moment.now;
        let Some(place) = self.find() else {
            let decision = self.decide_at(None, cost);
            self.commit(None, cost, &decision);
            return decision;
        };
        let take = |state: &mut State| algorithm.take(state, limit, now, cost);
        self.shard.update(place, self.moment, take)
    }

    /// Takes the cost, or what is left where it is denied.
    fn take_what_is_left(&mut self, cost: Cost) -> HitReply {
        let decision = self.take(cost);
        let left = u32::try_from(decision.remaining).ok().filter(|left| *left > 0);
        let Some(left) = left.filter(|_| !decision.is_allowed()) else {
            return HitReply { decision, taken: decision.outcome.taken(cost) };
        };
        let left = Cost::new(left.min(self.hit.algorithm.max_cost()));
        let taken = self.take(left).outcome.taken(left);
        HitReply { decision: self.decide(cost), taken }
    }

    fn commit(&mut self, found: Option<Position>, cost: Cost, decision: &Decision) {
        let place = match found {
            Some(place) => place,
            None if decision.is_allowed() => self.insert(),
            // A denial that finds no state leaves none: nobody's room is taken by what never passed.
            None => return,
        };
        let StoreHit { algorithm, limit, .. } = *self.hit;
        let now = self.moment.now;
        self.shard.update(place, self.moment, |state| {
            algorithm.commit(state, limit, now, cost, decision);
            *decision
        });
    }

    /// Counts the cost whatever is left; returns how many units were counted, too.
    fn report(&mut self, cost: Cost) -> (Decision, u64) {
        let place = match self.find() {
            Some(place) => place,
            None => self.insert(),
        };
        let StoreHit { algorithm, limit, .. } = *self.hit;
        let now = self.moment.now;
        let mut counted = 0;
        let decision = self.shard.update(place, self.moment, |state| {
            let decision;
            (decision, counted) = algorithm.report(state, limit, now, cost);
            decision
        });
        (decision, counted)
    }

    /// Gives units back, or all of them.
    fn give(&mut self) {
        let StoreHit { key, algorithm, limit, action, .. } = *self.hit;
        let now = self.moment.now;
        match action {
            Action::Reset => {
                // A sliding counter weighs what was counted up to two windows ago.
                let window = limit.window();
                let until = now + (window + window).max(limit.fill_time());
                self.shard.note_reset(key.as_bytes(), now, until);
            }
            Action::Refund(Taken { cost: Cost::NONE, .. }) | Action::Credit(Cost::NONE) => return,
            Action::Refund(taken) if self.shard.was_reset_since(key.as_bytes(), taken.at) => return,
            _ => {}
        }
        let Some(place) = self.find() else { return };
        self.shard.update(place, self.moment, |state| {
            match action {
                Action::Refund(taken) => algorithm.refund(state, limit, now, &taken),
                Action::Credit(cost) => algorithm.credit(state, limit, now, cost),
                _ => *state = State::None,
            }
            algorithm.decide(state, limit, now, Cost::NONE)
        });
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
