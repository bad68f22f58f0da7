//! Denials that are still true need no store: whoever hammers at a limit is answered from here.
//!
//! A denial holds until its `retry_after`, at most for `deny-cache.max-age`, and for the same cost:
//! a dearer request waits longer, or can never pass. That is exact for whether a request may pass:
//! until then nothing lets it but a change of rules, which names another revision, and what is given
//! back in a cluster, which this instance forgets and others may deny for as long as an entry lives. Counts are
//! those of the denial itself; a full fixed window does not count the attempts that are answered
//! here.
//!
//! Entries live in two generations, so that nothing is ever searched for one to drop.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::algorithm::{Algorithm, Cost, Decision, Limit, Outcome};
use crate::clock::{Clock, Micros, Timestamp};
use crate::operation::{Action, StoreHit};
use crate::rules::Key;

/// Bytes of a key that is remembered: memory is bounded whatever ids are sent.
const MAX_KEY_LEN: usize = 256;

/// Parts with a lock of their own.
const STRIPES: usize = 16;

/// Whether and how long denials are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenyCacheSettings {
    /// The longest that a denial holds here.
    pub max_age: Duration,
    /// Most denials that are held.
    pub max_keys: u32,
}

/// Denials by key.
#[derive(Debug)]
pub struct DenyCache {
    stripes: Box<[Mutex<Stripe>]>,
    hasher: RandomState,
    max_age: Micros,
    keys_per_generation: usize,
    clock: Clock,
}

#[derive(Debug, Default)]
struct Stripe {
    young: Generation,
    old: Generation,
}

#[derive(Debug, Default)]
struct Generation {
    since: Timestamp,
    denials: HashMap<Box<[u8]>, Denial>,
}

/// A denial by the store.
#[derive(Clone, Copy, Debug)]
struct Denial {
    revision: u64,
    algorithm: Algorithm,
    /// An override may grant another one for the same key.
    limit: Limit,
    cost: Cost,
    /// When the store was asked: it has decided no earlier.
    requested_at: Timestamp,
    holds_until: Timestamp,
    decision: Decision,
}

impl DenyCache {
    /// An empty cache.
    pub fn new(settings: DenyCacheSettings, clock: Clock) -> Self {
        let keys = settings.max_keys as usize;
        Self {
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            max_age: settings.max_age.into(),
            keys_per_generation: (keys / STRIPES / 2).max(1),
            clock,
        }
    }

    /// The time of a question to the store, which may end in a denial.
    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Remembers a denial by the store, which was asked at `requested_at`.
    pub(super) fn record(
        &self,
        hit: &StoreHit<'_>,
        revision: u64,
        requested_at: Timestamp,
        decision: &Decision,
    ) {
        let StoreHit { key, algorithm, limit: &limit, action, .. } = *hit;
        // A report always counts, and a look at what is there is no refusal of a cost.
        let cost = match action {
            Action::Take(cost) | Action::Peek(cost) if cost != Cost::NONE => cost,
            _ => return,
        };
        if key.as_bytes().len() > MAX_KEY_LEN {
            return;
        }
        let Outcome::Denied { retry_after } = decision.outcome else { return };
        let holds_until = requested_at + retry_after.min(self.max_age);
        let denial = Denial {
            revision,
            algorithm,
            limit,
            cost,
            requested_at,
            holds_until,
            decision: *decision,
        };
        let mut stripe = self.stripe(key);
        stripe.rotate(self.clock.now(), self.max_age, self.keys_per_generation);
        stripe.young.denials.insert(key.as_bytes().into(), denial);
    }

    /// Forgets what was said of a key: units of it were given back.
    pub(super) fn forget(&self, key: &Key) {
        let mut stripe = self.stripe(key);
        stripe.young.denials.remove(key.as_bytes());
        stripe.old.denials.remove(key.as_bytes());
    }

    /// What a hit surely meets, with the waits that are left.
    pub(super) fn denial(&self, hit: &StoreHit<'_>, revision: u64) -> Option<Decision> {
        let denial = self.stripe(hit.key).denial(hit.key)?;
        let now = self.clock.now();
        let cost = hit.action.cost();
        let is_same = (denial.revision, denial.cost, denial.limit) == (revision, cost, *hit.limit);
        let holds = is_same && now < denial.holds_until;
        holds.then(|| denial.decision.after(now.since(denial.requested_at), denial.algorithm))
    }

