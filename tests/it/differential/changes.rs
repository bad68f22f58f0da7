//! Changed limits of rules with `on-change`: random histories of one to four limits of a rule. Those of
//! files are used in any order, as by instances whose configurations differ. Those with revisions
//! follow each other, and instances may lag by any number of revisions and any time.

use std::num::NonZeroU64;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{TestCaseError, TestCaseResult};
use rlaas::algorithm::{self, Algorithm, Decision, OnChange, Outcome};
use rlaas::clock::{Micros, Timestamp};
use rlaas::rules::{Rule, RuleSet};
use rlaas::store::{Action, MemorySettings};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::{Service, T0};

use super::cases::{Shape, shape};
use super::model::Model;
use super::stores::decide;

/// A history of a rule.
#[derive(Clone, Debug)]
pub(super) struct ChangeCase {
    algorithm: Algorithm,
    policy: OnChange,
    revisions: Revisions,
    shapes: Vec<Shape>,
    steps: Vec<HistoryStep>,
}

/// Which rules have revisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Revisions {
    /// None: they are of files.
    Files,
    /// All of them: they were made at run time.
    RunTime,
    /// Some instances do not know them, as those of an earlier release. Beyond the model.
    Mixed,
}

#[derive(Clone, Debug)]
struct HistoryStep {
    /// Thousandths of the window in force, or the last announced wait.
    advance: Option<u64>,
    /// `None`: the first limit.
    limit: Option<Index>,
    /// Whether the limit is another one than before.
    is_changed: bool,
    /// Set for an instance that lags: the revision that it knows.
    lags: Option<Index>,
    /// Whether the instance knows no revisions, if there are such ones.
    is_early: bool,
    id: u8,
    act: Act,
}

#[derive(Clone, Copy, Debug)]
enum Act {
    /// A percentage of the burst, at least one unit.
    Take(u64),
    Look,
    Report(u64),
    Reset,
    Credit(u32),
    /// Of an earlier request.
    Refund(Index),
}

/// Generates histories. Refunds are beyond the model.
pub(super) fn case_of_changes(
    algorithm: Algorithm,
    at_first_use: bool,
    policy: OnChange,
    with_refunds: bool,
) -> impl Strategy<Value = ChangeCase> {
    let place = Algorithm::RATES.iter().position(|one| *one == algorithm).expect("an algorithm");
    // The limits that are kept carry at most one limit of debt over.
    let shape = move || {
        shape().prop_map(move |shape| Shape {
            algorithm: place,
            debt_percent: shape.debt_percent.map(|percent| percent.min(100)),
            at_first_use,
            ..shape
        })
    };
    // Half of the histories change nothing but the units.
    let same_window = (shape(), prop::collection::vec(shape(), 1..=3)).prop_map(|(first, more)| {
        let Shape { window_ms, debt_percent, .. } = first;
        let more = more.into_iter().map(move |shape| Shape { window_ms, debt_percent, ..shape });
        std::iter::once(first).chain(more).collect()
    });
    let shapes = prop_oneof![same_window, prop::collection::vec(shape(), 2..=4)];
    let refund = any::<Index>().prop_map(Act::Refund);
    let act = prop_oneof![
        8 => prop::sample::select(vec![0, 1, 10, 30, 50, 100, 101]).prop_map(Act::Take),
        2 => Just(Act::Look),
        2 => prop::sample::select(vec![1, 30, 90, 200]).prop_map(Act::Report),
        // How long a reset is on record for refunds is up to the limit at that time.
        u32::from(!with_refunds) => Just(Act::Reset),
        1 => (1..=10_u32).prop_map(Act::Credit),
        if with_refunds { 4 } else { 0 } => refund,
    ];
    let advance = prop_oneof![
        3 => Just(Some(0)),
        4 => (0..=400_u64).prop_map(Some),
        2 => (400..=2_500_u64).prop_map(Some),
        2 => Just(None),
    ];
    let limit = prop_oneof![2 => Just(None), 1 => any::<Index>().prop_map(Some)];
    let lags = prop_oneof![4 => Just(None), 1 => any::<Index>().prop_map(Some)];
    let step = (advance, limit, lags, any::<bool>(), 0..3_u8, act);
    let revisions = prop_oneof![
        3 => Just(Revisions::Files),
        3 => Just(Revisions::RunTime),
        1 => Just(Revisions::Mixed),
    ];
    let parts = (revisions, shapes, prop::collection::vec(step, 1..=60));
    parts.prop_map(move |(revisions, shapes, steps)| {
        let mut last = None;
        let step = |(advance, limit, lags, is_early, id, act): (_, Option<Index>, _, _, _, _)| {
            let is_changed = limit.is_some();
            last = Option::or(limit, last);
            HistoryStep { advance, limit: last, is_changed, lags, is_early, id, act }
        };
        let steps = steps.into_iter().map(step).collect();
        ChangeCase { algorithm, policy, revisions, shapes, steps }
    })
}

/// A limit that some instances have in force, and its revision.
#[derive(Clone, Copy, Debug)]
struct InForce {
    shape: Shape,
    revision: Option<NonZeroU64>,
}

