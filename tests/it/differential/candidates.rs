//! Candidates: random histories. Each candidate of a rule refuses what a twin refuses whose rule has
//! its limit in the place of the rule's, and the stores agree.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestCaseResult};
use rlaas::algorithm::Algorithm;
use rlaas::clock::{Clock, Deadline, Micros, Timestamp};
use rlaas::observer::{CandidateOutcome, Decided, NoObserver, Observer, RuleObserver};
use rlaas::rules::{
    Candidate, Grant, Matcher, Mode, Part, Pattern, Request, RequestBuilder, Rule, RuleInfo,
    RuleSet, Unmatched,
};
use rlaas::store::{MemorySettings, Store};
use rlaas_limiter::{DenyCache, DenyCacheSettings, Limiter};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::{Service, T0};

use super::cases::{Shape, shape};

/// A history of a rule with candidates.
#[derive(Clone, Debug)]
pub(super) struct CandidateCase {
    live: Shape,
    candidates: Vec<Shape>,
    /// An enforced rule for all ids, if there is one.
    other: Option<Shape>,
    mode: Mode,
    steps: Vec<CandidateStep>,
}

#[derive(Clone, Debug)]
struct CandidateStep {
    /// Thousandths of the shortest window.
    advance: u64,
    id: u8,
    /// A percentage of the smallest burst; 0 is one unit.
    cost: u64,
    is_dry_run: bool,
}

/// Generates histories of candidates with one algorithm: below, at and above the limit of their
/// rule, and any other.
pub(super) fn case_of_candidates(algorithm: Algorithm) -> impl Strategy<Value = CandidateCase> {
    let place = Algorithm::RATES.iter().position(|one| *one == algorithm).expect("an algorithm");
    let shape = || shape().prop_map(|shape| Shape { debt_percent: None, ..shape });
    let advance = prop_oneof![Just(0), 0..=400_u64, 400..=2_500_u64];
    let cost = prop::sample::select(vec![0, 0, 0, 10, 30, 50, 100, 101]);
    let step = (advance, 0..2_u8, cost, 0..8_u8);
    let step = step.prop_map(|(advance, id, cost, dry)| CandidateStep {
        advance,
        id,
        cost,
        is_dry_run: dry == 0,
    });
    let modes = prop::sample::select(vec![Mode::Enforced, Mode::Enforced, Mode::Shadow]);
    let rest = (shape(), prop::option::of(shape()), modes, prop::collection::vec(step, 1..=25));
    (shape(), 2..=9_u64, rest).prop_map(move |(live, units, (any, other, mode, steps))| {
        let candidate = |units| Shape { algorithm: place, units, ..live };
        let live = Shape { units, ..live };
        let any = Shape { algorithm: place, ..any };
        let candidates = vec![candidate(units - 1), candidate(units), candidate(units + 3), any];
        CandidateCase { live, candidates, other, mode, steps }
    })
}

/// Keeps the outcomes of candidates.
#[derive(Debug, Default)]
struct Outcomes(Mutex<Vec<(usize, CandidateOutcome)>>);

#[derive(Debug)]
struct OfRule(Arc<Outcomes>);

#[derive(Debug)]
struct Recorder(Arc<Outcomes>);

impl Observer for Recorder {
    fn rule(&self, _rule: RuleInfo<'_>) -> Arc<dyn RuleObserver> {
        Arc::new(OfRule(Arc::clone(&self.0)))
    }
}

impl RuleObserver for OfRule {
    fn decided(&self, _decided: Decided<'_>) {}

    fn candidate_decided(&self, number: usize, outcome: CandidateOutcome, _taken: u64) {
        // 0 is the rule itself.
        if number > 0 {
            self.0.0.lock().expect("no panic before").push((number, outcome));
        }
    }
}

/// A rule with candidates, and the twin of each candidate, on one store.
struct CandidateTwins {
    live: Limiter,
    outcomes: Arc<Outcomes>,
    twins: Vec<Limiter>,
}

fn rule(name: &str, shape: Shape) -> Rule {
    Rule { name: name.into(), ..Rule::new_default(shape.algorithm(), shape.limit()) }
}

/// A rule that denies requests with this attribute.
fn veto() -> Rule {
    let part = Part::Attribute("veto".to_owned());
    let matcher = Matcher { patterns: vec![(part, Pattern::one("yes"))] };
    let shape =
        Shape { algorithm: 0, units: 1, window_ms: 1, burst_percent: 100, debt_percent: None };
    Rule { matcher, grant: Grant::Banned, ..rule("veto", shape) }
}

fn request_of(id: &str, cost: u32, is_dry_run: bool) -> RequestBuilder<'_> {
    let request = Request::user(id).cost(cost);
    if is_dry_run { request.dry_run() } else { request }
}