    fn stripe(&self, key: &Key) -> MutexGuard<'_, Stripe> {
        let hash = self.hasher.hash_one(key.as_bytes());
        let stripe = usize::try_from(hash % STRIPES as u64).unwrap_or_default();
        self.stripes[stripe].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stripe {
    fn denial(&self, key: &Key) -> Option<Denial> {
        let found = self.young.denials.get(key.as_bytes());
        found.or_else(|| self.old.denials.get(key.as_bytes())).copied()
    }

    /// Drops the older generation once the younger one has lived for `max_age` or is full: by
    /// then nothing of the older holds, or there is no room for it.
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
    use crate::clock::ManualClock;
    use crate::plan::Plan;
    use crate::rules::{Mode, Request, RequestFields, Rule, RuleSet};

    const T0: Timestamp = Timestamp::from_millis(1_700_000_000_000);
    const REVISION: u64 = 1;

    /// A cache whose time is moved, and the hits of users on a limit.
    struct TestCache {
        cache: DenyCache,
        clock: ManualClock,
        rules: RuleSet,
        algorithm: Algorithm,
        limit: Limit,
    }

    impl TestCache {
        fn new(max_age: Micros, max_keys: u32) -> Self {
            let clock = ManualClock::new(T0);
            let settings = DenyCacheSettings { max_age: max_age.into(), max_keys };
            let cache = DenyCache::new(settings, Clock::Manual(clock.clone()));
            let (algorithm, limit) = (Algorithm::Gcra, Limit::new(5, Micros::from_secs(60)));
            let limit = limit.expect("a valid limit");
            let rules = RuleSet::new(Rule::new_default(algorithm, limit), Vec::new());
            Self { cache, clock, rules, algorithm, limit }
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

        /// The store was asked now, and says so.
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
            self.cache.record(&hit, REVISION, self.cache.now(), &decision);
        }

        fn deny(&self, user: &str, retry_after: Micros) {
            self.record(user, Cost::ONE, Outcome::Denied { retry_after });
        }

        fn denial(&self, user: &str) -> Option<Decision> {
            let key = self.key(user);
            self.cache.denial(&self.hit(&key, Cost::ONE), REVISION)
        }

        fn hit<'a>(&'a self, key: &'a Key, cost: Cost) -> StoreHit<'a> {
            let (algorithm, limit) = (self.algorithm, &self.limit);
            StoreHit { key, algorithm, limit, action: Action::Take(cost), mode: Mode::Enforced }
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
    fn no_denial_is_held_longer_than_its_age() {
        let age = Micros::from_secs(1);
        let test = TestCache::new(age, 1000);
        test.deny("alice", Micros::from_secs(3600));
        test.at(age - Micros::from_micros(1));
        assert!(test.denial("alice").is_some());
        test.at(age);
        assert_eq!(test.denial("alice"), None);
    }

    #[test]
    fn a_denial_outlives_the_notes_about_others_while_there_is_room() {
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
    fn another_cost_limit_or_revision_is_another_question() {
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
        // What an override grants to some requests of the same user.
        let wider = Limit::new(1000, Micros::from_secs(60)).expect("a valid limit");
        let hit = StoreHit { limit: &wider, ..test.hit(&key, cost(3)) };
        assert_eq!(test.cache.denial(&hit, REVISION), None);
    }

    #[test]
    fn what_was_given_back_is_forgotten() {
        let test = TestCache::new(Micros::from_secs(60), 1000);
        test.deny("alice", Micros::from_secs(12));
        test.cache.forget(&test.key("alice"));
        assert_eq!(test.denial("alice"), None);
    }

    #[test]
    fn what_would_fill_the_memory_is_not_remembered() {
        let test = TestCache::new(Micros::from_secs(60), 1000);
        let long = "x".repeat(MAX_KEY_LEN);
        test.deny(&long, Micros::from_secs(12));
        assert_eq!((test.denial(&long), test.held()), (None, 0));
    }

    #[test]
    fn only_denials_are_remembered() {
        let test = TestCache::new(Micros::from_secs(60), 1000);
        test.record("alice", Cost::ONE, Outcome::Allowed);
        test.record("alice", Cost::ONE, Outcome::Impossible);
        assert_eq!((test.denial("alice"), test.held()), (None, 0));
    }

    #[test]
    fn no_more_is_held_than_was_said() {
        let most = 320;
        let test = TestCache::new(Micros::from_secs(3600), most);
        for user in 0..10_000 {
            test.deny(&user.to_string(), Micros::from_secs(60));
            assert!(test.held() <= most as usize, "{} of {most}", test.held());
        }
        assert!(test.held() > most as usize / 2);
        assert!(test.denial("9999").is_some());
    }
}
