//! Random rules, ids, costs and time steps on memory, Redis and the reference model: all decisions
//! are equal in every field. A failure is reduced to the smallest case and saved beside this file,
//! in a file for each test.
//!
//! `DIFFERENTIAL_CASES` sets the number of cases. The default makes more than 100,000 decisions on
//! each store.

mod model;

use std::cell::Cell;
use std::sync::Arc;

use model::Model;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseResult, TestRunner};
use rlaas::algorithm::{self, Algorithm, Decision, Limit, Outcome};
use rlaas::clock::{Micros, Timestamp};
use rlaas::rules::{Mode, Rule, RuleSet};
use rlaas::store::{Action, MemorySettings};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::{Service, T0};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

const DAY_MS: u64 = 86_400_000;

/// The rules, and the steps that are taken under them.
#[derive(Clone, Debug)]
struct DifferentialCase {
    rule: Shape,
    /// More rules with their modes. If empty, `rule` is the default rule.
    more: Vec<(Shape, Mode)>,
    steps: Vec<Step>,
}

impl DifferentialCase {
    fn rules(&self) -> RuleSet {
        if self.more.is_empty() {
            return self.rule.rules();
        }
        let named = self.shapes().enumerate().map(|(index, (shape, mode))| {
            let rule = Rule::new_default(shape.algorithm(), shape.limit());
            Rule { name: format!("rule-{index}").into(), mode, ..rule }
        });
        let wide = Limit::new(Limit::MAX_UNITS, Limit::MAX_WINDOW).expect("a valid limit");
        RuleSet::new(Rule::new_default(Algorithm::Gcra, wide), named.collect())
    }

    fn shapes(&self) -> impl Iterator<Item = (Shape, Mode)> {
        std::iter::once((self.rule, Mode::Enforced)).chain(self.more.iter().copied())
    }

    /// Returns the shortest window: a longer step back counts as a jump of the clock for its rule.
    fn shortest_window(&self) -> Micros {
        let windows = self.shapes().map(|(shape, _)| shape.limit().window());
        windows.min().expect("a rule")
    }
}

/// A rule before its values are clamped to the bounds of its algorithm.
#[derive(Clone, Copy, Debug)]
struct Shape {
    algorithm: usize,
    units: u64,
    window_ms: u64,
    /// The burst as a percentage of the units.
    burst_percent: u64,
    /// The maximum debt as a percentage of the units.
    debt_percent: Option<u64>,
}

#[derive(Clone, Debug)]
struct Step {
    advance: Advance,
    /// Which of the earlier requests is refunded before the requests of this step, if any.
    refunds: Option<Index>,
    /// The rule from this step on, if it changes.
    rule: Option<Shape>,
    /// The requests of this step, each for another id.
    requests: Vec<(Cost, Verb)>,
}

#[derive(Clone, Copy, Debug)]
enum Advance {
    Micros(u64),
    /// Forward by thousandths of the window.
    Window(u64),
    /// To the end of the last announced wait, or a microsecond before.
    LastWait {
        too_early: bool,
    },
    /// Back by thousandths of the window, up to one window.
    Back(u64),
}

/// The action of a request. Without debt a report is a take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Take,
    Look,
    Report,
}

#[derive(Clone, Copy, Debug)]
enum Cost {
    Units(u32),
    /// A percentage of the burst; 101 is one unit more than the burst.
    Share(u64),
}

impl Shape {
    fn limit(self) -> Limit {
        let algorithm = self.algorithm();
        let most = if algorithm == Algorithm::SlidingWindowLog { 300 } else { Limit::MAX_UNITS };
        let limit = Limit::new(self.units.min(most), Micros::from_millis(self.window_ms));
        let limit = limit.expect("a valid limit");
        let burst = (limit.units() * self.burst_percent / 100).max(1);
        let limit =
            if algorithm.has_burst() { limit.with_burst(burst).unwrap_or(limit) } else { limit };
        match self.debt_percent {
            Some(percent) => limit.with_max_debt(limit.units() * percent / 100),
            None => Ok(limit),
        }
        .expect("at most one limit")
    }

    /// Returns `true` if two rules use the same keys in Redis. Fixed windows have one key per
    /// window:
    /// after a change to other keys and back, Redis would find states that memory has replaced.
    fn shares_keys_with(self, other: &Self) -> bool {
        let keys = |shape: &Self| shape.algorithm().keyed_by_window().then_some(shape.window_ms);
        keys(&self) == keys(other)
    }

