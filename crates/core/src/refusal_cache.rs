//! A cache of refusals, so that a caller that repeats a refused request causes no calls.
//!
//! A refusal holds for the same request until its `retry_after`, but for `max_age` at most, so that
//! a reset or a lifted ban takes effect. Entries are in two generations; the older one is dropped
//! as a whole, without a search for expired entries.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::algorithm::Cost;
use crate::clock::{Clock, Micros, Timestamp};
use crate::rules::Request;
use crate::summary::Summary;

/// Most bytes in a key. Longer requests are not cached, which bounds the memory.
const MAX_KEY: usize = 512;
/// Most refusals in a generation.
const MAX_REFUSALS: usize = 8_192;

/// All fields of a request that affect the decision, encoded. Of a request id it has that there is one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestKey(Arc<[u8]>);

impl RequestKey {
    /// Encodes the fields of a request.
    pub fn new(request: &Request<'_>) -> Self {
        let mut key = vec![request.dry_run().into(), request.request_id().is_some().into()];
        key.extend_from_slice(&request.cost().units().to_le_bytes());
        let mut attributes: Vec<_> = request.attributes().iter().collect();
        attributes.sort_unstable();
        let attributes = attributes.into_iter().flat_map(|(name, value)| [name, value]);
        for text in [request.user_id(), request.resource()].into_iter().chain(attributes) {
            key.extend_from_slice(&text.len().to_le_bytes());
            key.extend_from_slice(text.as_bytes());
        }
        let mut costs: Vec<_> = request.costs().iter().collect();
        costs.sort_unstable();
        for (rule, units) in costs {
            // No text before has the first one as its length.
            let numbers = [u64::MAX, rule.len() as u64, units].map(u64::to_le_bytes);
            key.extend_from_slice(&numbers.concat());
            key.extend_from_slice(rule.as_bytes());
        }
        if let Some(units) = request.at_least() {
            // Neither a text nor a rule has this length.
            key.extend_from_slice(
                &[u64::MAX - 1, units.get().into()].map(u64::to_le_bytes).concat(),
            );
        }
        Self(key.into())
    }
}

/// Refusals by request.
#[derive(Debug)]
pub struct RefusalCache<V> {
    max_age: Micros,
    clock: Clock,
    generations: Mutex<Generations<V>>,
}

#[derive(Debug)]
struct Generations<V> {
    since: Timestamp,
    young: HashMap<RequestKey, CachedRefusal<V>>,
    old: HashMap<RequestKey, CachedRefusal<V>>,
}

#[derive(Debug)]
struct CachedRefusal<V> {
    /// Time at which the request was sent. The decision was made then or later.
    asked_at: Timestamp,
    holds_until: Timestamp,
    verdict: V,
}

impl<V: Summary> RefusalCache<V> {
    /// Creates a cache that holds refusals for up to `max_age`; zero holds none.
    pub fn new(max_age: Duration, clock: Clock) -> Self {
        Self { max_age: max_age.into(), clock, generations: Mutex::new(Generations::new()) }
    }

    /// Returns the current time, for [`RefusalCache::insert`].
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns `true` if the refusal of a request with this key may be cached. Requests that take nothing
    /// must not: they read the current state. Those with costs of single rules are rare.
    pub fn caches(&self, request: &Request<'_>, key: &RequestKey) -> bool {
        let is_look = request.dry_run() || request.cost() == Cost::NONE;
        self.max_age != Micros::ZERO
            && !is_look
            && request.costs().is_empty()
            && key.0.len() <= MAX_KEY
    }

    /// Inserts the verdict on a request that was sent at `asked_at`, if it is a refusal by a store
    /// that ends with time.
    pub fn insert(&self, key: RequestKey, asked_at: Timestamp, verdict: &V) {
        let Some(wait) = verdict.refused_for() else { return };
        let holds_until = asked_at + wait.min(self.max_age);
        let refusal = CachedRefusal { asked_at, holds_until, verdict: verdict.clone() };
        let mut generations = self.generations();
        generations.rotate(self.clock.now(), self.max_age);
        generations.young.insert(key, refusal);
    }

    /// Returns the refusal of a request, with the waits that are left, if it still holds.
    pub fn get(&self, key: &RequestKey) -> Option<V> {
        let generations = self.generations();
        let refusal = generations.young.get(key).or_else(|| generations.old.get(key))?;
        let now = self.clock.now();
        (now < refusal.holds_until).then(|| refusal.verdict.after(now.since(refusal.asked_at)))
    }

    fn generations(&self) -> MutexGuard<'_, Generations<V>> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V> Generations<V> {
    fn new() -> Self {
        Self { since: Timestamp::EPOCH, young: HashMap::new(), old: HashMap::new() }
    }

