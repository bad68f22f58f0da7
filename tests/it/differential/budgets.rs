//! Random histories of requests that take what is there, and of such that leave units to others, on both stores. A third limiter in memory has plain rules,
//! and is asked step by step for what the specification says in one: all answers are equal.

use std::sync::Arc;

use proptest::prelude::*;
use rlaas::algorithm::{Algorithm, Cost, Decision, Limit};
use rlaas::clock::{Deadline, Micros, Timestamp};
use rlaas::rules::spec::RuleSpec;
use rlaas::rules::{Costs, Request, RuleSet};
use rlaas_limiter::{KeyChange, OpenReservation, Reserved, RuleDecision, Verdict};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::Service;

use super::trio::{OpenOnEach, STEP_BACK, Trio, set_override, with_wide_default};

/// The user of [`BudgetRule::by_file`].
const BY_FILE: u8 = 1;

#[derive(Clone, Debug)]
struct BudgetRule {
    algorithm: &'static str,
    units: u64,
    burst: Option<u64>,
    /// Units of the user [`BY_FILE`].
    by_file: Option<u64>,
    share_ppm: Option<u32>,
    /// What requests of a batch leave to others.
    headroom_ppm: Option<u32>,
    own_cost: Option<u32>,
    holds: bool,
    /// Other fields.
    more: String,
}

#[derive(Clone, Debug)]
pub(super) struct BudgetCase {
    rules: Vec<BudgetRule>,
    overridable: bool,
    acts: Vec<(i64, BudgetAct)>,
}

#[derive(Clone, Debug)]
enum BudgetAct {
    Request(WantedUnits),
    Report { user: u8, cost: u32 },
    Extend { which: prop::sample::Index, cost: u32, seconds: Option<u64> },
    Settle { which: prop::sample::Index, actual: Option<u32>, counts_ended: bool },
    Override { user: u8, grant: Option<u64>, seconds: u64 },
    Refund { user: u8, units: u32 },
    Limit { which: prop::sample::Index, units: u64 },
}

/// A request: a reservation for some seconds, or a check.
#[derive(Clone, Copy, Debug)]
struct WantedUnits {
    user: u8,
    cost: u32,
    at_least: u32,
    is_batch: bool,
    dry_run: bool,
    seconds: Option<u64>,
}

/// A reservation as each limiter has it, and the request.
struct Held {
    open: OpenOnEach,
    wanted: WantedUnits,
}

/// An answer to a request, without what differs between limiters.
#[derive(Debug, PartialEq)]
struct BudgetAnswer {
    decisions: String,
    taken: Option<u64>,
    ends_at: Option<Timestamp>,
}

