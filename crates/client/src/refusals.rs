//! Refusals that still hold: who hammers at a limit is answered without a call.
//!
//! A refusal holds for the same request until its `retry_after`, and no longer than `max_age`: a
//! reset or a lifted ban must reach callers. Entries live in two generations, so that nothing is
//! ever searched for one to drop.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rlaas_core::algorithm::Cost;
use rlaas_core::clock::{Clock, Span, Timestamp};
use rlaas_core::rules::Request;
use rlaas_proto::ratelimit::v1::check_response::{Reason, Source};
use rlaas_proto::ratelimit::v1::{Algorithm, CheckResponse};

use crate::verdict::{span, to_message};

/// Bytes of a request that is remembered: memory is bounded whatever is asked.
const MAX_KEY: usize = 512;
/// Refusals in a generation.
const MAX_REFUSALS: usize = 8_192;

/// What makes two requests the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RequestKey(Box<[u8]>);

/// Refusals by request.
#[derive(Debug)]
pub(crate) struct Refusals {
    max_age: Span,
    clock: Clock,
    generations: Mutex<Generations>,
}

#[derive(Debug, Default)]
struct Generations {
    since: Timestamp,
    young: HashMap<RequestKey, Refusal>,
    old: HashMap<RequestKey, Refusal>,
}

#[derive(Clone, Debug)]
struct Refusal {
    /// When the server was asked: it has decided no earlier.
    asked_at: Timestamp,
    holds_until: Timestamp,
    response: CheckResponse,
}

impl Refusals {
    pub(crate) fn new(max_age: Duration, clock: Clock) -> Self {
        Self { max_age: max_age.into(), clock, generations: Mutex::default() }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the key of a request; `None` if its refusal is not to be remembered: a request that
    /// takes nothing looks at the state as it is.
    pub(crate) fn key(&self, request: &Request<'_>) -> Option<RequestKey> {
        if self.max_age == Span::ZERO || request.dry_run() || request.cost() == Cost::NONE {
            return None;
        }
        let mut attributes: Vec<_> = request.attributes().iter().collect();
        attributes.sort_unstable();
        let attributes = attributes.into_iter().flat_map(|(name, value)| [name, value]);
        let mut key = Vec::from(request.cost().units().to_le_bytes());
        for text in [request.user_id(), request.resource()].into_iter().chain(attributes) {
            key.extend_from_slice(&text.len().to_le_bytes());
            key.extend_from_slice(text.as_bytes());
        }
        (key.len() <= MAX_KEY).then(|| RequestKey(key.into()))
    }

    /// Remembers a response to a request that was sent at `asked_at`, if it is a refusal that time
    /// ends.
    pub(crate) fn remember(&self, key: RequestKey, asked_at: Timestamp, response: &CheckResponse) {
        if response.allowed || response.reason() != Reason::OverLimit {
            return;
        }
        let Some(retry_after) = &response.retry_after else { return };
        let holds_until = asked_at + span(retry_after).min(self.max_age);
        let refusal = Refusal { asked_at, holds_until, response: response.clone() };
        let mut generations = self.generations();
        generations.make_room(self.clock.now(), self.max_age);
        generations.young.insert(key, refusal);
    }

    /// Returns the refusal of a request that still holds, with the waits that are left.
    pub(crate) fn recall(&self, key: &RequestKey) -> Option<CheckResponse> {
        let generations = self.generations();
        let refusal = generations.young.get(key).or_else(|| generations.old.get(key))?;
        let now = self.clock.now();
        (now < refusal.holds_until).then(|| refusal.response_at(now))
    }

    fn generations(&self) -> MutexGuard<'_, Generations> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generations {
    /// Drops the older generation once the younger one has lived for `max_age` or is full: by then
    /// nothing of the older holds, or there is no room for it.
    fn make_room(&mut self, now: Timestamp, max_age: Span) {
        if now.since(self.since) >= max_age || self.young.len() >= MAX_REFUSALS {
            self.since = now;
            self.old = std::mem::take(&mut self.young);
        }
    }
}

impl Refusal {
    fn response_at(&self, now: Timestamp) -> CheckResponse {
        let elapsed = now.since(self.asked_at);
        let shorten = |wait: &mut Option<prost_types::Duration>| {
            if let Some(wait) = wait {
                *wait = to_message((span(wait) - elapsed).max(Span::from_micros(1)));
            }
        };
        let shorten_ttl = |ttl: &mut i64, algorithm: Algorithm| {
            // Of a log it is always the window.
            if algorithm != Algorithm::SlidingWindowLog {
                let seconds = i64::try_from(elapsed.as_micros() / 1_000_000).unwrap_or(i64::MAX);
                *ttl = ttl.saturating_sub(seconds).max(1);
            }
        };
        let mut response = self.response.clone();
        response.source = Source::DenyCache.into();
        shorten(&mut response.retry_after);
        shorten(&mut response.reset_after);
        let algorithm = response.algorithm();
        shorten_ttl(&mut response.ttl, algorithm);
        // Those that allowed may have changed since.
        response.decisions.retain(|decision| !decision.allowed);
        for decision in &mut response.decisions {
            shorten(&mut decision.retry_after);
            shorten(&mut decision.reset_after);
            let algorithm = decision.algorithm();
            shorten_ttl(&mut decision.ttl, algorithm);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use rlaas_core::clock::ManualClock;
    use rlaas_core::rules::Draft;

    use super::*;

    const MAX_AGE: Span = Span::from_secs(1);

    fn key(refusals: &Refusals, user: usize) -> RequestKey {
        let (user_id, attributes) = (user.to_string(), HashMap::new());
        let (resource, cost, dry_run) = ("", None, false);
        let draft = Draft { user_id: &user_id, resource, attributes: &attributes, cost, dry_run };
        refusals.key(&Request::new(draft).expect("a valid request")).expect("a short request")
    }

    #[test]
    fn memory_is_bounded() {
        let clock = ManualClock::new(Timestamp::EPOCH + MAX_AGE);
        let refusals = Refusals::new(Duration::from_secs(1), Clock::Manual(clock.clone()));
        let response = CheckResponse {
            reason: Reason::OverLimit.into(),
            retry_after: Some(to_message(MAX_AGE)),
            ..CheckResponse::default()
        };
        let remember = |user| refusals.remember(key(&refusals, user), refusals.now(), &response);
        let held = || {
            let generations = refusals.generations();
            generations.young.len() + generations.old.len()
        };
        (0..3 * MAX_REFUSALS).for_each(remember);
        assert_eq!(held(), 2 * MAX_REFUSALS);
        let recalled = |user| refusals.recall(&key(&refusals, user)).is_some();
        assert!(recalled(3 * MAX_REFUSALS - 1) && recalled(MAX_REFUSALS) && !recalled(0));
        for age in 2..4 {
            clock.set(Timestamp::EPOCH + Span::from_secs(age));
            remember(0);
        }
        assert_eq!(held(), 2);
    }
}