    fn algorithm(self) -> Algorithm {
        Algorithm::ALL[self.algorithm]
    }

    fn rules(self) -> RuleSet {
        RuleSet::new(Rule::new_default(self.algorithm(), self.limit()), Vec::new())
    }
}

fn shape() -> impl Strategy<Value = Shape> {
    let units = prop_oneof![
        4 => 1..=10_u64,
        2 => prop::sample::select(vec![100, 999_983, 3_000_000, 1_000_000_000]),
        1 => 1..=1_000_000_000_u64,
    ];
    let window_ms = prop_oneof![
        4 => prop::sample::select(vec![1, 2, 7, 100, 1_000, 60_000, DAY_MS, 366 * DAY_MS]),
        1 => 1..=366 * DAY_MS,
    ];
    let burst_percent = prop::sample::select(vec![100, 100, 1, 50, 150, 250]);
    let debt_percent = prop::sample::select(vec![None, None, Some(0), Some(50), Some(100)]);
    (0..Algorithm::ALL.len(), units, window_ms, burst_percent, debt_percent).prop_map(
        |(algorithm, units, window_ms, burst_percent, debt_percent)| Shape {
            algorithm,
            units,
            window_ms,
            burst_percent,
            debt_percent,
        },
    )
}

fn step(rules: Rules) -> impl Strategy<Value = Step> {
    let advance = prop_oneof![
        2 => Just(Advance::Micros(0)),
        2 => (0..=3_000_u64).prop_map(Advance::Micros),
        4 => (0..=1_200_u64).prop_map(Advance::Window),
        1 => (1_200..=4_000_u64).prop_map(Advance::Window),
        4 => any::<bool>().prop_map(|too_early| Advance::LastWait { too_early }),
        // A step back may revive a state that has expired, unless it was swept already. A changed
        // rule could tell the difference.
        1 => (0..=1_000_u64).prop_map(move |thousandths| match rules {
            Rules::Stay => Advance::Back(thousandths),
            Rules::Change => Advance::Window(thousandths),
        }),
    ];
    let cost = prop_oneof![
        6 => Just(Cost::Units(1)),
        1 => Just(Cost::Units(0)),
        2 => (2..=5_u32).prop_map(Cost::Units),
        1 => Just(Cost::Units(u32::MAX)),
        4 => (1..=101_u64).prop_map(Cost::Share),
    ];
    let verb = prop_oneof![7 => Just(Verb::Take), 2 => Just(Verb::Look), 3 => Just(Verb::Report)];
    let requests = prop::collection::vec((cost, verb), 1..=4);
    let rule = match rules {
        Rules::Stay => Just(None).boxed(),
        Rules::Change => prop::option::weighted(0.05, shape()).boxed(),
    };
    (advance, rule, requests).prop_map(|(advance, rule, requests)| Step {
        advance,
        refunds: None,
        rule,
        requests,
    })
}

/// Whether rules change while states exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rules {
    Stay,
    Change,
}

fn case(rules: Rules) -> impl Strategy<Value = DifferentialCase> {
    (shape(), prop::collection::vec(step(rules), 1..=80))
        .prop_map(|(rule, steps)| DifferentialCase { rule, more: Vec::new(), steps })
}

/// Generates cases with two to four rules on each request.
fn case_of_many() -> impl Strategy<Value = DifferentialCase> {
    let modes = prop_oneof![3 => Just(Mode::Enforced), 1 => Just(Mode::Shadow)];
    let more = prop::collection::vec((shape(), modes), 1..=3);
    (shape(), more, prop::collection::vec(step(Rules::Stay), 1..=40))
        .prop_map(|(rule, more, steps)| DifferentialCase { rule, more, steps })
}

/// Adds occasional refunds to the steps of a case.
fn with_refunds(
    case: impl Strategy<Value = DifferentialCase>,
) -> impl Strategy<Value = DifferentialCase> {
    let which = prop::option::weighted(0.4, any::<Index>());
    (case, prop::collection::vec(which, 80)).prop_map(|(mut case, refunds)| {
        for (step, refunds) in case.steps.iter_mut().zip(refunds) {
            step.refunds = refunds;
        }
        case
    })
}

/// A request that was allowed and took its cost.
struct TakenRequest {
    id: usize,
    cost: algorithm::Cost,
    decisions: Vec<Decision>,
}