impl CandidateTwins {
    fn new(case: &CandidateCase, store: &Store) -> Self {
        let outcomes = Arc::new(Outcomes::default());
        let candidates = case.candidates.iter();
        let candidates = candidates
            .map(|shape| Candidate { algorithm: shape.algorithm(), limit: shape.limit() })
            .collect();
        let live = Rule { candidates, mode: case.mode, ..rule("pay", case.live) };
        let default = Rule::new_default(case.live.algorithm(), case.live.limit());
        let other = case.other.map(|shape| rule("other", shape));
        let rules = RuleSet::new(default.clone(), [live].into_iter().chain(other).collect())
            .with_unmatched(Unmatched::Allow);
        let observer = Arc::new(Recorder(Arc::clone(&outcomes)));
        let settings = DenyCacheSettings { max_age: Duration::from_secs(1), max_keys: 1_000 };
        let cache = DenyCache::new(settings, Clock::default());
        let live = Limiter::with_deny_cache(rules, store.clone(), cache, observer);
        let twins = case.candidates.iter().enumerate().map(|(at, shape)| {
            let twin = Rule { mode: case.mode, ..rule(&format!("twin-{at}"), *shape) };
            let rules =
                RuleSet::new(default.clone(), vec![twin, veto()]).with_unmatched(Unmatched::Allow);
            Limiter::new(rules, store.clone(), Arc::new(NoObserver))
        });
        Self { live, outcomes, twins: twins.collect() }
    }

    /// Takes a step by the rule and by all twins, and compares them. Returns the outcomes of the
    /// candidates.
    async fn take(
        &self,
        id: &str,
        cost: u32,
        is_dry_run: bool,
    ) -> Result<Vec<CandidateOutcome>, TestCaseError> {
        let request = request_of(id, cost, is_dry_run).build().expect("a valid request");
        let verdict = self.live.check(&request, Deadline::NEVER).await.expect("a verdict");
        let mut others = verdict.decisions.iter().filter(|decided| &*decided.rule == "other");
        let is_vetoed = others.any(|decided| !decided.decision.is_allowed());
        let found = std::mem::take(&mut *self.outcomes.0.lock().expect("no panic before"));
        let numbers: Vec<usize> = found.iter().map(|(number, _)| *number).collect();
        prop_assert_eq!(&numbers, &(1..=self.twins.len()).collect::<Vec<_>>());
        let attributes = [("veto", if is_vetoed { "yes" } else { "no" })];
        let request = request_of(id, cost, is_dry_run).attributes(&attributes);
        let request = request.build().expect("a valid request");
        for (twin, (number, outcome)) in self.twins.iter().zip(&found) {
            let verdict = twin.check(&request, Deadline::NEVER).await.expect("a verdict");
            let mut decisions = verdict.decisions.iter();
            let own = decisions.find(|decided| decided.rule.starts_with("twin")).expect("the rule");
            let expected = match (own.decision.is_allowed(), is_vetoed) {
                (false, _) => CandidateOutcome::Denied,
                (true, true) => CandidateOutcome::OtherRule,
                (true, false) => CandidateOutcome::Allowed,
            };
            prop_assert_eq!(*outcome, expected, "candidate {}", number);
        }
        Ok(found.into_iter().map(|(_, outcome)| outcome).collect())
    }
}

impl CandidateCase {
    fn shapes(&self) -> impl Iterator<Item = Shape> {
        self.candidates.iter().copied().chain([self.live])
    }

    /// Returns the number of requests.
    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Takes each step on both stores.
    pub(super) async fn run(self, server: &Arc<RedisServer>) -> TestCaseResult {
        server.query::<()>(&["FLUSHALL"]);
        let rules = self.live.rules();
        let memory = Service::on_bounded_memory(rules.clone(), MemorySettings { max_keys: 1_000 });
        let redis = Service::on_redis(rules, Arc::clone(server));
        let both = [&memory, &redis].map(|on| CandidateTwins::new(&self, on.limiter.store()));
        let window = self.shapes().map(|shape| shape.limit().window()).min().expect("a rule");
        let burst = self.shapes().map(|shape| shape.limit().burst()).min().expect("a rule");
        let mut now: Timestamp = T0;
        for CandidateStep { advance, id, cost, is_dry_run } in self.steps {
            let micros = u128::from(window.as_micros()) * u128::from(advance) / 1_000;
            now = now + Micros::from_micros(u64::try_from(micros).expect("a few years"));
            memory.set_clock(now);
            redis.set_clock(now);
            let units = if cost > 100 { burst + 1 } else { (burst * cost).div_ceil(100).max(1) };
            let units = u32::try_from(units).expect("a burst is below 2^32");
            let id = format!("user-{id}");
            let [memory, redis] = &both;
            let in_memory = memory.take(&id, units, is_dry_run).await?;
            prop_assert_eq!(in_memory, redis.take(&id, units, is_dry_run).await?);
        }
        Ok(())
    }
}
