//! A cache of denials, so that clients that keep calling at their limit cause no store calls.
//!
//! A denial holds until its `retry_after`, at most for `deny-cache.max-age`, for requests of the
//! same cost. Until then the store would deny them as well, unless one of three things happens.
//! Rules are replaced: entries of another revision do not match. Units are refunded: this instance
//! removes the entry, but other instances may deny until their entries expire. The key is changed
//! by an operator: this instance removes the entry, and tells the others (`forget.rs`).
//!
//! A reply that was on its way while its key was changed is not cached, because the store may have
//! decided it before the change.
//!
//! Counts are those of the cached denial. A full fixed window does not count attempts that the
//! cache denies.
//!
//! Entries live in two generations, so that no search for an entry to evict is needed.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::algorithm::{Algorithm, Cost, Outcome};
use crate::clock::{Clock, Micros, Timestamp};
use crate::operation::{Action, HitReply, StoreHit};
use crate::rules::{Grant, Key};

/// Longest key in bytes that is cached. It bounds the memory whatever ids are sent.
const MAX_KEY_LEN: usize = 256;

/// Number of stripes, each with its own lock.
const STRIPES: usize = 16;

/// Settings of the deny cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenyCacheSettings {
    /// Longest time that a denial is cached.
    pub max_age: Duration,
    /// Maximum number of cached denials.
    pub max_keys: u32,
}

/// Cached denials by key.
#[derive(Debug)]
pub struct DenyCache {
    stripes: Box<[Mutex<CacheStripe>]>,
    hasher: RandomState,
    max_age: Micros,
    keys_per_generation: usize,
    clock: Clock,
    /// Number of removals so far.
    removals: AtomicU64,
}

/// The time before a call of the store, for [`DenyCache::record`].
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestedAt {
    time: Timestamp,
    /// [`DenyCache::removals`] at that time.
    removals: u64,
}

#[derive(Debug, Default)]
struct CacheStripe {
    young: Generation,
    old: Generation,
    /// [`DenyCache::removals`] at the last removal from this stripe.
    removed: u64,
}

#[derive(Debug, Default)]
struct Generation {
    since: Timestamp,
    denials: HashMap<Box<[u8]>, Denial>,
}

/// A denial by the store.
#[derive(Debug)]
struct Denial {
    revision: u64,
    algorithm: Algorithm,
    /// Compared on lookup: an override of the rule may grant another limit for the same key.
    grant: Grant,
    cost: Cost,
    /// Time before the store was called; the store decided no earlier.
    requested_at: Timestamp,
    holds_until: Timestamp,
    reply: HitReply,
}

impl DenyCache {
    /// Creates an empty cache.
    pub fn new(settings: DenyCacheSettings, clock: Clock) -> Self {
        let keys = settings.max_keys as usize;
        Self {
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            max_age: settings.max_age.into(),
            keys_per_generation: (keys / STRIPES / 2).max(1),
            clock,
            removals: AtomicU64::new(0),
        }
    }

    /// Returns the longest time that a denial is cached.
    pub(super) fn max_age(&self) -> Micros {
        self.max_age
    }

    /// Returns the time to pass to [`DenyCache::record`], read before the store is called.
    pub(super) fn now(&self) -> RequestedAt {
        let removals = self.removals.load(Ordering::SeqCst);
        RequestedAt { time: self.clock.now(), removals }
    }

    /// Caches a denial that the store decided after `requested_at`.
    pub(super) fn record(
        &self,
        hit: &StoreHit<'_>,
        revision: u64,
        requested_at: RequestedAt,
        reply: &HitReply,
    ) {
        let StoreHit { key, algorithm, grant: &grant, action, .. } = *hit;
        // Reports are always counted, and a peek for cost 0 is no denial of a cost.
        let cost = match action {
            Action::Take(cost) | Action::Peek(cost) if cost != Cost::NONE => cost,
            _ => return,
        };
        if !Self::may_have(key) {
            return;
        }
        let RequestedAt { time: requested_at, removals } = requested_at;
        let Outcome::Denied { retry_after } = reply.decision.outcome else { return };
        let holds_until = requested_at + retry_after.min(self.max_age);
        let denial = Denial {
            revision,
            algorithm,
            grant,
            cost,
            requested_at,
            holds_until,
            reply: reply.clone(),
        };
        let mut stripe = self.stripe(key.as_bytes());
        if stripe.removed > removals {
            return;
        }
        stripe.rotate(self.clock.now(), self.max_age, self.keys_per_generation);
        stripe.young.denials.insert(key.as_bytes().into(), denial);
    }