impl BudgetRule {
    fn spec(&self, index: usize, overridable: bool, is_plain: bool) -> RuleSpec {
        let Self { algorithm, units, burst, more, .. } = self;
        let burst = burst.map_or(String::new(), |burst| format!(", burst: {burst}"));
        let percent = |ppm: u32| format!("{}.{:04}%", ppm / 10_000, ppm % 10_000);
        let share = self.share_ppm.filter(|_| !is_plain);
        let share = share.map_or(String::new(), |ppm| format!(", hold-share: {}", percent(ppm)));
        let by_file = self.by_file;
        let by_file =
            by_file.map(|units| format!("{{match: {{user-id: '{BY_FILE}'}}, limit: {units}}}"));
        let headroom = self.headroom_ppm.filter(|_| !is_plain).map(|ppm| {
            format!("{{match: {{attributes: {{tier: batch}}}}, headroom: {}}}", percent(ppm))
        });
        let overrides: Vec<String> = by_file.into_iter().chain(headroom).collect();
        let by_file = format!(", overrides: [{}]", overrides.join(", "));
        let own = self.own_cost.map_or(String::new(), |cost| format!(", cost: {cost}"));
        let near = if self.algorithm().has_slots() { "" } else { ", near-limit: 0.8" };
        let text = format!(
            "{{name: r{index}, algorithm: {algorithm}, limit: {units}{burst}{more}{share}{by_file}{own}, \
             overridable: {overridable}{near}}}"
        );
        serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn algorithm(&self) -> Algorithm {
        Algorithm::from_name(self.algorithm).expect("an algorithm")
    }

    /// Returns what a user may use at once. `granted` is what an override of the key grants.
    fn most_at_once(&self, user: u8, granted: Option<u64>) -> u64 {
        let by_file = self.by_file.filter(|_| user == BY_FILE);
        granted.or(by_file).unwrap_or(self.burst.unwrap_or(self.units))
    }

    /// Returns `true` if a request takes its own cost from the rule.
    fn takes_cost(&self) -> bool {
        self.own_cost.is_none() && !self.algorithm().has_slots()
    }

    /// Returns what a request leaves to others.
    fn left_to_others(&self, wanted: WantedUnits, most_at_once: u64) -> u64 {
        let share = self.headroom_ppm.filter(|_| wanted.is_batch).map_or(0, u128::from);
        u64::try_from(u128::from(most_at_once) * share / 1_000_000).expect("a part")
    }

    /// Returns the most that a reservation holds.
    fn most_held(&self, most_at_once: u64) -> Option<u64> {
        let share = u128::from(self.share_ppm?);
        let part = u128::from(most_at_once) * share / 1_000_000;
        Some(u64::try_from(part).expect("a part").max(1))
    }
}

fn part() -> impl Strategy<Value = u32> {
    prop_oneof![
        3 => prop::sample::select(vec![10_000, 100_000, 200_000, 333_333, 500_000, 1_000_000]),
        1 => 10_000..=1_000_000_u32,
    ]
}

fn rule() -> impl Strategy<Value = BudgetRule> {
    let units = prop_oneof![4 => 1..=30_u64, 1 => 31..=3_000_000_u64];
    let modes = prop::sample::select(vec!["", "", "", ", mode: shadow", ", enforce: 25%"]);
    let debts = prop_oneof![2 => Just(String::new()), 1 => (0..=8_u8).prop_map(|most| format!(", max-debt: {most}"))];
    let algorithms =
        ["fixed-window", "sliding-window-counter", "token-bucket", "leaky-bucket", "gcra"];
    let windows = prop::sample::select(vec![
        ", window: 60s",
        ", window: 60s",
        ", calendar: {unit: day, zone: Europe/Berlin}",
        ", window: 60s, window-from: first-use",
    ]);
    let kept = prop::sample::select(vec!["", "", ", on-change: keep-used", ", on-change: scale"]);
    let own_cost = || prop::option::weighted(0.15, 1..=3_u32);
    let numbers = (
        units.clone(),
        prop::option::of(1..=60_u64),
        prop::option::weighted(0.3, units.clone()),
        own_cost(),
    );
    let all = (
        prop::sample::select(algorithms.to_vec()),
        numbers,
        (prop::option::weighted(0.6, part()), prop::option::weighted(0.6, part())),
        prop::bool::weighted(0.7),
        (modes.clone(), debts, windows, kept),
    );
    let rates = all.prop_map(|(algorithm, numbers, shares, holds, others)| {
        let (share_ppm, headroom_ppm) = shares;
        let ((units, burst, by_file, own_cost), (mode, debt, window, kept)) = (numbers, others);
        let is_window = algorithm == "fixed-window";
        let window = if is_window { window } else { ", window: 60s" };
        let kept = if window.contains("calendar") { "" } else { kept };
        let has_burst = Algorithm::from_name(algorithm).expect("an algorithm").has_burst();
        let holding = format!(", reservable: true, hold: 90s, max-holds: 1000{debt}");
        let holding = if holds { holding } else { String::new() };
        BudgetRule {
            algorithm,
            units,
            burst: burst.filter(|_| has_burst),
            by_file,
            share_ppm: share_ppm.filter(|_| holds),
            headroom_ppm,
            own_cost,
            holds,
            more: format!("{window}{holding}{mode}{kept}"),
        }
    });
    let headroom = || prop::option::weighted(0.5, part());
    let slots = (1..=9_u64, modes.clone(), headroom());
    let slots = slots.prop_map(|(units, mode, headroom_ppm)| BudgetRule {
        algorithm: "concurrency",
        units,
        burst: None,
        by_file: None,
        share_ppm: None,
        headroom_ppm,
        own_cost: None,
        holds: true,
        more: format!(", hold: 90s{mode}"),
    });
    let logs = (units, modes, own_cost(), headroom());
    let logs = logs.prop_map(|(units, mode, own_cost, headroom_ppm)| BudgetRule {
        algorithm: "sliding-window-log",
        units: units.min(300),
        burst: None,
        by_file: None,
        share_ppm: None,
        headroom_ppm,
        own_cost,
        holds: false,
        more: format!(", window: 60s{mode}"),
    });
    prop_oneof![6 => rates, 1 => slots, 1 => logs]
}

/// Returns a rule that is always enforced, so that the default rule does not apply.
fn wide() -> BudgetRule {
    BudgetRule {
        algorithm: "gcra",
        units: Limit::MAX_UNITS,
        burst: None,
        by_file: None,
        share_ppm: None,
        headroom_ppm: None,
        own_cost: None,
        holds: false,
        more: ", window: 60s".to_owned(),
    }
}

fn wanted() -> impl Strategy<Value = WantedUnits> {
    let cost = prop_oneof![6 => 0..=12_u32, 4 => 0..=100_u32, 1 => Just(u32::MAX)];
    let at_least = prop_oneof![2 => Just(0_u32), 4 => 1..=3_u32, 2 => 1..=20_u32];
    let seconds = prop::option::of(1..=100_u64);
    let all = (0..=2_u8, cost, at_least, any::<bool>(), prop::bool::weighted(0.1), seconds);
    all.prop_map(|(user, cost, at_least, is_batch, dry_run, seconds)| {
        let at_least = at_least.min(cost);
        WantedUnits { user, cost, at_least, is_batch, dry_run, seconds }
    })
}

fn act() -> impl Strategy<Value = BudgetAct> {
    let user = || 0..=2_u8;
    let which = any::<prop::sample::Index>;
    let seconds = || 1..=100_u64;
    prop_oneof![
        10 => wanted().prop_map(BudgetAct::Request),
        1 => (user(), 0..=6_u32).prop_map(|(user, cost)| BudgetAct::Report { user, cost }),
        2 => (which(), 0..=12_u32, prop::option::of(seconds()))
            .prop_map(|(which, cost, seconds)| BudgetAct::Extend { which, cost, seconds }),
        4 => (which(), prop::option::weighted(0.7, 0..=40_u32), any::<bool>())
            .prop_map(|(which, actual, counts_ended)| BudgetAct::Settle { which, actual, counts_ended }),
        1 => (user(), prop::option::weighted(0.8, 1..=60_u64), seconds())
            .prop_map(|(user, grant, seconds)| BudgetAct::Override { user, grant, seconds }),
        1 => (user(), 1..=12_u32).prop_map(|(user, units)| BudgetAct::Refund { user, units }),
        1 => (which(), 1..=40_u64).prop_map(|(which, units)| BudgetAct::Limit { which, units }),
    ]
}

pub(super) fn case_of_budgets() -> impl Strategy<Value = BudgetCase> {
    let micros = prop_oneof![
        3 => Just(0_i64),
        3 => 0..=2_000_000_i64,
        3 => 0..=45_000_000_i64,
        1 => -STEP_BACK.cast_signed()..=0,
    ];
    let acts = prop::collection::vec((micros, act()), 1..=40);
    (prop::collection::vec(rule(), 1..=4), any::<bool>(), acts).prop_map(
        |(mut rules, overridable, acts)| {
            // A key that an override decides would be changed after it has ended.
            let without_kept = |rule: &mut BudgetRule| {
                let kept = rule.more.find(", on-change").unwrap_or(rule.more.len());
                rule.more.truncate(kept);
            };
            if overridable {
                rules.iter_mut().for_each(without_kept);
            }
            rules.push(wide());
            BudgetCase { rules, overridable, acts }
        },
    )
}

/// The limiters, the third with plain rules, and what is held.
struct BudgetLimiters {
    case: BudgetCase,
    trio: Trio,
    held: Vec<Held>,
    /// Overrides of users with their ends. `None` is unlimited.
    granted: [Option<(Option<u64>, Timestamp)>; 3],
}

impl BudgetCase {
    fn rules(&self, is_plain: bool) -> RuleSet {
        let rules = self.rules.iter().enumerate().map(|(index, rule)| {
            rule.spec(index, self.overridable, is_plain).build().expect("a rule")
        });
        with_wide_default(rules.collect(), self.overridable)
    }

