//! Three limiters that are asked the same: on memory, on Redis, and a twin in memory with other rules, which is asked
//! for what the specification says of those. All answers are equal.

use std::fmt::Debug;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use rlaas::algorithm::{Algorithm, Cost, Limit};
use rlaas::clock::{Deadline, Micros, Timestamp};
use rlaas::control::{KeyGrant, OverrideChange};
use rlaas::plan::{Selector, SelectorTarget};
use rlaas::rules::{Costs, Request, Rule, RuleSet};
use rlaas::store::MemorySettings;
use rlaas_limiter::{CheckError, KeyChange, OpenReservation, Settling, Verdict};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::{Service, T0};

/// The farthest that the clock steps back from its latest time, in microseconds: what has ended is kept for as long.
pub(super) const STEP_BACK: u64 = 1_000_000;

/// A reservation as each limiter has it.
pub(super) type OpenOnEach = [OpenReservation; 3];

/// The clock of a history, which may step back.
pub(super) struct HistoryClock {
    pub(super) now: Timestamp,
    latest: u64,
    /// Ends of holds and of overrides, over which the clock does not step back: the stores drop what has ended at
    /// different times.
    pub(super) ends: Vec<Timestamp>,
}

impl HistoryClock {
    pub(super) const START: Self = Self { now: T0, latest: T0.as_micros(), ends: Vec::new() };

    /// Returns the step that the clock takes instead of this one.
    pub(super) fn step(&self, micros: i64) -> i64 {
        let recent = self.latest - 2 * STEP_BACK..=self.now.as_micros();
        let has_ended = |end: &Timestamp| recent.contains(&end.as_micros());
        if self.ends.iter().any(has_ended) { micros.max(0) } else { micros }
    }

    /// Takes a step, as far as it may, and sets the clocks of the services.
    pub(super) fn advance(&mut self, micros: i64, services: &[Service]) {
        let now = self.now.as_micros().checked_add_signed(self.step(micros)).expect("a time");
        self.now = Timestamp::from_micros(now.max(self.latest - STEP_BACK));
        self.latest = self.latest.max(now);
        for service in services {
            service.set_clock(self.now);
        }
    }

    /// Records the end of what a change sets.
    pub(super) fn record_end(&mut self, change: &KeyChange) {
        if let KeyChange::SetOverride(change) = change {
            self.ends.push(self.now + change.ttl());
        }
    }
}

pub(super) struct Trio {
    pub(super) services: [Service; 3],
    pub(super) clock: HistoryClock,
    /// What it means if the twin differs.
    difference: &'static str,
}

impl Trio {
    /// Creates the limiters on an empty server, with the rules and those of the twin.
    pub(super) fn new(
        server: &Arc<RedisServer>,
        rules: &RuleSet,
        rules_of_twin: RuleSet,
        difference: &'static str,
    ) -> Self {
        server.query::<()>(&["FLUSHALL"]);
        // With one shard, memory sees the same sequence of calls as Redis.
        let one_shard = MemorySettings { max_keys: 1_000 };
        let services = [
            Service::on_bounded_memory(rules.clone(), one_shard),
            Service::on_redis(rules.clone(), Arc::clone(server)),
            Service::on_bounded_memory(rules_of_twin, one_shard),
        ];
        Self { services, clock: HistoryClock::START, difference }
    }

    /// Takes a step of the clock, on all limiters.
    pub(super) fn advance(&mut self, micros: i64) {
        self.clock.advance(micros, &self.services);
    }

    pub(super) fn equal<T: Debug + PartialEq>(
        &self,
        answers: &[T],
        context: &str,
    ) -> TestCaseResult {
        let [memory, redis, twin] = answers else { panic!("three answers") };
        prop_assert_eq!(memory, redis, "memory and Redis: {}", context);
        prop_assert_eq!(memory, twin, "{}: {}", self.difference, context);
        Ok(())
    }

    pub(super) async fn report(&self, request: &Request<'_>, context: &str) -> TestCaseResult {
        let mut answers = Vec::new();
        for service in &self.services {
            let reported = service.limiter.report(request, Deadline::NEVER).await;
            answers.push(shown(reported.map(|reported| reported.verdict)));
        }
        self.equal(&answers, context)
    }

    pub(super) async fn extend(
        &mut self,
        open: &OpenOnEach,
        cost: u32,
        seconds: Option<u64>,
        context: &str,
    ) -> TestCaseResult {
        let hold_for = seconds.map(Micros::from_secs);
        let mut answers = Vec::new();
        for (service, open) in self.services.iter().zip(open) {
            let (cost, costs) = (Cost::new(cost), Costs::NONE);
            let extended =
                service.limiter.extend(open, cost, costs, hold_for, Deadline::NEVER).await;
            let ends_at = extended.as_ref().ok().map(|(_, ends_at)| *ends_at);
            answers.push((ends_at, shown(extended.map(|(verdict, _)| verdict))));
        }
        self.equal(&answers, context)?;
        self.clock.ends.extend(answers[0].0);
        Ok(())
    }

    /// Settles a reservation; with the `request` also one that has ended.
    pub(super) async fn settle(
        &self,
        open: &OpenOnEach,
        actual: Option<u32>,
        request: Option<&Request<'_>>,
        context: &str,
    ) -> TestCaseResult {
        let settling = Settling { actual: actual.map(Cost::new), actuals: Costs::NONE };
        let mut answers = Vec::new();
        for (service, open) in self.services.iter().zip(open) {
            let limiter = &service.limiter;
            let settled = if let Some(request) = request {
                limiter.settle_or_count(Some(open), request, settling, Deadline::NEVER).await
            } else {
                limiter.settle(open, settling, Deadline::NEVER).await
            };
            answers.push(format!("{settled:?}"));
        }
        self.equal(&answers, context)
    }

    /// Changes the keys of a user.
    pub(super) async fn change(&self, user: u8, change: &KeyChange) {
        let user = user.to_string();
        let request = Request::user(&user).build().expect("a valid request");
        let selector = Selector { target: SelectorTarget::Request(&request), rule: None };
        for service in &self.services {
            let limiter = &service.limiter;
            let keys = limiter.snapshot().rules.select(&selector).expect("keys");
            limiter.change(&keys, change, Deadline::NEVER).await.expect("a change");
        }
    }
}

/// Returns a change to so many units for a time. `None` is unlimited.
pub(super) fn set_override(grant: Option<u64>, ttl: Micros) -> KeyChange {
    let limited = |units| KeyGrant::Limited { units, burst: units };
    let grant = grant.map_or(KeyGrant::Unlimited, limited);
    KeyChange::SetOverride(OverrideChange::new(grant, ttl, b"why").expect("a change"))
}

/// Returns the rules, with a default rule that never denies.
pub(super) fn with_wide_default(rules: Vec<Rule>, overridable: bool) -> RuleSet {
    let wide = Limit::new(Limit::MAX_UNITS, Limit::MAX_WINDOW).expect("a valid limit");
    let default = Rule { overridable, ..Rule::new_default(Algorithm::Gcra, wide) };
    RuleSet::new(default, rules)
}

pub(super) fn shown(verdict: Result<Verdict, CheckError>) -> String {
    match verdict {
        Ok(verdict) => format!("{:?}", verdict.decisions),
        Err(error) => format!("{error:?}"),
    }
}
