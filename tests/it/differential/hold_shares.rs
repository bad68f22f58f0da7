//! Random histories of reservations by rules with `hold-share`, on both stores. A third limiter has the same
//! rules without it, and is asked for what the model says that is held: all answers are equal.

use std::sync::Arc;

use proptest::prelude::*;
use rlaas::algorithm::Algorithm;
use rlaas::clock::{Deadline, Micros, Timestamp};
use rlaas::rules::spec::RuleSpec;
use rlaas::rules::{Costs, Request};
use rlaas_testkit::redis::RedisServer;

use super::trio::{OpenOnEach, STEP_BACK, Trio, set_override, shown, with_wide_default};

/// The user of [`HoldRule::by_file`].
const BY_FILE: u8 = 1;

/// A rule, and what a key of it may use at once.
#[derive(Clone, Debug)]
struct HoldRule {
    algorithm: &'static str,
    units: u64,
    burst: Option<u64>,
    /// Units of the user [`BY_FILE`].
    by_file: Option<u64>,
    share_ppm: Option<u32>,
    /// Other fields.
    more: String,
}

#[derive(Clone, Debug)]
pub(super) struct HoldCase {
    rules: Vec<HoldRule>,
    overridable: bool,
    acts: Vec<(i64, ShareAct)>,
}

#[derive(Clone, Debug)]
enum ShareAct {
    Check { user: u8, cost: u32 },
    Report { user: u8, cost: u32 },
    Reserve(Wanted),
    Extend { which: prop::sample::Index, cost: u32, seconds: Option<u64> },
    Settle { which: prop::sample::Index, actual: Option<u32>, counts_ended: bool },
    Override { user: u8, grant: Option<u64>, seconds: u64 },
}

/// What is to be reserved.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    user: u8,
    cost: u32,
    dry_run: bool,
    seconds: u64,
}

/// A reservation as each limiter has it, and the request.
struct Reserved {
    open: OpenOnEach,
    user: u8,
    cost: u32,
}