    fn has_slots(&self) -> bool {
        self.rules.iter().any(|rule| rule.algorithm().has_slots())
    }
}

/// Runs a case. Returns how many requests took less than their cost.
pub(super) async fn run(
    case: BudgetCase,
    server: &Arc<RedisServer>,
) -> Result<usize, TestCaseError> {
    let difference = "in one step and in several";
    let trio = Trio::new(server, &case.rules(false), case.rules(true), difference);
    let (acts, overridable) = (case.acts.clone(), case.overridable);
    let mut limiters = BudgetLimiters { case, trio, held: Vec::new(), granted: [None; 3] };
    let mut cut = 0;
    for (micros, act) in acts {
        // A step back may revive an override, too.
        let micros = if overridable { micros.max(0) } else { limiters.trio.clock.step(micros) };
        if micros < 0 {
            // Memory does not note the time of a call that finds no reservation.
            let (user, cost, at_least, dry_run, seconds) = (0, 0, 0, false, None);
            let look = WantedUnits { user, cost, at_least, is_batch: false, dry_run, seconds };
            limiters.take(BudgetAct::Request(look)).await?;
        }
        limiters.trio.advance(micros);
        cut += usize::from(limiters.take(act).await?);
    }
    Ok(cut)
}

impl BudgetLimiters {
    /// Takes an act on all limiters. Returns `true` if less than a cost is taken.
    async fn take(&mut self, act: BudgetAct) -> Result<bool, TestCaseError> {
        let context = format!("{act:?} at {:?}", self.trio.clock.now);
        match act {
            BudgetAct::Request(wanted) => return self.request(wanted, &context).await,
            BudgetAct::Report { user, cost } => {
                let user = user.to_string();
                let request = Request::user(&user).cost(cost).build().expect("a request");
                self.trio.report(&request, &context).await?;
            }
            BudgetAct::Extend { which, cost, seconds } => {
                let Some(Held { open, .. }) = which_of(which, &self.held) else {
                    return Ok(false);
                };
                self.trio.extend(open, cost, seconds, &context).await?;
            }
            BudgetAct::Settle { which, actual, counts_ended } => {
                let Some(Held { open, wanted }) = which_of(which, &self.held) else {
                    return Ok(false);
                };
                let user = wanted.user.to_string();
                let request = Request::user(&user).cost(wanted.cost).build().expect("a request");
                let request = counts_ended.then_some(&request);
                self.trio.settle(open, actual, request, &context).await?;
            }
            BudgetAct::Override { user, grant, seconds } if self.case.overridable => {
                let ttl = Micros::from_secs(seconds);
                self.trio.change(user, &set_override(grant, ttl)).await;
                self.granted[usize::from(user)] = Some((grant, self.trio.clock.now + ttl));
            }
            BudgetAct::Override { .. } => {}
            BudgetAct::Refund { user, units } => {
                self.trio.change(user, &KeyChange::Refund(Cost::new(units))).await;
            }
            BudgetAct::Limit { which, units } => {
                let rule = which.index(self.case.rules.len() - 1);
                self.case.rules[rule].units = units;
                let rules = [false, false, true].map(|is_plain| self.case.rules(is_plain));
                for (service, rules) in self.trio.services.iter().zip(rules) {
                    service.limiter.replace_rules(rules);
                }
                // What changes the keys: a denial does so in one step, but not in several.
                for user in 0..=2 {
                    self.trio.change(user, &KeyChange::Refund(Cost::ONE)).await;
                }
            }
        }
        Ok(false)
    }