    /// Drops the older generation if the younger one is full or has the age `max_age`. In the
    /// second case all refusals of the older one have expired.
    fn rotate(&mut self, now: Timestamp, max_age: Micros) {
        if now.since(self.since) >= max_age || self.young.len() >= MAX_REFUSALS {
            self.since = now;
            self.old = std::mem::take(&mut self.young);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::algorithm::{Algorithm, Decision, Limit, Outcome};
    use crate::clock::ManualClock;
    use crate::plan::RuleIndex;
    use crate::rules::{Grant, Mode};
    use crate::verdict::{RuleDecision, Source, Verdict};

    const MAX_AGE: Micros = Micros::from_secs(1);

    fn refusals() -> (RefusalCache<Verdict>, ManualClock) {
        let clock = ManualClock::new(Timestamp::EPOCH + MAX_AGE);
        (RefusalCache::new(MAX_AGE.into(), Clock::Manual(clock.clone())), clock)
    }

    fn key(refusals: &RefusalCache<Verdict>, user: usize) -> RequestKey {
        let user = user.to_string();
        let request = Request::user(&user).build().expect("a valid request");
        let key = RequestKey::new(&request);
        assert!(refusals.caches(&request, &key), "a short request");
        key
    }

    fn verdict(outcome: Outcome, source: Source, mode: Mode) -> RuleDecision {
        RuleDecision {
            index: RuleIndex::Flat(0),
            rule: Arc::from("login"),
            algorithm: Algorithm::Gcra,
            grant: Grant::Limited(Limit::new(1, Micros::from_secs(60)).expect("a valid limit")),
            mode,
            decision: Decision::uncounted(outcome),
            source,
            is_near_limit: false,
            is_held: false,
            held: 0,
        }
    }

    fn from_rules(decisions: impl IntoIterator<Item = RuleDecision>) -> Verdict {
        Verdict::from_decisions(decisions.into_iter().collect())
    }

    const DENIED: Outcome = Outcome::Denied { retry_after: MAX_AGE };

    #[test]
    fn cache_has_at_most_two_full_generations() {
        let (refusals, clock) = refusals();
        let verdict = from_rules([verdict(DENIED, Source::Store, Mode::Enforced)]);
        let remember = |user| refusals.insert(key(&refusals, user), refusals.now(), &verdict);
        let held = || {
            let generations = refusals.generations();
            generations.young.len() + generations.old.len()
        };
        (0..3 * MAX_REFUSALS).for_each(remember);
        assert_eq!(held(), 2 * MAX_REFUSALS);
        let cached = |user| refusals.get(&key(&refusals, user)).is_some();
        assert!(cached(3 * MAX_REFUSALS - 1) && cached(MAX_REFUSALS) && !cached(0));
        for age in 2..4 {
            clock.set(Timestamp::EPOCH + Micros::from_secs(age));
            remember(0);
        }
        assert_eq!(held(), 2);
    }

    #[test]
    fn cache_takes_refusals_by_a_store_and_not_its_own() {
        let (refusals, clock) = refusals();
        let is_cached = |verdict: &Verdict| {
            let (refusals, _) = self::refusals();
            refusals.insert(key(&refusals, 0), refusals.now(), verdict);
            refusals.get(&key(&refusals, 0)).is_some()
        };
        for (outcome, source, expected) in [
            (DENIED, Source::Store, true),
            (DENIED, Source::LocalFallback, true),
            (DENIED, Source::DenyCache, false),
            (DENIED, Source::FailClosed, false),
            (Outcome::Allowed, Source::Store, false),
            (Outcome::Impossible, Source::Store, false),
        ] {
            let verdict = from_rules([verdict(outcome, source, Mode::Enforced)]);
            assert_eq!(is_cached(&verdict), expected, "{outcome:?} by {source:?}");
        }
        assert!(!is_cached(&from_rules([verdict(DENIED, Source::Store, Mode::Shadow)])));

        let allowing = verdict(Outcome::Allowed, Source::Store, Mode::Enforced);
        let denying = verdict(DENIED, Source::Store, Mode::Enforced);
        refusals.insert(key(&refusals, 0), refusals.now(), &from_rules([allowing, denying]));
        let passed = Micros::from_millis(400);
        clock.set(clock.now() + passed);
        let cached = refusals.get(&key(&refusals, 0)).expect("a refusal");
        assert_eq!(cached.decisions.len(), 1, "allowing decisions are outdated");
        assert_eq!(cached.deciding().source, Source::DenyCache);
        assert_eq!(cached.retry_after(), Some(MAX_AGE - passed));
        refusals.insert(key(&refusals, 1), refusals.now(), &cached);
        assert!(refusals.get(&key(&refusals, 1)).is_none());
        clock.set(clock.now() + (MAX_AGE - passed));
        assert!(refusals.get(&key(&refusals, 0)).is_none());
    }
}