/// Both stores and the model.
struct StorePair {
    memory: Arc<Service>,
    redis: Arc<Service>,
    /// Present until the rule changes, and only in cases without refunds.
    model: Option<Model>,
    /// The mode of each rule.
    modes: Vec<Mode>,
    /// Requests that were not refunded yet.
    taken: Vec<TakenRequest>,
    rule: Shape,
    window: Micros,
    now: Timestamp,
    /// The latest time so far, in microseconds.
    latest: u64,
    last_wait: Micros,
}

impl StorePair {
    fn new(case: &DifferentialCase, server: &Arc<RedisServer>) -> Self {
        server.query::<()>(&["FLUSHALL"]);
        let rule = case.rule;
        // With one shard, memory sees the same sequence of calls as Redis.
        let one_shard = MemorySettings { max_keys: 1_000 };
        let keeps_all = case.steps.iter().all(|step| step.refunds.is_none());
        let has_model = case.more.is_empty() && keeps_all;
        Self {
            memory: Arc::new(Service::on_bounded_memory(case.rules(), one_shard)),
            redis: Arc::new(Service::on_redis(case.rules(), Arc::clone(server))),
            model: has_model.then(|| Model::new(rule.algorithm(), &rule.limit())),
            modes: case.shapes().map(|(_, mode)| mode).collect(),
            taken: Vec::new(),
            rule,
            window: case.shortest_window(),
            now: T0,
            latest: T0.as_micros(),
            last_wait: Micros::ZERO,
        }
    }

    async fn take(&mut self, step: &Step) -> Result<usize, TestCaseError> {
        if let Some(rule) = step.rule.filter(|rule| self.rule.shares_keys_with(rule)) {
            self.rule = rule;
            self.window = rule.limit().window();
            self.model = None;
            self.memory.limiter.replace_rules(rule.rules());
            self.redis.limiter.replace_rules(rule.rules());
        }
        self.advance(step.advance);
        if let Some(which) = step.refunds.filter(|_| !self.taken.is_empty()) {
            let taken = self.taken.swap_remove(which.index(self.taken.len()));
            self.refund(&taken).await?;
        }
        // Redis gets all requests at once, so that they are pipelined. Their ids differ.
        let mut requests = JoinSet::new();
        let actions: Vec<Action> =
            step.requests.iter().map(|request| self.action(request)).collect();
        for (id, action) in actions.iter().copied().enumerate() {
            let redis = Arc::clone(&self.redis);
            requests.spawn(async move { (id, decide(&redis, id, action).await) });
        }
        let mut on_redis = requests.join_all().await;
        on_redis.sort_by_key(|(id, _)| *id);
        for ((id, on_redis), action) in on_redis.into_iter().zip(actions) {
            let on_memory = decide(&self.memory, id, action).await;
            let context = format!("id {id}, {action:?}, at {:?}", self.now);
            prop_assert_eq!(&on_memory, &on_redis, "memory and Redis: {}", context);
            if let Some(model) = &mut self.model {
                let id = u8::try_from(id).expect("few ids");
                let expected = model.act(id, self.now, action);
                prop_assert_eq!(&on_memory, &[expected], "memory and the model: {}", context);
            }
            let stops =
                |(mode, one): (&Mode, &Decision)| *mode == Mode::Enforced && !one.is_allowed();
            if let Action::Take(cost) = action
                && !self.modes.iter().zip(&on_memory).any(stops)
            {
                self.taken.push(TakenRequest { id, cost, decisions: on_memory.clone() });
            }
            for decision in on_memory {
                if let Outcome::Denied { retry_after } = decision.outcome {
                    self.last_wait = retry_after;
                }
            }
        }
        Ok(step.requests.len())
    }

    /// Refunds a request on both stores. The windows of its rules may have passed.
    async fn refund(&self, taken: &TakenRequest) -> TestCaseResult {
        let TakenRequest { id, cost, decisions } = taken;
        let name = id.to_string();
        let on_memory = self.memory.refund_decisions(&name, cost.units(), decisions).await;
        let on_redis = self.redis.refund_decisions(&name, cost.units(), decisions).await;
        for (on_memory, on_redis) in on_memory.iter().zip(&on_redis) {
            prop_assert_eq!(on_memory.at, on_redis.at);
            let is_debt = (on_memory.remaining < 0, on_redis.remaining < 0);
            prop_assert_eq!(is_debt, (!on_memory.is_allowed(), !on_redis.is_allowed()));
        }
        let (on_memory, on_redis) =
            (decide(&self.memory, *id, LOOK).await, decide(&self.redis, *id, LOOK).await);
        prop_assert_eq!(on_memory, on_redis, "id {} after a refund of {:?}", id, cost);
        Ok(())
    }