    async fn request(&mut self, wanted: WantedUnits, context: &str) -> Result<bool, TestCaseError> {
        let wanted = match wanted.seconds {
            // A Check takes no slots.
            None if self.case.has_slots() => WantedUnits { seconds: Some(60), ..wanted },
            _ => wanted,
        };
        let name = wanted.user.to_string();
        let tier: &[(&str, &str)] = if wanted.is_batch { &[("tier", "batch")] } else { &[] };
        let request = Request::user(&name).cost(wanted.cost).attributes(tier);
        let request = if wanted.dry_run { request.dry_run() } else { request };
        let request = request.build().expect("a request").with_at_least(wanted.at_least.into());
        let request = request.expect("at most the cost");
        let (mut answers, mut opens) = (Vec::new(), Vec::new());
        for service in &self.trio.services[..2] {
            let Reserved { verdict, reservation } =
                answer_to(service, &request, wanted.seconds).await;
            answers.push(BudgetAnswer {
                decisions: format!("{:?}", verdict.decisions),
                taken: verdict.taken,
                ends_at: reservation.as_ref().map(|open| open.ends_at),
            });
            opens.extend(reservation);
        }
        let (answer, open) = self.by_steps(wanted, &request).await;
        let is_cut = answer.taken.is_some_and(|taken| 0 < taken && taken < wanted.cost.into());
        answers.push(answer);
        opens.extend(open);
        self.trio.equal(&answers, context)?;
        self.trio.clock.ends.extend(answers[0].ends_at);
        if let Ok(open) = OpenOnEach::try_from(opens) {
            self.held.push(Held { open, wanted });
        }
        Ok(is_cut)
    }