    /// Removes the entry of a key, because units were returned to it, or its grant was changed.
    pub(super) fn forget(&self, key: &Key) {
        self.forget_bytes(key.as_bytes());
    }

    /// As [`DenyCache::forget`], by the bytes of the key.
    pub(super) fn forget_bytes(&self, key: &[u8]) {
        let mut stripe = self.stripe(key);
        stripe.removed = 1 + self.removals.fetch_add(1, Ordering::SeqCst);
        stripe.young.denials.remove(key);
        stripe.old.denials.remove(key);
    }

    /// Removes all entries.
    pub(super) fn clear(&self) {
        for stripe in &self.stripes {
            let mut stripe = stripe.lock().unwrap_or_else(PoisonError::into_inner);
            let removed = 1 + self.removals.fetch_add(1, Ordering::SeqCst);
            *stripe = CacheStripe { removed, ..CacheStripe::default() };
        }
    }

    /// Returns `true` if denials of the key may be cached.
    pub(super) fn may_have(key: &Key) -> bool {
        key.as_bytes().len() <= MAX_KEY_LEN
    }

    /// Returns the cached denial of a hit, with the waits that are left.
    pub(super) fn denial(&self, hit: &StoreHit<'_>, revision: u64) -> Option<HitReply> {
        let stripe = self.stripe(hit.key.as_bytes());
        let denial = stripe.denial(hit.key)?;
        let now = self.clock.now();
        let cost = hit.action.cost();
        let is_same = (denial.revision, denial.cost, denial.grant) == (revision, cost, *hit.grant);
        if !is_same || now >= denial.holds_until {
            return None;
        }
        let elapsed = now.since(denial.requested_at);
        let decision = denial.reply.decision.after(elapsed, denial.algorithm);
        Some(HitReply { decision, ..denial.reply.clone() })
    }

    /// Returns for how long [`DenyCache::denial`] goes on to return a denial.
    pub(super) fn holds_for(&self, hit: &StoreHit<'_>, revision: u64) -> Option<Micros> {
        self.denial(hit, revision)?;
        let key = hit.key.as_bytes();
        let holds_until = self.stripe(key).denial(hit.key)?.holds_until;
        Some(holds_until.since(self.clock.now()))
    }