/// Returns rules with one rule whose state is converted by a policy.
fn rules(in_force: InForce, policy: OnChange) -> RuleSet {
    let InForce { shape, revision } = in_force;
    let rule = Rule::new_default(shape.algorithm(), shape.limit());
    RuleSet::new(Rule { on_change: Some(policy), revision, ..rule }, Vec::new())
}

fn units(shape: Shape, percent: u64) -> algorithm::Cost {
    let burst = shape.limit().burst();
    let units = if percent > 100 { burst + 1 } else { (burst * percent).div_ceil(100) };
    algorithm::Cost::new(u32::try_from(units).expect("a burst is below 2^32"))
}

impl ChangeCase {
    /// Takes each step on both stores and in the model. Returns the number of decisions.
    pub(super) async fn run(&self, server: &Arc<RedisServer>) -> Result<usize, TestCaseError> {
        server.query::<()>(&["FLUSHALL"]);
        let first = InForce { shape: self.shapes[0], revision: None };
        let rules_of = |in_force| rules(in_force, self.policy);
        let mut written = vec![first.shape];
        let one_shard = MemorySettings { max_keys: 1_000 };
        let memory = Service::on_bounded_memory(rules_of(first), one_shard);
        let redis = Service::on_redis(rules_of(first), Arc::clone(server));
        let mut model = Model::new(self.algorithm, &first.shape.limit());
        model.keep_limits(self.policy);
        let mut is_modelled = self.revisions != Revisions::Mixed;
        let (mut now, mut wait) = (T0, Micros::ZERO);
        let mut taken: Vec<(u8, algorithm::Cost, Vec<Decision>)> = Vec::new();
        for (number, step) in self.steps.iter().enumerate() {
            let in_force = self.in_force(step, &mut written);
            let shape = in_force.shape;
            let window = shape.limit().window().as_micros();
            let part = |thousandths| {
                u64::try_from(u128::from(window) * u128::from(thousandths) / 1_000).expect("short")
            };
            now = now + step.advance.map_or(wait, |part_of| Micros::from_micros(part(part_of)));
            // Beyond the range of the clock.
            if now > Timestamp::from_millis(4_000_000_000_000) {
                break;
            }
            for service in [&memory, &redis] {
                service.set_clock(now);
                service.limiter.replace_rules(rules_of(in_force));
            }
            let revision = in_force.revision.map_or(0, NonZeroU64::get);
            model.change_limit(&shape.limit(), revision);
            let limit = shape.limit();
            let context = format!("step {number}: {step:?} by {limit:?} of {revision} at {now:?}");
            let id = usize::from(step.id);
            let has_debt = shape.debt_percent.is_some();
            let action = match step.act {
                Act::Look => Action::Peek(algorithm::Cost::ONE),
                Act::Report(percent) if has_debt => Action::Report(units(shape, percent)),
                Act::Take(percent) | Act::Report(percent) => Action::Take(units(shape, percent)),
                Act::Reset => Action::Reset,
                Act::Credit(units) => Action::Credit(algorithm::Cost::new(units)),
                Act::Refund(which) => {
                    is_modelled = false;
                    if !taken.is_empty() {
                        let (id, cost, decisions) = taken.swap_remove(which.index(taken.len()));
                        let id = id.to_string();
                        memory.refund_decisions(&id, cost.units(), &decisions).await;
                        redis.refund_decisions(&id, cost.units(), &decisions).await;
                    }
                    Action::Peek(algorithm::Cost::NONE)
                }
            };
            let on_memory = act(&memory, id, action).await;
            let on_redis = act(&redis, id, action).await;
            prop_assert_eq!(&on_memory, &on_redis, "memory and Redis: {}", context);
            if is_modelled {
                let expected = model.act_keeping_limits(step.id, now, action);
                is_modelled = !model.has_lost_its_way;
                if is_modelled {
                    prop_assert_eq!(&on_memory, &[expected], "memory and the model: {}", context);
                }
            }
            if let (Action::Take(cost), Outcome::Allowed) = (action, on_memory[0].outcome) {
                taken.push((step.id, cost, on_memory.clone()));
            }
            if let Outcome::Denied { retry_after } = on_memory[0].outcome {
                wait = retry_after;
            }
        }
        Ok(self.steps.len())
    }

    /// Returns the limit of a step. `written` has those of all revisions, the first one being 1.
    fn in_force(&self, step: &HistoryStep, written: &mut Vec<Shape>) -> InForce {
        let newest = step.limit.map_or(self.shapes[0], |limit| *limit.get(&self.shapes));
        if self.revisions == Revisions::Files {
            return InForce { shape: newest, revision: None };
        }
        if step.is_changed {
            written.push(newest);
        }
        let position = step.lags.map_or(written.len() - 1, |lags| lags.index(written.len()));
        let knows_none = self.revisions == Revisions::Mixed && step.is_early;
        let revision = NonZeroU64::new(position as u64 + 1).filter(|_| !knows_none);
        InForce { shape: written[position], revision }
    }
}