impl HoldRule {
    fn spec(&self, index: usize, overridable: bool, with_share: bool) -> RuleSpec {
        let Self { algorithm, units, burst, by_file, share_ppm, more } = self;
        let burst = burst.map_or(String::new(), |burst| format!(", burst: {burst}"));
        let share = share_ppm.filter(|_| with_share).map_or(String::new(), |ppm| {
            format!(", hold-share: {}.{:04}%", ppm / 10_000, ppm % 10_000)
        });
        let by_file = by_file.map_or(String::new(), |units| {
            format!(", overrides: [{{match: {{user-id: '{BY_FILE}'}}, limit: {units}}}]")
        });
        let text = format!(
            "{{name: r{index}, algorithm: {algorithm}, limit: {units}{burst}{more}{share}{by_file}, \
             overridable: {overridable}}}"
        );
        serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// Returns what a reservation of this cost holds. `granted` is what an override of the key grants.
    fn held(&self, user: u8, cost: u32, granted: Option<u64>) -> u32 {
        let by_file = self.by_file.filter(|_| user == BY_FILE);
        let own = by_file.unwrap_or(self.burst.unwrap_or(self.units));
        let at_once = i128::from(granted.unwrap_or(own));
        let Some(ppm) = self.share_ppm else { return cost };
        let most = (at_once * i128::from(ppm) / 1_000_000).max(1);
        u32::try_from(most.min(cost.into())).expect("at most the cost")
    }
}

fn rule() -> impl Strategy<Value = HoldRule> {
    let units = prop_oneof![4 => 1..=30_u64, 1 => 31..=3_000_000_u64];
    let modes = prop::sample::select(vec!["", "", "", ", mode: shadow", ", enforce: 25%"]);
    let debts = prop_oneof![2 => Just(String::new()), 1 => (0..=8_u8).prop_map(|most| format!(", max-debt: {most}"))];
    let share = prop_oneof![
        3 => prop::sample::select(vec![10_000, 100_000, 200_000, 333_333, 500_000, 1_000_000]),
        1 => 10_000..=1_000_000_u32,
    ];
    let algorithms =
        ["fixed-window", "sliding-window-counter", "token-bucket", "leaky-bucket", "gcra"];
    let kept = prop::sample::select(vec!["", "", ", on-change: keep-used"]);
    let holding = (
        prop::sample::select(algorithms.to_vec()),
        (units.clone(), prop::option::of(1..=60_u64), prop::option::weighted(0.3, units.clone())),
        prop::option::weighted(0.8, share),
        any::<bool>(),
        (modes.clone(), debts, kept),
    );
    let holding = holding.prop_map(|(algorithm, numbers, share_ppm, is_daily, others)| {
        let ((units, burst, by_file), (mode, debt, kept)) = (numbers, others);
        let has_burst = Algorithm::from_name(algorithm).expect("an algorithm").has_burst();
        let is_daily = is_daily && algorithm == "fixed-window";
        let (window, kept) = if is_daily {
            (", calendar: {unit: day, zone: Europe/Berlin}", "")
        } else {
            (", window: 60s", kept)
        };
        HoldRule {
            algorithm,
            units,
            burst: burst.filter(|_| has_burst),
            by_file,
            share_ppm,
            more: format!("{window}, reservable: true, hold: 90s, max-holds: 6{debt}{mode}{kept}"),
        }
    });
    let slots = (1..=4_u64, modes.clone()).prop_map(|(units, mode)| HoldRule {
        algorithm: "concurrency",
        units,
        burst: None,
        by_file: None,
        share_ppm: None,
        more: format!(", hold: 90s{mode}"),
    });
    let taking = (units, modes).prop_map(|(units, mode)| HoldRule {
        algorithm: "sliding-window-log",
        units: units.min(300),
        burst: None,
        by_file: None,
        share_ppm: None,
        more: format!(", window: 60s{mode}"),
    });
    prop_oneof![6 => holding, 1 => slots, 1 => taking]
}

fn share_act() -> impl Strategy<Value = ShareAct> {
    let user = || 0..=2_u8;
    let cost = || prop_oneof![8 => 0..=12_u32, 3 => 0..=100_u32, 1 => Just(u32::MAX)];
    let which = any::<prop::sample::Index>;
    let seconds = || 1..=100_u64;
    prop_oneof![
        2 => (user(), 0..=6_u32).prop_map(|(user, cost)| ShareAct::Check { user, cost }),
        1 => (user(), 0..=6_u32).prop_map(|(user, cost)| ShareAct::Report { user, cost }),
        6 => (user(), cost(), prop::bool::weighted(0.1), seconds())
            .prop_map(|(user, cost, dry_run, seconds)| ShareAct::Reserve(Wanted { user, cost, dry_run, seconds })),
        2 => (which(), 0..=12_u32, prop::option::of(seconds()))
            .prop_map(|(which, cost, seconds)| ShareAct::Extend { which, cost, seconds }),
        4 => (which(), prop::option::weighted(0.7, 0..=40_u32), any::<bool>())
            .prop_map(|(which, actual, counts_ended)| ShareAct::Settle { which, actual, counts_ended }),
        1 => (user(), prop::option::weighted(0.8, 1..=60_u64), seconds())
            .prop_map(|(user, grant, seconds)| ShareAct::Override { user, grant, seconds }),
    ]
}

pub(super) fn case_of_hold_shares() -> impl Strategy<Value = HoldCase> {
    let micros = prop_oneof![
        3 => Just(0_i64),
        3 => 0..=2_000_000_i64,
        3 => 0..=45_000_000_i64,
        1 => -STEP_BACK.cast_signed()..=0,
    ];
    let acts = prop::collection::vec((micros, share_act()), 1..=40);
    (prop::collection::vec(rule(), 1..=4), any::<bool>(), acts)
        .prop_map(|(rules, overridable, acts)| HoldCase { rules, overridable, acts })
}

/// The limiters, the third without shares, and what was reserved.
struct Limiters {
    case: HoldCase,
    trio: Trio,
    reserved: Vec<Reserved>,
    /// Overrides of users with their ends. `None` is unlimited.
    granted: [Option<(Option<u64>, Timestamp)>; 3],
}

/// Runs a case. Returns how many reservations held less than their cost.
pub(super) async fn run(case: HoldCase, server: &Arc<RedisServer>) -> Result<usize, TestCaseError> {
    let rules = |with_share: bool| {
        let rules = case.rules.iter().enumerate();
        let rules = rules.map(|(index, rule)| {
            rule.spec(index, case.overridable, with_share).build().expect("a rule")
        });
        with_wide_default(rules.collect(), case.overridable)
    };
    let trio = Trio::new(server, &rules(true), rules(false), "with and without shares");
    let (acts, overridable) = (case.acts.clone(), case.overridable);
    let mut limiters = Limiters { case, trio, reserved: Vec::new(), granted: [None; 3] };
    let mut cut = 0;
    for (micros, act) in acts {
        // A step back may revive an override, too.
        let micros = if overridable { micros.max(0) } else { limiters.trio.clock.step(micros) };
        if micros < 0 {
            // Memory does not note the time of a call that finds no reservation.
            limiters.take(ShareAct::Check { user: 0, cost: 0 }).await?;
        }
        limiters.trio.advance(micros);
        cut += usize::from(limiters.take(act).await?);
    }
    Ok(cut)
}

impl Limiters {
    /// Takes an act on all limiters. Returns `true` if less than a cost is held.
    async fn take(&mut self, act: ShareAct) -> Result<bool, TestCaseError> {
        let context = format!("{act:?} at {:?}", self.trio.clock.now);
        match act {
            ShareAct::Check { user, cost } => {
                let user = user.to_string();
                let request = request(&user, cost, false);
                let mut answers = Vec::new();
                for service in &self.trio.services {
                    answers.push(shown(service.limiter.check(&request, Deadline::NEVER).await));
                }
                self.trio.equal(&answers, &context)?;
            }
            ShareAct::Report { user, cost } => {
                let user = user.to_string();
                self.trio.report(&request(&user, cost, false), &context).await?;
            }
            ShareAct::Reserve(wanted) => return self.reserve(wanted, &context).await,
            ShareAct::Extend { which, cost, seconds } => {
                let Some(Reserved { open, .. }) = which_of(which, &self.reserved) else {
                    return Ok(false);
                };
                self.trio.extend(open, cost, seconds, &context).await?;
            }
            ShareAct::Settle { which, actual, counts_ended } => {
                let Some(Reserved { open, user, cost }) = which_of(which, &self.reserved) else {
                    return Ok(false);
                };
                let user = user.to_string();
                let request = request(&user, *cost, false);
                let request = counts_ended.then_some(&request);
                self.trio.settle(open, actual, request, &context).await?;
            }
            ShareAct::Override { user, grant, seconds } if self.case.overridable => {
                let ttl = Micros::from_secs(seconds);
                self.trio.change(user, &set_override(grant, ttl)).await;
                self.granted[usize::from(user)] = Some((grant, self.trio.clock.now + ttl));
            }
            ShareAct::Override { .. } => {}
        }
        Ok(false)
    }