    fn stripe(&self, key: &[u8]) -> MutexGuard<'_, CacheStripe> {
        let hash = self.hasher.hash_one(key);
        let stripe = usize::try_from(hash % STRIPES as u64).unwrap_or_default();
        self.stripes[stripe].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CacheStripe {
    fn denial(&self, key: &Key) -> Option<&Denial> {
        let found = self.young.denials.get(key.as_bytes());
        found.or_else(|| self.old.denials.get(key.as_bytes()))
    }

    /// Starts a new generation once the young one is older than `max_age` or full. Entries of the
    /// dropped generation have expired, or there is no space for them.
    fn rotate(&mut self, now: Timestamp, max_age: Micros, keys: usize) {
        let is_aged = now.since(self.young.since) >= max_age;
        if is_aged || self.young.denials.len() >= keys {
            let young = Generation { since: now, denials: HashMap::new() };
            self.old = std::mem::replace(&mut self.young, young);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::algorithm::{Decision, Limit};
    use crate::clock::ManualClock;
    use crate::plan::Plan;
    use crate::rules::{Request, RequestFields, Rule, RuleSet};

    const T0: Timestamp = Timestamp::from_millis(1_700_000_000_000);
    const REVISION: u64 = 1;

    /// A cache with a manual clock, and hits of users on one limit.
    struct TestCache {
        cache: DenyCache,
        clock: ManualClock,
        rules: RuleSet,
        algorithm: Algorithm,
        grant: Grant,
    }

    impl TestCache {
        fn new(max_age: Micros, max_keys: u32) -> Self {
            let clock = ManualClock::new(T0);
            let settings = DenyCacheSettings { max_age: max_age.into(), max_keys };
            let cache = DenyCache::new(settings, Clock::Manual(clock.clone()));
            let (algorithm, limit) = (Algorithm::Gcra, Limit::new(5, Micros::from_secs(60)));
            let limit = limit.expect("a valid limit");
            let rules = RuleSet::new(Rule::new_default(algorithm, limit), Vec::new());
            Self { cache, clock, rules, algorithm, grant: Grant::Limited(limit) }
        }

        fn at(&self, since: Micros) {
            self.clock.set(T0 + since);
        }

        fn key(&self, user_id: &str) -> Key {
            let attributes = HashMap::new();
            let fields = RequestFields {
                user_id,
                resource: "",
                attributes: &attributes,
                cost: None,
                dry_run: false,
            };
            let request = Request::new(fields).expect("a valid request");
            Plan::for_request(&self.rules, &request).hits[0].key.clone()
        }

        /// Records this outcome as if the store had been called now.
        fn record(&self, user: &str, cost: Cost, outcome: Outcome) {
            let key = self.key(user);
            let hit = self.hit(&key, cost);
            let decision = Decision {
                at: T0,
                outcome,
                current_count: 5,
                remaining: 0,
                reset_after: Micros::from_secs(60),
                ttl: Micros::from_secs(60),
                delay: Micros::ZERO,
            };
            let reply = HitReply::new(decision, 0);
            self.cache.record(&hit, REVISION, self.cache.now(), &reply);
        }

        fn deny(&self, user: &str, retry_after: Micros) {
            self.record(user, Cost::ONE, Outcome::Denied { retry_after });
        }

        fn denial(&self, user: &str) -> Option<Decision> {
            let key = self.key(user);
            let reply = self.cache.denial(&self.hit(&key, Cost::ONE), REVISION)?;
            Some(reply.decision)
        }

        fn hit<'a>(&'a self, key: &'a Key, cost: Cost) -> StoreHit<'a> {
            StoreHit::new(key, self.algorithm, &self.grant, Action::Take(cost))
        }

        fn wait(&self, user: &str) -> Option<Micros> {
            match self.denial(user)?.outcome {
                Outcome::Denied { retry_after } => Some(retry_after),
                Outcome::Allowed | Outcome::Impossible => None,
            }
        }

        fn held(&self) -> usize {
            let stripes = self.cache.stripes.iter().map(|stripe| stripe.lock().expect("no panic"));
            stripes.map(|stripe| stripe.young.denials.len() + stripe.old.denials.len()).sum()
        }
    }

    #[test]
    fn a_denial_holds_to_the_microsecond_and_its_waits_shrink() {
        let test = TestCache::new(Micros::from_secs(3600), 1000);
        let (wait, instant) = (Micros::from_secs(12), Micros::from_micros(1));
        test.deny("alice", wait);
        for passed in [Micros::ZERO, instant, Micros::from_secs(5), wait - instant] {
            test.at(passed);
            assert_eq!(test.wait("alice"), Some(wait - passed));
            let decision = test.denial("alice").expect("a denial");
            let left = Micros::from_secs(60) - passed;
            assert_eq!((decision.reset_after, decision.ttl), (left, left));
            assert_eq!(test.denial("bob"), None);
        }
        test.at(wait);
        assert_eq!(test.denial("alice"), None);
    }

    #[test]
    fn the_ttl_of_a_log_is_always_the_window() {
        let test = TestCache {
            algorithm: Algorithm::SlidingWindowLog,
            ..TestCache::new(Micros::from_secs(60), 1000)
        };
        test.deny("alice", Micros::from_secs(12));
        test.at(Micros::from_secs(5));
        assert_eq!(test.denial("alice").map(|decision| decision.ttl), Some(Micros::from_secs(60)));
    }

    #[test]
    fn no_denial_is_cached_longer_than_max_age() {
        let age = Micros::from_secs(1);
        let test = TestCache::new(age, 1000);
        test.deny("alice", Micros::from_secs(3600));
        test.at(age - Micros::from_micros(1));
        assert!(test.denial("alice").is_some());
        test.at(age);
        assert_eq!(test.denial("alice"), None);
    }

    #[test]
    fn a_denial_outlives_later_entries_while_there_is_space() {
        let test = TestCache::new(Micros::from_secs(10), 1000);
        for second in 0..40 {
            test.at(Micros::from_secs(second));
            test.deny(&second.to_string(), Micros::from_secs(10));
            let since = second.saturating_sub(9);
            for earlier in since..=second {
                assert!(test.denial(&earlier.to_string()).is_some(), "{earlier} at {second}");
            }
        }
    }

    #[test]
    fn another_cost_limit_or_revision_does_not_match() {
        let test = TestCache::new(Micros::from_secs(60), 1000);
        let cost = Cost::new;
        test.record("alice", cost(3), Outcome::Denied { retry_after: Micros::from_secs(12) });
        let key = test.key("alice");
        let is_cached =
            |units, revision| test.cache.denial(&test.hit(&key, cost(units)), revision).is_some();
        assert!(is_cached(3, REVISION));
        for (units, revision) in [(0, 1), (1, 1), (2, 1), (4, 1), (6, 1), (3, 0), (3, 2)] {
            assert!(!is_cached(units, revision), "cost {units}, revision {revision}");
        }
        // An override grants this limit to other requests of the same user.
        let wider = Limit::new(1000, Micros::from_secs(60)).expect("a valid limit");
        let wider = Grant::Limited(wider);
        let hit = StoreHit { grant: &wider, ..test.hit(&key, cost(3)) };
        assert_eq!(test.cache.denial(&hit, REVISION), None);
    }

    #[test]
    fn a_refunded_key_is_forgotten() {
        let test = TestCache::new(Micros::from_secs(60), 1000);
        test.deny("alice", Micros::from_secs(12));
        test.cache.forget(&test.key("alice"));
        assert_eq!(test.denial("alice"), None);
    }

    #[test]
    fn a_reply_from_before_a_change_is_not_cached() {
        let test = TestCache::new(Micros::from_secs(60), 1000);
        let key = test.key("alice");
        let retry_after = Micros::from_secs(12);
        let reply = || {
            let outcome = Outcome::Denied { retry_after };
            HitReply::new(Decision::uncounted(outcome), 0)
        };
        let record = |requested_at| {
            let hit = test.hit(&key, Cost::ONE);
            test.cache.record(&hit, REVISION, requested_at, &reply());
        };
        let before = test.cache.now();
        test.cache.forget(&key);
        record(before);
        assert_eq!(test.denial("alice"), None);
        record(test.cache.now());
        assert!(test.denial("alice").is_some());
        let before = test.cache.now();
        test.cache.clear();
        assert_eq!(test.denial("alice"), None);
        record(before);
        assert_eq!(test.held(), 0);
    }

    #[test]
    fn long_keys_are_not_cached() {
        let test = TestCache::new(Micros::from_secs(60), 1000);
        let long = "x".repeat(MAX_KEY_LEN);
        test.deny(&long, Micros::from_secs(12));
        assert_eq!((test.denial(&long), test.held()), (None, 0));
    }

    #[test]
    fn only_denials_are_cached() {
        let test = TestCache::new(Micros::from_secs(60), 1000);
        test.record("alice", Cost::ONE, Outcome::Allowed);
        test.record("alice", Cost::ONE, Outcome::Impossible);
        assert_eq!((test.denial("alice"), test.held()), (None, 0));
    }

    #[test]
    fn the_number_of_entries_is_bounded() {
        let max = 320;
        let test = TestCache::new(Micros::from_secs(3600), max);
        for user in 0..10_000 {
            test.deny(&user.to_string(), Micros::from_secs(60));
            assert!(test.held() <= max as usize, "{} of {max}", test.held());
        }
        assert!(test.held() > max as usize / 2);
        assert!(test.denial("9999").is_some());
    }
}