    fn advance(&mut self, advance: Advance) {
        let window = self.window.as_micros();
        let part = |thousandths: u64| {
            let micros = u128::from(window) * u128::from(thousandths) / 1000;
            u64::try_from(micros).expect("a few windows")
        };
        let now = self.now.as_micros();
        let moved = match advance {
            Advance::Micros(micros) => now + micros,
            Advance::Window(thousandths) => now + part(thousandths),
            Advance::LastWait { too_early } => {
                (now + self.last_wait.as_micros()).saturating_sub(u64::from(too_early)).max(now)
            }
            // The stores follow a clock that jumps back further, but then remember different
            // states:
            // memory has one window of an id, Redis has each window until it expires.
            Advance::Back(thousandths) => (now - part(thousandths)).max(self.latest - window),
        };
        self.now = Timestamp::from_micros(moved);
        self.latest = self.latest.max(moved);
        self.memory.set_clock(self.now);
        self.redis.set_clock(self.now);
    }

    fn action(&self, (cost, verb): &(Cost, Verb)) -> Action {
        let cost = algorithm::Cost::new(self.units(*cost));
        match verb {
            Verb::Report if self.rule.debt_percent.is_some() => Action::Report(cost),
            Verb::Take | Verb::Report => Action::Take(cost),
            Verb::Look => Action::Peek(cost),
        }
    }

    fn units(&self, cost: Cost) -> u32 {
        match cost {
            Cost::Units(units) if self.rule.algorithm() == Algorithm::SlidingWindowLog => {
                units.min(1_000_000)
            }
            Cost::Units(units) => units,
            Cost::Share(percent) => {
                let burst = self.rule.limit().burst();
                let units = if percent > 100 { burst + 1 } else { burst * percent / 100 };
                u32::try_from(units).expect("a burst is below 2^32")
            }
        }
    }
}

const LOOK: Action = Action::Peek(algorithm::Cost::NONE);

/// Returns the decision of each rule, ordered by name.
async fn decide(service: &Service, id: usize, action: Action) -> Vec<Decision> {
    let (id, cost) = (id.to_string(), Some(action.cost().units()));
    let verdict = match action {
        Action::Take(_) => service.verdict(&id, cost, false).await,
        Action::Peek(_) => service.verdict(&id, cost, true).await,
        _ => return service.report(&id, action).await,
    };
    verdict.expect("a verdict").decisions.iter().map(|decided| decided.decision).collect()
}

/// Runs the cases, and returns the number of decisions on each store.
fn run(name: &str, case: impl Strategy<Value = DifferentialCase>, default_cases: u32) -> usize {
    let cases = std::env::var("DIFFERENTIAL_CASES").ok().and_then(|text| text.parse().ok());
    let saved: &'static str =
        Box::leak(format!("tests/it/differential/{name}.txt").into_boxed_str());
    let config = Config {
        cases: cases.unwrap_or(default_cases),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(saved))),
        max_shrink_iters: 3_000,
        ..Config::default()
    };
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let server = Arc::new(RedisServer::start());
    let decisions = Cell::new(0);
    let try_case = |case: DifferentialCase| -> TestCaseResult {
        runtime.block_on(async {
            let mut stores = StorePair::new(&case, &server);
            for step in &case.steps {
                decisions.set(decisions.get() + stores.take(step).await?);
            }
            Ok(())
        })
    };
    if let Err(failure) = TestRunner::new(config).run(&case, try_case) {
        panic!("{failure}");
    }
    decisions.get()
}

#[test]
fn stores_agree_with_the_reference_model() {
    let decisions = run("stay", case(Rules::Stay), 1_100);
    eprintln!("{decisions} decisions on each store");
    assert!(decisions > 100_000 || std::env::var_os("DIFFERENTIAL_CASES").is_some());
}

#[test]
fn stores_agree_when_rules_change() {
    let decisions = run("change", case(Rules::Change), 300);
    eprintln!("{decisions} decisions on each store");
}

#[test]
fn stores_agree_on_refunds() {
    let case = prop_oneof![with_refunds(case(Rules::Stay)), with_refunds(case_of_many())];
    let decisions = run("refunds", case, 300);
    eprintln!("{decisions} requests on each store");
}

#[test]
fn stores_agree_on_requests_with_many_rules() {
    let decisions = run("many", case_of_many(), 300);
    eprintln!("{decisions} requests on each store");
}