    async fn reserve(&mut self, wanted: Wanted, context: &str) -> Result<bool, TestCaseError> {
        let Wanted { user, cost, dry_run, seconds } = wanted;
        let granted =
            self.granted[usize::from(user)].filter(|(_, ends_at)| self.trio.clock.now < *ends_at);
        let is_unlimited = matches!(granted, Some((None, _)));
        let granted = granted.and_then(|(grant, _)| grant);
        let held: Vec<(String, u64)> = self
            .case
            .rules
            .iter()
            .enumerate()
            .filter(|(_, rule)| rule.share_ppm.is_some() && cost > 0 && !is_unlimited)
            .map(|(index, rule)| (format!("r{index}"), rule.held(user, cost, granted).into()))
            .collect();
        let costs: Vec<(&str, u64)> = held.iter().map(|(name, units)| (&**name, *units)).collect();
        let hold_for = Some(Micros::from_secs(seconds));
        let name = user.to_string();
        let (mut answers, mut opens, mut is_cut) = (Vec::new(), Vec::new(), false);
        for (at, service) in self.trio.services.iter().enumerate() {
            let plain = request(&name, cost, dry_run);
            let by_model = plain.with_costs(Costs::Pairs(&costs)).expect("few costs");
            let request = if at < 2 { plain } else { by_model };
            let reserved = service.limiter.reserve(&request, hold_for, Deadline::NEVER).await;
            let open = reserved.as_ref().ok().and_then(|reserved| reserved.reservation.clone());
            let verdict = reserved.map(|reserved| reserved.verdict);
            if let Ok(verdict) = &verdict {
                for decided in &verdict.decisions {
                    let expected = costs.iter().find(|(name, _)| *name == &*decided.rule);
                    let own = expected.map(|(_, units)| *units).filter(|_| decided.held > 0);
                    prop_assert_eq!(own.unwrap_or(decided.held), decided.held, "{}", context);
                    is_cut |= own.is_some_and(|units| units < cost.into());
                }
            }
            answers.push((open.as_ref().map(|open| open.ends_at), shown(verdict)));
            opens.extend(open);
        }
        self.trio.equal(&answers, context)?;
        self.trio.clock.ends.extend(answers[0].0);
        if let Ok(open) = OpenOnEach::try_from(opens) {
            self.reserved.push(Reserved { open, user, cost });
        }
        Ok(is_cut)
    }
}

fn which_of(which: prop::sample::Index, reserved: &[Reserved]) -> Option<&Reserved> {
    (!reserved.is_empty()).then(|| which.get(reserved))
}

fn request(user: &str, cost: u32, dry_run: bool) -> Request<'_> {
    let request = Request::user(user).cost(cost);
    let request = if dry_run { request.dry_run() } else { request };
    request.build().expect("a valid request")
}