    /// Answers a request step by step on the limiter with plain rules.
    async fn by_steps(
        &self,
        wanted: WantedUnits,
        request: &Request<'_>,
    ) -> (BudgetAnswer, Option<OpenReservation>) {
        let (twin, rules) = (&self.trio.services[2], &self.case.rules);
        let granted =
            self.granted[usize::from(wanted.user)].filter(|(_, end)| self.trio.clock.now < *end);
        let granted = granted.and_then(|(grant, _)| grant);
        let most_at_once: Vec<u64> =
            rules.iter().map(|rule| rule.most_at_once(wanted.user, granted)).collect();
        let is_reserve = wanted.seconds.is_some();
        // Returns what a rule decides on, for a request of this cost.
        let units_for = |at: usize, cost: u64| {
            let rule: &BudgetRule = &rules[at];
            let own = if wanted.cost == 0 { None } else { rule.own_cost.map(u64::from) };
            let own = own.or((rule.algorithm().has_slots() && wanted.cost > 0).then_some(1));
            let cost = own.unwrap_or(cost);
            rule.most_held(most_at_once[at])
                .filter(|_| is_reserve)
                .map_or(cost, |most| cost.min(most))
        };
        let least = if wanted.at_least > 0 { wanted.at_least } else { wanted.cost };
        let kept = |at: usize| rules[at].left_to_others(wanted, most_at_once[at]);
        // Returns what a rule decides on for the fewest units, beside what is left to others.
        let first_units = |at: usize| match units_for(at, least.into()) {
            0 => 0,
            units => units + kept(at),
        };
        let first = self.dry(wanted, (0..rules.len()).map(first_units).collect()).await;
        let alone = (0..rules.len()).map(|at| units_for(at, least.into())).collect();
        let alone = self.dry(wanted, alone).await;
        let looks = self.dry(wanted, vec![0; rules.len()]).await;
        let has_at_least = wanted.at_least > 0;
        let is_allowed = first.is_allowed();

        let left = |at: usize| {
            let decided = &looks.decisions[at];
            decided.remaining().map(|left| {
                let most = decided.algorithm.max_cost().into();
                let left = u64::try_from(left).unwrap_or_default();
                left.saturating_sub(kept(at)).min(most)
            })
        };
        let mut units = u64::from(wanted.cost);
        if has_at_least {
            for (at, rule) in rules.iter().enumerate() {
                let cap = rule.most_held(most_at_once[at]).filter(|_| is_reserve);
                let bound = left(at).filter(|left| cap.is_none_or(|cap| *left < cap));
                if rule.takes_cost() && !first.decisions[at].mode.is_shadow() {
                    units = units.min(bound.unwrap_or(units));
                }
            }
        }
        let costs = (0..rules.len()).map(|at| {
            let (rule, decided) = (&rules[at], &first.decisions[at]);
            let allows = decided.decision.is_allowed();
            match (allows, is_allowed) {
                // It counts as an attempt.
                (false, _)
                    if !has_at_least
                        && !rule.holds
                        && !alone.decisions[at].decision.is_allowed() =>
                {
                    units_for(at, wanted.cost.into())
                }
                // Denied in shadow, and not held.
                (false, true) if rule.holds && is_reserve => first_units(at),
                (false, _) | (true, false) => 0,
                (true, true) if !rule.takes_cost() || !has_at_least => {
                    units_for(at, wanted.cost.into())
                }
                (true, true) => {
                    let own = left(at).filter(|_| decided.mode.is_shadow());
                    units_for(at, units.min(own.unwrap_or(units)))
                }
            }
        });
        let costs = costs.collect();
        let seconds = wanted.seconds.filter(|_| is_allowed);
        let Reserved { verdict, reservation } = if wanted.dry_run || wanted.cost == 0 {
            Reserved { verdict: looks, reservation: None }
        } else {
            let wanted = WantedUnits { at_least: 0, ..wanted };
            named(wanted, costs, async |request| answer_to(twin, request, seconds).await).await
        };
        let decided = first.decisions.iter().zip(&verdict.decisions).enumerate();
        let decisions = decided.map(|(at, (first, real))| {
            let mut decision = Decision { outcome: first.decision.outcome, ..real.decision };
            if rules[at].headroom_ppm.is_some() && wanted.is_batch && real.remaining().is_some() {
                decision.remaining = (decision.remaining - kept(at).cast_signed()).max(0);
            }
            RuleDecision { decision, is_held: first.is_held, ..real.clone() }
        });
        let decisions: Vec<RuleDecision> = decisions.collect();
        let taken = request.at_least().map(|_| if is_allowed { units } else { 0 });
        let ends_at = reservation.as_ref().map(|open| open.ends_at);
        (BudgetAnswer { decisions: format!("{decisions:?}"), taken, ends_at }, reservation)
    }