async fn act(service: &Service, id: usize, action: Action) -> Vec<Decision> {
    match action {
        Action::Reset | Action::Credit(_) => service.report(&id.to_string(), action).await,
        _ => decide(service, id, action).await,
    }
}

/// Two instances whose limits differ, which take turns at random.
#[derive(Clone, Debug)]
pub(super) struct TwoInstances {
    policy: OnChange,
    shapes: [Shape; 2],
    /// Whether the second one has a newer revision.
    has_revisions: bool,
    /// Instance, thousandths of the window before the request, and percentage of the burst.
    steps: Vec<(usize, u64, u64)>,
}

pub(super) fn case_of_two_instances() -> impl Strategy<Value = TwoInstances> {
    let policy = prop::sample::select(OnChange::ALL.to_vec());
    let units = (1..=200_u64, 1..=200_u64);
    let burst = prop::sample::select(vec![100, 100, 50, 250]);
    let step = (0..2_usize, 0..=300_u64, prop::sample::select(vec![0, 1, 20, 60, 100]));
    let steps = prop::collection::vec(step, 1..=60);
    let windows = prop::sample::select(vec![10_u64, 1_000, 60_000]);
    let algorithm = 0..Algorithm::RATES.len();
    (algorithm, policy, units, burst, windows, any::<bool>(), steps).prop_map(
        |(algorithm, policy, units, burst_percent, window_ms, has_revisions, steps)| {
            let shapes = <[u64; 2]>::from(units).map(|units| Shape {
                algorithm,
                units,
                window_ms,
                burst_percent,
                debt_percent: None,
                at_first_use: false,
            });
            TwoInstances { policy, shapes, has_revisions, steps }
        },
    )
}

impl TwoInstances {
    /// Returns the number of requests.
    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Once both instances have counted the key, no more passes than the larger limit allows.
    pub(super) async fn run(&self, server: &Arc<RedisServer>) -> TestCaseResult {
        server.query::<()>(&["FLUSHALL"]);
        server.set_clock(T0);
        let in_force = [0, 1].map(|instance| {
            let revision = NonZeroU64::new(if self.has_revisions { instance + 1 } else { 0 });
            InForce { shape: self.shapes[usize::from(instance == 1)], revision }
        });
        let on_redis =
            in_force.map(|of| Service::on_redis(rules(of, self.policy), Arc::clone(server)));
        let memory = Service::on_memory(rules(in_force[0], self.policy));
        let mut passed: Vec<(Timestamp, u64)> = Vec::new();
        let mut now = T0;
        let warm_up = [(0, 0, 0), (1, 0, 0)];
        // Thousandths of the window since the last request of each instance.
        let mut silent = [0; 2];
        for (number, (instance, thousandths, percent)) in
            warm_up.into_iter().chain(self.steps.iter().copied()).enumerate()
        {
            // Without revisions both count the key: an instance that was silent for a window would
            // convert the state.
            let must_count = !self.has_revisions && silent[1 - instance] + thousandths >= 600;
            let instance = if must_count { 1 - instance } else { instance };
            silent = silent.map(|since| since + thousandths);
            silent[instance] = 0;
            let shape = self.shapes[instance];
            now = now + Micros::from_micros(shape.window_ms * thousandths);
            on_redis[instance].set_clock(now);
            memory.set_clock(now);
            memory.limiter.replace_rules(rules(in_force[instance], self.policy));
            let action = Action::Take(units(shape, percent.max(1)));
            let decisions = decide(&on_redis[instance], 0, action).await;
            prop_assert_eq!(&decisions, &decide(&memory, 0, action).await, "step {}", number);
            if decisions[0].is_allowed() && number >= warm_up.len() {
                passed.push((now, action.cost().units()));
            }
        }
        self.check(&passed)
    }

    fn check(&self, passed: &[(Timestamp, u64)]) -> TestCaseResult {
        let limits = self.shapes.map(Shape::limit);
        let window = limits[0].window();
        let most = limits[0].units().max(limits[1].units());
        let burst = limits[0].burst().max(limits[1].burst());
        for (at, (start, _)) in passed.iter().enumerate() {
            let mut sum = 0;
            for (end, units) in &passed[at..] {
                sum += units;
                let span = end.since(*start);
                let allowed = match self.shapes[0].algorithm() {
                    Algorithm::FixedWindow => {
                        let windows = algorithm::window_index(*end, window)
                            - algorithm::window_index(*start, window);
                        most * (1 + windows)
                    }
                    // Entries have whole milliseconds.
                    Algorithm::SlidingWindowLog
                        if end.as_millis() - start.as_millis() < window.as_millis() =>
                    {
                        most
                    }
                    // In the worst case a window and its successor.
                    Algorithm::SlidingWindowCounter if span < window => 2 * most,
                    Algorithm::SlidingWindowLog | Algorithm::SlidingWindowCounter => continue,
                    _ => {
                        let refilled = most * span.as_micros() / window.as_micros();
                        burst + refilled + 1
                    }
                };
                prop_assert!(
                    sum <= allowed,
                    "{} of {} from {:?} to {:?}",
                    sum,
                    allowed,
                    start,
                    end
                );
            }
        }
        Ok(())
    }
}