    /// Returns what the limiter with plain rules decides on these costs, without taking them.
    async fn dry(&self, wanted: WantedUnits, costs: Vec<u64>) -> Verdict {
        let wanted = WantedUnits { dry_run: true, ..wanted };
        let twin = &self.trio.services[2];
        named(wanted, costs, async |request| answer_to(twin, request, wanted.seconds).await.verdict)
            .await
    }
}

fn which_of(which: prop::sample::Index, held: &[Held]) -> Option<&Held> {
    (!held.is_empty()).then(|| which.get(held))
}

/// Calls `f` with a request that has these costs for the rules.
async fn named<T>(
    WantedUnits { user, cost, dry_run, .. }: WantedUnits,
    costs: Vec<u64>,
    f: impl AsyncFnOnce(&Request<'_>) -> T,
) -> T {
    let names: Vec<String> = (0..costs.len()).map(|at| format!("r{at}")).collect();
    let most = u64::from(u32::MAX);
    let costs = names.iter().zip(costs).map(|(name, units)| (&**name, units.min(most)));
    let costs: Vec<(&str, u64)> = costs.collect();
    let user = user.to_string();
    let request = Request::user(&user).cost(cost);
    let request = if dry_run { request.dry_run() } else { request };
    let request = request.build().expect("a request").with_costs(Costs::Pairs(&costs));
    f(&request.expect("few costs")).await
}

/// Returns the answer to a check, or to a request to reserve.
async fn answer_to(service: &Service, request: &Request<'_>, seconds: Option<u64>) -> Reserved {
    let limiter = &service.limiter;
    if let Some(seconds) = seconds {
        let hold_for = Some(Micros::from_secs(seconds));
        limiter.reserve(request, hold_for, Deadline::NEVER).await.expect("a verdict")
    } else {
        let verdict = limiter.check(request, Deadline::NEVER).await.expect("a verdict");
        Reserved { verdict, reservation: None }
    }
}
